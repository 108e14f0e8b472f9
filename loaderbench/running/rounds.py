"""Measures the arms in turns, round after round, until every step time is precise enough or the time is up."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loaderbench.analysis.latency import PAUSES_A_WINDOW, window_wanted_s
from loaderbench.analysis.statistics import blocks_of, widths
from loaderbench.cases.arms import FED_ALIKE, Arm
from loaderbench.cases.case import Case
from loaderbench.errors import ConfigError
from loaderbench.images.shards import DataSet
from loaderbench.recording.facts import RoundFacts, Segment, StorageWindow
from loaderbench.running.window import (
    LONGEST_WINDOW_S,
    MIN_WINDOW_STEPS,
    Length,
    Windows,
    durations,
    shortest_s,
    whole_s,
)

TARGET_ROUNDS = 4
MIN_ROUNDS = 3
MIN_SEGMENT_S, MAX_SEGMENT_S = 0.25, 0.75
"""Length of windows. A longer run gets more rounds, not longer windows: what the machine does changes from one to the
next, and three or four of them tell little of it, however long they are. A first, rough verdict is there early, too."""
MOST_NEEDED_S = 7.5
"""Of an arm's windows together, at most, before a run may end because all is known: its part of MIN_ROUNDS in
TARGET_ROUNDS of the time."""
KNOWN = 0.10
"""Half-width within which the arms behind a gain alone must be known: a gain counts from 1.10× on (WORTH)."""
COMPARED = (Arm.REAL, Arm.FETCH)
"""Arms whose windows are as long as a storage with stalls or slow files needs: they tell what it takes of the step."""
SPARED = (Arm.FREE, Arm.PREP)
"""Arms that are left out where the time is too short for `real`: no gain of storage or preparation needs them."""
LEAST_STEPS, LEAST_LANE_ROUNDS = MIN_ROUNDS * MIN_WINDOW_STEPS, 3
"""Steps of `real`, and rounds of the workers, in the shortest run that tells (docs/method.md, `Too short`)."""
HELD_ROUNDS = 2
"""Rounds of the workers in the windows of `real` below which it is measured once more though the time is up."""
STARVED = 2.0
"""How many times as long as a fed step one of `real` takes where they are: the loader's own rate, `free`, is then that
of `real`."""
WAITING = 0.1
"""Of the time in which the run's threads could have run, the part in which they waited for a processor, from which on
contention may be worth naming: a gain counts from 1.10× on (WORTH)."""
EXACT, EXACT_ROUNDS = 0.001, 2
"""What an emulated device does alone is known once so many windows differ by no more: its clock does not drift."""
REAL_PART = 0.8
"""Of the time that is left, the longest window of `real` there."""
LONG_WINDOWS = 3
"""What uneven storage needs beside a first round: long windows of `real` twice, and of `fetch`."""
STOOD_S = 0.4
"""By so much longer than another one takes a look at the page cache if the storage stands still meanwhile: each lasts
0.15 s or so (SURVEY_S)."""
MOSTLY_RESIDENT = 0.5
"""Part of the pages from which on files count as in memory: a storage that stands still then holds up no window."""
HALF = 0.5
"""Of a long window's length, the least that tells: a whole period, or half of the slow files. Of the time that is left,
the part of `real` where only `fetch` tells what its storage does."""
ARMS_PART = 0.6
"""Fraction of `max_bytes` for the arms that read the storage."""
LATE_S = 1.0
"""By so much a window may end beyond the time; one that cannot be shorter is left out."""


StoppedBy = Literal["decided", "ci_target", "duration", "steps", "max_bytes"]


@dataclass(frozen=True)
class Budget:
    """The limits of the rounds."""

    seconds: float
    most_bytes: bool
    """Whether the windows were shortened to stay within `max_bytes`."""


def most_steps(case: Case, data: DataSet, arms: Sequence[Arm], fewest: int, *, once: bool) -> int:
    """Most steps that a window may read from the storage, so that all windows stay within `max_bytes`.

    `arms`: the arms of a round; `fewest`: the fewest steps of a window; `once`: only one window reads the storage.

    Raises:
        ConfigError: `max_bytes` is too small to measure anything.
    """
    most, feed = case.effort.max_bytes, case.feed
    if most is None:
        return sys.maxsize
    total = int(data.files.sizes.sum())
    if case.subject.cache == "warm" and total > most:
        raise ConfigError(f"--cache warm reads the whole data set once, {total:,} bytes: raise --max-bytes")
    num_arms = sum(arm.touches_storage for arm in arms)
    segments = 1 if once else max(1, num_arms) * TARGET_ROUNDS
    batch_bytes = data.sample_page_bytes * case.step.batch_size
    # Batches prepared ahead, or half read, when the segment ends count as read.
    ahead = feed.lanes * (feed.prefetch + 2)
    steps = int(ARMS_PART * most / (segments * batch_bytes)) - ahead
    least = feed.lanes + 1 + (case.effort.warmup or 0) + fewest
    if steps < least:
        needed = segments * batch_bytes * (least + ahead) / ARMS_PART
        raise ConfigError(
            f"--max-bytes {most} is too small for {segments} windows of {least} batches each: give at least "
            f"{needed / 1e6:,.0f}M, or a smaller --batch-size, fewer --workers, or --arms real"
        )
    return steps


def measure_rounds(
    windows: Windows,
    arms: tuple[Arm, ...],
    budget: Budget,
    segments: list[Segment],
    storage_idle: Callable[[Sequence[Segment]], bool] = lambda segments: False,
    on_window: Callable[[bool], object] = lambda tells_more: None,
) -> RoundFacts:
    """Measure the arms in turns, adding their windows to `segments`. Where there are other ranks, rank 0 decides
    what comes next. `on_window` is called behind each window, with True behind those of the first round and, once more,
    behind each further round.

    `storage_idle`: whether the windows so far prove that the storage has nothing to do. `ram` would then be the same as
    `real`, and its time goes to `real`.
    """
    effort, lead, readers = windows.rig.case.effort, windows.peers.lead, windows.feeds.num_readers
    budget, least = lead(budget), max(LEAST_STEPS, LEAST_LANE_ROUNDS * windows.rig.case.feed.lanes)  # all ranks alike
    target_s, fewest = _windows_of(budget, len(arms))
    num_rounds, steps = (MIN_ROUNDS, None) if effort.steps is None else spread(effort.steps)
    deadline = time.perf_counter() + (budget.seconds if effort.is_limited else math.inf)
    number, turns, spares, uneven, left_out = 0, arms, tuple[Arm, ...](), False, False
    while True:
        for place, planned in enumerate(turns):
            left_s = lead(deadline - time.perf_counter())
            if number and left_s < 0:
                break
            arm = planned
            if planned is Arm.RAM and lead(storage_idle(segments)):
                if steps is not None or (left_s < 0 and lead(has_rounds(segments, windows.rig.case.feed.lanes))):
                    continue
                arm = Arm.REAL
            if steps is None and not number and not spares and Arm.REAL in arms:
                has_time = _has_time(budget.seconds, left_s, segments, arms, least)
                has_time = has_time and _has_time_for_long(left_s, segments, arms[place:], readers)
                spares = lead(() if has_time else spared(segments))
            if planned in spares or (steps is None and lead(is_exact(windows, planned, segments))):
                continue
            usual_s = arm.weight * target_s
            wanted_s = lead(_wanted_s(arm, number, usual_s, left_s, segments, readers, least * bool(spares)))
            too_long = lead(number > 0 and _shortest_s(arm, segments, windows.rig.case) > left_s + LATE_S)
            if (not wanted_s and steps is None) or too_long:
                left_out = True
                continue
            part = 1.0 if number else share(arm, [one for one in arms[place:] if one not in spares])
            most_s = _most_s(left_s, part, fixed=steps is not None)
            segments.append(windows.measure(arm, number, Length(wanted_s, steps, most_s)))
            left_out = False
            on_window(not number)
            if number and steps is None and not uneven and lead(_least_s(Arm.REAL, segments, readers) > 0):
                break  # `real` first, whatever is left of the round
        if number:
            on_window(True)
        number += 1
        uneven = steps is None and lead(_least_s(Arm.REAL, segments, readers) > 0)
        turns = _turns(arms, uneven=uneven, short=bool(spares), twice=not budget.most_bytes)
        late = lead(time.perf_counter() > deadline) or left_out
        asked = None if steps is None else num_rounds
        stopped_by = _stopped_by(windows, number, asked, fewest, arms, segments, late=late, bytes_end=budget.most_bytes)
        if stopped_by is not None:
            return RoundFacts(measured_arms(arms, segments), number, stopped_by)


def spread(steps: int) -> tuple[int, int]:
    """(rounds over which so many steps of an arm are spread, steps of each window)"""
    num_rounds = 1 if steps < MIN_ROUNDS * MIN_WINDOW_STEPS else MIN_ROUNDS
    return num_rounds, -(-steps // num_rounds)


def _windows_of(budget: Budget, num_arms: int) -> tuple[float, int]:
    """(length of a window, the fewest rounds before everything may count as known)"""
    part_s = budget.seconds / (num_arms * TARGET_ROUNDS)
    longest_s = MOST_NEEDED_S / MIN_ROUNDS if budget.most_bytes else MAX_SEGMENT_S  # bytes allow no more rounds
    target_s = float(np.clip(part_s, MIN_SEGMENT_S, longest_s))
    return target_s, max(MIN_ROUNDS, round(min(MIN_ROUNDS * part_s, MOST_NEEDED_S) / target_s))


def _stopped_by(
    windows: Windows, number: int, asked: int | None, fewest: int, arms: Sequence[Arm], segments: Sequence[Segment], *,
    late: bool, bytes_end: bool,
) -> StoppedBy | None:  # fmt: skip
    """Why `number` rounds are enough; None: they are not. `asked`: how many there are to be, of a number of steps;
    `fewest`: before everything may count as known. `bytes_end`: they are limited."""
    if asked is not None and number >= asked:
        return "steps"
    if late:
        return "duration"
    if number >= TARGET_ROUNDS and bytes_end:
        return "max_bytes"
    if asked is None and number >= fewest and windows.peers.every(precise(windows.rig.case, arms, segments)):
        return "ci_target"
    return None


def _turns(arms: tuple[Arm, ...], *, uneven: bool, short: bool, twice: bool = True) -> tuple[Arm, ...]:
    """The order of a later round. Over a storage that stands still or has slow files now and then (`uneven`), windows
    of `real` and `fetch` must be long, and what they hold differs from one to the next: they come first, and `real`
    twice, where bytes allow it (`twice`). The other arms move less and follow if there is time, those with the loader
    first, which move more than the device alone. `short`: the time is, so that `real` comes first."""
    if uneven:
        first = tuple(arm for arm in (Arm.REAL, Arm.FETCH, Arm.REAL)[: 3 if twice else 2] if arm in arms)
        return (*first, *sorted((arm for arm in arms if arm not in COMPARED), key=lambda arm: not arm.is_fed))
    return tuple(sorted(arms, key=lambda arm: arm is not Arm.REAL)) if short else arms


def is_exact(windows: Windows, arm: Arm, segments: Sequence[Segment]) -> bool:
    """Whether the arm is that of a device on which nothing computes (an emulated one), and paced by its clock alone:
    its time goes to arms that vary."""
    if arm.is_fed or windows.rig.device.torch_device is not None:
        return False
    means = [float(durations(one).mean()) for one in segments if one.arm is arm]
    return len(means) >= EXACT_ROUNDS and max(means) - min(means) <= EXACT * min(means)


def share(arm: Arm, left: Sequence[Arm]) -> float:
    """Of the time, what a window of the first round may take at most, `left` being the arms from here on: two shares
    for `real`, one for each other."""
    return (1 + (arm is Arm.REAL)) / sum(1 + (one is Arm.REAL) for one in left)


def _most_s(left_s: float, part: float, *, fixed: bool) -> float:
    """The longest that a window may take, `part` being its share. One of a number of steps (`fixed`) may take more of
    what is left: fewer steps tell less, and others may need less."""
    return max(MIN_SEGMENT_S, left_s * part, min(LONGEST_WINDOW_S, HALF * left_s) if fixed else 0.0)


def _has_time(budget_s: float, left_s: float, segments: Sequence[Segment], arms: Sequence[Arm], least: int) -> bool:
    """Whether `real` will have the `least` steps that tell if every arm is measured in each round, by the windows so
    far; True where it is not the loader that the device waits for."""
    means = {one.arm: float(durations(one).mean()) for one in segments}
    real = next((one for one in segments if one.arm is Arm.REAL), None)
    fed_s = means.get(Arm.HOST, means.get(Arm.DEVICE))
    if real is None or fed_s is None or means[Arm.REAL] < STARVED * fed_s:
        return True
    round_s = (budget_s - left_s) / len(segments) * len(arms)
    return len(real.window) * budget_s / round_s >= least


def _has_time_for_long(left_s: float, segments: Sequence[Segment], to_come: Sequence[Arm], readers: int) -> bool:
    """Whether the windows that uneven storage needs fit behind those that the first round still has, by what windows
    took so far; True where the storage is not, and before it is known."""
    least_s = _least_s(Arm.REAL, segments, readers)
    if not least_s or all(one.arm is not Arm.REAL for one in segments):
        return True
    usual_s = float(np.mean([whole_s(one) for one in segments]))
    return LONG_WINDOWS * (least_s + _beyond_s(Arm.REAL, segments)) + len(to_come) * usual_s <= left_s


def _wanted_s(
    arm: Arm, number: int, usual_s: float, left_s: float, segments: Sequence[Segment], readers: int, least: int
) -> float:
    """Length of the next window of an arm; 0: it is left out. `least`: steps of `real` that tell, where the time is
    short for them; else 0."""
    if least and arm is Arm.REAL:
        usual_s = max(usual_s, min(_missing_s(segments, least), REAL_PART * left_s))
    long_s, fits_s = _least_s(arm, segments, readers), left_s - _beyond_s(arm, segments)
    if number and _least_s(Arm.REAL, segments, readers) and fits_s <= 0:
        return 0.0  # what is left goes into its warm-up, which may meet a standstill
    if number and _only_fetch_tells(segments):
        long_s = min(long_s, fits_s * (HALF if arm is Arm.REAL else 1.0))
    return _in_time(arm, usual_s, long_s, left_s, segments) if number else max(usual_s, long_s)


def _in_time(arm: Arm, usual_s: float, long_s: float, left_s: float, segments: Sequence[Segment]) -> float:
    """How long a window of a later round may be, so that it ends in time; 0 where it would tell nothing.

    `long_s`: what it needs over uneven storage. It takes all that is left where another one would not fit behind it.
    Where not even half of it fits, it is left out: for `fetch`, and for `real` where it has one as long.
    """
    fits_s = left_s - _beyond_s(arm, segments)
    if long_s <= usual_s:
        return min(usual_s, max(fits_s, MIN_SEGMENT_S))
    if fits_s < HALF * long_s:
        has_one = any(window_s(one) >= HALF * long_s for one in segments if one.arm is arm)
        return 0.0 if has_one or arm is not Arm.REAL else max(fits_s, MIN_SEGMENT_S)
    is_last = fits_s - long_s - _beyond_s(arm, segments) < HALF * long_s
    return min(fits_s, max(long_s, LONGEST_WINDOW_S) if arm is Arm.REAL and is_last else long_s)


def _shortest_s(arm: Arm, segments: Sequence[Segment], case: Case) -> float:
    """The least of the arm's windows; 0 before the first."""
    return min((shortest_s(one, case) for one in segments if one.arm is arm), default=0.0)


