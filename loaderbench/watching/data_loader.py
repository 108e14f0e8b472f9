"""PyTorch's DataLoader, noticed wherever a script makes one. Its iterators stay what they are: methods of their classes
are replaced, and an iterator that nobody watches takes one lookup more.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

from loaderbench.findings.table import words
from loaderbench.originals import os, time
from loaderbench.recording.facts import WatchedSettings
from loaderbench.samplers.connections import closed_ones_counted, connections
from loaderbench.watching.applying import Applier
from loaderbench.watching.seen import Seen, Source
from loaderbench.watching.shadow import Shadow
from loaderbench.watching.spans import Lane, SpanRing
from loaderbench.watching.tracebacks import unseen
from loaderbench.watching.transforms import Sampling, Times, name_of, times_for
from loaderbench.watching.watcher import Watcher

MARK = "_loaderbench_watched"
"""Of an iterator."""
NOTICED = "_loaderbench_noticed"
"""Of a loader."""
RING = "_loaderbench_ring"
"""Of an iterator: where its workers write, for as long as they live."""
NUM_PROCESS = 3
"""Arguments of the method that takes a batch from a worker, where it is given the worker (PyTorch 2.6 and later)."""
MOST_TIMED = 64
"""Iterators of a loader whose transforms' times are kept: each is memory that their workers share."""


class DataLoaderQueue:
    """The batches that an iterator's workers have ready.

    The iterator is not kept by it: its workers end when the script leaves it, not when Python looks for cycles, which
    would leave each of them waiting for 5 s.
    """

    def __init__(self, iterator: Any) -> None:
        self._reference = weakref.ref(iterator)

    def is_full(self) -> bool:
        """Whether all batches that were asked for are there. Raises AttributeError where this PyTorch keeps them
        elsewhere (`torch.utils.data.dataloader._MultiProcessingDataLoaderIter` of 2.11 to 2.15)."""
        iterator: Any = self._reference()
        if iterator is None:
            return False
        works = iterator._workers_status  # a worker at its shard's end gives nothing for what it is still asked
        missing = sum(len(task) == 1 and works[task[0]] for task in iterator._task_info.values())
        return bool(iterator._data_queue.qsize() >= missing)

    def size(self) -> int:
        """How many batches there are once it is full: none of those that workers at their shards' ends were asked for.
        Raises AttributeError as `is_full` does."""
        iterator: Any = self._reference()
        if iterator is None:
            return 0
        works = iterator._workers_status
        return sum(len(task) > 1 or works[task[0]] for task in iterator._task_info.values())

    def killed(self) -> list[tuple[int, int]]:
        """(number, signal) of the workers that a signal ended."""
        workers = enumerate(getattr(self._reference(), "_workers", []))
        return [(number, -one.exitcode) for number, one in workers if (one.exitcode or 0) < 0]

    def pids(self) -> list[int]:
        workers = getattr(self._reference(), "_workers", [])
        return [process.pid for process in workers if process.pid is not None]


def source_of(loader: Any) -> Source:
    """What tells a loader from the script's others, besides its data set, and is the same for one that is made anew
    for each epoch."""
    data = loader.dataset
    workers = loader.num_workers
    return Source(
        kind="DataLoader",
        data=type(data).__name__,
        num_samples=length_of(data),
        batch_size=loader.batch_size,
        workers=workers,
        prefetch=loader.prefetch_factor or 0,
        order=type(loader.sampler).__name__,
        options=" ".join(name for name in ("persistent_workers", "pin_memory") if getattr(loader, name)),
    )


def length_of(data: Any) -> int | None:
    """Of a data set; None where it has none, or does not tell: PyTorch's ChainDataset has a method that raises."""
    try:
        return len(data)
    except Exception:  # of the script's own class, which PyTorch would not have called
        return None


def settings_of(loader: Any) -> WatchedSettings:
    from torch.utils.data import IterableDataset

    context = loader.multiprocessing_context
    method = multiprocessing.get_start_method(allow_none=True) if context is None else context.get_start_method()
    sampler = type(loader.batch_sampler if loader.batch_size is None else loader.sampler)
    return WatchedSettings(
        in_order=bool(getattr(loader, "in_order", True)),
        persistent=bool(loader.persistent_workers),
        pin_memory=bool(loader.pin_memory),
        collate=name_of(loader.collate_fn),
        sampler=f"{sampler.__module__}.{sampler.__qualname__}",
        iterable=isinstance(loader.dataset, IterableDataset),
        forked=method in (None, "fork"),
        num_made=0,
    )


