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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from loaderbench import lacking
from loaderbench.loaders.base import Batch, LoaderContext, check_workers
from loaderbench.loaders.sample_calls import LibraryLoader, Sample, SampleCalls
from loaderbench.loaders.samples import make_decoder
from loaderbench.plain import JsonObject

try:
    grain: Any = importlib.import_module("grain.python")
except lacking.LOAD_ERRORS as error:
    raise lacking.package("Grain", error, "pip install 'loaderbench[grain]'") from error


@dataclass(frozen=True)
class Options:
    """No options."""


class GrainLoader(LibraryLoader):
    """`workers` reading threads, `workers × prefetch` batches ahead."""

    def __init__(self, context: LoaderContext) -> None:
        super().__init__(context)
        self._decoder = make_decoder(context, "pillow")

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        context = self._context
        num_images = len(context.images)
        calls = SampleCalls(context, self._decoder, self._shape)
        begin = first_epoch * num_images

        def make_sample(position: int, index: int) -> Sample:
            return calls.sample(index, first_epoch + position // num_images)

        end = sys.maxsize // num_images if num_epochs is None else first_epoch + num_epochs
        elements = grain.MapDataset.range(num_images).shuffle(seed=_seed(context.seed)).repeat(end)
        elements = elements[begin:].map_with_index(make_sample)
        elements = elements.batch(context.batch_size, drop_remainder=False, batch_fn=calls.collate)
        options = grain.ReadOptions(
            num_threads=context.workers, prefetch_buffer_size=context.workers * context.prefetch
        )
        iterator = iter(elements.to_iter_dataset(options))
        try:
            yield from self._delivered(iterator, calls, pin=self._pin)
        finally:
            self._drained = calls.cancel()
            iterator.close()

    def describe(self) -> JsonObject:
        """Facts for the record."""
        return {
            "loader": "Grain",
            "version": importlib.import_module("importlib.metadata").version("grain"),
            "num_threads": self._context.workers,
            "prefetch_buffer_size": self._context.workers * self._context.prefetch,
            "decoder": self._decoder.describe(),
        }


def _seed(seed: int) -> int:
    """The seed in 32 bits, which is all that Grain takes."""
    return seed % 2**32


def build(options: Options, context: LoaderContext) -> GrainLoader:
    """Raises ConfigError where there is no thread to work."""
    check_workers("grain", context)
    return GrainLoader(context)
