"""Kernel gaps through the command line, on the processor and on the emulated device."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import commands
import pytest

from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import KERNEL
from loaderbench.recording.store import load_run
from tests.shipped_schema import shipped

CPU = ("--device", "cpu", "--model", "resnet18", "--mode", "infer", "--input-size", "32")
EMULATED = ("--device", "emulated")
OPTIONS = (
    "--res", "96", "--loader", "serial", "--batch-size", "4", "--cache", "warm", "--steps", "6", "--warmup", "2",
    "--quiet", "--json", "-",
)  # fmt: skip


def measured(small_set: Path, results: Path, *options: str) -> dict[str, Any]:
    # others use these processors too
    one_thread = () if os.environ.get("OMP_NUM_THREADS") == "1" else ("env", "OMP_NUM_THREADS=1")
    ended = commands.run("run", small_set, *OPTIONS, *options, "--results", results, wrapper=one_thread)
    assert (ended.code, ended.err) == (0, "")
    record: dict[str, Any] = json.loads(ended.out)
    shipped().validate(record)
    return record


@pytest.mark.parametrize("device", [CPU, EMULATED], ids=["cpu", "emulated"])
def test_a_run_fills_the_kernel_gaps(device: tuple[str, ...], small_set: Path, tmp_path: Path) -> None:
    record = measured(small_set, tmp_path, *device, "--arms", "device,real")

    gap = record["device"]["kernel_gap"]
    assert gap is not None, record["caveats"]
    assert 0 < gap["busy_fraction"] < 1
    assert gap["busy_fraction"] + gap["total_fraction"] == pytest.approx(1)
    assert sum(one["fraction"] for one in gap["by_class"].values()) == pytest.approx(gap["total_fraction"])
    assert gap["busy_fraction"] <= gap["event_busy_fraction"] + 0.01
    own_log = device is EMULATED  # of the last steps of `real`: no window is run for it, so nothing is disturbed
    assert (2 if own_log else 4) <= gap["num_steps"] <= 24
    assert (gap["perturbation_fraction"] is None) is own_log
    assert gap["largest"][0]["worker"] is not None
    assert {one["gap_class"] for one in gap["largest"]} <= set(gap["by_class"])
    assert any(line.startswith("kernel gaps: ") for line in record["verdict"]["evidence"])
    recording = load_run(tmp_path / record["run_id"]).recording
    assert recording is not None
    assert len(recording.of(Arm.TRACED)) == len(recording.of(Arm.UNTRACED)) / 2 == (0 if own_log else 1)
    (traced, *_) = recording.of(Arm.REAL if own_log else Arm.TRACED)
    assert traced.kernels is not None and (traced.kernels[:, 3] == KERNEL).sum() >= gap["num_steps"]
    assert set(record["arms"]) == {"device", "real"}


def test_no_kernels_leaves_them_out(small_set: Path, tmp_path: Path) -> None:
    record = measured(small_set, tmp_path, *EMULATED, "--arms", "real", "--no-kernels")
    assert record["device"]["kernel_gap"] is None
    messages = {caveat["code"]: caveat["message"] for caveat in record["caveats"]}
    assert "--kernels" in messages["kernel_gap_not_measured"]
