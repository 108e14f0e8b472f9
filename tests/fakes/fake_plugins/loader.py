"""A loader that makes grey images of the sizes of the files' first bytes: nothing is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from loaderbench.loaders.base import Batch, LoaderContext, check_no_decoder, fixed_input_size
from loaderbench.loaders.order import plan_batches
from loaderbench.loaders.samples import read_file
from loaderbench.plain import JsonObject


@dataclass(frozen=True)
class Options:
    grey: int = 128


class FakeLoader:
    decodes = True
    owns_transfer = False
    evicts_own_reads = False

    def __init__(self, options: Options, context: LoaderContext) -> None:
        check_no_decoder("the fake loader", context)
        self._grey, self._context, self._side = options.grey, context, fixed_input_size(context)

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        context, images = self._context, self._context.images
        for plan in plan_batches(len(images), context.batch_size, context.seed, first_epoch, num_epochs):
            num_bytes = sum(len(read_file(images.path(int(index)))) for index in plan.indices)
            inputs = torch.full((len(plan.indices), 3, self._side, self._side), self._grey, dtype=torch.uint8)
            if context.output == "float32":
                inputs = inputs / 255
            yield Batch(
                inputs, torch.from_numpy(images.labels[plan.indices]).long(), len(inputs), num_bytes, plan.indices
            )

    def describe(self) -> JsonObject:
        return {"loader": "fake", "grey": self._grey}

    def close(self) -> None:
        pass


def build(options: Options, context: LoaderContext) -> FakeLoader:
    return FakeLoader(options, context)
