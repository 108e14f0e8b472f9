"""What benchmarks/dlio.py reads off dlio-benchmark's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def dlio(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("dlio")


def test_the_parts_of_a_step_are_those_of_its_epoch(dlio: ModuleType) -> None:
    """A rank of 3 steps of 40 ms: the first counts for nothing; the others wait 5 and 7 ms for their batch, sleep 1 ms
    too long and take 52 ms each with the barrier, so that AU is 40 ÷ 52. Another one of 60 ms a step."""
    one = {"load": [9.0, 0.005, 0.007], "proc": [9.1, 0.046, 0.048], "compute": [0.04] * 3}
    other = {"load": [9.0, 0.011, 0.011], "proc": [9.1, 0.054, 0.054], "compute": [0.04] * 3}
    outputs = [
        {"1": {name: {"block1": values} for name, values in rank.items()} | {"au": {"block1": 100 * 40 / step_ms}}}
        for rank, step_ms in ((one, 52), (other, 60))
    ]
    assert dlio.step_parts(outputs) == pytest.approx(
        {"waits_for_batch": 8.5, "computes": 40, "sleeps_longer": 2, "barrier_and_rest": 5.5}
    )


def test_a_set_has_both_folders_and_as_many_files_as_an_epoch_reads(
    dlio: ModuleType, small_set: Path, tmp_path: Path
) -> None:
    root = dlio.make_set(small_set / "96", tmp_path / "set")
    assert len(list((root / "train").glob("*.jpeg"))) == dlio.NUM_FILES
    assert (root / "valid").is_dir()
