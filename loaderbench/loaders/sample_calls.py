"""Functions that we pass to another library, which calls them from its own threads: for one sample, or for a batch."""

from __future__ import annotations

import atexit
import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loaderbench.decoders.base import Decoder
from loaderbench.errors import CaseFailed
from loaderbench.loaders.base import SPAN_FIELDS, Batch, LoaderContext
from loaderbench.loaders.order import BatchPlan
from loaderbench.loaders.samples import FailureLimit, SampleMaker, SpanClock, output_shape
from loaderbench.loaders.torch_dataset import VOID, Payload, to_batch


class LibraryThreads:
    """What our functions know about the threads in which a library calls them, for one stream.

    A thread begins a batch, works, and ends it. `cancel` ends the stream, whatever the library has queued.
    """

    def __init__(self) -> None:
        self.cancelled = False
        self._local = threading.local()
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._num_at_work = 0
        self._undelivered: dict[tuple[int, int], NDArray[np.int64]] = {}
        atexit.register(self.cancel)  # else the interpreter would stop the threads at any point of their work

    def clock(self) -> SpanClock:
        """The clock of the calling thread."""
        clock: SpanClock | None = getattr(self._local, "clock", None)
        if clock is None:
            torch.set_num_threads(1)  # this thread's own setting: one thread a worker, as in DataLoader's workers
            clock = self._local.clock = SpanClock(next(self._numbers))
        return clock

    @property
    def at_work(self) -> bool:
        """Whether the calling thread has begun a batch."""
        return bool(getattr(self._local, "at_work", False))

    def begin(self) -> bool:
        """Begin a batch in this thread; False where the stream has ended."""
        clock = self.clock()
        with self._changed:
            if self.cancelled:
                return False
            self._num_at_work += 1
        self._local.at_work = True
        clock.begin()
        return True

    def end(self) -> NDArray[np.int64] | None:
        """End this thread's batch. Returns its span, None where there is none."""
        if not self.at_work:
            return None
        self._local.at_work = False
        span = self.clock().end()
        with self._changed:
            self._undelivered[_key(span)] = span
            self._num_at_work -= 1
            self._changed.notify_all()
        return span

    def delivered(self, payload: Payload) -> Payload:
        """The consumer calls this with each payload that it takes."""
        if payload.spans is not None:
            self._undelivered.pop(_key(payload.spans), None)
        return payload

    def cancel(self) -> NDArray[np.int64]:
        """End all work: returns when no thread works on a batch, and none will begin another.

        Returns the spans [M, F] of batches that were made or begun, and not delivered.
        """
        atexit.unregister(self.cancel)
        with self._changed:
            self.cancelled = True
            while self._num_at_work:
                self._changed.wait()
            spans = list(self._undelivered.values())
            self._undelivered.clear()
        return np.stack(spans) if spans else no_spans()


class LibraryLoader:
    """What the loaders over a library's threads share; each has its own `batches`."""

    decodes = True
    owns_transfer = False
    evicts_own_reads = True

    def __init__(self, context: LoaderContext) -> None:
        self._context = context
        self._shape = output_shape(context)
        self._pin = context.pin_memory and torch.cuda.is_available()
        self._num_torch_threads = torch.get_num_threads()
        self._drained = no_spans()

    def _delivered(self, payloads: Iterable[Payload], threads: LibraryThreads, *, pin: bool) -> Iterator[Batch]:
        """The library's payloads as batches. `pin`: pin them here, since the library does not."""
        limit = FailureLimit(self._context)
        for payload in payloads:
            # Threads that start later inherit this setting: restore it.
            torch.set_num_threads(self._num_torch_threads)
            batch = to_batch(threads.delivered(payload))
            limit.add(batch.num_samples, batch.failures)
            if pin:
                batch.inputs, batch.targets = batch.inputs.pin_memory(), batch.targets.pin_memory()
            yield batch

    def drained_spans(self) -> NDArray[np.int64]:
        """Spans [M, F] of batches that were finished or begun but not delivered when the last iterator was closed."""
        return self._drained

    def close(self) -> None:
        """Nothing to end: a stream's threads end with the stream."""


def _key(span: NDArray[np.int64]) -> tuple[int, int]:
    """Worker and start: no worker begins two batches at once."""
    return int(span[0]), int(span[1])


def no_spans() -> NDArray[np.int64]:
    return np.empty((0, len(SPAN_FIELDS)), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished image."""

    pixels: NDArray[Any]
    """[H, W, 3], float32 or uint8."""
    index: int
    """Index of the image that was decoded: not the requested one where that is broken."""
    encoded_bytes: int
    failures: tuple[tuple[int, str], ...]
    failed: str = ""
    """The line of the CaseFailed that ended it; the pixels are empty then."""


class SampleCalls(LibraryThreads):
    """The functions of one stream: `sample` for each image, `collate` for those of a batch, both in one thread.

    Nothing is raised into the library, whose own reports of an exception span dozens of lines: a failure travels
    with the sample and ends the case in the consumer.
    """

    def __init__(self, context: LoaderContext, decoder: Decoder, shape: tuple[int, int]) -> None:
        super().__init__()
        self._context, self._decoder, self._shape = context, decoder, shape
        self._kind = np.float32 if context.output == "float32" else np.uint8
        self._empty = np.empty((0, 0, 3), dtype=self._kind)

    def _maker(self) -> SampleMaker:
        maker: SampleMaker | None = getattr(self._local, "maker", None)
        if maker is None:
            maker = self._local.maker = SampleMaker(self._context, self._decoder, self._shape, self.clock())
        return maker

    def sample(self, index: int, epoch: int) -> Sample:
        """Read, decode and transform image `index`, as the Python loaders do. The first one begins a batch."""
        if self.cancelled or not (self.at_work or self.begin()):
            return Sample(self._empty, index, 0, (), "cancelled")
        try:
            pixels = np.empty((*self._shape, 3), dtype=self._kind)
            plan = BatchPlan(np.array([index], dtype=np.int64), np.array([epoch], dtype=np.int64))
            made = self._maker().fill(plan, pixels[None])
        except CaseFailed as error:
            return Sample(self._empty, index, 0, (), str(error))
        except BaseException:
            self.end()
            raise
        assert made is not None
        return Sample(pixels, int(made.indices[0]), made.encoded_bytes, tuple(made.failures))

    def collate(self, samples: Sequence[Sample]) -> Payload:
        """The batch of samples that this thread made since its last one, stacked as torch's default_collate does."""
        try:
            return self._collate(samples)
        except BaseException:
            self.end()
            raise

    def _collate(self, samples: Sequence[Sample]) -> Payload:
        begun = time.perf_counter_ns()
        failed = next((one.failed for one in samples if one.failed), "")
        if failed:
            payload = VOID._replace(failed=failed)
        else:
            indices = np.array([one.index for one in samples], dtype=np.int64)
            payload = Payload(
                torch.stack([torch.from_numpy(one.pixels) for one in samples]).permute(0, 3, 1, 2),
                torch.from_numpy(self._context.images.labels[indices].astype(np.int64)),
                sum(one.encoded_bytes for one in samples),
                indices,
                None,
                [failure for one in samples for failure in one.failures],
            )
        self.clock().collate_ns += time.perf_counter_ns() - begun
        return payload._replace(spans=self.end())
