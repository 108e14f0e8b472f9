"""What ranks of one launch may differ in."""

from __future__ import annotations

from typing import Any

import pytest
from made import make_case

from loaderbench.cases.case import Case
from loaderbench.errors import ConfigError
from loaderbench.studies.ranks import check_same


class TwoRanks:
    """Stands in for a meeting: rank 1 said something before."""

    rank = 0

    def __init__(self, said: bytes = b"") -> None:
        self.said = said

    def gather(self, name: str, data: bytes) -> list[bytes]:
        self.mine = data
        return [data, self.said or data]


def said(case: Case) -> bytes:
    meeting: Any = TwoRanks()
    check_same([case], meeting)
    told: bytes = meeting.mine
    return told


def test_ranks_may_read_copies_in_other_folders_and_have_other_devices() -> None:
    case = make_case(dataset="/mnt/a/set/256", dataset_name="set", resolution=256, shard="0/2")
    other = {"dataset": "/scratch/copy", "dataset_name": "copy", "resolution": None, "device": "emulated:slow.toml"}
    meeting: Any = TwoRanks(said(case.changed(shard="1/2", **other)))
    check_same([case], meeting)


@pytest.mark.parametrize("change", [{"batch_size": 7}, {"cache": "cold"}, {"workers": 5}, {"all_reduce_bytes": 1}])
def test_ranks_may_not_differ_in_what_is_measured(change: dict[str, Any]) -> None:
    case = make_case(shard="0/2", cache="warm")
    meeting: Any = TwoRanks(said(case.changed(**change)))
    with pytest.raises(ConfigError, match="rank 1 has other options than rank 0"):
        check_same([case], meeting)
