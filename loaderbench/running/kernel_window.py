"""A window of steps with all kernels and copies recorded, between two untraced windows that show the tracing's cost.

The device decides how kernels are recorded: `Device.recorder`. Where recording leaves its times as they are, the last
steps of a window of `real` are taken instead, and nothing is run for the trace.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from loaderbench.cases.arms import Arm
from loaderbench.devices.base import Device
from loaderbench.devices.tracing import Recorder, Work, num_while_issuing
from loaderbench.recording.facts import ROW, Segment, TraceFacts
from loaderbench.running.loop import StepLoop
from loaderbench.workloads.base import Workload

MAX_STEPS, MIN_STEPS = 24, 4
MAX_S, MAX_PART = 3.0, 0.2
"""Limits of all steps' time, in seconds and as a fraction of the measuring time; MIN_STEPS may exceed MAX_S."""
DISCARDED_STEPS = 3
"""Steps of the first recorded window of a process, which is dropped where the recorder starts in it (CUPTI: on an H200
its steps took 56 % longer)."""
SETTLING_STEPS = 2
"""Steps between the recorder's start and the window; as many before an untraced window."""

_NEVER = sys.maxsize
Settle = Callable[[StepLoop], tuple[int, bool]]
"""Runs a loop until the loader is steady: (steps run, whether it is)."""


@dataclass(frozen=True)
class TracedLoop:
    """The loop that is traced: one stream of batches, and what runs its steps."""

    device: Device
    workload: Workload
    lane: str
    """The lane of the segments."""
    lanes: int
    """Batches that the loader prepares at once."""
    new_loop: Callable[[], StepLoop]
    """A loop that continues the stream."""
    ready: Callable[[], tuple[Any, Any]]
    """The stream's next batch, inputs and targets, on the device."""
    settle: Settle
    """Runs the first window's loop until the loader is steady. The later windows follow directly."""
    behind: Callable[[StepLoop], AbstractContextManager[None]]
    """Evicts the files of a loop's batches while it runs, if the run is to be cold."""


def num_steps_for(step_s: float, duration_s: float, lanes: int) -> int | None:
    """Steps of each window; None where even the fewest would take too much of `duration_s`."""
    around = 3 * (lanes + 1 + SETTLING_STEPS) + DISCARDED_STEPS
    allowed = int(min(MAX_S, MAX_PART * duration_s) / max(step_s, 1e-6))
    steps = min(max((allowed - around) // 3, MIN_STEPS), MAX_STEPS)
    return steps if (3 * steps + around) * step_s <= MAX_PART * duration_s else None


def trace_kernels(traced: TracedLoop, num_steps: int) -> list[Segment]:
    """Run an untraced, a traced and another untraced window of `num_steps` each, all on one stream of batches.

    Returns their segments, in this order. Raises what the loader or the recorder raises.
    """
    recorder = traced.device.recorder()
    before = _window(traced, Arm.UNTRACED, num_steps, nullcontext(), traced.settle, first_batch=0)
    num_batches = len(before.steps)
    if recorder.discards_first:
        num_batches += _start_recording(traced)

    def round_of_workers(loop: StepLoop) -> tuple[int, bool]:
        return loop.run(traced.lanes + 1, _NEVER), before.steady

    recorded = _window(traced, Arm.TRACED, num_steps, recorder, round_of_workers, first_batch=num_batches)
    num_batches += len(recorded.steps)
    behind = _window(traced, Arm.UNTRACED, num_steps, nullcontext(), round_of_workers, first_batch=num_batches)
    _read(recorder, traced, recorded)  # at the end: it takes a while, in which the loader's queue would fill
    return [before, recorded, behind]


def free_recorder(device: Device) -> Recorder | None:
    """A recorder for windows of `real` themselves; None where recording would change the device's times."""
    return device.recorder() if getattr(device, "recording_is_free", False) else None


def keep_log(recorder: Recorder, real: Segment) -> None:
    """Store what `recorder` saw of the last steps, at most MAX_STEPS, of a window of `real` over which it was open.

    Nothing is stored of a window of which no step has one before it: its completion begins the traced part.
    """
    first = max(real.num_warmup, 1, len(real.steps) - MAX_STEPS)
    if first >= len(real.steps):
        return
    work, begin = recorder.read(), first - 1
    real.kernels = recorder.table(work, real.steps)
    real.kernels = real.kernels[real.kernels[:, ROW["step"]] >= begin]
    part = replace(real, num_warmup=first)
    real.trace = replace(_trace_facts(recorder, work, part, Counter()), first_step=begin)


def _window(
    traced: TracedLoop,
    arm: Arm,
    num_steps: int,
    recording: AbstractContextManager[Any] | Recorder,
    settle: Settle,
    *,
    first_batch: int,
) -> Segment:
    """Run one window of the stream, with `recording` open around it and its settling steps."""
    loop, device = traced.new_loop(), traced.device
    device.synchronize()
    device.anchor()
    opened_ns = time.perf_counter_ns()
    with traced.behind(loop):
        num_warmup, steady = settle(loop)
        with recording:
            num_warmup += loop.run(SETTLING_STEPS, _NEVER)
            loop.run(num_steps, _NEVER)
            device.synchronize()
    closed_ns = time.perf_counter_ns()
    return Segment(
        arm=arm,
        round=0,
        num_warmup=num_warmup,
        steady=steady,
        steps=loop.steps(),
        spans=loop.table_of_spans(None),
        opened_ns=opened_ns,
        closed_ns=closed_ns,
        phases=loop.phases(),
        lane=traced.lane,
        first_batch=first_batch,
    )


def _start_recording(traced: TracedLoop) -> int:
    """Run a few steps in a window that is dropped; returns their number."""
    loop = traced.new_loop()
    with traced.behind(loop), traced.device.recorder():
        num_steps = loop.run(DISCARDED_STEPS, _NEVER)
        traced.device.synchronize()
    return num_steps


def _read(recorder: Recorder, traced: TracedLoop, recorded: Segment) -> None:
    """Store what the recorder saw in the segment that it recorded."""
    work = recorder.read()
    recorded.kernels = recorder.table(work, recorded.steps)
    recorded.trace = _trace_facts(recorder, work, recorded, _operators_of_a_step(traced))


def _trace_facts(recorder: Recorder, work: Work, recorded: Segment, operators: Counter[str]) -> TraceFacts:
    return TraceFacts(
        source=recorder.source,
        drift_ns=work.drift_ns,
        uncertainty_ns=work.uncertainty_ns,
        graph_launches=num_while_issuing(work.graphs, recorded),
        witnesses=recorder.witnesses(work, recorded, operators),
    )


# -- what the trace is checked against -------------------------------------------------------------------


class _CountOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that reach the device's kernels, without views, with the backward pass."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if not func.is_view and not name.startswith("profiler::"):  # marks of ranges, the optimizer's among them
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def _operators_of_a_step(traced: TracedLoop) -> Counter[str]:
    """How often a further step, not traced, calls each operator; empty where nothing computes.

    Counted by PyTorch's dispatcher, independently of the recorder's source.
    """
    counter = _CountOperators()
    if traced.device.torch_device is not None:
        inputs, targets = traced.ready()
        with counter:
            traced.workload.step(inputs, targets)
        traced.device.synchronize()
    return counter.counts
