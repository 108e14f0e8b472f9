"""Finds the broken files of a set, for loaders that cannot report them one by one while they read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loaderbench.errors import CaseFailed
from loaderbench.images.index import ImageIndex
from loaderbench.images.scan import check_file
from loaderbench.loaders.base import LoaderContext
from loaderbench.loaders.samples import failure_list

MOST_CHECKED = 20_000
"""Most files whose markers are checked when the loader is built: more would take minutes on slow storage."""


def find_broken(context: LoaderContext) -> list[tuple[int, str]]:
    """(index, reason) of files whose header or end is missing, of up to MOST_CHECKED files.

    Reads a few KB of each: 20 µs a file where it is cached. A library that decodes for itself makes a picture of some
    broken files and stops at others. In a larger set a random part is checked: `dataset scan` looks at all.

    Raises:
        CaseFailed: more than `max_failure_fraction` are broken, or a file cannot be read at all.
    """
    images: ImageIndex = context.images
    failures = []
    chosen = np.random.default_rng(0).permutation(len(images))[:MOST_CHECKED]
    for index in sorted(chosen.tolist()):
        _, header, reason = check_file(images.path(index))
        if header is not None:
            continue
        if reason is not None and reason.startswith("cannot be read"):
            raise CaseFailed(f"{images.path(index)} {reason}; the data set vanished or its storage failed")
        failures.append((index, reason or "broken"))
    if len(failures) > context.max_failure_fraction * len(chosen):
        raise CaseFailed(
            f"{failure_list(failures, len(chosen), images)}; at most {100 * context.max_failure_fraction:g} % "
            "are allowed (--max-failures); `loaderbench dataset scan` names all"
        )
    return failures


def sound_positions(num_images: int, failures: Sequence[tuple[int, str]]) -> NDArray[np.int64]:
    """The positions of the images that did not fail, in order."""
    broken = np.array([index for index, _ in failures], dtype=np.int64)
    return np.setdiff1d(np.arange(num_images), broken, assume_unique=True)
