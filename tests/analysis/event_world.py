"""What the event model's pipelines run in: a clock, processors shared by time slices, standstills of a storage.

Times in ms.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SLICE_MS = 3.0
"""What a thread gets of a processor while others wait for it."""
UNEVEN_SLICES = 0.3
"""By so much of itself a slice may be longer or shorter: at even ones a pipeline falls into step with neighbours."""


class Gate:
    """Where processes wait until something has happened."""

    def __init__(self) -> None:
        self.waiting: list[Process] = []


Process = Generator[float | Gate, None, None]
"""Yields the time at which to go on, or the gate to wait at."""


class World:
    """The clock, and what is due."""

    def __init__(self, begin: float) -> None:
        self.now = begin
        self._due: list[tuple[float, int, Process]] = []
        self._count = 0

    def add(self, process: Process, at: float | None = None) -> None:
        self._count += 1
        heapq.heappush(self._due, (self.now if at is None else at, self._count, process))

    def open(self, gate: Gate) -> None:
        waiting, gate.waiting = gate.waiting, []
        for process in waiting:
            self.add(process)

    def run(self, last: Process) -> None:
        """Until `last` has ended."""
        self.add(last)
        while True:
            self.now, _, process = heapq.heappop(self._due)
            try:
                wanted = next(process)
            except StopIteration:
                if process is last:
                    return
                continue
            if isinstance(wanted, Gate):
                wanted.waiting.append(process)
            else:
                self.add(process, wanted)


Times = list[tuple[float, float]]
"""Begin and end of each."""


def within(times: Times, begin: float, end: float) -> float:
    """How much of the times lies between."""
    if not times:
        return 0.0
    table = np.array(times)
    return float((np.minimum(table[:, 1], end) - np.maximum(table[:, 0], begin)).clip(0).sum())


@dataclass
class Thread:
    """When one thread, or several alike, had a processor, and when it waited for one."""

    ran: Times = field(default_factory=list)
    waited: Times = field(default_factory=list)


@dataclass
class _Turn:
    """A thread's work, and its place in the queue."""

    left: float
    thread: Thread
    since: float
    """It has been waiting for a processor from then on."""
    done: Gate = field(default_factory=Gate)
    ran: float = 0.0
    waited: float = 0.0


def _slices(random: np.random.Generator) -> Iterator[float]:
    while True:
        yield from random.uniform(SLICE_MS * (1 - UNEVEN_SLICES), SLICE_MS * (1 + UNEVEN_SLICES), 256).tolist()


class Cores:
    """Processors that runnable threads share in turn, a slice each. `neighbours` are threads that never rest."""

    def __init__(self, world: World, num: int, neighbours: int, random: np.random.Generator) -> None:
        self.others = Thread()
        self._world, self._slices = world, _slices(random)
        self._idle = Gate()
        self._ready = deque(_Turn(float("inf"), self.others, world.now) for _ in range(neighbours))
        for _ in range(num):
            world.add(self._core())

    def work(self, cost: float, thread: Thread, *, first: bool = False) -> Generator[float | Gate, None, float]:
        """Do it; ms that it waited for a processor. `first`: before all that wait, as a thread that mostly sleeps."""
        turn = _Turn(cost, thread, self._world.now)
        if first:
            self._ready.appendleft(turn)
        else:
            self._ready.append(turn)
        self._world.open(self._idle)
        while turn.left > 0:
            yield turn.done
        return turn.waited

    def _core(self) -> Process:
        while True:
            while not self._ready:
                yield self._idle
            turn, begin = self._ready.popleft(), self._world.now
            if begin > turn.since:
                turn.waited += begin - turn.since
                turn.thread.waited.append((turn.since, begin))
            length = min(turn.left, next(self._slices))
            yield begin + length
            turn.left -= length
            turn.thread.ran.append((begin, begin + length))
            turn.since = begin + length
            if turn.left > 0:
                self._ready.append(turn)
            else:
                self._world.open(turn.done)


def balanced(values: NDArray[np.float64], random: np.random.Generator) -> Iterator[float]:
    """The values again and again, each time in another order: by chance alone is no long window unlike another."""
    while True:
        yield from random.permutation(values).tolist()


def balanced_gaps(part: float, random: np.random.Generator, least: int) -> Iterator[int]:
    """Distances between rare events, of which each block of at least `least` places has exactly its part."""
    num = max(NUM_BALANCED, round(part * least))
    last, begin, places = -1, 0, max(num, round(num / part))
    while True:
        for at in np.sort(random.choice(places, num, replace=False)).tolist():
            yield begin + at - last
            last = begin + at
        begin += places


NUM_BALANCED = 100
MIDDLES = (np.arange(150) + 0.5) / 150
"""Of parts of a distribution that are equally likely."""


class Standstills:
    """Times in which nothing is read, on a clock that all windows of a run share."""

    def __init__(self, every: float, length: float, *, irregular: bool, seed: int, even: bool = False) -> None:
        """`every`: from the begin of one to that of the next, on average; `irregular`: after random times; `even`: as
        many long ones and short ones as there should be."""
        self.length, self._every, self._irregular = length, every, irregular
        self._random = np.random.default_rng([seed, 13])
        times = -np.log(MIDDLES)
        self._apart = balanced(times / times.mean(), self._random) if even else None
        self._begins: list[float] = []
        if length and every <= length:
            raise ValueError("standstills that leave no time between them")

    def _until(self, at: float) -> None:
        """Draw those that begin up to then, and one more."""
        while not self._begins or self._begins[-1] <= at:
            apart = self._every - self.length
            if self._irregular:
                apart *= float(self._random.exponential()) if self._apart is None else next(self._apart)
            self._begins.append(apart + (self._begins[-1] + self.length if self._begins else 0.0))

    def _opened(self, until: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(when each begins, what of the time up to then it did not stand still)."""
        self._until(until)
        begins = np.array(self._begins)
        return begins, begins - self.length * np.arange(len(begins))

    def open_time(self, at: NDArray[np.float64]) -> NDArray[np.float64]:
        """What of the time up to then it did not stand still."""
        if not self.length or not len(at):
            return at
        begins, opened = self._opened(float(at.max()))
        number = np.searchsorted(begins, at, side="right")
        before = np.maximum(number - 1, 0)
        return np.asarray(np.where(number, np.maximum(at - self.length * number, opened[before]), at))

    def clock(self, opened: NDArray[np.float64], until: float) -> NDArray[np.float64]:
        """When it had not stood still for so long; `until`: the last of them is no later."""
        if not self.length:
            return opened
        return opened + self.length * np.searchsorted(self._opened(until)[1], opened, side="left")

    def end(self, begin: float, work: float) -> float:
        """When reading ends that takes `work` without standstills."""
        if not self.length:
            return begin + work
        while True:
            self._until(begin)
            number = bisect_right(self._begins, begin)
            if number:
                begin = max(begin, self._begins[number - 1] + self.length)
            room = self._begins[number] - begin
            if work <= room:
                return begin + work
            begin, work = self._begins[number], work - room
