"""A window of steps of which every kernel and copy is known, between two without tracing that show what tracing costs.

Where the kernels come from is the device's own business: `Device.recorder`.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from loaderbench.cases.arms import Arm
from loaderbench.devices.base import Device
from loaderbench.devices.tracing import Recorder, num_while_issuing
from loaderbench.recording.facts import Segment, TraceFacts
from loaderbench.running.loop import StepLoop
from loaderbench.workloads.base import Workload

MAX_STEPS, MIN_STEPS = 24, 4
MAX_S, MAX_PART = 3.0, 0.2
"""What all steps may take together, in seconds and of the measuring time; more than MAX_S only to hold MIN_STEPS."""
DISCARDED_STEPS = 3
"""Of the first recorded window of the process, where the recorder starts in it (CUPTI: on an H200 its steps took 56 %
longer)."""
SETTLING_STEPS = 2
"""Between the recorder's start and the window, and the same without a recorder."""

_NEVER = sys.maxsize
Settle = Callable[[StepLoop], tuple[int, bool]]
"""Runs a loop until the loader is steady: (steps run, whether it is)."""


@dataclass(frozen=True)
class TracedLoop:
    """The loop that is traced: one stream of batches, and what runs its steps."""

    device: Device
    workload: Workload
    lane: str
    """Of the segments."""
    lanes: int
    """Batches that the loader prepares at once."""
    new_loop: Callable[[], StepLoop]
    """A loop that goes on with the stream."""
    ready: Callable[[], tuple[Any, Any]]
    """The stream's next batch, inputs and targets, on the device."""
    settle: Settle
    """Runs the first window's loop until the loader is steady. The later ones begin right behind it."""
    behind: Callable[[StepLoop], AbstractContextManager[None]]
    """Evicts the files of a loop's batches while it runs, where that is asked for."""


def num_steps_for(step_s: float, duration_s: float, lanes: int) -> int | None:
    """Steps of each window; None where they are so long that even the fewest would take too much of `duration_s`."""
    around = 3 * (lanes + 1 + SETTLING_STEPS) + DISCARDED_STEPS
    allowed = int(min(MAX_S, MAX_PART * duration_s) / max(step_s, 1e-6))
    steps = min(max((allowed - around) // 3, MIN_STEPS), MAX_STEPS)
    return steps if (3 * steps + around) * step_s <= MAX_PART * duration_s else None


def trace_kernels(traced: TracedLoop, num_steps: int) -> list[Segment]:
    """Run an untraced window, a traced one and another untraced one of `num_steps` each, all of one stream of batches.

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
    _read(recorder, traced, recorded)  # last of all: it takes a while, in which the loader's queue would fill
    return [before, recorded, behind]


def _window(
    traced: TracedLoop,
    arm: Arm,
    num_steps: int,
    recording: AbstractContextManager[Any] | Recorder,
    settle: Settle,
    *,
    first_batch: int,
) -> Segment:
    """Run one window of the stream, `recording` open around it and the steps that settle it."""
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
    """Run a few steps in a window of which nothing is kept; returns how many."""
    loop = traced.new_loop()
    with traced.behind(loop), traced.device.recorder():
        num_steps = loop.run(DISCARDED_STEPS, _NEVER)
        traced.device.synchronize()
    return num_steps


def _read(recorder: Recorder, traced: TracedLoop, recorded: Segment) -> None:
    """Put what the recorder saw into the segment that it was open for."""
    work = recorder.read()
    recorded.kernels = recorder.table(work, recorded.steps)
    recorded.trace = TraceFacts(
        source=recorder.source,
        drift_ns=work.drift_ns,
        uncertainty_ns=work.uncertainty_ns,
        graph_launches=num_while_issuing(work.graphs, recorded),
        witnesses=recorder.witnesses(work, recorded, _operators_of_a_step(traced)),
    )


# -- what the trace is held against ----------------------------------------------------------------------


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


def _operators_of_a_step(traced: TracedLoop) -> Counter[str]:
    """How often a further step, not traced, calls each operator; empty where nothing computes.

    By PyTorch's dispatcher: a count of which the recorder's own source knows nothing.
    """
    counter = _CountOperators()
    if traced.device.torch_device is not None:
        inputs, targets = traced.ready()
        with counter:
            traced.workload.step(inputs, targets)
        traced.device.synchronize()
    return counter.counts
