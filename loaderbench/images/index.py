"""The list of images that a loader reads: one copy of it for all processes, kept between runs.

A large list is kept in the user's cache folder, because listing 1.3 million files takes seconds where the kernel
has them cached and minutes where it does not. A kept list is used only while every folder of the tree still has
the inode, mtime and ctime that it had just before it was listed. Adding, removing, renaming or replacing a file
changes its folder's times; overwriting a file in place does not, so the sizes of SAMPLED_FILES random files are
checked as well. Nothing is kept where a change might go unseen: linked files, file systems other than
WATCHED_TYPES, folders that changed just before they were listed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.traits import Format
from loaderbench.errors import UnavailableError
from loaderbench.images.files import (
    check_own,
    exclusive,
    make_own_folder,
    replace_file,
    user_cache_folder,
)
from loaderbench.images.filesystem import storage_behind
from loaderbench.images.listing import Listing, OnListed, list_images, state_of
from loaderbench.images.packed import map_packed, write_packed

LARGE_SET = 10_000
"""Lists of at least this many images are mapped and kept. A smaller set is listed in 0.1 s."""
FORMAT = 3
"""Of the kept lists. Raise it when their content, or what counts as an image, changes."""
SAMPLED_FILES = 1000
"""If none of this many random files has changed its size, at most 0.3 % of all have (95 % confidence)."""
WATCHED_TYPES = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay", "nfs", "nfs4"})
"""File systems whose folders get a new mtime and ctime with each change of an entry, as POSIX asks for it.
FUSE and SMB leave that to a server that may not."""
SETTLED_NS = 2_000_000_000
"""A folder that changed less than this time before the listing may change again unseen, within one tick of the file
system's clock: up to 10 ms with the kernel's coarse clock, 1 s on ext3."""
NUM_THREADS = 16
"""Threads that check folders and files before a kept list is used: a server takes a millisecond for each."""
MOST_KEPT = 16
"""Most lists that are kept; the least recently used are deleted. A list of 1.3 million images takes 65 MB."""


@dataclass(frozen=True)
class ImageIndex:
    """Paths, labels and sizes of a tree's images in flat arrays: about 50 bytes an image, no Python object each.

    Sorted by class name, then by file name, as torchvision's ImageFolder does it. The arrays of a large set are mapped
    from an anonymous file: processes that are forked or started with it use the same pages.
    """

    root: str
    names: bytes | memoryview
    """The paths relative to `root`, UTF-8 with surrogate escapes, joined without a separator."""
    offsets: NDArray[np.int64]
    """[N + 1]: name i is names[offsets[i]:offsets[i + 1]]."""
    labels: NDArray[np.int32]
    sizes: NDArray[np.int64]
    """File sizes in bytes at the time of the listing."""
    classes: tuple[str, ...]
    mapped_from: int | None = field(default=None, compare=False, repr=False)
    """Descriptor of that file (memfd_create(2)), closed with the mapping; None: plain memory."""

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> str:
        """Absolute path of image `index`."""
        return os.fsdecode(self.encoded_path(index))

    def encoded_path(self, index: int) -> bytes:
        """The same as the system has it."""
        return os.fsencode(self.root + os.sep) + bytes(self.names[self.offsets[index] : self.offsets[index + 1]])

    @property
    def formats(self) -> dict[Format, int]:
        """How many files of each kind there are, by their names; kinds without a file are left out."""
        names = np.frombuffer(self.names, dtype=np.uint8)
        last, before = (names[self.offsets[1:] - back] | 0x20 for back in (1, 2))  # in lower case
        counts: dict[Format, int] = {
            "png": int(np.count_nonzero((last == ord("g")) & (before == ord("n")))),
            "webp": int(np.count_nonzero(last == ord("p"))),
        }
        counts = {"jpeg": len(self) - sum(counts.values()), **counts}
        return {kind: number for kind, number in counts.items() if number}

    def some_paths(self, number: int) -> list[str]:
        """So many of them, evenly over all: of each class, if there are not too many."""
        chosen = np.unique(np.linspace(0, len(self) - 1, min(number, len(self))).astype(int))
        return [self.path(index) for index in chosen.tolist()]

    def paths(self) -> Iterator[str]:
        return (self.path(index) for index in range(len(self)))

    def at_root(self, root: str) -> ImageIndex:
        """The same files under another root (a copy in memory)."""
        return ImageIndex(root, self.names, self.offsets, self.labels, self.sizes, self.classes, self.mapped_from)

    def select(self, indices: Sequence[int] | NDArray[np.int64]) -> ImageIndex:
        """The index of a subset, in the order given. Classes are kept whole."""
        chosen = np.asarray(indices, dtype=np.int64)
        parts = [self.names[self.offsets[i] : self.offsets[i + 1]] for i in chosen]
        offsets = np.zeros(len(parts) + 1, dtype=np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return ImageIndex(self.root, b"".join(parts), offsets, self.labels[chosen], self.sizes[chosen], self.classes)

    def __reduce__(self) -> tuple[Any, ...]:
        """A process that is being started gets the open file, anything else the content."""
        if self.mapped_from is not None and get_spawning_popen() is not None:
            return _from_parent, (self.root, reduction.DupFd(self.mapped_from))
        content = (bytes(self.names), self.offsets, self.labels, self.sizes, self.classes)
        return ImageIndex, (self.root, *content)


def _from_parent(root: str, sent: Any) -> ImageIndex:
    return _mapped(root, sent.detach(), check=False)[0]


def _in_memory(root: str, write: Callable[[BinaryIO], None], *, check: bool) -> tuple[ImageIndex, list[list[Any]]]:
    """The index that `write` puts into an anonymous file, and its folders. Raises as `_mapped` does."""
    descriptor = os.memfd_create("loaderbench-list")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            write(file)
    except BaseException:
        os.close(descriptor)
        raise
    return _mapped(root, descriptor, check=check)


def _mapped(root: str, descriptor: int, *, check: bool) -> tuple[ImageIndex, list[list[Any]]]:
    """The index in an open file, and the folders it was listed from. The index owns the descriptor from now on.

    Raises:
        ValueError: the file is damaged, or holds the list of another tree or format.
        OSError: it cannot be mapped.
    """
    try:
        facts, arrays, mapping = map_packed(descriptor, check=check)
    except BaseException:
        os.close(descriptor)
        raise
    weakref.finalize(mapping, os.close, descriptor)
    if check and (facts["format"], facts["root"]) != (FORMAT, root):
        raise ValueError("the list belongs to another folder")
    offsets, labels, sizes = (arrays[name] for name in ("offsets", "labels", "sizes"))
    classes, folders = cast("list[str]", facts["classes"]), cast("list[list[Any]]", facts["folders"])
    return ImageIndex(root, arrays["names"].data, offsets, labels, sizes, tuple(classes), descriptor), folders


def index_of(listing: Listing, root: str, classes: Sequence[str], counts: Sequence[int]) -> ImageIndex:
    """What was found, in memory."""
    offsets = np.zeros(len(listing.sizes) + 1, dtype=np.int64)
    np.cumsum(np.frombuffer(listing.lengths, dtype=np.int64), out=offsets[1:])
    labels = np.repeat(np.arange(len(classes), dtype=np.int32), counts)
    sizes = np.frombuffer(listing.sizes, dtype=np.int64)
    return ImageIndex(root, bytes(listing.names), offsets, labels, sizes, tuple(classes))


def index_images(root: str, on_listed: OnListed = lambda num_images: None) -> ImageIndex:
    """The images of an ImageFolder tree (`root/<class>/…`) or of a flat folder: listed now, or from the kept list.

    A flat folder is one class, named "". Files of other types are left out (`dataset scan` lists them).

    Raises:
        ConfigError: `root` is missing, no folder, not readable, or holds no image.
    """
    kept = _kept_list(os.path.realpath(root))
    if kept is not None:
        return kept
    begun_ns = time.time_ns()
    listing = Listing(on_listed)
    root, classes, counts = list_images(root, listing)
    found = index_of(listing, root, classes, counts)
    if len(found) < LARGE_SET:
        return found
    facts = {"format": FORMAT, "root": root, "classes": classes, "folders": listing.folders}
    arrays: dict[str, NDArray[Any]] = {
        "offsets": found.offsets,
        "sizes": found.sizes,
        "labels": found.labels,
        "names": np.frombuffer(found.names, dtype=np.uint8),
    }

    def write(file: BinaryIO) -> None:
        write_packed(file, facts, arrays)

    with contextlib.suppress(OSError, UnavailableError):  # no home, a full or read-only disk: the next run lists again
        if _may_be_kept(root, listing, begun_ns):
            _keep(root, write)
    return _in_memory(root, write, check=False)[0]


def _list_path(root: str) -> Path:
    """Where the list of the tree `root` is kept."""
    return user_cache_folder() / "lists" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.list"


def _kept_list(root: str) -> ImageIndex | None:
    """The kept list of a tree; None where there is none, or the tree has changed."""
    try:
        path = _list_path(root)
        check_own(path)  # a list of someone else could name any file of ours
        # Copied, because a mapped file may vanish: on NFS when another host replaces it.
        with path.open("rb") as kept:
            index, folders = _in_memory(root, lambda file: shutil.copyfileobj(kept, file, 1 << 20), check=True)
    except (OSError, ValueError, UnavailableError):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the lists used least recently go first
    return index if _still_holds(index, folders) else None


def _still_holds(index: ImageIndex, folders: list[list[Any]]) -> bool:
    """Whether no folder has changed since it was listed, nor the size of any of SAMPLED_FILES random files."""
    sample = np.random.default_rng().integers(len(index), size=SAMPLED_FILES).tolist()

    def part_holds(first: int) -> bool:
        for name, *state in folders[first::NUM_THREADS]:
            if list(state_of(os.stat(os.path.join(index.root, name)))) != state:  # noqa: PTH116
                return False
        some = sample[first::NUM_THREADS]
        return all(os.stat(index.path(number)).st_size == index.sizes[number] for number in some)  # noqa: PTH116

    try:
        with ThreadPoolExecutor(NUM_THREADS, "list") as pool:
            return all(pool.map(part_holds, range(NUM_THREADS)))
    except OSError:
        return False


def _may_be_kept(root: str, listing: Listing, begun_ns: int) -> bool:
    """Whether any later change of the tree will show in its folders' times."""
    newest_ns = max(max(mtime_ns, ctime_ns) for _, _, mtime_ns, ctime_ns in listing.folders)
    return (
        not listing.has_links
        and len(listing.devices) == 1
        and storage_behind(root).type in WATCHED_TYPES
        and newest_ns < begun_ns - SETTLED_NS
    )


def _keep(root: str, write: Callable[[BinaryIO], None]) -> None:
    """Keep a list for the next run. OSError or UnavailableError where the cache folder cannot be written."""
    path = _list_path(root)
    make_own_folder(path.parent)
    with exclusive(path.parent / ".loaderbench-lock"):
        with replace_file(path) as file:
            write(file)
        oldest_first = sorted(path.parent.glob("*.list"), key=lambda one: one.stat().st_mtime_ns)
        for unused in oldest_first[:-MOST_KEPT]:
            unused.unlink(missing_ok=True)
