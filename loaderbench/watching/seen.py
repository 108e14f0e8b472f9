"""The loaders of a watched script: what tells them apart, and what was seen of each."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol

from loaderbench.originals import os
from loaderbench.recording.facts import MOST_EPOCHS, Segment, WatchedDelivery, WatchedEpoch, WatchedSettings
from loaderbench.watching.spans import SpanRing
from loaderbench.watching.surroundings import Surroundings
from loaderbench.watching.transforms import Times
from loaderbench.watching.within import is_own

Kind = Literal["opening", "first", "wait", "step", "held", "after"]
"""What the thread does with a loader: making an iterator; waiting for its first batch; for a later one; working on a
batch; it is held by a burst; something else, behind an iterator's end."""
KINDS: tuple[Kind, ...] = ("opening", "first", "wait", "step", "held", "after")
EPOCH_KINDS: tuple[Kind, ...] = ("opening", "first", "wait", "step", "after")
RECENT = 3
"""So many iterators tell how long its epochs are: one from which a single batch was taken tells nothing."""
MOST_ALIKE = 4
"""Loaders that look alike and are told apart. A script that keeps a data set for each epoch has one loader."""


@dataclass(frozen=True)
class Source:
    """What tells one loader of a script from another."""

    kind: str
    data: str
    """Class of the data set."""
    num_samples: int | None
    """Of the data set; None where it has no length."""
    batch_size: int | None
    workers: int
    prefetch: int
    """Batches that each worker prepares ahead."""
    order: str
    """Class of the sampler: `RandomSampler`."""
    tells: bool = True
    """Whether its workers and its queue can be seen."""
    options: str = ""
    """Arguments that are switched on: `persistent_workers pin_memory`."""
    which: int = 0
    """Of those that are alike in all of this, and have data sets of their own."""

    @property
    def depth(self) -> int:
        return self.workers * self.prefetch


OWN_FOLDER = f"{Path(__file__).parents[1]}{os.sep}"
MOST_PLACES = 4


def places() -> tuple[str, ...] | None:
    """Where the script is (`train.py:41`), then where that was called from, up to its own main module: the files that
    are no library's. None where there are none."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < MOST_PLACES:
        path = frame.f_code.co_filename
        if is_own(path) and not path.startswith((OWN_FOLDER, "<frozen")):
            found.append(f"{os.path.basename(path)}:{frame.f_lineno}")
            if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
                break
        frame = frame.f_back
    return tuple(found) or None


def reference_to(data: object) -> weakref.ref[Any] | None:
    """None where its class knows none: lists, tuples."""
    try:
        return weakref.ref(data)
    except TypeError:
        return None


def _while_it_lives(data: object, loader: object) -> Callable[[], object]:
    """What gives the data set for as long as it lives, and does not keep it; where its class knows no reference, for as
    long as its loader lives, which has it."""
    reference, holder = reference_to(data), reference_to(loader)
    if reference is not None:
        return reference
    return lambda: None if holder is None else getattr(holder(), "dataset", None)


@dataclass
class _Loader:
    """One that was seen, the data set that it had then, and what a trainer did with it."""

    source: Source
    data: Callable[[], object]
    phase: str | None

    def is_over(self, data: object) -> bool:
        return data is not None and self.data() is data

    @property
    def is_left(self) -> bool:
        """Its data set lives no more, or nobody knows."""
        return self.data() is None


class Sources:
    """Tells loaders apart that look alike, such as training and validation over streams of one class: by their data
    sets, which are other objects at the same time. One that is made anew for each epoch is the same one: its data set
    is the same object, or the one before it is gone by then."""

    def __init__(self) -> None:
        self._loaders: list[_Loader] = []

    def of(self, source: Source, data: object, loader: object, phase: str | None) -> Source:
        """`source`, with the number of the one that it is. `phase`: as a trainer tells it."""
        fitting = [one for one in self._loaders if phase is None or one.phase in (None, phase)]
        found = next((one for one in fitting if one.is_over(data) and _is_like(one.source, source)), None)
        if found is None:
            alike = [one for one in self._loaders if replace(one.source, which=0) == source]
            found = next((one for one in alike if one in fitting and one.is_left), None)
            if found is None and len(alike) >= MOST_ALIKE:
                found = next((one for one in reversed(alike) if one in fitting), None)
            if found is None:
                found = _Loader(replace(source, which=len(alike)), lambda: None, phase)
                self._loaders.append(found)
        found.data = _while_it_lives(data, loader)
        found.phase = phase or found.phase
        return found.source


def _is_like(one: Source, other: Source) -> bool:
    """Whether they differ by no more than the number of samples, which a data set may change."""
    return replace(one, which=0, num_samples=None) == replace(other, which=0, num_samples=None)


class Queue(Protocol):
    """The batches that a loader has ready."""

    def is_full(self) -> bool: ...

    def size(self) -> int:
        """Batches in it while it is full."""
        ...

    def killed(self) -> list[tuple[int, int]]:
        """(number, signal) of the processes that a signal ended."""
        ...

    def pids(self) -> list[int]:
        """Of the processes that fill it."""
        ...


@dataclass
class Start:
    """How an iterator began, and how it ended."""

    sampler_ns: int = 0
    """Its sampler's own start."""
    stop_ns: int | None = None
    """The call of next() that ended it; None where it was broken off."""
    round_ns: int = 0
    """Waiting for the first batch of each worker but one."""
    first_made_s: float | None = None
    """In which its first batch was made in its worker; None where that is not known."""