def uses_cuda() -> bool:
    """Whether this process has begun to use CUDA."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def start_shadow(watcher: Watcher, loader: Any) -> None:
    """Where there is none yet, or one of a loader that turned out to be another than the training's; before the
    loader's own workers are made."""
    from torch.utils.data import IterableDataset

    main, source = watcher.main, watcher.told_apart(source_of(loader), loader.dataset, loader)
    if watcher.shadow is not None:
        if watcher.shadow_of == source or main is None or main.source != source:
            return
        watcher.shadow.close()
    data, num = loader.dataset, length_of(loader.dataset)
    if isinstance(data, IterableDataset) or num is None:
        watcher.no_shadow = words("samples_not_numbered", {})
        return
    watcher.shadow, watcher.shadow_of, watcher.no_shadow = Shadow(data, num), source, None


def _note(seen: Seen, loader: Any, times: Times | None) -> None:
    """How the loader is set up. `times`: of new workers."""
    if seen.settings is None:
        seen.settings = settings_of(loader)
    if NOTICED not in vars(loader):
        vars(loader)[NOTICED] = True
        seen.settings = replace(seen.settings, num_made=seen.settings.num_made + 1)
    if times is not None and len(seen.times) < MOST_TIMED:
        seen.times.append(times)


def _ring_of(kept: Any, loader: Any) -> tuple[SpanRing, list[int]]:
    """Where a new iterator's workers write, and what each had made before. `kept`: the one whose workers stay."""
    from torch.utils.data import IterableDataset

    ring = getattr(kept, RING, None)
    if ring is not None:
        return ring, _made_before(kept, ring)
    workers, iterable = loader.num_workers, isinstance(loader.dataset, IterableDataset)
    ring = SpanRing(workers, workers * (loader.prefetch_factor or 0), iterable=iterable)
    return ring, ring.made()


def _made_before(kept: Any, ring: SpanRing) -> list[int]:
    """Is filled, when an iterator with workers that stayed is asked for again, with what each had made before: what was
    left of an epoch that was broken off is made by then, and the first batch is not asked for yet."""
    made: list[int] = []

    def first() -> Any:
        del kept._next_index
        made.extend(ring.made())
        return kept._next_index()

    kept._next_index = first
    return made


def _made_by(make: Callable[[Callable[[Any], Any], Any], Any], kind: Any) -> Callable[[], None]:
    """Let `make(how it did before, loader)` make the iterators of a class of loaders; what undoes that."""
    old = kind.__iter__

    @unseen
    def made(loader: Any) -> Any:
        return make(old, loader)

    kind.__iter__ = made
    return lambda: setattr(kind, "__iter__", old)


class _Making(threading.local):
    """The iterator that this thread is making: where what makes its batches is to write, and the data set that these
    are of. A worker inherits it; a loader within its data set is another one."""

    found: tuple[SpanRing, Times, Any] | None = None
    sampler_ns = 0
    """What its sampler took until it gave the indices of the first batches."""


@contextmanager
def noticed(watcher: Watcher, applier: Applier | None = None) -> Iterator[Callable[[Any], Callable[[], None]]]:
    """Watch every DataLoader of this process for the block's time. `applier`: may change their arguments. The block
    gets what notices one more class of them, with an `__iter__` of its own, and gives what undoes that."""
    import torch.utils.data.dataloader as home

    owner, making, base = os.getpid(), _Making(), cast(Any, home._BaseDataLoaderIter)
    old_next, old_index = base.__next__, base._next_index

    def make(old_iter: Callable[[Any], Any], loader: Any) -> Any:
        if os.getpid() != owner:
            return old_iter(loader)
        if applier is not None:
            applier.prepare(watcher, loader, lambda one: watcher.told_apart(source_of(one), one.dataset, one))
        if watcher.wants("shadow") and watcher.is_on_its_thread:
            start_shadow(watcher, loader)
        kept = loader._iterator if loader.persistent_workers else None  # workers that stay go on with their ring
        ring, made = _ring_of(kept, loader)
        times = times_for(loader)
        connections().look()  # which ones are not those of the workers
        making.found, making.sampler_ns = (ring, times, loader.dataset), 0
        begun = time.perf_counter_ns()
        try:
            iterator = old_iter(loader)
        finally:
            making.found = None
            getattr(kept, "__dict__", {}).pop("_next_index", None)
        queue = DataLoaderQueue(iterator) if loader.num_workers else None
        tells = made and (getattr(loader, "in_order", True) or _names_workers())  # else no batch tells who made it
        of_it = source_of(loader), begun, ring if tells else None, made, queue
        watched = watcher.opened(*of_it, loader.dataset, loader)
        setattr(iterator, MARK, watched)
        setattr(iterator, RING, ring)
        if watched is not None:
            watched.seen.starts[-1].sampler_ns = making.sampler_ns
            _note(watched.seen, loader, None if kept is not None else times)
            watcher.has_workers(watched.seen, [] if queue is None else queue.pids())
        return iterator

    @unseen
    def step(iterator: Any) -> Any:
        watched = iterator.__dict__.get(MARK)
        if watched is None or os.getpid() != owner:
            return old_next(iterator)
        return watched.step(old_next, iterator)

    notice = partial(_made_by, make)
    back, base.__next__, base._next_index = (
        notice(home.DataLoader), step, _timed_index(old_index, watcher, making),
    )  # fmt: skip
    try:
        with _timed_fetchers(making, watcher), _timed_starts(making), closed_ones_counted():
            yield notice
    finally:
        back()
        base.__next__, base._next_index = old_next, old_index


