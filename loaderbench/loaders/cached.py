"""Decoded batches from memory: as if a job decoded its images once and kept them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import torch

from loaderbench.errors import ConfigError
from loaderbench.loaders.base import Batch, LoaderContext
from loaderbench.loaders.threaded import ThreadedLoader
from loaderbench.plain import JsonObject


@dataclass(frozen=True)
class Options:
    """How much memory the batches may take."""

    budget_mib: int = 1024
    """Batches that do not fit are not served: the epoch is cut to those that do."""


class CachedLoader:
    """Decodes one epoch of whole batches when first iterated, then delivers these again and again.

    The batches keep the order and the crops of that epoch. What does not fit into the budget is left
    out (`describe()` says how many batches are kept). With `num_epochs` the stream has as many samples
    as that many epochs and its last batch is cut; within one epoch each kept sample comes once.
    """

    decodes = False
    owns_transfer = False
    evicts_own_reads = False

    def __init__(self, options: Options, context: LoaderContext) -> None:
        self._context = dataclasses.replace(
            context, workers=max(context.workers, 1), prefetch=max(context.prefetch, 1), evict_after_read=False
        )
        self._source = ThreadedLoader(self._context)
        num_fitting = options.budget_mib * 2**20 // self._source.bytes_per_batch()
        if num_fitting < 1:
            self._source.close()
            raise ConfigError(
                f"a batch of {self._source.bytes_per_batch() / 2**20:.0f} MiB exceeds budget_mib="
                f"{options.budget_mib}; give --loader-option budget_mib=N or a smaller --batch-size"
            )
        self._num_batches = -(-len(context.images) // context.batch_size)
        self._num_kept = min(self._num_batches, num_fitting)
        self._kept: list[Batch] = []

    def _fill(self, first_epoch: int) -> None:
        source = self._source.batches(first_epoch)
        kept = []
        for _ in range(self._num_kept):
            batch = next(source)
            inputs, targets = batch.inputs.clone(memory_format=torch.preserve_format), batch.targets
            if self._context.pin_memory and torch.cuda.is_available():
                inputs = inputs.pin_memory()
            kept.append(dataclasses.replace(batch, inputs=inputs, targets=targets, encoded_bytes=0, spans=None))
        source.close()  # type: ignore[attr-defined]
        self._source.close()
        self._kept = kept

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        if not self._kept:
            self._fill(first_epoch)
        left = None if num_epochs is None else num_epochs * self._samples_per_epoch()
        for number in count():
            batch = self._kept[number % self._num_kept]
            if number >= self._num_kept:
                batch = dataclasses.replace(batch, failures=())
            if left is not None:
                if left <= 0:
                    return
                batch = _first_samples(batch, left)
                left -= batch.num_samples
            yield batch

    def _samples_per_epoch(self) -> int:
        return min(len(self._context.images), self._num_kept * self._context.batch_size)

    def describe(self) -> JsonObject:
        """Facts for the record."""
        return {"loader": "cached", "num_batches": self._num_batches, "num_batches_kept": self._num_kept}

    def close(self) -> None:
        self._source.close()
        self._kept = []


def _first_samples(batch: Batch, num_samples: int) -> Batch:
    if num_samples >= batch.num_samples:
        return batch
    assert batch.indices is not None
    return dataclasses.replace(
        batch,
        inputs=batch.inputs[:num_samples],
        targets=batch.targets[:num_samples],
        indices=batch.indices[:num_samples],
        num_samples=num_samples,
    )


def build(options: Options, context: LoaderContext) -> CachedLoader:
    """Raises ConfigError where not even one batch fits into the budget."""
    return CachedLoader(options, context)
