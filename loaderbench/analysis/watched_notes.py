"""What else a watched script shows, where it matters: memory that grows, batches that come in bursts, or take long to
take over, too many threads, shared memory that runs out, a first epoch unlike the later ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.statistics import t_quantile
from loaderbench.analysis.watched_counts import LEAST_BATCHES, idle_workers
from loaderbench.cases.arms import Arm
from loaderbench.plain import Json
from loaderbench.recording.caveats import Reason
from loaderbench.recording.facts import STEP, Segment, WatchedEpoch, WatchedFacts, WatchedMemory, room_needed

LEAST_READINGS = 8
SETTLES = 0.3
"""Of the readings of a process, the first part is left out: what it needs is loaded."""
MUCH_BYTES, MUCH_PART = 8 << 20, 0.02
"""Growth over 1,000 batches that is told: both, the part being of the memory held."""
FEW_READINGS, MUCH_GROWN_BYTES, MUCH_GROWN, FALLS = 3, 32 << 20, 0.25, 0.1
"""Least readings of an epoch, and least growth between the first and the last: in bytes, and as a part of the first.
Between two readings memory may fall by FALLS of the growth."""
LONG_WAIT = 3.0
"""A wait counts as long beyond so many times the median one, and a tenth of a step."""
IN_TURN, LEAST_LONG = 0.7, 8
"""Of the distances between long waits, the part that is the number of workers; and how many of these waits it takes."""
WAITS_MATTER = 0.05
TWICE = 1.5
"""Workers that a sample comes from, in the mean, from which on samples come twice."""
LITTLE_FREE = 0.10
UNLIKE = 0.10
WAIT_FOR_PROCESSOR = 0.10
TAKING_MATTERS = 0.20
"""Of a step, what taking a ready batch over takes."""


def notes_of(seen: WatchedFacts, segments: Sequence[Segment], cpus: int | None, starved: float | None) -> list[Reason]:
    """`starved`: of the workers' time, the part in which they wanted a processor and had none; None where unknown."""
    of_thread = [] if seen.thread is None else [Reason("of_a_thread", {"thread": seen.thread})]
    return [
        *of_thread,
        *_memory(seen.memory, seen.available_memory_bytes),
        *_in_turn(segments, seen.loaders[0].workers),
        *_taking(segments, starved, on_device=seen.uses_cuda),
        *_threads(seen, cpus, starved),
        *_shared(seen),
        *_counts(seen),
        *_first_epoch(seen.epochs),
    ]


# -- memory ----------------------------------------------------------------------------------------------------


def _memory(readings: Sequence[WatchedMemory], available: int | None) -> Iterator[Reason]:
    """`available`: bytes that the machine could still give."""
    own = growth([(one.batch, one.script_bytes) for one in readings])
    if own is not None:
        yield Reason("memory_grows", {"of": "script", "bytes": own, "batches": 1000})
    steady, found = workers_growth(readings), private_growth(readings)
    theirs = steady if steady is not None or found is None else found.per_1000
    if theirs is None:
        return
    details: dict[str, Json] = {"of": "workers", "bytes": theirs, "batches": 1000}
    if available is not None and (steady is not None or (found is not None and found.goes_on)):
        details |= {"of": "workers_full", "full": available / theirs * 1000}
    if found is not None:
        details |= {"first": found.first, "last": found.last}
        details["of"] = f"{details['of']}_from"
    yield Reason("memory_grows", details)


def growth(points: Sequence[tuple[int, int]]) -> float | None:
    """Bytes in 1,000 batches, of (batches, bytes); None where it is little, or not sure: the low end of the slope's
    95 % interval is below half of it."""
    kept = points[int(len(points) * SETTLES) :]
    if len(kept) < LEAST_READINGS:
        return None
    x, y = (np.asarray(side, dtype=np.float64) for side in zip(*kept, strict=True))
    spread = float(((x - x.mean()) ** 2).sum())
    if spread == 0:
        return None
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    left = y - y.mean() - slope * (x - x.mean())
    error = float(np.sqrt((left**2).sum() / (len(x) - 2) / spread)) * t_quantile(len(x) - 2)
    grown = slope * 1000
    if slope - error < slope / 2 or grown < max(MUCH_BYTES, MUCH_PART * float(y.mean())):
        return None
    return grown


def workers_growth(readings: Sequence[WatchedMemory]) -> float | None:
    """Within epochs, since new workers begin anew: the median of those that tell; None where most do not grow."""
    found = []
    for _, group in groupby((one for one in readings if one.num_workers), key=lambda one: one.epoch):
        points = [(one.batch, one.workers_bytes) for one in group]
        if len(points) * (1 - SETTLES) >= LEAST_READINGS:
            found.append(growth(points))
    known = [one for one in found if one is not None]
    return float(np.median(known)) if known and len(known) > len(found) / 2 else None


@dataclass(frozen=True)
class Grown:
    """Private memory of workers that grew within an epoch, in bytes."""

    first: int
    last: int
    per_1000: float
    """In 1,000 batches, while it grew."""
    goes_on: bool
    """It still grew at the end."""


def private_growth(readings: Sequence[WatchedMemory]) -> Grown | None:
    """Of the epoch in which they grew most, also where they stop growing: each page is copied once. None where it is
    little, or comes and goes."""
    best: Grown | None = None
    for _, group in groupby((one for one in readings if one.num_workers), key=lambda one: one.epoch):
        some = list(group)
        some = [one for one in some if one.num_workers == some[0].num_workers]
        values = [one.workers_bytes for one in some]
        first, last = values[0], values[-1]
        if len(some) < FEW_READINGS or last - first < max(MUCH_GROWN_BYTES, MUCH_GROWN * first):
            continue
        if any(after < before - FALLS * (last - first) for before, after in pairwise(values)):
            continue
        full = next(one for one in some if one.workers_bytes >= first + (1 - FALLS) * (last - first))
        grown = (full.workers_bytes - first) / max(1, full.batch - some[0].batch) * 1000
        if best is None or last - first > best.last - best.first:
            best = Grown(first, last, grown, goes_on=full is some[-1])
    return best


