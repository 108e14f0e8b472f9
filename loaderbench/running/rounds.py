"""Which arm is measured next, and whether it is enough.

First each arm once; then `real`, which the answer is about, until it had half of the time, and the arm whose result
could change the answer most. It ends once the answer is decided (analysis/decided.py); where a time, a number of steps
or a precision was asked for, once these are reached.
"""

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
from loaderbench.recording.progress import Look
from loaderbench.running.window import (
    LONGEST_WINDOW_S,
    MIN_WINDOW_STEPS,
    Length,
    Windows,
    durations,
    whole_s,
)
from loaderbench.running.window import shortest_s as shortest_window_s

TARGET_ROUNDS = 4
"""Windows of each arm that reads the storage for which `max_bytes` is shared out."""
MIN_ROUNDS = 3
"""Before a run may end because every step time is precise."""
EARLIEST = 0.5
"""Of the time that was asked for, before it may end so: what the machine does changes."""
MIN_SEGMENT_S, MAX_SEGMENT_S, MAX_REAL_S = 0.25, 0.75, 2.5
"""Length of windows; those of `real` last as long as the others took since, but for several rather than long ones: the
machine changes from one to the next, and of that a few tell little, however long they are."""
KNOWN = 0.10
"""Half-width within which the arms behind a gain alone must be known: a gain counts from 1.10× on (WORTH)."""
COMPARED = (Arm.REAL, Arm.FETCH)
"""Arms whose windows are as long as a storage with stalls or slow files needs: they tell what it takes of the step."""
SPARED = (Arm.FREE, Arm.PREP)
"""Arms that are left out of the first round where a decision is what is asked for and there is one without them, or
the loader paces the run and `real` would get less than half of the time: no gain of storage or preparation needs
them."""
STARVED = 2.0
"""How many times as long as a fed step one of `real` takes where they are: the loader's own rate, `free`, is then that
of `real`."""
WAITING = 0.1
"""Of the time in which the run's threads could have run, the part in which they waited for a processor, from which on
contention may be worth naming, which takes `free`: a gain counts from 1.10× on (WORTH)."""
HELD_ROUNDS = 2
"""Rounds of the workers in the windows of `real` below which it is measured once more though the time is up."""
EXACT, EXACT_ROUNDS = 0.001, 2
"""What an emulated device does alone is known once so many windows differ by no more: its clock does not drift."""
STOOD_S = 0.4
"""By so much longer than another one takes a look at the page cache if the storage stands still meanwhile: each lasts
0.15 s or so (SURVEY_S)."""
MOSTLY_RESIDENT = 0.5
"""Part of the pages from which on files count as in memory: a storage that stands still then holds up no window."""
HALF = 0.5
"""Of the time, the part of `real` at least; of a long window's length, the least that tells: a whole period, or half of
the slow files."""
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
    until_decided: bool = False
    """Whether to stop as soon as the answer is decided."""


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


