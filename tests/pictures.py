"""JPEGs and image trees cut from photographs."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image


def encode(pixels: NDArray[np.uint8], **options: object) -> bytes:
    """JPEG bytes of uint8 [H, W, 3] (or [H, W]) pixels."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", **{"quality": 90, **options})
    return buffer.getvalue()


def write_tree(root: Path, photographs: list[NDArray[np.uint8]], sizes: list[tuple[int, int]]) -> None:
    """An ImageFolder tree of three classes; picture k is cut from a photograph to sizes[k] (width, height)."""
    for number, (width, height) in enumerate(sizes):
        photograph = photographs[number % len(photographs)]
        top, left = (7 * number) % (photograph.shape[0] - height), (11 * number) % (photograph.shape[1] - width)
        path = root / f"class{number % 3}" / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(photograph[top : top + height, left : left + width], progressive=number % 5 == 0))


def claiming(encoded: bytes, width: int, height: int, luma_sampling: int | None = None) -> bytes:
    """A JPEG whose frame header says that it has this size (and these sampling factors), around the same data."""
    at = encoded.index(b"\xff\xc0")
    frame = bytearray(encoded[at : at + 19])
    frame[5:9] = struct.pack(">HH", height, width)
    if luma_sampling is not None:
        frame[11] = luma_sampling
    return encoded[:at] + bytes(frame) + encoded[at + 19 :]


def encode_441(pixels: NDArray[np.uint8]) -> bytes:
    """A valid 4:4:1 JPEG. No encoder here writes these: it is a 4:1:1 one whose blocks of 32×8 pixels are told to be
    8×32, so it shows the picture in another order of blocks. `pixels` has sides that are multiples of 32."""
    height, width = pixels.shape[:2]
    assert height % 32 == width % 32 == 0
    wide = simplejpeg.encode_jpeg(pixels, 95, colorsubsampling="411")
    return claiming(wide, width // 4, height * 4, luma_sampling=0x14)
