"""The files in a folder of images, in the order of torchvision's ImageFolder, and the first of them.

Without numpy, so that a wrong folder is refused at once.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from loaderbench.errors import ConfigError
from loaderbench.images.containers import container_advice
from loaderbench.images.files import OWN_FILES_PREFIX
from loaderbench.images.formats import SUFFIXES
from loaderbench.images.over_files import SLOW_FILE_S, over_files

IMAGE_SUFFIXES = tuple(SUFFIXES)
"""Compared in lower case."""
MOST_LEVELS = 100
"""Folders in folders. A deeper tree is a mistake, and what walks through it may run out of stack."""
FILES_AT_ONCE, FIRST_FILES = 512, 8
"""Files of a folder whose sizes are asked for together; those of them that tell whether the storage is slow."""
MOST_SUFFIXES = 4
"""Kinds of other files that an error names."""

OnListed = Callable[[int], None]
"""Called with the number of images listed so far, after FILES_AT_ONCE more at most."""


Identity = tuple[int, int]
"""st_dev and st_ino."""


class FolderContent(NamedTuple):
    """What a folder holds."""

    folder: str
    names: list[str]
    """Sorted."""
    others: dict[str, os.DirEntry[str]]
    """Those that are no plain files, by name."""


class Listing:
    """The files found so far, in flat buffers. `dataset scan` lists with a child of this, so it finds the same."""

    def __init__(self, on_listed: OnListed = lambda num_images: None) -> None:
        self._on_listed = on_listed
        self.names = bytearray()
        self.lengths, self.sizes = array("q"), array("q")
        self.folders: list[tuple[str, int, int, int]] = []
        """Each folder's path relative to the root, and its state before it was read."""
        self.devices: set[int] = set()
        """st_dev of the folders."""
        self.other_suffixes: Counter[str] = Counter()
        """How often each file suffix was seen that is no image's."""
        self.has_links = False
        """Whether there are symbolic links to files, or broken ones: their targets may change unseen."""

    def entries(self, folder: str, prefix: str) -> FolderContent:
        """What a folder holds, without loaderbench's own. Raises OSError."""
        status = os.stat(folder)  # noqa: PTH116
        self.folders.append((prefix, *state_of(status)))
        self.devices.add(status.st_dev)
        with os.scandir(folder) as entries:
            found = list(entries)
        others = {entry.name: entry for entry in found if not entry.is_file(follow_symlinks=False)}
        links = [entry for entry in others.values() if entry.is_symlink()]
        self.has_links = self.has_links or not all(map(_is_folder, links))
        names = [entry.name for entry in found if not entry.name.startswith(OWN_FILES_PREFIX)]
        names.sort()
        return FolderContent(folder, names, others)

    def left_out(self, path: str) -> None:
        """What is in the tree and no image to read: another kind of file, a link to a folder above it, a FIFO."""
        self.other_suffixes[os.path.splitext(path)[1].lower() or "without a suffix"] += 1  # noqa: PTH122

    def add_images(self, content: FolderContent, prefix: str, above: frozenset[Identity]) -> None:
        """Take the images of a folder, and those of its folders and below. `above`: the folders passed."""
        folder, names, others = content
        files: list[str] = []
        for name in names:
            other = others.get(name)
            if other is not None and _is_folder(other):
                self._add_files(folder, files, prefix)
                files = []
                self._add_folder(other, prefix, above)
            elif name.lower().endswith(IMAGE_SUFFIXES) and (other is None or _follows(other.is_file)):
                files.append(name)
            else:
                self.left_out(os.path.join(folder, name))
        self._add_files(folder, files, prefix)

    def _add_folder(self, entry: os.DirEntry[str], prefix: str, above: frozenset[Identity]) -> None:
        inside, here = prefix + entry.name + os.sep, _identity(entry.path)
        if inside.count(os.sep) > MOST_LEVELS:
            start = entry.path[:100]
            raise ConfigError(
                f"{start}… is nested more than {MOST_LEVELS} folders deep: name the folder of the classes"
            )
        if here in above:  # else a link to a folder above would be followed until its path is too long
            self.left_out(entry.path)
        else:
            self.add_images(self.entries(entry.path, inside), inside, above | {here})

    def _add_files(self, folder: str, files: Sequence[str], prefix: str) -> None:
        """Take these images of a folder."""
        for begin in range(0, len(files), FILES_AT_ONCE):
            names = files[begin : begin + FILES_AT_ONCE]
            self.sizes.extend(_sizes(folder, names))
            placed = [prefix + name for name in names]
            encoded = os.fsencode("".join(placed))
            self.lengths.extend(map(len, placed if encoded.isascii() else map(os.fsencode, placed)))
            self.names += encoded
            self._on_listed(len(self.sizes))

    def add_tree(self, root: str) -> tuple[list[str], list[int]]:
        """Take the images of an ImageFolder tree or of a flat folder. Returns its classes and their numbers of images.

        A tree's images are those in its folders: what lies beside the folders is left out. Raises OSError.
        """
        classes: list[str] = []
        counts: list[int] = []
        above = frozenset(map(_identity, [root, *map(str, Path(root).parents)]))
        _, names, others = self.entries(root, "")
        folders = {name: others[name] for name in names if name in others and _is_folder(others[name])}
        for name, entry in folders.items():
            before = len(self.sizes)
            self._add_folder(entry, "", above)
            if len(self.sizes) > before:
                classes.append(name)
                counts.append(len(self.sizes) - before)
        beside = FolderContent(root, [name for name in names if name not in folders], others)
        if not classes:
            self.add_images(beside, "", above)
            return [""], [len(self.sizes)]
        for name in beside.names:
            self.left_out(os.path.join(root, name))
        return classes, counts


