"""litdata: chunks of samples, streamed by the worker processes of torch's DataLoader.

A StreamingDataset over a local folder (it maps the chunks in place, without a cache of its own) with shuffle. As with
StreamingDataLoader it is told the number of workers, but not the batch size: it would then deal out whole batches, and
some workers would get nothing from a small set. The order is litdata's own, drawn from
(seed, epoch); transform and decoders are those of the Python loaders. A broken image is left out and counted.

Mapped pages cannot be evicted, so a cold run is refused. Reads `loaderbench dataset convert SRC --to litdata`.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loaderbench import lacking
from loaderbench.errors import CaseFailed
from loaderbench.images.shards import ShardSet, check_inside, names_of
from loaderbench.loaders.base import LoaderContext, check_workers
from loaderbench.loaders.samples import SpanClock
from loaderbench.loaders.shard_stream import Encoded, ShardDataset, ShardLoader

os.environ.setdefault("LITDATA_DISABLE_VERSION_CHECK", "1")  # else it would ask a registry for a newer version
try:
    litdata: Any = importlib.import_module("litdata")
except lacking.LOAD_ERRORS as error:
    raise lacking.package("litdata", error, "pip install 'loaderbench[litdata]'") from error

INDEX_FILE = "index.json"


@dataclass(frozen=True)
class Options:
    """No options."""


class _ChunkDataset(ShardDataset):
    def samples(self, epoch: int, clock: SpanClock) -> Iterator[Encoded]:
        shards, context = self.shards, self.context
        root = shards.files.root
        try:
            stream = litdata.StreamingDataset(root, shuffle=True, seed=context.seed % 2**31, drop_last=False)
            stream.set_num_workers(context.workers)
            stream.set_epoch(epoch + 1)
            for item in stream:
                number = int(np.searchsorted(shards.first_key, item["index"], side="right")) - 1
                position = int(shards.first[number] + item["index"] - shards.first_key[number])
                clock.page_bytes += int(shards.samples.sizes[position])
                yield Encoded(position, item["image"])
        except (OSError, RuntimeError, ValueError) as error:  # any error in litdata's threads
            missing = next((path for path in shards.files.paths() if not Path(path).exists()), None)
            if missing is None:
                raise
            raise CaseFailed(f"cannot read {missing}: {error}; the data set vanished during the run") from error


def _complete(shards: ShardSet) -> None:
    """Write the index of a copy of some chunks (the arm `ram`), which lacks one. litdata opens the files that it names.

    Raises:
        ConfigError: it names files outside of the folder.
    """
    path = Path(shards.files.root) / INDEX_FILE
    there = path.exists()
    index = json.loads(path.read_text() if there else shards.side_files[INDEX_FILE])
    check_inside([chunk["filename"] for chunk in index["chunks"]], str(path))
    if there:
        return
    kept = set(names_of(shards.files))
    index["chunks"] = [chunk for chunk in index["chunks"] if chunk["filename"] in kept]
    path.write_text(json.dumps(index))


def build(options: Options, context: LoaderContext) -> ShardLoader:
    """Raises ConfigError where there is no worker, too few chunks, or some outside of the folder."""
    check_workers("litdata", context)
    dataset = _ChunkDataset(context)
    _complete(dataset.shards)
    return ShardLoader("litdata", dataset, context)
