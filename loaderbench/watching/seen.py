"""The loaders of a watched script: what tells them apart, and what was seen of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, Protocol

from loaderbench.recording.facts import MOST_EPOCHS, Segment, WatchedEpoch, WatchedSettings
from loaderbench.watching.surroundings import Surroundings
from loaderbench.watching.transforms import Times

Kind = Literal["opening", "first", "wait", "step", "held", "after"]
"""What the thread does with a loader: making an iterator; waiting for its first batch; for a later one; working on a
batch; it is held by a burst; something else, behind an iterator's end."""
KINDS: tuple[Kind, ...] = ("opening", "first", "wait", "step", "held", "after")
EPOCH_KINDS: tuple[Kind, ...] = ("opening", "first", "wait", "step", "after")


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

    @property
    def depth(self) -> int:
        return self.workers * self.prefetch


class Queue(Protocol):
    """The batches that a loader has ready."""

    def is_full(self) -> bool: ...

    def pids(self) -> list[int]:
        """Of the processes that fill it."""
        ...


@dataclass
class Seen:
    """All iterators of one loader."""

    source: Source
    segments: list[Segment] = field(default_factory=list)
    num_iterators: int = 0
    num_batches: int = 0
    num_samples: int = 0
    num_rounds: int = -1
    """Number of the last one."""
    has_spans: bool = False
    """Its workers' stamps are known; windows without them are left out then."""
    settings: WatchedSettings | None = None
    """Of a DataLoader."""
    times: list[Times] = field(default_factory=list)
    """Of its iterators' transforms."""
    marks: list[tuple[int, ...]] = field(default_factory=list)
    """What the thread had spent on it, and its batches, when each iterator was made."""
    surroundings: Surroundings = field(default_factory=Surroundings)
    phase: str | None = None
    times_ns: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    """What the thread spent on it."""
    times_waits: bool = False
    """Its workers tell nothing, so that what this thread does while it waits was timed."""

    @property
    def spent_ns(self) -> int:
        """On its batches: waiting and working."""
        return self.times_ns["wait"] + self.times_ns["step"]

    def mark(self) -> None:
        """One more iterator was made."""
        if len(self.marks) <= MOST_EPOCHS:
            self.marks.append(self._spent())

    def epochs(self) -> tuple[WatchedEpoch, ...]:
        """What the thread spent on each of its iterators."""
        found = []
        for before, after in pairwise([*self.marks, self._spent()][: MOST_EPOCHS + 1]):
            *ns, num = (end - begin for begin, end in zip(before, after, strict=True))
            opening, first, wait, step, after_s = (one / 1e9 for one in ns)
            found.append(WatchedEpoch(opening, first, wait, step, after_s, num))
        return tuple(found)

    def _spent(self) -> tuple[int, ...]:
        """So far, by EPOCH_KINDS, and its batches."""
        return (*(self.times_ns[kind] for kind in EPOCH_KINDS), self.num_batches)
