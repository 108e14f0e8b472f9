"""Who had the processors: against processes that are busy for a known time."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from loaderbench.machine import cpu_quota, quota_counters
from loaderbench.recording.facts import CpuWindow
from loaderbench.samplers import cpu_window
from loaderbench.samplers.cpu_window import CpuClock
from loaderbench.samplers.process_io import runqueue_off_reason, threads_of_tree

pytestmark = pytest.mark.skipif(runqueue_off_reason() is not None, reason=str(runqueue_off_reason()))
BUSY_S = 1.0


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def work(seconds: float) -> None:
    """Of processor time, however long it takes beside others."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def busy_on(cpu: int, seconds: float) -> None:
    os.sched_setaffinity(0, {cpu})
    busy(seconds)


def window_on_one_cpu(pipe: multiprocessing.connection.Connection, *, with_child: bool) -> None:
    """In a process of its own: busy on one processor for BUSY_S, with a busy child there or without."""
    cpu = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpu})
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=busy, args=(BUSY_S + 1.0,)) if with_child else None
    if child is not None:
        child.start()
        time.sleep(0.2)
    clock = CpuClock()
    clock.begin()
    busy(BUSY_S)
    pipe.send(clock.end())
    if child is not None:
        child.kill()
        child.join()


def measured(*, with_child: bool) -> CpuWindow:
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=window_on_one_cpu, args=(theirs,), kwargs={"with_child": with_child})
    process.start()
    window = ours.recv()
    process.join()
    assert isinstance(window, CpuWindow)
    return window


@pytest.mark.alone
def test_own_threads_that_share_a_processor_wait_as_long_as_they_run():
    window = measured(with_child=True)

    assert window.cpus == 1
    # Of two threads that never rest each runs or waits, whoever else is there; and one of them at most runs.
    assert window.own_s + window.own_queued_s == pytest.approx(2 * window.wall_s, rel=0.1)
    assert window.own_s < 1.05 * window.wall_s
    assert window.consumer_queued_s is not None and window.consumer_queued_s > 0.4 * window.wall_s
    assert window.machine_busy_s is not None
    assert window.own_s - 0.1 < window.machine_busy_s < 1.05 * window.wall_s


@pytest.mark.alone
def test_a_process_outside_of_the_tree_counts_as_another():
    fork = multiprocessing.get_context("fork")
    neighbour = fork.Process(target=busy_on, args=(min(os.sched_getaffinity(0)), BUSY_S + 2.0))
    neighbour.start()
    time.sleep(0.2)
    try:
        window = measured(with_child=False)
    finally:
        neighbour.kill()
        neighbour.join()

    # It runs or waits, whoever else is there; the neighbour takes half of the processor, or what others leave of that.
    assert window.own_s + window.own_queued_s == pytest.approx(window.wall_s, rel=0.1)
    assert window.own_queued_s > 0.4 * window.wall_s
    assert window.machine_busy_s is not None
    assert window.machine_busy_s - window.own_s > 0.35 * window.wall_s


def test_the_busiest_of_the_other_threads_is_told():
    threads = [threading.Thread(target=work, args=(seconds,)) for seconds in (0.4, 0.02)]
    clock = CpuClock()
    clock.begin()
    done = threading.Event()
    threads.append(threading.Thread(target=done.wait))
    for thread in threads:
        thread.start()
    time.sleep(0.2)  # while all of them are there
    window = clock.end()
    done.set()
    for thread in threads:
        thread.join()
    assert window is not None and window.busiest_s is not None and window.busiest_queued_s is not None
    assert window.busiest_s <= window.own_s
    assert 0.05 < window.busiest_s + window.busiest_queued_s < 1.2 * window.wall_s


def test_the_tree_holds_every_thread_of_its_processes():
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=time.sleep, args=(30,))
    child.start()
    try:
        processes = {pid for pid, _ in threads_of_tree(os.getpid())}
    finally:
        child.kill()
        child.join()

    assert {os.getpid(), child.pid} <= processes


