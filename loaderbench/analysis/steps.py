"""From raw stamps to the times of each arm's steps. Pure functions of a Recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.statistics import blocks_of, draws_of_mean
from loaderbench.recording.types import SPAN_FIELDS, STEP_FIELDS, Segment

COLUMN = {name: number for number, name in enumerate(STEP_FIELDS)}
SPAN = {name: number for number, name in enumerate(SPAN_FIELDS)}
QUANTITIES = ("duration", "stall", "wait", "issue", "copy", "busy", "occupancy")
STALLED_FRACTION = 0.10
"""A window whose device waited for data longer than this fraction of it is bound by the loader."""
NEVER_RESTING = 0.97
"""Workers busy for at least this fraction of the window work at the loader's capacity."""


@dataclass(frozen=True)
class ArmSteps:
    """One arm's window steps. Times in seconds, one value a step, a list entry a segment."""

    arm: str
    quantities: Sequence[dict[str, NDArray[np.float64]]]
    """QUANTITIES of each segment:
    duration   completion to completion (delivery to delivery in an arm without a device)
    stall      data stall: max(0, returned − max(called, completion of the step before))
    wait       host time in next(), whether the device had work or not
    issue      returned → last work enqueued
    copy       the copy's time on the device
    busy       device compute busy time (NaN where unknown)
    occupancy  from the time the batch was there and the device free, to completion
    """
    num_samples: int
    num_steps: int
    encoded_bytes: int
    seconds: float
    """Length of all windows."""
    means: NDArray[np.float64]
    """[len(QUANTITIES)] mean seconds a step."""
    draws: NDArray[np.float64]
    """[num_draws, len(QUANTITIES)] bootstrap draws of the means."""
    num_blocks: int

    def mean(self, quantity: str) -> float:
        return float(self.means[QUANTITIES.index(quantity)])

    def drawn(self, quantity: str) -> NDArray[np.float64]:
        return self.draws[:, QUANTITIES.index(quantity)]

    def all(self, quantity: str) -> NDArray[np.float64]:
        """The quantity of every window step, segments joined."""
        return np.concatenate([values[quantity] for values in self.quantities])


def window_quantities(segment: Segment) -> dict[str, NDArray[np.float64]] | None:
    """QUANTITIES of the steps in the segment's window; None where it holds no complete step."""
    first = max(segment.num_warmup, 1)  # a duration needs the step before
    table = segment.steps
    if len(table) <= first:
        return None
    rows, before = table[first:], table[first - 1 : -1]
    nanosecond = 1e-9
    called, returned = rows[:, COLUMN["called_ns"]], rows[:, COLUMN["returned_ns"]]
    nothing = np.zeros(len(rows))
    if rows[-1, COLUMN["done_ns"]] < 0:
        duration = (returned - before[:, COLUMN["returned_ns"]]) * nanosecond
        wait = (returned - called) * nanosecond
        return {"duration": duration, "wait": wait, **dict.fromkeys(("stall", "issue", "copy", "occupancy"), nothing),
                "busy": np.full(len(rows), np.nan)}  # fmt: skip
    done, done_before = rows[:, COLUMN["done_ns"]], before[:, COLUMN["done_ns"]]
    busy = rows[:, COLUMN["busy_ns"]].astype(np.float64)
    return {
        "duration": (done - done_before) * nanosecond,
        "stall": np.maximum(0, returned - np.maximum(called, done_before)) * nanosecond,
        "wait": (returned - called) * nanosecond,
        "issue": (rows[:, COLUMN["issued_ns"]] - returned) * nanosecond,
        "copy": (rows[:, COLUMN["copy_end_ns"]] - rows[:, COLUMN["copy_begin_ns"]]) * nanosecond,
        "busy": np.where(busy < 0, np.nan, busy * nanosecond),
        "occupancy": (done - np.maximum(returned, done_before)) * nanosecond,
    }


