"""The list of images that a loader reads, small enough to be shared by many workers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loaderbench.errors import ConfigError
from loaderbench.images.files import OWN_FILES_PREFIX

IMAGE_SUFFIXES = (".jpg", ".jpeg")
"""Compared in lower case. JPEG is what the loaders and decoders here read."""


@dataclass(frozen=True)
class ImageIndex:
    """Paths, labels and sizes of a tree's images in flat arrays: about 50 bytes an image, no Python object each.

    Sorted by class name, then by file name, as torchvision's ImageFolder does it.
    """

    root: str
    names: bytes
    """The paths relative to `root`, UTF-8 with surrogate escapes, joined without a separator."""
    offsets: NDArray[np.int64]
    """[N + 1]: name i is names[offsets[i]:offsets[i + 1]]."""
    labels: NDArray[np.int32]
    sizes: NDArray[np.int64]
    """File sizes in bytes at the time of the listing."""
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        """Absolute path of image `index`."""
        name = self.names[self.offsets[index] : self.offsets[index + 1]]
        return self.root + os.sep + os.fsdecode(name)

    def paths(self) -> Iterator[str]:
        return (self.path(index) for index in range(len(self)))

    def at_root(self, root: str) -> ImageIndex:
        """The same files under another root (a copy in memory)."""
        return ImageIndex(root, self.names, self.offsets, self.labels, self.sizes, self.classes)

    def select(self, indices: Sequence[int] | NDArray[np.int64]) -> ImageIndex:
        """The index of a subset, in the order given. Classes are kept whole."""
        chosen = np.asarray(indices, dtype=np.int64)
        parts = [self.names[self.offsets[i] : self.offsets[i + 1]] for i in chosen]
        offsets = np.zeros(len(parts) + 1, dtype=np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return ImageIndex(self.root, b"".join(parts), offsets, self.labels[chosen], self.sizes[chosen], self.classes)


def _images_below(folder: str, prefix: str) -> Iterator[tuple[str, int]]:
    """(path relative to the root, size) of the images in `folder` and below, in sorted order."""
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.is_dir():
            yield from _images_below(entry.path, prefix + entry.name + os.sep)
        elif entry.name.lower().endswith(IMAGE_SUFFIXES) and entry.is_file():
            yield prefix + entry.name, entry.stat().st_size


def first_image(folder: str) -> str | None:
    """Some non-empty JPEG below `folder`, the same one at each call; None where there is none."""
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = os.path.join(parent, name)
            if name.lower().endswith(IMAGE_SUFFIXES) and os.stat(path).st_size > 0:  # noqa: PTH116
                return path
    return None


def index_images(root: str) -> ImageIndex:
    """List the images of an ImageFolder tree (`root/<class>/…`) or of a flat folder.

    A flat folder is one class, named "". Files of other types are left out (`dataset scan` lists them).

    Raises:
        ConfigError: `root` is missing, no folder, not readable, or holds no JPEG.
    """
    root = os.path.realpath(root)
    try:
        with os.scandir(root) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
        folders = [entry.name for entry in ordered if not entry.name.startswith(OWN_FILES_PREFIX) and entry.is_dir()]
        names: list[bytes] = []
        labels: list[int] = []
        sizes: list[int] = []
        classes: list[str] = []
        for folder in folders:
            found = list(_images_below(os.path.join(root, folder), folder + os.sep))
            if found:
                classes.append(folder)
                names += [os.fsencode(name) for name, _ in found]
                sizes += [size for _, size in found]
                labels += [len(classes) - 1] * len(found)
        flat = [
            (entry.name, entry.stat().st_size)
            for entry in ordered
            if entry.name.lower().endswith(IMAGE_SUFFIXES) and entry.is_file()
        ]
    except OSError as error:
        raise ConfigError(f"cannot read the data set folder {root}: {error.strerror}") from error
    if flat and not names:
        classes = [""]
    if flat and classes == [""]:
        names = [os.fsencode(name) for name, _ in flat]
        sizes = [size for _, size in flat]
        labels = [0] * len(flat)
    if not names:
        raise ConfigError(
            f"no JPEG images in {root}; give an ImageFolder tree, or make one with `loaderbench dataset make`"
        )
    offsets = np.zeros(len(names) + 1, dtype=np.int64)
    np.cumsum([len(name) for name in names], out=offsets[1:])
    return ImageIndex(
        root,
        b"".join(names),
        offsets,
        np.array(labels, dtype=np.int32),
        np.array(sizes, dtype=np.int64),
        tuple(classes),
    )