def window_s(segment: Segment) -> float:
    return float(durations(segment).sum())


def _beyond_s(arm: Arm, segments: Sequence[Segment]) -> float:
    """The most that a window of the arm took beyond its own time so far."""
    return max((whole_s(one) - window_s(one) for one in segments if one.arm is arm), default=0.0)


def spared(segments: Sequence[Segment]) -> tuple[Arm, ...]:
    """Arms to leave out for want of time. Not `free` where the threads of `real` waited for processors: beside the
    device the loader is slower than alone, and by how much is the cost of contention."""
    windows = [one.cpu for one in segments if one.arm is Arm.REAL and one.cpu is not None]
    queued_s = sum(one.own_queued_s or 0.0 for one in windows)
    waits = queued_s > WAITING * (queued_s + sum(one.own_s for one in windows))
    return tuple(arm for arm in SPARED if not (waits and arm is Arm.FREE))


def has_rounds(segments: Sequence[Segment], lanes: int) -> bool:
    """Whether the windows of `real` hold two rounds of the workers, without which no interval is known."""
    return sum(len(one.window) // lanes for one in segments if one.arm is Arm.REAL) >= HELD_ROUNDS


def _missing_s(segments: Sequence[Segment], least: int) -> float:
    """Seconds that `real` takes for what it lacks of the `least` steps that tell."""
    seconds = np.concatenate([durations(one) for one in segments if one.arm is Arm.REAL])
    return float(seconds.mean()) * (least + 1 - len(seconds))


def measured_arms(arms: Sequence[Arm], segments: Sequence[Segment]) -> tuple[Arm, ...]:
    """The arms of a round without `ram` where `real` took its place in all rounds."""
    return tuple(arm for arm in arms if any(segment.arm is arm for segment in segments))


def _least_s(arm: Arm, segments: Sequence[Segment], readers: int) -> float:
    """Length of a window over a storage that stood still, or had slow files, in those so far; 0 where it had none. That
    of `fetch` waits for `real`, which the verdict is about."""
    if arm not in COMPARED:
        return 0.0
    wanted_s = long_window_s(segments, readers)
    real_s = [window_s(one) for one in segments if one.arm is Arm.REAL]
    is_told = max(real_s, default=0.0) >= wanted_s / 2 or (len(real_s) > 1 and _only_fetch_tells(segments))
    return wanted_s if arm is Arm.REAL or is_told else 0.0


def long_window_s(segments: Sequence[Segment], readers: int) -> float:
    """Length of a window that tells of a storage that stood still, or had slow files, in those so far; 0 where it had
    none."""
    wanted_s = max(window_wanted_s(segments, readers), PAUSES_A_WINDOW * _stood_between_s(segments))
    return min(wanted_s, LONGEST_WINDOW_S)


def _only_fetch_tells(segments: Sequence[Segment]) -> bool:
    """Whether the loader does not tell when it reads a file, so that the windows of `fetch` alone tell what makes the
    storage slow: these and those of `real` share the time."""
    tell = {one.arm for one in segments if one.reads is not None}
    return Arm.FETCH in tell and Arm.REAL not in tell


def _stood_between_s(segments: Sequence[Segment]) -> float:
    """For how long the storage stood still while a look at the page cache opened files between two windows, by how
    long other looks took; 0 where it did not. Standstills may fall beside all windows of a round."""
    windows = [one.storage for one in segments if one.storage is not None]
    looks_s = [one.looked_s for one in windows if one.looked_s is not None and _may_read(one)]
    longer_s = max(looks_s) - min(looks_s) if looks_s else 0.0
    return longer_s if longer_s >= STOOD_S else 0.0


def _may_read(window: StorageWindow) -> bool:
    """Whether the window may have read the storage: its files were not known to be in memory."""
    return window.residency_before is None or window.residency_before < MOSTLY_RESIDENT


def precise(case: Case, arms: Sequence[Arm], segments: Sequence[Segment]) -> bool:
    """Whether every arm's step time is known within the target. `fetch` and `prep`, whose rates no one asked for, only
    need to be known as well as the gains that they decide, and not at all where they are surely faster than the device
    can be fed."""
    blocks = {}
    for arm in arms:
        measured = [segment for segment in segments if segment.arm is arm]
        if measured:  # `real` may take the place of `ram`, and a slow `real` that of `free`
            turns = [segment.round for segment in measured]
            blocks[arm] = blocks_of([[durations(segment)] for segment in measured], case.feed.lanes, turns=turns)
    found = widths(blocks, FED_ALIKE)
    base = next((float(blocks[arm].means()[0]) for arm in (Arm.HOST, Arm.DEVICE) if arm in blocks), 0.0)
    for arm, width in found.items():
        if arm.decodes and arm is not Arm.PREP:
            known = width.whole <= case.effort.ci_target
        else:
            known = width.whole <= KNOWN or float(blocks[arm].means()[0]) * (1 + width.whole) < base
        if not known:
            return False
    return True
