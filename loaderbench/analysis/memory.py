"""The peak of a step's memory, its kinds and its place, from the traced allocations; and the largest batch below a cap.

Pure functions of traces (`recording/model_memory.py`). Bytes throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loaderbench.recording.model_memory import (
    MEMORY_KINDS,
    STEP_PHASES,
    LayerMemory,
    MemoryCourse,
    MemoryTrace,
    PeakPlace,
    PredictedMemory,
)

BYTES, KIND = 0, 1
"""Columns of MemoryTrace.allocations."""
ALLOCATION, SIGN, PHASE, OPERATOR, MODULE = range(5)
"""Columns of MemoryTrace.events."""
STANDING, FORWARD = STEP_PHASES.index("standing"), STEP_PHASES.index("forward")
COURSE_POINTS = 200
"""Most points of a step's course."""
MOST_BATCH = 1 << 16
"""Where the search for the largest batch ends."""


@dataclass(frozen=True)
class Peak:
    memory: PredictedMemory
    place: PeakPlace


def live_bytes(trace: MemoryTrace) -> NDArray[np.int64]:
    """[events]: bytes that are live after each event."""
    changes = trace.allocations[trace.events[:, ALLOCATION], BYTES] * trace.events[:, SIGN]
    return np.cumsum(changes)


def peak_bytes(trace: MemoryTrace) -> int:
    """Most bytes live at once."""
    return int(live_bytes(trace).max(initial=0))


def peak_of(trace: MemoryTrace) -> Peak:
    """The first moment with the most live bytes: what is live then, by kind, and where in the step it is."""
    live = live_bytes(trace)
    at = int(np.argmax(live))
    events = trace.events[: at + 1]
    changes = trace.allocations[events[:, ALLOCATION], BYTES] * events[:, SIGN]
    kinds = trace.allocations[events[:, ALLOCATION], KIND]
    by_kind = {name: int(changes[kinds == number].sum()) for number, name in enumerate(MEMORY_KINDS)}
    _, _, phase, operator, module = trace.events[at].tolist()
    return Peak(
        PredictedMemory(
            peak_live_bytes=int(live[at]),
            parameters_bytes=by_kind["parameters"],
            gradients_bytes=by_kind["gradients"],
            optimizer_bytes=by_kind["optimizer"],
            activations_bytes=by_kind["activations"],
            temporary_bytes=by_kind["temporary"],
        ),
        PeakPlace(STEP_PHASES[phase], trace.modules[module], trace.operators[operator]),
    )


def course_of(trace: MemoryTrace, most_points: int = COURSE_POINTS) -> MemoryCourse | None:
    """The live memory by kind over the step, with the peak; None where the step allocates nothing."""
    standing = int(np.argmax(trace.events[:, PHASE] != STANDING)) if len(trace.events) else 0
    live, changes = live_bytes(trace), trace.events[:, SIGN] * trace.allocations[trace.events[:, ALLOCATION], BYTES]
    begin = max(standing - 1, 0)  # the first point is what stands when the step begins
    if begin >= len(live):
        return None
    stretches = np.array_split(np.arange(begin, len(live)), min(most_points, len(live) - begin))
    chosen = np.array([stretch[np.argmax(live[stretch])] for stretch in stretches])
    kinds = trace.allocations[trace.events[:, ALLOCATION], KIND]
    of_kinds = {
        name: np.cumsum(np.where(kinds == number, changes, 0))[chosen] for number, name in enumerate(MEMORY_KINDS)
    }
    return MemoryCourse(
        tuple((chosen - begin).tolist()),
        tuple(STEP_PHASES[max(int(phase), FORWARD)] for phase in trace.events[chosen, PHASE]),
        {name: tuple(sizes.tolist()) for name, sizes in of_kinds.items()},
    )


def layers_of(trace: MemoryTrace) -> tuple[LayerMemory, ...]:
    """The layers in their order, with the running sum of their outputs and what is live behind each."""
    live = live_bytes(trace)
    outputs = 0
    rows = []
    for layer in trace.layers:
        outputs += layer.bytes
        now = int(live[layer.event - 1]) if layer.event else 0
        rows.append(LayerMemory(layer.name, layer.type, layer.shape, layer.bytes, outputs, now))
    return tuple(rows)


@dataclass(frozen=True)
class MemoryLine:
    """Each allocation's bytes as a + b · batch; the peak is the largest sum over the events.

    One line through two peaks would be wrong: the peak moves from the optimizer's update at small batches to the
    activations at large ones.
    """

    base: NDArray[np.float64]
    """[events]: live bytes at batch 0, after each event."""
    slope: NDArray[np.float64]
    """[events]: live bytes for each further image."""

    def peak_bytes(self, batch_size: int) -> int:
        """Most bytes live at once at this batch."""
        return round(float((self.base + self.slope * batch_size).max()))

    def largest_batch(self, cap_bytes: int, most: int = MOST_BATCH) -> int:
        """Largest batch up to `most` whose peak is at most the cap; 0 where batch 1 is above it."""
        low, high = 0, 1
        while high <= most and self.peak_bytes(high) <= cap_bytes:
            low, high = high, high * 2
        high = min(high, most + 1)
        while high - low > 1:
            middle = (low + high) // 2
            if self.peak_bytes(middle) <= cap_bytes:
                low = middle
            else:
                high = middle
        return low


def line_through(traces: Sequence[MemoryTrace]) -> MemoryLine | None:
    """The line through the first two traces; None where their events do not line up one to one."""
    if len(traces) < 2:
        return None
    first, second = traces[0], traces[1]
    columns = [ALLOCATION, SIGN, PHASE]
    if first.events.shape != second.events.shape or first.allocations.shape != second.allocations.shape:
        return None
    first, second = _in_order(first), _in_order(second)
    if not np.array_equal(first.events[:, columns], second.events[:, columns]):
        return None
    low, high = live_bytes(first).astype(np.float64), live_bytes(second).astype(np.float64)
    slope = (high - low) / (second.batch_size - first.batch_size)
    return MemoryLine(low - slope * first.batch_size, slope)


def _in_order(trace: MemoryTrace) -> MemoryTrace:
    """Releases that follow each other in one operator in the order of their allocations: autocast frees its copies of
    weights in the order of a hash. The peaks stay."""
    events = trace.events
    same = (events[1:, SIGN] < 0) & (events[:-1, SIGN] < 0) & (events[1:, PHASE:] == events[:-1, PHASE:]).all(axis=1)
    stretch = np.cumsum(np.append(True, ~same))[: len(events)]
    return replace(trace, events=events[np.lexsort((events[:, ALLOCATION], stretch))])


def line_holds(line: MemoryLine, trace: MemoryTrace, tolerance: float = 0.005) -> bool:
    """Whether the line's peak at a third trace's batch is that trace's, within `tolerance`."""
    return abs(line.peak_bytes(trace.batch_size) / max(peak_bytes(trace), 1) - 1) <= tolerance
