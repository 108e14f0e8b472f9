"""What the conformance tests build loaders with."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loaderbench import plugins
from loaderbench.images.convert import convert_dataset
from loaderbench.images.shards import folder_inside, open_data_set, record_of
from loaderbench.loaders import fetch
from loaderbench.loaders.base import Batch, Loader, LoaderContext

WORKERS = {
    "serial": 0,
    "multiprocess": 2,
    "threaded": 2,
    "dali": 2,
    "cached": 2,
    "synthetic": 0,
    "fetch": 2,
    "torchdata": 2,
    "grain": 2,
    "spdl": 2,
    "hf-datasets": 2,
    "webdataset": 2,
    "litdata": 2,
    "ffcv": 2,
    "ray": 2,
    "tf-data": 2,
    "plain": 2,
}
PACKAGES = {
    "dali": "nvidia.dali",
    "torchdata": "torchdata.nodes",
    "grain": "grain.python",
    "spdl": "spdl.io",
    "hf-datasets": "datasets.arrow_dataset",
    "webdataset": "webdataset",
    "litdata": "litdata",
    "ffcv": "ffcv.loader",
    "ray": "ray.data",
    "tf-data": "tensorflow",
}
"""What a loader needs beside loaderbench's own dependencies; without it its tests are skipped."""
FORMATS = {"webdataset": "wds", "litdata": "litdata", "ffcv": "ffcv"}
"""Of the loaders that read converted images."""
SHARD_LOADERS = ("webdataset", "litdata")
"""Those whose workers have containers of their own."""
PYTHON_LOADERS = ("serial", "multiprocess", "threaded", "plain", "torchdata", "grain", "hf-datasets")
"""Those that read a tree and decode with a decoder of ours; `plain` is the example of the documentation."""
SAME_ORDER_LOADERS = tuple(name for name in PYTHON_LOADERS if name != "grain")
TREE_LOADERS = (*PYTHON_LOADERS, "spdl", "dali", "tf-data")
DECODING_LOADERS = (*TREE_LOADERS, *FORMATS)
READING_LOADERS = (*DECODING_LOADERS, "fetch")


def need(name: str) -> None:
    """Skip the test where the loader's package is missing."""
    reason = f"{PACKAGES[name]} is not installed: pip install 'loaderbench[{name}]'"
    pytest.importorskip(PACKAGES[name], reason=reason)


def installed(name: str) -> bool:
    try:
        return name not in PACKAGES or find_spec(PACKAGES[name]) is not None
    except ImportError:
        return False


def context_for(name: str, tree: Path, **changes: Any) -> LoaderContext:
    if name in FORMATS and record_of(folder_inside(tree, FORMATS[name])) is None:
        convert_dataset(tree, FORMATS[name], shard_images=6 if name in SHARD_LOADERS else None, processes=1)
    data = open_data_set(str(tree), FORMATS.get(name))
    values: dict[str, Any] = {
        "images": data.images,
        "shards": data.shards,
        "batch_size": 8,
        "workers": WORKERS[name],
        "prefetch": 2,
        "decoder": None,
        "input_size": 32,
        "mode": "train",
        "output": "uint8",
        "seed": 0,
    }
    return LoaderContext(**{**values, **changes})


def build(name: str, context: LoaderContext, **options: Any) -> Loader:
    if name == "plain":
        module = importlib.import_module("plain_loader.loader")
    else:
        module = fetch if name == "fetch" else plugins.LOADERS.load(name)
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
