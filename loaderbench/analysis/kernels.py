"""Kernel gaps: when the device had nothing to run between its kernels and copies, and what it waited for.

Pure functions of a traced segment (its `kernels`) and of the untraced ones around it: docs/method.md, `Kernel gaps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.steps import window_quantities
from loaderbench.plain import Json
from loaderbench.recording.caveats import Reason
from loaderbench.recording.facts import COPY, KERNEL, ROW, SPAN, STEP, Segment, TraceFacts
from loaderbench.recording.record import (
    GAP_CLASSES,
    BusyWitnesses,
    GapHistogram,
    GapShare,
    KernelGap,
    LargeGap,
    TraceClock,
)

Intervals = NDArray[np.int64]
"""[N, 2]: begin_ns, end_ns of each."""

HISTOGRAM_EDGES_S = tuple(10.0 ** (half / 2) for half in range(-14, 3))
"""Two bins a decade from 0.1 µs to 10 s; one more bin below and one above."""
NUM_LARGEST = 10

STEADY_TOLERANCE, STEADY_KERNELS = 0.05, 2
"""A step's kernels may differ from the median step's by this fraction, or by this number where that is more."""
COUNT_TOLERANCE = 0.02
"""Counted kernels may differ from expected ones by this fraction."""
FEWEST_A_GRAPH = 10
"""With fewer kernels than this for each launch of a CUDA graph, the graph was recorded as one activity."""
CLOCK_TOLERANCE = 0.05
"""Kernels may lie outside the time in which their step can have run by at most this fraction of the step."""


def union(intervals: Intervals) -> Intervals:
    """The time covered by any of the intervals, as disjoint intervals in order; int64 [M, 2] from [N, 2], M ≤ N.

    Intervals that touch become one; those of no length cover nothing and are left out.
    """
    intervals = intervals[intervals[:, 1] > intervals[:, 0]]
    if not len(intervals):
        return np.empty((0, 2), dtype=np.int64)
    begins = intervals[:, 0]
    if np.any(begins[1:] < begins[:-1]):
        intervals = intervals[np.argsort(begins, kind="stable")]
    reached = np.maximum.accumulate(intervals[:, 1])
    first = np.flatnonzero(intervals[1:, 0] > reached[:-1]) + 1
    begin = intervals[np.concatenate([[0], first]), 0]
    end = reached[np.concatenate([first - 1, [len(intervals) - 1]])]
    return np.stack([begin, end], axis=1)


def gaps(merged: Intervals, begin_ns: int, end_ns: int) -> Intervals:
    """What `merged` (of `union`) leaves of the window [begin_ns, end_ns): int64 [K, 2], in order, none empty.

    The idle time before the first and after the last interval counts, so covered and idle time add up to the window.
    """
    inside = np.clip(merged, begin_ns, max(begin_ns, end_ns))
    edges = np.concatenate([[begin_ns], inside.reshape(-1), [max(begin_ns, end_ns)]]).reshape(-1, 2)
    return edges[edges[:, 1] > edges[:, 0]]


def traced_part(segment: Segment) -> Segment:
    """The steps of a segment that were recorded, the one whose completion begins the window included; the segment
    itself where all were."""
    first = _trace(segment).first_step
    if not first:
        return segment
    table = _kernels(segment).copy()
    table[:, ROW["step"]] -= first
    return replace(
        segment,
        num_warmup=max(segment.num_warmup - first, 1),
        steps=segment.steps[first:],
        spans=None if segment.spans is None else segment.spans[first:],
        phases=None if segment.phases is None else segment.phases[first:],
        kernels=table,
        first_batch=segment.first_batch + first,
        trace=replace(_trace(segment), first_step=0),
    )


def window_of(segment: Segment) -> tuple[int, int]:
    """From the completion before the first window step to that of the last one."""
    done = segment.steps[:, STEP["done_ns"]]
    return int(done[max(segment.num_warmup, 1) - 1]), int(done[-1])


def steps_of(idle: Intervals, segment: Segment) -> NDArray[np.int64]:
    """For each gap the row of the step that ended it, the step of the next kernel or copy to begin; [K]."""
    table = _kernels(segment)
    order = np.argsort(table[:, ROW["begin_ns"]], kind="stable")
    following = np.searchsorted(table[order, ROW["begin_ns"]], idle[:, 1], side="left")
    steps = np.append(table[order, ROW["step"]], len(segment.steps) - 1)
    return np.asarray(steps[following], dtype=np.int64)


def classify(idle: Intervals, segment: Segment) -> NDArray[np.int64]:
    """What the device waited for in each gap: [K], numbers into GAP_CLASSES.

    By what the host did meanwhile with the step whose kernel ended the gap, whichever took most of it:

    data_stall     it was in next()
    launch         it was issuing the step
    transfer_sync  it waited for the device before it asked for the batch; or the gap lies directly before or after
                   a copy, and the host was not in next() for most of it
    other          none of these: the kernel was in the queue already (dependencies and scheduling on the device)
    """
    steps = steps_of(idle, segment)
    rows, before = segment.steps[steps], segment.steps[np.maximum(steps - 1, 0)]
    called, returned, issued = (rows[:, STEP[name]] for name in ("called_ns", "returned_ns", "issued_ns"))
    stalled = _overlap(idle, called, returned)
    issuing = _overlap(idle, returned, issued)
    waiting = np.where(steps > 0, _overlap(idle, before[:, STEP["issued_ns"]], before[:, STEP["waited_ns"]]), 0)
    rest = idle[:, 1] - idle[:, 0] - stalled - issuing - waiting
    classes = np.argmax(np.stack([stalled, issuing, waiting, rest], axis=1), axis=1)
    table = _kernels(segment)
    copies = table[table[:, ROW["kind"]] == COPY]
    beside_a_copy = np.isin(idle[:, 0], copies[:, ROW["end_ns"]]) | np.isin(idle[:, 1], copies[:, ROW["begin_ns"]])
    classes[beside_a_copy & (classes != GAP_CLASSES.index("data_stall"))] = GAP_CLASSES.index("transfer_sync")
    return np.asarray(classes, dtype=np.int64)


def _overlap(idle: Intervals, begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    length: NDArray[np.int64] = np.minimum(idle[:, 1], end) - np.maximum(idle[:, 0], begin)
    return length.clip(0)


def _kernels(segment: Segment) -> NDArray[np.int64]:
    assert segment.kernels is not None, "not a traced segment"
    return segment.kernels


def summarize(traced: Segment, untraced: Sequence[Segment] = ()) -> KernelGap:
    """The record's `device.kernel_gap`. `untraced`: the windows before and after, for the cost of tracing itself."""
    begin_ns, end_ns = window_of(traced)
    window_ns = end_ns - begin_ns
    table, trace = _kernels(traced), _trace(traced)
    idle = gaps(union(table[:, :2]), begin_ns, end_ns)
    computing = union(table[table[:, ROW["kind"]] != COPY][:, :2])
    lengths = idle[:, 1] - idle[:, 0]
    classes = classify(idle, traced)
    num_steps = len(traced.steps) - max(traced.num_warmup, 1)
    total_ns = int(lengths.sum())
    p50, p95 = (float(q) / 1e9 for q in np.percentile(lengths, [50, 95])) if len(lengths) else (None, None)
    values = window_quantities(traced)
    assert values is not None
    return KernelGap(
        num_steps=num_steps,
        count_per_step=len(idle) / num_steps,
        p50_s=p50,
        p95_s=p95,
        total_fraction=total_ns / window_ns,
        by_class={
            name: GapShare(
                int((classes == number).sum()) / num_steps, int(lengths[classes == number].sum()) / window_ns
            )
            for number, name in enumerate(GAP_CLASSES)
        },
        histogram=histogram(lengths),
        largest=_largest(idle, classes, traced, begin_ns),
        perturbation_fraction=perturbation(traced, untraced),
        busy_fraction=1.0 - total_ns / window_ns,
        kernel_fraction=1.0 - int(np.diff(gaps(computing, begin_ns, end_ns), axis=1).sum()) / window_ns,
        event_busy_fraction=float(values["occupancy"].sum() / values["duration"].sum()),
        kernels_per_step=float(np.median(_kernels_a_step(traced))),
        source=trace.source,
        clock=TraceClock(trace.drift_ns, trace.uncertainty_ns, clock_error_ns(traced)),
    )


