"""What a model's calls are, against closed forms and Caffe's own count; what they take, against a stopwatch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from loaderbench.analysis.model_layers import required_bytes
from loaderbench.cases.case import Step
from loaderbench.devices.cpu import CpuDevice
from loaderbench.errors import ConfigError
from loaderbench.loaders.base import Batch
from loaderbench.recording.model_layers import PARTS, CallFacts
from loaderbench.running.flops import FlopCount
from loaderbench.running.layers import (
    MOST_CALLS,
    NUM_BLOCKS,
    Discovery,
    Found,
    Iteration,
    Stopwatch,
    discover,
    repeated,
)
from loaderbench.workloads import build_workload
from loaderbench.workloads.calls import CallTracer
from loaderbench.workloads.training import ModelWorkload

STEP = Step("lenet", "train", "fp32", "cpu", batch_size=4, input_size=28, channels=1)


def iteration_of(step: Step, model: nn.Module | None = None) -> Iteration:
    device = CpuDevice()
    if model is None:
        workload: Any = build_workload(step, device, image_size=step.input_size)
    else:
        workload = ModelWorkload(step, device, model, image_size=step.input_size or 0, num_classes=2)
    inputs, targets = workload.example("float32")
    return Iteration(device, workload, Batch(inputs, targets, step.batch_size, 0), None)


def found_in(iteration: Iteration) -> Found:
    return discover(iteration, CallTracer(iteration.workload.model))


# -- what the calls are ------------------------------------------------------------------------------------


def test_lenet_by_closed_forms() -> None:
    """FLOPs of a convolution: 2·K·K·Cin·Cout·H·W each image; backward twice that, once for the first (no input
    gradient)."""
    calls = found_in(iteration_of(STEP)).calls
    conv1, pool1, relu1, conv2, _, _, flatten, affine1, _, affine2, scores, loss = calls
    first, second = 4 * 2 * 25 * 1 * 16 * 24 * 24, 4 * 2 * 25 * 16 * 16 * 8 * 8
    assert (conv1.forward_flops, conv1.backward_flops) == (first, first)
    assert (conv2.forward_flops, conv2.backward_flops) == (second, 2 * second)
    assert (affine1.forward_flops, affine1.backward_flops) == (4 * 2 * 256 * 50, 2 * 4 * 2 * 256 * 50)
    assert [call.parameters for call in (conv1, pool1, conv2, affine1, affine2)] == [
        25 * 16 + 16, 0, 25 * 16 * 16 + 16, 256 * 50 + 50, 50 * 10 + 10,
    ]  # fmt: skip
    assert (conv1.output_shape, relu1.output_shape, loss.output_shape) == ((4, 16, 24, 24), (4, 16, 12, 12), ())
    assert conv1.top_bytes == 4 * 16 * 24 * 24 * 4
    assert flatten.reshapes and not any(call.reshapes for call in calls if call is not flatten)
    assert (scores.type, loss.type) == ("LogSoftmax", "NLLLoss")


def test_resnet18_has_its_known_totals() -> None:
    step = replace(STEP, model="resnet18", mode="infer", batch_size=1, input_size=224, channels=3)
    calls = found_in(iteration_of(step)).calls
    assert sum(call.parameters for call in calls) == 11_689_512  # torchvision's table
    assert sum(call.forward_flops for call in calls) == pytest.approx(2 * 1.814e9, rel=1e-3)  # its GFLOPS are GMACs
    assert [call.backward_flops for call in calls] == [None] * len(calls)
    names = [(call.name, call.call) for call in calls]
    assert ("layer1.0.relu", 2) in names and ("layer4.1.add", 1) in names and len(names) == len(set(names)) == 69


class CaffeInception(nn.Module):
    def __init__(self, channels: int, *maps: int) -> None:
        super().__init__()
        one, three_in, three, five_in, five, pool = maps

        def conv(wide: int, out: int, kernel: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(wide, out, kernel, padding=kernel // 2), nn.ReLU(inplace=True))

        self.branch1 = conv(channels, one, 1)
        self.branch2 = nn.Sequential(conv(channels, three_in, 1), conv(three_in, three, 3))
        self.branch3 = nn.Sequential(conv(channels, five_in, 1), conv(five_in, five, 5))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(channels, pool, 1))

    def forward(self, x: torch.Tensor) -> Any:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


INCEPTIONS = (
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), None, (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128), None, (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
)  # fmt: skip
"""bvlc_googlenet's deploy.prototxt; None is a pooling."""


def caffe_googlenet() -> nn.Module:
    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(inplace=True), pool(), nn.LocalResponseNorm(5), nn.Conv2d(64, 64, 1),
        nn.ReLU(inplace=True), nn.Conv2d(64, 192, 3, padding=1), nn.ReLU(inplace=True), nn.LocalResponseNorm(5), pool(),
    ]  # fmt: skip
    channels = 192
    for maps in INCEPTIONS:
        if maps is None:
            layers.append(pool())
            continue
        layers.append(CaffeInception(channels, *maps))
        channels = maps[0] + maps[2] + maps[4] + maps[5]
    layers += [nn.AvgPool2d(7, 1), nn.Dropout(), nn.Flatten(), nn.Linear(1024 * 31 * 31, 1000), nn.Softmax(1)]
    return nn.Sequential(*layers)


