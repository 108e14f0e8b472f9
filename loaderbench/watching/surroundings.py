"""What is around a watched script while it runs: its memory, its workers', and the one that batches go through."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from loaderbench.machine import shm_bytes
from loaderbench.originals import os, time
from loaderbench.recording.facts import WatchedMemory, WatchedShared

EVERY_S = 0.5
FIRST_READINGS, FIRST_COSTS, COSTS = 16, 60, 500
"""Between two readings: EVERY_S at least, and so many times the processor time of one, for the first ones fewer: the
kernel goes through all pages of a worker."""
MOST_READINGS = 400
"""Of which every second one is dropped when there are more, and fewer are taken from then on."""
PAGE = os.sysconf("SC_PAGESIZE")


class Surroundings:
    """Readings, each at the end of a window of batches."""

    def __init__(self) -> None:
        self.readings: list[WatchedMemory] = []
        self.shared: WatchedShared | None = None
        self.workers_cpus: int | None = None
        """Processors that all workers together are allowed."""
        self._every_s, self._last, self._cost_s = EVERY_S, 0.0, 0.0

    def look(self, batch: int, epoch: int, workers: Sequence[int]) -> None:
        """After so many batches of the loader, in its epoch of this number; `workers`: their processes."""
        now = time.monotonic()
        costs = FIRST_COSTS if len(self.readings) < FIRST_READINGS else COSTS
        if now - self._last < max(self._every_s, costs * self._cost_s):
            return
        self._last, begun = now, time.thread_time()
        own = resident_bytes(os.getpid())
        if own is not None:
            theirs = [one for pid in workers if (one := private_bytes(pid)) is not None]
            self.readings.append(WatchedMemory(batch, epoch, own, sum(theirs), len(theirs)))
        self.workers_cpus = _cpus_of(workers) or self.workers_cpus
        self._cost_s = time.thread_time() - begun
        if len(self.readings) > MOST_READINGS:
            self.readings, self._every_s = self.readings[::2], 2 * self._every_s
        room = shm_bytes()
        if room is not None:
            size, free = room
            least = free if self.shared is None else min(free, self.shared.least_free_bytes)
            self.shared = WatchedShared(size, least)


def _cpus_of(pids: Sequence[int]) -> int | None:
    found: set[int] = set()
    for pid in pids:
        with suppress(OSError):  # it has ended
            found |= os.sched_getaffinity(pid)
    return len(found) or None


def private_bytes(pid: int) -> int | None:
    """Of the pages that no other process has; None where there is no such process, or the kernel does not tell."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024  # proc(5): kB
    except (OSError, IndexError, ValueError):
        return None


def resident_bytes(pid: int) -> int | None:
    """None where there is no such process, or the kernel does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE  # proc(5): resident pages
    except (OSError, IndexError, ValueError):
        return None
