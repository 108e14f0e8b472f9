"""A watched run, stored while its script goes on, so that a script that is killed leaves what was seen.

The script's thread only copies which windows there are, where one of them ends; a thread of its own, which lives for
one write, judges and stores them. No process is forked meanwhile: a child would have this thread's locks, but not the
thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from loaderbench.errors import ConfigError
from loaderbench.recording.facts import Run, WatchedFacts
from loaderbench.recording.store import NotStored, RunFolder, Store
from loaderbench.studies.measure import judged
from loaderbench.watching.watcher import Watcher

LEAST_EVERY_S = 1.0

_no_forks = threading.Lock()
os.register_at_fork(before=_no_forks.acquire, after_in_parent=_no_forks.release, after_in_child=_no_forks.release)


def check_every(every_s: float) -> None:
    """Raises ConfigError where it is too often; 0: never."""
    if every_s and not every_s >= LEAST_EVERY_S:
        raise ConfigError(f"storing every {every_s:g} s is too often: give {LEAST_EVERY_S:g} s or more, or 0 for never")


class Writing:
    """Stores one run in one folder, each time whole and in place of what was there."""

    def __init__(self, store: Store, every_s: float, make: Callable[[Watcher], Run | None], watcher: Watcher) -> None:
        """`make`: the run that a copy of the watcher tells; None where it tells nothing yet."""
        self._store, self._every_ns, self._make = store, round(every_s * 1e9), make
        self.folder: RunFolder | None = None
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._has_ended = False
        self._due_ns = watcher.closes_by_ns = watcher.begun_ns + self._every_ns
        self._num_writes = 0
        self._cpu_s = self._longest_s = 0.0
        self._problem: str | None = None

    def tick(self, watcher: Watcher) -> None:
        """A window has ended: store the run where it is time to, and the last write has ended."""
        now = time.perf_counter_ns()
        if (
            self._has_ended
            or now < self._due_ns
            or os.getpid() != self._pid
            or (self._thread is not None and self._thread.is_alive())
        ):
            return
        self._due_ns = watcher.closes_by_ns = now + self._every_ns
        thread = threading.Thread(target=self._write, args=(watcher.so_far(),), name="loaderbench", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread more is allowed, or Python ends: the script goes on
            self._problem = str(error)
            return
        self._thread = thread

    def end(self) -> None:
        """The script has ended: no write begins any more, and one that is under way is waited for."""
        self._has_ended = True
        if self._thread is not None and os.getpid() == self._pid:
            self._thread.join()

    def with_cost(self, run: Run, so_far_s: float | None = None) -> Run:
        """The run with what storing it took up to now. `so_far_s`: its script goes on."""
        assert run.recording is not None
        facts = run.recording.facts
        assert facts.watched is not None and facts.watched.cost is not None
        cost = replace(
            facts.watched.cost, num_writes=self._num_writes, writes_cpu_s=self._cpu_s,
            longest_write_s=self._longest_s, write_problem=self._problem,
        )  # fmt: skip
        watched: WatchedFacts = replace(facts.watched, cost=cost, so_far_s=so_far_s)
        return replace(run, recording=replace(run.recording, facts=replace(facts, watched=watched)))

    def _write(self, taken: Watcher) -> None:
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        with _no_forks:
            try:
                self._store_so_far(taken)
            except (ConfigError, NotStored) as error:  # the disk may have room again the next time
                self._problem = str(error)
        self._cpu_s += time.thread_time() - begun_cpu
        self._longest_s = max(self._longest_s, time.perf_counter() - begun)

    def _store_so_far(self, taken: Watcher) -> None:
        run = self._make(taken)
        if run is None:
            return
        if self.folder is None:
            self.folder = self._store.open_run(run.case)
        folder = self.folder
        run = self.with_cost(replace(run, run_id=folder.run_id), taken.wall_s)
        record = judged(run)  # before anything is written: a script may be killed at any time, and they must agree
        written = folder.write_run(run, f"arrays-{self._num_writes + 1}.npz")
        if written is not run:
            record = judged(written)
        folder.write_case(run.case)
        folder.write_record(record, goes_on=True)
        self._num_writes += 1
