"""States of the random generators of each worker, to see whether several workers draw the same numbers."""

from __future__ import annotations

import mmap
import random
import sys
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.watching.sample_marks import hash_of
from loaderbench.watching.transforms import OF_DATA_SETS, data_sets

SOURCES = ("numpy.random", "random", "torch", "the data set's own generator")
BEFORE, MOVED = 0, 1
LOOK_AFTER = 3
"""Batches of a worker after which it is seen which generators have moved."""
MOST_DATA_SETS = 64


class RandomMarks:
    """The states of each worker of one iterator."""

    def __init__(self, workers: int) -> None:
        memory = np.frombuffer(mmap.mmap(-1, workers * len(SOURCES) * 2 * 8), dtype=np.int64)
        self._rows: NDArray[np.int64] = memory.reshape(workers, len(SOURCES), 2)

    def before(self, worker: int, data: object) -> None:
        """Called by the worker alone, before its first batch."""
        self._rows[worker] = 0
        for name, mark in _states(data).items():
            self._rows[worker, SOURCES.index(name), BEFORE] = mark

    def after(self, worker: int, data: object) -> None:
        """Called by the worker alone, after some batches."""
        for name, mark in _states(data).items():
            row = self._rows[worker, SOURCES.index(name)]
            row[MOVED] = row[BEFORE] not in (0, mark)

    def same(self) -> tuple[str, ...]:
        """The sources that began alike in several workers, and were drawn from there."""
        found = []
        for number, name in enumerate(SOURCES):
            began = self._rows[self._rows[:, number, MOVED] > 0, number, BEFORE]
            if len(began) > len(np.unique(began)):
                found.append(name)
        return tuple(found)


def _states(data: object) -> Mapping[str, int]:
    """Source -> a hash of its state, of those that are there."""
    torch, legacy = sys.modules.get("torch"), np.random
    found = {"random": _mark(repr(random.getstate())), "numpy.random": _mark(_of_numpy(legacy.get_state()))}
    if torch is not None:
        found["torch"] = _mark(torch.get_rng_state().numpy().tobytes())
    own = [state for one in islice(data_sets(data), MOST_DATA_SETS) for state in _own_states(one)]
    if own:
        found["the data set's own generator"] = _mark("".join(own))
    return found


def _own_states(owner: object) -> list[str]:
    """Of the generators that a data set, or a transform of it, holds."""
    held = dict(vars(owner))
    for name in OF_DATA_SETS:
        held |= {f"{name}.{key}": one for key, one in getattr(held.get(name), "__dict__", {}).items()}
    return [state for one in held.values() if (state := _state_of(one)) is not None]


def _state_of(one: Any) -> str | None:
    """Of a generator; None of anything else."""
    if isinstance(one, np.random.Generator):
        return repr(one.bit_generator.state)
    if isinstance(one, np.random.RandomState):
        return _of_numpy(one.get_state())
    if isinstance(one, random.Random):
        return repr(one.getstate())
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(one, torch.Generator):
        return repr(one.get_state().numpy().tobytes())
    return None


def _of_numpy(state: Any) -> str:
    return repr((state[1].tobytes(), state[2])) if isinstance(state, tuple) else repr(state)


def _mark(text: str | bytes) -> int:
    """A hash that is not 0."""
    return hash_of(text.encode() if isinstance(text, str) else text) + 1
