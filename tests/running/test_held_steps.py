"""Busy time of a device that does not tell it (CUDA): steps held back until all of them is enqueued."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loaderbench.analysis.record import make_record
from loaderbench.cases.case import Case
from loaderbench.devices import profile
from loaderbench.devices.emulated import EmulatedDevice
from loaderbench.recording.types import Run
from loaderbench.running import worker

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


def record_on(device: type[EmulatedDevice], images: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Inference of 8 images, which the device computes long before the host has issued it."""
    case = Case(
        dataset=str(images), dataset_name="none", resolution=None, loader="synthetic", decoder=None, workers=1,
        prefetch=2, batch_size=8, model="resnet50", mode="infer", precision="amp-bf16", device=f"emulated:{PROFILE}",
        input_size=224, output="uint8", cache="as-is", duration_s=1.5, ci_target=0.2,
    )  # fmt: skip
    monkeypatch.setattr(worker, "open_device", lambda case: device(profile.named(PROFILE), 8, 224))
    recording = worker.measure(case, lambda kind, payload: None)
    return make_record("r", Run(case, "ok", "", 2.0, recording, [], [], {"cpus_usable": 2}))


def test_a_launch_bound_step_is_found_without_busy_times(image_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = record_on(EmulatedDevice, image_tree, monkeypatch)
    held = record_on(HoldableDevice, image_tree, monkeypatch)
    assert told["verdict"]["bottleneck"] == held["verdict"]["bottleneck"] == "launch"
    # the gaps within a step that is not late are in the held one's time
    gains = [one["verdict"]["speedup_if_removed"]["launch"]["value"] for one in (told, held)]
    assert 1.5 < gains[1] <= 1.05 * gains[0]
    duration_s = profile.named(PROFILE).duration_ms(8, 224).value / 1e3
    expected = duration_s / held["step_time_s"]["mean"]
    assert held["device"]["busy_fraction"] == pytest.approx(expected, rel=0.05)


def test_a_step_that_could_not_be_held_leaves_launches_unknown(
    image_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_on(ShortHeldDevice, image_tree, monkeypatch)
    assert record["shares"]["launch"] is None
    assert "launch_not_measured" in {caveat["code"] for caveat in record["caveats"]}
