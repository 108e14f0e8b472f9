"""What slow files or standstills of a storage leave of a run: its loader's queue, simulated.

Where it is used and what it was held against: docs/method.md, `Tails and stalls`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.latency import Reads, Slowness, above, mean, without
from loaderbench.recording.facts import READ_BIN
from loaderbench.recording.record import Stalls

SIMULATED_BATCHES, SIMULATED_PERIODS, MOST_SIMULATED = 600, 12, 60_000


@dataclass(frozen=True)
class Queue:
    """A loader's queue over a storage with a tail or stalls: one slow file, or a stall, holds up a run whose storage is
    fast enough on average."""

    reads: Reads
    stalls: Stalls | None
    batch: int
    workers: int
    """Each reads a batch's files, one after another. 0: the consumer's own thread does, before each step."""
    depth: int
    """Batches that are asked for ahead; they are delivered in order."""
    prep_s: float = 0.0
    """Worker seconds of a batch besides reading; 0: as if preparation cost nothing."""
    spread: float = 0.0
    """By how much of itself the time that it holds a run up may differ, one standard deviation."""
    slow_part: float = 1.0
    """Of the reading, what is in slow files or stalls, and differs so."""
    io_threads: int = 0
    """Threads that read a batch's files for the workers, each its part of them; 0: the workers read for themselves."""

    def step_s(self, host_s: float) -> float:
        """Mean seconds a step by simulation; the consumer takes `host_s` for each batch.

        Files' times are drawn from the histogram, without those that waited through a stall; nothing is read in one.
        """
        num = SIMULATED_BATCHES
        if self.stalls is not None:
            step_s = host_s if self.workers else host_s + self.batch * mean(self.reads.histogram, "file")
            wanted = max(num, SIMULATED_PERIODS * self.stalls.period_s / step_s)
            num = int(min(max(num, MOST_SIMULATED // self._parts), wanted))
        readers, workers = [0.0] * max(1, self.io_threads or self.workers), [0.0] * self.workers
        done, taken = 0.0, np.zeros(num)
        for number, parts_s in enumerate(self._reading_s(num).tolist()):
            asked = taken[number - self.depth] if number >= self.depth else 0.0
            if not self.workers:
                asked = done
            made = 0.0
            for part_s in parts_s:
                read = _behind_stalls(max(heapq.heappop(readers), asked), part_s, self.stalls)
                read += 0.0 if self.io_threads else self.prep_s
                heapq.heappush(readers, read)
                made = max(made, read)
            if self.io_threads:  # a worker prepares files as they come
                made = max(made, max(heapq.heappop(workers), asked) + self.prep_s)
                heapq.heappush(workers, made)
            taken[number] = max(made, done)
            done = taken[number] + host_s
        settled = num // 5
        return float((done - taken[settled]) / (num - settled))

    @property
    def _parts(self) -> int:
        """Of a batch, those that are read at once."""
        return max(1, min(self.batch, self.io_threads))

    def _reading_s(self, num: int) -> NDArray[np.float64]:
        """[num, parts] seconds of reading in each part of so many batches, stalls left out."""
        histogram = self.reads.histogram
        if self.stalls is not None:
            histogram = without(histogram, self.reads.slow_rows[self.reads.lie_in(self.reads.stalled)])
        counts, sums = histogram[:, READ_BIN["files"]], histogram[:, READ_BIN["file_ns"]]
        kept = counts > 0
        files = np.diff(np.arange(self._parts + 1) * self.batch // self._parts)
        chances = counts[kept] / counts[kept].sum()
        drawn = np.random.default_rng(19).multinomial(files, chances, size=(num, self._parts))
        return np.asarray(drawn @ (sums[kept] / counts[kept] / 1e9))


def spread_of_met(reads: Reads, found: Slowness) -> float:
    """How badly the time in slow files or stalls is known from those that were met, one standard deviation as a part of
    it: their number varies by its square root (Poisson). Regular stalls do not vary."""
    if found.stalls is not None:
        return 0.0 if found.stalls.regular else float(found.stalls.num**-0.5)
    if found.tail is None:
        return 0.0
    return float(max(1, above(reads.histogram, found.tail.slow_s * 1e9 / 2)[0]) ** -0.5)


def _behind_stalls(begin: float, work: float, stood: Stalls | None) -> float:
    """When reading that begins at `begin` ends, with nothing done in the last `length_s` of each period."""
    if stood is None:
        return begin + work
    period, open_s = stood.period_s, max(stood.period_s - stood.length_s, 1e-3)
    number, within = divmod(begin, period)
    more, rest = divmod(min(within, open_s) + work, open_s)
    return float((number + more) * period + rest)