# -- the queue -------------------------------------------------------------------------------------------------


def _in_turn(segments: Sequence[Segment], workers: int) -> Iterator[Reason]:
    """Workers that finish at the same time hand over one behind the other: the loop waits for the first of them, and
    finds the others' batches ready."""
    if workers < 2:
        return
    at, times = [], []
    waits = [_waits(one) for one in segments if one.arm is Arm.REAL]
    steps = [_durations(one) for one in segments if one.arm is Arm.REAL]
    if not waits:
        return
    every, step_s = np.concatenate(waits), float(np.concatenate(steps).mean())
    if every.sum() < WAITS_MATTER * step_s * len(every):
        return
    least = max(LONG_WAIT * float(np.median(every)), 0.1 * step_s)
    for wait in waits:
        long = np.flatnonzero(wait > least)
        at += [after - before for before, after in pairwise(long)]
        times += list(wait[long])
    if len(times) >= LEAST_LONG and np.mean(np.asarray(at) == workers) >= IN_TURN:
        yield Reason("in_turn", {"workers": workers, "wait_s": float(np.mean(times))})


def _taking(segments: Sequence[Segment], starved: float | None, *, on_device: bool) -> Iterator[Reason]:
    """What the script's own thread does to take over a batch that is ready: by bursts, and where nothing waits for a
    processor, which would be in it. On a device the work of the step before may hide it."""
    ready, real = ([one for one in segments if one.arm is arm] for arm in (Arm.DEVICE, Arm.REAL))
    if on_device or not ready or not real or (starved or 0.0) > WAIT_FOR_PROCESSOR:
        return
    each_s = float(np.median(np.concatenate([_waits(one) for one in ready])))
    step_s = float(np.concatenate([_durations(one) for one in real]).mean())
    if each_s >= TAKING_MATTERS * step_s:
        yield Reason("taking_over", {"each_s": each_s, "step_s": step_s})


def _waits(segment: Segment) -> NDArray[np.float64]:
    rows = segment.window
    return np.asarray((rows[:, STEP["returned_ns"]] - rows[:, STEP["called_ns"]]) / 1e9)


def _durations(segment: Segment) -> NDArray[np.float64]:
    rows = segment.window
    return np.asarray((rows[:, STEP["done_ns"]] - rows[:, STEP["called_ns"]]) / 1e9)


# -- the machine -----------------------------------------------------------------------------------------------


def _threads(seen: WatchedFacts, cpus: int | None, starved: float | None) -> Iterator[Reason]:
    workers, settings = seen.loaders[0].workers, seen.settings
    if cpus is None or not workers or settings is None:
        return
    each = settings.worker_torch_threads or 1
    own = 0 if seen.uses_cuda else seen.torch_threads or 1
    many = each > 1 and workers * each > cpus
    crowded = workers * each + own > cpus and (starved or 0.0) > WAIT_FOR_PROCESSOR
    if many or crowded:
        yield Reason("threads", {"workers": workers, "each": each, "own": own, "cpus": cpus, "starved": starved})


def _shared(seen: WatchedFacts) -> Iterator[Reason]:
    shared = seen.shared
    if shared is None or not seen.loaders[0].workers or not shared.size_bytes:
        return
    known, depth = seen.loaders[0].delivered, seen.loaders[0].workers * seen.loaders[0].prefetch
    needed = 0 if known is None else room_needed(known.shared_bytes, depth)
    if needed > shared.size_bytes:
        yield Reason("shared_memory_needed", {"needed": needed, "size": shared.size_bytes})
    elif shared.least_free_bytes < LITTLE_FREE * shared.size_bytes:
        yield Reason("shared_memory", {"size": shared.size_bytes, "free_bytes": shared.least_free_bytes})


def _counts(seen: WatchedFacts) -> Iterator[Reason]:
    """Samples that several workers give, random numbers that several draw, workers that give little."""
    settings, main = seen.settings, seen.loaders[0]
    if settings is None or main.workers < 2:
        return
    if settings.repeats is not None and settings.repeats >= TWICE:
        yield Reason("samples_repeat", {"times": settings.repeats, "workers": main.workers})
    if settings.same_random:
        yield Reason("same_random", {"sources": list(settings.same_random)})
    idle = idle_workers(main)
    if idle and sum(main.by_worker) >= LEAST_BATCHES * main.workers:
        yield Reason("few_shards", {"idle": idle, "workers": main.workers})


def _first_epoch(epochs: Sequence[WatchedEpoch]) -> Iterator[Reason]:
    """Seconds a batch of the first epoch against the later ones of the same length, without their starts."""
    if len(epochs) < 2 or not epochs[0].num_batches:
        return
    later = [one for one in epochs[1:] if one.num_batches == epochs[0].num_batches]
    if not later:
        return
    first_s = (epochs[0].wait + epochs[0].step) / epochs[0].num_batches
    rates = [(one.wait + one.step) / one.num_batches for one in later]
    later_s = float(np.mean(rates))
    if later_s > 0 and abs(first_s / later_s - 1) > UNLIKE and not min(rates) <= first_s <= max(rates):
        yield Reason("first_epoch", {"first_s": first_s, "later_s": later_s})
