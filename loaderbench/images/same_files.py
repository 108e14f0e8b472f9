"""Whether two trees hold the same images: names and sizes of all, contents of a sample."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import numpy as np

from loaderbench.errors import ConfigError
from loaderbench.images.cache_state import evict, residency
from loaderbench.images.index import ImageIndex, index_images
from loaderbench.recording.studies import SameFiles

HASHED_FILES = 64
HASHED_BYTES = 100_000_000
"""Limits of the files and bytes of each tree whose content is read; at least one file is read."""
MOST_NAMED = 3


def check_same_files(folders: Sequence[str], labels: Sequence[str], max_hashed_bytes: int = HASHED_BYTES) -> SameFiles:
    """What two trees both hold, if they hold the same files.

    The contents compared are those of the same random files on both sides, SHA-256.

    Raises:
        ConfigError: they differ (the message says in what), or one is missing, empty or unreadable.
    """
    a, b = (index_images(folder) for folder in folders)
    parts = [] if _same_names_and_sizes(a, b) else _differences(a, b, labels)
    if parts:
        raise _not_the_same(labels, parts)
    sample = _sample(a, max_hashed_bytes)
    changed = [index for index in sample if _digest(a.path(index)) != _digest(b.path(index))]
    if changed:
        names = [os.path.relpath(a.path(index), a.root) for index in changed]
        raise _not_the_same(labels, [f"{_named(names)} of {len(sample)} sampled files differ in content"])
    return SameFiles(
        num_images=len(a),
        total_bytes=int(a.sizes.sum()),
        num_hashed=len(sample),
        hashed_bytes=int(a.sizes[sample].sum()),
    )


def _not_the_same(labels: Sequence[str], parts: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{labels[0]} and {labels[1]} do not hold the same images: {'; '.join(parts)}; their storage "
        "cannot be compared. Make one a copy of the other (rsync -a --delete)"
    )


def _same_names_and_sizes(a: ImageIndex, b: ImageIndex) -> bool:
    return a.names == b.names and np.array_equal(a.offsets, b.offsets) and np.array_equal(a.sizes, b.sizes)


def _sizes(images: ImageIndex) -> dict[str, int]:
    skip = len(images.root) + 1
    return {images.path(index)[skip:]: int(images.sizes[index]) for index in range(len(images))}


def _differences(a: ImageIndex, b: ImageIndex, labels: Sequence[str]) -> list[str]:
    first, second = _sizes(a), _sizes(b)
    found = {
        f"only in {labels[0]}": sorted(first.keys() - second.keys()),
        f"only in {labels[1]}": sorted(second.keys() - first.keys()),
        "differ in size": sorted(name for name in first.keys() & second.keys() if first[name] != second[name]),
    }
    return [f"{_named(names)} {what}" for what, names in found.items() if names]


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MOST_NAMED])
    return f"{len(names):,} ({shown}{', …' if len(names) > MOST_NAMED else ''})"


def _sample(images: ImageIndex, max_bytes: int) -> list[int]:
    order = np.random.default_rng(0).permutation(len(images))[:HASHED_FILES]
    fits = np.cumsum(images.sizes[order]) <= max_bytes
    return [int(index) for index in order[: max(1, int(fits.sum()))]]


def _digest(path: str) -> str:
    """SHA-256 of a file's content. What it brings into the page cache leaves it again: a data set is then measured as
    it was found."""
    try:
        was_there = residency([path]).fraction == 1
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if not was_there:
            evict(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    return digest