def batches_made(segment: Segment) -> float | None:
    """How many batches the workers made while the window was open, parts of batches counted as parts.

    From the workers' own stamps, of the batches delivered and of those drained afterwards; None where the
    loader gave none or its drained batches are not known.
    """
    if segment.spans is None or segment.facts.get("num_drained") is None:
        return None
    returned = segment.steps[:, COLUMN["returned_ns"]]
    opened, closed = returned[max(segment.num_warmup, 1) - 1], returned[-1]
    begun, ready = segment.spans[:, SPAN["start_ns"]], segment.spans[:, SPAN["ready_ns"]]
    inside = np.minimum(ready, closed) - np.maximum(begun, opened)
    return float((np.maximum(inside, 0) / np.maximum(ready - begun, 1)).sum())


def worked_fraction(segment: Segment) -> float | None:
    """Part of the window in which the loader's workers were making batches, the mean over them; None: unknown.

    Each worker counts up to the last batch that it is known to have made, since batches cancelled at the end
    leave no span.
    """
    if segment.spans is None or segment.facts.get("num_drained") is None:
        return None
    returned = segment.steps[:, COLUMN["returned_ns"]]
    opened, closed = returned[max(segment.num_warmup, 1) - 1], returned[-1]
    worked = known = 0
    for worker in np.unique(segment.spans[:, SPAN["worker"]]):
        spans = segment.spans[segment.spans[:, SPAN["worker"]] == worker]
        begins, ends = (np.clip(spans[:, SPAN[name]], opened, closed) for name in ("start_ns", "ready_ns"))
        order = np.argsort(begins)
        begins, ends = begins[order], np.maximum.accumulate(ends[order])
        # Batches of workers that share a number overlap: what an earlier one covers counts once.
        worked += int((ends - np.maximum(begins, np.append(opened, ends[:-1]))).clip(0).sum())
        known += int(ends[-1] - opened)
    return worked / known if known > 0 else None


def _paced_by_loader(segment: Segment, values: dict[str, NDArray[np.float64]]) -> bool:
    """Whether the loader's speed decides the window's: there is no device, or it waits, or the workers never rest."""
    if segment.steps[-1, COLUMN["done_ns"]] < 0 or values["stall"].sum() >= STALLED_FRACTION * values["duration"].sum():
        return True
    worked = worked_fraction(segment)
    return worked is not None and worked >= NEVER_RESTING


def drain_correction(segment: Segment, values: dict[str, NDArray[np.float64]]) -> float:
    """Factor by which the window's step time must grow because part of its batches came from the queue.

    A loader-bound window of n steps in which m batches were made has the steady step time n ÷ m times the
    measured one. A window bound by the consumer needs no correction: there the queue moves without meaning
    anything.
    """
    made = batches_made(segment)
    if made is None or made <= 0 or not _paced_by_loader(segment, values):
        return 1.0
    return len(values["duration"]) / made


def _correct(values: dict[str, NDArray[np.float64]], factor: float) -> None:
    """Stretch the steps by the factor, in place. What is added, or taken out, is waiting for data."""
    added = values["duration"] * (factor - 1.0)
    stalled = values["stall"].sum()
    if factor >= 1.0:
        values["stall"] = values["stall"] + added
    elif stalled > 0:
        values["stall"] = values["stall"] * max(0.0, 1.0 + added.sum() / stalled)
    values["duration"] = values["duration"] + added


def arm_steps(segments: Sequence[Segment], arm: str, stream: int) -> ArmSteps | None:
    """Join the arm's segments; None where it was not measured. `stream` seeds its bootstrap."""
    quantities, samples, steps, encoded, seconds = [], 0, 0, 0, 0.0
    for segment in segments:
        if segment.arm != arm:
            continue
        values = window_quantities(segment)
        if values is None:
            continue
        seconds += float(values["duration"].sum())
        factor = drain_correction(segment, values)
        _correct(values, factor)
        quantities.append(values)
        window = segment.steps[max(segment.num_warmup, 1) :]
        samples += int(window[:, COLUMN["num_samples"]].sum())
        encoded += int(window[:, COLUMN["encoded_bytes"]].sum())
        steps += len(window)
    if not quantities:
        return None
    blocks = blocks_of([[values[name] for name in QUANTITIES] for values in quantities])
    draws = draws_of_mean(blocks, stream)
    return ArmSteps(arm, quantities, samples, steps, encoded, seconds, blocks.means(), draws, len(blocks))
