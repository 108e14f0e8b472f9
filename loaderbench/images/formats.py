"""The kinds of image files that are read, and what the bytes of a PNG or a WebP tell without decoding them.

Sources: PNG (Third Edition), W3C Recommendation 2025, 5 and 11.2; RFC 9649 (WebP), 2. For JPEG: jpeg.py.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from loaderbench.cases.traits import Format

SUFFIXES: Mapping[str, Format] = MappingProxyType({".jpg": "jpeg", ".jpeg": "jpeg", ".png": "png", ".webp": "webp"})
"""By which a file of a tree is taken for an image, compared in lower case."""
PNG_SIGNATURE, PNG_END = b"\x89PNG\r\n\x1a\n", b"\0\0\0\0IEND\xaeB`\x82"
RIFF_BYTES = 8
"""Of a RIFF file that its own length does not count."""
MOST_HEAD = 33
"""Bytes of a file that hold its size in pixels: a PNG's IHDR ends here, and a WebP's first chunk begins sooner."""
VP8L_SIGNATURE, VP8_START = 0x2F, b"\x9d\x01\x2a"


class Size(NamedTuple):
    """A picture's size in pixels."""

    width: int
    height: int


class NotReadableError(ValueError):
    """The bytes are no complete PNG or WebP; the message says why."""


def format_of(head: bytes) -> Format | None:
    """The kind of a file that begins so; None where it is none of FORMATS."""
    if head.startswith(b"\xff\xd8"):
        return "jpeg"
    if head.startswith(PNG_SIGNATURE):
        return "png"
    return "webp" if head[:4] == b"RIFF" and head[8:12] == b"WEBP" else None


def size_of(head: bytes) -> Size:
    """Size of a PNG or WebP from its first MOST_HEAD bytes.

    >>> size_of(PNG_SIGNATURE + bytes.fromhex("0000000d" "49484452" "00000300" "00000200"))
    Size(width=768, height=512)

    Raises:
        NotReadableError
    """
    size = _png_size(head) if head.startswith(PNG_SIGNATURE) else _webp_size(head)
    if not size.width or not size.height:
        raise NotReadableError("damaged header: an image of no pixels")
    return size


def _png_size(head: bytes) -> Size:
    if len(head) < 24:
        raise NotReadableError("truncated: it ends within its header")
    if head[12:16] != b"IHDR":
        raise NotReadableError("damaged header: no IHDR chunk at the beginning")
    return Size(int.from_bytes(head[16:20]), int.from_bytes(head[20:24]))


def _webp_size(head: bytes) -> Size:
    """From the chunk that comes first: VP8X (extended), VP8L (lossless) or VP8 (lossy)."""
    if len(head) < 30:
        raise NotReadableError("truncated: it ends within its header")
    match head[12:16]:
        case b"VP8X":
            return Size(int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1)
        case b"VP8L" if head[20] == VP8L_SIGNATURE:
            bits = int.from_bytes(head[21:25], "little")
            return Size((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        case b"VP8 " if head[23:26] == VP8_START:
            return Size(*(int.from_bytes(head[at : at + 2], "little") & 0x3FFF for at in (26, 28)))
    raise NotReadableError("damaged header: no VP8, VP8L or VP8X chunk at the beginning")


def check_end(kind: Format, num_bytes: int, head: bytes, tail: bytes) -> None:
    """Raises NotReadableError where a PNG or WebP of `num_bytes` is cut off. `tail`: its last 12 bytes or more."""
    if kind == "png" and PNG_END not in tail:
        raise NotReadableError("truncated: no IEND chunk")
    if kind == "webp" and int.from_bytes(head[4:8], "little") + RIFF_BYTES > num_bytes:
        raise NotReadableError("truncated: shorter than its header says")


def check_png(encoded: bytes) -> None:
    """Check that every chunk of a PNG is there and has its checksum: about 1 ms for 1 MB.

    Decoders treat damage differently: Pillow makes a picture of damaged data, OpenCV refuses them, and torchvision's
    operator ends the process (SIGSEGV where libpng reports an error; 0.29).

    Raises:
        NotReadableError
    """
    at, view = len(PNG_SIGNATURE), memoryview(encoded)
    while at + 12 <= len(encoded):
        length = int.from_bytes(view[at : at + 4])
        end = at + 12 + length
        if end > len(encoded):
            break
        if zlib.crc32(view[at + 4 : end - 4]) != int.from_bytes(view[end - 4 : end]):
            name = encoded[at + 4 : at + 8].decode("ascii", "replace")
            raise NotReadableError(f"damaged: the checksum of its chunk {name} is wrong")
        if encoded[at + 4 : at + 8] == b"IEND":
            return
        at = end
    raise NotReadableError("truncated: no IEND chunk")
