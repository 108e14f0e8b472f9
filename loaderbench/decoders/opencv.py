"""OpenCV's decoders of JPEG (libjpeg-turbo), PNG and WebP, without its threads, from the extra `opencv`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loaderbench import lacking
from loaderbench.decoders.arrays import crop_resize_array, put
from loaderbench.decoders.base import DecodeError, Geometry, read_size
from loaderbench.decoders.pillow import PillowDecoder
from loaderbench.errors import UnavailableError
from loaderbench.images.jpeg import CMYK_COMPONENTS, JpegHeader
from loaderbench.plain import JsonObject

try:
    import cv2
except lacking.LOAD_ERRORS as error:
    raise lacking.package("OpenCV", error, "pip install 'loaderbench[opencv]'") from error

RESIZES = {
    "antialias": "torch antialiased bilinear, uint8",
    "area": "OpenCV INTER_AREA (a box filter where it shrinks, bilinear where it enlarges)",
    "linear": "OpenCV INTER_LINEAR (not antialiased)",
}
END_OF_IMAGE, START_OF_SCAN = b"\xff\xd9", b"\xff\xda"
"""Markers, which cannot occur within entropy-coded data (ITU-T T.81, B.1.1.2 and F.1.2.3)."""


@dataclass(frozen=True)
class Options:
    """Says how to resize the crop."""

    resize: Literal["antialias", "area", "linear"] = "antialias"
    """antialias: the filter of every other decoder here, so that their pixels agree; area
    and linear are OpenCV's own, faster, and 0.5 and 1 to 2 levels away from Pillow's on average."""


class OpenCvDecoder:
    """Decodes with `cv2.imdecode`, in the calling thread.

    OpenCV makes a grey picture of a truncated file: files without an end-of-image marker after their last scan are
    refused here. OpenCV does not report other damage inside the data. CMYK files go through Pillow, as with turbojpeg.
    """

    name = "opencv"
    releases_gil = True

    def __init__(self, resize: str) -> None:
        self._resize = resize
        self._filter = {"area": cv2.INTER_AREA, "linear": cv2.INTER_LINEAR}.get(resize)
        self._pillow = PillowDecoder()
        # The loader's workers already use the processors: OpenCV's own threads would compete with them.
        cv2.setNumThreads(0)

    def decode(self, encoded: bytes) -> NDArray[np.uint8]:
        header = read_size(encoded)
        if isinstance(header, JpegHeader):
            if header.num_components == CMYK_COMPONENTS:
                return self._pillow.to_array(self._pillow.decode(encoded))
            if encoded.rfind(END_OF_IMAGE) < encoded.rfind(START_OF_SCAN):
                raise DecodeError("truncated: no end-of-image marker")
        flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
        try:
            decoded: Any = cv2.imdecode(np.frombuffer(encoded, dtype=np.uint8), flags)
        except cv2.error as error:
            raise DecodeError(str(error).strip().splitlines()[-1]) from error
        if decoded is None:
            raise DecodeError("OpenCV cannot decode it")
        pixels: NDArray[np.uint8] = decoded
        return pixels

    def size(self, pixels: NDArray[np.uint8]) -> tuple[int, int]:
        return pixels.shape[0], pixels.shape[1]

    def crop_resize(self, pixels: NDArray[np.uint8], geometry: Geometry, out: NDArray[np.uint8]) -> None:
        if self._filter is None:
            crop_resize_array(pixels, geometry, out)
            return
        box = pixels[geometry.top : geometry.top + geometry.height, geometry.left : geometry.left + geometry.width]
        resized = cv2.resize(box, (geometry.resized_width, geometry.resized_height), interpolation=self._filter)
        height, width = out.shape[:2]
        window = resized[geometry.window_top : geometry.window_top + height, geometry.window_left :][:, :width]
        put(window, out, flip=geometry.flip)

    def to_array(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return pixels

    def __reduce__(self) -> Any:
        return OpenCvDecoder, (self._resize,)  # in a worker that is spawned the threads must be turned off again

    def describe(self) -> JsonObject:
        return {"library": "opencv", "version": cv2.__version__, "resize": RESIZES[self._resize]}


def build(options: Options, context: object = None) -> OpenCvDecoder:
    """
    Raises:
        UnavailableError: an OpenCV that cannot give RGB.
    """
    if not hasattr(cv2, "IMREAD_COLOR_RGB"):
        raise UnavailableError(
            f"OpenCV {cv2.__version__} is too old; `pip install 'loaderbench[opencv]'` (4.11 or newer)"
        )
    return OpenCvDecoder(options.resize)
