"""What a DataLoader's workers do on each batch, written by them into memory that they share with the watcher.

Forked workers inherit the memory. Those that are spawned, or come from a fork server, know nothing of it: then there
are no spans.
"""

from __future__ import annotations

import mmap
import os
import resource
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.recording.facts import SPAN, SPAN_FIELDS, Table

SLOTS = 4096
"""Spans kept of each worker; the oldest are overwritten."""
NEXT = 8
"""int64 between the workers' counts: a cache line."""
ROW = (
    "start_ns", "fetched_ns", "ready_ns", "cpu_fetch_ns", "cpu_ns", "runqueue_fetch_ns", "runqueue_ns",
    "faults", "read_bytes",
)  # fmt: skip
AT = {name: number for number, name in enumerate(ROW)}
REST_POLL_S = 0.001


class SpanRing:
    """The last spans of each worker of one iterator."""

    def __init__(self, workers: int) -> None:
        self.workers = max(1, workers)
        size = NEXT + self.workers * (NEXT + SLOTS * len(ROW))
        memory = np.frombuffer(mmap.mmap(-1, size * 8), dtype=np.int64)
        counts = NEXT + self.workers * NEXT
        self._rest_until: NDArray[np.int64] = memory[:1]
        self._counts: NDArray[np.int64] = memory[NEXT:counts].reshape(self.workers, NEXT)[:, 0]
        self._rows: NDArray[np.int64] = memory[counts:].reshape(self.workers, SLOTS, len(ROW))

    def add(self, worker: int, row: tuple[int, ...]) -> None:
        """Called by the worker alone."""
        number = int(self._counts[worker])
        self._rows[worker, number % SLOTS] = row
        self._counts[worker] = number + 1

    def rest_until(self, ns: int) -> None:
        """No worker begins a batch before this time of `perf_counter_ns`; 0: each goes on at once."""
        self._rest_until[0] = ns

    def rest(self) -> None:
        """Called by a worker before a batch: it waits as long as it is told to."""
        while time.perf_counter_ns() < self._rest_until[0]:
            time.sleep(REST_POLL_S)

    def made(self) -> list[int]:
        """Batches of each worker so far."""
        return [int(count) for count in self._counts]

    def table(self, before: Sequence[int], first: int, num: int) -> Table | None:
        """[num, len(SPAN_FIELDS)] of an epoch's batches from `first` on, in the order in which a DataLoader hands them
        over: from each worker in turn. `before`: what each had made before that epoch. None where a worker wrote none,
        or they are overwritten.

        `read_ns` is the time in the data set's own code in which the worker's threads neither ran nor wanted to run:
        they waited for what they read. `decode_ns` is the rest of that code.
        """
        batch = np.arange(first, first + num)
        worker = batch % self.workers
        number = np.asarray(before, dtype=np.int64)[worker] + batch // self.workers
        written = self._counts[worker]
        if (number < written - SLOTS).any() or (number >= written).any():
            return None
        return _spans(np.column_stack((worker, self._rows[worker, number % SLOTS])))


def _spans(rows: Table) -> Table:
    worker, of = rows[:, 0], {name: rows[:, 1 + at] for name, at in AT.items()}
    fetch_ns = of["fetched_ns"] - of["start_ns"]
    known = (of["runqueue_ns"] >= 0) & (of["runqueue_fetch_ns"] >= 0)
    waited = (fetch_ns - of["cpu_fetch_ns"] - of["runqueue_fetch_ns"]).clip(0)
    table = np.zeros((len(rows), len(SPAN_FIELDS)), dtype=np.int64)
    for name, values in (
        ("worker", worker),
        ("start_ns", of["start_ns"]),
        ("ready_ns", of["ready_ns"]),
        ("read_ns", np.where(known, waited, 0)),
        ("decode_ns", fetch_ns - np.where(known, waited, 0)),
        ("collate_ns", of["ready_ns"] - of["fetched_ns"]),
        ("cpu_ns", of["cpu_ns"]),
        ("runqueue_ns", of["runqueue_ns"]),
        ("major_faults", of["faults"]),
        ("page_bytes", of["read_bytes"]),
    ):
        table[:, SPAN[name]] = values
    return table


class Stopwatch:
    """Of one process and the thread that makes batches in it; its two files are closed with it."""

    def __init__(self) -> None:
        self._schedule = _opened("/proc/thread-self/schedstat")
        self._io = _opened("/proc/self/io")

    def now(self) -> tuple[int, int, int]:
        """Wall ns, CPU ns of the process, ns in which this thread was runnable but did not run (-1: unknown)."""
        waited = -1
        if self._schedule is not None:
            waited = int(os.pread(self._schedule, 128, 0).split()[1])  # proc(5), schedstat: field 2
        return time.perf_counter_ns(), time.process_time_ns(), waited

    def read(self) -> tuple[int, int]:
        """Major faults, and bytes that were asked for in read calls (`rchar` of proc(5); -1: unknown)."""
        asked = -1
        if self._io is not None:
            asked = int(os.pread(self._io, 256, 0).split(None, 2)[1])
        return resource.getrusage(resource.RUSAGE_SELF).ru_majflt, asked

    def __del__(self) -> None:
        for descriptor in (self._schedule, self._io):
            if descriptor is not None:
                os.close(descriptor)


class _OfThread(threading.local):
    """The stopwatch of each thread."""

    stopwatch: Stopwatch | None = None
    pid = 0


_of_thread = _OfThread()


def stopwatch() -> Stopwatch:
    """This thread's, opened once: a script may make an iterator for each step. One that was inherited by `fork` is of
    the parent's thread."""
    found = _of_thread.stopwatch
    if found is None or _of_thread.pid != os.getpid():
        found = _of_thread.stopwatch = Stopwatch()
        _of_thread.pid = os.getpid()
    return found


def _opened(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:  # a kernel without it: the column says that it is unknown
        return None


class Lane:
    """The one place of a fetcher: which ring its spans go to, and as which worker's."""

    def __init__(self, ring: SpanRing, worker: int) -> None:
        self._ring, self._worker = ring, worker
        self._fetched: tuple[int, int, int] | None = None

    def collating(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`collate` that leaves a mark where it begins."""

        def marked(samples: Any) -> Any:
            self._fetched = stopwatch().now()
            return collate(samples)

        return marked

    def fetch(self, make: Callable[[], Any]) -> Any:
        """What `make` gives; its span goes into the ring."""
        self._ring.rest()
        watch = stopwatch()
        faults, asked = watch.read()
        start, cpu, waited = watch.now()
        self._fetched = None
        batch = make()
        ready, cpu_ready, waited_ready = watch.now()
        fetched, cpu_fetched, waited_fetched = self._fetched or (ready, cpu_ready, waited_ready)
        faults_ready, asked_ready = watch.read()
        known = min(waited, waited_ready, waited_fetched) >= 0
        self._ring.add(
            self._worker,
            (
                start, fetched, ready, cpu_fetched - cpu, cpu_ready - cpu,
                waited_fetched - waited if known else -1, waited_ready - waited if known else -1,
                faults_ready - faults, asked_ready - asked if asked >= 0 else -1,
            ),
        )  # fmt: skip
        return batch
