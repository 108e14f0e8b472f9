"""The slow file system keeps to bandwidth and latency, counts what it served, and goes with its owner."""

import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import zlib
from pathlib import Path

import bed_reading
import pytest

from loaderbench.errors import UnavailableError
from loaderbench.selftest import slow_fuse as module
from loaderbench.selftest.base import clean_leftovers, mount_points, start_time_ticks
from loaderbench.selftest.slow_fuse import check_available, slow_fuse

pytestmark = [pytest.mark.bed, pytest.mark.alone]

HOLD = """
import sys, time
from loaderbench.selftest.slow_fuse import slow_fuse
with slow_fuse(sys.argv[1], bytes_per_s=20e6) as bed:
    print(bed.path, bed.daemon_pid, flush=True)
    time.sleep(60)
"""
READ_ONE = """
import sys
from pathlib import Path
from loaderbench.selftest.slow_fuse import slow_fuse
with slow_fuse(sys.argv[1]) as bed:
    print(len(Path(bed.path, "class0/000.jpg").read_bytes()), Path(bed.path).parent.parent.name)
"""


@pytest.fixture(autouse=True)
def _available(require_bed):
    require_bed(check_available)


def least_disturbed(read, enough_bytes_per_s):
    """What up to three readings saw, until one is fast enough: other work on the machine only makes them slower."""
    seen = []
    while len(seen) < 6 and not (seen and seen[-1]["bytes"] / seen[-1]["wall_s"] >= enough_bytes_per_s):
        seen.append(read())
    return seen


@pytest.mark.parametrize("bytes_per_s", [10e6, 40e6])
def test_the_set_bandwidth_is_reached_by_four_readers(served_tree, bytes_per_s):
    with slow_fuse(served_tree, bytes_per_s=bytes_per_s) as bed:
        seen = least_disturbed(lambda: bed_reading.read_for(bed.path, 4, 1.5), bytes_per_s * 0.95)
        served = bed.bytes_served()
    assert bed.truth.bytes_per_s == bytes_per_s
    rates = [one["bytes"] / one["wall_s"] for one in seen]
    assert max(rates) == pytest.approx(bytes_per_s, rel=0.05)
    assert served == sum(one["bytes"] for one in seen)


def test_latency_is_paid_by_each_read_and_scales_with_the_readers(served_tree):
    with slow_fuse(served_tree, latency_s=0.02) as bed:
        one = bed_reading.read_for(bed.path, 1, 0.8)
        reads = bed.reads_served()
        four = bed_reading.read_for(bed.path, 4, 0.8)
    # files are smaller than the kernel's read-ahead window: one request each
    assert reads == one["files"]
    assert 0.02 <= one["wall_s"] / one["files"] <= 0.026
    rates = [seen["files"] / seen["wall_s"] for seen in (one, four)]
    assert rates[1] / rates[0] > 2.5  # 4 on a machine with a CPU to spare; 1 were a bandwidth cap


def seconds_of_reading(path):
    begun = time.perf_counter()
    bed_reading.read_and_evict(path)
    return time.perf_counter() - begun


def test_the_files_of_a_tail_are_slow_each_time_and_no_others(served_tree):
    names = [os.path.relpath(path, served_tree) for path in bed_reading.files_below(served_tree)]
    slow = {name for name in names if zlib.crc32(f"/{name}".encode()) < 0.3 * 2**32}
    assert 0 < len(slow) < len(names)
    with slow_fuse(served_tree, tail=(0.3, 0.1)) as bed:
        for _ in range(2):
            seen = {name: seconds_of_reading(Path(bed.path, name)) for name in names}
            assert {name for name, seconds in seen.items() if seconds >= 0.1} >= slow
            assert sum(seconds < 0.1 for seconds in seen.values()) >= 0.9 * (len(names) - len(slow))


def test_nothing_ends_while_the_storage_stands_still(served_tree):
    paths = bed_reading.files_below(served_tree)
    with slow_fuse(served_tree, stall=(0.6, 0.2)) as bed:
        served = [Path(bed.path, os.path.relpath(path, served_tree)) for path in paths]
        ends = []
        begun = time.monotonic()
        while time.monotonic() < begun + 2.5:
            for path in served:
                bed_reading.read_and_evict(path)
                ends.append(time.monotonic())
    # A read that the daemon let go on just before may end just within.
    late = [end for end in ends if 0.41 < end % 0.6 < 0.59]
    assert len(late) <= 0.01 * len(ends)
    assert {int(end / 0.6) for end in ends} == set(range(int(begun / 0.6), int(ends[-1] / 0.6) + 1))


