"""The storage probe on real files: what it reads, how it ends, and known rates on the test beds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderbench.analysis.storage import bound_by, ceiling, still_rising
from loaderbench.errors import UnavailableError
from loaderbench.images.cache_state import residency
from loaderbench.images.index import index_images
from loaderbench.plain import from_json, to_json
from loaderbench.recording.facts import CeilingProbe
from loaderbench.running import ceiling as module
from loaderbench.running.ceiling import probe_ceiling
from loaderbench.samplers.sources import StorageCounter
from loaderbench.selftest import slow_fuse, throttled_loop

pytestmark = pytest.mark.alone

NUM_FILES = 64


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of 60 to 130 KB, one of 3.5 MB and an empty one: what matters to the storage is their bytes."""
    root = tmp_path_factory.mktemp("probed")
    random = np.random.default_rng(0)
    for number in range(NUM_FILES):
        (root / f"{number:03}.jpg").write_bytes(random.bytes(int(random.integers(60_000, 130_000))))
    (root / "large.jpg").write_bytes(random.bytes(3_500_001))
    (root / "none.jpg").touch()
    for path in root.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return root


def run(root: Path | str, **options: Any) -> CeilingProbe:
    counter = StorageCounter(root)
    try:
        return probe_ceiling(index_images(str(root)), counter=counter, **options)
    finally:
        counter.close()


def test_stages_of_real_reads(tree: Path) -> None:
    threads = threading.active_count()
    facts = run(tree, deadline_s=0.9, max_readers=4)
    assert from_json(CeilingProbe, json.loads(json.dumps(to_json(facts)))) == facts
    assert [one.readers for one in facts.stages] == [1, 2, 4]
    assert facts.num_images == NUM_FILES + 2
    for one in facts.stages:
        assert one.bytes > 0 and 0 < one.seconds < 0.6
        assert len(one.slices_bytes) == module.SLICES
        assert sum(one.slices_bytes) <= one.bytes
        assert one.file_s is not None and 0 < one.file_s.p50 <= one.file_s.p95
    assert threading.active_count() == threads


