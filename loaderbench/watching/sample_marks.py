"""Marks of the samples that each worker gives, to see whether several workers give the same ones.

Of each worker the MARKS smallest hashes of samples are kept, in memory that it shares with the script: the same samples
have the same hashes, so that workers that give the same samples keep the same marks, in whatever order they come.
"""

from __future__ import annotations

import mmap
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.originals import time

MARKS = 256
"""Kept of each worker."""
LEAST_MARKS = 16
COSTS, SURE_BATCHES = 0.01, 32
"""Of the time in which samples are made, what marking them may take after so many batches; then no more are marked, for
each worker would mark others."""
MOST_VALUES = 64
"""Of an array that are hashed."""
MOST_LEVELS, MOST_FIELDS = 3, 8
ALIKE = 0.5
"""Samples of one worker with the hash of another of its own, as a part, from which on hashes tell nothing."""
EMPTY = 1 << 62
NUM, TWICE, HEAD = 0, 1, 2


class SampleMarks:
    """The marks of each worker of one iterator."""

    def __init__(self, workers: int) -> None:
        memory = np.frombuffer(mmap.mmap(-1, workers * (HEAD + MARKS) * 8), dtype=np.int64)
        self._rows: NDArray[np.int64] = memory.reshape(workers, HEAD + MARKS)
        self._rows[:, HEAD:] = EMPTY
        self._kept: set[int] = set()
        self._made_ns = self._spent_ns = self._num = 0

    def begin(self, worker: int) -> None:
        """Called by the worker alone, when it begins an epoch."""
        self._rows[worker, :HEAD], self._rows[worker, HEAD:] = 0, EMPTY
        self._kept, self._made_ns, self._spent_ns, self._num = set(), 0, 0, 0

    def add(self, worker: int, samples: Any, made_ns: int) -> None:
        """Called by the worker alone: the samples of a batch, which took so long."""
        if self._num >= SURE_BATCHES and self._spent_ns > COSTS * self._made_ns:
            return
        self._num, self._made_ns = self._num + 1, self._made_ns + made_ns
        if not isinstance(samples, list):
            return
        begun = time.perf_counter_ns()
        row = self._rows[worker]
        for sample in samples:
            mark = mark_of(sample)
            if mark is None:
                continue
            row[NUM] += 1
            if mark in self._kept:
                row[TWICE] += 1
                continue
            at = HEAD + int(row[HEAD:].argmax())
            if mark < row[at]:
                self._kept.discard(int(row[at]))
                self._kept.add(mark)
                row[at] = mark
        self._spent_ns += time.perf_counter_ns() - begun

    def repeats(self) -> float | None:
        """From how many workers a sample comes, in the mean; None where too few are known, or they look alike."""
        rows = self._rows[self._rows[:, NUM] > 0]
        if len(rows) < 2 or rows[:, TWICE].sum() > ALIKE * rows[:, NUM].sum():
            return None
        marks = [row[HEAD:][row[HEAD:] < EMPTY] for row in rows]
        if min(map(len, marks)) < LEAST_MARKS:
            return None
        # Beyond the largest mark of a full row, other workers' marks are not known to be missing in it.
        end = min(int(one.max()) for one in marks)
        values, counts = np.unique(np.concatenate([one[one <= end] for one in marks]), return_counts=True)
        return float(counts.mean()) if len(values) >= LEAST_MARKS else None


def mark_of(sample: Any) -> int | None:
    """A hash of what a sample holds; None where it holds nothing that can be hashed."""
    parts: list[bytes] = []
    _collect(sample, parts, MOST_LEVELS)
    if not parts:
        return None
    return hash_of(b"".join(parts))


def hash_of(data: bytes) -> int:
    """61 bits, the same in every process."""
    return zlib.crc32(data) << 29 | zlib.adler32(data) & 0x1FFFFFFF


def _collect(part: Any, found: list[bytes], levels: int) -> None:
    if isinstance(part, str | int | float):
        found.append(repr(part).encode(errors="replace"))
    elif isinstance(part, bytes):
        found.append(part[:1024])
    elif hasattr(part, "shape") and hasattr(part, "dtype"):
        flat = part.reshape(-1)
        some = flat[:: max(1, len(flat) // MOST_VALUES)][: 2 * MOST_VALUES]
        try:
            found.append(np.asarray(some).tobytes())
        except (TypeError, ValueError, RuntimeError):  # on a device, or of a kind that NumPy lacks
            found.append(str(tuple(part.shape)).encode())
    elif levels and isinstance(part, dict):
        for one in list(part.values())[:MOST_FIELDS]:
            _collect(one, found, levels - 1)
    elif levels and isinstance(part, list | tuple):
        for one in part[:MOST_FIELDS]:
            _collect(one, found, levels - 1)
