"""Grain: a lazily transformed MapDataset whose elements are made in the threads of an iterator.

Set up as its tutorial does: source, shuffle, repeat, map, batch, `to_iter_dataset`. An element is a whole batch, made
by one of `num_threads` threads. Transform and decoders are those of the Python loaders; the order of an epoch is
Grain's own shuffle of (seed, epoch).

The worker processes of `mp_prefetch` are not offered: the decoders release the GIL, and a batch from a process would
be copied once more.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loaderbench.errors import UnavailableError
from loaderbench.loaders.base import Batch, LoaderContext, check_workers
from loaderbench.loaders.sample_calls import Sample, SampleCalls, no_spans
from loaderbench.loaders.samples import FailureLimit, make_decoder, output_shape
from loaderbench.loaders.torch_dataset import Payload, to_batch

try:
    grain: Any = importlib.import_module("grain.python")
except ImportError as error:
    raise UnavailableError(f"Grain is not installed ({error}); pip install 'loaderbench[grain]'") from error


@dataclass(frozen=True)
class Options:
    """No options."""


class GrainLoader:
    """`workers` reading threads, `workers × prefetch` batches ahead."""

    decodes = True
    owns_transfer = False
    evicts_own_reads = True

    def __init__(self, context: LoaderContext) -> None:
        self._context = context
        self._decoder = make_decoder(context, "pillow")
        self._shape = output_shape(context)
        self._pin = context.pin_memory and torch.cuda.is_available()
        self._drained = no_spans()

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        context = self._context
        num_images = len(context.images)
        limit = FailureLimit(context)
        calls = SampleCalls(context, self._decoder, self._shape)
        begin = first_epoch * num_images

        def make_sample(position: int, index: int) -> Sample:
            return calls.sample(index, first_epoch + position // num_images)

        def make_batch(samples: Sequence[Sample]) -> Payload:
            return calls.collate(samples)

        end = sys.maxsize // num_images if num_epochs is None else first_epoch + num_epochs
        elements = grain.MapDataset.range(num_images).shuffle(seed=_seed(context.seed)).repeat(end)
        elements = elements[begin:].map_with_index(make_sample)
        elements = elements.batch(context.batch_size, drop_remainder=False, batch_fn=make_batch)
        options = grain.ReadOptions(
            num_threads=context.workers, prefetch_buffer_size=context.workers * context.prefetch
        )
        iterator = iter(elements.to_iter_dataset(options))
        num_torch_threads = torch.get_num_threads()
        try:
            for payload in iterator:
                # A thread's setting is also what threads born later begin with: put it back.
                torch.set_num_threads(num_torch_threads)
                batch = to_batch(calls.delivered(payload))
                limit.add(batch.num_samples, batch.failures)
                if self._pin:
                    batch.inputs, batch.targets = batch.inputs.pin_memory(), batch.targets.pin_memory()
                yield batch
        finally:
            self._drained = calls.cancel()
            iterator.close()

    def drained_spans(self) -> NDArray[np.int64]:
        """Spans [M, F] of batches that were finished or begun but not delivered when the last iterator was closed."""
        return self._drained

    def describe(self) -> dict[str, Any]:
        """Facts for the record."""
        return {
            "loader": "Grain",
            "version": importlib.import_module("importlib.metadata").version("grain"),
            "num_threads": self._context.workers,
            "prefetch_buffer_size": self._context.workers * self._context.prefetch,
            "decoder": self._decoder.describe(),
        }

    def close(self) -> None:
        """Nothing to end: a stream's threads end with it."""


def _seed(seed: int) -> int:
    """Grain takes 32 bits."""
    return seed % 2**32


def build(options: Options, context: LoaderContext) -> GrainLoader:
    """Raises ConfigError where there is no thread to work."""
    check_workers("grain", context)
    return GrainLoader(context)
