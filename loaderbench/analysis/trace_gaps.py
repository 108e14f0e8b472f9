"""What a trace tells about one device: when it was busy, the gaps between, and the kernels that each step launched."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.kernels import (
    NUM_LARGEST,
    STEADY_KERNELS,
    STEADY_TOLERANCE,
    Intervals,
    gaps,
    histogram,
    union,
)
from loaderbench.errors import ConfigError
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import KERNEL
from loaderbench.recording.kineto import ACTIVITY_FIELDS, KinetoTrace
from loaderbench.recording.record import GapHistogram

FIELD = {name: number for number, name in enumerate(ACTIVITY_FIELDS)}
STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})(?!\d)")  # what an int64 holds
COLLECTIVE = re.compile(
    r"\b_?(?:nccl|rccl|msccl|oneccl|hccl|nvshmem)|cross_device_reduce|(?:one|two)_shot_all_reduce|multimem_",
    re.IGNORECASE,
)
"""Kernels that exchange data between devices, and wait in them for the others: of NCCL, RCCL, MSCCL, oneCCL, HCCL and
NVSHMEM by their prefixes, of vLLM and torch's symmetric memory by the kernels' names."""
FAR = 100.0
"""A stamp further from the middle half of all than so many times their span is of no moment of this trace, unless the
host launched the activity near it."""
LONGEST_TRACE_NS = 86_400_000_000_000
"""Without host calls, a stamp so far from the others is stray: no profiler records for a day."""
DATA_WAIT = "enumerate(DataLoader)#"
"""Prefix of the name that torch's DataLoader gives to the range around each `next`."""


@dataclass(frozen=True)
class TraceGap:
    """One gap between two kernels or copies."""

    begin_s: float
    """From the window's begin."""
    duration_s: float
    before: str
    """What ran before it."""
    after: str
    step: int | None


@dataclass(frozen=True)
class GapFigures:
    count: int
    p50_s: float | None
    p95_s: float | None
    histogram: GapHistogram
    largest: tuple[TraceGap, ...]


@dataclass(frozen=True)
class KernelsPerStep:
    num_steps: int
    median: float
    least: int
    most: int
    steady: bool
    num_outside: int
    """Kernels outside all steps."""


@dataclass(frozen=True)
class TraceGaps:
    """Busy and idle time of one device of a trace."""

    num_events: int
    device: int
    num_activities: int
    num_streams: int
    window_s: float
    busy_fraction: float
    works_fraction: float
    """A kernel or copy ran that is not a collective."""
    collective_fraction: float
    """Only collectives ran: the device waited for others or exchanged data. 0 where the trace has none."""
    num_collectives: int
    idle_s: float
    idle_in_data_wait_s: float | None
    """While the host was in `next(DataLoader)`; None where the trace has no such range."""
    gaps: GapFigures
    kernels_per_step: KernelsPerStep | None
    """None where the trace does not tell the steps."""
    caveats: tuple[Caveat, ...]


def device_of(trace: KinetoTrace, wanted: int | None) -> int:
    """The device to analyse: the one asked for, or the only one.

    Raises:
        ConfigError: the trace holds no device activity, none of this device, or that of several.
    """
    devices = np.unique(trace.activities[:, FIELD["device"]]).tolist()
    if not devices:
        left_out = f" ({trace.num_malformed:,} more are not valid JSON)" if trace.num_malformed else ""
        raise ConfigError(
            f"the trace has {trace.num_events:,} events{left_out} but no kernel, copy or memset of a device: record it "
            "with torch.profiler.ProfilerActivity.CUDA"
        )
    known = ", ".join(map(str, devices))
    if wanted is None and len(devices) > 1:
        raise ConfigError(f"the trace has devices {known}: choose one with --device")
    if wanted is not None and wanted not in devices:
        raise ConfigError(f"the trace has no events of device {wanted}, only of {known}")
    return int(devices[0] if wanted is None else wanted)


