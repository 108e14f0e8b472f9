"""What a device ran, by its own recorder: the virtual timeline, operators on the CPU, records of CUPTI."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch._C._autograd import DeviceType

from loaderbench.cases.arms import Arm
from loaderbench.devices.cpu import CpuDevice
from loaderbench.devices.cuda import CudaRecorder
from loaderbench.devices.emulated import PIECES, EmulatedDevice
from loaderbench.devices.profile import named
from loaderbench.devices.profiler import ClockMap, ClockPair, read_clocks
from loaderbench.devices.streams import device_work
from loaderbench.devices.tracing import Work, num_while_issuing
from loaderbench.recording.facts import COPY, KERNEL, MEMSET, STEP, STEP_FIELDS, Segment, Table, TraceWitness


def table_of(**columns: tuple[int, ...]) -> Table:
    """A segment's `steps` with these columns; the others are unknown."""
    steps = np.full((len(next(iter(columns.values()))), len(STEP_FIELDS)), -1, dtype=np.int64)
    for name, column in columns.items():
        steps[:, STEP[name]] = column
    return steps


def traced(steps: Table, kernels: Table, num_warmup: int = 0) -> Segment:
    return Segment(Arm.TRACED, 0, num_warmup, True, steps, None, 0, 1, kernels=kernels)


# -- clocks ----------------------------------------------------------------------------------------------


def test_real_time_is_mapped_by_the_line_through_two_readings() -> None:
    # given a real clock that runs 1 in 1,000 fast and was 5,000,000 ahead
    clock = ClockMap(ClockPair(100, 5_000_100, 20), ClockPair(1_000_100, 6_001_100, 30))
    assert clock([5_000_100, 5_500_600, 6_001_100]).tolist() == [100, 500_100, 1_000_100]
    assert (clock.drift_ns, clock.uncertainty_ns) == (1_000, 30)


def test_both_clocks_are_read_at_one_time() -> None:
    before = time.perf_counter_ns()
    pair = read_clocks()
    assert before <= pair.host_ns <= time.perf_counter_ns()
    assert 0 <= time.time_ns() - pair.real_ns < 100_000_000
    assert pair.uncertainty_ns < 1_000_000


# -- emulated --------------------------------------------------------------------------------------------


class Bytes:
    """All that the emulated device looks at in a tensor."""

    nbytes = 500_000


def test_an_emulated_device_records_its_own_timeline() -> None:
    device = EmulatedDevice(named("h200-resnet50-train-fp32"), 64)
    recorder = device.recorder()
    assert recorder.source == "the emulated device's virtual timeline"
    assert not recorder.discards_first
    returned, issued, done = [], [], []
    device.synchronize()
    with recorder:
        for _ in range(3):
            returned.append(time.perf_counter_ns())
            device.copy_in(Bytes(), Bytes())
            device.enqueue_step(64)
            issued.append(time.perf_counter_ns())
            done.append(device.record().time_ns)
    device.copy_in(Bytes(), Bytes())  # behind the context: not seen
    work = recorder.read()
    assert (work.drift_ns, work.uncertainty_ns, work.names) == (0, 0, {})
    steps = table_of(returned_ns=tuple(returned), issued_ns=tuple(issued), done_ns=tuple(done))
    table = recorder.table(work, steps)
    assert np.bincount(table[:, 4]).tolist() == [PIECES + 1] * 3
    assert (table[:, 3] == COPY).sum() == 3
    witnesses = recorder.witnesses(work, traced(steps, table, num_warmup=1), Counter())
    assert witnesses == (TraceWitness("pieces", PIECES, PIECES),)


# -- CPU -------------------------------------------------------------------------------------------------


def test_on_the_cpu_the_outermost_operators_of_a_step_are_its_kernels() -> None:
    recorder = CpuDevice().recorder()
    assert recorder.source == "torch.profiler, CPU activity"
    assert recorder.discards_first
    weights = torch.ones(32, 32)
    returned, issued = [], []
    with recorder:
        for _ in range(3):
            inputs = torch.ones(32, 32)  # the loader's own operators: before the batch is there
            returned.append(time.perf_counter_ns())
            for _ in range(4):
                torch.nn.functional.linear(inputs, weights)  # calls others within
            issued.append(time.perf_counter_ns())
    work = recorder.read()
    steps = table_of(returned_ns=tuple(returned), issued_ns=tuple(issued), done_ns=tuple(issued))
    table = recorder.table(work, steps)
    assert np.bincount(table[:, 4]).tolist() == [4] * 3
    assert set(table[:, 3]) == {KERNEL}
    assert ((table[:, 0] >= np.array(returned)[table[:, 4]]) & (table[:, 0] < np.array(issued)[table[:, 4]])).all()
    assert work.uncertainty_ns < 1_000_000
    # and every operator that an untraced step calls must be there
    segment = traced(steps, table, num_warmup=1)
    (witness,) = recorder.witnesses(work, segment, Counter({"aten::linear": 4, "aten::addmm": 0}))
    assert witness == TraceWitness("operators_found", 4, 4)
    (witness,) = recorder.witnesses(work, segment, Counter({"aten::linear": 4, "aten::conv2d": 3}))
    assert witness == TraceWitness("operators_found", 4, 7)