@dataclass
class Seen:
    """All iterators of one loader."""

    source: Source
    iterated_at: tuple[str, ...] | None = None
    """Where the script first did so: see `places`."""
    segments: list[Segment] = field(default_factory=list)
    num_iterators: int = 0
    num_batches: int = 0
    num_samples: int = 0
    num_rounds: int = -1
    """Number of the last one."""
    num_looks: int = 0
    """At the threads, in waits for a loader that tells nothing."""
    next_look_ns: int = 0
    until_look: int = 0
    """Steps from that time on before the next one."""
    stores: Sequence[str] = ()
    """Peers that most of what its workers read came from, over TCP; the one that sent most first."""
    has_spans: bool = False
    """Its workers' stamps are known; windows without them are left out then."""
    settings: WatchedSettings | None = None
    """Of a DataLoader."""
    times: list[Times] = field(default_factory=list)
    """Of its iterators' transforms."""
    marks: list[tuple[int, ...]] = field(default_factory=list)
    """What the thread had spent on it, and its batches, when each iterator was made."""
    began_to_work: bool = False
    """The script worked on batches in a window, and did not only take them."""
    works: bool = False
    """It surely does: windows before are left out."""
    surroundings: Surroundings = field(default_factory=Surroundings)
    recent: tuple[int, ...] = ()
    """Batches of its last iterators, without the one that is under way."""
    num_before: int = 0
    """Batches when that one was made."""
    phase: str | None = None
    times_ns: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    """What the thread spent on it."""
    index_ns: int = 0
    """What its sampler took, without the first batch of each iterator."""
    starts: list[Start] = field(default_factory=list)
    """Of its iterators."""
    delivered: WatchedDelivery | None = None
    repeats: float | None = None
    same_random: tuple[str, ...] = ()
    by_worker: Counter[int] = field(default_factory=Counter)
    """Batches of each worker, of the iterators that ended."""
    by_worker_open: Sequence[int] = ()
    """The worker of each batch, of the iterator that is under way."""
    num_indexed: int = 0
    """Batches that this is of."""
    times_waits: bool = False
    """Its workers tell nothing, so that what this thread does while it waits was timed."""

    @property
    def spent_ns(self) -> int:
        """On its batches: waiting and working."""
        return self.times_ns["wait"] + self.times_ns["step"]

    @property
    def warmup(self) -> int:
        """Steps at the beginning of an iterator's window that do not count: twice the batches that its workers were
        asked for at once. Where its epochs are too short for that, half of one at most, and what counts are whole
        rounds of the workers: they begin together, so that their batches come together, and each round waits once."""
        settled, longest, workers = max(1, 2 * self.source.depth), max(self.recent, default=0), self.source.workers
        if not workers or longest >= 2 * settled or longest <= workers:
            return settled
        rounds = min(-(-longest // (2 * workers)), (longest - 1) // workers)
        return longest - rounds * workers

    @property
    def is_one_round(self) -> bool:
        """Its epochs have no more batches than it has workers, all of which are asked for at once."""
        return self.num_iterators > 1 and self.source.workers >= max(*self.recent, self.num_batches - self.num_before)

    def gave_indices(self, ns: int) -> None:
        """Its sampler did, for one more batch."""
        self.index_ns += ns
        self.num_indexed += 1

    def mark(self) -> None:
        """One more iterator was made."""
        if len(self.starts) > MOST_EPOCHS:
            self.starts[-1] = Start()
        else:
            self.starts.append(Start())
        if self.num_iterators > 1:
            self.recent = (*self.recent, self.num_batches - self.num_before)[-RECENT:]
        self.num_before = self.num_batches
        if len(self.marks) <= MOST_EPOCHS:
            self.marks.append(self._spent())

    def note_ring(self, ring: SpanRing) -> None:
        """What workers counted besides their spans."""
        found = ring.delivery()
        if found is not None:
            most = 0 if self.delivered is None else self.delivered.shared_bytes
            self.delivered = replace(found, shared_bytes=max(most, found.shared_bytes))
        if ring.samples is not None:
            self.repeats = ring.samples.repeats() or self.repeats
        if ring.random is not None:
            self.same_random = ring.random.same() or self.same_random

    def count_by_worker(self, by: Sequence[int]) -> None:
        """An iterator has ended, with its batches from these workers."""
        self.by_worker.update(by)
        self.by_worker_open = ()

    def batches_by_worker(self) -> tuple[int, ...]:
        """Batches of each worker; empty where that is not known."""
        counts = self.by_worker + Counter(self.by_worker_open)
        return tuple(counts[worker] for worker in range(self.source.workers)) if counts else ()

    def epochs(self) -> tuple[WatchedEpoch, ...]:
        """What the thread spent on each of its iterators."""
        found = []
        for number, (before, after) in enumerate(pairwise([*self.marks, self._spent()][: MOST_EPOCHS + 1])):
            *ns, num = (end - begin for begin, end in zip(before, after, strict=True))
            opening, first, wait, step, after_s = (one / 1e9 for one in ns)
            start = self.starts[number]
            stop = None if start.stop_ns is None else start.stop_ns / 1e9
            found.append(
                WatchedEpoch(
                    opening,
                    first,
                    wait,
                    step,
                    after_s,
                    num,
                    start.sampler_ns / 1e9,
                    stop,
                    start.first_made_s,
                    start.round_ns / 1e9,
                )
            )
        return tuple(found)

    def _spent(self) -> tuple[int, ...]:
        """So far, by EPOCH_KINDS, and its batches."""
        return (*(self.times_ns[kind] for kind in EPOCH_KINDS), self.num_batches)