def test_pages_stay_cached_until_they_are_evicted(served_tree):
    with slow_fuse(served_tree) as bed:
        path = Path(bed.path, "class0/000.jpg")
        size = len(path.read_bytes())
        path.read_bytes()
        assert bed.bytes_served() == size
        bed_reading.read_and_evict(path)
        path.read_bytes()
        assert bed.bytes_served() == 2 * size


def test_the_daemon_s_own_cpu_time_is_seen(served_tree):
    with slow_fuse(served_tree) as bed:
        before = bed.daemon_cpu_s()
        seen = bed_reading.read_for(bed.path, 2, 0.5)
        used = bed.daemon_cpu_s() - before
    assert 0 < used <= seen["wall_s"] * os.cpu_count()


def test_the_tree_is_the_tree_and_read_only(served_tree):
    with slow_fuse(served_tree) as bed:
        assert [os.path.relpath(path, bed.path) for path in bed_reading.files_below(bed.path)] == [
            os.path.relpath(path, served_tree) for path in bed_reading.files_below(served_tree)
        ]
        assert Path(bed.path, "class1/001.jpg").read_bytes() == (served_tree / "class1/001.jpg").read_bytes()
        with pytest.raises(OSError, match="Read-only"):
            Path(bed.path, "new").write_bytes(b"")


def test_an_exception_inside_leaves_nothing(served_tree):
    with pytest.raises(ZeroDivisionError), slow_fuse(served_tree) as bed:
        raise ZeroDivisionError
    assert bed.path not in mount_points()
    assert start_time_ticks(bed.daemon_pid) is None
    assert not Path(bed.path).parent.exists()


def test_the_daemon_ends_with_its_killed_owner_and_the_next_run_removes_the_rest(served_tree, start_owner):
    owner, (path, daemon_pid) = start_owner(HOLD, served_tree)
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 5
    while start_time_ticks(int(daemon_pid)) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    # the daemon unmounted by itself
    assert start_time_ticks(int(daemon_pid)) is None
    assert path not in mount_points()
    assert Path(path).parent.exists()
    assert f"removed slow_fuse, which process {owner.pid} left" in clean_leftovers()
    assert not Path(path).parent.exists()


def test_a_killed_daemon_s_dead_mount_is_removed(served_tree):
    with slow_fuse(served_tree) as bed:
        os.kill(bed.daemon_pid, 9)
        with pytest.raises(OSError, match=r"not connected|connection abort"):
            Path(bed.path, "class0/000.jpg").read_bytes()
    assert bed.path not in mount_points()
    assert not Path(bed.path).parent.exists()


def test_a_daemon_that_does_not_start_says_why(served_tree, tmp_path, monkeypatch):
    broken = tmp_path / "fuse_daemon.py"
    broken.write_text("raise SystemExit('no libfuse here')")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "slow_fuse.py"))
    with pytest.raises(UnavailableError, match="could not mount: no libfuse here"), slow_fuse(served_tree):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="runs as an ordinary user already")
def test_an_ordinary_user_can_make_one(tmp_path_factory):
    if Path("/dev/fuse").stat().st_mode & 0o006 != 0o006:
        pytest.skip("/dev/fuse is open to root only here: no udev has set its mode")
    # given a tree and a Python that everybody may read
    python = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    packages = [str(Path(__file__).parents[2]), sysconfig.get_path("purelib")]
    tree = Path(tmp_path_factory.mktemp("public"))
    for folder in (tree, *(each for each in tree.parents if Path(tempfile.gettempdir()) in each.parents)):
        folder.chmod(0o755)
    (tree / "class0").mkdir()
    (tree / "class0/000.jpg").write_bytes(b"12345")
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    environment = {"PYTHONPATH": os.pathsep.join(packages), "PATH": os.defpath}
    try:
        can = subprocess.run([python, "-c", "import mfusepy, psutil, loaderbench"], env=environment, **nobody)
    except OSError as error:
        pytest.skip(f"no Python that every user may run: {error}")
    if can.returncode or not Path(tree, "class0").exists():
        pytest.skip("the packages of this environment cannot be read by every user")
    # when user nobody serves it
    command = [python, "-c", READ_ONE, str(tree)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, **nobody)
    assert done.stdout.split() == ["5", "loaderbench-beds-65534"], done.stderr
