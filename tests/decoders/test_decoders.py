"""Decoders: the same pixels from the same bytes, and never a picture from half a file."""

from __future__ import annotations

import io
import os
import pickle
import resource
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pictures import claiming, encode, encode_441, many_scans
from PIL import Image
from torchvision.transforms.functional import InterpolationMode, hflip, resized_crop

from loaderbench import plugins
from loaderbench.decoders.base import DecodeError, Decoder, Geometry, PilDecoder, read_header
from loaderbench.errors import ConfigError, UnavailableError

DECODERS = ("pillow", "turbojpeg", "torchvision", "libjpeg", "opencv")


@pytest.fixture(params=DECODERS)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    if request.param == "opencv":
        pytest.importorskip("cv2", reason="OpenCV is not installed: pip install 'loaderbench[opencv]'")
    module = plugins.DECODERS.load(request.param)
    built: Decoder = module.build(module.Options(), None)
    return built


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch works as it does in a worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def mean_difference(a: NDArray[Any], b: NDArray[Any]) -> float:
    assert a.shape == b.shape
    return float(np.abs(a.astype(np.int16) - b.astype(np.int16)).mean())


def by_pillow(encoded: bytes) -> Image.Image:
    return Image.open(io.BytesIO(encoded)).convert("RGB")


@pytest.mark.parametrize(
    "options", [{}, {"quality": 60}, {"subsampling": 0}, {"progressive": True}], ids=["4:2:0", "q60", "4:4:4", "prog"]
)
def test_photographs_decode_to_pillows_pixels(
    decoder: Decoder, photographs: list[NDArray[np.uint8]], options: dict[str, Any]
) -> None:
    for photograph in photographs:
        encoded = encode(photograph, **options)
        pixels = decoder.decode(encoded)
        assert decoder.size(pixels) == photograph.shape[:2]
        assert mean_difference(decoder.to_array(pixels), np.asarray(by_pillow(encoded))) <= 0.1


def test_a_rare_sampling_of_the_colours_is_decoded(decoder: Decoder, photographs: list[NDArray[np.uint8]]) -> None:
    encoded = encode_441(photographs[0][:256, :320])
    pixels = decoder.to_array(decoder.decode(encoded))
    assert pixels.shape == (1024, 80, 3)
    assert mean_difference(pixels, np.asarray(by_pillow(encoded))) <= 0.1


@pytest.mark.parametrize(("width", "height"), [(65500, 65500), (65535, 65535), (13378, 13377)])
def test_a_picture_that_claims_too_many_pixels_is_an_error_before_it_takes_memory(
    decoder: Decoder, photographs: list[NDArray[np.uint8]], width: int, height: int
) -> None:
    encoded = claiming(encode(photographs[0]), width, height)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DecodeError, match="ixels"):
        decoder.decode(encoded)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB, of 512 MiB or more


@pytest.mark.parametrize("frame", [0xC2, 0xC0, 0xCA], ids=["progressive", "sequential", "arithmetic"])
def test_a_small_file_of_many_scans_is_refused_and_not_decoded(decoder: Decoder, frame: int) -> None:
    """Each scan of 16 million pixels takes 4 ms and more: 187 kB can ask for minutes."""
    encoded = many_scans(4000, 300, frame)
    assert len(encoded) < 50_000
    with pytest.raises(DecodeError, match="too costly to decode: 300 scans of 4000×4000 pixels"):
        decoder.decode(encoded)


def test_many_scans_of_a_small_picture_and_those_of_encoders_are_decoded(
    decoder: Decoder, photographs: list[NDArray[np.uint8]]
) -> None:
    pixels = decoder.to_array(decoder.decode(many_scans(64, 300)))
    assert pixels.shape == (64, 64, 3) and (pixels == 128).all()
    claimed = claiming(encode(photographs[0]), 13_377, 13_377)  # the largest picture, which is not decoded here
    usual = many_scans(64, 11).replace(struct.pack(">HH", 64, 64), struct.pack(">HH", 13_377, 13_377))
    for encoded in (claimed, usual):
        assert read_header(encoded).width == 13_377


