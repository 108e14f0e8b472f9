"""Data sets in the container formats of other loaders: tar shards, litdata's chunks, FFCV's file.

A converted folder holds the containers, an index of its samples and a record of what it was made from. By default it
is inside the tree of its images, so that one data set serves every loader of a study.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from loaderbench.errors import ConfigError
from loaderbench.images.files import CONVERTED_RECORD, OWN_FILES_PREFIX, record_of, replace_file
from loaderbench.images.index import ImageIndex, index_images
from loaderbench.plain import JsonObject
from loaderbench.plugins import loader_of_format
from loaderbench.recording.tables import open_tables

INDEX_NAME = f"{OWN_FILES_PREFIX}converted.npz"
INDEX_TABLES = ("texts", "names", "offsets", "labels", "sizes", "file_sizes", "first", "first_key", "original")


@dataclass(frozen=True)
class ShardSet:
    """The containers of a converted data set, and where in them each sample is."""

    format: str
    samples: ImageIndex
    """In the order of the containers. `path(i)` is container/original name: only for messages, not a file."""
    files: ImageIndex
    """The containers; labels are all 0."""
    first: NDArray[np.int64]
    """[F + 1]: samples first[f]:first[f + 1] are in container f."""
    first_key: NDArray[np.int64]
    """[F]: the key, in container f, of its first sample; the following samples count up."""
    original: NDArray[np.int64]
    """[N]: position of each sample in the tree that was converted. It seeds the sample's random numbers, so that the
    pixels are those of the loaders that read the tree."""
    side_files: dict[str, str] = field(default_factory=dict)
    """Name → text of what the format keeps beside its containers."""

    def on_files(self, files: ImageIndex) -> ShardSet:
        """The samples of a copy of some containers: `files` are their names, in the order here, under another root."""
        kept = set(names_of(files))
        chosen = [number for number, name in enumerate(names_of(self.files)) if name in kept]
        assert len(chosen) == len(files)
        ranges = [np.arange(self.first[number], self.first[number + 1]) for number in chosen]
        first = np.concatenate([[0], np.cumsum([len(one) for one in ranges])]).astype(np.int64)
        positions = np.concatenate(ranges)
        samples = self.samples.select(positions).at_root(files.root)
        return ShardSet(
            self.format, samples, files, first, self.first_key[chosen], self.original[positions], self.side_files
        )


@dataclass(frozen=True)
class DataSet:
    """What a case reads: a tree of images, or a converted one."""

    images: ImageIndex
    """The samples: position, label, encoded bytes."""
    shards: ShardSet | None = None
    """None: each image is a file of its own."""

    @property
    def files(self) -> ImageIndex:
        """The files that are read."""
        return self.images if self.shards is None else self.shards.files

    @property
    def sample_bytes(self) -> float:
        """Bytes of its file that reading one sample takes, on average."""
        return float(self.files.sizes.sum()) / len(self.images)

    @property
    def sample_page_bytes(self) -> float:
        """`sample_bytes` in whole pages: what a cold read moves."""
        return float((-(-self.files.sizes // 4096) * 4096).sum()) / len(self.images)

    def paths_of(self, indices: NDArray[np.int64]) -> list[str]:
        """The files that hold these samples, each once."""
        if self.shards is None:
            return [self.images.path(index) for index in indices.tolist()]
        numbers = np.unique(np.searchsorted(self.shards.first, indices, side="right") - 1)
        return [self.files.path(number) for number in numbers.tolist()]

    def on_files(self, files: ImageIndex) -> DataSet:
        """The samples of a copy of some of the files."""
        if self.shards is None:
            return DataSet(files)
        shards = self.shards.on_files(files)
        return DataSet(shards.samples, shards)


def names_of(index: ImageIndex) -> list[str]:
    """The paths relative to the index's root."""
    skip = len(index.root) + 1
    return [path[skip:] for path in index.paths()]


def make_index(
    root: str, names: list[str], labels: list[int] | NDArray[Any], sizes: list[int] | NDArray[Any], classes: list[str]
) -> ImageIndex:
    """An ImageIndex of names relative to `root`."""
    encoded = [name.encode("utf-8", "surrogateescape") for name in names]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(name) for name in encoded], out=offsets[1:])
    return ImageIndex(
        root,
        b"".join(encoded),
        offsets,
        np.asarray(labels, dtype=np.int32),
        np.asarray(sizes, dtype=np.int64),
        tuple(classes),
    )


def listing_digest(images: ImageIndex) -> str:
    """Names and sizes of a tree's images as 16 hex digits, to identify what was converted."""
    digest = hashlib.sha256(images.names)
    digest.update(images.offsets.tobytes())
    digest.update(images.sizes.tobytes())
    return digest.hexdigest()[:16]


def first_container(folder: str) -> str | None:
    """A container of a converted folder; None for any other."""
    return None if record_of(folder) is None else next(read_shards(folder).files.paths())


def folder_inside(root: str | Path, format_name: str) -> Path:
    """Default folder of a tree's conversion."""
    return Path(root) / f"{OWN_FILES_PREFIX}{format_name}"


