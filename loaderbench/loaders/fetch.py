"""Reads the same files in the same order with the same number of readers, without decoding: the arm `fetch`.

Containers are read as their loaders do: in shuffled order, each from start to end, a batch's share at a time.
Users cannot choose this loader: it delivers no pixels.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.errors import CaseFailed
from loaderbench.images.shards import ShardSet
from loaderbench.loaders.base import SPAN_FIELDS, Batch, LoaderContext
from loaderbench.loaders.batch_threads import BatchThreads
from loaderbench.loaders.order import BatchPlan, epoch_order, plan_batches
from loaderbench.loaders.samples import MadeBatch, SpanClock, read_image
from loaderbench.plain import JsonObject


@dataclass(frozen=True)
class Options:
    """No options."""


def readers_of(loader: Any, lanes: int) -> int:
    """How many files a loader reads at once: its `num_readers` if it has that attribute, else one for each worker."""
    return int(getattr(loader, "num_readers", lanes))


class _ReadingThread:
    def __init__(self, number: int, context: LoaderContext, abandoned: list[NDArray[np.int64]]) -> None:
        """`abandoned`: receives the span of each batch that was cancelled half-way, since its reads count."""
        self._context, self._abandoned = context, abandoned
        self._clock = SpanClock(number)

    def __call__(self, job: BatchPlan, is_cancelled: Callable[[], bool]) -> MadeBatch | None:
        images = self._context.images
        self._clock.begin()
        begun, begun_cpu, begun_queue = time.perf_counter_ns(), time.thread_time_ns(), self._clock.queue.ns()
        num_bytes = 0
        for size in self._read(job):
            num_bytes += size
            self._clock.add_pages(size)
            if is_cancelled():
                self._abandoned.append(self._clock.end())
                return None
        self._clock.read_queue_ns = self._clock.queue.ns() - begun_queue
        self._clock.read_ns = time.perf_counter_ns() - begun
        self._clock.read_cpu_ns = time.thread_time_ns() - begun_cpu
        return MadeBatch(job.indices, images.labels[job.indices].astype(np.int64), num_bytes, self._clock.end())

    def _read(self, job: BatchPlan) -> Iterator[int]:
        """Read what the batch needs. Yields the bytes of each part that was read."""
        context = self._context
        if context.shards is None:
            for index in job.indices.tolist():
                yield len(read_image(context, index))
            return
        for number, begin, end in _parts(context.shards, job.indices):
            yield from _read_part(context, number, begin, end)

    def close(self) -> None:
        self._clock.close()


READ_BYTES = 1 << 20
"""Bytes of a container that are read at a time."""


def _parts(shards: ShardSet, indices: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """(container, first byte, last byte + 1) of samples that are contiguous: their share of the container's bytes."""
    numbers = np.searchsorted(shards.first, indices, side="right") - 1
    cuts = np.flatnonzero((np.diff(numbers) != 0) | (np.diff(indices) != 1)) + 1
    for run in np.split(indices, cuts):
        number = int(np.searchsorted(shards.first, run[0], side="right") - 1)
        first, size = int(shards.first[number]), int(shards.files.sizes[number])
        num_samples = int(shards.first[number + 1]) - first
        begin, end = int(run[0]) - first, int(run[-1]) + 1 - first
        yield number, size * begin // num_samples, size * end // num_samples


def _read_part(context: LoaderContext, number: int, begin: int, end: int) -> Iterator[int]:
    assert context.shards is not None
    path, evict, first = context.shards.files.path(number), context.evict_after_read, begin
    begun = time.perf_counter_ns()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        opened = time.perf_counter_ns()
        try:
            while begin < end and (got := len(os.pread(descriptor, min(READ_BYTES, end - begin), begin))):
                if evict:
                    os.posix_fadvise(descriptor, begin, got, os.POSIX_FADV_DONTNEED)
                begin += got
                yield got
        finally:
            os.close(descriptor)
        context.reads.add(number, begun, opened, time.perf_counter_ns(), begin - first)
    except OSError as error:
        raise CaseFailed(
            f"cannot read {path}: {error.strerror}; the data set vanished or its storage failed"
        ) from error


def _plan_containers(
    shards: ShardSet, batch_size: int, seed: int, first_epoch: int, num_epochs: int | None
) -> Iterator[BatchPlan]:
    """Batches of the samples of one container after the other, the containers in shuffled order."""
    waiting = BatchPlan(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    epoch = first_epoch
    while num_epochs is None or epoch < first_epoch + num_epochs:
        for number in epoch_order(len(shards.files), seed, epoch).tolist():
            more = np.arange(shards.first[number], shards.first[number + 1])
            indices = np.concatenate([waiting.indices, more])
            epochs = np.concatenate([waiting.epochs, np.full(len(more), epoch, dtype=np.int64)])
            while len(indices) >= batch_size:
                yield BatchPlan(indices[:batch_size], epochs[:batch_size])
                indices, epochs = indices[batch_size:], epochs[batch_size:]
            waiting = BatchPlan(indices, epochs)
        epoch += 1
    if len(waiting.indices):
        yield waiting


class FetchLoader:
    """max(workers, 1) threads that only read, one batch's files after another in each. Batch.inputs is None.

    Reading releases the GIL, so threads serve as well as processes here.
    """

    decodes = False
    owns_transfer = False
    evicts_own_reads = True

    def __init__(self, context: LoaderContext) -> None:
        self._context = context
        num_readers = max(context.workers, 1)
        self._abandoned: list[NDArray[np.int64]] = []
        self._threads: BatchThreads[BatchPlan, MadeBatch] = BatchThreads(
            num_readers,
            num_readers * max(context.prefetch, 1),
            lambda number: _ReadingThread(number, context, self._abandoned),
        )

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        context = self._context
        if context.shards is None:
            plans = plan_batches(len(context.images), context.batch_size, context.seed, first_epoch, num_epochs)
        else:
            plans = _plan_containers(context.shards, context.batch_size, context.seed, first_epoch, num_epochs)
        self._abandoned.clear()
        stream = self._threads.stream(plans)
        try:
            for made in stream:
                yield Batch(None, None, len(made.indices), made.encoded_bytes, made.indices, made.spans)
        finally:
            stream.close()  # type: ignore[attr-defined]

    def drained_spans(self) -> NDArray[np.int64]:
        """Spans [M, F] of batches that were read, fully or in part, but not delivered when the iterator was closed."""
        spans = [made.spans for made in self._threads.drained] + self._abandoned
        return np.stack(spans) if spans else np.empty((0, len(SPAN_FIELDS)), dtype=np.int64)

    def describe(self) -> JsonObject:
        """Facts for the record."""
        return {"loader": "fetch", "num_readers": max(self._context.workers, 1)}

    def close(self) -> None:
        self._threads.close()


def build(options: Options, context: LoaderContext) -> FetchLoader:
    return FetchLoader(context)
