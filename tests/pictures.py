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


def many_scans(side: int, num_scans: int, frame: int = 0xC2) -> bytes:
    """A flat JPEG of side × side pixels and so many scans, of which each but the first says that nothing changes.

    `frame`: the marker of the frame header. 0xC2, progressive: whole and valid. 0xC0, sequential, its three components
    apart, and 0xCA, progressive with arithmetic coding: scans without data, of which libjpeg makes grey.
    """

    def segment(marker: int, content: bytes) -> bytes:
        return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content

    def packed(bits: str) -> bytes:
        bits += "1" * (-len(bits) % 8)
        return bytes(int(bits[at : at + 8], 2) for at in range(0, len(bits), 8)).replace(b"\xff", b"\xff\0")

    num_components = 3 if frame == 0xC0 else 1
    components = b"".join(bytes([1 + number, 0x11, 0]) for number in range(num_components))
    head = segment(0xDB, bytes([0, *[16] * 64]))
    head += segment(frame, struct.pack(">BHHB", 8, side, side, num_components) + components)
    # "0" is a DC difference of 0. Runs of 2^n blocks at least, n up to 14, that end here: n in five bits.
    head += segment(0xC4, bytes([0x00, 1, *[0] * 15, 0]))
    head += segment(0xC4, bytes([0x10, *[0] * 4, 15, *[0] * 11, *(n << 4 for n in range(15))]))
    num_blocks = (-(-side // 8)) ** 2
    runs, left = "", num_blocks
    while left:
        run = min(left, 2**15 - 1)
        runs += f"{run.bit_length() - 1:05b}" + f"{run:b}"[1:]
        left -= run
    whole = frame == 0xC2
    first = segment(0xDA, bytes([1, 1, 0, 0, 63 if frame == 0xC0 else 0, 0])) + packed("0" * num_blocks * whole)
    other = segment(0xDA, bytes([1, 1, 0, 1, 63, 0])) + packed(runs * whole) if frame != 0xC0 else first
    return b"\xff\xd8" + head + first + other * (num_scans - 1) + b"\xff\xd9"


def encode_441(pixels: NDArray[np.uint8]) -> bytes:
    """A valid 4:4:1 JPEG. No encoder here writes these: it is a 4:1:1 one whose blocks of 32×8 pixels are told to be
    8×32, so it shows the picture in another order of blocks. `pixels` has sides that are multiples of 32."""
    height, width = pixels.shape[:2]
    assert height % 32 == width % 32 == 0
    wide = simplejpeg.encode_jpeg(pixels, 95, colorsubsampling="411")
    return claiming(wide, width // 4, height * 4, luma_sampling=0x14)