def _timed_index(old: Callable[[Any], Any], watcher: Watcher, making: _Making) -> Callable[[Any], Any]:
    """What gives the indices of a batch: its time is the sampler's, but for the first batches of an iterator."""
    owner = os.getpid()

    @unseen
    def index(iterator: Any) -> Any:
        watched, begun = iterator.__dict__.get(MARK), time.perf_counter_ns()
        found, shadow = old(iterator), watcher.shadow
        if watched is not None and watched.num_batches and making.found is None:
            watched.seen.gave_indices(time.perf_counter_ns() - begun)
        if making.found is not None:
            making.sampler_ns += time.perf_counter_ns() - begun
        if shadow is not None and shadow.is_over(iterator._dataset) and os.getpid() == owner:
            shadow.took(found)
        return found

    return index


def _names_workers() -> bool:
    """Whether this PyTorch says which worker a batch is from."""
    import torch.utils.data.dataloader as home

    return home._MultiProcessingDataLoaderIter._process_data.__name__ == _OF_WORKER


_OF_WORKER = "process_of_worker"


@contextmanager
def _timed_starts(making: _Making) -> Iterator[None]:
    """Note what a sampler takes to begin, which some do all their work in, and the worker of each batch."""
    import torch.utils.data.dataloader as home

    base, several = cast(Any, home._BaseDataLoaderIter), cast(Any, home._MultiProcessingDataLoaderIter)
    old_init, old_reset, old_process = base.__init__, base._reset, several._process_data

    def timed(old: Callable[..., Any]) -> Callable[..., Any]:
        @unseen
        def begin(iterator: Any, *arguments: Any, **named: Any) -> None:
            begun = time.perf_counter_ns()
            old(iterator, *arguments, **named)
            if making.found is not None:
                making.sampler_ns += time.perf_counter_ns() - begun

        return begin

    @unseen
    def process_of_worker(iterator: Any, data: Any, worker: int) -> Any:
        watched = iterator.__dict__.get(MARK)
        if watched is not None:
            watched.by.append(worker)
        return old_process(iterator, data, worker)

    base.__init__, base._reset = timed(old_init), timed(old_reset)
    if old_process.__code__.co_argcount == NUM_PROCESS:
        several._process_data = process_of_worker
    try:
        yield
    finally:
        base.__init__, base._reset, several._process_data = old_init, old_reset, old_process


@contextmanager
def _timed_fetchers(making: _Making, watcher: Watcher) -> Iterator[None]:
    """Let what makes batches, in this process or in one forked from it, write its spans where its iterator's are."""
    from torch.utils.data import get_worker_info
    from torch.utils.data._utils import fetch as fetching

    fetchers = {kind: kind.fetch for kind in (fetching._MapDatasetFetcher, fetching._IterableDatasetFetcher)}
    old_fetcher = fetching._BaseDatasetFetcher.__init__

    @unseen
    def made(fetcher: Any, *arguments: Any) -> None:
        old_fetcher(fetcher, *arguments)
        if making.found is not None and fetcher.dataset is making.found[2]:
            info = get_worker_info()
            if info is not None and watcher.sampling is not None:
                watcher.sampling.allow()
            ring, times, _ = making.found
            worker = 0 if info is None else info.id
            fetcher._lane, fetcher._sampling = (
                Lane(ring, worker, fetcher.dataset),
                Sampling(times, worker, fetcher.dataset),
            )
            fetcher.collate_fn = fetcher._lane.collating(fetcher.collate_fn)

    def timed(old: Callable[..., Any]) -> Callable[..., Any]:
        @unseen
        def fetch(fetcher: Any, index: Any) -> Any:
            lane = fetcher.__dict__.get("_lane")
            if lane is None:
                return old(fetcher, index)
            return lane.fetch(lambda: fetcher._sampling.take(lambda: old(fetcher, index)))

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
