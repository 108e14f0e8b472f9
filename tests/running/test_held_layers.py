"""Layers on a device of its own that computes faster than the host marks and issues: a queue on a clock of its own."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from loaderbench.analysis.model_layers import layers_of
from loaderbench.cases.case import Step
from loaderbench.devices.cpu import CpuDevice
from loaderbench.loaders.base import Batch
from loaderbench.machine import environment
from loaderbench.recording.facts import DeviceFacts
from loaderbench.recording.model_layers import LayersFacts, LayersResult
from loaderbench.running import layers
from loaderbench.running.jobs import model_layers as job
from loaderbench.running.jobs.table import LayersRequest
from loaderbench.running.layers import Iteration
from loaderbench.workloads.training import ModelWorkload

ISSUE_NS, FORWARD_NS, BACKWARD_NS = 30_000, 20_000, 50_000
"""Of a layer: what the host takes to issue each pass, and what the device computes."""
STAMP_HOST_NS, STAMP_DEVICE_NS = 10_000, 1_000
"""Of an event."""
NUM_LAYERS = 20
STEP = Step("lenet", "train", "fp32", "cpu", batch_size=2, input_size=2, channels=3)


class Queue(CpuDevice):
    """The host's clock moves by what is issued alone; the device does one thing after another, as soon as it may."""

    copies = True
    depth = 10_000
    """Launches that it takes ahead; the host waits at further ones until the first have run."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns, self.free_ns = 1_000_000_000, 0
        self.pending: deque[int] = deque()

    def issue(self, host_ns: int, device_ns: int) -> None:
        self.now_ns += host_ns
        if len(self.pending) == self.depth:
            self.now_ns = max(self.now_ns, self.pending.popleft())
        self.free_ns = max(self.now_ns, self.free_ns) + device_ns
        self.pending.append(self.free_ns)

    def stamp(self) -> int:
        self.issue(STAMP_HOST_NS, STAMP_DEVICE_NS)
        return self.free_ns

    def record(self) -> int:
        return self.free_ns

    def synchronize(self) -> None:
        self.now_ns = max(self.now_ns, self.free_ns)

    def times_ns(self, events: Any) -> Any:
        self.synchronize()
        return np.array(events, dtype=np.int64)

    def occupying(self, seconds: float) -> Callable[[], None]:
        return lambda: self.issue(STAMP_HOST_NS, round(seconds * 1e9))

    def describe(self) -> DeviceFacts:
        return DeviceFacts("cuda", "a queue")


class Shallow(Queue):
    depth = 66
    """An iteration without the stopwatch fits, one with it does not: 20 layers of 1 launch and 2 events."""


class NoHold(Queue):
    def occupying(self, seconds: float) -> Callable[[], None]:
        return lambda: None


class Layer(nn.Module):
    def __init__(self, device: Queue) -> None:
        super().__init__()
        self.device = device

    def forward(self, x: torch.Tensor) -> Any:
        return _Computing.apply(x, self.device)


class _Computing(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, device: Queue) -> torch.Tensor:
        context.device = device
        device.issue(ISSUE_NS, FORWARD_NS)
        return x * 1

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        context.device.issue(ISSUE_NS, BACKWARD_NS)
        return gradients[0], None


class Model(nn.Module):
    def __init__(self, device: Queue) -> None:
        super().__init__()
        self.fc = nn.Linear(12, 2)
        self.layers = nn.Sequential(*[Layer(device) for _ in range(NUM_LAYERS)])

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(self.fc(x.flatten(1)))


def measured(monkeypatch: pytest.MonkeyPatch, device: Queue, step: Step = STEP, *, loads: bool = False) -> LayersResult:
    workload = ModelWorkload(step, device, Model(device), image_size=2, num_classes=2)
    inputs, targets = workload.example("float32")
    batch = Batch(inputs, targets, step.batch_size, 0)
    iteration = Iteration(device, workload, batch, itertools.repeat(batch) if loads else None)
    clock = SimpleNamespace(perf_counter_ns=lambda: device.now_ns, perf_counter=time.perf_counter)
    monkeypatch.setattr(layers, "time", clock)
    monkeypatch.setattr(job, "_open", lambda *asked: job._Opened(device, workload, iteration, 0))
    found = job.time_layers(LayersRequest(step, 0, 2, 3), lambda message: None)
    facts = LayersFacts(
        step, 0, environment(), device=found.device, workload=found.workload, calls=found.calls, times=found.times,
        status="ok",
    )  # fmt: skip
    return layers_of(facts)


def computing(result: LayersResult, phase: str) -> list[float]:
    return [row.in_step_s.value for row in result.rows if row.type == "Layer" and row.phase == phase and row.in_step_s]


def value(estimate: Any) -> float:
    return float(estimate.value)


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_rows_are_the_devices_time_alone(monkeypatch: pytest.MonkeyPatch, mode: Any) -> None:
    device = Queue()
    result = measured(monkeypatch, device, replace(STEP, mode=mode))
    assert computing(result, "forward") == pytest.approx([FORWARD_NS / 1e9] * NUM_LAYERS)
    layer_ns = FORWARD_NS
    if mode == "train":
        layer_ns += BACKWARD_NS
        assert computing(result, "backward") == pytest.approx([BACKWARD_NS / 1e9] * NUM_LAYERS)
    whole_ns = NUM_LAYERS * layer_ns + STAMP_DEVICE_NS
    # the device's part: not the gaps of an iteration as it runs, where issuing forward takes longer than computing
    assert value(result.device_s) == pytest.approx(whole_ns / 1e9, rel=0.02)
    assert value(result.step_s) >= NUM_LAYERS * ISSUE_NS / 1e9
    assert 0.95 <= value(result.layers_over_whole) <= 1.05
    disturbing = {one.code for one in result.caveats} - {"issuing_takes_longer"}
    assert not result.disturbed or disturbing == {"stopwatch_takes_time"}
    assert not any(row.waits_for_host for row in result.rows)


def test_a_queue_that_fills_up_only_makes_the_host_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device begins with a full queue before it, which outlasts the issuing of what is left."""
    result = measured(monkeypatch, Shallow(), replace(STEP, mode="infer"))
    assert computing(result, "forward") == pytest.approx([FORWARD_NS / 1e9] * NUM_LAYERS)
    assert 0.95 <= value(result.layers_over_whole) <= 1.05


def test_nothing_is_held_with_a_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would get ahead meanwhile, and the wait for its batches would vanish."""
    device = Queue()
    monkeypatch.setattr(device, "occupying", lambda seconds: pytest.fail("held"))
    result = measured(monkeypatch, device, loads=True)
    assert result.device_s is None and result.step_s is not None


def test_without_the_hold_the_rows_hold_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: this is what it looks like."""
    result = measured(monkeypatch, NoHold())
    assert min(computing(result, "forward")) > 1.4 * FORWARD_NS / 1e9
    assert any(row.waits_for_host for row in result.rows)
    assert "layers_hold_gaps" in [one.code for one in result.caveats]


def test_the_stopwatchs_cost_is_that_of_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass is marked in an iteration of its own: two events a forward call, one a backward call."""
    result = measured(monkeypatch, Queue())
    forward = [row for row in result.rows if row.phase == "forward"]
    backward = [row for row in result.rows if row.phase == "backward"]
    num_parts = 6  # marks between the two ends, of which the iteration without has none
    events = (2 * len(forward) + len(backward)) / 2 + num_parts
    more_s = (value(result.timed_over_untimed) - 1) * value(result.device_s)
    assert more_s == pytest.approx(events * STAMP_DEVICE_NS / 1e9, rel=0.1)