def histogram(lengths_ns: NDArray[np.int64]) -> GapHistogram:
    """The number of gaps in each range of lengths."""
    counts = np.histogram(lengths_ns / 1e9, bins=[0.0, *HISTOGRAM_EDGES_S, np.inf])[0]
    return GapHistogram(HISTOGRAM_EDGES_S, tuple(counts.tolist()))


def _trace(segment: Segment) -> TraceFacts:
    assert segment.trace is not None, "not a traced segment"
    return segment.trace


def _largest(idle: Intervals, classes: NDArray[np.int64], traced: Segment, begin_ns: int) -> tuple[LargeGap, ...]:
    """The longest gaps: when (s from the window's begin), how long, why, and which step, batch and worker ended it."""
    order = np.argsort(idle[:, 0] - idle[:, 1], kind="stable")[:NUM_LARGEST]
    largest = []
    for gap, kind, step in zip(idle[order], classes[order], steps_of(idle[order], traced), strict=True):
        largest.append(
            LargeGap(
                begin_s=float(gap[0] - begin_ns) / 1e9,
                duration_s=float(gap[1] - gap[0]) / 1e9,
                gap_class=GAP_CLASSES[kind],
                step=int(step) - max(traced.num_warmup, 1),
                batch=traced.first_batch + int(step),
                worker=None if traced.spans is None else int(traced.spans[step, SPAN["worker"]]),
            )
        )
    return tuple(largest)


