"""Converted data sets in torch's DataLoader: an iterable data set whose workers each read their own containers.

WebDataset and litdata share this, since both recommend it: worker processes, each with its own part of the
containers and its own shuffle; batches are made in the worker.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from loaderbench.decoders.base import DecodeError, Decoder
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.images.shards import ShardSet
from loaderbench.loaders.base import Batch, LoaderContext, fixed_input_size
from loaderbench.loaders.multiprocess import MultiprocessLoader, Options
from loaderbench.loaders.samples import MOST_REPLACEMENTS, SampleMaker, SpanClock, failure_list, make_decoder
from loaderbench.loaders.torch_dataset import VOID, Payload, arrival, bytes_per_batch
from loaderbench.plain import JsonObject


class Encoded(NamedTuple):
    """A sample as stored in its container."""

    position: int
    """Position in the order of the ShardSet."""
    data: bytes


class ShardDataset(IterableDataset[Payload], ABC):
    """Yields whole batches. Each format implements `samples`; the rest is common to all."""

    def __init__(self, context: LoaderContext, default_decoder: str = "pillow") -> None:
        assert context.shards is not None
        size = fixed_input_size(context)
        self.context = context
        self.shards: ShardSet = context.shards
        self.decoder: Decoder = make_decoder(context, default_decoder)
        self.shape = (size, size)
        self.generation = torch.zeros(1, dtype=torch.int64)
        """Number of the open iterator, odd while it is open; workers end the streams of other iterators."""
        self.span = torch.zeros(2, dtype=torch.int64)
        """First epoch of the open iterator, and how many (-1: endless)."""

    def bytes_per_batch(self) -> int:
        return bytes_per_batch(self.context, self.shape)

    @abstractmethod
    def samples(self, epoch: int, clock: SpanClock) -> Iterator[Encoded]:
        """This worker's part of one epoch, shuffled by (seed, epoch). Adds what it reads to `clock.page_bytes`.

        Raises:
            CaseFailed: a container cannot be read.
        """

    def __iter__(self) -> Iterator[Payload]:
        info = get_worker_info()
        clock = SpanClock(info.id if info is not None else 0)
        maker = SampleMaker(self.context, self.decoder, self.shape, clock)
        live = self.generation.numpy()
        generation, (first, num) = int(live[0]), self.span.tolist()
        if generation % 2 == 0:  # closed before this worker had begun
            clock.close()
            return
        work = _Batches(self.context, maker, clock)
        try:
            epoch = first
            while num < 0 or epoch < first + num:
                begun, num_read = _ReadBegun(clock), 0
                for sample in self.samples(epoch, clock):
                    num_read += 1
                    begun.end()
                    if live[0] != generation:
                        yield VOID._replace(spans=clock.end())  # the reads count, even without a batch
                        return
                    if work.add(sample, epoch):
                        yield work.batch()
                        clock.begin()  # waiting for the next request is not work
                    begun = _ReadBegun(clock)
                if num < 0 and not num_read:
                    raise CaseFailed(
                        f"worker {clock.worker} has no image of {self.shards.files.root}: use fewer --workers, or "
                        "convert with a smaller --shard-images"
                    )
                epoch += 1
            if work.made or work.failures:
                yield work.batch()
        except CaseFailed as error:
            yield VOID._replace(failed=str(error))
        finally:
            clock.close()


class _ReadBegun:
    """A worker asks its container for the next sample."""

    def __init__(self, clock: SpanClock) -> None:
        self._clock, self._queue = clock, clock.queue_of_read()
        self._cpu_ns, self._ns = time.thread_time_ns(), time.perf_counter_ns()
        self._queued_ns = self._queue.ns() if self._queue is not None else 0

    def end(self) -> None:
        """The sample is there."""
        queued_ns = self._queue.ns() - self._queued_ns if self._queue is not None else 0
        took_ns, cpu_ns = time.perf_counter_ns() - self._ns, time.thread_time_ns() - self._cpu_ns
        self._clock.add_read(took_ns, cpu_ns, queued_ns)


class _Batches:
    """The batch that a worker is making."""

    def __init__(self, context: LoaderContext, maker: SampleMaker, clock: SpanClock) -> None:
        self._context, self._maker, self._clock = context, maker, clock
        self._kind = np.float32 if context.output == "float32" else np.uint8
        assert context.shards is not None
        self._original = context.shards.original.tolist()
        self._encoded_bytes = 0
        self.failures: list[tuple[int, str]] = []
        self.made: list[tuple[int, NDArray[Any]]] = []
        clock.begin()

    def add(self, sample: Encoded, epoch: int) -> bool:
        """Make one sample; True where the batch is full. A broken one is left out and counted."""
        assert self._context.input_size is not None
        self._encoded_bytes += len(sample.data)
        pixels = np.empty((self._context.input_size, self._context.input_size, 3), dtype=self._kind)
        try:
            self._maker.make_from(sample.data, self._original[sample.position], epoch, pixels)
        except DecodeError as error:
            self.failures.append((sample.position, str(error)))
            if len(self.failures) >= MOST_REPLACEMENTS and not self.made:
                raise CaseFailed(failure_list(self.failures, len(self.failures), self._context.images)) from error
            return False
        self.made.append((sample.position, pixels))
        return len(self.made) == self._context.batch_size

    def batch(self) -> Payload:
        """The finished samples, stacked by torch's default_collate (in shared memory); then starts an empty batch."""
        begun = time.perf_counter_ns()
        indices = np.array([position for position, _ in self.made], dtype=np.int64)
        side = self._context.input_size
        try:
            stacked = (
                default_collate([torch.from_numpy(pixels) for _, pixels in self.made])
                if self.made
                else (torch.from_numpy(np.empty((0, side, side, 3), dtype=self._kind)))
            )
        except RuntimeError as error:
            raise CaseFailed(
                f"no shared memory for a batch ({str(error).splitlines()[0]}); enlarge /dev/shm (docker: --shm-size), "
                f"or use fewer --workers, a smaller --prefetch or --batch-size"
            ) from error
        targets = torch.from_numpy(self._context.images.labels[indices].astype(np.int64))
        self._clock.collate_ns += time.perf_counter_ns() - begun
        payload = Payload(
            stacked.permute(0, 3, 1, 2), targets, self._encoded_bytes, indices, self._clock.end(), self.failures,
            arrived_ns=arrival(),
        )  # fmt: skip
        self.made, self.failures, self._encoded_bytes = [], [], 0
        return payload


