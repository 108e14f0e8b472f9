"""torch's DataLoader without workers: batches are made inside `next()`, in the consuming thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader

from loaderbench.errors import ConfigError
from loaderbench.loaders.base import Batch, LoaderContext
from loaderbench.loaders.samples import FailureLimit
from loaderbench.loaders.torch_dataset import BatchDataset, RequestStream, to_batch
from loaderbench.plain import JsonObject


@dataclass(frozen=True)
class Options:
    """How batches are made."""

    samples: Literal["torchvision", "direct"] = "torchvision"
    """As in the multiprocess loader."""


class SerialLoader:
    """DataLoader with num_workers=0, one thread."""

    decodes = True
    owns_transfer = False
    evicts_own_reads = True

    def __init__(self, options: Options, context: LoaderContext) -> None:
        self._context = context
        self._dataset = BatchDataset(context, "pillow", options.samples)
        self._requests = RequestStream(context)
        pin = context.pin_memory and torch.cuda.is_available()
        self._loader: Any = DataLoader(
            self._dataset,  # type: ignore[arg-type]
            batch_sampler=self._requests,  # type: ignore[arg-type]
            collate_fn=_as_it_is,
            pin_memory=pin,
        )

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        limit = FailureLimit(self._context)
        self._requests.open(0, first_epoch, num_epochs)
        payloads = iter(self._loader)
        while True:
            num_threads = torch.get_num_threads()
            torch.set_num_threads(1)  # resize and normalize in this thread alone; the model gets its threads back
            try:
                payload = next(payloads, None)
            finally:
                torch.set_num_threads(num_threads)
            if payload is None:
                return
            batch = to_batch(payload)
            limit.add(batch.num_samples, batch.failures)
            yield batch

    def describe(self) -> JsonObject:
        """Facts for the record."""
        return {
            "loader": "torch DataLoader",
            "num_workers": 0,
            "samples": self._dataset.samples,
            "decoder": self._dataset.decoder.describe(),
        }

    def close(self) -> None:
        self._dataset.close()


def _as_it_is(payload: Any) -> Any:
    return payload


def build(options: Options, context: LoaderContext) -> SerialLoader:
    """Raises ConfigError where workers were asked for."""
    if context.workers != 0:
        raise ConfigError(
            f"the serial loader has no workers: use --workers 0, or --loader multiprocess for {context.workers}"
        )
    return SerialLoader(options, context)
