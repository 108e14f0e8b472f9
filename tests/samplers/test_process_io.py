"""A real process tree whose reading, burning, holding and waiting is known."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loaderbench.errors import UnavailableError
from loaderbench.images.cache_state import evict
from loaderbench.images.filesystem import storage_behind
from loaderbench.samplers import process_io
from loaderbench.samplers.process_io import (
    ProcessTreeSampler,
    children_of,
    parse_io,
    parse_pss,
    parse_schedstat,
    parse_stat,
    pss_of,
    runqueue_off_reason,
    tree_read_bytes,
)

MIB = 1 << 20

# Helpers of the processes under test: `say` tells the test that a state is reached, `wait` waits for its word.
PRELUDE = """
import os, signal, sys, time
def say(word): os.write(1, (word + "\\n").encode())
def wait(): return os.read(0, 1)
def burn(seconds):
    while sum(os.times()[:2]) < seconds: pass
"""


@contextmanager
def running(script: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process of its own session (killed whole at the end)."""
    command = [sys.executable, "-S", "-E", "-c", PRELUDE + textwrap.dedent(script), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    try:
        yield process
    finally:
        if process.returncode is None:  # not waited for by the test itself
            os.killpg(process.pid, 9)
        process.communicate()


def hear(process: subprocess.Popen[bytes], word: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().decode().strip() == word


def go_on(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b".")
    process.stdin.flush()


def values(sampler: ProcessTreeSampler) -> dict[str, float | None]:
    sampler._scan_due_s = sampler._pss_due_s = 0.0  # look for new processes now, not in a second
    return dict(zip([channel.name for channel in sampler.channels], sampler.read(), strict=True))


def number(value: float | None) -> float:
    assert value is not None
    return value


READERS = """
children = []
for _ in range(2):
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write_end)
        with open(sys.argv[1], "rb") as file: file.read()
        burn(0.15)
        say("read")
        os.read(read_end, 1)   # until the parent says so
        os._exit(0)
    os.close(read_end)
    children.append((pid, write_end))
wait()
for pid, write_end in children:
    os.write(write_end, b".")
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)   # it has ended, and stays a zombie
say("ended")
wait()
for pid, _ in children: os.waitpid(pid, 0)
say("waited for")
wait()
"""


def test_children_that_end_are_counted_once(tmp_path: Path) -> None:
    """Alive, zombie, and taken over by the parent: the same bytes and CPU seconds each time."""
    file = tmp_path / "8 MiB"
    file.write_bytes(bytes(8 * MIB))
    with running(READERS, str(file)) as process:
        hear(process, "read")
        hear(process, "read")
        sampler = ProcessTreeSampler(process.pid)
        alive = values(sampler)
        go_on(process)
        hear(process, "ended")
        zombie = values(sampler)
        go_on(process)
        hear(process, "waited for")
        gone = values(sampler)
        late = values(ProcessTreeSampler(process.pid))
        sampler.close()
    for now in (alive, zombie, gone, late):
        # Two readers of 8 MiB; Python itself reads little at its start.
        assert 16 * MIB <= number(now["process_rchar_bytes"]) < 20 * MIB
        assert 0.28 <= number(now["process_cpu_user_s"]) + number(now["process_cpu_system_s"]) < 1.5
    assert [now["num_processes"] for now in (alive, zombie, gone)] == [3, 1, 1]
    for earlier, later in ((alive, zombie), (zombie, gone)):
        for name in ("process_rchar_bytes", "process_read_bytes", "process_cpu_user_s", "process_runqueue_s"):
            assert number(later[name]) >= number(earlier[name])


def test_a_child_nobody_waited_for_does_not_make_the_sums_go_back(tmp_path: Path) -> None:
    """With SIGCHLD ignored the kernel drops the child's totals: the parent takes nothing over."""
    file = tmp_path / "8 MiB"
    file.write_bytes(bytes(8 * MIB))
    script = """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        if os.fork() == 0:
            with open(sys.argv[1], "rb") as file: file.read()
            say("read")
            wait()
            os._exit(0)
        time.sleep(60)
    """
    with running(script, str(file)) as process:
        hear(process, "read")
        sampler = ProcessTreeSampler(process.pid)
        before = values(sampler)
        assert before["num_processes"] == 2
        go_on(process)
        deadline = time.monotonic() + 10
        while values(sampler)["num_processes"] == 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        after = values(sampler)
        sampler.close()
    assert after["num_processes"] == 1
    assert number(after["process_rchar_bytes"]) >= number(before["process_rchar_bytes"]) >= 8 * MIB


def test_bytes_from_the_device_are_told_from_bytes_out_of_the_cache(tmp_path: Path) -> None:
    if storage_behind(tmp_path).device is None:
        pytest.skip(f"the temporary folder is on {storage_behind(tmp_path).type}, not on a block device; set TMPDIR")
    file = tmp_path / "4 MiB"
    file.write_bytes(os.urandom(4 * MIB))
    evict(str(file))
    script = """
        for word in ("cold", "warm"):
            wait()
            with open(sys.argv[1], "rb") as file: file.read()
            say(word)
        wait()
    """
    with running(script, str(file)) as process:
        sampler = ProcessTreeSampler(process.pid)
        readings = [values(sampler)]
        for word in ("cold", "warm"):
            go_on(process)
            hear(process, word)
            readings.append(values(sampler))
        sampler.close()
    fetched = [number(now["process_read_bytes"]) for now in readings]
    asked = [number(now["process_rchar_bytes"]) for now in readings]
    assert 4 * MIB <= fetched[1] - fetched[0] < 5 * MIB
    assert fetched[2] - fetched[1] < MIB
    assert 4 * MIB <= asked[1] - asked[0] < 5 * MIB
    assert 4 * MIB <= asked[2] - asked[1] < 5 * MIB


def test_shared_memory_is_in_every_rss_and_once_in_pss() -> None:
    script = """
        block = bytearray(os.urandom(1024) * 65536)   # 64 MiB, touched
        for _ in range(2):
            if os.fork() == 0:
                say("up"); time.sleep(60)
        say("up")
        time.sleep(60)
    """
    with running(script) as process:
        for _ in range(3):
            hear(process, "up")
        sampler = ProcessTreeSampler(process.pid)
        now = values(sampler)
        sampler.close()
    assert number(now["process_rss_bytes"]) > 3 * 64 * MIB
    assert 64 * MIB < number(now["process_pss_bytes"]) < 2 * 64 * MIB


def test_run_queue_delay_of_two_burners_on_one_cpu() -> None:
    """Two threads of work on one CPU for 0.6 s: one of them always waits."""
    reason = runqueue_off_reason()
    if reason is not None:
        pytest.skip(reason)
    script = """
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        wait()
        child = os.fork()
        end = time.monotonic() + 0.6
        while time.monotonic() < end: pass
        if child:
            say("burnt")
        time.sleep(60)
    """
    with running(script) as process:
        sampler = ProcessTreeSampler(process.pid)
        before = number(values(sampler)["process_runqueue_s"])
        go_on(process)
        hear(process, "burnt")
        time.sleep(0.05)
        delay_s = number(values(sampler)["process_runqueue_s"]) - before
        sampler.close()
    # Others on this machine can only add to it: at most both wait the whole time.
    assert 0.4 < delay_s < 1.6


def test_more_children_than_a_page_lists_are_all_found() -> None:
    script = """
        for _ in range(1100):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        say("up")
        time.sleep(60)
    """
    with running(script) as process:
        hear(process, "up")
        assert len(children_of(process.pid)) == 1100


def test_grandchildren_are_found_with_and_without_the_kernels_child_lists() -> None:
    script = """
        if os.fork() == 0:
            if os.fork() == 0:
                say("up")
            time.sleep(60)
        time.sleep(60)
    """
    with running(script) as process:
        hear(process, "up")
        by_lists, by_scan = ProcessTreeSampler(process.pid), ProcessTreeSampler(process.pid)
        by_scan._with_children_files = False
        assert values(by_lists)["num_processes"] == 3
        assert values(by_scan)["num_processes"] == 3
        assert by_lists.pids() == by_scan.pids()
        assert by_lists.pids()[0] == process.pid
        by_lists.close()
        by_scan.close()


def test_a_tree_that_has_ended_is_unknown_not_zero() -> None:
    with running("wait()") as process:
        sampler = ProcessTreeSampler(process.pid)
        assert values(sampler)["num_processes"] == 1
        process.kill()
        process.wait()
        assert set(values(sampler).values()) == {None}
        sampler.close()
        with pytest.raises(UnavailableError, match="cannot be read"):
            ProcessTreeSampler(process.pid)


def test_expensive_figures_are_read_rarely() -> None:
    now_s = [100.0]
    # A small process: reading a large one's page tables costs enough to be put off for longer than this test looks.
    child = subprocess.Popen(["sleep", "60"])
    sampler = ProcessTreeSampler(child.pid, clock=lambda: now_s[0])
    names = [channel.name for channel in sampler.channels]
    runqueue, pss = names.index("process_runqueue_s"), names.index("process_pss_bytes")
    known = []
    for _ in range(61):
        row = sampler.read()
        known.append((row[runqueue] is not None, row[pss] is not None))
        now_s[0] += 0.1
    sampler.close()
    child.kill()
    child.wait()
    assert sum(at for at, _ in known) == pytest.approx(7, abs=1)
    assert 1 <= sum(at for _, at in known) <= 2


def test_a_kernel_without_the_accounting_gives_caveats_not_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    real = process_io._read_file

    def without_io(path: str) -> bytes:
        if path.endswith(("/io", "smaps_rollup")):
            raise PermissionError(13, "Permission denied")
        return b"0 0 0\n" if path == "/proc/self/schedstat" else real(path)

    monkeypatch.setattr(process_io, "_read_file", without_io)
    sampler = ProcessTreeSampler(os.getpid())
    now = values(sampler)
    sampler.close()
    assert now["process_rchar_bytes"] is None
    assert now["process_read_bytes"] is None
    assert now["process_pss_bytes"] is None
    assert now["process_runqueue_s"] is None
    assert number(now["process_rss_bytes"]) > 0
    messages = " ".join(str(caveat.details["reason"]) for caveat in sampler.caveats)
    assert len(sampler.caveats) == 3
    assert "CONFIG_TASK_IO_ACCOUNTING" in messages
    assert "delayacct" in messages


def test_parsers_take_what_kernels_write() -> None:
    stat = (
        b"42 (a (b) c) S 7 42 42 0 -1 4194560 1 2 3 4 150 50 250 150 20 0 3 0 100 9999 321 18446744073709551615 1 1 0"
    )
    times = parse_stat(stat)
    ticks = os.sysconf("SC_CLK_TCK")
    assert (times.state, times.parent_pid) == ("S", 7)
    assert times.user_s == pytest.approx((150 + 250) / ticks)
    assert times.system_s == pytest.approx((50 + 150) / ticks)
    assert times.rss_bytes == 321 * os.sysconf("SC_PAGE_SIZE")
    assert parse_io(b"rchar: 12\nread_bytes: 4096\n") == {"rchar": 12, "read_bytes": 4096}
    assert parse_schedstat(b"1000 2500 3\n") == 2500
    assert parse_pss(b"00400000-7ffd [rollup]\nRss:  900 kB\nPss:  120 kB\nPss_Dirty: 7 kB\n") == 120 * 1024
    with pytest.raises(ValueError, match="Pss"):
        parse_pss(b"")


def test_a_tree_s_read_bytes_are_its_own_to_the_byte(tmp_path: Path) -> None:
    """A child reads an evicted file of 3 MiB and ends, and its parent waits for it; another program reads too."""
    if storage_behind(tmp_path).kind != "local":
        pytest.skip("only a local file system counts what a process reads")
    own, others = tmp_path / "own", tmp_path / "others"
    for path in (own, others):
        path.write_bytes(os.urandom(3 * MIB))
        evict(str(path))
    script = """
        pid = os.fork()
        if pid == 0:
            say("ready"); wait()
            with open(sys.argv[1], "rb") as file: file.read()
            say("read"); wait()
            os._exit(0)
        os.waitpid(pid, 0)
        say("waited"); wait()
    """
    with running(script, str(own)) as process:
        hear(process, "ready")
        before = tree_read_bytes(process.pid)
        assert before is not None and tree_read_bytes(process.pid) == before
        others.read_bytes()
        go_on(process)
        hear(process, "read")
        assert tree_read_bytes(process.pid) == before + 3 * MIB
        go_on(process)
        hear(process, "waited")
        assert tree_read_bytes(process.pid) == before + 3 * MIB
    assert tree_read_bytes(process.pid) is None


def test_memory_that_processes_share_counts_once() -> None:
    # given two children of a process that holds 96 MiB, which they share, and 8 MiB of their own each
    script = """
        shared = bytearray(b"x") * (96 << 20)
        children = []
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                own = bytearray(b"y") * (8 << 20)
                say("ready")
                wait()
                os._exit(0)
            children.append(pid)
        say("children")
        say(" ".join(map(str, children)))
        wait()
    """
    with running(script) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().decode().strip() for _ in range(4)]
        (pids,) = ([int(pid) for pid in line.split()] for line in lines if line not in ("ready", "children"))
        total, reason = pss_of(pids)
        resident = sum(parse_stat(Path(f"/proc/{pid}/stat").read_bytes()).rss_bytes for pid in pids)
    # then two of the three thirds of what is shared, and what is their own; their resident sets count it twice
    assert reason is None and total is not None
    assert total == pytest.approx((96 * 2 / 3 + 2 * 8) * MIB, rel=0.15)
    assert resident > 2 * 96 * MIB


def test_memory_of_a_process_that_is_gone_is_unknown_with_a_reason() -> None:
    total, reason = pss_of([os.getpid(), 2**22 + 1])
    assert total is None and reason is not None and "smaps_rollup: No such file" in reason
