"""What the first bytes of a JPEG tell, read without decoding, and how large a picture may be."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

MOST_PIXELS = 178_956_970
"""A picture of more pixels is skipped, counted and named before memory is asked for it: a header of 20 bytes can claim
65,535² pixels, which are 12 GiB. This is where Pillow raises DecompressionBombError (2 × MAX_IMAGE_PIXELS: 512 MiB of
RGB); no other decoder here has such a limit, and all are to take the same files."""
MOST_SCANNED_PIXELS = 20 * MOST_PIXELS
"""A picture of more pixels × scans is skipped, counted and named before it is decoded: each scan passes through the
whole picture, and 10 bytes of file can say that it changes nothing, so that 187 kB held a worker for minutes. JPEG
itself sets no limit (libjpeg-turbo, "Two Issues with the JPEG Standard"); LibreOffice takes 100 scans, DALI 256,
libjpeg-turbo's fuzzers 500, and encoders write 10 or 11 (libjpeg, mozjpeg). Scans without content cost 0.2 to 0.9 ns a
pixel: 3 s at most, as the largest picture with its usual 10 scans takes (in arithmetic coding up to 25 s).
"""
SCAN_BYTES = 10
"""Of the shortest scan: its marker and a header of one component."""
MOST_MARKERS = 100_000
"""Before the frame header."""
CMYK_COMPONENTS = 4
SOI = b"\xff\xd8"
_SOS = 0xDA


class JpegHeader(NamedTuple):
    """A frame header."""

    width: int
    height: int
    progressive: bool
    end: int
    """Offset just after the frame header."""
    num_components: int
    """CMYK_COMPONENTS: CMYK or YCCK."""


class NotJpegError(ValueError):
    """The bytes are no JPEG that every decoder here can read; the message says why."""


_MAGIC = {
    b"\x89PNG": "PNG", b"GIF8": "GIF", b"RIFF": "WebP or another RIFF file", b"BM": "BMP", b"<": "text",
    b"%!PS": "PostScript", b"II*\0": "TIFF", b"MM\0*": "TIFF",
}  # fmt: skip
_FRAMES = {0xC0, 0xC1, 0xC2}
_PROGRESSIVE_FRAMES = {0xC2, 0xC6, 0xCA, 0xCE}
_OTHER_FRAMES = {0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
_BARE = {0x01, *range(0xD0, 0xD9)}
"""Markers without a length."""
_FILL = re.compile(rb"\xff+")


def too_large(width: int, height: int) -> str | None:
    """Why a picture of this size is not decoded; None where it is."""
    if width * height <= MOST_PIXELS:
        return None
    return f"{width}×{height} pixels exceed the limit of {MOST_PIXELS:,}"


def too_many_scans(encoded: bytes, header: JpegHeader) -> str | None:
    """Why a picture with so many scans is not decoded; None where it is.

    Takes 1 µs where the file is too short for so many scans, or its first one holds all components; else 40 µs for
    100 kB, 0.7 % of decoding it. What is behind the picture is looked through as well: 65,536 random bytes hold one
    marker by chance.
    """
    most = most_scans(header)
    if len(encoded) - header.end <= most * SCAN_BYTES or not has_several_scans(encoded, header.end, header):
        return None
    values = np.frombuffer(encoded, dtype=np.uint8, offset=header.end)
    num_scans = int(np.count_nonzero(values[np.flatnonzero(values[1:] == _SOS)] == 0xFF))
    if num_scans <= most:
        return None
    return f"too costly to decode: {num_scans} scans of {header.width}×{header.height} pixels, of at most {most}"


def most_scans(header: JpegHeader) -> int:
    """How many scans a picture of this size may have: see MOST_SCANNED_PIXELS."""
    return MOST_SCANNED_PIXELS // (header.width * header.height)


def has_several_scans(encoded: bytes, at: int, header: JpegHeader) -> bool:
    """Whether a decoder reads more than one scan: of a progressive picture, or where the first holds some components
    only. `at`: where in `encoded` the segments behind the frame header begin. True where they end too soon to tell."""
    while not header.progressive and at + 5 <= len(encoded) and encoded[at] == 0xFF:
        if encoded[at + 1] == _SOS:
            return encoded[at + 4] < header.num_components
        at += 2 + (encoded[at + 2] << 8 | encoded[at + 3])
    return True


def parse_jpeg_header(head: bytes) -> JpegHeader | None:
    """Size and kind of a JPEG from its first bytes (ITU-T T.81, annex B); None where more bytes are needed.

    >>> parse_jpeg_header(bytes.fromhex("ffd8" "ffe0" "0004" "0000" "ffc2" "000b" "08" "0200" "0300" "01" "012200"))
    JpegHeader(width=768, height=512, progressive=True, end=21, num_components=1)

    Raises:
        NotJpegError: this is not a JPEG, or of a kind (lossless, arithmetic) that not every decoder reads.
    """
    check_start(head)
    found = find_frame(head, 2)
    return found if isinstance(found, JpegHeader) else None


def check_start(head: bytes) -> None:
    """Raises NotJpegError where a file that begins so is no JPEG; the message says what it is."""
    if head[:2] != SOI[: len(head)]:
        kind = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "unknown")
        raise NotJpegError(f"not a JPEG ({kind} content)")


def find_frame(head: bytes, at: int, *, lenient: bool = False) -> JpegHeader | int:
    """The frame header that comes at or after the marker at `at`, or the offset at which to read on: that of the first
    marker that is not in `head`, which may be cut off at any byte.

    `lenient`: as libjpeg goes through a header. It skips stray bytes between markers, and knows all kinds of frames.

    Raises:
        NotJpegError: see parse_jpeg_header.
    """
    for _ in range(MOST_MARKERS):
        if at + 4 > len(head):
            return at
        marker = head[at + 1]
        if head[at] != 0xFF or (lenient and marker == 0):
            if not lenient:
                raise NotJpegError("damaged header: a marker is missing")
            at = head.find(b"\xff", at + 1)
            if at < 0:
                return len(head)
        elif marker in _FRAMES or (lenient and marker in _OTHER_FRAMES):
            return _frame(head, at)
        elif marker == 0xFF:  # fill bytes
            fill = _FILL.match(head, at)
            assert fill is not None
            at = fill.end() - 1
        elif marker in _OTHER_FRAMES:
            raise NotJpegError(
                f"a kind of JPEG that not every decoder reads (frame marker FF{marker:02X}: lossless or arithmetic)"
            )
        elif marker in (0xD9, 0xDA):
            raise NotJpegError("damaged header: no frame header before the image data")
        else:
            at += 2 if marker in _BARE else 2 + (head[at + 2] << 8 | head[at + 3])
    raise NotJpegError(f"damaged header: no frame header within {MOST_MARKERS:,} markers")


def _frame(head: bytes, at: int) -> JpegHeader | int:
    if at + 10 > len(head):
        return at
    length, height, width = (head[at + i] << 8 | head[at + i + 1] for i in (2, 5, 7))
    if not width or not height:
        raise NotJpegError("damaged header: an image of no pixels")
    return JpegHeader(width, height, head[at + 1] in _PROGRESSIVE_FRAMES, at + 2 + length, head[at + 9])
