"""Who had the processors during a window: the run's own processes, others, the hypervisor, or a quota.

Read at both ends of a window by the measuring process itself: a sampling thread's readings, 0.1 to 1 s apart, would mix
the arms, whose windows last 0.25 s and follow each other.

Cost of a reading (2 busy cores): 0.13 ms with 2 workers of one thread, 0.27 ms with 8, 0.92 ms with 32.

Fields: Documentation/scheduler/sched-stats.rst and Documentation/filesystems/proc.rst of the Linux kernel; cpu.stat in
Documentation/admin-guide/cgroup-v2.rst, and in Documentation/scheduler/sched-bwc.rst for v1.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from loaderbench.machine import cpu_quota, quota_counters
from loaderbench.originals import os, time
from loaderbench.recording.facts import CpuWindow, WaitLooks
from loaderbench.samplers.connections import connections
from loaderbench.samplers.cpu import CpuTimes, cpu_times_now
from loaderbench.samplers.process_io import asked_for, runqueue_off_reason, threads_of_tree

T = TypeVar("T")
Threads = Mapping[tuple[int, int], tuple[int, int]]
"""(process, thread) → (ns on a processor, ns runnable without one)."""


@dataclass(frozen=True)
class Throttling:
    """What the quotas that hold for this process did so far."""

    num: int
    """Periods in which any of them stopped it."""
    stopped_s: float | None
    """Processors' time in which they did; None where the kernel does not tell."""


@dataclass(frozen=True)
class _Reading:
    at_ns: int
    threads: Threads
    process_s: float
    """Of the calling process, threads that ended counted."""
    children_s: float
    """Of its children that have ended and were waited for."""
    asked: tuple[int, int] | None
    """Bytes of read calls and major faults, of all its processes."""
    received: int
    """Bytes over TCP connections, of the calling process."""
    machine: CpuTimes | None
    throttling: Throttling | None
    """None without a quota."""


class CpuClock:
    """Readings around windows, for the calling process and its descendants.

    The thread that calls is the one that takes batches and issues.
    """

    def __init__(self, *, counts_reads: bool = False) -> None:
        self._counts_reads = counts_reads
        self._pid = os.getpid()
        self._cpus = os.sched_getaffinity(0)
        self._counts_queues = runqueue_off_reason() is None
        self._quota, self._counters = cpu_quota(), quota_counters()
        self._begun: _Reading | None = None

    def begin(self) -> None:
        self._begun = self._read()

    def end(self) -> CpuWindow | None:
        """What was used since `begin`; None where the kernel counts no run-queue delay or CPU time of threads, and
        where a process ended: it took its counts with it, and what it used would seem to be others'."""
        begun, now = self._begun, self._read()
        used = None if begun is None else _used(begun.threads, now.threads)
        if begun is None or used is None:
            return None
        own = self._pid, threading.get_native_id()
        consumer = used.get(own)
        busiest = max((counts for key, counts in used.items() if key != own), key=sum, default=(0, 0))
        others = [one.native_id for one in threading.enumerate() if _is_the_scripts(one)]
        of_process_s = sum(ran for (pid, _), (ran, _) in used.items() if pid == self._pid) / 1e9
        ended_s = max(0.0, now.process_s - begun.process_s - of_process_s)
        children_s = now.children_s - begun.children_s  # that began meanwhile: of none of the others is one gone
        before, after = begun.machine, now.machine
        asked_bytes = faults = None
        if begun.asked is not None and now.asked is not None and _pids(begun.threads) == _pids(now.threads):
            asked_bytes, faults = (end - begin for begin, end in zip(begun.asked, now.asked, strict=True))
            asked_bytes = max(asked_bytes, now.received - begun.received)  # OpenSSL's are in both
        throttled, quota = throttled_between(begun.throttling, now.throttling), self._quota
        return CpuWindow(
            wall_s=(now.at_ns - begun.at_ns) / 1e9,
            own_s=sum(ran for ran, _ in used.values()) / 1e9 + ended_s + children_s,
            own_queued_s=sum(queued for _, queued in used.values()) / 1e9,
            consumer_queued_s=None if consumer is None else consumer[1] / 1e9,
            machine_busy_s=after.busy_s - before.busy_s if after and before else None,
            stolen_s=after.steal_s - before.steal_s if after and before else None,
            cpus=len(self._cpus),
            quota_cpus=None if quota is None else quota.cpus,
            num_throttled=None if throttled is None else throttled.num,
            python_threads_s=sum(used.get((self._pid, one or 0), (0, 0))[0] for one in others) / 1e9 + ended_s,
            asked_bytes=asked_bytes,
            major_faults=faults,
            throttled_s=None if throttled is None else throttled.stopped_s,
            quota_period_s=None if quota is None else quota.period_s,
            busiest_s=busiest[0] / 1e9,
            busiest_queued_s=busiest[1] / 1e9,
        )

    def look(self, what: Callable[[], T]) -> tuple[T, WaitLooks | None]:
        """Do it, and what all other threads of the process and its descendants did meanwhile, those that began and
        ended within it too; None where the kernel does not count that, or a process ended that was there before."""
        before = self._threads()
        spent = _others_spent_s()
        begun = time.perf_counter_ns()
        done = what()
        wall_ns = time.perf_counter_ns() - begun
        spent = _others_spent_s() - spent
        used = _used(before, self._threads())
        if used is None:
            return done, None
        own = self._pid, threading.get_native_id()
        # Of this process the system's clock tells what its threads ran, to the nanosecond and with those that ended.
        counted = sum(
            queued + (0 if pid == self._pid else ran)
            for (pid, thread), (ran, queued) in used.items()
            if (pid, thread) != own
        )
        return done, WaitLooks(1, wall_ns / 1e9, spent + counted / 1e9)

    def _threads(self) -> Threads:
        return threads_of_tree(self._pid) if self._counts_queues else {}

    def _read(self) -> _Reading:
        threads = self._threads()
        process_s, machine = time.process_time(), cpu_times_now(self._cpus)
        asked = asked_for(_pids(threads)) if self._counts_reads else None
        received = connections().count() if self._counts_reads else 0
        children_s = children_cpu_s()
        throttling = throttling_by(self._counters)
        return _Reading(time.perf_counter_ns(), threads, process_s, children_s, asked, received, machine, throttling)