def test_memory_required_is_caffes_own_figure() -> None:
    """The post of 2017 printed 1,587,938,496 bytes for GoogleNet with one image of 1200×1200 (15,879,384,960 for ten).
    Its network is written here with PyTorch's modules and run without data."""
    with torch.device("meta"):
        model, images = caffe_googlenet(), torch.empty(1, 3, 1200, 1200)
    discovery, tracer = Discovery(model, FlopCount()), CallTracer(model)
    with tracer.installed(discovery), tracer, torch.no_grad():
        model(images)
    calls = discovery.found(trains=False).calls
    assert images.nbytes + sum(map(required_bytes, calls)) == 1_587_938_496
    taken_by_four = [call for call in calls if call.num_consumers == 4]
    assert len(taken_by_four) == 9 and {call.num_consumers for call in calls} == {0, 1, 4}


def test_an_outputs_takers_are_counted_and_what_is_in_place_is_new() -> None:
    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.relu = nn.Linear(12, 2), nn.ReLU(inplace=True)

        def forward(self, x: torch.Tensor) -> Any:
            hidden = self.relu(self.fc(x.flatten(1)))
            return hidden + hidden * hidden

    calls = found_in(iteration_of(replace(STEP, input_size=2, channels=3), Forked())).calls
    by_name = {call.name: call for call in calls}
    assert by_name["fc"].num_consumers == 1 and by_name["relu"].num_consumers == 3
    assert required_bytes(by_name["relu"]) == 4 * 2 * 4 * (1 + 3)


def test_a_model_without_operations_is_refused() -> None:
    class Nothing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.ReLU()

        def forward(self, x: torch.Tensor) -> Any:
            return x

    step = replace(STEP, mode="infer")
    with pytest.raises(ConfigError, match="calls no PyTorch operation"):
        found_in(iteration_of(step, Nothing()))


# -- what they take ----------------------------------------------------------------------------------------

FORWARD_S, BACKWARD_S = 0.02, 0.04


class _Sleeping(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD_S)
        return x * 1

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(BACKWARD_S)
        return gradients[0]


class Sleeper(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return _Sleeping.apply(x)


class Sleepy(nn.Module):
    """A branch sleeps, the other does not; then all sleep twice in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.sleeper, self.twice = nn.Linear(12, 2), Sleeper(), Twice()

    def forward(self, x: torch.Tensor) -> Any:
        x = self.fc(x.flatten(1))
        return self.twice(self.sleeper(x) + x)


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return _Sleeping.apply(_Sleeping.apply(x))


def timed(iteration: Iteration, num_steps: int = 1) -> tuple[list[CallFacts], Any]:
    tracer = CallTracer(iteration.workload.model)
    found = discover(iteration, tracer)
    watch = Stopwatch(iteration.device, found.has_backward)
    for _ in range(num_steps):
        with tracer.installed(watch):
            iteration.run(watch.mark, tracer)
        watch.end_step()
    return found.calls, [(one, found.kept) for one in watch.read(len(found.has_backward))]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A pool of threads that slept takes milliseconds to come back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.alone
@pytest.mark.usefixtures("one_thread")
def test_each_call_has_its_own_time_and_no_others() -> None:
    iteration = iteration_of(replace(STEP, input_size=2, channels=3), Sleepy())
    iteration.run()
    calls, steps = timed(iteration, 3)
    spans = np.median([step.calls_s[kept] for step, kept in steps], axis=0)
    took = {call.name: tuple(span[:2]) for call, span in zip(calls, spans.tolist(), strict=True)}  # none is recomputed
    assert took["sleeper"] == pytest.approx((FORWARD_S, BACKWARD_S), rel=0.25)
    assert took["twice"] == pytest.approx((2 * FORWARD_S, 2 * BACKWARD_S), rel=0.25)
    for name in ("fc", "add", "loss.log_softmax", "loss.nll_loss"):
        assert max(took[name]) < FORWARD_S / 2, name
    parts = dict(zip(PARTS, np.median([step.parts_s for step, _ in steps], axis=0).tolist(), strict=True))
    assert parts["forward"] == pytest.approx(3 * FORWARD_S, rel=0.25)
    assert parts["backward"] == pytest.approx(3 * BACKWARD_S, rel=0.25)


def test_calls_that_change_are_refused() -> None:
    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.num = nn.Linear(12, 2), 0

        def forward(self, x: torch.Tensor) -> Any:
            self.num += 1
            x = self.fc(x.flatten(1))
            return x + 1 if self.num > 1 else x

    with pytest.raises(ConfigError, match="change from step to step"):
        timed(iteration_of(replace(STEP, input_size=2, channels=3), Fickle()))


def test_an_iteration_marks_its_parts_in_both_modes() -> None:
    for mode, num in (("train", len(PARTS)), ("infer", 4)):
        iteration = iteration_of(replace(STEP, mode=mode))  # type: ignore[arg-type]
        marks: list[int] = []
        load_ns, ns = iteration.run(lambda: marks.append(time.perf_counter_ns()))  # noqa: B023
        assert len(marks) == num + 1 == len(iteration.parts) + 1
        assert 0 <= load_ns < ns <= marks[-1] - marks[0] + 50e6


@contextlib.contextmanager
def clock() -> Iterator[list[float]]:
    seconds = [time.perf_counter()]
    yield seconds
    seconds.append(time.perf_counter())


def test_a_call_is_repeated_by_number_or_by_time() -> None:
    calls: list[int] = []
    quick = repeated(CpuDevice(), lambda: calls.append(1), 10.0)
    assert quick.num_calls == MOST_CALLS and len(calls) == MOST_CALLS + 3
    with clock() as seconds:
        slow = repeated(CpuDevice(), lambda: time.sleep(0.02), 0.01)
    assert slow.num_calls == NUM_BLOCKS
    assert slow.block_s.min() >= 0.02 and slow.block_s.sum() < seconds[1] - seconds[0]
