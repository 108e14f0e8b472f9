"""torchvision's own operators for JPEG (libjpeg-turbo), PNG (libpng) and WebP (libwebp), to tensors without Pillow.

torchvision 0.29 deprecates it in favour of torchcodec and warns at every call of its Python function;
the operator below it is called here; the decoder is unavailable where torchvision lacks that operator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torchvision
from numpy.typing import NDArray
from torchvision.io import ImageReadMode

from loaderbench.cases.traits import Format
from loaderbench.decoders.arrays import crop_resize_array
from loaderbench.decoders.base import DecodeError, Geometry, read_size
from loaderbench.errors import UnavailableError
from loaderbench.images.formats import format_of
from loaderbench.plain import JsonObject


@dataclass(frozen=True)
class Options:
    """No options."""


def _planes(data: torch.Tensor, kind: Format | None) -> torch.Tensor:
    """uint8 [3, H, W]"""
    rgb, operators = ImageReadMode.RGB.value, torch.ops.image
    if kind == "webp":
        found: torch.Tensor = operators.decode_webp(data, rgb)
    else:
        found = (operators.decode_png if kind == "png" else operators.decode_jpeg)(data, rgb, False)
    return found if found.dtype is torch.uint8 else (found.to(torch.int32) >> 8).to(torch.uint8)


class TorchvisionDecoder:
    """The operators of `torchvision.io`, and torch's antialiased bilinear resize."""

    name = "torchvision"
    releases_gil = True

    def decode(self, encoded: bytes) -> NDArray[np.uint8]:
        read_size(encoded)  # it also keeps damaged PNGs from libpng: formats.check_png
        try:
            # A copy (5 µs per 100 KB), because torch warns about buffers that it may not write to.
            data = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
            planes = _planes(data, format_of(encoded))
        except (RuntimeError, ValueError) as error:
            raise DecodeError(str(error).partition("\n")[0].rpartition(": ")[2]) from error
        pixels: NDArray[np.uint8] = planes.permute(1, 2, 0).numpy()
        return pixels

    def size(self, pixels: NDArray[np.uint8]) -> tuple[int, int]:
        return pixels.shape[0], pixels.shape[1]

    def crop_resize(self, pixels: NDArray[np.uint8], geometry: Geometry, out: NDArray[np.uint8]) -> None:
        crop_resize_array(pixels, geometry, out)

    def to_array(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return pixels

    def describe(self) -> JsonObject:
        return {
            "library": "torchvision",
            "version": torchvision.__version__,
            "resize": "torch antialiased bilinear, uint8",
        }


def build(options: Options, context: object = None) -> TorchvisionDecoder:
    """Raises UnavailableError where torchvision has no JPEG operator (any more)."""
    if not hasattr(torch.ops.image, "decode_jpeg"):
        raise UnavailableError(f"torchvision {torchvision.__version__} has no JPEG operator; use --decoder turbojpeg")
    return TorchvisionDecoder()
