"""A window of steps of which every kernel and copy is known, between two without tracing that show what tracing costs.

| device | where the intervals come from |
| --- | --- |
| cuda | CUPTI through torch.profiler, CUDA activity alone; out of the profiler's memory, no file is written |
| cpu | operator spans of torch.profiler: the outermost ones that the step runs count as kernels |
| emulated | the virtual timeline (EmulatedDevice.log_work) |
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from loaderbench.devices.base import Device
from loaderbench.devices.emulated import PIECES
from loaderbench.recording.types import COPY, KERNEL, MEMSET, STEP_FIELDS, TRACED, UNTRACED, Segment
from loaderbench.running.loop import StepLoop
from loaderbench.workloads.base import Workload

MAX_STEPS, MIN_STEPS = 24, 4
MAX_S, MAX_PART = 3.0, 0.2
"""What all steps may take together, in seconds and of the measuring time; more than MAX_S only to hold MIN_STEPS."""
DISCARDED_STEPS = 3
"""Of the first profiled window of the process, in which CUPTI starts: on an H200 its steps took 56 % longer."""
SETTLING_STEPS = 2
"""Between the profiler's start and the window, and the same without a profiler."""
LAUNCH_CALLS = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperativeKernel", "cuLaunchCooperativeKernel")
"""Beginnings of the names of CUDA's calls that launch one kernel each."""
GRAPH_CALLS = ("cudaGraphLaunch", "cuGraphLaunch")
USER_SCOPE = 7
"""RecordScope::USER_SCOPE of ATen/record_function.h: ranges that Python code marks, the optimizer's among them."""
NO_KERNEL = (
    "aten::empty", "aten::new_empty", "aten::detach", "aten::alias", "aten::lift", "aten::resize", "aten::set_",
    "aten::is_", "aten::record_stream", "aten::_unsafe_view", "aten::_reshape_alias", "aten::_local_scalar_dense",
    "aten::as_strided",
)  # fmt: skip
"""Beginnings of the names of operators that run nothing on the device (views are told by their schema)."""

STEP = {name: number for number, name in enumerate(STEP_FIELDS)}
_NEVER = sys.maxsize
HostClock = Callable[[Sequence[int]], NDArray[np.int64]]
"""Maps a recorder's times to those of perf_counter_ns."""
Settle = Callable[[StepLoop], tuple[int, bool]]
"""Runs a loop until the loader is steady: (steps run, whether it is)."""


class Work(NamedTuple):
    """What a recorder saw, on the clock of perf_counter_ns."""

    rows: NDArray[np.int64]
    """[N, 5]: begin, end, stream, kind, time at which the host launched it (-1 where unknown)."""
    calls: NDArray[np.int64]
    """[M]: when the host launched a kernel, by CUDA's own calls; empty where there are none to see."""
    graphs: NDArray[np.int64]
    """[G]: when the host launched a CUDA graph."""
    names: dict[str, NDArray[np.int64]]
    """For each operator when it began, nested ones included; empty where operators are not recorded."""
    clock: dict[str, int]
    """drift_ns: of the recorder's clock against the host's over the window; uncertainty_ns: of their relation."""


class Recorder(Protocol):
    """Records all that the device runs within the context; `read` it afterwards."""

    source: str

    def __enter__(self) -> Any: ...
    def __exit__(self, *error: object) -> None: ...
    def read(self) -> Work: ...


