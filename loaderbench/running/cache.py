"""The page cache during a run: brought into the wanted state before each window, and checked before and after it."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.case import CacheState
from loaderbench.errors import CaseFailed, ConfigError, UnavailableError
from loaderbench.images.cache_state import Residency, evict, evicted, locked, ram_copy, residency
from loaderbench.images.over_files import NUM_THREADS, over_files
from loaderbench.images.shards import DataSet
from loaderbench.machine import available_memory_bytes, shm_bytes
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import CacheFacts, ColdRead, RamCopyFacts
from loaderbench.running.deadline import Deadline

SURVEY_FILES, FEWEST_SURVEYED = 1000, 100
"""Files sampled for the residency of a data set: 5 to 9 µs each. Where none of them has a page
in memory, at most 0.3 % of all files do (95 % confidence). Where opening a file takes long, only as many as fit into
SURVEY_S, and at least FEWEST_SURVEYED (3 %), others each time."""
SURVEY_S = 0.15
"""Seconds for looking at a sample: it happens before and behind each window."""
PREPARE_PART = 0.2
"""Fraction of the measuring time for work on all files, evicting them or reading them into memory, before it is said
that the run takes longer."""
FORESEE_S = 0.5
"""Seconds of such work after which is foreseen how long it takes, and in which the first files may be faster than the
others: again each time that as much more has passed as before."""
TOLD_AGAIN = 1.5
"""Of what was foreseen: where it takes more, that is said, too."""
RESIDENT, EMPTY = 0.99, 0.01
SMALL_SET_BATCHES = 32
"""A set of fewer batches is evicted completely after each batch (about 8 µs a file)."""
CHECK_FILES, CHECK_FILE_BYTES, CHECK_S = 16, 1 << 16, 1.0
"""Most files that are timed in a cold run, bytes of each, and seconds. In the first bytes of a file a storage's latency
shows, however fast it is."""
CHECK_PART = 0.01
"""Fraction of `max_bytes` for them, at either end of the run."""
OnDone = Callable[[int, int], None]
"""Called with (files done, all files)."""
MEMORY_FRACTION = 0.4
"""Fraction of the free memory that a copy or a lock may take at most."""


def _memory_budget() -> int:
    """Bytes that a copy or a lock may take, from the free memory (MemAvailable) and what a cgroup's limit leaves."""
    free, reason = available_memory_bytes()
    if free is None:
        raise UnavailableError(f"the machine's free memory is unknown: {reason}")
    return int(MEMORY_FRACTION * free)


def can_hold(num_bytes: int) -> bool:
    """Whether a data set of `num_bytes` fits into memory for `--cache warm`."""
    try:
        return num_bytes <= _memory_budget()
    except UnavailableError:
        return False


def _time_cold_read(path: str, most: int) -> tuple[ColdRead, float]:
    """Time the first bytes of a file, from the storage and from memory. Also how long opening it took, in seconds.
    OSError where it cannot be read."""
    evict(path)
    buffer = memoryview(bytearray(most))
    asked_ns = time.perf_counter_ns()
    file, memory = os.open(path, os.O_RDONLY | os.O_CLOEXEC), os.memfd_create("loaderbench-cold")
    try:
        begun = time.perf_counter_ns()
        open_s = (begun - asked_ns) / 1e9
        got = os.preadv(file, [buffer], 0)
        storage_ns = time.perf_counter_ns() - begun
        os.pwrite(memory, buffer[:got], 0)
        begun = time.perf_counter_ns()
        os.preadv(memory, [buffer[:got]], 0)
        memory_ns = time.perf_counter_ns() - begun
    finally:
        os.close(file)
        os.close(memory)
    evict(path)
    return ColdRead(got, storage_ns, memory_ns), open_s


