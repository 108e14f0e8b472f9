from pathlib import Path

import pytest

from loaderbench.images.cache_state import can_prove_cold, residency
from loaderbench.images.index import index_images
from loaderbench.images.shards import DataSet
from loaderbench.running import cache
from loaderbench.running.cache import CacheKeeper


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


class Told:
    """A deadline that keeps what it is told."""

    duration_s = 10.0

    def __init__(self) -> None:
        self.said: list[tuple[float, str]] = []

    def extend(self, seconds: float, why: str) -> None:
        self.said.append((seconds, why))


@pytest.mark.parametrize(
    ("idle_s", "quick", "each_s", "said"),
    [
        pytest.param(0.0, 0, 0.001, [], id="quick"),
        # 0.2 of 10 s are kept for it; what was done before the first file is no time of files
        pytest.param(30.0, 0, 0.001, [], id="late"),
        pytest.param(0.0, 0, 0.010, [(8.0, "takes about 10 s for 1,000 files")], id="slow"),
        pytest.param(
            0.0,
            600,
            0.010,
            [(1.0, "takes about 3 s for 1,000 files"), (1.6, "takes about 5 s for 1,000 files")],
            id="slow behind those in memory",
        ),
    ],
)
def test_how_long_work_on_all_files_takes_is_foreseen_by_the_last_ones(
    idle_s: float, quick: int, each_s: float, said: list[tuple[float, str]], own_tree: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    now, deadline = [100.0], Told()
    monkeypatch.setattr(cache.time, "perf_counter", lambda: now[0])
    keeper = CacheKeeper("warm", DataSet(index_images(str(own_tree))), deadline=deadline)  # type: ignore[arg-type]
    on_done = keeper._foreseeing("work")
    now[0] += idle_s
    for number in range(1000):
        now[0] += 0.001 if number < quick else each_s
        on_done(number + 1, 1000)
    assert [why for _, why in deadline.said] == [f"work {text}" for _, text in said]
    assert [s for s, _ in deadline.said] == pytest.approx([s for s, _ in said], abs=0.1)


def test_files_that_share_a_storage_and_end_together_are_foreseen_as_a_whole_wave(
    own_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, deadline = [100.0], Told()
    monkeypatch.setattr(cache.time, "perf_counter", lambda: now[0])
    keeper = CacheKeeper("warm", DataSet(index_images(str(own_tree))), deadline=deadline)  # type: ignore[arg-type]
    on_done = keeper._foreseeing("work")
    now[0] += 0.1
    on_done(1, 321)  # alone; then 32 at once, 0.1 s of the storage each
    for number in range(1, 321):
        now[0] += 3.2 * ((number - 1) % 32 == 0)
        on_done(number + 1, 321)
    assert [why for _, why in deadline.said] == ["work takes about 32 s for 321 files"]
