"""The same files in the same order by the same number of readers, not decoded: the arm `fetch`.

Not a loader that users name: it hands over no pixels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.loaders.base import SPAN_FIELDS, Batch, LoaderContext
from loaderbench.loaders.batch_threads import BatchThreads
from loaderbench.loaders.order import BatchPlan, plan_batches
from loaderbench.loaders.samples import MadeBatch, SpanClock, read_file


@dataclass(frozen=True)
class Options:
    """No options."""


def readers_of(loader: Any, lanes: int) -> int:
    """How many files a loader reads at once: its own `num_readers` where it says so, else one for each worker."""
    return int(getattr(loader, "num_readers", lanes))


class _ReadingThread:
    def __init__(self, number: int, context: LoaderContext, abandoned: list[NDArray[np.int64]]) -> None:
        """`abandoned`: gets the span of each batch that was cancelled half-way; what it read counts."""
        self._context, self._abandoned = context, abandoned
        self._clock = SpanClock(number)

    def __call__(self, job: BatchPlan, is_cancelled: Callable[[], bool]) -> MadeBatch | None:
        images = self._context.images
        self._clock.begin()
        begun = time.perf_counter_ns()
        num_bytes = 0
        for index in job.indices.tolist():
            if is_cancelled():
                self._abandoned.append(self._clock.end())
                return None
            size = len(read_file(images.path(index), self._context.evict_after_read))
            num_bytes += size
            self._clock.add_pages(size)
        self._clock.read_ns = time.perf_counter_ns() - begun
        return MadeBatch(job.indices, images.labels[job.indices].astype(np.int64), num_bytes, self._clock.end())

    def close(self) -> None:
        self._clock.close()


class FetchLoader:
    """max(workers, 1) threads that only read, one batch's files after another in each. Batch.inputs is None.

    Reading releases the GIL, so threads stand for processes here.
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
        plans = plan_batches(len(context.images), context.batch_size, context.seed, first_epoch, num_epochs)
        self._abandoned.clear()
        stream = self._threads.stream(plans)
        try:
            for made in stream:
                yield Batch(None, None, len(made.indices), made.encoded_bytes, made.indices, made.spans)
        finally:
            stream.close()  # type: ignore[attr-defined]

    def drained_spans(self) -> NDArray[np.int64]:
        """Spans [M, F] of batches that were read, wholly or in part, but not delivered when the iterator was closed."""
        spans = [made.spans for made in self._threads.drained] + self._abandoned
        return np.stack(spans) if spans else np.empty((0, len(SPAN_FIELDS)), dtype=np.int64)

    def describe(self) -> dict[str, Any]:
        """Facts for the record."""
        return {"loader": "fetch", "num_readers": max(self._context.workers, 1)}

    def close(self) -> None:
        self._threads.close()


def build(options: Options, context: LoaderContext) -> FetchLoader:
    return FetchLoader(context)