def open_data_set(root: str, format_name: str | None, on_listed: Callable[[int], None] = lambda num: None) -> DataSet:
    """What a loader of `format_name` (None: image files) reads from the folder `root`. `on_listed`: as in index_images.

    Raises:
        ConfigError: the folder holds something else, or its conversion is of other images; says what to do.
    """
    record = record_of(root)
    if format_name is None:
        if record is not None:
            made, loader = record["format"], loader_of_format(str(record["format"]))
            raise ConfigError(
                f"{root} holds images converted to {made}: use --loader {loader}, or give the tree of images"
            )
        return DataSet(index_images(root, on_listed))
    if record is None:
        if Path(root, f"{CONVERTED_RECORD}.partial").exists():
            raise ConfigError(
                f"{root} holds an unfinished conversion: repeat its `loaderbench dataset convert` command"
            )
        inside = folder_inside(root, format_name)
        record = record_of(inside)
        convert = f"`loaderbench dataset convert {root} --to {format_name}`"
        if record is None:
            raise ConfigError(
                f"the {loader_of_format(format_name)} loader reads converted images: make them with {convert}"
            )
        if record["listing"] != listing_digest(index_images(root, on_listed)):
            raise ConfigError(f"the images have changed since {inside} was made: remove it, then {convert}")
        root = str(inside)
    if record["format"] != format_name:
        raise ConfigError(f"{root} holds images converted to {record['format']}, not to {format_name}")
    shards = read_shards(root)
    return DataSet(shards.samples, shards)


def write_shards(shards: ShardSet, path: str) -> None:
    """Write the index of a converted folder."""
    texts = {
        "format": shards.format,
        "classes": list(shards.samples.classes),
        "names": names_of(shards.files),
        "side_files": shards.side_files,
    }
    samples = shards.samples
    with replace_file(path) as file:
        np.savez(
            file,
            texts=np.frombuffer(json.dumps(texts).encode(), dtype=np.uint8),
            names=np.frombuffer(samples.names, dtype=np.uint8),
            offsets=samples.offsets,
            labels=samples.labels,
            sizes=samples.sizes,
            file_sizes=shards.files.sizes,
            first=shards.first,
            first_key=shards.first_key,
            original=shards.original,
        )


def check_inside(names: Iterable[str], where: str) -> None:
    """Raises ConfigError where a name leads out of the folder that it is relative to: it would be read, and copied."""
    for name in names:
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise ConfigError(f"{where} names {name!r}, which is outside its folder: convert the images again")


def _check_index(arrays: Mapping[str, NDArray[Any]], texts: JsonObject) -> None:
    """Raises ValueError, KeyError or TypeError where the parts of an index do not belong together."""
    num_samples, names = len(arrays["sizes"]), cast("list[str]", texts["names"])
    rising = {"offsets": (num_samples, len(arrays["names"])), "first": (len(names), num_samples)}
    for name, (length, end) in rising.items():
        steps = arrays[name]
        if len(steps) != length + 1 or steps[0] != 0 or steps[-1] != end or (np.diff(steps) < 0).any():
            raise ValueError(f"{name} does not match")
    fits = len(arrays["labels"]) == len(arrays["original"]) == num_samples
    if not fits or not len(arrays["file_sizes"]) == len(arrays["first_key"]) == len(names):
        raise ValueError("tables of different lengths")
    if not all(isinstance(text, str) for text in (texts["format"], *names, *cast("list[str]", texts["classes"]))):
        raise TypeError("names that are not strings")
    if not isinstance(texts["side_files"], dict):
        raise TypeError("no side files")


def read_shards(root: str) -> ShardSet:
    """The index of a converted folder.

    Raises:
        ConfigError: it is damaged, names what is outside of the folder, or containers are missing or of another size.
    """
    root = str(Path(root).resolve())
    try:
        with open_tables(Path(root) / INDEX_NAME) as stored:
            arrays = {name: stored[name] for name in INDEX_TABLES}
        texts = json.loads(arrays["texts"].tobytes())
        first, first_key, original = (arrays[name] for name in ("first", "first_key", "original"))
        _check_index(arrays, texts)
    except Exception as error:  # a damaged file raises anything: zlib's errors, MemoryError for a shape that is made up
        raise ConfigError(f"the index of the converted images in {root} is damaged; remove the folder") from error
    check_inside([*texts["names"], *texts["side_files"]], f"the index of the converted images in {root}")
    labels = np.zeros(len(texts["names"]), dtype=np.int32)
    files = make_index(root, texts["names"], labels, arrays["file_sizes"], [""])
    for path, size in zip(files.paths(), files.sizes.tolist(), strict=True):
        try:
            found = Path(path).stat().st_size
        except OSError as error:
            raise ConfigError(f"{path} cannot be read ({error.strerror}); convert the images again") from error
        if found != size:
            raise ConfigError(f"{path} has {found:,} bytes instead of {size:,}; convert the images again")
    samples = ImageIndex(
        root,
        arrays["names"].tobytes(),
        arrays["offsets"],
        arrays["labels"],
        arrays["sizes"],
        tuple(texts["classes"]),
    )
    return ShardSet(texts["format"], samples, files, first, first_key, original, texts["side_files"])