class RamCopy:
    """A data set's files on a tmpfs, for the arm `ram`: all, or a size-matched subset of at most `max_bytes`, and of
    what was copied until the time for it was over."""

    def __init__(
        self,
        data: DataSet,
        batch_bytes: int,
        max_bytes: int,
        on_copied: OnDone = lambda done, total: None,
        *,
        until: float = math.inf,
        at_least: int = 1,
        evict_sources: bool = False,
    ) -> None:
        """`batch_bytes`: what the loader's queue will need in /dev/shm too. `max_bytes`: most bytes to copy.

        No copy begins after `until` (seconds of perf_counter) beyond `at_least` files. `evict_sources`: leave the
        files out of the page cache.
        """
        self._all, self._batch_bytes, self._on_copied = data, batch_bytes, on_copied
        self._max_bytes, self._until, self._at_least, self._evict = max_bytes, until, at_least, evict_sources

    def __enter__(self) -> RamCopy:
        shm = shm_bytes()
        if shm is None:
            raise UnavailableError(
                "/dev/shm does not exist, so images cannot be kept in memory: mount a tmpfs there, or use --arms real"
            )
        free = shm[1]
        budget = min(max(free - 2 * self._batch_bytes, free // 4), _memory_budget())
        self._memory_bytes = budget
        budget = min(budget, self._max_bytes)
        begun = time.perf_counter()
        files, self._cleanup = ram_copy(
            self._all.files,
            budget,
            on_copied=self._on_copied,
            evict_sources=self._evict,
            until=self._until,
            at_least=self._at_least,
        )
        self.data = self._all.on_files(files)
        self.bytes_per_s = int(files.sizes.sum()) / max(time.perf_counter() - begun, 1e-9)
        """At which the files came, several at once."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup()

    def facts(self) -> RamCopyFacts:
        return RamCopyFacts(
            num_images=len(self.data.images),
            bytes=int(self.data.files.sizes.sum()),
            subset=len(self.data.images) < len(self._all.images),
            memory_holds_all=int(self._all.files.sizes.sum()) <= self._memory_bytes,
            where="tmpfs",
        )


class CacheKeeper:
    """Keeps the data set cold, warm or untouched. Used as a context manager; eviction and locks end with it."""

    def __init__(
        self,
        state: CacheState,
        data: DataSet,
        progress: Callable[[str], OnDone] = lambda what: lambda done, total: None,
        deadline: Deadline | None = None,
    ) -> None:
        """`progress`: returns, for the name of a task, the function that receives its progress. `deadline`: of the
        whole run; None: there is none."""
        self.state, self._data, self.files, self._progress = state, data, data.files, progress
        self._deadline = deadline
        self._caveats: list[Caveat] = []
        self._least_resident: float | None = None
        self.measured_once = False
        self._stack = ExitStack()
        self._at_start: float | None = None
        self._method = "none"
        self._order = np.random.default_rng(0).permutation(len(self.files))
        self._next = 0
        self._num_surveyed: int | None = None
        self._locked = False
        self._longest_look_s = 0.0
        self._cold_reads: list[ColdRead] = []
        self.cold_files_s: list[float] = []
        """Seconds for opening a file that is not in memory and reading its first bytes, one after the other."""

    def _look(self) -> Residency:
        """The residency of a sample of the files, others each time."""
        num = min(SURVEY_FILES, len(self.files))
        chosen = np.take(self._order, np.arange(self._next, self._next + num), mode="wrap").tolist()
        begun = time.perf_counter()
        until = begun + SURVEY_S
        seen = residency((self.files.path(index) for index in chosen), until=until, at_least=FEWEST_SURVEYED)
        self._next = (self._next + seen.num_files) % len(self.files)
        self._num_surveyed = min(seen.num_files, self._num_surveyed or seen.num_files)
        self._longest_look_s = max(self._longest_look_s, time.perf_counter() - begun)
        return seen

    def take_longest_look_s(self) -> float:
        """Seconds that the longest look at the page cache took since this was asked last."""
        longest_s, self._longest_look_s = self._longest_look_s, 0.0
        return longest_s

    def survey(self) -> bool:
        """Inspect the cache before anything is read. True where the present state can be measured only once."""
        seen = self._look()
        self._at_start, self._method = seen.fraction, seen.method
        if seen.fraction is None:
            self._caveats.append(Caveat("residency_unknown", {"reason": seen.reason}))
        self.measured_once = self.state == "as-is" and (seen.fraction is None or seen.fraction < RESIDENT)
        return self.measured_once

    def __enter__(self) -> CacheKeeper:
        if self.state == "warm":
            self._warm()
        elif self.state == "cold":
            if self._look().fraction != 0:  # 1.3 million files: 25 s
                self._evict_all()
            after = self._look().fraction
            if after is not None and after > EMPTY:
                self._caveats.append(Caveat("eviction_failed", {"fraction": after}))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def time_cold_reads(self, max_bytes: int | None) -> None:
        """Read a few files, evicted before and behind, and as many bytes from memory: reads of a storage are slower.

        That is how a cache is told that evicting leaves alone, such as a file system's own beside the page cache.
        """
        if self.state != "cold":
            return
        left = CHECK_FILES * CHECK_FILE_BYTES if max_bytes is None else int(CHECK_PART * max_bytes)
        until = time.perf_counter() + CHECK_S
        for path in map(self.files.path, self._order[:CHECK_FILES].tolist()):
            most = min(CHECK_FILE_BYTES, left)
            if not most or time.perf_counter() > until:
                return
            try:
                read, open_s = _time_cold_read(path, most)
            except OSError:
                return  # the loader meets the same error and names the file
            left -= read.bytes
            self._cold_reads += [read] if read.bytes else []
            self.cold_files_s.append(open_s + read.storage_ns / 1e9)

    def _warm(self) -> None:
        try:
            self._stack.enter_context(
                locked(list(self.files.paths()), _memory_budget(), self._foreseeing("locking images in memory"))
            )
            self._locked = True
        except UnavailableError as error:
            size, budget = int(self.files.sizes.sum()), _memory_budget()
            if size > budget:
                raise ConfigError(
                    f"--cache warm cannot hold {size / 1e9:,.1f} GB: {budget / 1e9:,.1f} GB of memory are free; use "
                    "--cache cold or a smaller data set"
                ) from error
            self._caveats.append(Caveat("warm_not_locked", {"reason": str(error)}))
            self._read_all()

    def _foreseeing(self, what: str) -> OnDone:
        """Receives the progress of work on all files. Where it will take more than its part of the time, which cannot
        be helped, that is said as soon as it shows, by the files since the last look: in whole numbers of as many as
        are worked on at once, for these share a storage and end together."""
        progress, deadline = self._progress(what), self._deadline
        if deadline is None:
            return progress
        known, again = PREPARE_PART * deadline.duration_s, 1.0
        begun = before = math.nan  # when the first file was done, and at the last look
        had = 0

        def on_done(done: int, total: int) -> None:
            nonlocal known, again, begun, before, had
            progress(done, total)
            now = time.perf_counter()
            if not had:
                begun, before, had = now, now, done
            if (done - had) % NUM_THREADS or now - before <= max(FORESEE_S, before - begun):
                return
            whole = now - begun + (now - before) / (done - had) * (total - done)
            before, had = now, done
            if whole > again * known:
                deadline.extend(whole - known, f"{what} takes about {whole:.0f} s for {total:,} files")
                known, again = whole, TOLD_AGAIN

        return on_done

    def _read_all(self) -> None:
        def read(path: str) -> None:
            try:
                with open(path, "rb", buffering=0) as file:
                    while file.read(1 << 20):
                        pass
            except OSError as error:
                raise CaseFailed(
                    f"{path} can no longer be read ({error.strerror}): was the data set removed?"
                ) from error

        progress, total = self._foreseeing("reading the images into the page cache"), len(self.files)
        over_files(read, self.files.paths(), on_done=lambda done: progress(done, total))

    def _evict_all(self) -> None:
        progress, total = self._foreseeing("evicting the images from the page cache"), len(self.files)
        over_files(evicted, self.files.paths(), on_done=lambda done: progress(done, total))

    def before_segment(self, evicts_own_reads: bool) -> float | None:
        """Bring the files into the wanted state; returns the fraction of the sampled pages that is resident."""
        resident = self._look().fraction
        if self.state == "cold":
            # If the loader does not evict, files that it has read ahead stay cached: too few to matter in a large set.
            unseen = resident is None and not evicts_own_reads
            if unseen or (resident or 0.0) > EMPTY:
                self._evict_all()
                resident = self._look().fraction
        elif self.state == "warm" and not self._locked and (resident or 0.0) < RESIDENT:
            self._read_all()
            resident = self._look().fraction
        return resident

    def after_segment(self) -> float | None:
        """The fraction of the sampled pages that is resident now."""
        seen = self._look().fraction
        if self.state == "warm" and seen is not None and seen < RESIDENT:
            self._least_resident = min(seen, 1.0 if self._least_resident is None else self._least_resident)
        return seen

    @contextmanager
    def evicting_behind(self, delivered: Sequence[NDArray[np.int64] | None] | None) -> Iterator[None]:
        """Evict each delivered batch's files in a thread, for loaders that do not do it themselves.

        `delivered` grows by one index array a batch while the block runs; None does nothing.
        """
        if delivered is None:
            yield
            return
        stop = threading.Event()
        thread = threading.Thread(target=self._evict_behind, args=(delivered, stop), name="loaderbench-evict")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _evict_behind(self, delivered: Sequence[NDArray[np.int64] | None], stop: threading.Event) -> None:
        done = 0
        while not stop.is_set():
            while done < len(delivered) and not stop.is_set():
                indices = delivered[done]
                done += 1
                if indices is None:
                    continue
                # In a small data set a loader that reads ahead may read a file again before its batch is delivered.
                if len(self._data.images) < SMALL_SET_BATCHES * len(indices):
                    done = len(delivered)
                    self._evict(self.files.paths(), stop)
                else:
                    self._evict(self._data.paths_of(indices), stop)
            stop.wait(0.005)

    def _evict(self, paths: Iterable[str], stop: threading.Event) -> None:
        """One after the other: more at once would take the server from the loader."""
        for path in paths:
            if stop.is_set() or not evicted(path):  # the loader meets the same error and ends the case with it
                time.sleep(0)
                return

    def facts(self) -> CacheFacts:
        return CacheFacts(
            self.state,
            self.measured_once,
            self._at_start,
            self._method,
            self._locked,
            tuple(self._cold_reads),
            self._num_surveyed,
        )

    @property
    def caveats(self) -> list[Caveat]:
        """What differed from the wanted state."""
        drifted = self._least_resident
        return [*self._caveats, *([] if drifted is None else [Caveat("warm_drifted", {"fraction": drifted})])]
