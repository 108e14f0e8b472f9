"""The notes that let a later run clean up, and the refusals; no bed is needed here."""

import ctypes.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest

from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.selftest import base, slow_fuse, throttled_loop, uml
from tests.beds import uml_nfs


@pytest.fixture
def own_beds(tmp_path, monkeypatch):
    """An empty folder of beds, apart from the machine's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return base.beds_folder()


def ended_process():
    """(pid, start ticks) of a process that is gone."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ticks = base.start_time_ticks(child.pid)
    child.communicate(b"\n")
    return child.pid, ticks


def leave(folder, pid, ticks, **more):
    """What a process leaves that could not clean up."""
    resources = base.Resources("throttled_loop", pid, ticks, base._pid_namespace(), str(folder / f"bed-{pid}"))
    for name, value in more.items():
        setattr(resources, name, value)
    Path(resources.folder).mkdir()
    Path(resources.folder, "image").write_bytes(b"x")
    resources.note.write_text(json.dumps(asdict(resources)))
    return resources


def test_a_bed_whose_process_is_gone_is_removed(own_beds):
    left = leave(own_beds, *ended_process())
    told = base.clean_leftovers()
    assert told == [f"removed throttled_loop, which process {left.owner_pid} left"]
    assert [path.name for path in own_beds.iterdir()] == ["lock"]


def test_a_bed_whose_process_lives_is_left_alone(own_beds):
    left = leave(own_beds, os.getpid(), base.start_time_ticks(os.getpid()))
    assert base.clean_leftovers() == []
    assert Path(left.folder, "image").exists()


def test_another_process_with_the_same_number_does_not_keep_a_bed(own_beds):
    # given a note whose pid is taken again, by a process that started later
    left = leave(own_beds, os.getpid(), base.start_time_ticks(os.getpid()) - 1)
    base.clean_leftovers()
    assert not Path(left.folder).exists()


def test_pids_of_another_container_are_not_judged(own_beds):
    left = leave(own_beds, *ended_process(), pid_namespace="pid:[1]")
    assert base.clean_leftovers() == []
    assert Path(left.folder).exists()


def test_what_cannot_be_removed_is_told_and_stays_noted(own_beds):
    # given a group that cannot be removed, because it is no group
    no_group = own_beds / "no_group"
    no_group.mkdir()
    left = leave(own_beds, *ended_process(), cgroups=[(str(no_group), str(no_group))])
    told = base.clean_leftovers()
    assert len(told) == 1 and told[0].startswith("could not take down test bed")
    assert left.note.exists()


def test_only_the_bed_s_own_helpers_are_killed(own_beds):
    # given two processes in one session, of which one names the bed's folder
    child = "print(1, flush=True); input()"  # its command line is there once it says so
    source = f"import subprocess,sys; subprocess.Popen([sys.executable, '-c', {child!r}, sys.argv[1]]); input()"
    leader = subprocess.Popen(
        [sys.executable, "-c", source, "/beds/mine"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    leader.stdout.readline()
    # when another bed's processes in that session are killed, then nobody is; when its own are, all are
    base.kill_session(leader.pid, "/beds/other")
    assert len(base._session_members(leader.pid, "/beds/mine")) == 2
    base.kill_session(leader.pid, "/beds/mine")
    assert base._session_members(leader.pid, "/beds/mine") == []
    leader.communicate()
    assert leader.returncode == -9


def test_a_folder_that_others_may_write_to_is_refused(own_beds):
    own_beds.chmod(0o777)
    with pytest.raises(UnavailableError, match="open to others"):
        base.clean_leftovers()


def test_an_image_needs_no_mount_and_holds_the_tree(served_tree, tmp_path):
    debugfs = base.find_program("debugfs", "e2fsprogs")
    image = str(tmp_path / "image")
    base.make_ext4_image(str(served_tree), image)
    listed = subprocess.run([debugfs, "-R", "ls -p /", image], capture_output=True, text=True, check=True).stdout
    names = {line.split("/")[5] for line in listed.splitlines() if line.count("/") > 5}
    assert names == {".", "..", "class0", "class1"}


def test_a_missing_program_names_its_package():
    with pytest.raises(UnavailableError, match="install the Debian package nothing-such"):
        base.find_program("no-such-program", "nothing-such")


def test_install_commands_bring_every_package_that_a_reason_names():
    named = base.install_commands()[-1]
    assert {"e2fsprogs", "fuse3", "iproute2", "mount", "user-mode-linux", "util-linux"} <= set(named)


@pytest.mark.parametrize(
    ("bed", "limits"),
    [
        (throttled_loop.throttled_loop, {"bytes_per_s": 0}),
        (throttled_loop.throttled_loop, {"iops": -1}),
        (slow_fuse.slow_fuse, {"latency_s": 0}),
        (slow_fuse.slow_fuse, {"tail": (1.5, 0.1)}),
        (slow_fuse.slow_fuse, {"tail": (0.01, 0)}),
        (slow_fuse.slow_fuse, {"stall": (1.0, 1.0)}),
        (uml_nfs.uml_nfs, {"bandwidth_bits_per_s": -1}),
        (uml_nfs.uml_nfs, {"memory": "much"}),
    ],
)
def test_impossible_limits_are_refused(bed, limits, served_tree):
    with pytest.raises(ConfigError, match="must"), bed(served_tree, **limits):
        pass


@pytest.mark.parametrize("bed", [throttled_loop.throttled_loop, slow_fuse.slow_fuse, uml_nfs.uml_nfs])
def test_a_missing_tree_is_refused(bed, tmp_path):
    with pytest.raises(ConfigError, match="is not a folder"), bed(tmp_path / "nothing"):
        pass


def test_without_root_a_throttled_loop_says_so(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnavailableError, match="needs root"):
        throttled_loop.check_available()


def test_without_libfuse_a_slow_fuse_names_the_package(monkeypatch):
    monkeypatch.delitem(sys.modules, "mfusepy", raising=False)
    monkeypatch.delenv("FUSE_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(UnavailableError, match=r"libfuse.*package fuse3"):
        slow_fuse.check_available()


def test_on_another_processor_uml_says_so(monkeypatch):
    arm = os.uname_result(("Linux", "host", "6.1", "#1", "aarch64"))
    monkeypatch.setattr(os, "uname", lambda: arm)
    with pytest.raises(UnavailableError, match="does not exist for aarch64"):
        uml.check_available()


def test_throttle_lines_of_both_cgroup_versions():
    assert throttled_loop.throttle_settings(1, "7:0", 2e7, 100) == [
        ("blkio.throttle.read_bps_device", "7:0 20000000"),
        ("blkio.throttle.read_iops_device", "7:0 100"),
    ]
    assert throttled_loop.throttle_settings(2, "7:0", 2e7, 100) == [("io.max", "7:0 rbps=20000000 riops=100")]
    assert throttled_loop.throttle_settings(2, "7:0", None, 100) == [("io.max", "7:0 riops=100")]
    assert throttled_loop.throttle_settings(2, "7:0", None, None) == []
