"""What is around a watched script while it runs: its memory, its workers', and the one that batches go through."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loaderbench.machine import shm_bytes
from loaderbench.originals import os, time
from loaderbench.recording.facts import WatchedMemory, WatchedShared

EVERY_S = 1.0
MOST_READINGS = 400
"""Of which every second one is dropped when there are more, and fewer are taken from then on."""
PAGE = os.sysconf("SC_PAGESIZE")


class Surroundings:
    """Readings, each at the end of a window of batches."""

    def __init__(self) -> None:
        self.readings: list[WatchedMemory] = []
        self.shared: WatchedShared | None = None
        self._every_s, self._last = EVERY_S, 0.0

    def look(self, batch: int, epoch: int, workers: Sequence[int]) -> None:
        """After so many batches of the loader, in its epoch of this number; `workers`: their processes."""
        now = time.monotonic()
        if now - self._last < self._every_s:
            return
        self._last = now
        own = resident_bytes(os.getpid())
        if own is not None:
            theirs = [resident_bytes(pid) for pid in workers]
            self.readings.append(WatchedMemory(batch, epoch, own, sum(one or 0 for one in theirs), len(theirs)))
        if len(self.readings) > MOST_READINGS:
            self.readings, self._every_s = self.readings[::2], 2 * self._every_s
        room = shm_bytes()
        if room is not None:
            size, free = room
            least = free if self.shared is None else min(free, self.shared.least_free_bytes)
            self.shared = WatchedShared(size, least)


def resident_bytes(pid: int) -> int | None:
    """None where there is no such process, or the kernel does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE  # proc(5): resident pages
    except (OSError, IndexError, ValueError):
        return None
