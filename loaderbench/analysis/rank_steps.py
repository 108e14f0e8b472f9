"""Steps that all ranks ran, as times; and those of a script that is not ours, of which only the waits are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.arms import Arm
from loaderbench.findings.table import words
from loaderbench.recording.ranks import RANK_STEP, RankRun

Times = NDArray[np.float64]

TOGETHER = 0.05
"""Ranks whose mean steps differ by more than this part do not step together."""
LEAST_COMMON, OF_A_BLOCK, MOST_BLOCKS = 8, 8, 20
"""Steps that all ranks ran; of a block, over which the interval goes."""
LATE = 0.05
"""A rank's batch is the last one where it comes so much of a step behind the first rank's."""


@dataclass(frozen=True)
class Steps:
    """Common steps of all ranks, [ranks, steps] seconds each."""

    own: Times
    """From the begin of a step to the rank's arrival."""
    data: Times
    """Part of it in which its device waited for the batch."""
    read: Times
    prep: Times
    """Of the batch, in its worker; NaN where unknown."""
    queued: Times
    """Part of both in which the worker could have run and had no processor; NaN where unknown."""

    @property
    def work(self) -> Times:
        return self.own - self.data


def steps_between(tables: NDArray[np.int64], begins: NDArray[np.int64]) -> Steps:
    """Of rows [ranks, steps, RANK_STEP_FIELDS], each from its begin on."""
    called, returned, done = (tables[:, :, RANK_STEP[name]] for name in ("called_ns", "returned_ns", "done_ns"))
    own = (done - begins) / 1e9
    data = np.clip((returned - np.maximum(called, begins)) / 1e9, 0.0, np.maximum(own, 0.0))
    stages = [tables[:, :, RANK_STEP[name]].astype(np.float64) for name in ("read_ns", "prep_ns", "queued_ns")]
    read, prep, queued = (np.where(stage < 0, np.nan, stage / 1e9) for stage in stages)
    return Steps(own, data, read, prep, queued)


def common_steps(parts: Sequence[RankRun]) -> tuple[list[Steps], str | None]:
    """Blocks of the steps of a script that all ranks ran, and why there are none.

    A step of all is as long as that of each: who has its batch waits for the others in a collective. What they compute
    before it is not told; as if that took all equally long, a rank arrives its own wait later than one that had none.
    """
    known = [_rows_of(part) for part in parts]
    numbers = known[0][0] if known else np.zeros(0, np.int64)
    for other, _, _ in known[1:]:
        numbers = np.intersect1d(numbers, other, assume_unique=True)
    if len(parts) < 2 or len(numbers) < LEAST_COMMON:
        return [], words("too_few_common_steps", {"least": LEAST_COMMON})
    picked = [np.searchsorted(own, numbers) for own, _, _ in known]
    tables = np.stack([rows[at] for (_, rows, _), at in zip(known, picked, strict=True)])
    begins = np.stack([begun[at] for (_, _, begun), at in zip(known, picked, strict=True)])
    steps = steps_between(tables, begins)
    means = steps.own.mean(axis=1)
    if means.max() - means.min() > TOGETHER * means.mean():
        return [], words("ranks_not_in_step", {"least_s": float(means.min()), "most_s": float(means.max())})
    work = np.maximum(steps.own.mean(axis=0) - steps.data.max(axis=0), 0.0)
    num = max(1, min(MOST_BLOCKS, len(numbers) // OF_A_BLOCK))
    blocks = np.array_split(np.arange(len(numbers)), num)
    data = steps.data
    found = [
        Steps(data[:, at] + work[at], data[:, at], steps.read[:, at], steps.prep[:, at], steps.queued[:, at])
        for at in blocks
    ]
    return found, None


def last_by_data(steps: Steps, number: int) -> float:
    """Of all steps, those in which this rank's batch came last, and clearly so."""
    latest, first = steps.data.max(axis=0), steps.data.min(axis=0)
    clear = latest - first > LATE * steps.own.max(axis=0)
    return float((clear & (steps.data[number] == latest)).mean())


def ready_step_s(parts: Sequence[RankRun]) -> float | None:
    """Mean step of all ranks where the batches of all were there; None without bursts."""
    times = [
        float(after - before) / 1e9
        for part in parts
        for one in part.windows
        if one.arm is Arm.DEVICE
        for before, after in _between(one.steps[max(1, one.num_warmup) - 1 :, RANK_STEP["done_ns"]])
    ]
    return sum(times) / len(times) if times else None


def _between(ends: NDArray[np.int64]) -> list[tuple[int, int]]:
    return list(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))


def _rows_of(part: RankRun) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(number of the batch, row, begin) of a rank's steps as the run is, in order."""
    numbers, rows, begins = [], [], []
    for one in part.windows:
        first = max(1, one.num_warmup)
        if one.arm is Arm.REAL and len(one.steps) > first:
            numbers.append(one.first_batch + np.arange(first, len(one.steps), dtype=np.int64))
            rows.append(one.steps[first:])
            begins.append(one.steps[first - 1 : -1, RANK_STEP["done_ns"]])
    if not numbers:
        return np.zeros(0, np.int64), np.zeros((0, len(RANK_STEP)), np.int64), np.zeros(0, np.int64)
    return np.concatenate(numbers), np.concatenate(rows), np.concatenate(begins)