class Rounds:
    """Measures the arms: each once, then `real` in turns with the others, so that it gets half of the time."""

    def __init__(
        self,
        windows: Windows,
        arms: tuple[Arm, ...],
        budget: Budget,
        segments: list[Segment],
        storage_idle: Callable[[Sequence[Segment]], bool] = lambda segments: False,
        on_window: Callable[[], Look | None] = lambda: None,
    ) -> None:
        """`segments`: get the windows. `storage_idle`: whether those so far prove that the storage has nothing to do:
        `ram` would then be the same as `real`, and its time goes to `real`. `on_window` is called after each window
        and says what those so far tell; None: unknown."""
        self._windows, self._arms, self._segments = windows, arms, segments
        self._storage_idle, self._on_window = storage_idle, on_window
        self._case, self._lead = windows.rig.case, windows.peers.lead
        self._readers = windows.feeds.num_readers
        self._budget = self._lead(budget)  # all ranks alike
        self._ends_s = time.perf_counter() + budget.seconds
        self._left_s = math.inf
        """Of the time, when it was last looked at."""
        self._limited = self._case.effort.is_limited
        self._usual_s = float(np.clip(budget.seconds / (len(arms) * TARGET_ROUNDS), MIN_SEGMENT_S, MAX_SEGMENT_S))
        self._look: Look | None = None
        self._is_decided, self._round = False, 0

    def measure(self) -> RoundFacts:
        """Measure until it is enough. Where there are other ranks, rank 0 decides what comes next."""
        steps = self._case.effort.steps
        stopped_by = self._number_of(steps) if steps is not None else self._until_enough()
        return RoundFacts(self._measured(), 1 + max(one.round for one in self._segments), stopped_by)

    def _number_of(self, steps: int) -> StoppedBy:
        """So many steps of each arm, spread over some rounds."""
        num_rounds, each = spread(steps)
        for self._round in range(num_rounds):
            for place, arm in enumerate(self._arms):
                self._look_at_the_clock()
                if self._round and self._left_s < 0:
                    return "duration"
                if arm is Arm.RAM and self._lead(self._storage_idle(self._segments)):
                    continue
                share = 1.0 if self._round else _share(arm, self._arms[place:])
                # Fewer steps tell less, and other arms may need less of their share.
                most_s = max(MIN_SEGMENT_S, self._left_s * share, min(LONGEST_WINDOW_S, HALF * self._left_s))
                self._take(arm, Length(arm.weight * self._usual_s, each, most_s))
        return "steps"

    def _until_enough(self) -> StoppedBy:
        for place, planned in enumerate(self._arms):
            self._look_at_the_clock()
            arm = self._lead(self._instead_of(planned))
            if arm is not None:
                most_s = max(MIN_SEGMENT_S, self._left_s * _share(arm, self._arms[place:]))
                self._take(arm, Length(self._lead(self._wanted_s(arm)), None, most_s))
        while True:
            self._look_at_the_clock()
            if (enough := self._lead(self._enough())) is not None:
                return enough
            coming = self._lead(self._next())
            if coming is None:
                return "duration"
            arm, wanted_s = coming
            self._round += arm is Arm.REAL or Arm.REAL not in self._arms
            self._take(arm, Length(wanted_s, None, max(MIN_SEGMENT_S, self._left_s)))

    def _take(self, arm: Arm, length: Length) -> None:
        self._segments.append(self._windows.measure(arm, self._round, length))
        before, self._look = self._look, self._on_window()
        self._is_decided = self._look is not None and self._look.is_decided(before)

    def _look_at_the_clock(self) -> None:
        if self._limited:
            self._left_s = self._lead(self._ends_s - time.perf_counter())

    # -- whether it is enough --------------------------------------------------------------------------------

    def _enough(self) -> StoppedBy | None:
        """Why what was measured is enough; None: it is not."""
        if self._budget.until_decided and self._is_decided and not (self._owes_real() or self._owes_free()):
            return "decided"
        if self._may_be_known() and self._windows.peers.every(_precise(self._case, self._arms, self._segments)):
            return "ci_target"
        reading = sum(one.arm.touches_storage for one in self._segments)
        if self._budget.most_bytes and reading >= TARGET_ROUNDS * sum(arm.touches_storage for arm in self._arms):
            return "max_bytes"
        return "duration" if self._left_s < 0 else None

    def _may_be_known(self) -> bool:
        """Whether enough rounds and enough of the time are over for that."""
        return self._round + 1 >= MIN_ROUNDS and self._left_s <= (1.0 - EARLIEST) * self._budget.seconds

    def _owes_free(self) -> bool:
        """Whether `free` is still to come where the threads of `real` waited for processors: beside the device the
        loader is slower than alone, and by how much is the cost of contention."""
        return Arm.FREE in self._arms and not self._of(Arm.FREE) and _waits(self._of(Arm.REAL))

    def _owes_real(self) -> bool:
        """Whether `real` had less than half of the time so far."""
        return Arm.REAL in self._arms and self._real_s() < self._others_s()

    # -- what comes next -------------------------------------------------------------------------------------

    def _instead_of(self, planned: Arm) -> Arm | None:
        """The arm that the first round measures where one is planned; None: it is left out."""
        if planned is Arm.RAM and self._storage_idle(self._segments):
            return None if self._left_s < 0 and self._has_rounds() else Arm.REAL
        return None if self._is_spared(planned) else planned

    def _next(self) -> tuple[Arm, float] | None:
        """The arm to measure now, and the length of its window: `real` until it had half of the time, else the arm that
        could change the answer most; None where no window ends in time."""
        others, real = self._others(), [Arm.REAL] if Arm.REAL in self._arms else []
        first_s = max((whole_s(one) for one in self._of(others[0])), default=0.0) if others else 0.0
        for arm in [*real, *others] if self._real_s() < self._others_s() + first_s else [*others, *real]:
            shortest_s = min((shortest_window_s(one, self._case) for one in self._alike(arm)), default=0.0)
            if shortest_s <= self._left_s + LATE_S and (wanted_s := self._wanted_s(arm)):
                return arm, wanted_s
        return None

    def _others(self) -> list[Arm]:
        """The arms besides `real` that this round has not measured, those first whose results could change the answer
        most: over uneven storage the one that only reads, `free` where it is owed, then by the last look; those of
        which nothing is said by the time that they had."""
        idle = self._storage_idle(self._segments)
        done = {one.arm for one in self._segments if one.round == self._round} if Arm.REAL in self._arms else ()
        arms = [arm for arm in self._arms if arm not in (Arm.REAL, *done) and not (idle and arm is Arm.RAM)]
        arms = [arm for arm in arms if not _is_exact(self._windows, arm, self._segments)]
        telling = () if self._look is None else self._look.telling
        first = (Arm.FETCH,) * (self._least_s(Arm.FETCH) > 0) + (Arm.FREE,) * self._owes_free()

        def place(arm: Arm) -> tuple[bool, int, float]:
            known = telling.index(arm) if arm in telling else len(telling)
            return arm not in first, known, _wall_s(self._of(arm)) / arm.weight

        return sorted(arms, key=place)

    def _wanted_s(self, arm: Arm) -> float:
        """Length of the arm's next window; 0: it would tell nothing. One of `real` makes up for what the others took,
        and takes all that is left where no other would fit after it."""
        usual_s, long_s = arm.weight * self._usual_s, self._least_s(arm)
        if arm is Arm.REAL:
            usual_s = max(usual_s, min(self._others_s() - self._real_s(), MAX_REAL_S))
        if not self._round and not self._of(arm):
            return max(usual_s, long_s)
        beyond_s = max((whole_s(one) - _window_s(one) for one in self._alike(arm)), default=0.0)
        fits_s, wanted_s = self._left_s - beyond_s, max(usual_s, long_s)
        if fits_s <= 0 and self._least_s(Arm.REAL):
            return 0.0  # what is left goes into its warm-up, which may meet a standstill
        if long_s > usual_s and fits_s < HALF * long_s:
            has_one = any(_window_s(one) >= HALF * long_s for one in self._of(arm))
            return 0.0 if has_one or arm is not Arm.REAL else max(fits_s, MIN_SEGMENT_S)
        if arm is Arm.REAL and fits_s - wanted_s - beyond_s < max(HALF * long_s, MIN_SEGMENT_S):
            wanted_s = max(wanted_s, MAX_REAL_S, LONGEST_WINDOW_S * (long_s > 0))
        return max(min(wanted_s, fits_s), MIN_SEGMENT_S)

    def _is_spared(self, arm: Arm) -> bool:
        """Whether an arm of the first round is left out for now: a decision is what is asked for, and the windows so
        far name a cause without it; or the loader paces `real`, and the time is short."""
        real, fed = self._of(Arm.REAL), self._of(Arm.HOST) or self._of(Arm.DEVICE)
        if arm not in SPARED or not real or not fed:
            return False
        starved = _mean_s(real[-1]) >= STARVED * _mean_s(fed[-1])
        if self._budget.until_decided:
            return starved or (self._look is not None and self._look.verdict.bottleneck != "undetermined")
        if arm is Arm.FREE and _waits(real):
            return False
        loaded_s = max(shortest_window_s(one, self._case) for one in self._segments if one.arm.is_fed)
        return starved and self._others_s() + loaded_s > HALF * self._budget.seconds

    # -- the windows so far ----------------------------------------------------------------------------------

    def _of(self, arm: Arm) -> list[Segment]:
        return [one for one in self._segments if one.arm is arm]

    def _alike(self, arm: Arm) -> list[Segment]:
        """The arm's windows; before its first those of others that a loader fed as well, or that none did."""
        return self._of(arm) or [one for one in self._segments if one.arm.is_fed is arm.is_fed]

    def _real_s(self) -> float:
        return _wall_s(self._of(Arm.REAL))

    def _others_s(self) -> float:
        return _wall_s(self._segments) - self._real_s()

    def _measured(self) -> tuple[Arm, ...]:
        """The arms of a round without those that were left out in all rounds."""
        return tuple(arm for arm in self._arms if self._of(arm))

    def _has_rounds(self) -> bool:
        """Whether the windows of `real` hold two rounds of the workers, without which no interval is known."""
        lanes = self._case.feed.lanes
        return sum(len(one.window) // lanes for one in self._of(Arm.REAL)) >= HELD_ROUNDS

    def _least_s(self, arm: Arm) -> float:
        """Length of a window over a storage that stood still, or had slow files, in those so far; 0 where it had none.
        That of `fetch` waits for `real`, which the verdict is about."""
        if arm not in COMPARED or not self._segments:
            return 0.0
        wanted_s = max(window_wanted_s(self._segments, self._readers), PAUSES_A_WINDOW * _stood_s(self._segments))
        wanted_s = min(wanted_s, LONGEST_WINDOW_S)
        long = any(_window_s(one) >= HALF * wanted_s for one in self._of(Arm.REAL))
        return wanted_s if arm is Arm.REAL or long else 0.0


def spread(steps: int) -> tuple[int, int]:
    """(rounds over which so many steps of an arm are spread, steps of each window)"""
    num_rounds = 1 if steps < MIN_ROUNDS * MIN_WINDOW_STEPS else MIN_ROUNDS
    return num_rounds, -(-steps // num_rounds)


def _is_exact(windows: Windows, arm: Arm, segments: Sequence[Segment]) -> bool:
    """Whether the arm is that of a device on which nothing computes (an emulated one), and paced by its clock alone:
    its time goes to arms that vary."""
    if arm.is_fed or windows.rig.device.torch_device is not None:
        return False
    means = [float(durations(one).mean()) for one in segments if one.arm is arm]
    return len(means) >= EXACT_ROUNDS and max(means) - min(means) <= EXACT * min(means)


def _share(arm: Arm, left: Sequence[Arm]) -> float:
    """Of the time, what a window of the first round may take at most, `left` being the arms from here on: two shares
    for `real`, one for each other."""
    return (1 + (arm is Arm.REAL)) / sum(1 + (one is Arm.REAL) for one in left)


def _mean_s(segment: Segment) -> float:
    return float(durations(segment).mean())


def _wall_s(segments: Sequence[Segment]) -> float:
    """Seconds of windows with their preparation, warm-up and end."""
    return sum(map(whole_s, segments))


def _window_s(segment: Segment) -> float:
    return float(durations(segment).sum())


def _waits(windows: Sequence[Segment]) -> bool:
    """Whether the run's threads waited for processors for a part of the time that may be worth naming."""
    known = [one.cpu for one in windows if one.cpu is not None]
    queued_s = sum(one.own_queued_s or 0.0 for one in known)
    return queued_s > WAITING * (queued_s + sum(one.own_s for one in known))


def _stood_s(segments: Sequence[Segment]) -> float:
    """For how long the storage stood still while a look at the page cache opened files between two windows, by how
    long other looks took; 0 where it did not. Standstills may fall between all windows of a round."""
    windows = [one.storage for one in segments if one.storage is not None]
    looks_s = [one.looked_s for one in windows if one.looked_s is not None and _may_read(one)]
    longer_s = max(looks_s) - min(looks_s) if looks_s else 0.0
    return longer_s if longer_s >= STOOD_S else 0.0


def _may_read(window: StorageWindow) -> bool:
    """Whether the window may have read the storage: its files were not known to be in memory."""
    return window.residency_before is None or window.residency_before < MOSTLY_RESIDENT


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
