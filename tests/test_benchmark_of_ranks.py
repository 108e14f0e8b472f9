"""What benchmarks/ranks.py builds in, and how it judges what was said."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def ranks(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("ranks")


def test_there_are_as_many_launches_as_the_proof_needs(ranks: ModuleType) -> None:
    asked = list(ranks.cases().values())
    causes = [one for one in asked if one.truth is not None]
    assert len(causes) >= 60 and len(asked) > len(causes)
    assert 0.4 < sum(one.all_reduce for one in causes) / len(causes) < 0.6
    assert 0.4 < sum(one.offset_rank is not None for one in asked) / len(asked) < 0.6
    assert {one.truth[0] for one in causes} == {"rank", "rotating"}
    for kind in ranks.KINDS:  # none by the place of the rank, the all-reduce or the clock alone
        of_kind = [one for one in asked if one.kind == kind]
        assert {one.late for one in of_kind} >= {0, 1}
        assert {one.all_reduce for one in of_kind} == {True, False}
        assert {one.offset_rank is None for one in of_kind} == {True, False}


def test_slow_files_lie_in_one_ranks_share_only(ranks: ModuleType) -> None:
    names = [ranks.named(number, slow=number % 3 == 1, part=0.25) for number in range(30)]
    assert sorted(names) == names
    slow = {number for number, name in enumerate(names) if zlib.crc32(f"/{name}".encode()) / 2**32 < 0.25}
    assert slow == set(range(1, 30, 3))


@pytest.mark.parametrize(
    ("truth", "said", "measured", "mark"),
    [
        (("rank", "reading", 1), ("rank", "reading", 1), True, "right"),
        (("rank", "reading", 1), ("rank", "reading", 0), True, "WRONG"),
        (("rank", "reading", 1), ("rank", "preparing", 1), True, "WRONG"),
        (("rank", "reading", 1), ("rank", "data", 1), True, "in part"),
        (("rank", "reading", 1), ("rank", "data", 0), True, "WRONG"),
        (("rank", "reading", 1), None, True, "WRONG"),
        (("rank", "reading", 1), None, False, "undetermined"),
        (("rotating", "reading", None), ("rank", "reading", 0), True, "WRONG"),
        (None, None, True, "right"),
        (None, ("rotating", "device", None), True, "WRONG"),
    ],
)
def test_what_was_said_is_judged(ranks: ModuleType, truth: Any, said: Any, measured: bool, mark: str) -> None:
    assert ranks.judge(truth, said, measured=measured) == mark


def test_only_a_named_imbalance_names_a_rank(ranks: ModuleType) -> None:
    part = {"pattern": "rank", "late_by": "device", "rank": 1}
    assert ranks.said_of({"verdict": {"limited_by": "imbalance", "part": part}}) == ("rank", "device", 1)
    assert ranks.said_of({"verdict": {"limited_by": "prep", "part": None}}) is None


def test_a_recorded_offset_is_held_against_the_clocks_own(ranks: ModuleType) -> None:
    # Rank 1's clock is 50 ms ahead: its stamps lack -50 ms to be on rank 0's; where rank 0's is, all others lack +50.
    case = {"ranks": [{"clock_offset_s": 0.0}, {"clock_offset_s": -0.0498}]}
    setup = {"ranks": [{"offset_s": 0.0}, {"offset_s": 0.05}]}
    row = ranks.Row("x", None, offsets_s=ranks.offsets_of(setup, case))
    assert row.off_s == pytest.approx(0.0002)
    ahead = ranks.offsets_of({"ranks": [{"offset_s": 0.05}, {"offset_s": 0.0}]}, case)
    assert ahead[1][1] == pytest.approx(0.05)
    assert ranks.offsets_of({"ranks": [{"offset_s": 0.0}] * 2}, case) == []


@pytest.mark.parametrize(
    ("offset_s", "line"),
    # time_namespaces(7): seconds may be negative, nanoseconds may not.
    [(0.05, "monotonic 0 50000000\n"), (-0.05, "monotonic -1 950000000\n"), (2.5, "monotonic 2 500000000\n")],
)
def test_the_kernel_is_told_the_offset(
    benchmark_module: Callable[[str], ModuleType], offset_s: float, line: str
) -> None:
    assert benchmark_module("one_rank").offsets_line(offset_s) == line


def test_rows_are_counted_by_what_was_built_in(ranks: ModuleType) -> None:
    rows = [
        ranks.Row(
            "device/serial-2-rank0-all-reduce", ("rank", "device", 0), mark="right", offsets_s=[(1, 0.05, 0.0501)]
        ),
        ranks.Row("device/serial-2-rank0-alone", ("rank", "device", 0), mark="WRONG"),
        ranks.Row("nothing/serial-2-rank0-alone", None, mark="right"),
    ]
    found = ranks.summarize(rows)
    assert (found["with_cause"]["right"], found["with_cause"]["WRONG"], found["without_cause"]["right"]) == (1, 1, 1)
    assert found["with_cause_all_reduce"] == {**dict.fromkeys(found["with_cause"], 0), "right": 1}
    assert found["worst_clock_error_s"] == pytest.approx(1e-4)
