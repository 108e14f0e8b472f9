"""Two trees hold the same images, or the error says in what they differ."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from loaderbench.errors import ConfigError
from loaderbench.images.cache_state import evict, residency
from loaderbench.images.filesystem import storage_behind
from loaderbench.images.same_files import check_same_files
from loaderbench.recording.studies import SameFiles

LABELS = ("nvme", "nfs")


@pytest.fixture
def copies(own_tree: Path, tmp_path: Path) -> tuple[Path, Path]:
    return own_tree, Path(shutil.copytree(own_tree, tmp_path / "copy"))


def check(copies: tuple[Path, Path], max_hashed_bytes: int = 10**8) -> SameFiles:
    return check_same_files([str(path) for path in copies], LABELS, max_hashed_bytes)


def test_a_copy_is_the_same(copies: tuple[Path, Path]) -> None:
    sizes = [path.stat().st_size for path in copies[0].rglob("*.jpg")]
    found = check(copies)
    assert (found.num_images, found.total_bytes) == (24, sum(sizes))
    assert (found.num_hashed, found.hashed_bytes) == (24, sum(sizes))


def test_few_bytes_are_enough_for_one_file(copies: tuple[Path, Path]) -> None:
    assert check(copies, max_hashed_bytes=1).num_hashed == 1


def test_missing_and_resized_files_are_counted_and_named(copies: tuple[Path, Path]) -> None:
    first, second = sorted(copies[1].rglob("*.jpg"))[:2]
    first.unlink()
    second.write_bytes(second.read_bytes() + b"\0")
    with pytest.raises(ConfigError) as error:
        check(copies)
    assert f"1 ({first.relative_to(copies[1])}) only in nvme" in str(error.value)
    assert f"1 ({second.relative_to(copies[1])}) differ in size" in str(error.value)
    assert "only in nfs" not in str(error.value)


def test_other_content_of_the_same_size_is_found(copies: tuple[Path, Path]) -> None:
    changed = sorted(copies[1].rglob("*.jpg"))[5]
    content = bytearray(changed.read_bytes())
    content[-10] ^= 1
    changed.write_bytes(content)
    with pytest.raises(ConfigError, match="of 24 sampled files differ in content") as error:
        check(copies)
    assert str(changed.relative_to(copies[1])) in str(error.value)


def test_the_check_leaves_the_page_cache_as_it_was(copies: tuple[Path, Path]) -> None:
    if storage_behind(copies[0]).is_memory:
        pytest.skip("nothing can be evicted from a tmpfs")
    # given one tree in memory and one that is not
    warm, cold = (sorted(str(path) for path in folder.rglob("*.jpg")) for folder in copies)
    for path in warm:
        Path(path).read_bytes()
    for path in cold:
        evict(path)
    # when the contents of all are compared
    assert check(copies).num_hashed == 24
    # then what `as-is` finds is not what the check has read
    assert (residency(warm).fraction, residency(cold).fraction) == (1, 0)
