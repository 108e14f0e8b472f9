"""PNG and WebP: the same pixels from every decoder that reads them, and never a picture from damaged data.

The expected pixels are the arrays that were encoded, without loss, and not what a decoder says of them.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from loaderbench import plugins
from loaderbench.decoders.base import DecodeError, Decoder, read_size
from loaderbench.decoders.pillow import PillowDecoder

ROWS, COLUMNS = np.mgrid[0:60, 0:80]
RGB = np.stack([COLUMNS * 3, ROWS * 4, COLUMNS + ROWS * 2], axis=-1).astype(np.uint8)
ALPHA = (COLUMNS * 5).astype(np.uint8)
DEEP = (COLUMNS.astype(np.uint16) * 700 + ROWS.astype(np.uint16) * 13).astype(np.uint16)
"""16 bits, up to 56,067."""
COLOUR_TYPE = {1: 0, 3: 2, 4: 6}
"""Channels → colour type of a PNG (W3C PNG, 11.2.1)."""


def grey(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.repeat(values[..., np.newaxis], 3, axis=-1)


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(head: bytes, data: bytes) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def png16(values: NDArray[np.uint16]) -> bytes:
    """A PNG of 16 bits, written here: Pillow cannot write those of RGB."""
    height, width, channels = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return png(struct.pack(">IIBBBBB", width, height, 16, COLOUR_TYPE[channels], 0, 0, 0), rows)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def lossless() -> dict[str, tuple[bytes, NDArray[np.uint8]]]:
    """Name → (bytes, the pixels they hold)."""
    picture, with_alpha = Image.fromarray(RGB), Image.fromarray(np.dstack([RGB, ALPHA]))
    two = Image.merge("LA", [Image.fromarray(RGB[..., 0]), Image.fromarray(ALPHA)])
    numbers = (ROWS // 8 * 10 + COLUMNS // 8).astype(np.uint8)
    table = np.random.default_rng(4).integers(0, 255, (256, 3), dtype=np.uint8)
    palette = Image.frombytes("P", (80, 60), numbers.tobytes())
    palette.putpalette(table.tobytes())
    deep = np.stack([DEEP, DEEP[::-1], DEEP // 2], axis=-1)
    bits = (RGB[..., 0] > 128).astype(np.uint8)
    return {
        "RGB": (saved(picture, "PNG"), RGB),
        "RGBA": (saved(with_alpha, "PNG"), RGB),
        "grey": (saved(Image.fromarray(RGB[..., 0]), "PNG"), grey(RGB[..., 0])),
        "grey with alpha": (saved(two, "PNG"), grey(RGB[..., 0])),
        "palette": (saved(palette, "PNG"), table[numbers]),
        "palette, transparent": (saved(palette, "PNG", transparency=bytes(range(256))), table[numbers]),
        "palette, one colour transparent": (saved(palette, "PNG", transparency=3), table[numbers]),
        "one transparent colour": (saved(picture, "PNG", transparency=(0, 0, 0)), RGB),
        "one bit": (saved(Image.fromarray(bits * 255).convert("1"), "PNG"), grey(bits * np.uint8(255))),
        "16 bits of grey": (png16(DEEP[..., np.newaxis]), grey((DEEP >> 8).astype(np.uint8))),
        "16 bits": (png16(deep), (deep >> 8).astype(np.uint8)),
        "16 bits with alpha": (png16(np.dstack([deep, DEEP])), (deep >> 8).astype(np.uint8)),
        "WebP": (saved(picture, "WEBP", lossless=True), RGB),
        "WebP with alpha": (saved(with_alpha, "WEBP", lossless=True, exact=True), RGB),
    }


LOSSLESS = lossless()


@pytest.fixture(params=["pillow", "torchvision", "opencv"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    if request.param == "opencv":
        pytest.importorskip("cv2", reason="OpenCV is not installed: pip install 'loaderbench[opencv]'")
    module = plugins.DECODERS.load(request.param)
    built: Decoder = module.build(module.Options(), None)
    assert {"png", "webp"} <= set(plugins.DECODERS.find(request.param).traits.formats)
    return built


@pytest.mark.parametrize("name", LOSSLESS)
def test_the_pixels_that_were_stored_come_back(decoder: Decoder, name: str) -> None:
    encoded, expected = LOSSLESS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pixels = decoder.to_array(decoder.decode(encoded))
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, expected)
    size = read_size(encoded)
    assert (size.height, size.width) == expected.shape[:2]


@pytest.mark.parametrize("name", LOSSLESS)
def test_an_open_file_gives_the_same_pixels_in_an_image_of_its_own(name: str) -> None:
    encoded, expected = LOSSLESS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image = PillowDecoder().load(io.BytesIO(encoded))
    assert image.mode == "RGB"
    assert np.array_equal(np.asarray(image), expected)


def test_what_is_refused_as_bytes_is_refused_as_a_file() -> None:
    jpeg, decoder = saved(Image.fromarray(RGB), "JPEG"), PillowDecoder()
    broken = [b"", b"\xff", b"text" * 99, jpeg[: len(jpeg) // 2], saved(Image.fromarray(RGB), "BMP")]
    broken += [encoded[:-13] for name in ("RGB", "16 bits", "WebP") for encoded in LOSSLESS[name][:1]]
    for encoded in broken:
        with pytest.raises(DecodeError) as as_bytes:
            decoder.decode(encoded)
        with pytest.raises(DecodeError) as as_file:
            decoder.load(io.BytesIO(encoded))
        assert str(as_file.value) == str(as_bytes.value)


def test_a_lossy_webp_is_pillows_picture(decoder: Decoder) -> None:
    encoded = saved(Image.fromarray(RGB), "WEBP", quality=60)
    expected = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB")).astype(int)
    assert np.abs(decoder.to_array(decoder.decode(encoded)).astype(int) - expected).max() <= 3
    assert np.abs(expected - RGB).mean() < 10


@pytest.mark.parametrize("name", ["RGB", "RGBA", "palette", "16 bits", "WebP", "WebP with alpha"])
def test_damaged_data_make_no_picture(decoder: Decoder, name: str) -> None:
    encoded, _ = LOSSLESS[name]
    half = len(encoded) // 2
    cut = [encoded[:length] for length in (0, 4, 15, 25, half, len(encoded) - 13, len(encoded) - 1)]
    zeros = encoded[:half] + bytes(20) + encoded[half + 20 :]
    for damaged in (*cut, zeros if "WebP" not in name else encoded[:half]):
        with pytest.raises(DecodeError):
            decoder.decode(damaged)


def test_a_header_that_claims_too_many_pixels_is_refused_before_memory_is_asked_for(decoder: Decoder) -> None:
    with pytest.raises(DecodeError, match="exceed the limit of 178,956,970"):
        decoder.decode(png(struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0), b""))


def test_other_kinds_are_refused_by_name(decoder: Decoder) -> None:
    for kind in ("BMP", "GIF", "TIFF"):
        with pytest.raises(DecodeError, match="not a JPEG, PNG or WebP file"):
            decoder.decode(saved(Image.fromarray(RGB), kind))
