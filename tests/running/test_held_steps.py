"""Busy time of a device that does not tell it (CUDA): steps held back until all of them is enqueued."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loaderbench.analysis.record import analyze
from loaderbench.devices import profile
from loaderbench.devices.emulated import EmulatedDevice
from loaderbench.recording.record import Estimate, RunRecord
from loaderbench.running import rig
from loaderbench.running.jobs.measure import measure
from loaderbench.running.jobs.table import MeasureRequest
from tests.made import make_case, make_environment, make_run

pytestmark = pytest.mark.alone

PROFILE = "h200-resnet50-infer-amp-bf16"


class HoldableDevice(EmulatedDevice):
    """As CUDA: no busy time between two events, but a queue that can be held."""

    def busy_ns(self, begin: Any, end: Any) -> Any:
        return None

    def held_ns(self, issue: Callable[[], None], hold_s: float) -> int | None:
        self.synchronize()
        self.enqueue_compute(round(hold_s * 1e9))
        begin = self.record()
        issue()
        end = self.record()
        held = begin.time_ns > time.perf_counter_ns()
        self.wait(end)
        return end.time_ns - begin.time_ns if held else None


class ShortHeldDevice(HoldableDevice):
    """Issuing always outlasts the hold."""

    def held_ns(self, issue: Callable[[], None], hold_s: float) -> int | None:
        return super().held_ns(issue, 0.0001)


def record_on(
    device: type[EmulatedDevice], images: Path, monkeypatch: pytest.MonkeyPatch, name: str = PROFILE
) -> RunRecord:
    """Inference of 8 images; by PROFILE the device computes it long before the host has issued it."""
    case = make_case(
        dataset=str(images), dataset_name="none", resolution=None, loader="synthetic", decoder=None, workers=1,
        batch_size=8, mode="infer", precision=profile.named(name).precision, device=f"emulated:{name}", output="uint8",
        duration_s=1.5, ci_target=0.2,
    )  # fmt: skip
    monkeypatch.setattr(rig, "open_device", lambda step, size: device(profile.named(name), 8, 224))
    run = make_run(case, None, wall_s=2.0, environment=make_environment(cpus_usable=2))
    run.recording = measure(MeasureRequest(case), lambda message: None)
    return analyze(run)


def value(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.value


def test_a_launch_bound_step_is_found_without_busy_times(image_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):  # a busy machine makes a run undetermined, or is what limits it
        told = record_on(EmulatedDevice, image_tree, monkeypatch)
        held = record_on(HoldableDevice, image_tree, monkeypatch)
        assert told.verdict is not None and held.verdict is not None
        if told.verdict.bottleneck == held.verdict.bottleneck == "launch":
            break
    assert told.verdict.bottleneck == held.verdict.bottleneck == "launch"
    # the gaps within a step that is not late are in the held one's time
    gains = [value(verdict.speedup_if_removed["launch"]) for verdict in (told.verdict, held.verdict)]
    assert 1.5 < gains[1] <= 1.05 * gains[0]
    duration_s = profile.named(PROFILE).duration_ms(8, 224).value / 1e3
    assert held.step_time_s is not None and held.device is not None
    expected = duration_s / held.step_time_s.mean
    assert held.device.busy_fraction == pytest.approx(expected, rel=0.05)


def test_a_published_profile_leaves_launches_unknown(image_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_on(EmulatedDevice, image_tree, monkeypatch, "rtx2080ti-resnet18-infer-fp32")
    assert record.shares is not None and record.shares["launch"] is None
    assert {"launch_not_measured", "issue_unknown"} <= {caveat.code for caveat in record.caveats}
    assert record.verdict is not None and record.verdict.bottleneck == "compute"


def test_a_step_that_could_not_be_held_leaves_launches_unknown(
    image_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_on(ShortHeldDevice, image_tree, monkeypatch)
    assert record.shares is not None and record.shares["launch"] is None
    assert "launch_not_measured" in {caveat.code for caveat in record.caveats}
