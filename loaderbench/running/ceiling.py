"""What the storage of a data set can give: reads its files past the page cache with increasing numbers of readers.

Method (docs/method.md, `The storage's ceiling`): shuffled real files, 1, 2, 4 … readers in stages of STAGE_S,
O_DIRECT where the file system has it, else buffered with the pages dropped before and after each read.
The fastest stage is then repeated for longer: many storages serve a first burst faster than what follows.
The readers are threads: preadv(2) releases the GIL. analysis/storage.py draws the conclusions.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import resource
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.statistics import settled, surely
from loaderbench.errors import UnavailableError
from loaderbench.images.index import ImageIndex
from loaderbench.recording.facts import CeilingProbe, CeilingStage, Percentiles
from loaderbench.samplers.sources import StorageCounter

PROBE_S = 6.0
"""Most seconds of a probe."""
STAGE_S = 0.8
SLICES = 16
"""Number of equal slices of time into which a stage's bytes are counted: for the interval, and to find a burst."""
SCAN_PART, REPEAT_PART = 0.6, 0.8
"""Fraction of the time for a stage of each number of readers, and of what is then left for the fastest one again."""
CHUNK_BYTES = 1 << 20
"""Most bytes of one read: the clock is checked after each, inside a large file too."""
ALIGNMENT = 4096
"""O_DIRECT reads are multiples of this many bytes, into aligned memory (open(2), `O_DIRECT`)."""
StoppedBy = Literal["flat", "max_readers", "deadline", "max_bytes", "error"]
WORTH_MORE_READERS = 1.05
"""The probe ends when two more doublings of the readers give less than this factor."""