def num_steps_for(step_s: float, duration_s: float, lanes: int) -> int | None:
    """Steps of each window; None where they are so long that even the fewest would take too much of `duration_s`."""
    around = 3 * (lanes + 1 + SETTLING_STEPS) + DISCARDED_STEPS
    allowed = int(min(MAX_S, MAX_PART * duration_s) / max(step_s, 1e-6))
    steps = min(max((allowed - around) // 3, MIN_STEPS), MAX_STEPS)
    return steps if (3 * steps + around) * step_s <= MAX_PART * duration_s else None


def trace_kernels(
    new_loop: Callable[[], StepLoop],
    device: Device,
    workload: Workload,
    ready: Callable[[], tuple[Any, Any]],
    *,
    num_steps: int,
    lanes: int,
    settle: Settle,
    behind: Callable[[StepLoop], AbstractContextManager[None]],
) -> list[Segment]:
    """Run an untraced window, a traced one and another untraced one of `num_steps` each, all of one stream of batches.

    Args:
        new_loop: a loop that goes on with the stream.
        lanes: batches that the loader prepares at once.
        settle: runs the first window's loop until the loader is steady. The later ones begin right behind it, with a
            round of the loader's workers.
        ready: the next batch's inputs and targets, on the device.
        behind: evicts the files of a loop's batches while it runs, where that is asked for.

    Returns the segments `untraced`, `traced`, `untraced`. Raises what the loader or the profiler raises.
    """
    recorder = _recorder(device)
    segments: list[Segment] = []
    num_before = 0

    def window(arm: str) -> None:
        nonlocal num_before
        loop = new_loop()
        device.synchronize()
        device.anchor()
        opened = time.perf_counter_ns()
        with behind(loop):
            if not segments:
                num_warmup, steady = settle(loop)
            else:
                num_warmup, steady = loop.run(lanes + 1, _NEVER), segments[0].steady
            recording: AbstractContextManager[Any] = recorder if arm == TRACED else nullcontext()
            with recording:
                num_warmup += loop.run(SETTLING_STEPS, _NEVER)
                loop.run(num_steps, _NEVER)
                device.synchronize()
        facts = {"opened_ns": opened, "closed_ns": time.perf_counter_ns(), "first_batch": num_before}
        segments.append(
            Segment(arm, 0, num_warmup, steady, loop.steps(), loop.table_of_spans(None), facts, loop.phases())
        )
        num_before += len(loop.host)

    window(UNTRACED)
    if device.kind != "emulated":
        first, warming = new_loop(), _recorder(device)
        with behind(first), warming:
            num_before += first.run(DISCARDED_STEPS, _NEVER)
            device.synchronize()
    window(TRACED)
    window(UNTRACED)
    # Read last of all: it takes a while, in which the loader's queue would fill.
    traced = segments[1]
    work = recorder.read()
    traced.kernels = _table(work, traced.steps, device.kind)
    traced.facts["trace"] = {
        "source": recorder.source,
        "clock": work.clock,
        "graph_launches": _in_window(work.graphs, traced),
        "witnesses": _witnesses(work, traced, device, workload, ready),
    }
    return segments


def _table(work: Work, steps: NDArray[np.int64], kind: str) -> NDArray[np.int64]:
    """Rows of KERNEL_FIELDS: each interval with the step that launched it.

    A step's launches lie between the delivery of its batch and that of the next. Where the launch is not known the
    interval belongs to the step that was completed next. On the CPU operators outside of a step are the loader's.
    """
    rows = work.rows
    returned, issued, done = (steps[:, STEP[name]] for name in ("returned_ns", "issued_ns", "done_ns"))
    by_launch = np.searchsorted(returned, rows[:, 4], side="right") - 1
    by_completion = np.searchsorted(done, rows[:, 1], side="left")
    step = np.where(rows[:, 4] >= 0, by_launch, by_completion)
    inside = (step >= 0) & (step < len(steps))
    if kind == "cpu":
        inside &= rows[:, 0] <= issued[np.clip(step, 0, len(steps) - 1)]
    table = np.column_stack([rows[:, :4], step])[inside]
    ordered: NDArray[np.int64] = table[np.argsort(table[:, 0], kind="stable")]
    return ordered


def _in_window(at: NDArray[np.int64], traced: Segment) -> int:
    """How many of these host times lie in the issuing of a window step."""
    rows = traced.steps[traced.num_warmup :]
    begun = np.searchsorted(rows[:, STEP["returned_ns"]], at, side="right") - 1
    inside = (begun >= 0) & (at <= rows[np.maximum(begun, 0), STEP["issued_ns"]])
    return int(inside.sum())


# -- what the trace is held against ----------------------------------------------------------------------


def _witnesses(
    work: Work, traced: Segment, device: Device, workload: Workload, ready: Callable[[], tuple[Any, Any]]
) -> list[dict[str, Any]]:
    """Kernels a step that were counted against those expected (analysis.kernels.missing judges).

    No count of CUDA launches is to be had without CUPTI, but PyTorch's dispatcher, asked in one step that is not
    traced, tells which operators a step consists of. On the CPU each of them must be found in the trace. On CUDA an
    operator launches one kernel or several, so there must be as many at least; and each launch that CUPTI's callbacks
    saw must have its kernel in CUPTI's activity buffers, where records are dropped first.
    """
    assert traced.kernels is not None
    num_steps = len(traced.steps) - traced.num_warmup
    in_window = traced.kernels[traced.kernels[:, 4] >= traced.num_warmup]
    if device.kind == "emulated":
        counted = int((in_window[:, 3] == KERNEL).sum()) / num_steps
        return [_witness("pieces of the virtual timeline", counted, PIECES)]
    operators = _operators(workload, *ready())
    device.synchronize()
    if device.kind == "cpu":
        found = sum(
            min(_in_window(work.names.get(name, np.empty(0, np.int64)), traced) / num_steps, count)
            for name, count in operators.items()
        )
        return [_witness("operators of an untraced step found in the trace", found, sum(operators.values()))]
    launching = sum(count for name, count in operators.items() if not name.startswith(NO_KERNEL))
    return [
        _witness("kernels and copies, by an untraced step's operators", len(in_window) / num_steps, launching, True),
        _witness(
            "kernels, by CUDA's launch calls",
            int((in_window[:, 3] == KERNEL).sum()) / num_steps,
            _in_window(work.calls, traced) / num_steps,
            True,
        ),
    ]


def _witness(name: str, counted: float, expected: float, at_least: bool = False) -> dict[str, Any]:
    return {"name": name, "counted": counted, "expected": expected, "at_least": at_least}


class _CountOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that reach the device's kernels, views left out, backward pass included."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if not func.is_view and not name.startswith("profiler::"):  # marks of ranges, the optimizer's among them
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def _operators(workload: Workload, inputs: Any, targets: Any) -> Counter[str]:
    """How often one step of the workload calls each operator."""
    counter = _CountOperators()
    with counter:
        workload.step(inputs, targets)
    return counter.counts


# -- where the intervals come from -----------------------------------------------------------------------


def _recorder(device: Device) -> Recorder:
    return _VirtualTimeline(device) if device.kind == "emulated" else _Profiler(device.kind)


class _VirtualTimeline:
    """The emulated device's own log: exact, on the host's clock."""

    source = "the emulated device's virtual timeline"

    def __init__(self, device: Any) -> None:
        self._device = device
        self._rows: NDArray[np.int64] = np.empty((0, 5), np.int64)

    def __enter__(self) -> None:
        self._device.log_work()

    def __exit__(self, *error: object) -> None:
        self._rows = self._device.logged_work()

    def read(self) -> Work:
        nothing = np.empty(0, np.int64)
        return Work(self._rows, nothing, nothing, {}, {"drift_ns": 0, "uncertainty_ns": 0})


class _Profiler:
    """torch.profiler. Its times are of CLOCK_REALTIME (Kineto converts them), mapped by pairs of clock readings at
    the start and the end."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.source = f"torch.profiler, {kind.upper()} activity"
        self._profile = profile(activities=[ProfilerActivity.CUDA if kind == "cuda" else ProfilerActivity.CPU])
        self._clocks: list[tuple[int, int, int]] = []

    def __enter__(self) -> None:
        self._profile.start()
        self._clocks.append(_real_time())

    def __exit__(self, *error: object) -> None:
        self._clocks.append(_real_time())
        self._profile.stop()

    def read(self) -> Work:
        result: Any = self._profile.profiler
        events = result.kineto_results.events()
        (begin, _, begin_error), (end, _, end_error) = self._clocks
        drift = (self._clocks[1][1] - end) - (self._clocks[0][1] - begin)
        clock = {"drift_ns": drift, "uncertainty_ns": max(begin_error, end_error)}
        return (_cuda_work if self._kind == "cuda" else _cpu_work)(events, self._on_host_clock, clock)

    def _on_host_clock(self, real_ns: Sequence[int]) -> NDArray[np.int64]:
        """CLOCK_REALTIME → perf_counter_ns, by the line through the two pairs."""
        (begin, real_begin, _), (end, real_end, _) = self._clocks
        at = np.asarray(real_ns, dtype=np.int64) - real_begin
        slope = (end - begin) / max(1, real_end - real_begin)
        drift: NDArray[np.int64] = np.rint(at * (slope - 1.0)).astype(np.int64)
        return begin + at + drift


def _cpu_work(events: Sequence[Any], host_clock: HostClock, clock: dict[str, int]) -> Work:
    """Operator spans of Kineto → the outermost of each thread as kernels, and when each operator began."""
    spans = [
        (one.start_ns(), one.duration_ns(), one.start_thread_id(), one.name())
        for one in events
        if one.scope() != USER_SCOPE and one.device_type() == DeviceType.CPU and not one.is_async()
    ]
    begin = host_clock([span[0] for span in spans])
    end = begin + np.array([span[1] for span in spans], dtype=np.int64)
    threads = np.array([span[2] for span in spans], dtype=np.int64)
    names: dict[str, list[int]] = {}
    for at, span in zip(begin.tolist(), spans, strict=True):
        names.setdefault(span[3], []).append(at)
    rows = np.column_stack([begin, end, threads, np.full(len(begin), KERNEL), begin])
    nothing = np.empty(0, np.int64)
    operators = {name: np.sort(np.array(at, dtype=np.int64)) for name, at in names.items()}
    return Work(rows[_outermost(begin, end, threads)], nothing, nothing, operators, clock)


def _cuda_work(events: Sequence[Any], host_clock: HostClock, clock: dict[str, int]) -> Work:
    """Kineto's device activities, each with the call of CUDA's API that launched it (same correlation number)."""
    launched_by: dict[int, int] = {}
    calls: dict[int, int] = {}
    graphs: dict[int, int] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    for one in events:
        number = one.correlation_id()
        if one.device_type() == DeviceType.CPU:
            at, name = one.start_ns(), one.name()
            launched_by[number] = at
            # A call's driver half has the number of its runtime half: that is one launch.
            if name.startswith(LAUNCH_CALLS):
                calls[number or -len(calls) - 1] = at
            elif name.startswith(GRAPH_CALLS):
                graphs[number or -len(graphs) - 1] = at
        elif one.device_type() == DeviceType.CUDA and not one.is_user_annotation():
            kind = _kind_of(one.name())
            if kind is not None:
                rows.append((one.start_ns(), one.duration_ns(), one.device_resource_id(), kind, number))
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    begin = host_clock(table[:, 0].tolist())
    launched = [launched_by.get(number, 0) if number else 0 for number in table[:, 4].tolist()]
    launch = np.where(np.array(launched, dtype=np.int64) > 0, host_clock(launched), -1)
    return Work(
        np.column_stack([begin, begin + table[:, 1], table[:, 2:4], launch]),
        np.sort(host_clock(list(calls.values()))),
        np.sort(host_clock(list(graphs.values()))),
        {},
        clock,
    )


def _kind_of(name: str) -> int | None:
    """Kind of a device activity by Kineto's name for it; None for what occupies nothing (waits, synchronization)."""
    if name.startswith("Memcpy"):
        return COPY
    if name.startswith("Memset"):
        return MEMSET
    return None if name.endswith(" Sync") or name.startswith(("Stream Wait", "Event Record")) else KERNEL


def _outermost(begin: NDArray[np.int64], end: NDArray[np.int64], threads: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[N]: which spans lie in no other one of their thread."""
    outer = np.zeros(len(begin), dtype=bool)
    for thread in np.unique(threads):
        mine = np.flatnonzero(threads == thread)
        mine = mine[np.lexsort((-end[mine], begin[mine]))]
        reached = np.maximum.accumulate(end[mine])
        outer[mine] = np.append(True, end[mine][1:] > reached[:-1])
    return outer


def _real_time() -> tuple[int, int, int]:
    """(perf_counter_ns, CLOCK_REALTIME in ns, half the bracket): the tightest of ten readings of one between two of the
    other."""
    brackets = []
    for _ in range(10):
        before = time.perf_counter_ns()
        real = time.time_ns()
        after = time.perf_counter_ns()
        brackets.append((after - before, (before + after) // 2, real))
    width, at, real = min(brackets)
    return at, real, (width + 1) // 2