def test_whole_files_are_read_to_their_last_byte(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given as many bytes a stage as all files once
    images = index_images(str(tree))
    pages = int((-(-images.sizes // 4096) * 4096).sum())
    monkeypatch.setattr(module, "STAGE_S", 20.0)
    facts = run(tree, max_readers=1, deadline_s=20, max_bytes=pages)
    # then each is read once, and the bytes are those of the files
    assert facts.stages[0].bytes == int(images.sizes.sum())
    assert facts.stages[0].files == NUM_FILES + 1  # an empty file has no last byte


def test_the_bytes_come_from_the_device_and_leave_no_pages(tree: Path) -> None:
    if StorageCounter(tree).reason is not None:
        pytest.skip(StorageCounter(tree).reason)
    for path in tree.iterdir():  # given files in the page cache
        path.read_bytes()
    facts = run(tree, deadline_s=0.6, max_readers=2)
    for one in facts.stages:
        assert one.moved is not None and one.moved["read_bytes"] >= 0.98 * one.bytes
    assert residency(map(str, tree.iterdir())).fraction == pytest.approx(0, abs=0.01)


def test_file_systems_without_direct_reads_are_read_buffered(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument", path)
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    facts = run(tree, deadline_s=0.6, max_readers=2)
    assert {one.method for one in facts.stages} == {"DONTNEED"}
    for one in facts.stages:
        if one.moved is not None:
            assert one.moved["read_bytes"] >= 0.9 * one.bytes


def test_no_more_than_the_bytes_allowed(tree: Path) -> None:
    facts = run(tree, max_bytes=6_000_000, max_readers=4, deadline_s=3)
    assert 0 < sum(one.bytes for one in facts.stages) <= 6_000_000
    assert run(tree, max_bytes=50_000).stages == ()
    assert run(tree, max_bytes=50_000).stopped_by == "max_bytes"


def test_a_file_that_vanished_ends_the_probe_with_its_name(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(bytes(9000))
    images = index_images(str(tmp_path))
    (tmp_path / "a.jpg").unlink()
    facts = probe_ceiling(images, counter=StorageCounter(tree), deadline_s=0.2)
    assert facts.stopped_by == "error" and facts.stages == ()
    assert "a.jpg: No such file" in (facts.reason or "")


def queued(num_readers: int, read_s: float, end_s: float) -> tuple[list[tuple[int, int]], int]:
    """(end, bytes) of reads of 1 MB by readers that share a channel, first come first served; each reader asks for the
    next when it has the last, until `end_s`."""
    asked, done, free = [0.0] * num_readers, [], 0.0
    while asked:
        at = asked.pop(0)
        free = max(free, at) + read_s
        done.append((round(free * 1e9), 1_000_000))
        if free < end_s:
            asked.append(free)
    return done, round(end_s * 1e9)


@pytest.mark.parametrize("num_readers", [1, 4, 16, 32])
@pytest.mark.parametrize("read_s", [0.004, 0.02])
def test_a_shared_channel_has_its_own_rate_however_short_the_stage(num_readers: int, read_s: float) -> None:
    """With 32 readers and 0.3 s at 50 MB/s most of them read once, the last one until 0.64 s."""
    done, end_ns = queued(num_readers, read_s, 0.3)
    slices, slice_s = module._slices(np.array(done), 0, end_ns)
    assert sum(slices) / (slice_s * len(slices)) == pytest.approx(1e6 / read_s, rel=0.01)


@pytest.mark.parametrize("num_readers", [1, 8, 32])
def test_readers_that_wait_each_for_itself_add_up(num_readers: int) -> None:
    """Each gets 1 MB every 20 ms, all at the same times."""
    done = [(number * 20_000_000, 1_000_000) for number in range(1, 17) for _ in range(num_readers)]
    slices, slice_s = module._slices(np.array(done), 0, 300_000_000)
    assert sum(slices) / (slice_s * len(slices)) == pytest.approx(num_readers * 50e6, rel=0.01)


class _SlowSource:
    """Reads of 0.1 s each for one reader at a time: files that take ever longer with more readers."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def preadv(self, real: Callable[..., int]) -> Callable[..., int]:
        def slow(*arguments: Any) -> int:
            with self.lock:
                time.sleep(0.1)
                return real(*arguments)

        return slow


def test_storage_too_slow_for_many_readers_does_not_overrun(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "preadv", _SlowSource().preadv(os.preadv))
    monkeypatch.setattr(module, "_is_flat", lambda stages: False)
    begun = time.perf_counter()
    facts = run(tree, deadline_s=1.5, max_readers=32)
    assert time.perf_counter() - begun < 1.8
    assert facts.stopped_by == "deadline"


def require(check_available: Callable[[], None]) -> None:
    try:
        check_available()
    except UnavailableError as reason:
        if os.environ.get("LOADERBENCH_REQUIRE_BEDS"):
            pytest.fail(f"this bed has to be here: {reason}")
        pytest.skip(str(reason))


PROBE = """
import json, sys
from loaderbench.plain import to_json
from loaderbench.images.index import index_images
from loaderbench.running.ceiling import probe_ceiling
from loaderbench.samplers.sources import StorageCounter
print(json.dumps(to_json(probe_ceiling(index_images(sys.argv[1]), counter=StorageCounter(sys.argv[1])))))
"""


@pytest.mark.bed
def test_a_capped_disk_gives_its_cap_to_any_number_of_readers(tree: Path) -> None:
    require(throttled_loop.check_available)
    with throttled_loop.throttled_loop(tree, bytes_per_s=40e6) as bed:
        command = [*bed.command_prefix, sys.executable, "-c", PROBE, bed.path]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    facts = from_json(CeilingProbe, json.loads(done.stdout))
    found = ceiling(facts)
    assert found is not None
    assert found.value == pytest.approx(40e6, rel=0.1)
    assert facts.stopped_by == "flat"
    # one reader alone waits for a processor after each read, where the machine has none to spare
    assert bound_by(facts, 2) == "bandwidth"
    assert still_rising(facts) is False
    for one in facts.stages:
        assert one.moved is not None and one.moved["read_bytes"] == pytest.approx(one.bytes, rel=0.05)


@pytest.mark.bed
@pytest.mark.parametrize(("bytes_per_s", "deadline_s"), [(12e6, 2.0), (23e6, 1.0), (61e6, 1.0)])
def test_a_short_probe_is_right_or_says_its_interval(tree: Path, bytes_per_s: float, deadline_s: float) -> None:
    require(slow_fuse.check_available)
    with slow_fuse.slow_fuse(tree, bytes_per_s=bytes_per_s) as bed:
        found = ceiling(run(bed.path, deadline_s=deadline_s))
    assert found is not None and found.low is not None and found.high is not None
    assert found.low <= bytes_per_s <= found.high or found.value == pytest.approx(bytes_per_s, rel=0.05)
    assert found.value == pytest.approx(bytes_per_s, rel=0.2)


@pytest.mark.bed
def test_slow_answers_are_a_latency(tree: Path) -> None:
    require(slow_fuse.check_available)
    with slow_fuse.slow_fuse(tree, latency_s=0.02) as bed:
        facts = run(bed.path, max_readers=8, deadline_s=3)
    assert bound_by(facts) == "latency"
    assert still_rising(facts) is True
    assert facts.stages[0].moved is None
    # one reader: a file's answer takes its latency
    assert facts.stages[0].file_s is not None
    assert facts.stages[0].file_s.p50 == pytest.approx(0.021, rel=0.3)


@pytest.mark.bed
def test_a_slow_channel_is_a_bandwidth(tree: Path) -> None:
    require(slow_fuse.check_available)
    with slow_fuse.slow_fuse(tree, bytes_per_s=30e6) as bed:
        facts = run(bed.path, max_readers=8, deadline_s=3)
    found = ceiling(facts)
    assert found is not None
    assert found.value == pytest.approx(30e6, rel=0.1)
    assert bound_by(facts, 2) == "bandwidth"