def perturbation(traced: Segment, untraced: Sequence[Segment]) -> float | None:
    """Step time while tracing ÷ mean of the step times before and after it, − 1; None where these are missing."""
    means = []
    for segment in (traced, *untraced):
        values = window_quantities(segment)
        if values is None:
            return None
        means.append(float(values["duration"].mean()))
    return means[0] / float(np.mean(means[1:])) - 1.0 if len(means) > 1 else None


def _kernels_a_step(traced: Segment) -> NDArray[np.int64]:
    """[window steps]: rows of kind KERNEL that each step launched."""
    table, first = _kernels(traced), max(traced.num_warmup, 1)
    steps = table[table[:, ROW["kind"]] == KERNEL, ROW["step"]]
    return np.bincount(steps[steps >= first] - first, minlength=len(traced.steps) - first)


def clock_error_ns(traced: Segment) -> int:
    """By how much rows lie outside the time from their batch's delivery to their step's completion (95th percentile):
    the error of the mapping between the trace's clock and the events' clock."""
    table = _kernels(traced)
    rows = traced.steps[table[:, ROW["step"]]]
    early = rows[:, STEP["returned_ns"]] - table[:, ROW["begin_ns"]]
    late = table[:, ROW["end_ns"]] - rows[:, STEP["done_ns"]]
    return int(np.percentile(np.maximum(0, np.maximum(early, late)), 95)) if len(table) else 0


def missing(traced: Segment) -> list[Reason]:
    """Why the trace is incomplete, so that lost kernels would look like gaps; empty if it is complete."""
    counts, trace = _kernels_a_step(traced), _trace(traced)
    if not len(counts):
        return [Reason("no_complete_step")]
    reasons = []
    num_steps: dict[str, Json] = {"num_steps": len(counts)}
    if empty := int((counts == 0).sum()):
        reasons.append(Reason("steps_without_kernel", {**num_steps, "num": empty}))
    median = float(np.median(counts))
    allowed = max(STEADY_TOLERANCE * median, STEADY_KERNELS)
    if odd := int((np.abs(counts - median) > allowed).sum()):
        details: dict[str, Json] = {"num": odd, "allowed": allowed, "median": median}
        least_most: dict[str, Json] = {"least": int(counts.min()), "most": int(counts.max())}
        reasons.append(Reason("steps_differ", {**num_steps, **details, **least_most}))
    graphs = trace.graph_launches / len(counts)
    if graphs and median < FEWEST_A_GRAPH * graphs:
        reasons.append(Reason("graphs_count_as_one", {"median": median, "graphs": graphs}))
    for witness in trace.witnesses:
        short = witness.counted < (1 - COUNT_TOLERANCE) * witness.expected
        long = witness.counted > (1 + COUNT_TOLERANCE) * witness.expected and not witness.at_least
        if short or long:
            counted: dict[str, Json] = {"counted": witness.counted, "expected": witness.expected}
            reasons.append(Reason("count_off", {"witness": witness.name, **counted, "at_least": witness.at_least}))
    begin_ns, end_ns = window_of(traced)
    error = clock_error_ns(traced) / max(1.0, (end_ns - begin_ns) / len(counts))
    if error > CLOCK_TOLERANCE:
        reasons.append(Reason("clocks_do_not_fit", {"fraction": error}))
    return reasons


def disagreeing(witnesses: BusyWitnesses, tolerance: float) -> dict[str, Json]:
    """The witnesses of the busy time that differ from the kernels by more than `tolerance`: name → fraction."""
    others = {"nvml": witnesses.nvml, "gpm": witnesses.gpm}
    apart: dict[str, Json] = {
        name: value
        for name, value in others.items()
        if value is not None and abs(value - witnesses.kernels) > tolerance
    }
    if witnesses.kernels > witnesses.events_at_most + tolerance:
        apart["events_at_most"] = witnesses.events_at_most
    return apart
