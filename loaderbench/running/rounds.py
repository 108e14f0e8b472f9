"""Measures the arms in turns, round after round, until every step time is precise enough or the time is up."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from loaderbench.analysis.statistics import blocks_of, widths
from loaderbench.cases.arms import FED_ALIKE, Arm
from loaderbench.cases.case import Case
from loaderbench.errors import ConfigError
from loaderbench.images.shards import DataSet
from loaderbench.recording.facts import RoundFacts, Segment
from loaderbench.running.window import MIN_WINDOW_STEPS, Length, Windows, durations

TARGET_ROUNDS = 4
MIN_ROUNDS = 3
MIN_SEGMENT_S, MAX_SEGMENT_S = 0.25, 2.5
KNOWN = 0.10
"""Half-width within which the arms behind a gain alone must be known: a gain counts from 1.10× on (WORTH)."""
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
) -> RoundFacts:
    """Measure the arms in turns, adding their windows to `segments`.

    `storage_idle`: whether the windows so far prove that the storage has nothing to do. `ram` would then be the same as
    `real`, and its time goes to `real`.
    """
    effort = windows.rig.case.effort
    target_s = float(np.clip(budget.seconds / (len(arms) * TARGET_ROUNDS), MIN_SEGMENT_S, MAX_SEGMENT_S))
    num_rounds = 1 if effort.steps is not None and effort.steps < MIN_ROUNDS * MIN_WINDOW_STEPS else MIN_ROUNDS
    steps = None if effort.steps is None else -(-effort.steps // num_rounds)
    deadline = time.perf_counter() + budget.seconds
    number = 0
    while True:
        for planned in arms:
            if number and time.perf_counter() > deadline:
                break
            arm = planned
            if planned is Arm.RAM and storage_idle(segments):
                if steps is not None:
                    continue
                arm = Arm.REAL
            segments.append(windows.measure(arm, number, Length(target_s * arm.weight, steps)))
        number += 1
        if steps is not None and number >= num_rounds:
            return RoundFacts(_measured(arms, segments), number, "steps")
        if time.perf_counter() > deadline:
            return RoundFacts(_measured(arms, segments), number, "duration")
        if number >= TARGET_ROUNDS and budget.most_bytes:
            return RoundFacts(_measured(arms, segments), number, "max_bytes")
        if steps is None and number >= MIN_ROUNDS and _precise(windows.rig.case, arms, segments):
            return RoundFacts(_measured(arms, segments), number, "ci_target")


def _measured(arms: Sequence[Arm], segments: Sequence[Segment]) -> tuple[Arm, ...]:
    """The arms of a round without `ram` where `real` took its place in all rounds."""
    return tuple(arm for arm in arms if any(segment.arm is arm for segment in segments))


def _precise(case: Case, arms: Sequence[Arm], segments: Sequence[Segment]) -> bool:
    """Whether every arm's step time is known within the target. `fetch` and `prep`, whose rates no one asked for, only
    need to be known as well as the gains that they decide, and not at all where they are surely faster than the device
    can be fed."""
    blocks = {}
    for arm in arms:
        measured = [segment for segment in segments if segment.arm is arm]
        if measured or arm is not Arm.RAM:  # `real` took its place
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
