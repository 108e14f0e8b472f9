"""A watched run, stored while its script goes on, so that a script that is killed leaves what was seen.

The script's thread only copies which windows there are, where one of them ends; a thread of its own, which lives for
one write, judges and stores them. No process is forked meanwhile: a child would have this thread's locks, but not the
thread. What a person at the terminal is told meanwhile is judged in the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from loaderbench.analysis.record import analyze
from loaderbench.errors import ConfigError
from loaderbench.originals import os, time
from loaderbench.recording.facts import Run, WatchedFacts
from loaderbench.recording.record import RunRecord, Verdict
from loaderbench.recording.store import NotStored, RunFolder, Store
from loaderbench.running.beside import Beside
from loaderbench.studies.measure import judged
from loaderbench.studies.watched_run import run_of
from loaderbench.watching.watcher import Watcher

LEAST_EVERY_S = 1.0
FIRST_WRITE_S = 30.0
"""A run is stored so long after its start, and then at twice the distance each time, up to that which was asked for: of
a script that is killed early a third is known at least, for few writes."""
FIRST_JUDGED_S, JUDGED_AGAIN_S, JUDGING_COSTS = 5.0, 30.0, 100
"""So long after its start a script is judged for the first time; so long at least, and so many times as long as judging
took, until it is judged again."""

_no_forks = threading.Lock()
os.register_at_fork(before=_no_forks.acquire, after_in_parent=_no_forks.release, after_in_child=_no_forks.release)


def check_every(every_s: float) -> None:
    """Raises ConfigError where it is too often; 0: never."""
    if every_s and not every_s >= LEAST_EVERY_S:
        raise ConfigError(f"--every {every_s:g} is too often: give {LEAST_EVERY_S:g} s or more, or 0 for never")


class OneThread:
    """One thing at a time, each in a thread that lives for it. No process is forked meanwhile."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    @property
    def is_free(self) -> bool:
        """Whether something may begin: not in a forked process, which has no such thread."""
        return os.getpid() == self._pid and (self._thread is None or not self._thread.is_alive())

    def begin(self, work: Callable[[Watcher], None], taken: Watcher) -> None:
        """Raises RuntimeError where no thread more is allowed, or Python ends."""

        def unforked() -> None:
            with _no_forks:
                work(taken)

        thread = threading.Thread(target=unforked, name="loaderbench", daemon=True)
        thread.start()
        self._thread = thread

    def join(self) -> None:
        if self._thread is not None and os.getpid() == self._pid:
            self._thread.join()


class Judging:
    """The verdict so far, for a person who looks on."""

    def __init__(self, script: str, beside: Beside | None = None) -> None:
        """`beside`: of one of several ranks."""
        self._script, self._beside = script, beside
        self._thread, self._has_ended = OneThread(), False
        self._due_ns: int | None = None
        self.verdict: Verdict | None = None
        self.record: RunRecord | None = None
        """The last one, without its words."""
        self.problem: str | None = None
        """Why there is none (any more)."""

    def tick(self, watcher: Watcher) -> None:
        """Judge what was seen, where it is time to and nobody is at it."""
        now = time.perf_counter_ns()
        if self._due_ns is None:
            self._due_ns = now + round(FIRST_JUDGED_S * 1e9)
        if self._has_ended or now < self._due_ns or not self._thread.is_free:
            return
        try:
            self._thread.begin(lambda taken: self._judge(taken, watcher), watcher.so_far())
        except RuntimeError as error:  # no thread more is allowed: the line goes on without
            self._has_ended, self.problem = True, str(error)

    def end(self) -> None:
        """Wait for what is under way."""
        self._has_ended = True
        self._thread.join()

    def _judge(self, taken: Watcher, watcher: Watcher) -> None:
        begun, begun_cpu = time.perf_counter_ns(), time.thread_time()
        wait_s = FIRST_JUDGED_S  # where no window has ended yet
        try:
            run = run_of(taken, self._script, self._script, "", None, self._beside)
            if run is not None:
                self.record, wait_s = analyze(run), JUDGED_AGAIN_S
                self.verdict = self.record.verdict
        except Exception as error:  # only the line does without: what is stored is judged anew
            self._has_ended, self.problem = True, type(error).__name__
        watcher.judging_s += time.thread_time() - begun_cpu
        now = time.perf_counter_ns()
        self._due_ns = now + max(round(wait_s * 1e9), JUDGING_COSTS * (now - begun))


class Writing:
    """Stores one run in one folder, each time whole and in place of what was there."""

    def __init__(self, store: Store, every_s: float, make: Callable[[Watcher], Run | None], watcher: Watcher) -> None:
        """`make`: the run that a copy of the watcher tells; None where it tells nothing yet."""
        self._store, self._every_ns, self._make = store, round(every_s * 1e9), make
        self._distance_ns = min(self._every_ns, round(FIRST_WRITE_S * 1e9))
        self.folder: RunFolder | None = None
        self._thread, self._has_ended = OneThread(), False
        self._due_ns = watcher.closes_by_ns = watcher.begun_ns + self._distance_ns
        self._num_writes = 0
        self._cpu_s = self._longest_s = 0.0
        self._problem: str | None = None

    def tick(self, watcher: Watcher) -> None:
        """A window has ended: store the run where it is time to, and the last write has ended."""
        now = time.perf_counter_ns()
        if self._has_ended or now < self._due_ns or not self._thread.is_free:
            return
        self._distance_ns = min(self._every_ns, 2 * self._distance_ns)
        self._due_ns = watcher.closes_by_ns = now + self._distance_ns
        try:
            self._thread.begin(self._write, watcher.so_far())
        except RuntimeError as error:  # no thread more is allowed, or Python ends: the script goes on
            self._problem = str(error)

    def end(self) -> None:
        """The script has ended: no write begins any more, and one that is under way is waited for."""
        self._has_ended = True
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
        try:
            self._store_so_far(taken)
        except (ConfigError, NotStored) as error:  # the disk may have room again the next time
            self._problem = str(error)
        except Exception as error:  # the script may have replaced what this needs; its end tries once more
            self._problem = repr(error)
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