def summarize(trace: KinetoTrace, device: int) -> TraceGaps:
    """Busy and idle time of one device, its gaps and its kernels a step.

    The window reaches from the begin of the device's first activity to the end of its last. Busy is the union of all
    kernels, copies and memsets on all streams, idle the rest.

    Raises:
        ConfigError: nothing on the device took any time.
    """
    stray = _stray(trace)
    of_device = trace.activities[:, FIELD["device"]] == device
    table = trace.activities[of_device & ~stray]
    table = table[table[:, 1] > table[:, 0]]
    if not len(table):
        raise ConfigError(f"no activity of device {device} has a duration: record the trace again")
    begin_ns, end_ns = int(table[0, 0]), int(table[:, 1].max())
    idle = gaps(union(table[:, :2]), begin_ns, end_ns)
    collective = np.array([COLLECTIVE.search(name) is not None for name in trace.names])[table[:, FIELD["name"]]]
    works_ns = _length_ns(union(table[~collective, :2]))
    lengths = idle[:, 1] - idle[:, 0]
    idle_ns, window_ns = int(lengths.sum()), end_ns - begin_ns
    p50, p95 = (float(q) / 1e9 for q in np.percentile(lengths, [50, 95])) if len(lengths) else (None, None)
    steps = _steps(trace)
    return TraceGaps(
        num_events=trace.num_events,
        device=device,
        num_activities=len(table),
        num_streams=len(np.unique(table[:, FIELD["stream"]])),
        window_s=window_ns / 1e9,
        busy_fraction=1.0 - idle_ns / window_ns,
        works_fraction=works_ns / window_ns,
        collective_fraction=(window_ns - idle_ns - works_ns) / window_ns,
        num_collectives=int(collective.sum()),
        idle_s=idle_ns / 1e9,
        idle_in_data_wait_s=_idle_in_data_wait_s(trace, idle, begin_ns, end_ns),
        gaps=GapFigures(len(idle), p50, p95, histogram(lengths), _largest(trace, table, idle, steps)),
        kernels_per_step=_kernels_per_step(trace, table, steps),
        caveats=tuple(_caveats(trace, steps, int((of_device & stray).sum()))),
    )


def _steps(trace: KinetoTrace) -> NDArray[np.int64]:
    """[S, 3]: begin_ns, end_ns and number of the host's steps (ProfilerStep#N), in order."""
    numbers = [int(match[1]) if (match := STEP.match(name)) else -1 for name in trace.names]
    steps = trace.annotations.copy()
    steps[:, 2] = np.array(numbers, dtype=np.int64)[steps[:, 2]]
    return steps[steps[:, 2] >= 0]


