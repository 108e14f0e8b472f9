"""The loop device keeps to the rate that was set, and nothing of it stays behind."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import bed_reading
import pytest

from loaderbench.selftest.base import clean_leftovers, mount_points
from loaderbench.selftest.throttled_loop import check_available, throttled_loop

pytestmark = [pytest.mark.bed, pytest.mark.alone]

HOLD = """
import sys, time
from loaderbench.selftest.throttled_loop import throttled_loop
with throttled_loop(sys.argv[1], bytes_per_s=20e6) as bed:
    print(bed.path, bed.device, bed.cgroup, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _available(require_bed):
    require_bed(check_available)


def read_inside(bed, readers, seconds):
    command = [*bed.command_prefix, sys.executable, bed_reading.__file__, bed.path, str(readers), str(seconds)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def loop_of(device):
    """Backing file of a loop device, None where it has none."""
    backing = Path(f"/sys/dev/block/{device}/loop/backing_file")
    return backing.read_text().strip() if backing.exists() else None


@pytest.mark.parametrize("readers", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_the_set_rate_is_reached_and_the_device_counts_the_bytes(served_tree, readers):
    with throttled_loop(served_tree, bytes_per_s=20e6) as bed:
        before = bed.bytes_read()
        seen = read_inside(bed, readers, 4.0)  # one or two slices of 0.1 s come through at once
        moved = bed.bytes_read() - before
    assert bed.truth.bytes_per_s == 20e6
    assert seen["bytes"] / seen["wall_s"] == pytest.approx(20e6, rel=0.06)
    # pages are moved whole; directories and inodes come on top
    pages = seen["files"] * 2048 + seen["bytes"]
    assert moved == pytest.approx(pages, rel=0.02)


def test_the_copy_is_the_tree_and_read_only(served_tree):
    with throttled_loop(served_tree) as bed:
        assert [os.path.relpath(path, bed.path) for path in bed_reading.files_below(bed.path)] == [
            os.path.relpath(path, served_tree) for path in bed_reading.files_below(served_tree)
        ]
        assert Path(bed.path, "class0/000.jpg").read_bytes() == (served_tree / "class0/000.jpg").read_bytes()
        with pytest.raises(OSError, match="Read-only"):
            Path(bed.path, "new").write_bytes(b"")
        assert {path.name for path in Path(bed.path).iterdir()} == {"class0", "class1"}


def test_requests_a_second_are_capped(served_tree):
    with throttled_loop(served_tree, iops=100) as bed:
        before = bed.requests_read()
        seen = read_inside(bed, 4, 4.0)  # the first slice of the cap lets about ten through at once
        requests = bed.requests_read() - before
    assert requests / seen["wall_s"] == pytest.approx(100, rel=0.06)


def test_a_process_that_entered_takes_its_children_along_and_is_given_back(served_tree):
    child = subprocess.Popen(["sh", "-c", "read go; sleep 60 & echo $!; wait"], stdin=-1, stdout=-1, text=True)
    try:
        with throttled_loop(served_tree, bytes_per_s=20e6) as bed:
            bed.enter(child.pid)
            child.stdin.write("\n")
            child.stdin.flush()
            grandchild = int(child.stdout.readline())
            inside = Path(bed.cgroup, "cgroup.procs").read_text().split()
            assert {str(child.pid), str(grandchild)} <= set(inside)
        # the group is gone although they live
        assert not Path(bed.cgroup).exists()
        assert child.poll() is None
        os.kill(grandchild, 9)
    finally:
        child.kill()
        child.communicate()


def test_an_exception_inside_leaves_nothing(served_tree):
    with pytest.raises(ZeroDivisionError), throttled_loop(served_tree, bytes_per_s=20e6) as bed:
        raise ZeroDivisionError
    assert bed.path not in mount_points()
    assert bed.path not in str(loop_of(bed.device))
    assert not Path(bed.cgroup).exists()
    assert not Path(bed.path).parent.exists()


def test_what_a_killed_run_left_is_removed_by_the_next(served_tree, start_owner):
    # given a run that was killed while its bed stood, and a file of it held open
    owner, (path, device, cgroup) = start_owner(HOLD, served_tree)
    with open(Path(path, "class0/000.jpg"), "rb") as held:
        owner.kill()
        owner.wait()
        assert path in mount_points() and loop_of(device) and Path(cgroup).exists()
        # when the next run looks
        told = clean_leftovers()
        # then it is gone from the tree, whoever still reads
        assert f"removed throttled_loop, which process {owner.pid} left" in told
        assert path not in mount_points()
        assert not Path(cgroup).exists()
        assert not Path(path).parent.exists()
        assert len(held.read()) == (served_tree / "class0/000.jpg").stat().st_size
    # and the device is free as soon as nobody does
    deadline = time.monotonic() + 5
    while path.removesuffix("/mount") in str(loop_of(device)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert path.removesuffix("/mount") not in str(loop_of(device))
