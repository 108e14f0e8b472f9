from pathlib import Path

import numpy as np
import pytest
from pictures import claiming, many_scans
from PIL import Image

from loaderbench.errors import ConfigError
from loaderbench.images.derive import derive_dataset


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for folder, size in (("cat", (120, 80)), ("dog", (90, 200))):
        (tmp_path / "src" / folder).mkdir(parents=True)
        for name in ("a.jpg", "B.JPEG"):
            pixels = rng.integers(0, 255, (size[1] // 10, size[0] // 10, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize(size).save(tmp_path / "src" / folder / name, "JPEG")
    return tmp_path / "src"


@pytest.mark.parametrize("processes", [1, 2])
def test_variants_keep_classes_names_and_aspect_ratio(source: Path, tmp_path: Path, processes: int) -> None:
    for number in range(10 * processes):  # enough for two processes to share
        Image.new("RGB", (60, 60)).save(source / "cat" / f"{number}.jpg")
    derived = derive_dataset(source, [32, 48], tmp_path / "out", processes=processes)
    names = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    assert derived.num_made == 2 * len(names) and derived.broken == []
    for side in (32, 48):
        folder = derived.variants[side]
        assert {path.relative_to(folder) for path in folder.glob("*/*")} == names
        assert size_of(folder / "cat" / "a.jpg") == (side * 3 // 2, side)
        assert size_of(folder / "dog" / "B.JPEG") == (side, round(side * 200 / 90))


def test_pixels_are_those_of_the_source(source: Path, tmp_path: Path) -> None:
    derived = derive_dataset(source, [40], tmp_path / "out", processes=1)
    with Image.open(source / "cat" / "a.jpg") as original, Image.open(derived.variants[40] / "cat" / "a.jpg") as small:
        expected = original.resize(small.size, Image.Resampling.BICUBIC)
        # the luma only: encoding halves the resolution of the random colours
        difference = np.asarray(small.convert("L"), dtype=float) - np.asarray(expected.convert("L"), dtype=float)
        assert np.abs(difference).mean() < 2


def test_broken_images_are_listed_and_the_others_made(source: Path, tmp_path: Path) -> None:
    whole = (source / "cat" / "a.jpg").read_bytes()
    (source / "cat" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (source / "cat" / "empty.jpg").write_bytes(b"")
    derived = derive_dataset(source, [32], tmp_path / "out", processes=1)
    assert [Path(path).name for path, _ in derived.broken] == ["cut.jpg", "empty.jpg"]
    assert all(reason for _, reason in derived.broken)
    assert derived.num_made == 4


def test_a_second_call_makes_only_what_is_missing(source: Path, tmp_path: Path) -> None:
    first = derive_dataset(source, [32], tmp_path / "out", processes=1)
    (first.variants[32] / "cat" / "a.jpg").unlink()
    second = derive_dataset(source, [32], tmp_path / "out", processes=1)
    assert (second.num_made, second.num_kept) == (1, 3)


def test_what_was_made_otherwise_is_refused(source: Path, tmp_path: Path) -> None:
    derive_dataset(source, [32], tmp_path / "out", processes=1)
    with pytest.raises(ConfigError, match="derived with other settings"):
        derive_dataset(source, [32], tmp_path / "out", quality=50, processes=1)
    with pytest.raises(ConfigError, match="inside the source"):
        derive_dataset(source, [32], source / "out")
    with pytest.raises(ConfigError, match="set of resolution variants"):
        derive_dataset(tmp_path / "out", [16], tmp_path / "other")


def test_a_flat_folder_becomes_one_class(source: Path, tmp_path: Path) -> None:
    derived = derive_dataset(source / "cat", [32], tmp_path / "out", processes=1)
    assert sorted(path.name for path in (derived.variants[32] / "all").iterdir()) == ["B.JPEG", "a.jpg"]


def test_enlarging_is_counted(source: Path, tmp_path: Path) -> None:
    assert derive_dataset(source, [85], tmp_path / "out", processes=1).num_upscaled == 2


def test_an_image_that_would_be_too_large_is_named_and_the_rest_made(source: Path, tmp_path: Path) -> None:
    Image.new("RGB", (10, 2000)).save(source / "cat" / "long.jpg")  # at 512: 512×102,400
    Image.new("RGB", (2000, 10)).save(source / "cat" / "wide.jpg")
    derived = derive_dataset(source, [32, 512], tmp_path / "out", processes=1)
    assert {Path(path).name: reason for path, reason in derived.broken} == {
        "long.jpg": "at 512 it would be 512×102400, but a JPEG side has at most 65,500 pixels",
        "wide.jpg": "at 512 it would be 102400×512, but a JPEG side has at most 65,500 pixels",
    }
    assert derived.num_made == 2 * 4
    names = [{path.relative_to(folder) for path in folder.glob("*/*")} for folder in derived.variants.values()]
    assert names[0] == names[1] and len(names[0]) == 4


def test_a_picture_that_costs_too_much_is_listed_before_it_takes_memory_or_time(source: Path, tmp_path: Path) -> None:
    photo = (source / "cat" / "a.jpg").read_bytes()
    (source / "cat" / "bomb.jpg").write_bytes(claiming(photo, 65500, 65500))
    (source / "cat" / "scans.jpg").write_bytes(many_scans(4000, 300))
    (source / "dog" / "script.jpg").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    derived = derive_dataset(source, [32], tmp_path / "out", processes=1)
    assert [Path(path).name for path, _ in derived.broken] == ["bomb.jpg", "scans.jpg", "script.jpg"]
    assert derive_dataset(source, [20000], tmp_path / "huge", processes=1).num_made == 0  # 600 million pixels each
