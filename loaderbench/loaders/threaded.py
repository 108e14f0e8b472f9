"""Threads of this process decode with the GIL released, straight into the slots of reused batch buffers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from loaderbench.decoders.base import Decoder, fastest_installed
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.loaders.base import MAX_STEPS_IN_FLIGHT, SPAN_FIELDS, Batch, LoaderContext, check_workers
from loaderbench.loaders.batch_threads import BatchThreads
from loaderbench.loaders.order import BatchPlan, plan_batches
from loaderbench.loaders.read_ahead import BatchReads, ReadAhead
from loaderbench.loaders.samples import FailureLimit, MadeBatch, SampleMaker, SpanClock, make_decoder, output_shape
from loaderbench.loaders.torch_dataset import TORCH_TYPES, bytes_per_batch
from loaderbench.machine import available_memory_bytes
from loaderbench.plain import JsonObject

MOST_IO_THREADS = 256
"""More would only wait for each other: an NFS mount has at most 128 requests in flight (RPC slots, 64 by default)."""


@dataclass(frozen=True)
class Options:
    """Whether files are read in other threads than they are decoded in."""

    io_threads: int = 0
    """Threads that only read, ahead of the workers, to hide storage latency. 0: each worker reads for itself, which is
    faster on storage with low latency. `--io-threads` sets it."""


@dataclass(frozen=True)
class _Job:
    plan: BatchPlan
    buffer: torch.Tensor
    """[batch_size, H, W, 3]"""
    reads: BatchReads | None


@dataclass(frozen=True)
class _Made:
    buffer: torch.Tensor
    targets: torch.Tensor
    facts: MadeBatch


class _DecodingThread:
    """The work of one thread."""

    def __init__(
        self,
        number: int,
        context: LoaderContext,
        decoder: Decoder,
        shape: tuple[int, int],
        pin: bool,
        abandoned: list[NDArray[np.int64]],
    ) -> None:
        """`abandoned`: receives the span of each batch that was cancelled half-way, since its reads count."""
        torch.set_num_threads(1)  # this thread's own OpenMP setting: one thread a worker, as in DataLoader's workers
        self._pin, self._abandoned = pin, abandoned
        self._clock = SpanClock(number)
        self._maker = SampleMaker(context, decoder, shape, self._clock)

    def __call__(self, job: _Job, is_cancelled: Callable[[], bool]) -> _Made | None:
        self._clock.begin()
        facts = self._maker.fill(job.plan, job.buffer.numpy(), is_cancelled, job.reads)
        if facts is None:
            self._abandoned.append(self._clock.end())
            return None
        targets = torch.from_numpy(facts.targets)
        if self._pin:
            targets = targets.pin_memory()
        facts.spans = self._clock.end()
        return _Made(job.buffer, targets, facts)

    def close(self) -> None:
        self._clock.close()


class ThreadedLoader:
    """`workers` threads, each making one batch at a time; `workers × prefetch` batches ahead at most.

    Memory: workers × prefetch + MAX_STEPS_IN_FLIGHT + 2 buffers of one batch (pinned with CUDA),
    allocated at the first iteration and always reused. Batches are in channels_last order; inputs
    are a view [N, 3, H, W] of the buffer, valid until MAX_STEPS_IN_FLIGHT + 1 further batches have
    been delivered. Collating costs nothing: samples are written directly into the buffer.

    With `io_threads` files are read ahead: at most workers × prefetch batches × 2 · io_threads ÷ workers files (at
    least 2) are held; the stage read is then the time that a worker waits for them.
    """

    decodes = True
    owns_transfer = False
    evicts_own_reads = True

    def __init__(self, context: LoaderContext, io_threads: int = 0) -> None:
        self._context = context
        self._decoder = make_decoder(context, fastest_installed())
        self._shape = output_shape(context)
        self._pin = context.pin_memory and torch.cuda.is_available()
        self._depth = context.workers * context.prefetch
        self._buffers: list[torch.Tensor] = []
        self._recent: deque[torch.Tensor] = deque()
        self._free: deque[torch.Tensor] = deque()
        self._abandoned: list[NDArray[np.int64]] = []
        self._threads: BatchThreads[_Job, _Made] = BatchThreads(context.workers, self._depth, self._begin_work)
        self._read_ahead: ReadAhead | None = None
        if io_threads:
            self._read_ahead = ReadAhead(context, io_threads, max(2, -(-2 * io_threads // context.workers)))
        self.num_readers = io_threads or context.workers
        """Files that are read at once."""
        check_memory(self.num_buffers, self.bytes_per_batch())

    @property
    def num_buffers(self) -> int:
        return self._depth + MAX_STEPS_IN_FLIGHT + 2

    def bytes_per_batch(self) -> int:
        return bytes_per_batch(self._context, self._shape)

    def _begin_work(self, number: int) -> _DecodingThread:
        return _DecodingThread(number, self._context, self._decoder, self._shape, self._pin, self._abandoned)

    def _start(self) -> None:
        if not self._buffers:
            shape = (self._context.batch_size, *self._shape, 3)
            kind = TORCH_TYPES[self._context.output]
            self._buffers = [torch.empty(shape, dtype=kind, pin_memory=self._pin) for _ in range(self.num_buffers)]
        num_torch_threads = torch.get_num_threads()
        try:
            self._threads.start()
            if self._read_ahead is not None:
                self._read_ahead.start()
        except RuntimeError as error:
            raise CaseFailed(
                f"could not start the loader's threads ({error}); use fewer --workers or --io-threads"
            ) from error
        # Threads that start later would inherit the workers' setting: restore it.
        torch.set_num_threads(num_torch_threads)
        kept = {id(buffer) for buffer in self._recent}
        self._free = deque(buffer for buffer in self._buffers if id(buffer) not in kept)

    def _jobs(self, plans: Iterator[BatchPlan]) -> Iterator[_Job]:
        for plan in plans:
            reads = None if self._read_ahead is None else self._read_ahead.ask(plan)
            yield _Job(plan, self._free.popleft(), reads)

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        context = self._context
        limit = FailureLimit(context)
        self._abandoned.clear()
        self._start()
        plans = plan_batches(len(context.images), context.batch_size, context.seed, first_epoch, num_epochs)
        stream = self._threads.stream(self._jobs(plans))
        try:
            for made in stream:
                self._recent.append(made.buffer)
                if len(self._recent) > MAX_STEPS_IN_FLIGHT + 1:
                    self._free.append(self._recent.popleft())
                batch = _to_batch(made)
                limit.add(batch.num_samples, batch.failures)
                yield batch
        finally:
            read_in_vain = 0 if self._read_ahead is None else self._read_ahead.cancel()
            stream.close()  # type: ignore[attr-defined]
            if read_in_vain:
                self._abandoned.append(_unmade_span(read_in_vain))

    def drained_spans(self) -> NDArray[np.int64]:
        """Spans [M, F] of batches that were finished or begun but not delivered when the last iterator was closed."""
        spans = [made.facts.spans for made in self._threads.drained] + self._abandoned
        return np.stack(spans) if spans else np.empty((0, len(SPAN_FIELDS)), dtype=np.int64)

    def describe(self) -> JsonObject:
        """Facts for the record."""
        return {
            "loader": "threads",
            "num_threads": self._context.workers,
            "num_io_threads": 0 if self._read_ahead is None else self.num_readers,
            "num_buffers": self.num_buffers,
            "buffer_bytes": self.num_buffers * self.bytes_per_batch(),
            "pin_memory": self._pin,
            "decoder": self._decoder.describe(),
        }

    def close(self) -> None:
        self._threads.close()
        if self._read_ahead is not None:
            self._read_ahead.close()
        self._buffers = []
        self._free.clear()
        self._recent.clear()


def _unmade_span(page_bytes: int) -> NDArray[np.int64]:
    """The span of files that were read for batches that no worker began: bytes, but no worker's time."""
    unknown = dict.fromkeys(
        ("worker", "runqueue_ns", "major_faults", "minor_faults", "read_cpu_ns", "read_queue_ns"), -1
    )
    values = {**unknown, "page_bytes": page_bytes}
    values["start_ns"] = values["ready_ns"] = time.perf_counter_ns()
    return np.array([values.get(name, 0) for name in SPAN_FIELDS], dtype=np.int64)


def _to_batch(made: _Made) -> Batch:
    facts = made.facts
    num_samples = len(facts.indices)
    inputs = made.buffer[:num_samples].permute(0, 3, 1, 2)
    return Batch(
        inputs, made.targets, num_samples, facts.encoded_bytes, facts.indices, facts.spans, tuple(facts.failures)
    )


def check_memory(num_buffers: int, bytes_per_batch: int) -> None:
    """Raises ConfigError where the buffers do not fit into the memory that is free."""
    needed, (free, _) = num_buffers * bytes_per_batch, available_memory_bytes()
    if free is not None and needed > free:
        raise ConfigError(
            f"{num_buffers} batch buffers need {needed / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB are available; "
            f"use fewer --workers, a smaller --prefetch or a smaller --batch-size"
        )


def build(options: Options, context: LoaderContext) -> ThreadedLoader:
    """Raises ConfigError where there is no thread to work, an impossible number of them, or too little memory."""
    check_workers("threaded", context)
    if not 0 <= options.io_threads <= MOST_IO_THREADS:
        raise ConfigError(f"--io-threads must be from 0 to {MOST_IO_THREADS}, not {options.io_threads}")
    return ThreadedLoader(context, options.io_threads)
