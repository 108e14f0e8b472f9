"""`loaderbench.watch`: one line around what a training loop iterates, whatever it is."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from loaderbench.originals import time
from loaderbench.watching.data_loader import MARK
from loaderbench.watching.iterator import Watched
from loaderbench.watching.seen import Source
from loaderbench.watching.tracebacks import unseen
from loaderbench.watching.watcher import Watcher

T = TypeVar("T")


class Own(Protocol):
    """A watch that a script began itself."""

    def end(self) -> object: ...

    def leave(self) -> object:
        """End it, and raise nothing."""
        ...


class Alike:
    """Has all that another object has, passes for its class, and what is set on it is set on that. Of its own it has
    what OWN names."""

    OWN: tuple[str, ...] = ()
    """The other object's name first."""

    @unseen
    def __getattr__(self, name: str) -> Any:
        if name in self.OWN:  # while it is made
            raise AttributeError(name)
        return getattr(getattr(self, self.OWN[0]), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(getattr(self, self.OWN[0]), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(getattr(self, self.OWN[0]), name)

    @unseen
    def __len__(self) -> int:
        return len(getattr(self, self.OWN[0]))

    def __bool__(self) -> bool:
        return bool(getattr(self, self.OWN[0]))

    @unseen
    def __getitem__(self, key: Any) -> Any:
        return getattr(self, self.OWN[0])[key]

    def __repr__(self) -> str:
        return repr(getattr(self, self.OWN[0]))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Another process, and a file, get what it stands for."""
        return _itself, (getattr(self, self.OWN[0]),)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(getattr(self, self.OWN[0]))


def _itself(one: Any) -> Any:
    return one


class WatchedBatches(Alike, Generic[T]):
    """Iterates as what it was given does, has all of its attributes, and passes for one of its class. A DataLoader in
    it is noticed by itself."""

    OWN: tuple[str, ...] = ("_batches", "_watcher", "_own", "_ends")

    def __init__(self, batches: Iterable[T], watcher: Watcher, own: Own | None = None, *, ends: bool = True) -> None:
        """`own`: the script's own watch; None where it is not its own. `ends`: it ends that behind a `with` block."""
        self._batches, self._watcher, self._own, self._ends = batches, watcher, own, ends

    @unseen
    def __iter__(self) -> Iterator[T]:
        begun = time.perf_counter_ns()
        iterator = iter(self._batches)
        stamps_itself = self._watcher.stamps_itself.get(type(self._batches))
        if hasattr(iterator, MARK) or stamps_itself:
            return iterator
        if stamps_itself is None and is_loader(self._batches):
            return UnknownIterator(iterator, self._watcher, self._batches)
        watched = self._watcher.opened(source_of_unknown(self._batches), begun, None, (), None, self._batches)
        return iterator if watched is None else WatchedIterator(iterator, watched)

    def __copy__(self) -> WatchedBatches[T]:
        return type(self)(copy.copy(self._batches), self._watcher, self._own, ends=self._ends)

    def __deepcopy__(self, memo: dict[int, Any]) -> WatchedBatches[T]:
        return type(self)(copy.deepcopy(self._batches, memo), self._watcher, self._own, ends=self._ends)

    def close(self) -> object:
        """End the watch, as the end of the program would: what was seen is stored and printed. The record; None under
        `loaderbench watch`, which ends with its script."""
        return None if self._own is None else self._own.end()

    def __enter__(self) -> WatchedBatches[T]:
        return self

    def __exit__(self, *error: object) -> None:
        if self._own is not None and self._ends:
            self._own.leave()


class WatchedGenerator(WatchedBatches[T]):
    """Of what is its own iterator."""

    OWN = (*WatchedBatches.OWN, "_stamped")

    def __init__(self, batches: Iterable[T], watcher: Watcher, own: Own | None = None, *, ends: bool = True) -> None:
        super().__init__(batches, watcher, own, ends=ends)
        self._stamped: Iterator[T] | None = None

    @unseen
    def __next__(self) -> T:
        if self._stamped is None:
            self._stamped = iter(self)
        return next(self._stamped)


class WatchedIterator(Alike, Generic[T]):
    """An iterator with stamps around each batch. It has the attributes of the other, and passes for its class."""

    OWN: tuple[str, ...] = ("_iterator", "_watched")

    def __init__(self, iterator: Iterator[T], watched: Watched | None) -> None:
        """`watched`: None where it is not stamped here."""
        self._iterator, self._watched = iterator, watched

    def __iter__(self) -> Iterator[T]:
        return self

    @unseen
    def __next__(self) -> T:
        batch: T = next(self._iterator) if self._watched is None else self._watched.step(next, self._iterator)
        return batch


class UnknownIterator(WatchedIterator[T]):
    """Of a class of loaders that was not iterated before: whether its batches are stamped by themselves, as they are
    where it iterates a DataLoader in its turn, shows with the first one, which counts nowhere where they are not."""

    OWN = (*WatchedIterator.OWN, "_watcher", "_batches", "_is_first")

    def __init__(self, iterator: Iterator[T], watcher: Watcher, batches: Iterable[T]) -> None:
        super().__init__(iterator, None)
        self._watcher, self._batches, self._is_first = watcher, batches, True

    @unseen
    def __next__(self) -> T:
        if not self._is_first:
            return super().__next__()
        self._is_first, before = False, self._watcher.num_batches
        batch = next(self._iterator)
        if self._watcher.is_on_its_thread:
            now, stamps_itself = time.perf_counter_ns(), self._watcher.num_batches > before
            self._watcher.stamps_itself[type(self._batches)] = stamps_itself
            if not stamps_itself:
                source = source_of_unknown(self._batches)
                self._watched = self._watcher.opened(source, now, None, (), None, self._batches)
        return batch


def is_loader(batches: object) -> bool:
    """Whether it is a DataLoader, whose iterator may be wrapped (Accelerate's), or made by an `__iter__` of its own; or
    may hand one's batches on (WebDataset's WebLoader without stages behind it)."""
    torch = sys.modules.get("torch.utils.data")
    if torch is None:
        return False
    stages = getattr(batches, "pipeline", None)
    inner = stages[0] if isinstance(stages, list) and len(stages) == 1 else batches
    return isinstance(inner, torch.DataLoader)


def source_of_unknown(batches: object) -> Source:
    """Of an iterable that tells nothing of itself: whether it works ahead is not known, and counts as not."""
    kind = type(batches).__name__
    size = getattr(batches, "batch_size", None)
    return Source(kind, kind, None, size if isinstance(size, int) and size > 0 else None, 0, 0, "", tells=False)
