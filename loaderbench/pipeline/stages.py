"""A run's pipeline: who does what for a batch, and how long it takes.

    W workers make batches in order: each reads a batch, prepares it and sends it; at most `depth` are ahead
        │  the storage and the processors are shared: each serves one batch after the other at its own rate
        ▼
    the host takes a batch over and issues its step, at most `in_flight` steps ahead of the device
        ▼
    the device copies the batch, in a stream of its own or not, and computes

Without workers the host reads and prepares. A loader that tells nothing of its work (DALI) is one worker whose
preparation is the distance of its deliveries. All times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Batches:
    """What each batch costs: one value a batch, in the order of delivery, windows one after the other. [N] each."""

    read: Times
    """A worker reads its files, other readers beside it; standstills of the storage left out."""
    prep: Times
    """It does all else, without waiting for the run's own threads."""
    queue: Times
    """The part of both in which it waits for a processor that others hold."""
    read_queue: Times
    """The part of that within `read`."""
    tail: Times
    """The part of `read` that slow files take beyond typical ones."""
    hand: Times
    """From when there is room for one more until its worker begins."""
    send: Times
    """From when it is complete until it has arrived at the host."""
    take: Times
    """The host takes it over."""
    issue: Times
    """The host issues the step."""
    copy: Times
    """The device copies it."""
    device: Times
    """The device computes, from when batch and device are there."""
    cpu: Times
    """CPU seconds of all threads of the run."""

    def __len__(self) -> int:
        return len(self.read)

    @classmethod
    def of(cls, num: int, **columns: Times) -> Batches:
        """`num` batches; what is not given costs nothing."""
        return cls(**{one.name: columns.get(one.name, np.zeros(num)) for one in fields(cls)})

    @classmethod
    def joined(cls, parts: list[Batches]) -> Batches:
        return cls(**{one.name: np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(cls)})

    def at(self, rows: NDArray[Any]) -> Batches:
        return Batches(**{one.name: getattr(self, one.name)[rows] for one in fields(self)})

    def changed(self, **columns: Times | float) -> Batches:
        """With other columns; a number stands for a column of it."""
        return replace(self, **{name: np.broadcast_to(value, len(self)) for name, value in columns.items()})


@dataclass(frozen=True)
class Standstill:
    """The whole storage stands still for `length_s` in each `period_s`; the standard deviation of the period's
    logarithm is `spread`."""

    period_s: float
    length_s: float
    spread: float = 0.0


@dataclass(frozen=True)
class Stages:
    """One run's pipeline, or what an edit made of it."""

    workers: int
    """0: the host reads and prepares."""
    depth: int
    """Batches that may be ahead of the one that the host takes."""
    in_turn: bool
    """Batch k is made by worker k mod W, as in a DataLoader; else by the first that is free."""
    in_flight: int
    """Steps that the host may be ahead of the device; 0: it waits for each step."""
    overlap: bool
    """Copies run beside the compute of earlier steps."""
    batches: Batches
    window: NDArray[np.int64]
    """[N] the window that each batch was recorded in."""
    inside: NDArray[np.bool_]
    """[N] behind its window's warm-up."""
    window_s: Times
    """[number of windows] measured seconds a step."""
    measured_s: float
    """Seconds a step, all windows together."""
    processors: float
    """That the run may use."""
    shared_s: float = 0.0
    """Seconds that the storage works for a batch; its readers take turns."""
    standstill: Standstill | None = None
    opaque: bool = False
    """The loader tells nothing of its work."""
    in_line: bool = False
    """Reads are service times, behind `shared_s` that the storage works for one batch after the other; else spans that
    hold the wait for other readers."""
    worker: NDArray[np.int64] | None = None
    """[N] the worker that made each recorded batch; None where that is not known."""
    late: Times | None = None
    """[N] from when each recorded batch was ready and asked for until the host had it; None where that is not known."""

    def with_(self, **changed: Any) -> Stages:
        """With other columns of its batches, or other fields."""
        columns = {name: value for name, value in changed.items() if name in _COLUMNS}
        rest = {name: value for name, value in changed.items() if name not in _COLUMNS}
        return replace(self, batches=self.batches.changed(**columns), **rest) if columns else replace(self, **rest)


_COLUMNS = frozenset(one.name for one in fields(Batches))
