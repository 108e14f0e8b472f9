"""libjpeg-turbo's own API, for what no binding gives: only the part of a picture that the crop needs is decoded.

The C file next to this one is compiled on demand (a C compiler and libjpeg-turbo's headers; `doctor` tries it). It
makes whole samples: read, decode, resize, flip, written where they stay, one call for several images with the GIL
released. Its pixels are those of `turbojpeg` within 0.3 levels on average over a picture; `turbojpeg` takes its place
where it cannot be built.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loaderbench import native
from loaderbench.decoders.base import DecodeError, Filled, Geometry, Recipe, Stopped
from loaderbench.decoders.pillow import PillowDecoder
from loaderbench.errors import UnavailableError
from loaderbench.images.jpeg import MOST_PIXELS, MOST_SCANNED_PIXELS, SCAN_BYTES
from loaderbench.plain import JsonObject
from loaderbench.recording.facts import WAITING_READ_NS

SOURCE = Path(__file__).with_name("libjpeg.c")
LIMITS = {
    "MOST_PIXELS": MOST_PIXELS, "MOST_SCANNED_PIXELS": MOST_SCANNED_PIXELS, "SCAN_BYTES": SCAN_BYTES,
    "WAITING_READ_NS": WAITING_READ_NS,
}  # fmt: skip
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", *(f"-D{name}={limit}" for name, limit in LIMITS.items()))
"""Without fused multiply-add the crops are those of transform.py, digit by digit."""
MESSAGE_BYTES = 200
"""JMSG_LENGTH_MAX of jpeglib.h."""


class _Recipe(ctypes.Structure):
    _fields_ = [
        ("crop_scale", ctypes.c_double * 2),
        ("log_ratio", ctypes.c_double * 2),
        ("crop_ratio", ctypes.c_double * 2),
        ("flip_probability", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        *((name, ctypes.c_int32) for name in ("train", "whole", "short_side", "height", "width", "scale", "evict")),
    ]


class _Report(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in (
                "read_ns",
                "read_cpu_ns",
                "read_queue_ns",
                "decode_ns",
                "augment_ns",
                "encoded_bytes",
                "page_bytes",
            )
        ),
        *((name, ctypes.c_int32) for name in ("status", "error_number", "height", "width")),
        ("message", ctypes.c_char * MESSAGE_BYTES),
    ]


@dataclass(frozen=True)
class Options:
    """Says which part of a picture to decode."""

    scale: Literal["auto", "off"] = "off"
    """`auto`: large crops are decoded at 1/2, 1/4 or 1/8 (in the transform), never below the sample's size; `off`:
    at full size. `--decode-scale` sets it."""


@cache
def library() -> ctypes.CDLL:
    """Raises UnavailableError where it cannot be built or loaded."""
    try:
        built = native.build(SOURCE, ("jpeg", "m"), FLAGS)
        try:
            library = ctypes.CDLL(str(built))
        except OSError:  # built by another system that shares this cache, or truncated: rebuild it once
            built.unlink()
            library = ctypes.CDLL(str(native.build(SOURCE, ("jpeg", "m"), FLAGS)))
    except UnavailableError as error:
        raise UnavailableError(
            f"{error}; --decoder libjpeg needs a C compiler and libjpeg-turbo's headers "
            f"(`apt-get install gcc libjpeg62-turbo-dev`)"
        ) from error
    except OSError as error:
        raise UnavailableError(f"the compiled libjpeg decoder cannot be loaded: {error}") from error
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.lb_new.restype = pointer
    library.lb_new.argtypes = []
    library.lb_free.argtypes = [pointer]
    library.lb_choose.argtypes = [
        pointer, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64, pointer
    ]  # fmt: skip
    library.lb_make.argtypes = [pointer, pointer, ctypes.c_int, *[pointer] * 8]
    library.lb_size.argtypes = [pointer, ctypes.c_char_p, size, pointer]
    library.lb_decode.argtypes = [pointer, ctypes.c_char_p, size, pointer, pointer]
    library.lb_resize.argtypes = [pointer, pointer, size, pointer, ctypes.c_int, ctypes.c_int, pointer, pointer]
    library.lb_version.restype = ctypes.c_char_p
    return library


def c_recipe(recipe: Recipe, scale: str) -> _Recipe:
    return _Recipe(
        recipe.crop_scale, recipe.log_ratio, recipe.crop_ratio, recipe.flip_probability, recipe.seed,
        recipe.train, recipe.whole, recipe.short_side, recipe.height, recipe.width, scale == "auto", recipe.evict,
    )  # fmt: skip


class _Maker:
    """The C file's memory of one thread, reused for every image."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.report = _Report()
        self.report_at = ctypes.addressof(self.report)
        self.handle = library.lb_new()
        if not self.handle:
            raise MemoryError("libjpeg could not be initialised")

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.library.lb_free(self.handle)

    def told(self) -> str:
        text: bytes = self.report.message
        return text.decode("utf-8", "replace")

    def check(self, status: int) -> None:
        if status == Stopped.NO_MEMORY:
            raise MemoryError(self.told())
        if status:
            raise DecodeError(self.told())


