"""How long a watched script's threads were in each place, from samples and stamps.

The time of each part of a step is exact: the script waited for its batch, or worked on it, in a step like most or in a
long one. Only what it did within such a part is drawn by samples; so a figure is the part's time × the share of its
samples, and its variance that of the share (stratified sampling: Cochran, Sampling Techniques, 1977, chapter 5).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.arms import Arm
from loaderbench.pipeline.gains import NORMAL
from loaderbench.recording.facts import STEP, Recording, Segment
from loaderbench.recording.thread_samples import STATES, UNKNOWN_PLACE, Place, Role, State, ThreadSamples

LEAST_LOOKS = 30
"""Fewer say nothing: a share of half would be known to ± 18 points."""
LONG = 2.0
"""A step is long from so many times the median one on."""
WORKING: tuple[State, ...] = ("running", "runnable")
RESTS = ("indices", "held", "epoch_start", "process_start", "step", "pin", "send", "queue", "")
"""Parts in which a worker makes no batch."""
Rows = NDArray[np.bool_]


@dataclass(frozen=True)
class Seconds:
    """Seconds of a step, and the standard error of that."""

    value: float
    error: float = 0.0

    @property
    def low(self) -> float:
        return max(0.0, self.value - NORMAL * self.error)

    @property
    def high(self) -> float:
        return self.value + NORMAL * self.error

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.value + other.value, float(np.hypot(self.error, other.error)))


@dataclass(frozen=True)
class Looks:
    """The samples of one role within the windows of `real`."""

    samples: ThreadSamples
    rows: NDArray[np.int64]
    """Positions in the samples."""

    def __len__(self) -> int:
        return len(np.unique(self.samples.time_s[self.rows]))

    @cached_property
    def weight(self) -> NDArray[np.float64]:
        return np.asarray(self.samples.weight_s[self.rows])

    @cached_property
    def places(self) -> list[Place]:
        """One a row."""
        nowhere, number = Place("", 0, ""), self.samples.place[self.rows]
        return [nowhere if at == UNKNOWN_PLACE else self.samples.places[at] for at in number]

    def where(self, fits: Callable[[Place], bool]) -> Rows:
        known = np.array([fits(place) for place in self.samples.places] + [False], dtype=bool)
        return np.asarray(known[self.samples.place[self.rows]])

    def in_parts(self, *parts: str) -> Rows:
        return self.where(lambda place: place.part in parts)

    def in_states(self, states: Collection[State]) -> Rows:
        numbers = [STATES.index(state) for state in states]
        return np.isin(self.samples.state[self.rows], numbers)

    def part(self, rows: Rows, of: Rows | None = None) -> float:
        """Weight of some rows ÷ of others, or of all; 0 where these weigh nothing."""
        whole = float(self.weight[of].sum() if of is not None else self.weight.sum())
        return float(self.weight[rows].sum()) / whole if whole > 0 else 0.0

    def heaviest(self, rows: Rows) -> tuple[Place, State, float] | None:
        """The line with most weight among some rows, the state that most of it has there, and its part of all looks of
        the role. A line of the user's goes before a library's."""
        by: dict[tuple[str, int, str], dict[tuple[int, int], float]] = {}
        for at in np.flatnonzero(rows):
            place, key = (
                self.places[at],
                (int(self.samples.place[self.rows[at]]), int(self.samples.state[self.rows[at]])),
            )
            if not place.file:
                continue
            states = by.setdefault((place.file, place.line, place.part), {})
            states[key] = states.get(key, 0.0) + float(self.weight[at])
        if not by:
            return None
        line = max(by.values(), key=lambda states: sum(states.values()))
        (number, state), _ = max(line.items(), key=lambda item: item[1])
        return self.samples.places[number], STATES[state], sum(line.values()) / float(self.weight.sum())


class WatchedLooks:
    """All of them, and the steps that they fall into.

    How long a step's parts take is said by the windows of `real` after their warm-up. What the script does in its own
    step is the same in any window; what it does while it takes a batch is so in those of `real`.
    """

    def __init__(self, recording: Recording, samples: ThreadSamples) -> None:
        windows = sorted(recording.segments, key=lambda one: one.opened_ns)
        self._samples = samples
        steps = [_steps(one) for one in windows]
        self._steps: NDArray[np.float64] = np.concatenate(steps) if steps else np.zeros((0, 5))
        self._in_windows = np.zeros(len(samples.time_s), dtype=bool)
        for one in steps:
            if len(one):
                self._in_windows |= (samples.time_s >= one[0, 0]) & (samples.time_s < one[-1, 2])

    @cached_property
    def steps(self) -> NDArray[np.float64]:
        """[N, 3] asked for a batch, got it, worked on it; seconds, in order: those that count."""
        return self._steps[self._steps[:, COUNTS] > 0, :3]

    def of(self, role: Role) -> Looks:
        threads = self._samples.threads_of(role)
        rows = np.flatnonzero(self._in_windows & np.isin(self._samples.thread, threads))
        return Looks(self._samples, rows)

    @cached_property
    def consumer(self) -> Looks:
        looks = self.of("consumer")
        looks = Looks(self._samples, looks.rows[~looks.in_parts("held")])
        at = self._step_at(looks)
        times = self._samples.time_s[looks.rows]
        takes, is_real = times < self._steps[at, 1], self._steps[at, IS_REAL] > 0
        return Looks(self._samples, looks.rows[~takes | is_real])

    @cached_property
    def workers(self) -> Looks:
        """Those of workers that make a batch."""
        looks = self.of("worker")
        return Looks(self._samples, looks.rows[~looks.in_parts(*RESTS)])

    def _step_at(self, looks: Looks) -> NDArray[np.int64]:
        times = self._samples.time_s[looks.rows]
        return np.clip(np.searchsorted(self._steps[:, 0], times, side="right") - 1, 0, None)

    @cached_property
    def _at(self) -> NDArray[np.int64]:
        return self._step_at(self.consumer)

    @cached_property
    def _strata(self) -> NDArray[np.int64]:
        """[looks of the consumer] 0: waits for a batch · 1, 2: works on one, in a usual step or in a long one."""
        times, at = self._samples.time_s[self.consumer.rows], self._at
        long = self._work_s(self._steps[at]) > self._long_s
        return np.where(times < self._steps[at, 1], 0, np.where(long, 2, 1))

    def _work_s(self, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        return steps[:, 2] - steps[:, 1]

    @cached_property
    def _long_s(self) -> float:
        return LONG * float(np.median(self._work_s(self.steps)))

    @cached_property
    def _seconds(self) -> tuple[float, float, float]:
        """A step, of each stratum."""
        wait, work, num = self.steps[:, 1] - self.steps[:, 0], self._work_s(self.steps), len(self.steps)
        long = work > self._long_s
        return float(wait.sum()) / num, float(work[~long].sum()) / num, float(work[long].sum()) / num

    @property
    def phases(self) -> tuple[float, float]:
        """Mean seconds of a step: waiting for its batch, working on it."""
        return self._seconds[0], self._seconds[1] + self._seconds[2]

    @property
    def step_s(self) -> float:
        """Mean seconds of a step."""
        return sum(self._seconds)

    def seconds(self, rows: Rows) -> tuple[Seconds, Seconds]:
        """Of a step, what the consumer spends in some rows of its looks: in next(), and in its own step."""
        found = []
        for number, whole_s in enumerate(self._seconds):
            inside = self._strata == number
            num = len(np.unique(self._at[inside]))
            if not num:
                found.append(Seconds(0.0, whole_s / NORMAL if number == 2 else 0.0))
                continue
            part = self.consumer.part(rows & inside, inside)
            found.append(Seconds(part * whole_s, whole_s * share_error(part, num)))
        return found[0], found[1] + found[2]


def share_error(part: float, num: int) -> float:
    """Standard error of a share of so many looks: of none and of all of them, too, it is not 0 (Agresti and Coull, The
    American Statistician 52, 1998)."""
    likely = (part * num + 1) / (num + 2)
    return float(np.sqrt(likely * (1 - likely) / (num + 2)))


IS_REAL, COUNTS = 3, 4


def _steps(one: Segment) -> NDArray[np.float64]:
    """[N, 5] of all rows: three stamps, whether the window is one of `real`, whether the row counts."""
    stamps = one.steps[:, [STEP["called_ns"], STEP["returned_ns"], STEP["done_ns"]]] / 1e9
    is_real = np.full(len(stamps), one.arm is Arm.REAL)
    counts = is_real & (np.arange(len(stamps)) >= one.num_warmup)
    return np.column_stack([stamps, is_real, counts])
