"""PyTorch's DataLoader, noticed wherever a script makes one. Its iterators stay what they are: methods of their classes
are replaced, and an iterator that nobody watches takes one lookup more.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from loaderbench.watching.shadow import Shadow
from loaderbench.watching.spans import Lane, SpanRing
from loaderbench.watching.watcher import Source, Watcher

MARK = "_loaderbench_watched"


class DataLoaderQueue:
    """The batches that an iterator's workers have ready."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def is_full(self) -> bool:
        """Whether all batches that were asked for are there. Raises AttributeError where this PyTorch keeps them
        elsewhere (`torch.utils.data.dataloader._MultiProcessingDataLoaderIter` of 2.11 to 2.15)."""
        iterator = self._iterator
        waiting = sum(len(task) == 2 for task in iterator._task_info.values())
        return bool(waiting + iterator._data_queue.qsize() >= iterator._send_idx - iterator._rcvd_idx)


def source_of(loader: Any) -> Source:
    """What tells a loader from the script's others, and is the same for one that is made anew for each epoch."""
    data = loader.dataset
    length = len(data) if hasattr(data, "__len__") else None
    workers = loader.num_workers
    return Source(
        kind="DataLoader",
        data=type(data).__name__,
        num_samples=length,
        batch_size=loader.batch_size,
        workers=workers,
        prefetch=loader.prefetch_factor or 0,
        order=type(loader.sampler).__name__,
    )


def uses_cuda() -> bool:
    """Whether this process has begun to use CUDA."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def start_shadow(watcher: Watcher, loader: Any) -> None:
    """Where there is none yet, before the loader's own workers are made."""
    from torch.utils.data import IterableDataset

    if watcher.shadow is not None:
        return
    data = loader.dataset
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        watcher.no_shadow = "an iterable data set's samples have no numbers"
        return
    watcher.shadow, watcher.shadow_of, watcher.no_shadow = Shadow(data, len(data)), source_of(loader), None


@contextmanager
def noticed(watcher: Watcher) -> Iterator[None]:
    """Watch every DataLoader of this process for the block's time."""
    import torch.utils.data.dataloader as home

    owner = os.getpid()
    current: list[SpanRing | None] = [None]
    base: Any = home._BaseDataLoaderIter
    old_iter, old_next, old_index = home.DataLoader.__iter__, base.__next__, base._next_index

    def make(loader: Any) -> Any:
        if os.getpid() != owner:
            return old_iter(loader)
        if watcher.wants("shadow"):
            start_shadow(watcher, loader)
        kept = getattr(loader, "_iterator", None)  # persistent workers go on with their ring
        before = getattr(kept, MARK, None)
        ring = SpanRing(loader.num_workers) if before is None or before.ring is None else before.ring
        made = ring.made()
        current[0] = ring
        begun = time.perf_counter_ns()
        try:
            iterator = old_iter(loader)
        finally:
            current[0] = None
        queue = DataLoaderQueue(iterator) if loader.num_workers else None
        # Of an epoch that was broken off some batches are still being made: nobody can tell them from the next one's.
        known = ring if before is None or before.is_whole(made) else None
        setattr(iterator, MARK, watcher.opened(source_of(loader), begun, known, made, queue))
        return iterator

    def step(iterator: Any) -> Any:
        watched = iterator.__dict__.get(MARK)
        if watched is None or os.getpid() != owner:
            return old_next(iterator)
        return watched.step(old_next, iterator)

    def index(iterator: Any) -> Any:
        found, shadow = old_index(iterator), watcher.shadow
        if shadow is not None and iterator._dataset is shadow.dataset and os.getpid() == owner:
            shadow.took(found)
        return found

    home.DataLoader.__iter__, base.__next__ = make, step  # type: ignore[method-assign]
    if watcher.wants("shadow"):
        base._next_index = index
    try:
        with _timed_fetchers(current):
            yield
    finally:
        home.DataLoader.__iter__, base.__next__ = old_iter, old_next  # type: ignore[method-assign]
        base._next_index = old_index


@contextmanager
def _timed_fetchers(current: list[SpanRing | None]) -> Iterator[None]:
    """Let what makes batches, in this process or in one forked from it, write its spans into the current ring."""
    from torch.utils.data import get_worker_info
    from torch.utils.data._utils import fetch as fetching

    fetchers = {kind: kind.fetch for kind in (fetching._MapDatasetFetcher, fetching._IterableDatasetFetcher)}
    old_fetcher = fetching._BaseDatasetFetcher.__init__

    def made(fetcher: Any, *arguments: Any) -> None:
        old_fetcher(fetcher, *arguments)
        if current[0] is not None:
            info = get_worker_info()
            fetcher._lane = Lane(current[0], 0 if info is None else info.id)
            fetcher.collate_fn = fetcher._lane.collating(fetcher.collate_fn)

    def timed(old: Callable[..., Any]) -> Callable[..., Any]:
        def fetch(fetcher: Any, index: Any) -> Any:
            lane = fetcher.__dict__.get("_lane")
            return old(fetcher, index) if lane is None else lane.fetch(lambda: old(fetcher, index))

        return fetch

    fetching._BaseDatasetFetcher.__init__ = made  # type: ignore[method-assign, assignment]
    for kind, old in fetchers.items():
        kind.fetch = timed(old)  # type: ignore[method-assign]
    try:
        yield
    finally:
        fetching._BaseDatasetFetcher.__init__ = old_fetcher  # type: ignore[method-assign]
        for kind, old in fetchers.items():
            kind.fetch = old  # type: ignore[method-assign]