STOPPED_S = {"throttled_usec": 1e-6, "throttled_time": 1e-9}
"""What cpu.stat calls the processors' time, in version 2 and 1 → a unit of it in seconds."""


def throttling_by(counters: Sequence[Path]) -> Throttling | None:
    """By the `cpu.stat` of each cgroup that has a quota; None where none tells."""
    counts, stopped_s = [], []
    for path in counters:
        try:
            told = dict(line.split() for line in path.read_text().splitlines() if len(line.split()) == 2)
        except OSError:
            return None
        counts += [int(told["nr_throttled"])] if "nr_throttled" in told else []
        stopped_s += [int(told[name]) * unit for name, unit in STOPPED_S.items() if name in told]
    return Throttling(sum(counts), sum(stopped_s) if stopped_s else None) if counts else None


def throttled_between(before: Throttling | None, after: Throttling | None) -> Throttling | None:
    if before is None or after is None:
        return None
    known = before.stopped_s is not None and after.stopped_s is not None
    return Throttling(after.num - before.num, (after.stopped_s or 0.0) - (before.stopped_s or 0.0) if known else None)


def children_cpu_s() -> float:
    """Processor time of all descendants that have ended and were waited for (getrusage(2), RUSAGE_CHILDREN)."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _others_spent_s() -> float:
    """Processor time of this process but for the calling thread, and of its children that have ended."""
    return time.process_time() - time.thread_time() + children_cpu_s()


def _is_the_scripts(thread: threading.Thread) -> bool:
    """Not the calling one, and none of this package's."""
    return thread is not threading.current_thread() and not thread.name.startswith("loaderbench")


def _pids(threads: Threads) -> set[int]:
    return {pid for pid, _ in threads}


def _used(before: Threads, after: Threads) -> Threads | None:
    """What each thread of `after` has used since `before`; None where nothing is known, or a process ended. A thread of
    another process that ended meanwhile takes its counts with it; one that began has none before."""
    if not after or not _pids(before) <= _pids(after):
        return None
    return {key: _growth(before.get(key, (0, 0)), counts) for key, counts in after.items()}


def _growth(before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int]:
    """Another thread may have the number of one that ended: its counts then begin at 0."""
    if after[0] < before[0] or after[1] < before[1]:
        return after
    return after[0] - before[0], after[1] - before[1]
