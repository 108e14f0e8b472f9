"""Images copied into the containers of other loaders, with unchanged bytes: `dataset convert`."""

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench import lacking
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.images.files import (
    CONVERTED_RECORD,
    exclusive,
    holds_foreign_files,
    read_record,
    record_of,
    replace_file,
)
from loaderbench.images.index import ImageIndex, index_images
from loaderbench.images.jpeg import CMYK_COMPONENTS
from loaderbench.images.pool import run_parallel
from loaderbench.images.scan import check_file
from loaderbench.images.shards import (
    INDEX_NAME,
    ShardSet,
    folder_inside,
    listing_digest,
    make_index,
    names_of,
    read_shards,
    write_shards,
)
from loaderbench.neutral import standing_in
from loaderbench.recording.files import parsed, read_bytes

Progress = Callable[[int, int], None]

MIN_SHARD_IMAGES, MAX_SHARD_IMAGES = 16, 1000
SHARDS_WANTED = 64
"""Shards of a set, unless they would be smaller or larger than the limits: one worker reads a shard."""
PIECE_SUFFIX = ".json"
"""File beside a container with a writer's notes for `side_files`, until the record is written."""
BROKEN_FILE = "broken.json"
INSTALL_FFCV = "apt-get install libopencv-dev libturbojpeg0-dev pkg-config g++, then pip install 'loaderbench[ffcv]'"
BETON_FIELDS = ("image", "label")
"""Names of a .beton's fields, those of FFCV's examples."""
IMAGE_MODE_JPG = 0
"""ffcv.fields.rgb_image.IMAGE_MODES["jpg"]."""
IMAGES_PER_PAGE = 8
"""A page of a .beton holds at least this many images, so that little of it stays empty."""
CONVERTER_VERSION = 1
"""Part of the record: raise it when the same images give different containers."""


@dataclass(frozen=True)
class Conversion:
    """What `convert_dataset` made."""

    folder: Path
    num_images: int
    num_files: int
    total_bytes: int
    was_there: bool
    """True where an earlier call had made it."""


@dataclass(frozen=True)
class _Job:
    """One container to write."""

    path: str
    paths: tuple[str, ...]
    labels: tuple[int, ...]
    first: int
    """Key of the first image; the others count up."""


