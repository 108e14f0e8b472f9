"""A loader in one file: decodes with Pillow in the calling thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from loaderbench.errors import CaseFailed
from loaderbench.loaders.base import Batch, LoaderContext


@dataclass(frozen=True)
class Options:
    """No options."""


class PlainLoader:
    """Resizes every image to the input size; no augmentation."""

    decodes = True
    owns_transfer = False
    evicts_own_reads = False

    def __init__(self, context: LoaderContext) -> None:
        self._context = context
        self._side = context.input_size or 224

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        waiting: list[int] = []
        epoch = first_epoch
        while num_epochs is None or epoch < first_epoch + num_epochs:
            rng = np.random.default_rng([self._context.seed, epoch])
            for index in rng.permutation(len(self._context.images)):
                waiting.append(int(index))
                if len(waiting) == self._context.batch_size:
                    yield self._make(waiting)
                    waiting = []
            epoch += 1
        if waiting:
            yield self._make(waiting)

    def _make(self, indices: list[int]) -> Batch:
        images = self._context.images
        pixels = np.stack([self._decode(images.path(index)) for index in indices])
        inputs = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        if self._context.output == "float32":
            inputs = inputs.float() / 255
        targets = torch.from_numpy(images.labels[indices].astype(np.int64))
        return Batch(inputs, targets, len(indices), int(images.sizes[indices].sum()), np.array(indices))

    def _decode(self, path: str) -> np.ndarray:
        try:
            with Image.open(path) as image:
                return np.asarray(image.convert("RGB").resize((self._side, self._side)))
        except OSError as error:
            raise CaseFailed(f"cannot decode {path}: {error}") from error

    def close(self) -> None:
        """Nothing to end."""


def build(options: Options, context: LoaderContext) -> PlainLoader:
    return PlainLoader(context)
