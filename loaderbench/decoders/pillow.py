"""Pillow: what torchvision's ImageFolder uses, so what most training scripts decode with."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, _imaging, features

from loaderbench.decoders.base import DecodeError, Geometry, read_size, tells_enough
from loaderbench.errors import UnavailableError
from loaderbench.plain import JsonObject
from loaderbench.prefixes import folder

FORMATS = ("JPEG", "PNG", "WEBP")
"""What Pillow may take a file for. By default it goes by the content: a PostScript file that is called .jpg would be
given to Ghostscript."""
HEAD_BYTES = 4096
"""Fits a file's buffer, so that seeking back to the start needs no second read."""


@dataclass(frozen=True)
class Options:
    """No options."""


def open_image(encoded: bytes) -> Image.Image:
    """An image whose pixels are not decoded yet. Raises what Pillow raises; DecodeError as `read_size`."""
    read_size(encoded)
    return Image.open(io.BytesIO(encoded), formats=FORMATS)


def as_rgb(image: Image.Image) -> Image.Image:
    """An image of another mode in RGB; of 16 bits the upper 8, where Pillow's own conversion would cut off at 255."""
    if image.mode.startswith("I"):  # a PNG of 16 bits of grey: "I;16", in older versions "I"
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    image.info.pop("transparency", None)  # Pillow warns that RGB has none
    return image.convert("RGB")


@contextmanager
def _told(encoded: bytes) -> Iterator[None]:
    """Turns what Pillow raises on broken data (OSError, SyntaxError, ValueError …) into DecodeError."""
    try:
        yield
    except (DecodeError, MemoryError):
        raise
    except Exception as error:
        raise DecodeError("empty file" if not encoded else str(error).partition(" <_io")[0]) from error


class PillowDecoder:
    """Decodes and resizes with Pillow. The full image stays a PIL image: it is never copied to an array."""

    name = "pillow"
    releases_gil = True

    def __init__(self) -> None:
        Image.preinit()  # registering file formats is not thread-safe

    def decode(self, encoded: bytes) -> Image.Image:
        with _told(encoded):
            image = open_image(encoded)
            if image.mode != "RGB":
                return as_rgb(image)
            image.load()
        return image

    def load(self, file: BinaryIO) -> Image.Image:
        head = file.read(HEAD_BYTES)
        with _told(head):
            if not tells_enough(head):
                return as_rgb(open_image(head + file.read()))
            file.seek(0)
            return as_rgb(Image.open(file, formats=FORMATS))

    def size(self, pixels: Image.Image) -> tuple[int, int]:
        return pixels.height, pixels.width

    def crop_resize(self, pixels: Image.Image, geometry: Geometry, out: NDArray[np.uint8]) -> None:
        top, left, box_height, box_width, resized_height, resized_width, window_top, window_left, flip = geometry
        height, width = out.shape[:2]
        image = pixels
        if (box_height, box_width) != (pixels.height, pixels.width):
            image = image.crop((left, top, left + box_width, top + box_height))
        if (resized_height, resized_width) != (box_height, box_width):
            image = image.resize((resized_width, resized_height), Image.Resampling.BILINEAR)
        if flip:  # Pillow mirrors 224² in 0.05 ms, numpy's [:, ::-1] in 0.4
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            window_left = image.width - window_left - width
        out[...] = np.asarray(image)[window_top : window_top + height, window_left : window_left + width]

    def to_array(self, pixels: Image.Image) -> NDArray[np.uint8]:
        return np.asarray(pixels)

    def describe(self) -> JsonObject:
        """Which Pillow this process has loaded, and what it does: `core` is the path of the compiled module."""
        core = Path(str(_imaging.__file__))
        return {
            "library": "pillow-simd" if is_simd() else "pillow",
            "version": PIL.__version__,
            "core": "loaderbench install" if core.is_relative_to(folder("pillow-simd")) else "this environment",
            "core_sha256": hashlib.sha256(core.read_bytes()).hexdigest()[:16],
            "libjpeg_turbo": features.version("libjpeg_turbo"),
            "resize": "Pillow BILINEAR (antialiased)",
        }


def is_simd() -> bool:
    """The loaded Pillow is pillow-simd, whose versions are Pillow's with `.postN`."""
    return ".post" in PIL.__version__


def build(options: Options, context: object = None) -> PillowDecoder:
    """Raises UnavailableError where the module `PIL` is pillow-simd: a figure for Pillow would be another library's."""
    if is_simd():
        raise UnavailableError(
            f"this environment has pillow-simd {PIL.__version__} instead of Pillow: use --decoder "
            "pillow-simd, or `pip uninstall pillow-simd` and `pip install --force-reinstall pillow`"
        )
    return PillowDecoder()
