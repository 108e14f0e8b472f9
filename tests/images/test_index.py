import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from torchvision.datasets import ImageFolder

from loaderbench.errors import ConfigError
from loaderbench.images.index import index_images
from loaderbench.images.listing import first_image


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    names = ["b/2.jpg", "b/10.JPG", "a/x.jpeg", "a/deep/y.jpg", "a/ä\udcff.jpg", "empty/notes.txt", "loose.jpg"]
    for size, name in enumerate(names, start=1):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    return tmp_path


def test_samples_classes_and_sizes_are_those_of_torchvision(tree: Path) -> None:
    index = index_images(str(tree))
    (tree / "empty" / "notes.txt").rename(tree / "empty" / "z.jpg")  # ImageFolder refuses an empty class
    reference = ImageFolder(str(tree), loader=lambda path: path)
    expected = [(path, reference.classes[label]) for path, label in reference.samples if "empty" not in path]
    found = [(index.path(i), index.classes[index.labels[i]]) for i in range(len(index))]
    assert sorted(found) == sorted(expected)
    assert [label for _, label in found] == [label for _, label in expected]
    assert index.sizes.tolist() == [Path(path).stat().st_size for path, _ in found]


def test_a_flat_folder_is_one_class(tree: Path) -> None:
    index = index_images(str(tree / "b"))
    assert index.classes == ("",) and [Path(path).name for path in index.paths()] == ["10.JPG", "2.jpg"]


def test_select_keeps_the_order_asked_for(tree: Path) -> None:
    index = index_images(str(tree))
    subset = index.select([3, 0])
    assert list(subset.paths()) == [index.path(3), index.path(0)]
    assert subset.sizes.tolist() == index.sizes[[3, 0]].tolist()
    assert subset.at_root("/elsewhere").path(0).startswith("/elsewhere/")


@pytest.mark.parametrize("name", ["missing", "empty", "loose.jpg"])
def test_nothing_to_read_is_a_config_error(tree: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        index_images(str(tree / name))


def test_ten_thousand_files_are_all_listed(tmp_path: Path) -> None:
    for folder in range(10):
        (tmp_path / str(folder)).mkdir()
        for number in range(1000):
            (tmp_path / str(folder) / f"{number}.jpg").touch()
    assert len(index_images(str(tmp_path))) == 10_000


def test_files_and_folders_of_folders_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    names = [f"c/{number:04d}.jpg" for number in range(1100)] + ["c/0500z/ü.jpg", "c/0500z/a.png", "c/1050.txt"]
    for size, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    listed: list[int] = []
    index = index_images(str(tmp_path), listed.append)
    kept = sorted(name for name in names if not name.endswith(".txt"))
    expected = sorted(kept, key=lambda name: [part.encode() for part in name.split("/")])
    assert [os.path.relpath(path, tmp_path) for path in index.paths()] == expected
    assert index.sizes.tolist() == [names.index(name) for name in expected]
    assert listed == sorted(listed) and listed[-1] == len(expected) and len(listed) > 2


def test_a_file_costs_no_call_of_a_function_of_ours(tmp_path: Path) -> None:
    """Each such call takes 0.1 s of a million files."""
    for number in range(2000):
        (tmp_path / f"{number}.jpg").touch()
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        assert len(index_images(str(tmp_path))) == 2000
    finally:
        sys.setprofile(None)
    assert calls < 2000


def test_sizes_of_files_on_a_slow_server_are_asked_for_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        (tmp_path / f"{number:03d}.jpg").write_bytes(bytes(number))
    asking, at_once, lock, stat = 0, [0], threading.Lock(), os.stat

    def slow(path: Any, **options: Any) -> os.stat_result:
        nonlocal asking
        with lock:
            asking += 1
            at_once.append(asking)
        time.sleep(0.002)
        with lock:
            asking -= 1
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", slow)
    index = index_images(str(tmp_path))
    assert index.sizes.tolist() == list(range(200))
    assert max(at_once) > 10


@pytest.fixture
def deep_tree(tmp_path: Path) -> Iterator[Path]:
    """An image 1,200 folders deep."""
    before = Path.cwd()
    (tmp_path / "deep").mkdir()
    os.chdir(tmp_path / "deep")
    try:
        for _ in range(1200):
            os.mkdir("d")  # noqa: PTH102
            os.chdir("d")
        Path("x.jpg").write_bytes(b"x")
        yield tmp_path / "deep"
        for _ in range(1200):  # shutil.rmtree, which pytest calls, goes down by recursion
            Path("x.jpg").unlink(missing_ok=True)
            os.chdir("..")
            os.rmdir("d")  # noqa: PTH106
    finally:
        os.chdir(before)


def test_a_tree_that_goes_too_deep_is_refused_in_one_line(deep_tree: Path) -> None:
    with pytest.raises(ConfigError, match="is nested more than 100 folders deep") as error:
        index_images(str(deep_tree))
    assert len(str(error.value)) < 300
    assert str(first_image(str(deep_tree))).endswith("x.jpg")


def test_the_first_image_is_that_of_a_walk_in_order(tree: Path) -> None:
    (tree / "a" / "broken.jpg").symlink_to("nowhere")
    (tree / "a" / "again").symlink_to(tree)
    assert first_image(str(tree)) == str(tree / "loose.jpg")
    (tree / "loose.jpg").unlink()
    assert first_image(str(tree)) == str(tree / "a" / "x.jpeg")
    assert first_image(str(tree / "empty")) is None
    (tree / "empty" / "linked").symlink_to(tree / "a")  # as `index_images` follows it
    assert first_image(str(tree / "empty")) == str(tree / "empty" / "linked" / "x.jpeg")
