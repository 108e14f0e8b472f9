"""The traced window: emulated busy times by arithmetic, operators that can be counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import repeat
from typing import Any

import numpy as np
import pytest
import torch

from loaderbench.analysis.kernels import clock_error_ns, missing, summarize, traced_part, window_of
from loaderbench.cases.arms import Arm
from loaderbench.devices.base import Device
from loaderbench.devices.cpu import CpuDevice
from loaderbench.devices.cuda import CudaDevice
from loaderbench.devices.emulated import PIECES, EmulatedDevice
from loaderbench.devices.profile import Constant, Profile, StepTime
from loaderbench.devices.select import num_visible_gpus
from loaderbench.loaders.base import Batch
from loaderbench.recording.facts import COPY, KERNEL, STEP, STEP_FIELDS, Segment, WorkloadFacts
from loaderbench.recording.record import KernelGap, TraceClock
from loaderbench.running.kernel_window import (
    DISCARDED_STEPS,
    MAX_STEPS,
    TracedLoop,
    free_recorder,
    keep_log,
    num_steps_for,
    trace_kernels,
)
from loaderbench.running.loop import StepLoop

MS = 1_000_000
NUM_STEPS = 6


class Workload:
    """Any function of a batch as a `Workload`."""

    def __init__(self, step: Callable[[Any, Any], None]) -> None:
        self.step = step
        self.phases: list[Any] = []

    def example(self, output: str) -> tuple[Any, Any]:
        raise NotImplementedError

    def describe(self) -> WorkloadFacts:
        return WorkloadFacts("none", "train", "fp32")


def trace(device: Device, workload: Workload, batches: Iterator[Batch]) -> list[Segment]:
    def settle(loop: StepLoop) -> tuple[int, bool]:
        return loop.run(4, 1 << 62), True

    def ready() -> tuple[Any, Any]:
        batch = next(batches)
        return device.copy_in(batch.inputs, batch.targets)

    traced = TracedLoop(
        device, workload, "lane 0", lanes=1, new_loop=lambda: StepLoop(batches, device, workload), ready=ready,
        settle=settle, behind=lambda loop: nullcontext(),
    )  # fmt: skip
    return trace_kernels(traced, NUM_STEPS)


def traced_summary(segments: list[Segment]) -> tuple[Segment, KernelGap]:
    before, traced, behind = segments
    assert [segment.arm for segment in segments] == [Arm.UNTRACED, Arm.TRACED, Arm.UNTRACED]
    assert {segment.lane for segment in segments} == {"lane 0"}
    assert [segment.trace is None for segment in segments] == [True, False, True]
    assert not missing(traced)
    return traced, summarize(traced, [before, behind])


# -- emulated: busy time and gaps by arithmetic ----------------------------------------------------------


class Bytes:
    """All that the emulated device looks at in a tensor."""

    nbytes = 500_000


def emulated(duration_ms: float, busy_ms: float, issue_ms: float) -> EmulatedDevice:
    """Two tensors of half a MB a step at 1 GB/s: 1 ms of copying."""

    def constant(value: float) -> Constant:
        return Constant(value, "assumed", "a test")

    steps = (StepTime(8, constant(duration_ms), constant(busy_ms)),)
    profile = Profile(
        name="test", device_name="Test", machine="test", model="none", mode="train", precision="fp32", input_size=224,
        steps=steps, issue_ms=constant(issue_ms), tail_ms=constant(0.0), link_bytes_per_s=constant(1e9),
    )  # fmt: skip
    return EmulatedDevice(profile, 8)


def on_emulated(device: EmulatedDevice, wait_s: float) -> tuple[Segment, KernelGap]:
    def batches() -> Iterator[Batch]:
        while True:
            time.sleep(wait_s)
            yield Batch(Bytes(), Bytes(), 8, 0)

    return traced_summary(trace(device, Workload(lambda inputs, targets: device.enqueue_step(8)), batches()))


def test_a_device_that_never_waits_is_idle_within_its_steps_alone() -> None:
    # given steps of 24 ms, 15 of them busy, behind copies of 1 ms, and a host that is always ahead
    traced, gap = on_emulated(emulated(24, 15, 0), wait_s=0)
    begin, end = window_of(traced)
    assert end - begin == NUM_STEPS * 25 * MS
    # then every step has its 9 ms in the gaps between its pieces
    assert gap.count_per_step == PIECES - 1
    assert gap.p50_s == pytest.approx(0.001, rel=1e-6)
    assert gap.total_fraction == pytest.approx(9 / 25, rel=1e-6)
    assert gap.by_class["other"].fraction == pytest.approx(9 / 25, rel=1e-6)
    assert gap.kernel_fraction == pytest.approx(15 / 25, rel=1e-6)
    assert gap.event_busy_fraction == pytest.approx(1)
    assert gap.perturbation_fraction == pytest.approx(0, abs=1e-3)
    assert gap.clock == TraceClock(drift_ns=0, uncertainty_ns=0, error_ns=0)


def test_what_the_loader_takes_is_data_stall() -> None:
    # given batches that take 15 ms, and a device that needs 3
    traced, gap = on_emulated(emulated(2, 2, 0), wait_s=0.015)
    begin, end = window_of(traced)
    period_ms = (end - begin) / NUM_STEPS / MS
    assert period_ms > 14.9
    assert gap.busy_fraction == pytest.approx(3 / period_ms, rel=1e-3)
    assert gap.by_class["data_stall"].fraction == pytest.approx(gap.total_fraction, abs=0.02)
    assert gap.by_class["data_stall"].count_per_step == pytest.approx(1, abs=0.2)
    assert {large.gap_class for large in gap.largest[:NUM_STEPS]} == {"data_stall"}
    batches = sorted(large.batch for large in gap.largest[:NUM_STEPS])
    # twelve steps in the window before, of which four and two settle it, and two and two that settle this one
    assert batches == list(range(16, 16 + NUM_STEPS))


def test_what_issuing_takes_is_launch() -> None:
    # given steps that take 8 ms of the host and 2 ms of the device
    traced, gap = on_emulated(emulated(2, 2, 8), wait_s=0)
    begin, end = window_of(traced)
    period_ms = (end - begin) / NUM_STEPS / MS
    assert gap.kernel_fraction == pytest.approx(2 / period_ms, rel=1e-3)
    # from the events: a step's compute was stretched from its copy's end to its own
    window = traced.steps[traced.num_warmup :]
    copied, done = (window[:, STEP_FIELDS.index(name)] for name in ("copy_end_ns", "done_ns"))
    idle_ns = int((done - copied).sum()) - NUM_STEPS * 2 * MS
    assert gap.by_class["launch"].fraction == pytest.approx(idle_ns / (end - begin), rel=0.01)


def test_the_log_of_an_emulated_device_is_its_busy_time() -> None:
    device = emulated(6, 4, 0)
    device.log_work()
    begin = device.record()
    for _ in range(3):
        device.copy_in(Bytes(), Bytes())
        device.enqueue_step(8)
    end = device.record()
    rows = device.logged_work()
    lengths = rows[:, 1] - rows[:, 0]
    assert lengths[rows[:, 3] == KERNEL].sum() == device.busy_ns(begin, end) == 12 * MS
    assert lengths[rows[:, 3] == COPY].tolist() == [MS] * 3
    assert rows[:, 1].max() == end.time_ns
    assert len(device.logged_work()) == 0  # nothing is kept any more


def test_the_last_steps_of_a_window_of_real_are_as_good_as_a_traced_one() -> None:
    # given more steps than the log keeps, each of 24 ms of which 15 are busy, behind copies of 1 ms
    device = emulated(24, 15, 0)
    workload = Workload(lambda inputs, targets: device.enqueue_step(8))
    recorder = free_recorder(device)
    assert recorder is not None and free_recorder(CpuDevice()) is None
    loop = StepLoop(repeat(Batch(Bytes(), Bytes(), 8, 0)), device, workload)
    with recorder:
        num_steps = loop.run(40, 1 << 62)
        device.synchronize()
    real = Segment(Arm.REAL, 0, 4, True, loop.steps(), None, 0, 1)
    keep_log(recorder, real)
    # then its last steps are a traced window, by the same arithmetic as above
    traced = traced_part(real)
    assert not missing(traced) and len(traced.window) == MAX_STEPS
    begin, end = window_of(traced)
    assert end == real.steps[-1, STEP["done_ns"]] and end - begin == MAX_STEPS * 25 * MS
    gap = summarize(traced)
    assert gap.total_fraction == pytest.approx(9 / 25, rel=1e-6)
    assert gap.kernel_fraction == pytest.approx(15 / 25, rel=1e-6)
    assert gap.perturbation_fraction is None
    assert {large.batch for large in gap.largest} <= set(range(num_steps - MAX_STEPS, num_steps))


@pytest.mark.parametrize(("num_steps", "num_warmup", "traced"), [(1, 0, 0), (2, 1, 1), (3, 0, 2)])
def test_a_short_window_keeps_what_it_has(num_steps: int, num_warmup: int, traced: int) -> None:
    device = emulated(2, 2, 0)
    recorder = device.recorder()
    loop = StepLoop(repeat(Batch(Bytes(), Bytes(), 8, 0)), device, Workload(lambda a, b: device.enqueue_step(8)))
    with recorder:
        loop.run(num_steps, 1 << 62)
        device.synchronize()
    real = Segment(Arm.REAL, 0, num_warmup, True, loop.steps(), None, 0, 1)
    keep_log(recorder, real)
    if not traced:
        assert real.kernels is None and real.trace is None
        return
    assert summarize(traced_part(real)).num_steps == traced and not missing(traced_part(real))


# -- CPU: operators that can be counted ------------------------------------------------------------------


def images() -> Iterator[Batch]:
    """A loader whose own operators run on the thread of the steps."""
    while True:
        inputs = torch.stack([torch.ones(16) for _ in range(4)])
        yield Batch(inputs, torch.zeros(4, dtype=torch.int64), 4, 0)


def test_operators_of_a_step_are_its_kernels_and_those_of_the_loader_are_not() -> None:
    weights = torch.ones(16, 16)

    def five_products(inputs: Any, targets: Any) -> None:
        for _ in range(5):
            torch.mm(inputs, weights)
            time.sleep(0.003)

    traced, gap = traced_summary(trace(CpuDevice(), Workload(five_products), images()))
    assert gap.kernels_per_step == 5
    assert traced.trace is not None
    assert (traced.trace.witnesses[0].counted, gap.clock.error_ns < 100_000) == (5, True)
    assert gap.by_class["launch"].fraction > 0.6  # the pauses of 3 ms between them
    assert 5 <= gap.count_per_step <= 6
    assert clock_error_ns(traced) < 100_000


def test_steps_in_which_the_recorder_starts_are_thrown_away() -> None:
    weights, emulating = torch.ones(16, 16), emulated(2, 2, 0)
    on_cpu = trace(CpuDevice(), Workload(lambda inputs, targets: torch.mm(inputs, weights)), images())
    on_timeline = trace(
        emulating, Workload(lambda inputs, targets: emulating.enqueue_step(8)), repeat(Batch(Bytes(), Bytes(), 8, 0))
    )
    # given a loader that is steady after four steps, and one worker; each window has two steps more that settle it
    before, traced = 4 + 2 + NUM_STEPS, 2 + 2 + NUM_STEPS
    for segments, num_discarded in ((on_cpu, DISCARDED_STEPS), (on_timeline, 0)):
        assert [len(segment.steps) for segment in segments] == [before, traced, traced]
        first_traced = before + num_discarded
        assert [segment.first_batch for segment in segments] == [0, first_traced, first_traced + traced]
        assert all(segment.opened_ns < segment.closed_ns for segment in segments)


def test_a_training_step_is_traced_whole() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train(inputs: Any, targets: Any) -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    traced, gap = traced_summary(trace(CpuDevice(), Workload(train), images()))
    assert gap.kernels_per_step > 10
    assert gap.by_class["launch"].fraction > 0  # Python between the operators
    assert 0 < gap.busy_fraction < gap.event_busy_fraction + 0.03
    assert traced.kernels is not None and traced.kernels.dtype == np.int64


# -- CUDA ----------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(num_visible_gpus() == 0, reason="no NVIDIA GPU (or not asked for: -m gpu)")
def test_products_on_a_gpu_are_its_kernels() -> None:
    device = CudaDevice(0)
    try:
        weights = torch.ones(2048, 2048, device="cuda")

        def five_products(inputs: Any, targets: Any) -> None:
            for _ in range(5):
                torch.mm(weights, weights)
                time.sleep(0.003)

        def pinned() -> Iterator[Batch]:
            inputs, targets = torch.ones(64, 4096).pin_memory(), torch.zeros(64, dtype=torch.int64).pin_memory()
            while True:
                yield Batch(inputs, targets, 64, 0)

        traced, gap = traced_summary(trace(device, Workload(five_products), pinned()))
    finally:
        device.close()
    assert 5 <= gap.kernels_per_step <= 10  # a product is one kernel, or one and a reduction
    assert gap.by_class["launch"].fraction > 0.6  # the pauses of 3 ms between them
    assert traced.kernels is not None and (traced.kernels[:, 3] == COPY).sum() >= 2 * NUM_STEPS
    assert gap.clock.error_ns < 200_000
    assert gap.busy_fraction <= gap.event_busy_fraction + 0.03


# -- how many steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step_s", "duration_s", "lanes", "steps"),
    [
        (0.001, 60, 8, 24), (0.049, 60, 8, 8), (0.09, 60, 2, 5),  # 61 steps in 3 s, 36 of them around the windows
        (0.39, 60, 2, 4), (0.5, 60, 16, None), (5.0, 60, 1, None),  # 30 of 0.39 s are within 12 s, 72 of 0.5 s not
        (0.02, 5, 2, 10), (0.05, 2, 2, None),  # a fifth of 5 s; 30 steps of 50 ms in a fifth of 2 s
    ],
)  # fmt: skip
def test_windows_take_three_seconds_or_the_fewest_steps_that_say_something(
    step_s: float, duration_s: float, lanes: int, steps: int | None
) -> None:
    assert num_steps_for(step_s, duration_s, lanes) == steps