def test_what_is_behind_a_picture_is_no_scan_of_it(decoder: Decoder, photographs: list[NDArray[np.uint8]]) -> None:
    encoded = encode(np.tile(photographs[0], (2, 2, 1))) + b"\xff\xda" * 30_000  # as a camera's film behind it
    decoder.decode(encoded[:-1] + b"\xff\xd9")


def test_stray_bytes_hide_no_header(decoder: Decoder, photographs: list[NDArray[np.uint8]]) -> None:
    encoded = encode(photographs[0])
    large = claiming(encoded, 65500, 65500)
    for stray in (b"\x00" * 9, b"\xff\x00\x00\x08", b"\xff" * 5000, b"\xff\xe1\x00\x00", b"\xff\xe1\x00\x01"):
        for at in (2, large.index(b"\xff\xdb"), large.index(b"\xff\xc0")):
            with pytest.raises(DecodeError, match=r"ixels|not a JPEG|cannot identify"):
                decoder.decode(large[:at] + stray + large[at:])


@pytest.mark.parametrize("kind", ["EPS", "BMP", "GIF", "PPM", "TIFF"])
def test_what_is_only_called_a_jpeg_is_not_opened_as_what_it_is(
    decoder: Decoder, photographs: list[NDArray[np.uint8]], kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Pillow gives PostScript to Ghostscript, which is a program that can read and write files."""
    started = tmp_path / "started"
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {started}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    buffer = io.BytesIO()
    Image.fromarray(photographs[0]).save(buffer, kind)
    with pytest.raises(DecodeError):
        decoder.decode(buffer.getvalue())
    assert not started.exists()


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_a_decoder_opens_the_formats_that_its_traits_name(decoder: Decoder, kind: str) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(buffer, kind)
    if kind.lower() in plugins.DECODERS.find(decoder.name).traits.formats:
        assert decoder.size(decoder.decode(buffer.getvalue())) == (8, 8)
    else:
        with pytest.raises(DecodeError, match=r"[Nn]ot a JPEG"):
            decoder.decode(buffer.getvalue())


def test_a_decoder_of_pil_images_says_so_in_its_traits(decoder: Decoder) -> None:
    assert plugins.DECODERS.built_in[decoder.name].traits.gives_pil == isinstance(decoder, PilDecoder)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_other_colour_spaces_become_rgb(decoder: Decoder, photographs: list[NDArray[np.uint8]], mode: str) -> None:
    buffer = io.BytesIO()
    Image.fromarray(photographs[0]).convert(mode).save(buffer, "JPEG")
    pixels = decoder.to_array(decoder.decode(buffer.getvalue()))
    assert mean_difference(pixels, np.asarray(by_pillow(buffer.getvalue()))) <= 1


def test_exif_orientation_is_ignored(decoder: Decoder, photographs: list[NDArray[np.uint8]]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90°
    encoded = encode(photographs[1], exif=exif)
    assert decoder.size(decoder.decode(encoded)) == photographs[1].shape[:2]


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("box", [(10, 20, 200, 260), (0, 0, 300, 400), (40, 5, 100, 60), (33, 71, 224, 224)])
def test_crop_and_resize_are_torchvisions(
    decoder: Decoder, photographs: list[NDArray[np.uint8]], box: tuple[int, int, int, int], flip: bool
) -> None:
    for photograph in photographs:
        encoded = encode(photograph)
        top, left, height, width = box
        height, width = min(height, photograph.shape[0] - top), min(width, photograph.shape[1] - left)
        reference = resized_crop(
            by_pillow(encoded), top, left, height, width, [224, 224], InterpolationMode.BILINEAR, antialias=True
        )
        expected = np.asarray(hflip(reference) if flip else reference)

        slot = np.zeros((4, 224, 224, 3), dtype=np.uint8)
        geometry = Geometry(top, left, height, width, 224, 224, 0, 0, flip)
        decoder.crop_resize(decoder.decode(encoded), geometry, slot[1])

        # libjpeg blends rows before columns, torchvision's Pillow after them, and both round in between
        assert mean_difference(slot[1], expected) <= (0.3 if decoder.name == "libjpeg" else 0.1)
        assert np.abs(slot[1].astype(int) - expected).max() <= 3
        assert not slot[[0, 2, 3]].any()


@pytest.mark.alone
def test_a_mirrored_sample_costs_little_more_than_a_plain_one(
    decoder: Decoder, photographs: list[NDArray[np.uint8]], one_thread: None
) -> None:
    # given the same crop plain and mirrored (half of all training samples are), and numpy's way to mirror
    pixels, out = decoder.decode(encode(photographs[0])), np.zeros((224, 224, 3), dtype=np.uint8)
    plain = out.copy()

    def crop(*, flip: bool) -> Callable[[], None]:
        return lambda: decoder.crop_resize(pixels, Geometry(0, 0, 224, 224, 224, 224, 0, 0, flip), out)

    ways = (crop(flip=False), crop(flip=True), lambda: np.copyto(out, plain[:, ::-1]))
    least_s = [1.0] * len(ways)
    for number in range(100 * len(ways)):
        begun_s = time.thread_time()
        ways[number % len(ways)]()
        least_s[number % len(ways)] = min(least_s[number % len(ways)], time.thread_time() - begun_s)
    # then mirroring adds less than half of what numpy takes
    assert least_s[1] - least_s[0] < 0.5 * least_s[2]


def test_a_mirrored_window_is_the_mirror_of_the_window(decoder: Decoder, photographs: list[NDArray[np.uint8]]) -> None:
    pixels, sides = decoder.decode(encode(photographs[0])), []
    for flip in (False, True):
        sides.append(np.zeros((60, 80, 3), dtype=np.uint8))
        decoder.crop_resize(pixels, Geometry(5, 10, 200, 160, 100, 120, 7, 21, flip), sides[-1])
    assert np.array_equal(sides[1], sides[0][:, ::-1])


@pytest.mark.parametrize("progressive", [False, True], ids=["baseline", "progressive"])
@pytest.mark.parametrize("kept_fraction", [0.001, 0.1, 0.5, 0.9, 0.99])
def test_truncated_file_is_an_error(
    decoder: Decoder, photographs: list[NDArray[np.uint8]], progressive: bool, kept_fraction: float
) -> None:
    encoded = encode(photographs[0], progressive=progressive)
    with pytest.raises(DecodeError):
        decoder.decode(encoded[: int(len(encoded) * kept_fraction)])


def test_file_whose_second_half_is_zeros_is_an_error(decoder: Decoder, photographs: list[NDArray[np.uint8]]) -> None:
    encoded = encode(photographs[0])  # as a crashed copy leaves it: the right size, without the data
    half = len(encoded) // 2
    with pytest.raises(DecodeError):
        decoder.decode(encoded[:half] + bytes(len(encoded) - half))


@pytest.mark.parametrize("content", [b"", b"no image at all" * 50, b"\xff\xd8\xff\xd9", bytes(1000)])
def test_what_is_no_image_is_an_error(decoder: Decoder, content: bytes) -> None:
    with pytest.raises(DecodeError) as caught:
        decoder.decode(content)
    assert str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_after_the_end_of_the_image_do_no_harm(decoder: Decoder, photographs: list[NDArray[np.uint8]]) -> None:
    encoded = encode(photographs[0])
    plain = decoder.to_array(decoder.decode(encoded))
    assert np.array_equal(decoder.to_array(decoder.decode(encoded + b"camera data" * 100)), plain)


def test_decoding_releases_the_gil(decoder: Decoder, photographs: list[NDArray[np.uint8]]) -> None:
    encoded = encode(np.tile(photographs[0], (8, 8, 1)))  # 4096 × 4096: 100 ms or more
    decoder.decode(encode(photographs[0]))

    def released() -> bool:
        thread = threading.Thread(target=decoder.decode, args=(encoded,))
        ticks = 0
        thread.start()
        while thread.is_alive():
            time.sleep(0.002)
            ticks += 1
        return ticks > 5

    # a machine that is busy elsewhere may stop either thread for as long
    assert any(decoder.releases_gil == released() for _ in range(5))


def test_every_decoder_says_what_it_is(decoder: Decoder) -> None:
    facts = decoder.describe()
    assert facts["version"]
    assert facts["resize"]


def test_pillow_is_pillow_and_says_so() -> None:
    module = plugins.DECODERS.load("pillow")
    facts = module.build(module.Options()).describe()
    assert (facts["library"], facts["core"]) == ("pillow", "this environment")
    assert len(facts["core_sha256"]) == 16


def test_neither_pillow_passes_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    simd, plain = plugins.DECODERS.load("pillow-simd"), plugins.DECODERS.load("pillow")
    with pytest.raises(UnavailableError, match="loaderbench install pillow-simd"):
        simd.build(simd.Options())
    monkeypatch.setattr("PIL.__version__", "12.1.1.post0")
    with pytest.raises(UnavailableError, match="use --decoder pillow-simd"):
        plain.build(plain.Options())
    assert simd.build(simd.Options()).describe()["library"] == "pillow-simd"


def test_a_spawned_worker_proves_again_which_pillow_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    module = plugins.DECODERS.load("pillow-simd")
    monkeypatch.setattr("PIL.__version__", "12.1.1.post0")
    sent = pickle.dumps(module.build(module.Options()))
    monkeypatch.undo()
    with pytest.raises(UnavailableError, match="not pillow-simd"):
        pickle.loads(sent)


def test_opencvs_own_filters_are_what_they_are_called(photographs: list[NDArray[np.uint8]]) -> None:
    pytest.importorskip("cv2", reason="OpenCV is not installed: pip install 'loaderbench[opencv]'")
    module = plugins.DECODERS.load("opencv")
    pixels = photographs[0][:256, :256]
    blocks = pixels.astype(float).reshape(64, 4, 64, 4, 3)
    # A quarter of the size: the mean of 4×4 pixels, or of the two in the middle each way, the others not looked at.
    expected = {"area": blocks.mean(axis=(1, 3)), "linear": blocks[:, 1:3, :, 1:3].mean(axis=(1, 3))}
    for resize, wanted in expected.items():
        decoder = module.build(module.Options(resize=resize))
        slot = np.zeros((64, 64, 3), dtype=np.uint8)
        decoder.crop_resize(pixels, Geometry(0, 0, 256, 256, 64, 64, 0, 0, True), slot)
        assert np.abs(slot - wanted[:, ::-1]).max() <= 1
        assert f"INTER_{resize.upper()}" in decoder.describe()["resize"]
    with pytest.raises(ConfigError, match="known: antialias, area, linear"):
        plugins.parse_options(module, {"resize": "cubic"})


def test_opencv_refuses_a_truncated_file_with_a_whole_thumbnail(photographs: list[NDArray[np.uint8]]) -> None:
    pytest.importorskip("cv2", reason="OpenCV is not installed: pip install 'loaderbench[opencv]'")
    module = plugins.DECODERS.load("opencv")
    decoder = module.build(module.Options())
    thumbnail = encode(photographs[0][:32, :32])
    whole = encode(photographs[0], quality=30, comment=thumbnail)
    decoder.decode(whole)
    with pytest.raises(DecodeError, match="end-of-image"):
        decoder.decode(whole[:-200])