def probe_ceiling(
    images: ImageIndex,
    *,
    counter: StorageCounter,
    deadline_s: float = PROBE_S,
    max_readers: int = 32,
    max_bytes: int | None = None,
) -> CeilingProbe:
    """Read the images with growing numbers of readers, then again with the number that was fastest."""
    counts = [1 << power for power in range(max_readers.bit_length()) if 1 << power <= max_readers]
    stage_s = min(STAGE_S, SCAN_PART * deadline_s / len(counts))
    source = _Source(images, None if max_bytes is None else max_bytes // len(counts))
    begun = time.perf_counter()
    stages: list[CeilingStage] = []
    slow_s = 0.0
    stopped: StoppedBy = "max_readers"
    reason: str | None = None

    def left_s() -> float:
        return deadline_s - (time.perf_counter() - begun)

    for readers in counts:
        # With twice the readers a file may take twice as long: the last files must be done in time.
        if stage_s + 2 * slow_s > left_s() and stages:
            stopped = "deadline"
            break
        try:
            stage, slow_s = _stage(source, readers, stage_s, counter)
        except OSError as error:
            stopped, reason = "error", f"{error.filename or images.root}: {error.strerror}"
            break
        if not stage.bytes:
            stopped = "max_bytes" if max_bytes is not None else "deadline"
            break
        stages.append(stage)
        if _is_flat(stages):
            stopped = "flat"
            break
    if reason is None and max_bytes is None:
        reason = _repeat_fastest(stages, source, stage_s, counter, left_s)
        stopped = stopped if reason is None else "error"
    return CeilingProbe(tuple(stages), stopped, reason, len(images))


def _is_flat(stages: list[CeilingStage]) -> bool:
    rates = [float(_rates(stage).mean()) for stage in stages]
    return len(rates) > 2 and max(rates[-2:]) < WORTH_MORE_READERS * max(rates[:-2])


def _rates(stage: CeilingStage) -> NDArray[np.float64]:
    return settled(stage.slice_rates)


def _repeat_fastest(
    stages: list[CeilingStage], source: _Source, shortest_s: float, counter: StorageCounter, left_s: Callable[[], float]
) -> str | None:
    """Measure the fastest stage anew and for longer, in its place, until the fastest is one that was.

    A short stage may be lucky, and a token bucket or a read-ahead window is full only when the first stages begin.
    Returns the error that ended it; None: there was none.
    """
    repeated: set[int] = set()
    while told := {number: surely(_rates(one)) for number, one in enumerate(stages) if one.tells}:
        fastest = max(told, key=lambda number: told[number])
        before = stages[fastest]
        length_s = REPEAT_PART * (left_s() - (before.file_s.p95 if before.file_s is not None else 0.0))
        if fastest in repeated or length_s < shortest_s:
            return None
        try:
            again, _ = _stage(source, before.readers, length_s, counter)
        except OSError as error:
            return f"{error.filename or source.root}: {error.strerror}"
        if not again.tells:
            return None
        stages[fastest] = again
        repeated.add(fastest)
    return None


class _Source:
    """Hands out the files in shuffled order, cyclically, until a stage's bytes are used up. Thread-safe."""

    def __init__(self, images: ImageIndex, stage_bytes: int | None) -> None:
        self._images, self._stage_bytes, self.root = images, stage_bytes, images.root
        self._order = itertools.cycle(np.random.default_rng(0).permutation(len(images)))
        self._lock = threading.Lock()
        self._left = 0
        self.direct = _takes_direct_reads(images)

    def begin_stage(self) -> None:
        self._left = self._stage_bytes or 0

    def next_file(self) -> tuple[str, int] | None:
        """(path, bytes) of the next file; None where the stage may read no more."""
        with self._lock:
            index = int(next(self._order))
            size = int(self._images.sizes[index])
            if self._stage_bytes is not None:
                self._left -= -(-size // ALIGNMENT) * ALIGNMENT
                if self._left < 0:
                    return None
        return self._images.path(index), size


def _takes_direct_reads(images: ImageIndex) -> bool:
    """Whether the file system supports O_DIRECT reads: tried on one file; EINVAL means no (open(2))."""
    buffer = mmap.mmap(-1, ALIGNMENT)
    try:
        descriptor = os.open(images.path(int(images.sizes.argmax())), os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        try:
            os.preadv(descriptor, [buffer], 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        # The first stage will meet any other error and report it.
        return error.errno not in (errno.EINVAL, errno.EOPNOTSUPP)
    return True


@dataclass
class _Reader:
    """One thread's reads in one stage."""

    source: _Source
    end_ns: int
    """No read begins after this time."""
    chunks: list[tuple[int, int]] = field(default_factory=list)
    """(end time, bytes) of each read."""
    file_ns: list[int] = field(default_factory=list)
    """Time from open to last byte of each file that was read completely."""
    last_ns: int = 0
    error: BaseException | None = None

    def run(self, start: threading.Barrier) -> None:
        buffer = memoryview(mmap.mmap(-1, CHUNK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_POPULATE))
        start.wait()
        try:
            while time.perf_counter_ns() < self.end_ns and (file := self.source.next_file()) is not None:
                self._read(*file, buffer)
        except BaseException as error:  # raised again in the thread that waits for this one
            self.error = error
        self.last_ns = time.perf_counter_ns()

    def _read(self, path: str, size: int, buffer: memoryview) -> None:
        direct = self.source.direct
        begun = time.perf_counter_ns()
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0))
        try:
            if not direct:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            offset = 0
            while offset < size:
                wanted = min(CHUNK_BYTES, -(-(size - offset) // ALIGNMENT) * ALIGNMENT)
                got = os.preadv(descriptor, [buffer[:wanted]], offset)
                now = time.perf_counter_ns()
                self.chunks.append((now, got))
                offset += got
                if got < wanted or offset >= size:
                    self.file_ns.append(now - begun)
                    break
                if now >= self.end_ns:
                    break
            # Some file systems (btrfs) fall back to the page cache for O_DIRECT reads.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _stage(source: _Source, num_readers: int, stage_s: float, counter: StorageCounter) -> tuple[CeilingStage, float]:
    """One stage's facts, and the seconds that its slow files took. OSError where a file cannot be read."""
    source.begin_stage()
    start = threading.Barrier(num_readers + 1)
    readers = [_Reader(source, 0) for _ in range(num_readers)]
    threads = [threading.Thread(target=one.run, args=(start,), name="loaderbench-ceiling") for one in readers]
    for thread in threads:
        thread.start()
    before, cpu_before = _reading(counter), resource.getrusage(resource.RUSAGE_SELF).ru_utime
    begun = time.perf_counter_ns()
    for one in readers:
        one.end_ns = begun + int(stage_s * 1e9)
    start.wait()
    for thread in threads:
        thread.join()
    after, cpu_after = _reading(counter), resource.getrusage(resource.RUSAGE_SELF).ru_utime
    for one in readers:
        if one.error is not None:
            raise one.error
    chunks = np.array([chunk for one in readers for chunk in one.chunks], dtype=np.int64).reshape(-1, 2)
    file_s = np.array([ns for one in readers for ns in one.file_ns], dtype=np.float64) / 1e9
    ends = [one.last_ns for one in readers if one.chunks] or [begun]  # a reader that got no file did not take part
    slices, slice_s = _slices(chunks, begun, readers[0].end_ns)
    slow = [float(np.percentile(file_s, q)) for q in (50, 95, 99)] if len(file_s) else None
    stage = CeilingStage(
        readers=num_readers,
        bytes=int(chunks[:, 1].sum()),
        seconds=float(np.mean(ends) - begun) / 1e9,
        files=len(file_s),
        file_s=None if slow is None else Percentiles(*slow),
        slices_bytes=slices,
        slice_s=slice_s,
        method="O_DIRECT" if source.direct else "DONTNEED",
        user_cpu_s=cpu_after - cpu_before,
        moved=None if before is None or after is None else {name: after[name] - before[name] for name in after},
    )
    return stage, stage_s if slow is None else slow[1]


def _slices(chunks: NDArray[np.int64], begun_ns: int, end_ns: int) -> tuple[tuple[int, ...], float]:
    """Bytes read in each of SLICES slices of time, and a slice's seconds: from the start to the last read that ended
    while all readers went on.

    What is read behind `end_ns` is left out, since ever fewer readers ask for more. Between two reads that end, bytes
    are spread evenly, so that a slice need not hold whole reads: a slow channel serves one after the other.
    """
    done = chunks[np.argsort(chunks[:, 0], kind="stable")]
    if not len(done):
        return (0,) * SLICES, 0.0
    within = done[done[:, 0] <= end_ns, 0]
    last_ns = int(within[-1] if len(within) else done[0, 0])
    times, total = np.r_[begun_ns, done[:, 0]], np.r_[0, np.cumsum(done[:, 1])]
    read = np.interp(np.linspace(begun_ns, last_ns, SLICES + 1), times, total)
    return tuple(np.diff(np.floor(read)).astype(int).tolist()), (last_ns - begun_ns) / SLICES / 1e9


def _reading(counter: StorageCounter) -> Mapping[str, int] | None:
    try:
        return counter.read()
    except UnavailableError:
        return None  # the device is gone: the reads will fail and report it
