"""Batches that cost nothing: one is made when the loader is built and delivered again and again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from loaderbench.loaders.base import Batch, LoaderContext
from loaderbench.loaders.samples import output_shape
from loaderbench.loaders.torch_dataset import TORCH_TYPES
from loaderbench.plain import JsonObject


@dataclass(frozen=True)
class Options:
    """No options."""


class SyntheticLoader:
    """Random pixels and labels. `workers`, `prefetch` and the data set's order have no effect here."""

    decodes = False
    owns_transfer = False
    evicts_own_reads = False

    def __init__(self, context: LoaderContext) -> None:
        height, width = output_shape(context)
        generator = torch.Generator().manual_seed(context.seed)
        shape = (context.batch_size, height, width, 3)
        if TORCH_TYPES[context.output] is torch.uint8:
            pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        else:
            pixels = torch.randn(shape, generator=generator)
        targets = torch.randint(0, len(context.images.classes), (context.batch_size,), generator=generator)
        self._inputs: Any = pixels.permute(0, 3, 1, 2)
        self._targets: Any = targets
        if context.pin_memory and torch.cuda.is_available():
            self._inputs, self._targets = self._inputs.pin_memory(), targets.pin_memory()
        self._num_images = len(context.images)
        self._batch_size = context.batch_size

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        """As many batches as the data set would give; the last may be smaller where `num_epochs` is given."""
        left = None if num_epochs is None else self._num_images * num_epochs
        for _ in count():
            num_samples = self._batch_size if left is None else min(self._batch_size, left)
            if num_samples == 0:
                return
            yield Batch(self._inputs[:num_samples], self._targets[:num_samples], num_samples, 0)
            if left is not None:
                left -= num_samples

    def describe(self) -> JsonObject:
        """Facts for the record."""
        return {"loader": "synthetic"}

    def close(self) -> None:
        self._inputs = self._targets = None


def build(options: Options, context: LoaderContext) -> SyntheticLoader:
    return SyntheticLoader(context)
