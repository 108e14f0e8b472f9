"""Hugging Face datasets: an Arrow table of image paths with a transform on access, in torch's DataLoader.

Set up as its image guide does for local files: a column of paths cast to Image, `with_transform`, DataLoader. The
column is cast with `decode=False`, so that the case's decoder decodes; by default it would be Pillow. Order,
transform, broken images and the workers are those of the multiprocess loader.
"""

from __future__ import annotations

import importlib
import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate

from loaderbench import lacking
from loaderbench.decoders.base import DecodeError
from loaderbench.errors import CaseFailed
from loaderbench.loaders.base import LoaderContext, check_workers
from loaderbench.loaders.multiprocess import MultiprocessLoader
from loaderbench.loaders.multiprocess import Options as WorkerOptions
from loaderbench.loaders.order import BatchPlan
from loaderbench.loaders.samples import read_image
from loaderbench.loaders.torch_dataset import VOID, BatchDataset, Payload, Request, arrival
from loaderbench.plain import JsonObject

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # local files need no hub
try:
    importlib.import_module("datasets.arrow_dataset")  # a folder named `datasets` would be found as a package, too
    datasets: Any = importlib.import_module("datasets")
except lacking.LOAD_ERRORS as error:
    raise lacking.package("Hugging Face datasets", error, "pip install 'loaderbench[hf-datasets]'") from error


@dataclass(frozen=True)
class Options:
    """No options."""


class _TableDataset(BatchDataset):
    """One item is a batch of the table's rows, transformed."""

    def __init__(self, context: LoaderContext) -> None:
        super().__init__(context, "pillow", "direct")
        images = context.images
        columns = {"image": list(images.paths()), "label": images.labels, "index": np.arange(len(images))}
        table = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image(decode=False))
        self._rows = table.with_transform(self._transform)
        self._kind = np.float32 if context.output == "float32" else np.uint8
        self._epochs: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._failures: list[tuple[int, str]] = []
        self._encoded_bytes = 0
        self._generation = 0

    def _transform(self, rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """What `with_transform` calls with the columns of a batch."""
        made = [self._make(index, epoch) for index, epoch in zip(rows["index"], self._epochs.tolist(), strict=True)]
        return {"pixels": [torch.from_numpy(pixels) for pixels, _ in made], "index": [index for _, index in made]}

    def _make(self, index: int, epoch: int) -> tuple[NDArray[Any], int]:
        """The picture of a row and its index, or of the next image that can be decoded."""
        if self._is_void():
            raise _Cancelled
        maker = self._worker_maker()
        pixels = np.empty((*self.shape, 3), dtype=self._kind)
        encoded = read_image(self.context, index, maker.clock)
        maker.clock.add_pages(len(encoded))
        self._encoded_bytes += len(encoded)
        try:
            maker.make_from(encoded, index, epoch, pixels)
        except DecodeError as error:
            self._failures.append((index, str(error)))
        else:
            return pixels, index
        following = (index + 1) % len(self.context.images)
        made = maker.fill(BatchPlan(np.array([following]), np.array([epoch])), pixels[None])
        assert made is not None
        self._failures += made.failures
        self._encoded_bytes += made.encoded_bytes
        return pixels, int(made.indices[0])

    def _is_void(self) -> bool:
        return int(self.generation.numpy()[0]) != self._generation

    def __getitems__(self, request: Request) -> Payload:
        self._generation = request.generation
        if self._is_void():
            return VOID
        clock = self._worker_maker().clock
        clock.begin()
        self._failures, self._encoded_bytes, self._epochs = [], 0, request.plan.epochs
        try:
            rows = self._rows.__getitems__(request.plan.indices.tolist())
        except CaseFailed as error:
            return VOID._replace(failed=str(error))
        except _Cancelled:
            return VOID._replace(spans=clock.end(), reads=self.own_reads())  # they count, even without a batch
        begun = time.perf_counter_ns()
        indices = np.array([row["index"] for row in rows], dtype=np.int64)
        inputs = default_collate([row["pixels"] for row in rows]).permute(0, 3, 1, 2)
        targets = torch.from_numpy(self.context.images.labels[indices].astype(np.int64))
        clock.collate_ns += time.perf_counter_ns() - begun
        return Payload(
            inputs, targets, self._encoded_bytes, indices, clock.end(), self._failures, reads=self.own_reads(),
            arrived_ns=arrival(),
        )  # fmt: skip


class _Cancelled(Exception):
    """The stream was closed while the batch was being made."""


class HfDatasetsLoader(MultiprocessLoader):
    """DataLoader over a `datasets.Dataset`."""

    def __init__(self, context: LoaderContext) -> None:
        super().__init__(WorkerOptions(), context, _TableDataset(context))

    def describe(self) -> JsonObject:
        """Facts for the record."""
        return {**super().describe(), "loader": "Hugging Face datasets", "version": datasets.__version__}


def build(options: Options, context: LoaderContext) -> HfDatasetsLoader:
    """Raises ConfigError where there is no worker."""
    check_workers("hf-datasets", context)
    return HfDatasetsLoader(context)
