import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from loaderbench.errors import CaseFailed, UnavailableError
from loaderbench.images import cache_state
from loaderbench.images.cache_state import (
    PAGE_BYTES,
    choose_subset,
    evict,
    evict_files,
    locked,
    ram_copy,
    residency,
    spread_over_sizes,
)
from loaderbench.images.filesystem import storage_behind
from loaderbench.images.index import index_images

on_memory = pytest.mark.skipif(storage_behind("/tmp").is_memory, reason="/tmp is a tmpfs: nothing can be evicted there")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Twenty files of 1 byte to 400 KB, not a whole number of pages, just written (dirty)."""
    rng = np.random.default_rng(0)
    (tmp_path / "cat").mkdir()
    paths = []
    for number, size in enumerate([1, PAGE_BYTES, *rng.integers(1, 400_000, 18).tolist()]):
        path = tmp_path / "cat" / f"{number:02d}.jpg"
        path.write_bytes(rng.bytes(size))
        paths.append(str(path))
    return paths


def read_all(paths: list[str]) -> None:
    for path in paths:
        Path(path).read_bytes()


def num_pages(paths: list[str]) -> int:
    return sum(-(-os.path.getsize(path) // PAGE_BYTES) for path in paths)  # noqa: PTH202


@pytest.fixture(params=["cachestat", "mincore"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "mincore":
        monkeypatch.setattr(cache_state, "has_cachestat", lambda: False)
    elif not cache_state.has_cachestat():
        pytest.skip("the kernel has no cachestat(2): it needs Linux 6.5")
    return str(request.param)


@on_memory
def test_evicted_files_are_gone_and_read_ones_are_there(files: list[str], method: str) -> None:
    # Given files just written, so dirty: when they are evicted, then no page is left
    found = evict_files(files)
    assert (found.resident_pages, found.total_pages, found.method) == (0, num_pages(files), method)
    assert found.fraction == 0 and found.num_unknown == 0 and found.num_files == 20
    # and looking again brings nothing back; reading half of them brings exactly those.
    assert residency(files).resident_pages == 0
    read_all(files[:10])
    assert residency(files[:10]).fraction == 1
    assert residency(files).resident_pages == num_pages(files[:10])
    for path in files:
        evict(path)
    assert residency(files).fraction == 0


@on_memory
def test_locked_files_outlast_eviction(files: list[str]) -> None:
    evict_files(files)
    with locked(files, 1 << 30):
        assert residency(files).fraction == 1
        assert evict_files(files).fraction == 1
    assert evict_files(files).fraction == 0


def test_locking_more_than_the_budget_is_refused(files: list[str]) -> None:
    with pytest.raises(UnavailableError, match="budget is 1,000"), locked(files, 1000):
        pass


def test_locking_more_than_the_limit_is_refused(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_state, "memlock_limit_bytes", lambda: 8192)
    with pytest.raises(UnavailableError, match="RLIMIT_MEMLOCK allows 8,192"), locked(files, 1 << 30):
        pass


def test_a_missing_file_is_a_config_error_when_locking_and_unknown_when_looking(tmp_path: Path) -> None:
    missing = str(tmp_path / "gone")
    with pytest.raises(CaseFailed, match="gone"), locked([missing], 1 << 30):
        pass
    found = evict_files([missing])
    assert (found.num_unknown, found.fraction, found.method) == (1, None, "none")
    assert found.reason is not None and "No such file" in found.reason


@as_root
@on_memory
def test_another_users_file_is_unknown_not_resident(files: list[str]) -> None:
    # Given evicted files of root that anybody may read
    evict_files(files)
    folder = Path(files[0])
    for parent in [*folder.parents][:-2]:
        parent.chmod(parent.stat().st_mode | 0o055)
    # When nobody looks at them (mincore would say: all resident), then they are unknown, with the reason.
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from loaderbench.images import cache_state\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "cache_state._capabilities.cache_clear()\n"
        "found = cache_state.residency(sys.argv[2:])\n"
        "print(found.num_unknown, found.resident_pages, found.fraction, found.reason)\n"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parents[2]), *files]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.startswith("20 0 None ") and "owner" in output


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / "layers" / name).mkdir(parents=True)
    layers = tmp_path / "layers"
    (layers / "lower" / "low.jpg").write_bytes(bytes(100_000))
    os.sync()  # a lower layer is long written; overlayfs would not do it
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"lowerdir={layers}/lower,upperdir={layers}/upper,workdir={layers}/work"
    if libc.mount(b"overlay", os.fsencode(layers / "merged"), b"overlay", 0, options.encode()) != 0:
        pytest.skip(f"an overlay cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        (layers / "merged" / "up.jpg").write_bytes(bytes(100_000))
        yield layers / "merged"
    finally:
        libc.umount2(os.fsencode(layers / "merged"), 2)


@as_root
@on_memory
def test_overlay_is_seen_by_mincore(overlay: Path) -> None:
    paths = [str(path) for path in overlay.glob("*.jpg")]
    assert len(paths) == 2
    read_all(paths)
    found = residency(paths)
    assert (found.method, found.fraction) == ("mincore", 1)
    assert evict_files(paths).fraction == 0
    assert storage_behind(overlay).device is None and "overlay" in str(storage_behind(overlay).reason)


def test_subset_fits_the_budget_and_keeps_the_sizes() -> None:
    sizes = np.random.default_rng(1).lognormal(11.5, 0.5, 5000).astype(np.int64)
    for budget_bytes in (2_000_000, 20_000_000, 200_000_000):
        chosen = choose_subset(sizes, budget_bytes, seed=2)
        pages = -(-sizes[chosen] // PAGE_BYTES) * PAGE_BYTES
        assert 0.85 * budget_bytes < pages.sum() <= budget_bytes
        assert sizes[chosen].mean() == pytest.approx(sizes.mean(), rel=0.06 if len(chosen) < 50 else 0.02)
        assert len(set(chosen.tolist())) == len(chosen) and (np.diff(chosen) > 0).all()
        assert (chosen == choose_subset(sizes, budget_bytes, seed=2)).all()
    assert len(choose_subset(sizes, 10**12)) == 5000
    assert len(choose_subset(sizes, 100)) == 0


def test_ram_copy_holds_the_same_bytes_and_goes_away(files: list[str]) -> None:
    index = index_images(str(Path(files[0]).parent.parent))
    copied, cleanup = ram_copy(index, 1 << 30)
    try:
        assert len(copied) == 20 and copied.classes == index.classes
        assert storage_behind(copied.root).is_memory
        assert [Path(path).read_bytes() for path in copied.paths()] == [
            Path(path).read_bytes() for path in index.paths()
        ]
        assert residency(copied.paths()).fraction == 1
    finally:
        cleanup()
    assert not Path(copied.root).exists()


def test_ram_copy_of_a_subset_stays_in_its_budget(files: list[str]) -> None:
    index = index_images(str(Path(files[0]).parent.parent))
    copied, cleanup = ram_copy(index, 1_500_000)
    try:
        assert 0 < len(copied) < 20 and copied.sizes.sum() <= 1_500_000
    finally:
        cleanup()
    with pytest.raises(UnavailableError, match="no image fits"):
        ram_copy(index, 10)
    with pytest.raises(UnavailableError, match="not a tmpfs"):
        ram_copy(index, 1 << 30, str(Path(__file__).parent))


def test_a_copy_that_ran_out_of_time_has_the_mix_of_sizes_of_all(files: list[str]) -> None:
    index = index_images(str(Path(files[0]).parent.parent))
    # Given no time: when five files are copied all the same, then they are spread over the sizes
    copied, cleanup = ram_copy(index, 1 << 30, until=0.0, at_least=5)
    cleanup()
    assert len(copied) == 5 and copied.sizes.mean() == pytest.approx(index.sizes.mean(), rel=0.25)


@pytest.mark.parametrize("num", [1, 2, 7, 64, 1000])
def test_every_beginning_of_the_order_has_the_mix_of_sizes_of_all(num: int) -> None:
    sizes = np.random.default_rng(1).lognormal(11, 0.6, 1000).astype(np.int64)
    chosen = np.sort(np.random.default_rng(2).permutation(1000)[:num])
    order = spread_over_sizes(sizes, chosen)
    assert sorted(order.tolist()) == chosen.tolist()
    # the discrepancy of van der Corput's sequence is below (log₂ n + 1) / n
    for count in {num, num // 2, num // 3, num // 10} - {0}:
        ranks = np.sort(np.argsort(np.argsort(sizes[chosen]))[np.searchsorted(chosen, order[:count])])
        assert np.abs(ranks - (np.arange(count) + 0.5) * num / count).max() <= num * (np.log2(count) + 3) / count


@on_memory
def test_a_copy_leaves_its_sources_where_they_were(files: list[str]) -> None:
    evict_files(files)
    index = index_images(str(Path(files[0]).parent.parent))
    _, cleanup = ram_copy(index, 1 << 30, evict_sources=True)
    cleanup()
    assert residency(files).resident_pages == 0
    _, cleanup = ram_copy(index, 1 << 30)
    cleanup()
    assert residency(files).fraction == 1


def test_no_more_than_the_time_allows_is_looked_at_and_the_number_is_told(files: list[str]) -> None:
    assert residency(files, until=0.0, at_least=3).num_files == 3
    assert residency(files).num_files == 20


def test_what_a_killed_process_left_in_memory_is_removed(files: list[str]) -> None:
    # Given a process killed while it held a copy
    code = (
        "import os, sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from loaderbench.images.index import index_images\n"
        "from loaderbench.images.cache_state import ram_copy\n"
        "print(ram_copy(index_images(sys.argv[2]), 1 << 30)[0].root, flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parents[2]), str(Path(files[0]).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        root = Path(process.stdout.readline().strip())
        assert root.is_dir()
        # When it lives, its copy is left alone; when it is gone, the next copy removes it.
        assert str(root) not in cache_state.remove_leftovers()
        assert root.is_dir()
        process.kill()
    index = index_images(str(Path(files[0]).parent))
    _, cleanup = ram_copy(index, 1 << 30)
    cleanup()
    assert not root.exists()


@on_memory
def test_a_set_that_vanishes_is_reported(files: list[str]) -> None:
    shutil.rmtree(Path(files[0]).parent)
    assert residency(files).num_unknown == 20