class ShardLoader(MultiprocessLoader):
    """DataLoader over a ShardDataset.

    An endless stream has full batches, and each worker cycles through its own containers, so the workers' epochs drift
    apart. With `num_epochs` one epoch follows the other, and the consumer re-cuts the batches, since each worker ends
    with a smaller one.
    """

    def __init__(self, name: str, dataset: ShardDataset, context: LoaderContext) -> None:
        num_files = len(dataset.shards.files)
        if num_files < context.workers:
            raise ConfigError(
                f"{dataset.shards.files.root} has {num_files} containers, too few for --workers "
                f"{context.workers}: use fewer workers, or convert with a smaller --shard-images"
            )
        dataset.span.share_memory_()  # type: ignore[no-untyped-call]
        super().__init__(Options(), context, dataset)
        self._name = name
        self._shards = dataset

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        if num_epochs is None:
            self._shards.span[:] = torch.tensor([first_epoch, -1])
            yield from super().batches()
            return
        yield from _full_batches(self._epochs(first_epoch, num_epochs), self._context)

    def _epochs(self, first_epoch: int, num_epochs: int) -> Iterator[Batch]:
        for epoch in range(first_epoch, first_epoch + num_epochs):
            self._shards.span[:] = torch.tensor([epoch, 1])
            yield from super().batches()

    def describe(self) -> JsonObject:
        """Facts for the record."""
        return {**super().describe(), "loader": self._name, "num_containers": len(self._shards.shards.files)}


def _full_batches(batches: Iterator[Batch], context: LoaderContext) -> Iterator[Batch]:
    """The same samples in batches of the case's size; the last may be smaller."""
    waiting: list[Batch] = []
    num_waiting = 0
    for batch in batches:
        waiting.append(batch)
        num_waiting += batch.num_samples
        while num_waiting >= context.batch_size:
            joined = _join(waiting)
            yield _cut(joined, 0, context.batch_size, context)
            num_waiting -= context.batch_size
            waiting = [_cut(joined, context.batch_size, joined.num_samples, context)] if num_waiting else []
    if num_waiting:
        yield _join(waiting)


def _join(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    indices = [batch.indices for batch in batches if batch.indices is not None]
    return Batch(
        torch.cat([batch.inputs for batch in batches]).contiguous(memory_format=torch.channels_last),
        torch.cat([batch.targets for batch in batches]),
        sum(batch.num_samples for batch in batches),
        sum(batch.encoded_bytes for batch in batches),
        np.concatenate(indices),
        None,
        tuple(failure for batch in batches for failure in batch.failures),
    )


def _cut(batch: Batch, begin: int, end: int, context: LoaderContext) -> Batch:
    """Samples begin … end; the failures go with the first part."""
    if (begin, end) == (0, batch.num_samples):
        return batch
    assert batch.indices is not None
    indices = batch.indices[begin:end]
    failures = batch.failures if begin == 0 else ()
    broken = [index for index, _ in failures]
    encoded_bytes = int(context.images.sizes[indices].sum() + context.images.sizes[broken].sum())
    return Batch(batch.inputs[begin:end], batch.targets[begin:end], end - begin, encoded_bytes, indices, None, failures)
