"""What threads were doing at random times: `watch` looks from inside a process, `attach` from outside; both store this.

Shares of a role's time are counts of looks. Looks at random times see a share of the window as a fair draw would, so
the interval of a count holds (Wilson, Probable inference, JASA 22, 1927). Threads of one role are looked at together
and may act together: the count's effective size is what the spread of the looks says (design effect: Kish, Survey
Sampling, 1965), between the number of looks and the number of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loaderbench.recording.estimate import Estimate

State = Literal["running", "runnable", "file", "socket", "fault", "lock", "sleep", "pipe", "gpu", "other", "gil"]
STATES: tuple[State, ...] = (
    "running",  # on a processor
    "runnable",  # a processor is missing
    "file",  # in a call that reads, opens or looks up a file
    "socket",  # waits for a socket
    "fault",  # in a page fault that needs the storage
    "lock",  # waits for a lock or a condition (futex)
    "sleep",
    "pipe",  # waits for a queue or a pipe: nothing to do, or the reader is late
    "gpu",  # in a call of the GPU's driver
    "other",
    "gil",  # waits for the lock of its Python, which another thread holds
)
Role = Literal["consumer", "worker", "pin", "autograd", "other"]
Owner = Literal["user", "library"]
UNKNOWN_PLACE = -1
CONFIDENT = 1.959964
"""Standard normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True)
class SampledThread:
    """One thread that was looked at."""

    role: Role
    worker: int | None = None
    """The number of the worker's process; None for other roles, and where the number is unknown."""
    name: str = ""


@dataclass(frozen=True)
class Place:
    """Where in the code a thread was."""

    file: str
    line: int
    function: str
    callee: str = ""
    """What this line had called; empty: nothing, or it is unknown."""
    owner: Owner = "user"
    part: str = ""
    """What the thread does there in a training loop (watching/places.py); empty: unknown."""
    callers: tuple[str, ...] = ()
    """Lines of the user's code that led there, the innermost first: `train.py:52 main`."""


@dataclass(frozen=True)
class ThreadSamples:
    """A row a thread and look; the rows of one look have the same time."""

    time_s: NDArray[np.float64]
    thread: NDArray[np.int64]
    """Position in `threads`."""
    state: NDArray[np.int64]
    """Position in STATES."""
    place: NDArray[np.int64]
    """Position in `places`; UNKNOWN_PLACE: unknown."""
    weight_s: NDArray[np.float64]
    """Seconds that the row stands for. A thread that was seen ready to run is two rows of one look, `running` and
    `runnable`, weighted by what its counters said since the look before."""
    threads: tuple[SampledThread, ...] = ()
    places: tuple[Place, ...] = ()

    def threads_of(self, role: Role) -> list[int]:
        """Positions in `threads`."""
        return [number for number, thread in enumerate(self.threads) if thread.role == role]


@dataclass
class SampleRows:
    """Collects samples while they are taken."""

    threads: list[SampledThread] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    _rows: list[tuple[float, int, int, int, float]] = field(default_factory=list)
    _place_numbers: dict[Place, int] = field(default_factory=dict)

    def add_thread(self, thread: SampledThread) -> int:
        """Return its position."""
        self.threads.append(thread)
        return len(self.threads) - 1

    def number_of(self, place: Place | None) -> int:
        """Return the place's position; equal places are stored once."""
        if place is None:
            return UNKNOWN_PLACE
        if place not in self._place_numbers:
            self._place_numbers[place] = len(self.places)
            self.places.append(place)
        return self._place_numbers[place]

    def add(self, time_s: float, thread: int, state: State, weight_s: float, place: Place | None = None) -> None:
        self._rows.append((time_s, thread, STATES.index(state), self.number_of(place), weight_s))

    def samples(self) -> ThreadSamples:
        """All of them, in the order in which they were added."""
        rows = list(zip(*self._rows, strict=True)) if self._rows else [()] * 5
        times, threads, states, places, weights = rows
        return ThreadSamples(
            np.array(times, np.float64),
            np.array(threads, np.int64),
            np.array(states, np.int64),
            np.array(places, np.int64),
            np.array(weights, np.float64),
            tuple(self.threads),
            tuple(self.places),
        )


def share_of(samples: ThreadSamples, threads: Sequence[int], is_counted: NDArray[np.bool_]) -> Estimate | None:
    """Share of these threads' time in the rows that are counted; None where none of the threads was seen.

    `is_counted`: a flag for each row of `samples`.
    """
    rows = np.isin(samples.thread, threads)
    weights = samples.weight_s[rows]
    whole = float(weights.sum())
    if whole <= 0:
        return None
    counted = weights * is_counted[rows]
    fraction = float(counted.sum()) / whole
    _, look = np.unique(samples.time_s[rows], return_inverse=True)
    of_look, counted_of_look = np.bincount(look, weights), np.bincount(look, counted)
    num_looks = float(of_look.sum() ** 2 / (of_look**2).sum())
    variance = float(((counted_of_look - fraction * of_look) ** 2).sum()) / whole**2
    num = num_looks
    if variance > 0:  # at 0 or 1 all looks agree, and say nothing of their spread
        most = num_looks * len(weights) / len(of_look)
        num = float(np.clip(fraction * (1 - fraction) / variance, num_looks, most))
    low, high = wilson(fraction, num)
    return Estimate(fraction, low, high, "fraction", len(of_look), "wilson")


def wilson(fraction: float, num: float) -> tuple[float, float]:
    """Return the 95 % interval of a share that was seen in so many draws.

    >>> [round(end, 3) for end in wilson(0.5, 100)]
    [0.404, 0.596]
    """
    square = CONFIDENT**2
    middle = (fraction + square / (2 * num)) / (1 + square / num)
    half = CONFIDENT / (1 + square / num) * float(np.sqrt(fraction * (1 - fraction) / num + square / (4 * num**2)))
    return max(0.0, middle - half), min(1.0, middle + half)
