"""What `compare` and `run` say of a FUSE mount of known speed beside a local disk, cold and warm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import commands
import pytest

from loaderbench.images.cache_state import can_prove_cold, evict
from loaderbench.images.filesystem import storage_behind
from loaderbench.selftest.slow_fuse import check_available, slow_fuse
from loaderbench.studies.compare_plan import default_caches

pytestmark = [pytest.mark.bed, pytest.mark.slow, pytest.mark.alone]

STEP = ("--res", "96", "--device", "emulated", "--loader", "threaded", "--workers", "1")
SHORT = (*STEP, "--mode", "infer", "--input-size", "64", "--no-kernels", "--quiet", "--json", "-")


@pytest.fixture(autouse=True)
def _available(require_bed: Any, small_set: Path) -> None:
    require_bed(check_available)
    if storage_behind(small_set).kind != "local" or not can_prove_cold(str(small_set)):
        pytest.skip("the temporary folder is not on a local disk")


def codes(record: dict[str, Any]) -> set[str]:
    return {caveat["code"] for caveat in record["caveats"]}


def test_by_default_a_slow_mount_is_compared_cold_and_by_its_own_rate(small_set: Path, tmp_path: Path) -> None:
    # given files of 4 kB on a channel of 0.2 MB/s, which is far below what one worker decodes
    with slow_fuse(small_set, bytes_per_s=0.2e6) as bed:
        targets = (f"nvme={small_set}", f"slow={bed.path}")
        options = ("--batch-size", "2", "--rounds", "1", "--duration", "10", "--results", tmp_path / "results")
        ended = commands.run("compare", *targets, *SHORT, *options)
    assert (ended.code, ended.err) == (0, "")
    found = json.loads(ended.out)
    # then the default is cold and warm, the leading pair is cold, and the mount is slower because of its storage
    assert [pair["cache"] for pair in found["pairs"]] == ["cold", "warm"]
    cold, warm = found["pairs"]
    assert (found["outcome"], cold["outcome"], warm["outcome"]) == ("slower", "slower", "from_memory")
    assert found["ratio"]["high"] < 0.5
    assert (cold["a"]["storage"]["cold_proof"], cold["b"]["storage"]["cold_proof"]) == ("bytes", "residency")
    assert cold["b"]["bottleneck"] == "storage"
    assert "cold_by_residency" in codes(found["b"])
    needs = found["parity"]["needs"]
    known_well = needs["gives_bytes_per_s"] == pytest.approx(0.2e6, rel=0.05)
    assert known_well or needs["gives"]["low"] <= 0.2e6 <= needs["gives"]["high"]
    assert needs["bytes_per_s"] > 2 * needs["gives_bytes_per_s"]


def test_what_cannot_be_evicted_is_compared_as_it_is(small_set: Path) -> None:
    with slow_fuse(small_set) as bed:
        assert default_caches([f"{small_set}/96", f"{bed.path}/96"], 1000, None) == (["cold", "warm"], [])
    states, (note,) = default_caches([f"{small_set}/96", "/dev/shm"], 1000, None)
    assert states == ["as-is", "warm"] and note.code == "as_is_for_cold"


@pytest.mark.parametrize("opens", [None, 0.008])
def test_a_warm_mount_is_storage_only_where_its_opens_are_slow(
    opens: float | None, small_set: Path, tmp_path: Path
) -> None:
    for path in (small_set / "96").rglob("*.jpg"):
        evict(str(path))
    with slow_fuse(small_set, open_latency_s=opens) as bed:
        options = ("--batch-size", "2", "--cache", "warm", "--duration", "10", "--results", tmp_path)
        ended = commands.run("run", bed.path, *SHORT, *options)
    assert (ended.code, ended.err) == (0, "")
    record = json.loads(ended.out)
    # both arms are measured: nothing of FUSE is taken for granted
    assert record["storage"]["idle_proof"] is None and {"ram", "real"} <= set(record["arms"])
    if opens is not None:
        assert record["verdict"]["bottleneck"] == "storage"
        assert record["shares"]["storage"]["value"] > 0.5


def test_a_warm_local_set_has_no_storage_share_and_needs_no_second_arm(small_set: Path, tmp_path: Path) -> None:
    ended = commands.run(
        "run", small_set, *SHORT, "--batch-size", "8", "--cache", "warm", "--duration", "4", "--results", tmp_path
    )
    assert (ended.code, ended.err) == (0, "")
    record = json.loads(ended.out)
    assert (record["storage"]["idle_proof"], record["storage"]["bytes_read"]) == ("local", 0)
    assert record["shares"]["storage"]["value"] == 0
    assert "ram" not in record["arms"] and "arms_not_measured" not in codes(record)
    assert any("the storage share is 0 (proven)" in line for line in record["verdict"]["evidence"])
