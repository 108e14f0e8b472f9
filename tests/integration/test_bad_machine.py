"""A machine that lacks something: space, permission, shared memory, descriptors. One line, the right exit code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import commands
import pytest
from commands import TINY

UNSHARE = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user", "--mount")


def with_mount(*mounts: str) -> tuple[str, ...]:
    """A wrapper that runs a command where these `mount` commands have been run, seen by nobody else."""
    script = " && ".join(f"mount {mount}" for mount in mounts) + ' && exec "$@"'
    return (*UNSHARE, "sh", "-c", script, "sh")


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*with_mount("-t tmpfs none /mnt"), "true"], capture_output=True, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(not _can_mount(), reason="needs root, or user namespaces, to mount file systems")


@needs_mounts
def test_a_read_only_results_folder_is_refused_before_measuring(small_set: Path, tmp_path: Path) -> None:
    read_only = with_mount(f"--bind {tmp_path} {tmp_path}", f"-o remount,ro,bind {tmp_path}")
    for results in (tmp_path, tmp_path / "new"):
        ended = commands.run("run", small_set, "--res", "96", *TINY, "--results", results, wrapper=read_only)
        assert ended.code == 2
        assert len(ended.lines) == 1
        assert f"cannot write results to {results}: Read-only file system" in ended.err


@needs_mounts
def test_a_full_results_folder_is_refused_before_measuring(small_set: Path, tmp_path: Path) -> None:
    full = with_mount(f"-t tmpfs -o size=64k none {tmp_path}")
    ended = commands.run("run", small_set, "--res", "96", *TINY, "--results", tmp_path, wrapper=full)
    assert ended.code == 2
    assert len(ended.lines) == 1
    assert f"cannot write results to {tmp_path}: No space left on device" in ended.err


@needs_mounts
def test_a_results_folder_that_fills_up_meanwhile_is_said_in_one_line(small_set: Path, tmp_path: Path) -> None:
    # Given a folder with room for the probe, which another process fills once the run has begun.
    script = (
        f"mount -t tmpfs -o size=5m none {tmp_path} || exit 99; "
        f"(until [ -e {tmp_path}/*/worker.log ]; do sleep 0.05; done; cat /dev/zero >{tmp_path}/filler 2>/dev/null) & "
        'exec "$@"'
    )
    wrapper = (*UNSHARE, "sh", "-c", script, "sh")
    ended = commands.run("run", small_set, "--res", "96", *TINY, "--results", tmp_path, wrapper=wrapper)
    assert ended.code == 1
    assert len(ended.lines) == 1
    assert f"in {tmp_path}/" in ended.err and "No space left on device" in ended.err


@needs_mounts
def test_a_record_that_cannot_be_put_in_place_of_the_stored_one_is_said_in_one_line(
    small_set: Path, tmp_path: Path
) -> None:
    measured = commands.run("run", small_set, "--res", "96", *TINY, "--loader", "synthetic", "--results", tmp_path)
    assert measured.code == 0
    (path,) = tmp_path.glob("*/run.json")
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "rules_version": 0}))
    read_only = with_mount(f"--bind {tmp_path} {tmp_path}", f"-o remount,ro,bind {tmp_path}")
    judged = commands.run("analyze", "latest", "--results", tmp_path, wrapper=read_only)
    saved = commands.run("analyze", "latest", "--save", "--results", tmp_path, wrapper=read_only)
    assert judged.code == 0
    assert (saved.code, len(saved.lines)) == (1, 1)
    assert f"cannot store the result in {path.parent}: Read-only file system" in saved.err


@needs_mounts
@pytest.mark.parametrize(("loader", "code"), [("multiprocess", 2), ("threaded", 0), ("serial", 0)])
def test_little_shared_memory_is_named_instead_of_a_bus_error(
    loader: str, code: int, small_set: Path, tmp_path: Path
) -> None:
    little = with_mount("-t tmpfs -o size=8m none /dev/shm")
    size = ("--batch-size", "16", "--loader", loader)
    ended = commands.run("run", small_set, "--res", "96", *TINY, *size, "--results", tmp_path, wrapper=little)
    assert ended.code == code
    if code:
        assert len(ended.lines) == 1
        assert "/dev/shm has 8 MiB free" in ended.err
        assert "--shm-size" in ended.err


def test_too_few_descriptors_are_named(small_set: Path, tmp_path: Path) -> None:
    limited = ("sh", "-c", 'ulimit -n 64 && exec "$@"', "sh")
    ended = commands.run("run", small_set, "--res", "96", *TINY, "--results", tmp_path, wrapper=limited)
    assert ended.code == 2
    assert len(ended.lines) == 1
    assert "open files, but the limit is 64" in ended.err


def test_a_low_soft_limit_of_descriptors_is_raised(small_set: Path, tmp_path: Path) -> None:
    limited = ("sh", "-c", 'ulimit -Sn 64 && exec "$@"', "sh")
    ended = commands.run("run", small_set, "--res", "96", *TINY, "--results", tmp_path, wrapper=limited)
    assert (ended.code, ended.err) == (0, "")
