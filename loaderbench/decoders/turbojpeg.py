"""libjpeg-turbo through `simplejpeg`, whose wheels bring their own copy and release the GIL while decoding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from loaderbench.decoders.arrays import crop_resize_array
from loaderbench.decoders.base import DecodeError, Geometry, read_header
from loaderbench.decoders.pillow import PillowDecoder
from loaderbench.images.jpeg import CMYK_COMPONENTS
from loaderbench.plain import JsonObject

END_OF_IMAGE = b"\xff\xd9"
"""Cannot occur within entropy-coded data (ITU-T T.81, F.1.2.3), so its presence near the end means a whole file."""
TAIL_BYTES = 65536


@dataclass(frozen=True)
class Options:
    """No options."""


class TurboJpegDecoder:
    """Decodes with libjpeg-turbo's TurboJPEG API: accurate DCT, smooth chroma upsampling, as Pillow sets it.

    Stricter than Pillow about damage inside the data: what libjpeg only warns about is an error
    here, except stray bytes between markers, which every viewer skips.
    CMYK files (a few in a million on the web) go through Pillow, whose colour conversion is the reference, and so do
    samplings of the colours that simplejpeg has no name for, such as 4:4:1.
    """

    name = "turbojpeg"
    releases_gil = True

    def __init__(self) -> None:
        self._pillow = PillowDecoder()

    def decode(self, encoded: bytes) -> NDArray[np.uint8]:
        if read_header(encoded).num_components == CMYK_COMPONENTS:
            return self._pillow.to_array(self._pillow.decode(encoded))
        try:
            pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(encoded, "RGB")
        except KeyError:
            return self._pillow.to_array(self._pillow.decode(encoded))
        except ValueError as error:
            if "extraneous bytes" in str(error) and END_OF_IMAGE in encoded[-TAIL_BYTES:]:
                return self._decode_leniently(encoded)
            raise DecodeError(str(error)) from error
        return pixels

    def _decode_leniently(self, encoded: bytes) -> NDArray[np.uint8]:
        try:
            pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(encoded, "RGB", strict=False)
        except ValueError as error:
            raise DecodeError(str(error)) from error
        return pixels

    def size(self, pixels: NDArray[np.uint8]) -> tuple[int, int]:
        return pixels.shape[0], pixels.shape[1]

    def crop_resize(self, pixels: NDArray[np.uint8], geometry: Geometry, out: NDArray[np.uint8]) -> None:
        crop_resize_array(pixels, geometry, out)

    def to_array(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return pixels

    def describe(self) -> JsonObject:
        return {
            "library": "simplejpeg",
            "version": ".".join(str(part) for part in simplejpeg.__version_info__),
            "resize": "torch antialiased bilinear, uint8",
        }


def build(options: Options, context: object = None) -> TurboJpegDecoder:
    return TurboJpegDecoder()
