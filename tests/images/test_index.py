import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from torchvision.datasets import ImageFolder

from loaderbench.errors import ConfigError
from loaderbench.images.index import first_image, index_images


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
    with pytest.raises(ConfigError, match="goes more than 100 folders deep") as error:
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
