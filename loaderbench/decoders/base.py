"""Decoders turn encoded bytes into RGB pixels, and all of them share one resize.

Every decoder gives 8-bit RGB. Grayscale, CMYK and palettes are converted, transparency is dropped, of 16 bits the upper
8 are taken, and of an animation the first picture. EXIF orientation is ignored, as torchvision's ImageFolder does. A
truncated file is an error, never a grey picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.traits import FORMATS, format_names
from loaderbench.images.formats import NotReadableError, Size, check_end, check_png, format_of, size_of
from loaderbench.images.jpeg import (
    SOI,
    JpegHeader,
    NotJpegError,
    check_start,
    find_frame,
    has_several_scans,
    too_large,
    too_many_scans,
)
from loaderbench.plain import JsonObject

if TYPE_CHECKING:
    from PIL import Image

TAIL_BYTES = 65536
"""How far before the end of a PNG its last chunk may be: some programs append data of their own."""
Pixels = Any
"""A decoded image in the decoder's own form (PIL image, uint8 array). Only the decoder that made it reads it."""


class DecodeError(Exception):
    """The bytes are no complete image. Python loaders count it and take the next sample."""


def read_header(encoded: bytes) -> JpegHeader:
    """The header of a picture that may be decoded. A decoder calls this first: none of them has these limits.

    Raises:
        DecodeError: the bytes are no JPEG, one of more than MOST_PIXELS, or one of too many scans.
    """
    try:
        check_start(encoded)
        found = find_frame(encoded, 2, lenient=True)
    except NotJpegError as error:
        raise DecodeError(str(error)) from error
    if not isinstance(found, JpegHeader):
        raise DecodeError("truncated: it ends before its frame header" if encoded else "empty file")
    if reason := too_large(found.width, found.height) or too_many_scans(encoded, found):
        raise DecodeError(reason)
    return found


def tells_enough(head: bytes) -> bool:
    """Check if the first bytes show that the file may be decoded: a JPEG of one scan. For any other kind, the
    checks of `read_size` need all bytes."""
    try:
        check_start(head)
        found = find_frame(head, len(SOI))
    except NotJpegError:
        return False
    if not isinstance(found, JpegHeader) or too_large(found.width, found.height):
        return False
    return not has_several_scans(head, found.end, found)


def read_size(encoded: bytes) -> JpegHeader | Size:
    """Read the size of a picture, which must be complete; of a JPEG the header is enough.

    Every decoder of PNG or WebP calls this first, so that all refuse the same files.

    Raises:
        DecodeError: the bytes are empty, incomplete, damaged by their checksum, or exceed MOST_PIXELS.
    """
    kind = format_of(encoded)
    if kind == "jpeg" or not encoded:
        return read_header(encoded)
    if kind is None:
        raise DecodeError(f"not a {format_names(FORMATS)} file".replace(" and ", " or "))
    try:
        size = size_of(encoded)
        check_end(kind, len(encoded), encoded, encoded[-TAIL_BYTES:])
        if reason := too_large(*size):
            raise DecodeError(reason)
        if kind == "png":
            check_png(encoded)
    except NotReadableError as error:
        raise DecodeError(str(error)) from error
    return size


class Geometry(NamedTuple):
    """Describes the output's source: crop a box, resize it, take a window of the result, maybe mirror it."""

    top: int
    left: int
    height: int
    width: int
    resized_height: int
    resized_width: int
    window_top: int
    window_left: int
    flip: bool


