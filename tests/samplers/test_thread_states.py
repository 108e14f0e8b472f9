"""Threads whose state is known by construction, looked at from outside and from inside."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loaderbench.errors import UnavailableError
from loaderbench.originals import os
from loaderbench.samplers.thread_states import PRIVATE_LOCK, SHARED_LOCK, STOPPED, Look, ThreadFiles, by_wchan
from loaderbench.selftest.slow_fuse import check_available, slow_fuse

LOOKS, GAP_S = 25, 0.01
PRELUDE = """
import mmap, multiprocessing, os, select, signal, socket, sys, threading, time
server, (mine, other) = socket.create_server(("127.0.0.1", 0)), socket.socketpair()
def tcp(): return socket.create_connection(server.getsockname())
print("ready", flush=True)
"""
HELD = "lock = threading.Lock(); lock.acquire(); lock.acquire()"
KNOWN = {
    "spin": ("while True: pass", "running", ""),
    "sleep": ("time.sleep(100)", "sleep", ""),
    "select without files": ("select.select([], [], [], 100)", "sleep", ""),
    "a pipe": ("os.read(os.pipe()[0], 1)", "pipe", ""),
    "an empty queue": ("multiprocessing.Queue().get()", "pipe", ""),
    "an empty queue, with a limit": ("multiprocessing.Queue().get(timeout=100)", "pipe", ""),
    "a connection": ("tcp().recv(1)", "socket", "tcp"),
    "a connection, with a limit": ("one = tcp(); one.settimeout(100); one.recv(1)", "socket", "tcp"),
    "a connection, selected": ("one = tcp(); select.select([one], [], [], 100)", "socket", "tcp"),
    "a connection, by epoll": ("e, one = select.epoll(), tcp(); e.register(one, 1); e.poll(100)", "socket", "tcp"),
    "a local socket": ("mine.recv(1)", "socket", "unix"),
    "a lock": (HELD, "lock", PRIVATE_LOCK),
    "a lock, with a limit": (HELD.replace("lock.acquire()", "lock.acquire(timeout=100)"), "lock", PRIVATE_LOCK),
    "a lock between processes": (HELD.replace("threading", "multiprocessing"), "lock", SHARED_LOCK),
    "a child": ("pid = os.fork() or time.sleep(100); os.waitpid(pid, 0)", "other", "do_wait"),
    "a signal": ("os.kill(os.getpid(), signal.SIGSTOP)", "other", STOPPED),
}
BY_WCHAN = {
    **{name: state for name, (_, state, _) in KNOWN.items()},
    "an empty queue, with a limit": "other", "a connection, with a limit": "other",
    "a connection, selected": "other", "a connection, by epoll": "other", "select without files": "other",
}  # fmt: skip
"""Without the call a poll may be of anything."""


@contextmanager
def started(script: str, *arguments: str) -> Iterator[int]:
    """The pid of a process that is at its script's first line."""
    command = [sys.executable, "-S", "-E", "-c", PRELUDE + textwrap.dedent(script), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(0.5)
            yield process.pid
        finally:
            os.killpg(process.pid, 9)


def looks_at(pid: int, thread: int | None = None, *, with_calls: bool = True, num: int = LOOKS) -> list[Look]:
    files = ThreadFiles(pid, thread or pid, with_calls=with_calls)
    try:
        found = []
        for _ in range(num):
            time.sleep(GAP_S)
            found.append(files.look())
        return found
    finally:
        files.close()


def most(looks: list[Look]) -> tuple[str, str]:
    ((seen, num),) = Counter((look.state, look.detail) for look in looks).most_common(1)
    assert num >= 0.8 * len(looks)
    return seen


@pytest.mark.parametrize("name", KNOWN)
def test_a_threads_state_is_found_from_outside(name: str) -> None:
    script, state, detail = KNOWN[name]
    with started(script) as pid:
        seen = most(looks_at(pid))
    assert seen[0] == state
    if detail:
        assert seen[1] == detail


@pytest.mark.parametrize("name", KNOWN)
def test_without_the_right_to_see_calls_the_waiting_function_tells(name: str) -> None:
    with started(KNOWN[name][0]) as pid:
        assert most(looks_at(pid, with_calls=False))[0] == BY_WCHAN[name]


@pytest.mark.parametrize("with_calls", [True, False])
def test_threads_of_ones_own_process(with_calls: bool) -> None:
    lock, read = threading.Lock(), os.pipe()
    lock.acquire()
    waits = {"lock": lock.acquire, "pipe": lambda: os.read(read[0], 1), "sleep": lambda: time.sleep(2)}
    threads = {state: threading.Thread(target=wait) for state, wait in waits.items()}
    try:
        for thread in threads.values():
            thread.start()
        time.sleep(0.1)
        for state, thread in threads.items():
            assert thread.native_id is not None
            assert most(looks_at(os.getpid(), thread.native_id, with_calls=with_calls))[0] == state
    finally:
        lock.release()
        os.write(read[1], b"x")
        for thread in threads.values():
            thread.join()
        for end in read:
            os.close(end)


def test_ready_to_run_is_split_by_the_counters() -> None:
    """Two processes that always want the same processor get half of it each."""
    one = min(os.sched_getaffinity(0))
    script = f"os.sched_setaffinity(0, [{one}])\nwhile True: pass"
    with started(script) as pid, started(script):
        looks = looks_at(pid)
    whole = sum(look.ran_s + look.queued_s for look in looks)
    assert whole == pytest.approx(sum(weight for look in looks for _, weight in look.parts()) * whole / LOOKS, rel=0.01)
    assert sum(look.ran_s for look in looks) / whole < 0.7
    assert {state for look in looks for state, _ in look.parts()} == {"running", "runnable"}


READ = """
while True:
    with open(sys.argv[1], 'rb', buffering=0) as file:
        file.read()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
"""
FAULT = """
while True:
    with open(sys.argv[1], 'rb') as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        for at in range(0, len(pages), 4096): pages[at]
        pages.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
"""


@pytest.mark.bed
@pytest.mark.parametrize("with_calls", [True, False])
@pytest.mark.parametrize(("script", "state"), [(READ, "file"), (FAULT, "fault")])
def test_a_slow_file(tmp_path: Path, script: str, state: str, with_calls: bool) -> None:
    try:
        check_available()
    except UnavailableError as error:
        pytest.skip(str(error))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_bytes(bytes(1 << 22))
    with slow_fuse(tmp_path / "data", latency_s=0.03) as bed, started(script, f"{bed.path}/file") as pid:
        looks = looks_at(pid, with_calls=with_calls, num=4 * LOOKS)[LOOKS:]  # the first fault is to be counted first
    shares = Counter(look.state for look in looks)
    assert shares[state] >= 0.8 * len(looks), shares


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_of_another_users_process_only_the_letter_is_known() -> None:
    code = "import sys; from tests.samplers.test_thread_states import *; os.setuid(65534); "
    code += "files = ThreadFiles(int(sys.argv[1]), int(sys.argv[1])); print(files.sees_calls, files.look().state)"
    with started("time.sleep(100)") as pid:
        command = [sys.executable, "-c", code, str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert done.stdout.split() == ["False", "other"]


def test_a_thread_that_has_ended_is_an_error() -> None:
    with started("time.sleep(100)") as pid:
        files = ThreadFiles(pid, pid)
    with pytest.raises(OSError, match="No such process"):
        files.look()
    files.close()
    with pytest.raises(OSError, match="No such file"):
        ThreadFiles(pid, pid)


@pytest.mark.parametrize(
    ("wchan", "letter", "faulted", "state"),
    [
        ("futex_wait_queue_me", "S", False, "lock"),
        ("rpc_wait_bit_killable", "D", False, "file"),
        ("request_wait_answer", "S", False, "file"),
        ("folio_wait_bit_common", "D", True, "fault"),
        ("pipe_wait", "S", False, "pipe"),
        ("sk_wait_data", "S", False, "socket"),
        ("ep_poll", "S", False, "other"),
        ("", "D", False, "file"),
        ("", "S", False, "other"),
    ],
)
def test_names_that_older_kernels_use(wchan: str, letter: str, faulted: bool, state: str) -> None:
    assert by_wchan(wchan, letter, faulted)[0] == state
