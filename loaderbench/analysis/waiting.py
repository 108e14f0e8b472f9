"""Whether a loader that tells nothing of itself computes or waits for what it reads, by the processors that the
script's processes and threads used.

Over a window of length T the script waited for data for S. Its thread ran for M within `next()`; all its processes and
threads together ran for W on C processors. In some calls of `next()`, which took s in all, its other threads were
looked at: there they ran, or were runnable without a processor, for w. Of S, the loader waits for what it reads

    in 1 − (W − C · (T − S)) ÷ (C · S) at most: while the script did not wait they ran for C · (T − S) at most, so for
                                                the rest while it waited
    in 1 − M ÷ S at most:                       a thread that runs waits for nothing
    in 1 − M ÷ S − w ÷ s at least:              if all that they did was done one after the other

The last holds where it read anything, and where others, of whom its loader may be one, hardly used a processor: else it
may have waited for something else. Where the ends are far from each other nothing is told.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loaderbench.analysis.processors import available
from loaderbench.analysis.quantities import Quantity
from loaderbench.analysis.statistics import NUM_DRAWS
from loaderbench.recording.facts import STEP, CpuWindow, Segment

LEAST_WAIT = 0.1
"""Of a window, that the script must wait for data."""
MOST_UNKNOWN = 0.5
"""Of the time that the script waits, how far the two bounds may be apart; else the verdict stays joint."""
READ_BYTES, READ_FAULTS = 4096, 1
"""A batch, by read calls or page faults: fewer are those of the interpreter, of logs, and of the readings."""
CONTRADICTION = 0.1
"""By which the lower bound may be above the upper one: the waits that were looked at are some of them. Beyond it they
missed something, and nothing is told."""
LEAST_LOOKS = 8
"""Of a run, for their sums to tell."""
OTHERS = 0.5
"""Processors in others' hands, from which on one of them may be the loader."""


def waiting_part(windows: Sequence[Segment]) -> Quantity | None:
    """Of the loader's time, the part in which it waits for what it reads: draws between the bounds. `windows`: of
    `real`. None where the kernel does not tell, or the bounds say little."""
    told = [one for one in windows if one.cpu is not None]
    cpus = [one.cpu for one in told if one.cpu is not None]
    whole_s, ran_s = sum(one.wall_s for one in cpus), sum(one.own_s for one in cpus)
    waited_s = sum(map(_waited_s, told))
    if waited_s == 0.0 or waited_s < LEAST_WAIT * whole_s:
        return None
    there = sum(available(one) * one.wall_s for one in cpus) / whole_s
    most, least = 1.0 - max(0.0, ran_s - there * (whole_s - waited_s)) / (there * waited_s), 0.0
    in_next = [one.wait_cpu_s for one in told if one.wait_cpu_s is not None]
    if len(in_next) == len(told):
        own = sum(in_next) / waited_s
        most = min(most, 1.0 - own)
        looks = [one.wait_looks for one in told if one.wait_looks is not None]
        enough = sum(one.num for one in looks) >= LEAST_LOOKS
        if enough and _read(cpus, sum(len(one.window) for one in told)):
            least = 1.0 - own - sum(one.busy_s for one in looks) / sum(one.wall_s for one in looks)
    most, least = max(0.0, most), max(0.0, least)
    if most - least > MOST_UNKNOWN or least - most > CONTRADICTION:
        return None
    low, high = sorted((least, most))
    draws = np.random.default_rng(31).uniform(low, high, NUM_DRAWS)
    return Quantity((low + high) / 2, draws, len(told))


def _waited_s(one: Segment) -> float:
    rows = one.window
    return float((rows[:, STEP["returned_ns"]] - rows[:, STEP["called_ns"]]).sum()) / 1e9


def _read(windows: Sequence[CpuWindow], num_batches: int) -> bool:
    """Whether the script read, and nobody else may have done it in its place."""
    told = [(one.asked_bytes, one.major_faults, one.machine_busy_s) for one in windows]
    if any(part is None for parts in told for part in parts):
        return False
    asked_bytes, faults, busy_s = (sum(part or 0 for part in parts) for parts in zip(*told, strict=True))
    others_s = busy_s - sum(one.own_s for one in windows)
    if others_s > OTHERS * sum(one.wall_s for one in windows):
        return False
    return asked_bytes >= READ_BYTES * num_batches or faults >= READ_FAULTS * num_batches
