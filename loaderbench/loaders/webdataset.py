"""WebDataset: tar shards, read from start to end by the worker processes of torch's DataLoader.

Set up as its documentation does: the list of shards is shuffled and split between the workers, the samples of a
worker go through a shuffle buffer. The order is WebDataset's own, drawn from (seed, epoch); transform and decoders
are those of the Python loaders. A broken image is left out and counted (its neighbour does not replace it).

Reads `loaderbench dataset convert SRC --to wds`.
"""

from __future__ import annotations

import importlib
import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loaderbench import lacking
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.loaders.base import LoaderContext, check_workers
from loaderbench.loaders.samples import SpanClock
from loaderbench.loaders.shard_stream import Encoded, ShardDataset, ShardLoader

try:
    wds: Any = importlib.import_module("webdataset")
except lacking.LOAD_ERRORS as error:
    raise lacking.package("WebDataset", error, "pip install 'loaderbench[webdataset]'") from error

EVICT_BYTES = 1 << 20
"""The reader drops pages that it has read in steps of this many bytes."""
READ_BYTES = 1 << 20
"""Bytes of one read call; the library's own `gopen` buffers a pipe like this. A small buffer costs system calls."""


@dataclass(frozen=True)
class Options:
    """How the samples of a worker are shuffled."""

    shuffle_buffer: int = 1000
    """Encoded samples that each worker holds, from which it draws the next one."""


class _Shard(io.RawIOBase):
    """A shard being read: reports its reads to the clock, and in a cold run drops the pages that it has read."""

    def __init__(self, path: str, clock: SpanClock, evict: bool) -> None:
        super().__init__()
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._clock, self._evict = clock, evict
        self._read = self._dropped = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        got = os.readv(self._fd, [buffer])
        self._read += got
        self._clock.page_bytes += got
        if self._evict and (self._read - self._dropped >= EVICT_BYTES or not got):
            os.posix_fadvise(self._fd, self._dropped, self._read - self._dropped, os.POSIX_FADV_DONTNEED)
            self._dropped = self._read
        return got

    def close(self) -> None:
        if not self.closed:
            if self._evict:
                os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(self._fd)
        super().close()


class _TarDataset(ShardDataset):
    def __init__(self, options: Options, context: LoaderContext) -> None:
        super().__init__(context)
        self._options = options

    def samples(self, epoch: int, clock: SpanClock) -> Iterator[Encoded]:
        shards, seed = self.shards, self.context.seed
        numbers = {path: number for number, path in enumerate(shards.files.paths())}
        num_expected = num_read = 0

        def opened(sources: Iterator[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
            nonlocal num_expected
            for source in sources:
                number = numbers[source["url"]]
                num_expected += int(shards.first[number + 1] - shards.first[number])
                try:
                    shard = _Shard(source["url"], clock, self.context.evict_after_read)
                except OSError as error:
                    raise CaseFailed(
                        f"cannot read {source['url']}: {error.strerror}; the data set vanished during the run"
                    ) from error
                with io.BufferedReader(shard, READ_BYTES) as stream:
                    yield {**source, "stream": stream}

        pipeline = wds.DataPipeline(
            wds.SimpleShardList(list(numbers)),
            wds.detshuffle(len(numbers), seed=seed, epoch=epoch - 1),
            wds.split_by_worker,
            opened,
            wds.tariterators.tar_file_expander,
            wds.tariterators.group_by_keys,
            wds.detshuffle(self._options.shuffle_buffer, seed=seed, epoch=epoch - 1),
        )
        try:
            for sample in pipeline:
                number, key = numbers[sample["__url__"]], sample["__key__"]
                if not key.isdecimal():  # a name of ours is a number; another may lead to anywhere
                    raise self._damaged(f"`dataset convert` did not write its member {key!r}")
                position = int(shards.first[number] + int(key) - shards.first_key[number])
                num_read += 1
                yield Encoded(position, sample["jpg"])
        except (tarfile.TarError, KeyError, ValueError) as error:
            raise self._damaged(str(error)) from error
        if num_read != num_expected:  # tarfile takes a damaged header for the end of the archive
            raise self._damaged(f"{num_expected - num_read} of {num_expected} images are missing from it")

    def _damaged(self, why: str) -> CaseFailed:
        root = self.shards.files.root
        return CaseFailed(f"a container in {root} is damaged ({why}); remove the folder and convert the images again")


def build(options: Options, context: LoaderContext) -> ShardLoader:
    """Raises ConfigError where there is no worker, too few shards, or no shuffle buffer."""
    check_workers("webdataset", context)
    if options.shuffle_buffer < 1:
        raise ConfigError("loader option shuffle_buffer must be 1 or more")
    return ShardLoader("WebDataset", _TarDataset(options, context), context)
