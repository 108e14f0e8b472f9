"""Bursts of several ranks: all are held at the same step, and go on together. Else one rank's pause would be another's
wait in the step's collective.

Which step it is follows from the steps alone, which the ranks of a data-parallel training share, never from the time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from loaderbench.watching.iterator import Watched
    from loaderbench.watching.seen import Queue, Seen
    from loaderbench.watching.watcher import Watcher

LEAST_STEPS = 24
"""Of a window of the run as it is, between two bursts."""
COME_S, COME_STEPS = 1.0, 3.0
"""For so long, and as many mean steps, a rank waits for the others to come to a burst."""
QUICK_BURSTS, MOST_DOUBLED = 20, 6
"""So many bursts follow each other at once; later ones come at twice the distance each time, up to so often."""


class Others(Protocol):
    """The other ranks of the script."""

    problem: str | None
    """Why there are no bursts (any more)."""

    def all_here(self, number: int, seconds: float) -> bool:
        """Whether all come to burst `number` within so many seconds."""
        ...

    def all_ready(self, number: int, *, full: bool) -> bool:
        """Whether the queues of all are full; all go on together."""
        ...


class InStep:
    """When the ranks are held, and that they are held together."""

    def __init__(self, others: Others) -> None:
        self._others = others
        self._next = self._number = 0

    def is_due(self, watcher: Watcher, watched: Watched) -> bool:
        """Whether this step is one at which all are held."""
        seen = watched.seen
        most = max(watcher.seen.values(), key=lambda one: (one.phase != "evaluate", one.num_batches))
        enough = watched.num_batches >= least_steps(seen.source.depth)
        return most is seen and enough and seen.num_batches >= self._next

    def steps_left(self, seen: Seen) -> int:
        """Until the next one can be due."""
        return max(1, self._next - seen.num_batches)

    def hold(self, watcher: Watcher, seen: Seen, queue: Queue, fill: Callable[[Queue], bool]) -> bool:
        """Hold this rank until the queues of all are full. Whether they are."""
        number, others = self._number, self._others
        self._number += 1
        longer = 2 ** max(0, min(number - QUICK_BURSTS, MOST_DOUBLED))
        self._next = seen.num_batches + longer * drawn_steps(seen.source.depth, random.Random(number))
        step_s = seen.spent_ns / 1e9 / max(1, seen.num_batches)
        ready = others.all_here(number, COME_S + COME_STEPS * step_s) and others.all_ready(number, full=fill(queue))
        watcher.no_burst = watcher.no_burst or others.problem
        return ready


def least_steps(depth: int) -> int:
    """Of a window between two bursts."""
    return max(LEAST_STEPS, 6 * depth)


def drawn_steps(depth: int, drawn: random.Random) -> int:
    """Anew each time, so that bursts meet every phase of what repeats after some steps (accumulation)."""
    least = least_steps(depth)
    return drawn.randrange(least, 2 * least)
