"""What the conformance tests build loaders with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench import plugins
from loaderbench.images.index import index_images
from loaderbench.loaders import fetch
from loaderbench.loaders.base import Batch, Loader, LoaderContext

WORKERS = {"serial": 0, "multiprocess": 2, "threaded": 2, "dali": 2, "cached": 2, "synthetic": 0, "fetch": 2}
PYTHON_LOADERS = ("serial", "multiprocess", "threaded")
DECODING_LOADERS = (*PYTHON_LOADERS, "dali")
READING_LOADERS = (*DECODING_LOADERS, "fetch")


def context_for(name: str, tree: Path, **changes: Any) -> LoaderContext:
    values: dict[str, Any] = {
        "images": index_images(str(tree)),
        "batch_size": 8,
        "workers": WORKERS[name],
        "prefetch": 2,
        "decoder": None,
        "input_size": 32,
        "mode": "train",
        "output": "uint8",
        "seed": 0,
        "device": "cpu",
    }
    return LoaderContext(**{**values, **changes})


def build(name: str, context: LoaderContext, **options: Any) -> Loader:
    module = fetch if name == "fetch" else plugins.load("loaders", name)
    loader: Loader = module.build(module.Options(**options), context)
    return loader


@contextmanager
def open_loader(name: str, tree: Path, options: dict[str, Any] | None = None, **changes: Any) -> Iterator[Loader]:
    loader = build(name, context_for(name, tree, **changes), **(options or {}))
    try:
        yield loader
    finally:
        loader.close()


def take(loader: Loader, num_batches: int, first_epoch: int = 0) -> list[Batch]:
    """The first batches of an endless stream; the pixels are copied, since buffers are reused."""
    stream = loader.batches(first_epoch)
    batches = [copied(batch) for batch in islice(stream, num_batches)]
    stream.close()  # type: ignore[attr-defined]
    return batches


def copied(batch: Batch) -> Batch:
    if batch.inputs is not None:
        batch.inputs = batch.inputs.clone()
    return batch


def indices_of(batches: list[Batch]) -> NDArray[np.int64]:
    return np.concatenate([batch.indices for batch in batches if batch.indices is not None])
