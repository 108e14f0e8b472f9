"""A machine that lacks something: space, permission, shared memory, descriptors. One line, the right exit code."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import commands
import pytest
from commands import TINY, Started

from tests.warm import Where

needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0
    or subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0,
    reason="needs root, to mount file systems",
)


def read_only(folder: Path) -> Where:
    return Where(mounts=(f"--bind {folder} {folder}", f"-o remount,ro,bind {folder}"))


@needs_mounts
def test_a_read_only_results_folder_is_refused_before_measuring(small_set: Path, tmp_path: Path) -> None:
    for results in (tmp_path, tmp_path / "new"):
        ended = commands.run("run", small_set, "--res", "96", *TINY, "--results", results, where=read_only(tmp_path))
        assert ended.code == 2
        assert len(ended.lines) == 1
        assert f"cannot write results to {results}: Read-only file system" in ended.err


@needs_mounts
def test_a_full_results_folder_is_refused_before_measuring(small_set: Path, tmp_path: Path) -> None:
    full = Where(mounts=(f"-t tmpfs -o size=64k none {tmp_path}",))
    ended = commands.run("run", small_set, "--res", "96", *TINY, "--results", tmp_path, where=full)
    assert ended.code == 2
    assert len(ended.lines) == 1
    assert f"cannot write results to {tmp_path}: No space left on device" in ended.err


@needs_mounts
def test_a_results_folder_that_fills_up_meanwhile_loses_nothing(
    small_set: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a folder with room for the probe, which another process fills once the run has begun.
    elsewhere = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    run = ("run", small_set, "--res", "96", *TINY, "--results", tmp_path)
    with Started(*run, mounts=(f"-t tmpfs -o size=5m none {tmp_path}",)) as started:
        inside = Path(f"/proc/{started.process.pid}/root{tmp_path}")  # proc(5): with the mounts that the process sees
        started.wait_for(lambda: list(inside.glob("*/worker.log")))
        with suppress(OSError), (inside / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        ended = started.end()
    assert ended.code == 1
    assert len(ended.lines) == 1
    assert f"in {tmp_path}/" in ended.err and "No space left on device" in ended.err
    # the line says where the run is, whole
    (kept,) = elsewhere.glob("loaderbench-spilled-*")
    assert f"kept in {kept} " in ended.err
    (record,) = commands.records(kept)
    assert record["status"] == "ok" and record["throughput"]["value"] > 0
    judged = commands.call("analyze", "latest", "--results", kept, "--quiet")
    assert (judged.code, judged.err) == (0, "")


@needs_mounts
def test_a_record_that_cannot_be_put_in_place_of_the_stored_one_is_said_in_one_line(
    small_set: Path, tmp_path: Path
) -> None:
    measured = commands.run("run", small_set, "--res", "96", *TINY, "--loader", "synthetic", "--results", tmp_path)
    assert measured.code == 0
    (path,) = tmp_path.glob("*/run.json")
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "rules_version": 0}))
    judged = commands.run("analyze", "latest", "--results", tmp_path, where=read_only(tmp_path))
    saved = commands.run("analyze", "latest", "--save", "--results", tmp_path, where=read_only(tmp_path))
    assert judged.code == 0
    assert (saved.code, len(saved.lines)) == (1, 1)
    assert f"cannot store the result in {path.parent}: Read-only file system" in saved.err


@needs_mounts
@pytest.mark.parametrize(("loader", "code"), [("multiprocess", 2), ("threaded", 0), ("serial", 0)])
def test_little_shared_memory_is_named_instead_of_a_bus_error(
    loader: str, code: int, small_set: Path, tmp_path: Path
) -> None:
    little = Where(mounts=("-t tmpfs -o size=8m none /dev/shm",))
    size = ("--batch-size", "16", "--loader", loader)
    ended = commands.run("run", small_set, "--res", "96", *TINY, *size, "--results", tmp_path, where=little)
    assert ended.code == code
    if code:
        assert len(ended.lines) == 1
        assert "/dev/shm has 8 MiB free" in ended.err
        assert "--shm-size" in ended.err


def test_too_few_descriptors_are_named(small_set: Path, tmp_path: Path) -> None:
    limited = Where(open_files=64, hard=True)
    ended = commands.run("run", small_set, "--res", "96", *TINY, "--results", tmp_path, where=limited)
    assert ended.code == 2
    assert len(ended.lines) == 1
    assert "open files, but the limit is 64" in ended.err


def test_a_low_soft_limit_of_descriptors_is_raised(small_set: Path, tmp_path: Path) -> None:
    limited = Where(open_files=64)
    ended = commands.run("run", small_set, "--res", "96", *TINY, "--results", tmp_path, where=limited)
    assert (ended.code, ended.err) == (0, "")
