"""PNG and WebP by their bytes: sizes, what is cut off, and what a checksum tells."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from loaderbench.cases.case import Feed
from loaderbench.cases.traits import format_names
from loaderbench.errors import ConfigError
from loaderbench.images.convert import convert_dataset
from loaderbench.images.derive import derive_dataset
from loaderbench.images.formats import NotReadableError, check_end, check_png, format_of, size_of
from loaderbench.images.index import index_images
from loaderbench.images.scan import scan_dataset
from loaderbench.plugins import check_formats, installed_decoders, loader_choice

WAYS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "png": ("PNG", "RGB", {}), "palette": ("PNG", "P", {}), "lossy": ("WEBP", "RGB", {"quality": 70}),
    "lossless": ("WEBP", "RGB", {"lossless": True}), "alpha": ("WEBP", "RGBA", {"quality": 70}),
    "lossless alpha": ("WEBP", "RGBA", {"lossless": True}),
}  # fmt: skip


def encoded(way: str, width: int = 301, height: int = 77) -> bytes:
    kind, mode, options = WAYS[way]
    pixels = np.random.default_rng(1).integers(0, 255, (height, width, 4), dtype=np.uint8)
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert("RGB").quantize(32) if mode == "P" else image.convert(mode)).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(301, 77), (1, 1), (1, 300), (5000, 3)], ids=str)
def test_the_size_is_read_without_decoding(way: str, shape: tuple[int, int]) -> None:
    data = encoded(way, *shape)
    assert size_of(data[:33]) == shape
    assert format_of(data[:33]) == ("png" if WAYS[way][0] == "PNG" else "webp")


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_is_cut_off_is_told_wherever_it_ends(way: str) -> None:
    data = encoded(way)
    kind = format_of(data)
    assert kind is not None
    check_end(kind, len(data), data, data)

    def check(part: bytes) -> None:
        size_of(part)
        check_end(kind, len(part), part, part)

    for length in (12, 20, 29, 40, len(data) // 2, len(data) - 2):
        with pytest.raises(NotReadableError):
            check(data[:length])


@pytest.mark.parametrize("way", ["png", "palette"])
def test_any_flipped_bit_of_a_png_is_told_by_a_checksum(way: str) -> None:
    data, draw = encoded(way), random.Random(3)
    check_png(data)
    check_png(data + b"what some programs append")
    for _ in range(100):
        place = draw.randrange(8, len(data) - 12)  # behind the signature, before IEND
        damaged = bytearray(data)
        damaged[place] ^= 1 << draw.randrange(8)
        with pytest.raises(NotReadableError):
            check_png(bytes(damaged))


def test_formats_have_names() -> None:
    assert [format_names(some) for some in (["jpeg"], ["webp", "jpeg"], ["jpeg", "png", "webp"])] == [
        "JPEG",
        "JPEG and WebP",
        "JPEG, PNG and WebP",
    ]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Two JPEGs, three PNGs, a WebP, and a file that is none; two folders."""
    pixels = Image.fromarray(np.random.default_rng(2).integers(0, 255, (48, 64, 3), dtype=np.uint8))
    for name in ("a/1.jpg", "a/2.JPEG", "a/1.png", "b/2.Png", "b/3.png", "b/4.webp"):
        path = tmp_path / "mixed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels.save(path)
    (tmp_path / "mixed" / "b" / "notes.txt").write_text("no image")
    return tmp_path / "mixed"


def test_an_index_counts_the_files_of_each_kind(mixed: Path) -> None:
    assert index_images(str(mixed)).formats == {"jpeg": 2, "png": 3, "webp": 1}
    assert index_images(str(mixed / "a")).formats == {"jpeg": 2, "png": 1}
    for path in (mixed / "a").glob("*.png"):
        path.unlink()
    assert index_images(str(mixed / "a")).formats == {"jpeg": 2}


def test_a_scan_checks_every_kind(mixed: Path) -> None:
    good = (mixed / "b" / "3.png").read_bytes()
    (mixed / "b" / "3.png").write_bytes(good[: len(good) // 2])
    (mixed / "b" / "4.webp").write_bytes((mixed / "b" / "4.webp").read_bytes()[:-3])
    (mixed / "b" / "5.webp").write_bytes(b"RIFF\x20\0\0\0WEBPJUNK" + bytes(40))
    (mixed / "b" / "6.jpg").write_bytes(good)
    found = scan_dataset(mixed)
    assert found.formats == {"jpeg": 3, "png": 3, "webp": 2} and found.num_images == 4
    assert [(Path(path).name, reason.partition(":")[0]) for path, reason in found.broken] == [
        ("3.png", "truncated"),
        ("4.webp", "truncated"),
        ("5.webp", "damaged header"),
        ("6.jpg", "PNG content, but named JPEG"),
    ]
    assert found.resolutions == [{"width": 64, "height": 48, "num_images": 4}]


def test_a_decoder_or_loader_that_lacks_a_kind_is_refused_with_what_to_use(mixed: Path) -> None:
    formats = index_images(str(mixed)).formats
    for decoder in ("pillow", "torchvision"):
        check_formats(Feed("multiprocess", decoder, 2), formats, "mixed")
    check_formats(Feed("dali", None, 2), formats, "mixed")
    check_formats(Feed("synthetic", None, 0), formats, "mixed")
    with pytest.raises(ConfigError, match=r"JPEG only, and mixed holds 3 PNG, 1 WebP files: use --decoder .*pillow"):
        check_formats(Feed("threaded", "libjpeg", 2), formats, "mixed")
    with pytest.raises(ConfigError, match=r"--loader tf-data reads JPEG only, .*: use --loader multiprocess"):
        check_formats(Feed("tf-data", None, 2), formats, "mixed")
    check_formats(Feed("threaded", "libjpeg", 2), {"jpeg": 7}, "jpegs")


def test_the_default_decoder_reads_what_is_there() -> None:
    chosen = loader_choice("threaded", {"png"}).decoder
    assert chosen is not None and "png" in chosen.traits.formats
    assert {"pillow", "torchvision"} <= {one.name for one in installed_decoders(("png", "webp"))}
    assert not {"libjpeg", "turbojpeg"} & {one.name for one in installed_decoders(("jpeg", "png"))}


def test_containers_are_made_of_jpegs_alone(mixed: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds 4 images that are not JPEGs.*dataset derive"):
        convert_dataset(mixed, "wds", tmp_path / "shards")


def test_derived_images_are_jpegs_that_keep_their_names_apart(mixed: Path, tmp_path: Path) -> None:
    made = derive_dataset(mixed, [32], tmp_path / "small", processes=1)
    names = sorted(str(path.relative_to(made.variants[32])) for path in made.variants[32].glob("*/*"))
    assert names == ["a/1.jpg", "a/1.png.jpg", "a/2.JPEG", "b/2.Png.jpg", "b/3.png.jpg", "b/4.webp.jpg"]
    assert index_images(str(made.variants[32])).formats == {"jpeg": 6} and not made.broken
    convert_dataset(made.variants[32], "wds", tmp_path / "shards", processes=1)
