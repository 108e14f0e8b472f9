"""The rounds of a run that ends once its answer is decided: which arm is measured next, and whether it is enough.

First each arm once; then `real`, which the answer is about, until it had half of the time, and the arm whose result
could change the answer most. It ends once the answer is decided (analysis/decided.py), once all step times are precise,
or when the time is over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import RoundFacts, Segment
from loaderbench.recording.progress import Look
from loaderbench.running.rounds import (
    COMPARED,
    HALF,
    LATE_S,
    MAX_SEGMENT_S,
    MIN_ROUNDS,
    MIN_SEGMENT_S,
    SPARED,
    STARVED,
    TARGET_ROUNDS,
    Budget,
    StoppedBy,
    has_rounds,
    is_exact,
    long_window_s,
    measured_arms,
    precise,
    share,
    spared,
    window_s,
)
from loaderbench.running.window import LONGEST_WINDOW_S, Length, Windows, durations, whole_s
from loaderbench.running.window import shortest_s as shortest_of

ORDER = (Arm.DEVICE, Arm.HOST, Arm.REAL, Arm.FETCH, Arm.RAM, Arm.PREP, Arm.FREE)
"""Of the first round: `real` as soon as it can be compared, `fetch`, which takes little, after it, then `ram`, since
`real` may show that the storage has nothing to do, and `prep` on the stream that it leaves."""
EARLIEST = 0.5
"""Of the time, before it may end because every step time is precise: what the machine does changes."""
MAX_REAL_S = 2.5
"""Windows of `real` last as long as the others took since, but for several rather than long ones: the machine changes
from one to the next, and of that a few tell little, however long they are."""


class UntilDecided:
    """Measures the arms of one process: each once, then `real` in turns with the others, so that it gets half of the
    time."""

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
        self._windows, self._segments = windows, segments
        self._arms = tuple(sorted(arms, key=ORDER.index))
        self._storage_idle, self._on_window = storage_idle, on_window
        self._case = windows.rig.case
        self._readers = windows.feeds.num_readers
        self._budget = budget
        self._ends_s = time.perf_counter() + budget.seconds
        self._left_s = math.inf
        """Of the time, when it was last looked at."""
        self._usual_s = float(np.clip(budget.seconds / (len(arms) * TARGET_ROUNDS), MIN_SEGMENT_S, MAX_SEGMENT_S))
        self._look: Look | None = None
        self._is_decided, self._round = False, 0

    def measure(self) -> RoundFacts:
        """Measure until it is enough."""
        stopped_by = self._until_enough()
        return RoundFacts(
            measured_arms(self._arms, self._segments), 1 + max(one.round for one in self._segments), stopped_by
        )

    def _until_enough(self) -> StoppedBy:
        for place, planned in enumerate(self._arms):
            self._look_at_the_clock()
            arm = self._instead_of(planned)
            if arm is not None:
                most_s = max(MIN_SEGMENT_S, self._left_s * share(arm, self._arms[place:]))
                self._take(arm, Length(self._wanted_s(arm), None, most_s))
        while True:
            self._look_at_the_clock()
            if (enough := self._enough()) is not None:
                return enough
            coming = self._next()
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
        self._left_s = self._ends_s - time.perf_counter()

    # -- whether it is enough --------------------------------------------------------------------------------

    def _enough(self) -> StoppedBy | None:
        """Why what was measured is enough; None: it is not."""
        if self._is_decided and not (self._owes_real() or self._owes_free()):
            return "decided"
        if self._may_be_known() and precise(self._case, self._arms, self._segments):
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
        return Arm.FREE in self._arms and not self._of(Arm.FREE) and Arm.FREE not in spared(self._segments)

    def _owes_real(self) -> bool:
        """Whether `real` had less than half of the time so far."""
        return Arm.REAL in self._arms and self._real_s() < self._others_s()

    # -- what comes next -------------------------------------------------------------------------------------

    def _instead_of(self, planned: Arm) -> Arm | None:
        """The arm that the first round measures where one is planned; None: it is left out."""
        if planned is Arm.RAM and self._storage_idle(self._segments):
            return None if self._left_s < 0 and has_rounds(self._segments, self._case.feed.lanes) else Arm.REAL
        return None if self._is_spared(planned) else planned

    def _next(self) -> tuple[Arm, float] | None:
        """The arm to measure now, and the length of its window: `real` until it had half of the time, else the arm that
        could change the answer most; None where no window ends in time."""
        others, real = self._others(), [Arm.REAL] if Arm.REAL in self._arms else []
        first_s = max((whole_s(one) for one in self._of(others[0])), default=0.0) if others else 0.0
        for arm in [*real, *others] if self._real_s() < self._others_s() + first_s else [*others, *real]:
            shortest_s = min((shortest_of(one, self._case) for one in self._alike(arm)), default=0.0)
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
        arms = [arm for arm in arms if not is_exact(self._windows, arm, self._segments)]
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
        beyond_s = max((whole_s(one) - window_s(one) for one in self._alike(arm)), default=0.0)
        fits_s, wanted_s = self._left_s - beyond_s, max(usual_s, long_s)
        if fits_s <= 0 and self._least_s(Arm.REAL):
            return 0.0  # what is left goes into its warm-up, which may meet a standstill
        if long_s > usual_s and fits_s < HALF * long_s:
            has_one = any(window_s(one) >= HALF * long_s for one in self._of(arm))
            return 0.0 if has_one or arm is not Arm.REAL else max(fits_s, MIN_SEGMENT_S)
        if arm is Arm.REAL and fits_s - wanted_s - beyond_s < max(HALF * long_s, MIN_SEGMENT_S):
            wanted_s = max(wanted_s, MAX_REAL_S, LONGEST_WINDOW_S * (long_s > 0))
        return max(min(wanted_s, fits_s), MIN_SEGMENT_S)

    def _is_spared(self, arm: Arm) -> bool:
        """Whether an arm of the first round is left out for now: the windows so far name a cause without it, or the
        loader paces `real`."""
        real, fed = self._of(Arm.REAL), self._of(Arm.HOST) or self._of(Arm.DEVICE)
        if arm not in SPARED or not real or not fed:
            return False
        starved = _mean_s(real[-1]) >= STARVED * _mean_s(fed[-1])
        return starved or (self._look is not None and self._look.verdict.bottleneck != "undetermined")

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

    def _least_s(self, arm: Arm) -> float:
        """Length of a window over a storage that stood still, or had slow files, in those so far; 0 where it had none.
        That of `fetch` waits for `real`, which the verdict is about."""
        if arm not in COMPARED or not self._segments:
            return 0.0
        wanted_s = long_window_s(self._segments, self._readers)
        long = any(window_s(one) >= HALF * wanted_s for one in self._of(Arm.REAL))
        return wanted_s if arm is Arm.REAL or long else 0.0


def _mean_s(segment: Segment) -> float:
    return float(durations(segment).mean())


def _wall_s(segments: Sequence[Segment]) -> float:
    """Seconds of windows with their preparation, warm-up and end."""
    return sum(map(whole_s, segments))