def cgroup(root: Path, controller: str, **files: str) -> Path:
    """A cgroup below `root` that holds this process."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("4:cpu:/job\n" if controller == "cpu" else "0::/job\n")
    folder = root / "sys/fs/cgroup" / ("cpu/job" if controller == "cpu" else "job")
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_the_quota_of_cgroup_v1_with_its_period_and_its_counter(tmp_path: Path):
    folder = cgroup(
        tmp_path, "cpu", cpu__cfs_quota_us="70000", cpu__cfs_period_us="100000", cpu__stat="nr_throttled 7\n"
    )

    assert cpu_quota(tmp_path) == (pytest.approx(0.7), folder / "cpu.cfs_quota_us", pytest.approx(0.1))
    assert quota_counters(tmp_path) == [folder / "cpu.stat"]


def test_the_quota_of_cgroup_v2_with_its_period_and_its_counter(tmp_path: Path):
    folder = cgroup(tmp_path, "v2", cpu__max="1500000 1000000", cpu__stat="nr_throttled 7\n")

    assert cpu_quota(tmp_path) == (pytest.approx(1.5), folder / "cpu.max", pytest.approx(1.0))
    assert quota_counters(tmp_path) == [folder / "cpu.stat"]


@pytest.mark.parametrize(
    ("version", "files", "before", "after", "stopped_s"),
    [
        ("v2", {"cpu__max": "500000 1000000"}, "nr_throttled 7\nthrottled_usec 2000000\n",
         "nr_throttled 9\nthrottled_usec 3250000\n", 1.25),
        ("cpu", {"cpu__cfs_quota_us": "500000", "cpu__cfs_period_us": "1000000"},
         "nr_throttled 7\nthrottled_time 2000000000\n", "nr_throttled 9\nthrottled_time 3250000000\n", 1.25),
        ("v2", {"cpu__max": "500000 1000000"}, "nr_throttled 7\n", "nr_throttled 9\n", None),
    ],
)  # fmt: skip
def test_a_window_has_what_a_quota_stopped_it_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, files: dict[str, str], before: str, after: str,
    stopped_s: float | None,
) -> None:  # fmt: skip
    folder = cgroup(tmp_path, version, cpu__stat=before, **files)
    monkeypatch.setattr(cpu_window, "cpu_quota", lambda: cpu_quota(tmp_path))
    monkeypatch.setattr(cpu_window, "quota_counters", lambda: quota_counters(tmp_path))
    clock = CpuClock()
    clock.begin()
    (folder / "cpu.stat").write_text(after)
    window = clock.end()
    assert window is not None
    assert (window.quota_cpus, window.quota_period_s, window.num_throttled) == (0.5, 1.0, 2)
    assert window.throttled_s == (None if stopped_s is None else pytest.approx(stopped_s))


def test_a_window_without_a_quota_tells_of_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cgroup(tmp_path, "v2", cpu__max="max 100000", cpu__stat="nr_throttled 0\nthrottled_usec 0\n")
    monkeypatch.setattr(cpu_window, "cpu_quota", lambda: cpu_quota(tmp_path))
    monkeypatch.setattr(cpu_window, "quota_counters", lambda: quota_counters(tmp_path))
    clock = CpuClock()
    clock.begin()
    window = clock.end()
    assert window is not None
    assert (window.quota_cpus, window.quota_period_s, window.num_throttled, window.throttled_s) == (None,) * 4


def test_a_group_without_a_quota_has_no_counter(tmp_path: Path):
    cgroup(tmp_path, "v2", cpu__max="max 100000", cpu__stat="nr_throttled 0\n")

    assert cpu_quota(tmp_path) is None
    assert quota_counters(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "ended", "counts"),
    [("batches", False, True), ("batches", True, True), ("loaderbench", False, False)],
    ids=["one that goes on", "one that has ended", "one of the watch's own"],
)
def test_what_other_python_threads_of_the_process_used_is_told_apart(*, name: str, ended: bool, counts: bool) -> None:
    worked, stop = threading.Event(), threading.Event()

    def work_on() -> None:
        work(0.1)
        worked.set()
        stop.wait()

    thread = threading.Thread(target=work_on, name=name)
    clock = CpuClock()
    clock.begin()
    thread.start()
    worked.wait()
    if ended:
        stop.set()
        thread.join()
        while Path(f"/proc/self/task/{thread.native_id}").exists():  # the system's thread ends a little later
            time.sleep(0.001)
    window = clock.end()
    stop.set()
    thread.join()
    assert window is not None and window.python_threads_s is not None
    assert window.own_s > 0.05
    if counts:
        assert 0.05 < window.python_threads_s <= window.own_s
        assert window.own_s - window.python_threads_s < 0.1  # this thread slept
    else:
        assert window.python_threads_s < 0.05


def test_what_the_process_and_its_children_read_in_a_window(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(3_000_000))
    script = (
        f"import sys; print(flush=True); sys.stdin.readline(); open({str(file)!r}, 'rb').read(); print(flush=True)\n"
        "sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    child.stdout.readline()
    clock = CpuClock(counts_reads=True)
    clock.begin()
    file.read_bytes()
    child.stdin.write(b"\n")
    child.stdin.flush()
    child.stdout.readline()
    window = clock.end()
    child.communicate()
    assert window is not None and window.asked_bytes is not None and window.major_faults is not None
    assert 6_000_000 <= window.asked_bytes < 6_500_000
    plain = CpuClock()
    plain.begin()
    without = plain.end()
    assert without is not None and without.asked_bytes is None


def test_a_look_counts_what_other_threads_and_processes_do_meanwhile() -> None:
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    done, seen = CpuClock().look(lambda: busy(0.3) or "done")  # what this thread itself does is not counted
    child.kill()
    child.communicate()
    assert done == "done" and seen is not None
    assert 0.3 <= seen.wall_s < 1.0
    assert 0.8 * seen.wall_s < seen.busy_s < 1.2 * seen.wall_s  # it runs, or wants to; nobody else


SPIN = "import time\nwhile time.process_time() < 0.25: pass"


def begins_and_ends(what: str) -> None:
    """A thread, or a process, that does 0.25 s of work."""
    if what == "thread":
        one = threading.Thread(target=work, args=(0.25,))
        one.start()
        one.join()
    else:
        subprocess.run([sys.executable, "-c", SPIN], check=True)


@pytest.mark.parametrize("what", ["thread", "process"])
def test_what_began_and_ended_meanwhile_counts(what: str) -> None:
    # An executor for each batch, a program that is run for each: nothing of them is there before or behind it.
    clock = CpuClock()
    clock.begin()
    _, seen = clock.look(lambda: begins_and_ends(what))
    window = clock.end()
    assert seen is not None and window is not None
    assert seen.busy_s > 0.2
    assert window.own_s > 0.2


def test_a_window_in_which_a_process_ended_tells_nothing() -> None:
    # what it used went with it, and would seem to be others'
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    clock = CpuClock()
    clock.begin()
    child.kill()
    child.wait()
    assert clock.end() is None
    clock.begin()
    assert clock.end() is not None
