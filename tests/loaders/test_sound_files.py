from pathlib import Path

import pytest

from loaderbench.images.cache_state import evict_files, residency
from loaderbench.images.index import index_images
from loaderbench.loaders.base import LoaderContext
from loaderbench.loaders.sound_files import find_broken


def test_checking_leaves_the_page_cache_as_it_was(own_tree: Path) -> None:
    """A run with --cache as-is is measured behind it."""
    images = index_images(str(own_tree))
    paths = [images.path(index) for index in range(len(images))]
    Path(paths[-1]).write_bytes(b"")
    if evict_files(paths).fraction != 0:
        pytest.skip("files of a tmpfs cannot leave memory")
    for path in paths[: len(paths) // 2]:
        Path(path).read_bytes()
    before = residency(paths)
    context = LoaderContext(images, 4, 1, 2, None, 32, "train", "uint8", 0, max_failure_fraction=0.5)
    assert [index for index, _ in find_broken(context)] == [len(paths) - 1]
    assert before.resident_pages > 0 and residency(paths) == before
