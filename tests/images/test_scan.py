import io
import os
from pathlib import Path

import numpy as np
import pytest
from pictures import claiming, many_scans
from PIL import Image

from loaderbench.errors import ConfigError
from loaderbench.images.index import index_images
from loaderbench.images.jpeg import NotJpegError, parse_jpeg_header
from loaderbench.images.scan import check_file, scan_dataset
from loaderbench.images.variants import find_variants


def jpeg(width: int, height: int, **options: object) -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, "JPEG", **options)
    return file.getvalue()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.jpg").write_bytes(jpeg(64 + number, 48, progressive=name == "dog"))
    return tmp_path


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("exif_bytes", [0, 3000, 60000])
def test_the_header_parser_agrees_with_pillow(progressive: bool, exif_bytes: int) -> None:
    exif = Image.Exif()
    exif[0x010E] = "x" * exif_bytes
    data = jpeg(123, 45, progressive=progressive, exif=exif)
    header = parse_jpeg_header(data)
    assert header is not None
    assert (header.width, header.height, header.progressive) == (123, 45, progressive)
    # a prefix is either enough or asks for more; it never misleads
    for length in range(0, header.end, max(1, header.end // 500)):
        assert parse_jpeg_header(data[:length]) in (None, header)


def test_a_sound_tree_is_described(tree: Path) -> None:
    scan = scan_dataset(tree)
    record = scan.to_json()
    sizes = [path.stat().st_size for path in tree.rglob("*.jpg")]
    assert record["num_images"] == 6 and record["num_classes"] == 2
    assert record["total_bytes"] == sum(sizes) and record["mean_bytes"] == pytest.approx(sum(sizes) / 6)
    assert record["bytes_per_pixel"] == pytest.approx(sum(sizes) / (48 * 2 * (64 + 65 + 66)))
    assert record["progressive_fraction"] == 0.5
    assert {"width": 65, "height": 48, "num_images": 2} in record["resolutions"]
    assert record["file_sizes_bytes"]["max"] == max(sizes)
    assert {"type", "source", "device"} <= record["file_system"].keys()
    assert record["broken"] == [] and record["other_files"] == []


def test_broken_files_are_named_with_their_reason(tree: Path) -> None:
    good = jpeg(64, 64, quality=95)
    thumbnail = Image.Exif()
    thumbnail[0x010E] = "\xff\xd9" * 4
    damaged = {
        "empty.jpg": (b"", "empty file"),
        "cut.jpg": (good[: len(good) // 2], "no end-of-image"),
        "cut_exif.jpg": (jpeg(64, 64, exif=b"Exif\x00\x00" + b"\xff\xd9" * 9)[:-300], "no end-of-image"),
        "header.jpg": (good[:40], "before its frame header"),
        "picture.jpg": (b"\x89PNG\r\n\x1a\n" + bytes(100), "PNG"),
        "zeros.jpg": (bytes(5000), "not a JPEG"),
        "scans.jpg": (many_scans(4000, 300), "too costly to decode: 300 scans"),
        "apart.jpg": (many_scans(4000, 300, frame=0xC0), "too costly to decode: 300 scans"),
        "page.jpeg": (b"<html>404</html>", "text"),
    }
    for name, (content, _) in damaged.items():
        (tree / "cat" / name).write_bytes(content)
    (tree / "cat" / "dangling.jpg").symlink_to(tree / "nowhere")
    scan = scan_dataset(tree)
    found = {Path(path).name: reason for path, reason in scan.broken}
    assert found.keys() == damaged.keys() | {"dangling.jpg"}
    assert all(expected in found[name] for name, (_, expected) in damaged.items())
    assert scan.num_images == 6


def test_data_behind_the_end_of_the_image_is_fine(tree: Path) -> None:
    (tree / "cat" / "trailer.jpg").write_bytes(jpeg(64, 64) + bytes(1000))
    assert scan_dataset(tree).broken == []


def test_files_of_other_kinds_are_listed_apart(tree: Path) -> None:
    (tree / "cat" / "notes.TXT").write_text("x")
    (tree / "labels.csv").write_text("x")
    (tree / ".loaderbench-lock").write_text("")
    scan = scan_dataset(tree)
    assert [Path(path).name for path in scan.other_files] == ["notes.TXT", "labels.csv"]
    assert scan.num_other_files == 2 and scan.other_suffixes == {".txt": 1, ".csv": 1}


def test_contents_may_be_left_unread(tree: Path) -> None:
    (tree / "cat" / "zeros.jpg").write_bytes(bytes(10))
    scan = scan_dataset(tree, check_content=False)
    assert scan.num_images == 7 and scan.broken == []
    assert scan.bytes_per_pixel is None and scan.progressive_fraction is None and scan.resolutions == []


def test_an_empty_and_a_missing_folder(tmp_path: Path) -> None:
    scan = scan_dataset(tmp_path)
    assert scan.num_images == 0 and scan.mean_bytes is None and scan.bytes_per_pixel is None
    with pytest.raises(ConfigError, match="cannot read the data set folder"):
        scan_dataset(tmp_path / "missing")


def test_variants_are_numbered_folders_of_class_folders(tree: Path, tmp_path: Path) -> None:
    root = tmp_path / "set"
    for side in (1024, 256):
        (root / str(side) / "cat").mkdir(parents=True)
    (root / "notes" / "cat").mkdir(parents=True)
    assert list(find_variants(root).items()) == [(256, root / "256"), (1024, root / "1024")]


def test_classes_with_numbers_for_names_are_no_variants(tmp_path: Path) -> None:
    for digit in range(3):
        (tmp_path / str(digit)).mkdir()
        (tmp_path / str(digit) / "a.jpg").write_bytes(jpeg(16, 16))
    assert find_variants(tmp_path) == {}


def test_kinds_of_jpeg_that_no_decoder_here_reads_are_refused() -> None:
    lossless = bytes.fromhex("ffd8ffc3000b080200030001012200")
    with pytest.raises(NotJpegError, match="lossless"):
        parse_jpeg_header(lossless)


def test_twenty_thousand_files_are_all_counted(tmp_path: Path) -> None:
    content = jpeg(32, 32)
    for folder in range(20):
        (tmp_path / str(folder)).mkdir()
        for number in range(1000):
            (tmp_path / str(folder) / f"{number}.jpg").write_bytes(content)
    assert scan_dataset(tmp_path).num_images == 20_000


def test_a_header_behind_megabytes_of_metadata_is_found(tree: Path) -> None:
    good = jpeg(64, 48)
    xmp = b"".join(b"\xff\xe1\xff\xff" + bytes([number % 250]) * 65533 for number in range(112))
    (tree / "cat" / "edited.jpg").write_bytes(good[:2] + xmp + good[2:])
    (tree / "cat" / "cut.jpg").write_bytes(good[:2] + xmp)
    (tree / "cat" / "filled.jpg").write_bytes(good[:2] + b"\xff" * 3000 + good[2:])
    (tree / "cat" / "endless.jpg").write_bytes(good[:2] + b"\xff\xfe\x00\x02" * 6_000_000)
    scan = scan_dataset(tree)
    assert [(Path(path).name, reason) for path, reason in scan.broken] == [
        ("cut.jpg", "truncated: it ends before its frame header"),
        ("endless.jpg", "damaged header: it has no end"),
    ]
    assert scan.num_images == 8 and {"width": 64, "height": 48, "num_images": 4} in scan.resolutions


def test_a_picture_that_no_decoder_here_takes_is_listed(tree: Path) -> None:
    (tree / "cat" / "large.jpg").write_bytes(claiming(jpeg(64, 48), 65500, 65500))
    ((path, reason),) = scan_dataset(tree).broken
    assert Path(path).name == "large.jpg" and "65500×65500 pixels exceed the limit of 178,956,970" in reason


def odd(root: Path) -> None:
    """Add to a tree what may lie in one."""
    image = jpeg(32, 24)
    (root / "cat" / "deep" / "deeper").mkdir(parents=True)
    (root / "elsewhere").mkdir()
    (root / "cat" / "deep" / "deeper" / "1.jpg").write_bytes(image)
    (root / "elsewhere" / "2.JPEG").write_bytes(image)
    (root / "beside.jpg").write_bytes(image)  # not in a class: torchvision's ImageFolder leaves it out
    (root / ".loaderbench-wds").mkdir()
    (root / ".loaderbench-wds" / "copy.jpg").write_bytes(image)
    (root / "cat" / ".loaderbench-own").mkdir()
    (root / "cat" / ".loaderbench-own" / "copy.jpg").write_bytes(image)
    (root / "cat" / "folder.jpg").mkdir()
    os.mkfifo(root / "cat" / "pipe.jpg")
    (root / "cat" / "dangling.jpg").symlink_to("nowhere")
    (root / "cat" / "itself.jpg").symlink_to("itself.jpg")
    (root / "cat" / "linked.jpg").symlink_to("deep/deeper/1.jpg")
    (root / "cat" / "up").symlink_to("..")
    (root / "cat" / "deep" / "upper").symlink_to(root.parent)
    (root / "cat" / "deep" / "there").symlink_to(root / "elsewhere")
    (root / "pets").symlink_to("elsewhere")
    (root / "elsewhere" / "round").symlink_to(root / "cat")
    (root / "elsewhere" / "notes.txt").write_text("")


@pytest.mark.timeout(60)
def test_scan_finds_the_images_that_a_run_reads(tree: Path) -> None:
    odd(tree)
    scan, images = scan_dataset(tree), index_images(str(tree))
    paths = set(images.paths())
    assert scan.num_images == len(images) == len(paths)
    assert scan.total_bytes == int(images.sizes.sum())
    names = {path.removeprefix(f"{tree}/") for path in paths}
    assert {name for name in names if not name.startswith(("dog/", "pets/"))} == {
        *(f"cat/{number}.jpg" for number in range(3)),
        "cat/linked.jpg", "cat/deep/deeper/1.jpg", "cat/deep/there/2.JPEG",
        "elsewhere/2.JPEG", *(f"elsewhere/round/{number}.jpg" for number in range(3)),
        "elsewhere/round/linked.jpg", "elsewhere/round/deep/deeper/1.jpg",
    }  # fmt: skip
    assert {Path(path).name: reason.partition(":")[0] for path, reason in scan.broken} == {
        "pipe.jpg": "not a file but a FIFO, a socket or a device",
        "dangling.jpg": "cannot be read",
        "itself.jpg": "cannot be read",
        "up": "a link to a parent folder",
        "upper": "a link to a parent folder",
        "there": "a link to a parent folder",  # on the way by elsewhere/round
        "round": "a link to a parent folder",  # on the way by cat/deep/there
    }
    assert {"beside.jpg", "notes.txt"} <= {Path(path).name for path in scan.other_files}


@pytest.mark.timeout(60)
def test_a_fifo_is_no_image_and_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    assert check_file(str(tmp_path / "pipe.jpg")) == (0, None, "empty file")
    (tmp_path / "a.jpg").write_bytes(jpeg(16, 16))
    for content in (True, False):
        assert scan_dataset(tmp_path, check_content=content).num_images == 1