def _identity(path: str) -> Identity:
    status = os.stat(path)  # noqa: PTH116
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return _follows(entry.is_dir)


def _follows(is_it: Callable[[], bool]) -> bool:
    """The answer of a DirEntry; a link that leads to itself is nothing."""
    try:
        return is_it()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False


def _sizes(folder: str, names: Sequence[str]) -> list[int]:
    """Sizes in bytes. A server's answers are waited for side by side: the first few tell whether they are needed."""
    opened = os.open(folder, os.O_PATH | os.O_CLOEXEC)  # a name is found sooner from there than a path

    def size(name: str) -> int:
        return os.stat(name, dir_fd=opened).st_size

    try:
        begun = time.perf_counter()
        found = over_files(size, names[:FIRST_FILES])
        rest = names[FIRST_FILES:]
        if time.perf_counter() - begun > SLOW_FILE_S * len(found):
            return found + over_files(size, rest)
        return found + [os.stat(name, dir_fd=opened).st_size for name in rest]
    finally:
        os.close(opened)


def state_of(status: os.stat_result) -> tuple[int, int, int]:
    """Values that change with the entries of a folder: inode (another folder in its place), mtime and ctime in ns.

    tar and rsync set the mtime back; nothing sets the ctime (inode(7)).
    """
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def first_image(folder: str) -> str | None:
    """Some non-empty image below `folder`, the same one at each call; None where there is none. Of links to folders,
    those of the classes are followed, and none below them: one may lead to `/proc`, which has no end."""
    pending = [folder]
    while pending:
        place = pending.pop()
        try:
            with os.scandir(place) as entries:
                found = [(entry.name, entry) for entry in entries]
        except OSError:  # index_images says so
            continue
        heapq.heapify(found)  # of a million files the first is wanted, not their order
        folders = []
        while found:
            _, entry = heapq.heappop(found)
            if entry.name.lower().endswith(IMAGE_SUFFIXES) and _follows(entry.is_file) and entry.stat().st_size > 0:
                return entry.path
            with contextlib.suppress(OSError):  # a link to where one may not look
                if entry.is_dir(follow_symlinks=False) or (place == folder and _is_folder(entry)):
                    folders.append(entry.path)
        pending += reversed(folders)
    return None


def no_images(called: str, suffixes: Mapping[str, int]) -> str:
    """Why a folder is no data set. `called`: as the user called it; `suffixes`: how often each was seen in it."""
    most = sorted(suffixes.items(), key=lambda one: -one[1])[:MOST_SUFFIXES]
    seen = ", ".join(f"{number:,} {suffix}" for suffix, number in most)
    if (advice := container_advice(suffix for suffix, _ in most)) is not None:
        return f"no images in {called}: {advice}"
    kinds = f"it holds other files ({seen}), but only {', '.join(IMAGE_SUFFIXES)} are read" if seen else "it is empty"
    return (
        f"no images in {called}: {kinds}; name a folder of images or of class folders, or make a set with "
        "`loaderbench dataset make`"
    )


def list_images(called: str, listing: Listing) -> tuple[str, list[str], list[int]]:
    """List the images of a tree or of a flat folder. Returns its real path, its classes and their numbers of images.

    Raises:
        ConfigError: it is missing, no folder, not readable, or holds no image. `called`: as the user called it.
    """
    root = os.path.realpath(called)
    try:
        classes, counts = listing.add_tree(root)
    except OSError as error:
        raise ConfigError(f"cannot read the data set folder {called}: {error.strerror}") from error
    if not listing.sizes:
        raise ConfigError(no_images(called, listing.other_suffixes))
    return root, classes, counts
