"""Finds the broken files of a set, for loaders that cannot report them one by one while they read."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loaderbench.decoders.base import DecodeError
from loaderbench.errors import CaseFailed
from loaderbench.images.cache_state import evicted, is_out
from loaderbench.images.index import ImageIndex
from loaderbench.images.jpeg import JpegHeader
from loaderbench.images.over_files import over_files
from loaderbench.images.scan import check_file
from loaderbench.loaders.base import LoaderContext
from loaderbench.loaders.samples import check_broken
from loaderbench.loaders.transform import infer_geometry

MOST_CHECKED, LEAST_CHECKED, CHECK_S = 20_000, 100, 5.0
"""Files whose markers are checked when the loader is built: at most; at least; and the seconds after which no further
one is begun. Slow ones are waited for side by side."""


def find_broken(context: LoaderContext) -> list[tuple[int, str]]:
    """(index, reason) of files whose header or end is missing, or which cost too much, in order, of up to MOST_CHECKED.

    Reads a few KB of each: 30 µs a file where it is cached. One that is not is left so, as the loader is to be measured
    with the files as they are. A library that decodes for itself makes a picture of some broken files and stops at
    others. In a larger set, and on storage of more than 5 ms a file or so, a random part is checked: `dataset scan`
    looks at all.

    Raises:
        CaseFailed: surely more than `max_failure_fraction` are broken, or a file cannot be read at all.
    """
    images: ImageIndex = context.images
    failures = []
    chosen: list[int] = np.random.default_rng(0).permutation(len(images))[:MOST_CHECKED].tolist()
    checked = over_files(
        lambda index: _checked(images.path(index)),
        chosen,
        until=time.perf_counter() + CHECK_S,
        at_least=LEAST_CHECKED,
    )
    for index, (_, header, reason) in sorted(zip(chosen, checked, strict=False)):
        if header is not None:
            try:
                if context.mode == "infer":
                    infer_geometry(header.height, header.width, context.input_size)
            except DecodeError as error:
                failures.append((index, str(error)))
            continue
        if reason is not None and reason.startswith("cannot be read"):
            raise CaseFailed(f"{images.path(index)} {reason}; the data set vanished or its storage failed")
        failures.append((index, reason or "broken"))
    check_broken(failures, len(checked), images, context.max_failure_fraction)
    return failures


def _checked(path: str) -> tuple[int, JpegHeader | None, str | None]:
    """What `check_file` tells; a file that was wholly out of the page cache is out of it again."""
    was_out = is_out(path)
    found = check_file(path)
    if was_out:
        evicted(path)
    return found


def sound_positions(num_images: int, failures: Sequence[tuple[int, str]]) -> NDArray[np.int64]:
    """The positions of the images that did not fail, in order."""
    broken = np.array([index for index, _ in failures], dtype=np.int64)
    return np.setdiff1d(np.arange(num_images), broken, assume_unique=True)
