import multiprocessing
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from loaderbench.images import index as module
from loaderbench.images.filesystem import storage_behind
from loaderbench.images.index import ImageIndex, index_images

Tick = Callable[[], None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own cache folder, in which the list of a small tree is kept as that of a large one is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "LARGE_SET", 10)
    monkeypatch.setattr(module, "SETTLED_NS", 0)
    return tmp_path / "cache" / "loaderbench" / "lists"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for folder in ("a", "b", "c/deep", "no images"):
        (root / folder).mkdir(parents=True)
    for number in range(60):
        name = f"{number}\udcff.jpg" if number == 7 else f"{number}.jpg"
        (root / ("a", "b", "c/deep")[number % 3] / name).write_bytes(bytes(number + 1))
    tick()
    return root


def tick() -> None:
    """Let the file system's clock go on (4 ms with CONFIG_HZ=250, 10 ms at most)."""
    time.sleep(0.02)


def listed(root: Path) -> tuple[ImageIndex, bool]:
    """The index, and whether the tree was read for it."""
    calls: list[int] = []
    return index_images(str(root), calls.append), bool(calls)


def content(index: ImageIndex) -> list[tuple[str, str, int]]:
    return [(index.path(i), index.classes[index.labels[i]], int(index.sizes[i])) for i in range(len(index))]


def truth(root: Path) -> list[tuple[str, str, int]]:
    """What `find` would say, in the order of ImageFolder."""
    files = [path for path in root.rglob("*.jpg") if path.is_file()]
    rows = [(str(path), path.relative_to(root).parts[0], path.stat().st_size) for path in files]
    return sorted(rows, key=lambda row: (row[1], row[0]))


def test_the_second_run_reads_no_folder_and_finds_the_same(tree: Path, cache: Path) -> None:
    first, was_read = listed(tree)
    assert was_read and content(first) == truth(tree) and len(list(cache.glob("*.list"))) == 1
    second, was_read = listed(tree)
    assert not was_read and content(second) == truth(tree)
    assert second.classes == ("a", "b", "c") and second.labels.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        second.sizes[0] = 1


def add(root: Path) -> None:
    (root / "a" / "new.jpg").write_bytes(b"12")


def add_deep(root: Path) -> None:
    (root / "c" / "deep" / "new.jpg").write_bytes(b"12")


def add_where_there_was_no_image(root: Path) -> None:
    (root / "no images" / "first.jpg").write_bytes(b"12")


def add_class(root: Path) -> None:
    shutil.copytree(root / "a", root / "aa")


def add_and_set_the_folders_time_back(root: Path) -> None:
    before = (root / "b").stat()
    (root / "b" / "new.jpg").write_bytes(b"12")
    os.utime(root / "b", ns=(before.st_atime_ns, before.st_mtime_ns))


def remove(root: Path) -> None:
    (root / "b" / "1.jpg").unlink()


def rename(root: Path) -> None:
    (root / "b" / "1.jpg").rename(root / "b" / "x.jpg")


def replace_one(root: Path) -> None:
    (root / "part").write_bytes(bytes(1000))
    (root / "part").rename(root / "b" / "1.jpg")


def another_folder_in_its_place(root: Path) -> None:
    shutil.copytree(root / "b", root.parent / "copy")
    (root.parent / "copy" / "1.jpg").unlink()
    shutil.rmtree(root / "b")
    (root.parent / "copy").rename(root / "b")


def write_all_over_in_place(root: Path) -> None:
    for path in root.rglob("*.jpg"):
        with path.open("ab") as file:
            file.write(b"more")


@pytest.mark.parametrize(
    "change",
    [
        add,
        add_deep,
        add_where_there_was_no_image,
        add_class,
        add_and_set_the_folders_time_back,
        remove,
        rename,
        replace_one,
        another_folder_in_its_place,
        write_all_over_in_place,
    ],
)
def test_a_changed_tree_is_listed_anew(tree: Path, change: Callable[[Path], None]) -> None:
    listed(tree)
    tick()
    change(tree)
    index, was_read = listed(tree)
    assert was_read and content(index) == truth(tree)


@pytest.mark.parametrize("damage", ["cut", "empty", "one bit", "no list at all"])
def test_a_damaged_list_is_not_believed(tree: Path, cache: Path, damage: str) -> None:
    listed(tree)
    [kept] = cache.glob("*.list")
    whole = kept.read_bytes()
    flipped = bytes([*whole[:2000], whole[2000] ^ 1, *whole[2001:]])
    kept.write_bytes({"cut": whole[:-100], "empty": b"", "one bit": flipped, "no list at all": b"x" * 5000}[damage])
    index, was_read = listed(tree)
    assert was_read and content(index) == truth(tree)
    assert not listed(tree)[1]


