"""torchdata's nodes: a graph of iterators whose mapper runs in threads.

Set up as its guide `Migrating to torchdata.nodes from torch.utils.data` does for a map-style data set: a sampler
of batches, a ParallelMapper that makes and collates a whole batch, PinMemory with CUDA, a Prefetcher. Transform,
decoders and order are those of the Python loaders.

The mapper's worker *processes* are not offered: it waits forever for a killed one (`_ParallelMapperIter.__next__`
polls its queue and never looks at the processes), and with JPEGs they made half the throughput of its threads.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from loaderbench import lacking
from loaderbench.loaders.base import Batch, LoaderContext, check_workers
from loaderbench.loaders.order import BatchPlan, plan_batches
from loaderbench.loaders.sample_calls import LibraryLoader, SampleCalls
from loaderbench.loaders.samples import make_decoder
from loaderbench.loaders.torch_dataset import Payload
from loaderbench.plain import JsonObject

try:
    nodes: Any = importlib.import_module("torchdata.nodes")
except lacking.LOAD_ERRORS as error:
    raise lacking.package("torchdata", error, "pip install 'loaderbench[torchdata]'") from error

MAPPER_AHEAD = 2
"""Batches a worker that ParallelMapper keeps in flight (`max_concurrent`, 2 × num_workers, cannot be raised)."""


@dataclass(frozen=True)
class Options:
    """No options."""


class TorchdataLoader(LibraryLoader):
    """`workers` threads of a ParallelMapper; max(workers × prefetch, workers × MAPPER_AHEAD + 1) batches ahead."""

    def __init__(self, context: LoaderContext) -> None:
        super().__init__(context)
        self._decoder = make_decoder(context, "pillow")

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        context = self._context
        calls = SampleCalls(context, self._decoder, self._shape)

        def make_batch(plan: BatchPlan) -> Payload:
            pairs = zip(plan.indices.tolist(), plan.epochs.tolist(), strict=True)
            return calls.collate([calls.sample(index, epoch) for index, epoch in pairs])

        plans = plan_batches(len(context.images), context.batch_size, context.seed, first_epoch, num_epochs)
        mapper = nodes.ParallelMapper(nodes.IterableWrapper(plans), make_batch, num_workers=context.workers)
        chain = [mapper]
        if self._pin:
            chain.append(nodes.PinMemory(mapper))
        further = max(1, context.workers * (context.prefetch - MAPPER_AHEAD))
        chain.append(nodes.Prefetcher(chain[-1], prefetch_factor=further))
        try:
            yield from self._delivered(nodes.Loader(chain[-1]), calls, pin=False)  # a node pins
        finally:
            self._drained = calls.cancel()
            for node in chain:
                _end_threads(node)

    def describe(self) -> JsonObject:
        """Facts for the record."""
        return {
            "loader": "torchdata.nodes",
            "num_workers": self._context.workers,
            "method": "thread",
            "pin_memory": self._pin,
            "decoder": self._decoder.describe(),
        }


def _end_threads(node: Any) -> None:
    """End a node's threads now: else they end only when its iterator is deleted."""
    iterator = getattr(node, "_it", None)
    while iterator is not None:
        if hasattr(iterator, "_shutdown"):
            iterator._shutdown()
        iterator = getattr(iterator, "_it", None)


def build(options: Options, context: LoaderContext) -> TorchdataLoader:
    """Raises ConfigError where there is no thread to work."""
    check_workers("torchdata", context)
    return TorchdataLoader(context)