# -- CUDA: Kineto's records, without a GPU ---------------------------------------------------------------


@dataclass
class Record:
    """One of Kineto's events as PyTorch hands it out (torch/_C/_autograd.pyi, _KinetoEvent)."""

    label: str
    begin: int
    length: int
    number: int
    device: Any = DeviceType.CUDA
    stream: int = 7
    annotation: bool = False

    def name(self) -> str:
        return self.label

    def start_ns(self) -> int:
        return self.begin

    def duration_ns(self) -> int:
        return self.length

    def correlation_id(self) -> int:
        return self.number

    def device_type(self) -> Any:
        return self.device

    def device_resource_id(self) -> int:
        return self.stream

    def is_user_annotation(self) -> bool:
        return self.annotation


@pytest.mark.parametrize("kind", [DeviceType.CUDA, DeviceType.XPU])
def test_activities_belong_to_the_step_that_launched_them(kind: Any) -> None:
    # given a clock 1,000,000 ahead, and a kernel of step 0 that ran when step 1 was being issued
    ahead, host = 1_000_000, DeviceType.CPU
    events = [
        Record("cudaMemcpyAsync", ahead + 110, 5, 1, host), Record("cudaLaunchKernel", ahead + 120, 5, 2, host),
        Record("cuLaunchKernelEx", ahead + 121, 3, 2, host), Record("cudaMemsetAsync", ahead + 130, 5, 3, host),
        Record("cudaLaunchKernelExC", ahead + 220, 5, 4, host), Record("cudaGraphLaunch", ahead + 230, 5, 5, host),
        Record("Memcpy HtoD (Pinned -> Device)", ahead + 150, 40, 1, stream=13),
        Record("Memset (Device)", ahead + 190, 5, 3),
        Record("void cutlass::Kernel<...>(...)", ahead + 230, 50, 2),
        Record("ampere_gemm", ahead + 290, 60, 4), Record("graphed", ahead + 350, 20, 5),
        Record("Event Sync", ahead + 100, 900, 9), Record("forward", ahead + 100, 900, 9, annotation=True),
        Record("launched before the trace", ahead + 140, 5, 77),
    ]  # fmt: skip
    for event in events:
        event.device = kind if event.device == DeviceType.CUDA else event.device
    clock = ClockMap(ClockPair(0, ahead, 30), ClockPair(1_000_000, ahead + 1_000_000, 40))
    work = device_work(events, clock)
    steps = table_of(returned_ns=(100, 200), issued_ns=(140, 240), done_ns=(285, 400))
    assert CudaRecorder().table(work, steps).tolist() == [
        [140, 145, 7, KERNEL, 0], [150, 190, 13, COPY, 0], [190, 195, 7, MEMSET, 0], [230, 280, 7, KERNEL, 0],
        [290, 350, 7, KERNEL, 1], [350, 370, 7, KERNEL, 1],
    ]  # fmt: skip
    assert work.calls.tolist() == [121, 220] and work.graphs.tolist() == [230]
    assert (work.drift_ns, work.uncertainty_ns) == (0, 40)


def test_cuda_kernels_are_held_against_operators_and_launch_calls() -> None:
    # given two steps of three kernels and a copy each, of which one kernel's record was dropped
    steps = table_of(returned_ns=(100, 200), issued_ns=(140, 240), done_ns=(285, 400))
    rows = [(begin, begin + 5, 7, kind, begin) for begin, kind in ((101, COPY), (110, KERNEL), (111, KERNEL))]
    rows += [(begin, begin + 5, 7, kind, begin) for begin, kind in ((201, COPY), (210, KERNEL), (211, KERNEL))]
    rows.append((212, 217, 7, KERNEL, 212))
    calls = np.array([110, 111, 112, 210, 211, 212, 250])  # the last behind the issuing
    work = Work(np.array(rows), calls, np.empty(0, np.int64), {}, drift_ns=0, uncertainty_ns=0)
    recorder = CudaRecorder()
    assert recorder.source == "torch.profiler, CUDA activity"
    assert recorder.discards_first
    segment = traced(steps, recorder.table(work, steps))
    # when a step is said to call three operators, one of which runs nothing on the device
    witnesses = recorder.witnesses(work, segment, Counter({"aten::mm": 2, "aten::copy_": 1, "aten::empty_like": 9}))
    assert witnesses == (
        TraceWitness("operators", 3.5, 3, at_least=True),
        TraceWitness("launch_calls", 2.5, 3, at_least=True),
    )


@pytest.mark.parametrize("num_warmup", [0, 1])
def test_graph_launches_count_in_the_window_alone(num_warmup: int) -> None:
    steps = table_of(returned_ns=(100, 200), issued_ns=(140, 240), done_ns=(285, 400))
    segment = traced(steps, np.empty((0, 5), np.int64), num_warmup)
    assert num_while_issuing(np.array([50, 120, 150, 230, 250]), segment) == 2 - num_warmup