def shard_images_for(num_images: int) -> int:
    """Default number of images in a container."""
    return min(max(num_images // SHARDS_WANTED, MIN_SHARD_IMAGES), MAX_SHARD_IMAGES)


def convert_dataset(
    src: str | Path,
    format_name: str,
    out: str | Path | None = None,
    *,
    shard_images: int | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Copy the images of `src` into containers of `format_name`, in an order drawn once (seed 0), bytes unchanged.

    `out` None: inside `src`. A finished conversion is left as it is; an interrupted one is completed. Containers
    and the record appear in one step each. Broken images are copied too, for a loader to count (not to FFCV, which
    would not see them: they are noted beside its file).

    Raises:
        ConfigError: `src` holds no JPEG; `out` holds something else or cannot be written; an unknown format.
        UnavailableError: the format's own package is not installed.
        CaseFailed: an image cannot be read, or a process died.
    """
    if format_name not in WRITERS:
        raise ConfigError(f"unknown format '{format_name}'; known: {', '.join(WRITERS)}")
    writer = WRITERS[format_name]
    writer.check_available()
    images = index_images(str(src))
    if others := sum(number for kind, number in images.formats.items() if kind != "jpeg"):
        raise ConfigError(
            f"{src} holds {others:,} images that are not JPEGs, and containers hold only JPEGs: "
            "convert them with `loaderbench dataset derive`"
        )
    if writer.one_file and shard_images is not None:
        raise ConfigError(f"the format {format_name} is one file: leave --shard-images out")
    num = len(images) if writer.one_file else shard_images_for(len(images)) if shard_images is None else shard_images
    if num < 1:
        raise ConfigError(f"--shard-images must be 1 or more, not {num}")
    folder = folder_inside(images.root, format_name) if out is None else Path(out).resolve()
    parameters = {
        "format": format_name,
        "source": images.root,
        "listing": listing_digest(images),
        "num_images": len(images),
        "shard_images": num,
        "version": CONVERTER_VERSION,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder / ".loaderbench-lock"):
            was_there = _is_finished(folder, parameters)
            if not was_there:
                _write_all(images, folder, parameters, writer, processes, progress)
    except OSError as error:
        raise ConfigError(f"cannot write the converted images to {folder}: {error.strerror or error}") from error
    shards = read_shards(str(folder))
    return Conversion(folder, len(shards.samples), len(shards.files), int(shards.files.sizes.sum()), was_there)


def _is_finished(folder: Path, parameters: dict[str, Any]) -> bool:
    """Whether the folder is complete. Writes the parameters into an empty folder. Call it under the lock.

    Raises:
        ConfigError: the folder holds something else.
    """
    found = record_of(folder)
    if found == parameters:
        return True
    partial = folder / f"{CONVERTED_RECORD}.partial"
    if found is None:
        found = read_record(partial)
        if found == parameters:
            return False
    if found is not None:
        differing = [key for key in parameters if found.get(key) != parameters[key]]
        details = ", ".join(f"{key} {found.get(key)} there, {parameters[key]} now" for key in differing)
        raise ConfigError(f"{folder} was converted with other settings ({details}); remove it or choose another --out")
    if holds_foreign_files(folder):
        raise ConfigError(f"{folder} holds files that this command did not make; choose another --out")
    with replace_file(partial) as file:
        file.write(json.dumps(parameters).encode())
    return False


def _write_all(
    images: ImageIndex,
    folder: Path,
    parameters: dict[str, Any],
    writer: _Writer,
    processes: int | None,
    progress: Progress | None,
) -> None:
    # Shuffle buffers span only a container or two: images of a class must not be contiguous.
    order = np.random.default_rng(0).permutation(len(images))
    shuffled = images.select(order)
    num = parameters["shard_images"]
    begins = range(0, len(shuffled), num)
    names = [writer.file_name(number) for number in range(len(begins))]
    jobs = [
        _Job(
            str(folder / name),
            tuple(shuffled.path(index) for index in range(begin, min(begin + num, len(shuffled)))),
            tuple(shuffled.labels[begin : begin + num].tolist()),
            begin,
        )
        for name, begin in zip(names, begins, strict=True)
    ]
    num_done = 0
    for done in writer.write_all(jobs, processes):
        num_done += done
        if progress:
            progress(num_done, len(shuffled))
    sizes = [(folder / name).stat().st_size for name in names]
    first = np.array([*begins, len(shuffled)], dtype=np.int64)
    files = make_index(str(folder), names, [0] * len(names), sizes, [""])
    side_files = writer.side_files(files, first)
    for name, text in side_files.items():
        with replace_file(folder / name) as file:
            file.write(text.encode())
    samples = _named_by_file(shuffled, files, first)
    shards = ShardSet(parameters["format"], samples, files, first, first[:-1], order, side_files)
    write_shards(shards, str(folder / INDEX_NAME))
    (folder / f"{CONVERTED_RECORD}.partial").replace(folder / CONVERTED_RECORD)
    for path in files.paths():  # only now: they are needed to complete an interrupted call
        Path(f"{path}{PIECE_SUFFIX}").unlink(missing_ok=True)


def _named_by_file(shuffled: ImageIndex, files: ImageIndex, first: NDArray[np.int64]) -> ImageIndex:
    """The samples with their container's name before their own."""
    containers = np.repeat(names_of(files), np.diff(first))
    names = [f"{container}/{name}" for container, name in zip(containers, names_of(shuffled), strict=True)]
    return make_index(files.root, names, shuffled.labels, shuffled.sizes, list(shuffled.classes))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise CaseFailed(f"cannot read {path}: {error.strerror}") from error


class _Writer(ABC):
    """How the containers of one format are written."""

    one_file = False
    """Whether a data set is one container."""

    def check_available(self) -> None:  # noqa: B027 - tar needs no package
        """Raises UnavailableError where the format's package is not installed."""

    @abstractmethod
    def file_name(self, number: int) -> str: ...

    @abstractmethod
    def write_all(self, jobs: list[_Job], processes: int | None) -> Iterator[int]:
        """Write all containers, each in one step. Yields numbers of images done."""

    def side_files(self, files: ImageIndex, first: NDArray[np.int64]) -> dict[str, str]:
        """Name → text of the files beside the containers."""
        return {}


class _ShardWriter(_Writer):
    """Writes containers in several processes, each container in one of them."""

    @abstractmethod
    def write(self, job: _Job) -> int:
        """Write one container in one step. Returns the number of its images."""

    def write_all(self, jobs: list[_Job], processes: int | None) -> Iterator[int]:
        for done in run_parallel(self.write, jobs, processes=processes, chunk=1):
            yield sum(done)


class _Tar(_ShardWriter):
    """WebDataset's: tar files whose members 000000012.jpg and 000000012.cls are one sample."""

    def file_name(self, number: int) -> str:
        return f"shard-{number:06d}.tar"

    def write(self, job: _Job) -> int:
        if not os.path.exists(job.path):  # noqa: PTH110 - of a call that was interrupted
            with (
                replace_file(job.path) as file,
                tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar,
            ):
                for number, (path, label) in enumerate(zip(job.paths, job.labels, strict=True)):
                    for suffix, data in (("jpg", _read(path)), ("cls", str(label).encode())):
                        member = tarfile.TarInfo(f"{job.first + number:09d}.{suffix}")
                        member.size = len(data)
                        tar.addfile(member, io.BytesIO(data))
        return len(job.paths)


class _Litdata(_ShardWriter):
    """litdata's chunks, by its own BinaryWriter: {"image": bytes, "index": int, "label": int} a sample."""

    def check_available(self) -> None:
        _litdata_writer()

    def file_name(self, number: int) -> str:
        return f"chunk-0-{number}.bin"

    def write(self, job: _Job) -> int:
        if not os.path.exists(job.path):  # noqa: PTH110 - of a call that was interrupted
            work = Path(f"{job.path}.work")
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            writer = _litdata_writer().BinaryWriter(str(work), chunk_size=len(job.paths) + 1)
            for number, (path, label) in enumerate(zip(job.paths, job.labels, strict=True)):
                writer.add_item(number, {"image": _read(path), "index": job.first + number, "label": label})
            writer.done()
            (work / "0.index.json").replace(f"{job.path}{PIECE_SUFFIX}")
            (work / "chunk-0-0.bin").replace(job.path)
            work.rmdir()
        return len(job.paths)

    def side_files(self, files: ImageIndex, first: NDArray[np.int64]) -> dict[str, str]:
        chunks = []
        for path in files.paths():
            described: Any = parsed(read_bytes(Path(f"{path}{PIECE_SUFFIX}")))
            chunks.append({**described["chunks"][0], "filename": Path(path).name})
        return {"index.json": json.dumps({"chunks": chunks, "config": described["config"]}, sort_keys=True)}


def _litdata_writer() -> Any:
    try:
        with standing_in():  # it imports torch
            return importlib.import_module("litdata.streaming.writer")
    except lacking.LOAD_ERRORS as error:
        raise lacking.package("litdata", error, "pip install 'loaderbench[litdata]'") from error


class _Beton(_Writer):
    """FFCV's .beton of sound images: fields `image` (mode jpg) and `label`. By FFCV's types, but not its DatasetWriter.

    DatasetWriter takes decoded pixels and encodes them again, and it waits forever for a worker that died.
    The layout is DatasetWriter's: header, descriptors of the fields, a row a sample, pages that no sample crosses, and
    a table of (sample, offset, bytes).
    """

    one_file = True

    def check_available(self) -> None:
        _ffcv()

    def file_name(self, number: int) -> str:
        return "images.beton"

    def write_all(self, jobs: list[_Job], processes: int | None) -> Iterator[int]:
        (job,) = jobs
        if os.path.exists(job.path):  # noqa: PTH110 - of a call that was interrupted
            yield len(job.paths)
            return
        types, fields, pages = _ffcv()
        handlers = [fields.RGBImageField(), fields.IntField()]
        sound, broken = [], {}
        for number, path in enumerate(job.paths):
            size, found, reason = check_file(path)
            if found is None:
                if reason is not None and reason.startswith("cannot be read"):
                    raise CaseFailed(f"{path} {reason}")
                broken[number] = reason
            elif found.num_components == CMYK_COMPONENTS:
                broken[number] = "CMYK, which FFCV does not decode"
            else:
                sound.append((number, size, found))
        rows = np.zeros(len(sound), dtype=types.get_metadata_type(handlers))
        table = np.zeros(len(sound), dtype=types.ALLOC_TABLE_TYPE)
        header = np.zeros(1, dtype=types.HeaderType)
        descriptors = np.zeros(len(handlers), dtype=types.FieldDescType)
        type_ids = {handler: number for number, handler in types.TYPE_ID_HANDLER.items()}
        for descriptor, name, handler in zip(descriptors, BETON_FIELDS, handlers, strict=True):
            descriptor["type_id"] = type_ids[type(handler)]
            descriptor["name"][: len(name)] = np.frombuffer(name.encode(), dtype=np.uint8)
        page_bytes = pages.MIN_PAGE_SIZE
        while page_bytes < IMAGES_PER_PAGE * max((size for _, size, _ in sound), default=0):
            page_bytes *= 2
        end = header.nbytes + descriptors.nbytes + rows.nbytes
        with replace_file(job.path) as file:
            for place, (number, size, image) in enumerate(sound):
                if place == 0 or end % page_bytes + size > page_bytes:
                    end += -end % page_bytes
                encoded = _read(job.paths[number])
                file.seek(end)
                file.write(encoded)
                rows[place] = ((IMAGE_MODE_JPG, image.width, image.height, end), job.labels[number])
                table[place] = (place, end, len(encoded))
                end += len(encoded)
                yield 1
            end += -end % page_bytes
            header[0] = (types.CURRENT_VERSION, len(handlers), page_bytes, len(sound), end)
            file.seek(end)
            file.write(table.tobytes())
            file.seek(0)
            for part in (header, descriptors, rows):
                file.write(part.tobytes())
            with replace_file(f"{job.path}{PIECE_SUFFIX}") as piece:
                piece.write(json.dumps(broken).encode())
        yield len(broken)

    def side_files(self, files: ImageIndex, first: NDArray[np.int64]) -> dict[str, str]:
        return {BROKEN_FILE: read_bytes(Path(f"{files.path(0)}{PIECE_SUFFIX}")).decode()}


def _ffcv() -> tuple[Any, Any, Any]:
    """FFCV's types, fields and writer."""
    try:
        with standing_in():  # it imports torch
            types, fields, writer = (importlib.import_module(f"ffcv.{name}") for name in ("types", "fields", "writer"))
    except lacking.LOAD_ERRORS as error:
        raise lacking.package("FFCV", error, INSTALL_FFCV) from error
    return types, fields, writer


def broken_images(shards: ShardSet) -> list[tuple[int, str]]:
    """(position, reason) of the images that a .beton of `shards` leaves out."""
    found: dict[str, str] = json.loads(shards.side_files[BROKEN_FILE])
    return [(int(position), reason) for position, reason in found.items()]


WRITERS: dict[str, _Writer] = {"wds": _Tar(), "litdata": _Litdata(), "ffcv": _Beton()}
