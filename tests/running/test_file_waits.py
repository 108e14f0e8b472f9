"""Processes that wait for a file, for something else, or not at all. A FIFO that nobody opens stands in for a storage
that does not answer: both hold openat(2)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loaderbench.running.file_waits import FileWait, FileWaits


@contextmanager
def session(code: str, *arguments: str) -> Iterator[int]:
    """Runs `code`, which says that it begins."""
    started = subprocess.Popen(
        [sys.executable, "-c", f"import os, sys, threading, time\nprint('begins', flush=True)\n{code}", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert started.stdout is not None
    started.stdout.readline()
    try:
        yield started.pid
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


def looked(pid: int, seconds: float = 1.2) -> FileWait | None:
    """What is seen at last, looking now and then."""
    waits, until, found = FileWaits(), time.monotonic() + seconds, None
    while time.monotonic() < until:
        found = waits.look(pid)
        time.sleep(0.1)
    return found


@pytest.fixture
def silent(tmp_path: Path) -> str:
    path = tmp_path / "silent"
    os.mkfifo(path)
    return str(path)


@pytest.mark.parametrize(
    "code",
    ["open(sys.argv[1])", "threading.Thread(target=open, args=(sys.argv[1],)).start(); time.sleep(60)",
     "os.fork() or open(sys.argv[1]); time.sleep(60)"],
)  # fmt: skip
def test_a_thread_or_process_that_stays_in_one_open_is_seen(silent: str, code: str) -> None:
    with session(code, silent) as pid:
        found = looked(pid)
    assert found is not None and found.call == "openat"
    assert 0.8 < found.seconds < 3


@pytest.mark.parametrize(
    "code",
    [
        "sys.stdin.read()",
        "time.sleep(60)",
        "while True: open(sys.argv[0] if os.path.exists(sys.argv[0]) else '/proc/self/stat').read(); time.sleep(0.01)",
        "while True: pass",
    ],
)
def test_who_waits_for_a_pipe_or_opens_one_file_after_the_other_is_not(code: str) -> None:
    with session(code) as pid:
        found = looked(pid)
    assert found is None or found.seconds < 0.3


def test_a_session_that_is_gone_waits_for_nothing() -> None:
    with session("pass") as pid:
        pass
    assert FileWaits().look(pid) is None
