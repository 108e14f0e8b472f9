from pathlib import Path

import pytest

from loaderbench.images.cache_state import residency
from loaderbench.images.index import index_images
from loaderbench.images.shards import DataSet
from loaderbench.running import cache
from loaderbench.running.cache import CacheKeeper, can_prove_cold


@pytest.mark.parametrize("num_read", [0, 1, 24])
def test_what_is_cold_already_is_not_evicted_again(
    own_tree: Path, monkeypatch: pytest.MonkeyPatch, num_read: int
) -> None:
    if not can_prove_cold(str(own_tree)):
        pytest.skip("files of the temporary folder do not leave the page cache (tmpfs?)")
    images = index_images(str(own_tree))
    for path in images.paths():
        cache.evict(path)
    for index in range(num_read):
        Path(images.path(index)).read_bytes()
    evicted: list[str] = []
    really = cache.evicted
    monkeypatch.setattr(cache, "evicted", lambda path: (evicted.append(path), really(path))[1])
    with CacheKeeper("cold", DataSet(images)) as keeper:
        assert len(evicted) == (len(images) if num_read else 0)
        assert residency(images.paths()).resident_pages == 0 and not keeper.caveats


@pytest.mark.parametrize(("max_bytes", "num", "most"), [(None, 16, 1 << 16), (100_000, 1, 1000), (10, 0, 0)])
def test_a_few_reads_are_timed_and_leave_nothing_behind(
    own_tree: Path, max_bytes: int | None, num: int, most: int
) -> None:
    if not can_prove_cold(str(own_tree)):
        pytest.skip("files of the temporary folder do not leave the page cache (tmpfs?)")
    images = index_images(str(own_tree))
    with CacheKeeper("cold", DataSet(images)) as keeper:
        keeper.time_cold_reads(max_bytes)
    reads = keeper.facts().cold_reads
    assert len(reads) == num
    assert all(0 < one.bytes <= most and one.storage_ns > 0 and one.memory_ns > 0 for one in reads)
    assert residency(images.paths()).resident_pages == 0
    # a warm run has nothing to prove
    warm = CacheKeeper("warm", DataSet(images))
    warm.time_cold_reads(None)
    assert warm.facts().cold_reads == ()