def link_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "a" / "linked.jpg").symlink_to(root / "b" / "1.jpg")
    tick()


def link_a_class_to_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "d").symlink_to(root.parent / "not mounted yet")
    tick()


def change_just_now(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLED_NS", 2_000_000_000)


def be_on_fuse(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuse = replace(storage_behind(root), type="fuse.sshfs")
    monkeypatch.setattr(module, "storage_behind", lambda path: fuse)


def have_no_cache_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "a" / "3.jpg"))


@pytest.mark.parametrize(
    "state", [link_one, link_a_class_to_nothing, change_just_now, be_on_fuse, have_no_cache_folder]
)
def test_what_may_change_unseen_is_listed_each_time(
    tree: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, state: Callable[[Path, pytest.MonkeyPatch], None]
) -> None:
    state(tree, monkeypatch)
    for _ in range(2):
        index, was_read = listed(tree)
        assert was_read and content(index) == truth(tree)
    assert not list(cache.glob("*.list"))
    assert index.mapped_from is not None  # workers share it all the same


def test_a_class_that_lies_on_another_file_system_is_listed_each_time(tree: Path, cache: Path) -> None:
    if storage_behind("/dev/shm").major_minor == storage_behind(tree).major_minor:
        pytest.skip("/dev/shm and the temporary folder are one file system")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="loaderbench-test-") as elsewhere:
        Path(elsewhere, "1.jpg").write_bytes(b"1")
        (tree / "d").symlink_to(elsewhere)
        tick()
        for _ in range(2):
            index, was_read = listed(tree)
            assert was_read and index.classes == ("a", "b", "c", "d") and len(index) == 61
    assert not list(cache.glob("*.list"))


def test_a_small_set_is_not_kept(tree: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE_SET", 10_000)
    assert listed(tree)[0].mapped_from is None and not cache.exists()


def test_the_lists_used_least_recently_go(tree: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", 2)
    trees = [tree, *(tree.parent / f"copy {number}" for number in range(2))]
    for other in trees[1:]:
        shutil.copytree(tree, other)
    tick()
    for one in (trees[0], trees[1], trees[0], trees[2]):  # 1 was used least recently when 2 is kept
        listed(one)
        tick()
    assert len(list(cache.glob("*.list"))) == 2
    assert [listed(one)[1] for one in (trees[0], trees[2])] == [False, False]
    assert listed(trees[1])[1]


def test_what_is_mapped_is_pickled_by_content(tree: Path) -> None:
    index = listed(tree)[0]
    copy = pickle.loads(pickle.dumps(index))
    assert content(copy) == content(index) and copy.classes == index.classes and copy.mapped_from is None


def test_the_descriptor_goes_with_the_index(tree: Path) -> None:
    listed(tree)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        listed(tree)[0].at_root("/elsewhere").path(0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def mapped_files(address: int) -> list[tuple[int, int]]:
    """(inode, anonymous bytes) of the mapping that holds the address, from /proc/self/smaps."""
    found = []
    for line in Path("/proc/self/smaps").read_text(errors="surrogateescape").splitlines():
        fields = line.split()
        if "-" in fields[0] and not fields[0].endswith(":"):
            begin, end = (int(part, 16) for part in fields[0].split("-"))
            inode = int(fields[4])
        elif fields[0] == "Anonymous:" and begin <= address < end:
            found.append((inode, 1024 * int(fields[1])))
    return found


def report(index: ImageIndex, pipe: Connection) -> None:
    read = content(index)  # every page is used
    pipe.send((read, [mapped_files(part.ctypes.data) for part in (index.offsets, index.sizes, index.labels)]))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("kept", [True, False])
def test_a_worker_maps_the_parents_pages(tree: Path, monkeypatch: pytest.MonkeyPatch, method: str, kept: bool) -> None:
    if not kept:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tree / "a" / "3.jpg"))
    index = listed(tree)[0]
    assert index.mapped_from is not None
    inode = os.fstat(index.mapped_from).st_ino
    near, far = multiprocessing.Pipe()
    worker = multiprocessing.get_context(method).Process(target=report, args=(index, far))
    worker.start()
    far.close()
    read, mapped = near.recv()
    worker.join()
    assert read == content(index)
    assert mapped == [[(inode, 0)]] * 3