def _step_of(trace: KinetoTrace, rows: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """[N]: index into `steps` of the one in which the host launched each activity; -1 where the trace does not tell."""
    calls, correlations = trace.launches, rows[:, FIELD["correlation"]]
    if not len(steps) or not len(calls):
        return np.full(len(rows), -1)
    call = np.minimum(np.searchsorted(calls[:, 0], correlations), len(calls) - 1)
    launched_ns = calls[call, 1]
    step = np.searchsorted(steps[:, 0], launched_ns, side="right") - 1
    known = (calls[call, 0] == correlations) & (step >= 0) & (launched_ns < steps[step, 1])
    return np.where(known, step, -1)


def _kernels_per_step(trace: KinetoTrace, table: NDArray[np.int64], steps: NDArray[np.int64]) -> KernelsPerStep | None:
    kernels = table[table[:, FIELD["kind"]] == KERNEL]
    step = _step_of(trace, kernels, steps)
    if not (step >= 0).any():
        return None
    counts = np.bincount(step[step >= 0], minlength=len(steps))
    median = float(np.median(counts))
    allowed = max(STEADY_TOLERANCE * median, STEADY_KERNELS)
    return KernelsPerStep(
        num_steps=len(steps),
        median=median,
        least=int(counts.min()),
        most=int(counts.max()),
        steady=bool((np.abs(counts - median) <= allowed).all()),
        num_outside=int((step < 0).sum()),
    )


def _largest(
    trace: KinetoTrace, table: NDArray[np.int64], idle: Intervals, steps: NDArray[np.int64]
) -> tuple[TraceGap, ...]:
    """The longest gaps: when (s from the window's begin), how long, what ran before and after, in which step."""
    largest = []
    for begin_ns, end_ns in idle[np.argsort(idle[:, 0] - idle[:, 1], kind="stable")[:NUM_LARGEST]].tolist():
        before = table[np.flatnonzero(table[:, 1] == begin_ns)[-1]]
        after = table[np.searchsorted(table[:, 0], end_ns)]
        step = int(_step_of(trace, after[None], steps)[0])
        largest.append(
            TraceGap(
                begin_s=(begin_ns - int(table[0, 0])) / 1e9,
                duration_s=(end_ns - begin_ns) / 1e9,
                before=trace.names[before[FIELD["name"]]],
                after=trace.names[after[FIELD["name"]]],
                step=None if step < 0 else int(steps[step, 2]),
            )
        )
    return tuple(largest)


def _idle_in_data_wait_s(trace: KinetoTrace, idle: Intervals, begin_ns: int, end_ns: int) -> float | None:
    """Idle time in which the host was inside `next(DataLoader)`; None where the trace has no such range."""
    names = np.array([name.startswith(DATA_WAIT) for name in trace.names], dtype=bool)
    waits = trace.annotations[names[trace.annotations[:, 2]], :2]
    if not len(waits):
        return None
    waiting = union(np.clip(waits, begin_ns, end_ns))
    either = union(np.concatenate([idle, waiting]))
    return float(_length_ns(idle) + _length_ns(waiting) - _length_ns(either)) / 1e9


def _length_ns(disjoint: Intervals) -> int:
    return int((disjoint[:, 1] - disjoint[:, 0]).sum())


def _stray(trace: KinetoTrace) -> NDArray[np.bool_]:
    """Activities whose stamps are of no moment of the trace (0, or years later): they would stretch its window."""
    begin_ns, end_ns = trace.activities[:, 0].astype(float), trace.activities[:, 1].astype(float)
    if not len(begin_ns):
        return np.zeros(0, dtype=bool)
    low, high = np.percentile(begin_ns, [25, 75])
    span = max(high - low, float(np.median(end_ns - begin_ns)), 1.0)
    far_ns = np.maximum(low - begin_ns, end_ns - high)
    if not len(trace.launches):
        return np.asarray(far_ns > max(LONGEST_TRACE_NS, FAR * span))
    calls, correlations = trace.launches, trace.activities[:, FIELD["correlation"]]
    call = np.minimum(np.searchsorted(calls[:, 0], correlations), len(calls) - 1)
    is_known = calls[call, 0] == correlations
    since_ns = np.maximum(np.abs(begin_ns - calls[call, 1]), np.abs(end_ns - calls[call, 1]))
    return np.asarray((far_ns > FAR * span) & ~(is_known & (since_ns < far_ns / 2)))


def _caveats(trace: KinetoTrace, steps: NDArray[np.int64], num_stray: int) -> list[Caveat]:
    caveats = []
    if num := trace.num_repaired + trace.num_malformed:
        details = {"num": num, "repaired": trace.num_repaired, "left_out": trace.num_malformed}
        caveats.append(Caveat("events_malformed", details))
    if num_stray:
        caveats.append(Caveat("stamps_stray", {"num": num_stray}))
    if trace.num_unusable:
        caveats.append(Caveat("activities_unusable", {"num": trace.num_unusable}))
    if not len(steps):
        caveats.append(Caveat("steps_not_annotated", {"why": "no_step_ranges"}))
    elif not len(trace.launches):
        caveats.append(Caveat("steps_not_annotated", {"why": "no_host_calls"}))
    return caveats