class Decoder(Protocol):
    """Stateless: one instance may be used by many threads at once."""

    name: str
    releases_gil: bool
    """Decoding runs in parallel in threads of one process."""

    def decode(self, encoded: bytes) -> Pixels:
        """All pixels of one image.

        Raises:
            DecodeError: not of the decoder's formats (DecoderTraits), or broken or truncated.
        """
        ...

    def size(self, pixels: Pixels) -> tuple[int, int]:
        """(height, width)"""
        ...

    def crop_resize(self, pixels: Pixels, geometry: Geometry, out: NDArray[np.uint8]) -> None:
        """Write the part that `geometry` names into `out` (uint8 [H, W, 3], may be strided).

        The filter is antialiased bilinear (Pillow's BILINEAR) over the cropped box alone, as
        torchvision's `resized_crop` of a PIL image.
        """
        ...

    def to_array(self, pixels: Pixels) -> NDArray[np.uint8]:
        """uint8 [H, W, 3]"""
        ...

    def describe(self) -> JsonObject:
        """Facts for the record: library and version, resize."""
        ...


@dataclass(frozen=True)
class Recipe:
    """Describes in numbers how a filler makes a sample from a picture (`loaderbench.loaders.transform`)."""

    crop_scale: tuple[float, float]
    log_ratio: tuple[float, float]
    crop_ratio: tuple[float, float]
    flip_probability: float
    seed: int
    train: bool
    """Random crop and flip; else the shorter side to `short_side`, then the centre."""
    whole: bool
    """The stored picture, not resized: all must be height × width."""
    short_side: int
    height: int
    width: int
    evict: bool
    """Drop a file's pages from the page cache once it was read."""


class Stopped(IntEnum):
    """Why a filler made fewer samples than it was asked for."""

    BROKEN = 1
    NOT_HERE = 2
    """The decoder's own `decode` must handle this picture."""
    UNREADABLE = 3
    WRONG_SIZE = 4
    NO_MEMORY = 5


class Filled(NamedTuple):
    """Counts the work of a filler. Times and bytes include the sample that failed."""

    num_made: int
    read_ns: int
    read_cpu_ns: int
    """CPU time of reading, from some of the files."""
    read_queue_ns: int
    """Part of `read_ns` in which the thread waited for a CPU, for files after one that took WAITING_READ_NS."""
    decode_ns: int
    augment_ns: int
    encoded_bytes: int
    page_bytes: int
    """Sizes of the files read, each rounded up to whole pages."""
    stopped: Stopped | None
    reason: str
    error_number: int
    """errno, where a file could not be read."""
    size: tuple[int, int]
    """(height, width) of the picture that has another size."""
    times: NDArray[np.int64] | None = None
    """[files read, 4]: when opening each began, ns until it was open, ns until it was read, bytes; None where the bytes
    were in memory, or the filler does not report it."""


class SlotFiller(Protocol):
    """Makes whole samples, without the steps in between. Belongs to the thread that asked for it."""

    def fill(
        self,
        files: Sequence[bytes],
        indices: NDArray[np.int64],
        epochs: NDArray[np.int64],
        slots: NDArray[np.uint8],
        *,
        in_memory: bool,
    ) -> Filled:
        """Make one sample after another into `slots` (uint8 [N, H, W, 3], contiguous) until one cannot be made.

        `files` are paths, or the encoded bytes themselves (`in_memory`, which disables eviction).
        """
        ...


@runtime_checkable
class FillingDecoder(Protocol):
    """A decoder that decodes only the part of a picture that its sample needs."""

    def slot_filler(self, recipe: Recipe) -> SlotFiller: ...


@runtime_checkable
class PilDecoder(Protocol):
    """A decoder whose pixels are a PIL image, as torchvision's loader of image files gives them."""

    def load(self, file: BinaryIO) -> Image.Image:
        """All pixels of an open file, by what torchvision's `pil_loader` does: opened, read by the decoder itself, and
        converted to RGB, which copies what is RGB already.

        Raises:
            DecodeError: as `Decoder.decode`; also where reading failed.
        """
        ...


def fastest_installed() -> str:
    """Name of the decoder that prepares most images a second in threads, among those that need no compiler.

    All three release the GIL while decoding. turbojpeg and torchvision decode with the same library
    and resize with the same operator; turbojpeg has the lower cost a call. Pillow takes about twice
    the CPU time an image.
    """
    return "turbojpeg"
