"""What a decoder is: encoded bytes to RGB pixels, and the one resize that every decoder's pixels get.

Every decoder gives 8-bit RGB. Grayscale and CMYK are converted. EXIF orientation is ignored, as
torchvision's ImageFolder does. A truncated file is an error, never a grey picture.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Pixels = Any
"""A decoded image in the decoder's own form (PIL image, uint8 array). Only the decoder that made it reads it."""


class DecodeError(Exception):
    """The bytes are no complete image. Python loaders count it and take the next sample."""


class Geometry(NamedTuple):
    """Where the output comes from: crop a box, resize it, take a window of the result, maybe mirror it."""

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
            DecodeError: not a JPEG, or a broken or truncated one.
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

    def describe(self) -> dict[str, Any]:
        """Facts for the record: library and version, resize."""
        ...


def fastest_installed() -> str:
    """Name of the decoder that prepares most images a second in threads.

    All three release the GIL while decoding. turbojpeg and torchvision decode with the same library
    and resize with the same operator; turbojpeg has the lower cost a call. Pillow takes about twice
    the CPU time an image.
    """
    return "turbojpeg"