class _OfThread(threading.local):
    maker: _Maker | None = None


class Filler:
    """Makes samples of one recipe (decoders.base.SlotFiller)."""

    def __init__(self, library: ctypes.CDLL, recipe: Recipe, scale: str) -> None:
        self._maker = _Maker(library)
        self._recipe = c_recipe(recipe, scale)

    def fill(
        self,
        files: Sequence[bytes],
        indices: NDArray[np.int64],
        epochs: NDArray[np.int64],
        slots: NDArray[np.uint8],
        *,
        in_memory: bool,
    ) -> Filled:
        maker, report, num = self._maker, self._maker.report, len(files)
        pointers = (ctypes.c_char_p * num)(*files)
        sizes = (ctypes.c_int64 * num)(*map(len, files)) if in_memory else None
        times = None if in_memory else np.zeros((num, 4), dtype=np.int64)
        num_made = maker.library.lb_make(
            maker.handle, ctypes.byref(self._recipe), num, None if in_memory else pointers,
            pointers if in_memory else None, sizes, indices.ctypes.data, epochs.ctypes.data, slots.ctypes.data,
            None if times is None else times.ctypes.data, maker.report_at,
        )  # fmt: skip
        if report.status == Stopped.NO_MEMORY:
            raise MemoryError(maker.told())
        return Filled(
            num_made, report.read_ns, report.read_cpu_ns, report.read_queue_ns, report.decode_ns, report.augment_ns,
            report.encoded_bytes, report.page_bytes, Stopped(report.status) if report.status else None, maker.told(),
            report.error_number, (report.height, report.width), None if times is None else times[times[:, 0] > 0],
        )  # fmt: skip


class LibjpegDecoder:
    """Accurate DCT and smooth chroma upsampling, as Pillow sets them. Stricter than Pillow about damaged data.

    Damage below a crop is not seen, since it is not decoded; a file that ends before its end marker always is.
    CMYK files go through Pillow, whose colour conversion is the reference.
    """

    name = "libjpeg"
    releases_gil = True

    def __init__(self, options: Options) -> None:
        self._scale = options.scale
        self._library = library()
        self._pillow = PillowDecoder()
        self._of_thread = _OfThread()

    def __reduce__(self) -> tuple[Any, ...]:
        return LibjpegDecoder, (Options(self._scale),)

    def _maker(self) -> _Maker:
        if self._of_thread.maker is None:
            self._of_thread.maker = _Maker(self._library)
        return self._of_thread.maker

    def slot_filler(self, recipe: Recipe) -> Filler:
        return Filler(self._library, recipe, self._scale)

    def decode(self, encoded: bytes) -> NDArray[np.uint8]:
        maker = self._maker()
        status = self._library.lb_size(maker.handle, encoded, len(encoded), maker.report_at)
        if status == Stopped.NOT_HERE:
            return self._pillow.to_array(self._pillow.decode(encoded))
        maker.check(status)
        pixels = np.empty((maker.report.height, maker.report.width, 3), dtype=np.uint8)
        maker.check(self._library.lb_decode(maker.handle, encoded, len(encoded), pixels.ctypes.data, maker.report_at))
        return pixels

    def size(self, pixels: NDArray[np.uint8]) -> tuple[int, int]:
        return pixels.shape[0], pixels.shape[1]

    def crop_resize(self, pixels: NDArray[np.uint8], geometry: Geometry, out: NDArray[np.uint8]) -> None:
        maker = self._maker()
        pixels = np.ascontiguousarray(pixels)
        height, width = out.shape[:2]
        made = out if out.flags.c_contiguous else np.empty((height, width, 3), dtype=np.uint8)
        box = (ctypes.c_int * len(geometry))(*geometry)
        maker.check(
            self._library.lb_resize(
                maker.handle, pixels.ctypes.data, pixels.strides[0], ctypes.addressof(box), height, width,
                made.ctypes.data, maker.report_at,
            )
        )  # fmt: skip
        if made is not out:
            out[...] = made

    def to_array(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return pixels

    def describe(self) -> JsonObject:
        """`version` is that of the headers that it was compiled with."""
        return {
            "library": "libjpeg-turbo, region of interest",
            "version": self._library.lb_version().decode(),
            "scale": self._scale,
            "resize": "antialiased bilinear in C, within 2 levels of Pillow's",
        }


def build(options: Options, context: object = None) -> LibjpegDecoder:
    """
    Raises:
        UnavailableError: no compiler, no headers, or the library cannot be built.
    """
    return LibjpegDecoder(options)


def prove() -> str:
    """Build the library unless it is built already, and say what it was built against. Raises UnavailableError."""
    version = build(Options()).describe()["version"]
    return f"built against libjpeg-turbo {version}: decodes only what a crop needs"
