"""`loaderbench.watch`: one line around what a training loop iterates, whatever it is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from loaderbench.watching.data_loader import MARK
from loaderbench.watching.watcher import Source, Watcher

T = TypeVar("T")


class WatchedBatches(Generic[T]):
    """Iterates as what it was given does, and has all of its attributes. A DataLoader in it is noticed by itself."""

    def __init__(self, batches: Iterable[T], watcher: Watcher) -> None:
        self._batches, self._watcher = batches, watcher

    def __iter__(self) -> Iterator[T]:
        begun = time.perf_counter_ns()
        iterator = iter(self._batches)
        if hasattr(iterator, MARK):  # a DataLoader's own
            return iterator
        return self._stamped(iterator, begun)

    def _stamped(self, iterator: Iterator[T], begun: int) -> Iterator[T]:
        watched = self._watcher.opened(_source_of(self._batches), begun, None, (), None)
        while True:
            try:
                yield next(iterator) if watched is None else watched.step(next, iterator)
            except StopIteration:
                return

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def _source_of(batches: object) -> Source:
    """Of an iterable that tells nothing of itself: whether it works ahead is not known, and counts as not."""
    kind = type(batches).__name__
    size = getattr(batches, "batch_size", None)
    return Source(kind, kind, None, size if isinstance(size, int) and size > 0 else None, 0, 0, "", tells=False)
