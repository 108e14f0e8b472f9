"""The map-style data set that the two loaders on torch's DataLoader share: one item is one whole batch."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from loaderbench.decoders.base import PilDecoder
from loaderbench.errors import CaseFailed
from loaderbench.loaders.base import Batch, LoaderContext
from loaderbench.loaders.order import BatchPlan, plan_batches
from loaderbench.loaders.samples import MadeBatch, SampleMaker, SpanClock, make_decoder, output_shape
from loaderbench.loaders.torchvision_samples import TorchvisionSamples, no_room

TORCH_TYPES = {"float32": torch.float32, "uint8": torch.uint8}


def bytes_per_batch(context: LoaderContext, shape: tuple[int, int]) -> int:
    """Bytes of the pixels of one batch of samples of (height, width) `shape`."""
    return context.batch_size * math.prod(shape) * 3 * TORCH_TYPES[context.output].itemsize


class Request(NamedTuple):
    """What a worker is asked for. Cancelled where `generation` is older than the data set's."""

    generation: int
    plan: BatchPlan


class _Arrival:
    """A number that is only known where the batch arrives: unpickled, it is perf_counter_ns by then."""

    def __reduce__(self) -> tuple[Any, ...]:
        return time.perf_counter_ns, ()


def arrival() -> Any:
    """What a batch's maker puts in place of `Payload.arrived_ns`."""
    return -1 if get_worker_info() is None else _Arrival()


class Payload(NamedTuple):
    """What a worker answers: a named tuple, so that DataLoader's pinning thread finds the tensors in it."""

    inputs: torch.Tensor | None
    targets: torch.Tensor | None
    encoded_bytes: int
    indices: NDArray[np.int64] | None
    spans: NDArray[np.int64] | None
    failures: list[tuple[int, str]]
    failed: str = ""
    """The line of the CaseFailed that ended the batch."""
    reads: bytes = b""
    """What a worker process's read log holds (ReadLog.take_packed); empty within the consumer's process."""
    arrived_ns: int = -1
    """As in Batch."""


VOID = Payload(None, None, 0, None, None, [])
"""The answer to a cancelled request."""


class BatchDataset:
    """Makes whole batches. DataLoader calls `__getitems__` with what the batch sampler yields.

    PIL images become samples and batches as torchvision's users get them, unless `samples` is `direct`. Then, and of
    other decoders' pixels, samples are written straight into the tensor that is handed over. That batch is in
    channels_last order: decoded pixels are interleaved, so no stage has to transpose them, and [N, 3, H, W] is a view.
    """

    def __init__(self, context: LoaderContext, default_decoder: str, samples: str) -> None:
        """`samples`: `torchvision` or `direct`."""
        self.context = context
        self.decoder = make_decoder(context, default_decoder)
        self.samples = samples if isinstance(self.decoder, PilDecoder) else "direct"
        self.shape = output_shape(context)
        self.generation = torch.zeros(1, dtype=torch.int64)
        """Number of the open iterator; workers drop requests of earlier ones."""
        self._maker: SampleMaker | None = None
        self._torchvisions: TorchvisionSamples | None = None
        self._maker_pid = 0

    def bytes_per_batch(self) -> int:
        return bytes_per_batch(self.context, self.shape)

    def __len__(self) -> int:
        return len(self.context.images)

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "_maker": None, "_torchvisions": None}

    def _worker_maker(self) -> SampleMaker:
        if self._maker is None or self._maker_pid != os.getpid():
            info = get_worker_info()
            clock = SpanClock(info.id if info is not None else 0)
            self.own_reads()  # what a forked worker's log holds is the parent's
            self._maker = SampleMaker(self.context, self.decoder, self.shape, clock)
            if self.samples == "torchvision":
                decoder = cast(PilDecoder, self.decoder)
                self._torchvisions = TorchvisionSamples(self.context, decoder, self.shape, clock)
            self._maker_pid = os.getpid()
        return self._maker

    def close(self) -> None:
        """Close what this process's maker holds open."""
        if self._maker is not None and self._maker_pid == os.getpid():
            self._maker.clock.close()
            self._maker = None

    def __getitems__(self, request: Request) -> Payload:
        live = self.generation.numpy()
        if live[0] != request.generation:
            return VOID
        clock = self._worker_maker().clock
        clock.begin()
        try:
            made = self._batch(request.plan, lambda: bool(live[0] != request.generation))
        except CaseFailed as error:
            return VOID._replace(failed=str(error))
        if made is None:
            return VOID._replace(spans=clock.end(), reads=self.own_reads())  # they count, even without a batch
        inputs, batch = made
        targets = torch.from_numpy(batch.targets)
        return Payload(
            inputs, targets, batch.encoded_bytes, batch.indices, clock.end(), batch.failures, reads=self.own_reads(),
            arrived_ns=arrival(),
        )  # fmt: skip

    def _batch(self, plan: BatchPlan, is_cancelled: Callable[[], bool]) -> tuple[torch.Tensor, MadeBatch] | None:
        """The planned samples in one tensor [N, 3, H, W]; None where cancelled."""
        maker = self._worker_maker()
        if self._torchvisions is not None:
            return self._torchvisions.make(plan, is_cancelled)
        begun = time.perf_counter_ns()
        slots = self._allocate(len(plan.indices))
        maker.clock.collate_ns = time.perf_counter_ns() - begun
        made = maker.fill(plan, slots.numpy(), is_cancelled)
        return None if made is None else (slots.permute(0, 3, 1, 2), made)

    def own_reads(self) -> bytes:
        """Takes a worker process's read log; nothing within the consumer's process, whose log the consumer has."""
        return b"" if get_worker_info() is None else self.context.reads.take_packed()

    def _allocate(self, num_samples: int) -> torch.Tensor:
        """An empty [N, H, W, 3] tensor; in shared memory where a worker process makes it, as DataLoader's collate."""
        shape = (num_samples, *self.shape, 3)
        kind = TORCH_TYPES[self.context.output]
        if get_worker_info() is None:
            return torch.empty(shape, dtype=kind)
        num_bytes = math.prod(shape) * kind.itemsize
        try:
            storage = torch.UntypedStorage._new_shared(num_bytes)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise no_room(f"{num_bytes} bytes: {error}") from error
        return torch.empty(0, dtype=kind).set_(storage).view(shape)


class RequestStream:
    """The batch sampler: requests of the open iterator, until it is stopped."""

    def __init__(self, context: LoaderContext) -> None:
        self._context = context
        self._requests: Iterator[Request] = iter(())

    def open(self, generation: int, first_epoch: int, num_epochs: int | None) -> None:
        context = self._context
        plans = plan_batches(len(context.images), context.batch_size, context.seed, first_epoch, num_epochs)
        self._requests = (Request(generation, plan) for plan in plans)

    def stop(self) -> None:
        self._requests = iter(())

    def __iter__(self) -> Iterator[Request]:
        while (request := next(self._requests, None)) is not None:
            yield request


def to_batch(payload: Payload) -> Batch:
    """The delivered form of a finished request.

    Raises:
        CaseFailed: the worker could not finish it.
    """
    if payload.failed:
        raise CaseFailed(payload.failed)
    assert payload.indices is not None
    return Batch(
        payload.inputs,
        payload.targets,
        len(payload.indices),
        payload.encoded_bytes,
        payload.indices,
        payload.spans,
        tuple((int(index), reason) for index, reason in payload.failures),
        payload.arrived_ns,
    )
