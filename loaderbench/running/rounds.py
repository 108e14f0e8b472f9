"""Measures the arms in turns, round after round, until every step time is precise enough or the time is up."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from loaderbench.analysis.latency import window_wanted_s
from loaderbench.analysis.statistics import blocks_of, widths
from loaderbench.cases.arms import FED_ALIKE, Arm
from loaderbench.cases.case import Case
from loaderbench.errors import ConfigError
from loaderbench.images.shards import DataSet
from loaderbench.recording.facts import RoundFacts, Segment
from loaderbench.running.window import LONGEST_WINDOW_S, MIN_WINDOW_STEPS, Length, Windows, durations

TARGET_ROUNDS = 4
MIN_ROUNDS = 3
MIN_SEGMENT_S, MAX_SEGMENT_S, FIRST_SEGMENT_S = 0.25, 2.5, 1.0
"""Length of windows, and at most of those of the first round: a rough verdict is there early, and is refined."""
KNOWN = 0.10
"""Half-width within which the arms behind a gain alone must be known: a gain counts from 1.10× on (WORTH)."""
COMPARED = (Arm.REAL, Arm.FETCH)
"""Arms whose windows are as long as a storage with stalls or slow files needs: they tell what it takes of the step."""
SPARED = (Arm.FREE, Arm.PREP)
"""Arms that are left out where the time is too short for `real`: no gain of storage or preparation needs them."""
LEAST_STEPS, LEAST_LANE_ROUNDS = MIN_ROUNDS * MIN_WINDOW_STEPS, 3
"""Steps of `real`, and rounds of the workers, in the shortest run that tells (docs/method.md, `Too short`)."""
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
ARMS_PART = 0.6
"""Fraction of `max_bytes` for the arms that read the storage."""


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
        raise ConfigError(f"--cache warm reads all of the data set once, {total:,} bytes: raise --max-bytes")
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
            f"--max-bytes {most} is too little for {segments} windows of {least} batches each: "
            f"give at least {needed / 1e6:,.0f}M, or a smaller --batch-size, fewer --workers, or --arms real"
        )
    return steps


def measure_rounds(
    windows: Windows,
    arms: tuple[Arm, ...],
    budget: Budget,
    segments: list[Segment],
    storage_idle: Callable[[Sequence[Segment]], bool] = lambda segments: False,
    on_findings: Callable[[], None] = lambda: None,
) -> RoundFacts:
    """Measure the arms in turns, adding their windows to `segments`. `on_findings` is called behind each window of
    the first round and behind each further round. Where there are other ranks, rank 0 decides what comes next.

    `storage_idle`: whether the windows so far prove that the storage has nothing to do. `ram` would then be the same as
    `real`, and its time goes to `real`.
    """
    effort, feed, lead = windows.rig.case.effort, windows.rig.case.feed, windows.peers.lead
    target_s = float(np.clip(budget.seconds / (len(arms) * TARGET_ROUNDS), MIN_SEGMENT_S, MAX_SEGMENT_S))
    num_rounds = 1 if effort.steps is not None and effort.steps < MIN_ROUNDS * MIN_WINDOW_STEPS else MIN_ROUNDS
    steps = None if effort.steps is None else -(-effort.steps // num_rounds)
    budget, least = lead(budget), max(LEAST_STEPS, LEAST_LANE_ROUNDS * feed.lanes)
    deadline = time.perf_counter() + budget.seconds
    number, turns, spares, uneven = 0, arms, tuple[Arm, ...](), False
    while True:
        for place, planned in enumerate(turns):
            left_s = lead(deadline - time.perf_counter())
            if number and left_s < 0:
                break
            arm = planned
            if planned is Arm.RAM and lead(storage_idle(segments)):
                if steps is not None or left_s < 0:
                    continue
                arm = Arm.REAL
            if steps is None and not number and not spares:
                spares = lead(() if _has_time(budget.seconds, left_s, segments, arms, least) else _spared(segments))
            if planned in spares or (steps is None and lead(_is_exact(windows, planned, segments))):
                continue
            usual_s = arm.weight * (target_s if number else min(target_s, FIRST_SEGMENT_S))
            wanted_s = max(usual_s, _least_s(arm, segments, feed.lanes))
            if spares and arm is Arm.REAL:
                wanted_s = max(wanted_s, min(_missing_s(segments, least), REAL_PART * left_s))
            to_come = [one for one in arms[place:] if one not in spares]
            longest_s = max(MIN_SEGMENT_S, left_s * (1 if number else _share(arm, to_come)))
            length = Length(lead(wanted_s), steps, longest_s)
            segments.append(windows.measure(arm, number, length))
            if not number:
                on_findings()
            if number and steps is None and not uneven and lead(_least_s(Arm.REAL, segments, feed.lanes) > 0):
                break  # `real` first, whatever is left of the round
        if number:
            on_findings()
        number += 1
        uneven = steps is None and lead(_least_s(Arm.REAL, segments, feed.lanes) > 0)
        turns = _turns(arms, uneven=uneven, short=bool(spares))
        if steps is not None and number >= num_rounds:
            return RoundFacts(_measured(arms, segments), number, "steps")
        if lead(time.perf_counter() > deadline):
            return RoundFacts(_measured(arms, segments), number, "duration")
        if number >= TARGET_ROUNDS and budget.most_bytes:
            return RoundFacts(_measured(arms, segments), number, "max_bytes")
        if steps is None and number >= MIN_ROUNDS and windows.peers.every(_precise(windows.rig.case, arms, segments)):
            return RoundFacts(_measured(arms, segments), number, "ci_target")


def _turns(arms: tuple[Arm, ...], *, uneven: bool, short: bool) -> tuple[Arm, ...]:
    """The order of a later round. Over a storage that stands still or has slow files now and then (`uneven`), windows
    of `real` and `fetch` must be long, and what they hold differs from one to the next: they come first, and `real`
    twice. The other arms move less and follow if there is time. `short`: the time is, so that `real` comes first."""
    if uneven:
        first = tuple(arm for arm in (Arm.REAL, Arm.FETCH, Arm.REAL) if arm in arms)
        return (*first, *(arm for arm in arms if arm not in COMPARED))
    return tuple(sorted(arms, key=lambda arm: arm is not Arm.REAL)) if short else arms


def _is_exact(windows: Windows, arm: Arm, segments: Sequence[Segment]) -> bool:
    """Whether the arm is that of a device on which nothing computes (an emulated one), and paced by its clock alone:
    its time goes to arms that vary."""
    if arm.source not in ("resident", "ready") or windows.rig.device.torch_device is not None:
        return False
    means = [float(durations(one).mean()) for one in segments if one.arm is arm]
    return len(means) >= EXACT_ROUNDS and max(means) - min(means) <= EXACT * min(means)


def _share(arm: Arm, left: Sequence[Arm]) -> float:
    """Of the time, what a window of the first round may take at most, `left` being the arms from here on: two shares
    for `real`, one for each other."""
    return (1 + (arm is Arm.REAL)) / sum(1 + (one is Arm.REAL) for one in left)


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


def _spared(segments: Sequence[Segment]) -> tuple[Arm, ...]:
    """Arms to leave out for want of time. Not `free` where the threads of `real` waited for processors: beside the
    device the loader is slower than alone, and by how much is the cost of contention."""
    windows = [one.cpu for one in segments if one.arm is Arm.REAL and one.cpu is not None]
    queued_s = sum(one.own_queued_s or 0.0 for one in windows)
    waits = queued_s > WAITING * (queued_s + sum(one.own_s for one in windows))
    return tuple(arm for arm in SPARED if not (waits and arm is Arm.FREE))


def _missing_s(segments: Sequence[Segment], least: int) -> float:
    """Seconds that `real` takes for what it lacks of the `least` steps that tell."""
    seconds = np.concatenate([durations(one) for one in segments if one.arm is Arm.REAL])
    return float(seconds.mean()) * (least + 1 - len(seconds))


def _measured(arms: Sequence[Arm], segments: Sequence[Segment]) -> tuple[Arm, ...]:
    """The arms of a round without `ram` where `real` took its place in all rounds."""
    return tuple(arm for arm in arms if any(segment.arm is arm for segment in segments))


def _least_s(arm: Arm, segments: Sequence[Segment], lanes: int) -> float:
    """Length of a window over a storage that stood still, or had slow files, in those so far; 0 where it had none. That
    of `fetch` waits for `real`, which the verdict is about."""
    if arm not in COMPARED:
        return 0.0
    told = [segment.reads for segment in segments if segment.arm.touches_storage]
    wanted_s = min(window_wanted_s(told, lanes), LONGEST_WINDOW_S)
    real_s = max((float(durations(one).sum()) for one in segments if one.arm is Arm.REAL), default=0.0)
    return wanted_s if arm is Arm.REAL or real_s >= wanted_s / 2 else 0.0


def _precise(case: Case, arms: Sequence[Arm], segments: Sequence[Segment]) -> bool:
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
