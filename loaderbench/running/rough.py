"""A first rough verdict within seconds, where the first window of `real` takes longer or has not begun: by signs that
are at hand.

A thread looks every EVERY_S, until the first verdict by the rules that judge the run. It tells nothing before FROM_S:
where files come fast, that verdict is there by then. What it tells is for who looks on, and is never stored.

**Signs while `real` runs.** For which part of the time the loop waited for batches, or by how much its steps are longer
than those on a batch that stays on the device; and for which part of theirs the loader's workers used a processor or
waited for one (/proc/PID/task/TID/schedstat). Workers that are behind and hardly do either wait for the storage.

**Before it.** In a cold run: how long a file takes from the storage and a batch from memory, which come before the
rounds, beside the step of `device`. Without these it is said what is being done.

**Cost.** While `real` runs, a look reads a small file or two of each thread of the process and its workers: 0.25 ms
without workers, 0.4 ms with 8, 0.7 ms with 16 of one thread each (two shared processors). There are none behind the
first verdict by the rules.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.printable import counted
from loaderbench.recording.caveats import Reason
from loaderbench.recording.progress import Message, Phase, Report, SegmentDone, SoFar
from loaderbench.recording.record import Cause, Verdict
from loaderbench.running.alive import Pulse
from loaderbench.running.foresight import LEAST_READ, bytes_asked_for
from loaderbench.running.loop import StepLoop
from loaderbench.samplers.process_io import threads_of_tree

FROM_S = 6.5
"""From the start of the process: so that it is on the screen within 8 s."""
EVERY_S, LATER_S = 0.5, 2.0
"""Between two looks, before and behind the first that told a cause; and before other signs of the same are told."""
LEAST_S, FEWEST_STEPS = 1.0, 4
"""Of a window of `real` before its signs count, and before its steps do."""
FED, STALLED = 0.1, 0.25
"""Parts of the time: who waits no more for data is fed, who waits as much is held up by it."""
IDLE, BUSY = 0.3, 0.6
"""Parts of a worker's time on a processor or waiting for one: of one that waits for its files, of one that prepares."""
QUEUED = 0.3
"""Part of that time that it waited for one: it may be others, or its own, that hold it up."""
MORE = 2.0
"""A file that takes so many times as long to read as to prepare is the cause by itself."""

Threads = Mapping[tuple[int, int], tuple[int, int]]
"""(process, thread) → (ns on a processor, ns runnable without one)."""
Used = Mapping[tuple[int, int], tuple[float, float]]
"""The same in seconds, between two looks."""


@dataclass(frozen=True)
class Rough:
    """What some signs say, and the signs in words."""

    verdict: Verdict
    signs: str

    @property
    def is_known(self) -> bool:
        return self.verdict.bottleneck != "undetermined"


@dataclass(frozen=True)
class Parts:
    """What is known before `real` of a batch: seconds each part of it takes, by all workers at once."""

    storage_s: float
    """At least."""
    prep_s: float
    """At most: the first batches pay for what later ones reuse."""


@dataclass(frozen=True)
class Signs:
    """What was seen of a window of `real`."""

    seconds: float
    num_steps: int
    waited_s: float
    """For batches."""
    on_device_s: float
    """Waited for the device."""
    work_s: tuple[float, float] | None
    """At least and at most: for which all workers used a processor or waited for one; None where that is not told."""
    lanes: int
    queued_part: float = 0.0
    """Of the time for which the loader wanted processors, the part in which it waited for one."""
    asked_bytes: int | None = None
    """What reads returned."""


def not_known(why: str) -> Rough:
    return Rough(Verdict("undetermined"), f"unknown so far: {why}")


def _either(*causes: Cause) -> Verdict:
    reason = Reason("not_separated", {"causes": [*causes], "arms": []})
    return Verdict("mixed", reasons=(reason,), joint=causes)


def by_signs(signs: Signs, device_s: float | None, *, reads_files: bool = True, by_processors: bool = True) -> Rough:
    """What a window of `real` says so far. `device_s`: of a step on a batch that stays on the device; None: not known.
    `reads_files`: the loader does; else nothing is its storage's. `by_processors`: its workers prepare them there; else
    an idle one tells nothing."""
    part = signs.waited_s / signs.seconds
    steps = counted(signs.num_steps, "step")
    seen = f"waits for batches {part:.0%} of {signs.seconds:.1f} s, {steps}"
    if not signs.num_steps:
        read = "" if signs.asked_bytes is None else f", {signs.asked_bytes / 1e6:.2g} MB read"
        seen = f"no batch for {signs.seconds:.1f} s{read}"
    elif device_s is not None and signs.num_steps >= FEWEST_STEPS:
        # A host that is ahead of its device waits for batches, and that costs nothing.
        part = min(part, max(0.0, 1.0 - device_s * signs.num_steps / signs.seconds))
    elif signs.on_device_s > FED * signs.seconds and part > FED:
        return not_known(f"{seen}, and for the device too")
    if part <= FED:
        fed = f"{seen}: the loader keeps up"
        return Rough(Verdict("compute"), fed) if device_s is not None else not_known(fed)
    if part < STALLED:
        return not_known(seen)
    if not reads_files:
        return Rough(Verdict("prep"), seen) if signs.num_steps else not_known(seen)
    if signs.work_s is None:
        return Rough(_either("storage", "prep"), f"{seen}; this kernel does not report which thread runs")
    least, most = (one / (signs.lanes * signs.seconds) for one in signs.work_s)
    seen += f"; workers need a CPU {most:.0%} of the time"
    if most <= IDLE and by_processors:
        return Rough(Verdict("storage"), seen)
    if least < BUSY:
        return Rough(_either("storage", "prep"), seen)
    if not signs.num_steps:
        return not_known(seen)  # workers that have not handed over anything may still be starting
    if signs.queued_part >= QUEUED:
        return Rough(_either("prep", "contention"), f"{seen}, and wait for it {signs.queued_part:.0%} of that")
    return Rough(Verdict("prep"), seen)


def by_parts(parts: Parts, device_s: float) -> Rough:
    """What the parts of a batch say of a run that nobody has seen yet."""
    seen = f"a batch takes {parts.storage_s:.2g} s to read, {parts.prep_s:.2g} s to prepare, {device_s:.2g} s to step"
    if (1.0 - STALLED) * (parts.storage_s + parts.prep_s) < device_s:
        return not_known(seen)
    return Rough(Verdict("storage") if parts.storage_s >= MORE * parts.prep_s else _either("storage", "prep"), seen)


@dataclass(frozen=True)
class _Begin:
    """Of the signs of a window."""

    loop: StepLoop
    at_ns: int
    num_steps: int
    threads: Threads
    asked_bytes: int | None


class Signing(Protocol):
    """What a measuring process knows of its loader and its device once these are open."""

    def parts(self) -> Parts | None:
        """Of a batch; None where they are not known (yet)."""
        ...

    @property
    def computes_on_processors(self) -> bool:
        """The device: threads of this process may be its own, and not the loader's."""
        ...

    @property
    def reads_files(self) -> bool:
        """The loader."""
        ...

    @property
    def prepares_on_processors(self) -> bool:
        """The loader."""
        ...


class RoughVerdicts:
    """Tells the first rough verdict, unless a better one is there. What the process reports goes through `hear`."""

    def __init__(
        self,
        case: Case,
        report: Report,
        pulse: Pulse,
        clock: Callable[[], int] = time.perf_counter_ns,
        threads: Callable[[], Threads] = lambda: threads_of_tree(os.getpid()),
        asked_for: Callable[[], int | None] = bytes_asked_for,
    ) -> None:
        self.opened: Signing | None = None
        """None before the loader is built."""
        self._case, self._report, self._pulse, self._clock = case, report, pulse, clock
        self._threads, self._asked_for = threads, asked_for
        self._consumer = os.getpid(), threading.get_native_id()
        self._doing = "starting"
        self._device_s: float | None = None
        self._begin: _Begin | None = None
        self._by_signs: Rough | None = None
        self._told: Rough | None = None
        self._told_s = 0.0
        self._read_from: tuple[int, int] | None = None
        self._over, self._one_at_a_time = threading.Event(), threading.Lock()

    def hear(self, message: Message) -> None:
        """Pass a message on. A verdict by the rules ends the rough ones."""
        match message:
            case Phase(text=text):
                self._doing = text
            case SegmentDone(arm=Arm.DEVICE, step_s=step_s):
                self._device_s = step_s or self._device_s
            case SoFar():
                self._over.set()
        with self._one_at_a_time:
            self._report(message)

    @contextmanager
    def telling(self, started_ns: int) -> Iterator[None]:
        """While the block runs. `started_ns`: of the process."""

        def watch() -> None:
            while not self._over.wait(LATER_S if self._told is not None and self._told.is_known else EVERY_S):
                try:
                    self.look(started_ns)
                except (OSError, SystemExit):  # the supervisor is gone, which the main thread finds out too
                    return

        thread = threading.Thread(target=watch, name="loaderbench-rough", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.end()
            thread.join()

    def end(self) -> None:
        """Nothing is told any more."""
        self._over.set()

    def look(self, started_ns: int) -> None:
        """Look, and tell what is new."""
        found, since_s = self._found(), (self._clock() - started_ns) / 1e9
        told, told_s = self._told, self._told_s
        same = told is not None and told.verdict == found.verdict
        if since_s < FROM_S or found == told or (same and since_s < told_s + LATER_S):
            return
        with self._one_at_a_time:
            if not self._over.is_set():
                self._report(SoFar(found.verdict, since_s, found.signs))
        self._told, self._told_s = found, since_s

    def _found(self) -> Rough:
        signs, opened = self._signs(), self.opened
        device_s = self._device_s if self._case.subject.shard is None else None  # a step waits for other ranks too
        if signs is not None and opened is not None:
            self._by_signs = by_signs(
                signs, device_s, reads_files=opened.reads_files, by_processors=opened.prepares_on_processors
            )
        if self._by_signs is not None:  # also behind the window: nothing else has been seen of the run
            return self._by_signs
        parts = None if opened is None or device_s is None else opened.parts()
        if parts is not None and device_s is not None:
            return by_parts(parts, device_s)
        doing = self._pulse.running
        return not_known(self._doing + self._read() if doing is None else f"the first seconds of the arm {doing[1]}")

    def _read(self) -> str:
        """What was read since the first look, where it is something: a copy may take long for a few files."""
        now_ns, asked = self._clock(), self._asked_for()
        if self._read_from is None or asked is None:
            self._read_from = None if asked is None else (now_ns, asked)
            return ""
        seconds, num_bytes = (now_ns - self._read_from[0]) / 1e9, asked - self._read_from[1]
        return f", {num_bytes / 1e6:.2g} MB read in {seconds:.0f} s" if num_bytes >= LEAST_READ else ""

    def _signs(self) -> Signs | None:
        """Of the window of `real` that runs; None where none does, or for too short a time."""
        running = self._pulse.running
        if running is None or running[1] != Arm.REAL.value:
            return None
        loop, now, begin = running[0], self._clock(), self._begin
        rows = loop.host[:]
        if begin is None or begin.loop is not loop or (rows and not begin.num_steps):  # the workers have started now
            self._begin = _Begin(loop, now, len(rows), self._threads(), None if rows else self._asked_for())
            return None
        seconds = (now - begin.at_ns) / 1e9
        if seconds < LEAST_S:
            return None
        new = np.array([row[:4] for row in rows[begin.num_steps :]], dtype=np.int64).reshape(-1, 4)
        called, returned, issued, ended = (np.maximum(new[:, column], begin.at_ns) for column in range(4))
        # The step that is under way: what it takes beside its wait is told by the others.
        worked_ns = int((ended - returned).max()) if len(new) else round((self._device_s or 0.0) * 1e9)
        pending_ns = max(0, now - (int(ended[-1]) if len(new) else begin.at_ns) - worked_ns)
        asked = None if rows or begin.asked_bytes is None else self._asked_for()
        waited_s = (int((returned - called).sum()) + pending_ns) / 1e9
        used = self._used(begin.threads, self._threads())
        queued_s = sum(queued for _, queued in used.values()) if used else 0.0
        return Signs(
            seconds=seconds,
            num_steps=len(new),
            waited_s=waited_s,
            on_device_s=int((ended - issued).sum()) / 1e9,
            work_s=None if used is None else self._work_s(used, seconds, waited_s),
            lanes=self._case.feed.lanes,
            queued_part=queued_s / max(_sum_s(used), 1e-9) if used else 0.0,
            asked_bytes=None if asked is None or begin.asked_bytes is None else asked - begin.asked_bytes,
        )

    def _used(self, before: Threads, now: Threads) -> Used | None:
        """Of the threads that may be the loader's; None where it is not told."""
        if not any(ran for ran, _ in now.values()):
            return None
        looks = self._consumer[0], threading.get_native_id()
        others = now.keys() - {self._consumer, looks}
        used = {}
        for one in others if self._case.feed.workers else now.keys() & {self._consumer}:
            ran, queued = (np.array(now[one]) - before.get(one, (0, 0))) / 1e9
            used[one] = float(ran), float(queued)
        return used

    def _work_s(self, used: Used, seconds: float, waited_s: float) -> tuple[float, float]:
        """For which the loader used processors or waited for them, at least and at most."""
        most_s = _sum_s(used)
        if not self._case.feed.workers:  # it works in the loop, while this waits for its batches
            whole = seconds / max(waited_s, 1e-9)
            return max(0.0, most_s - (seconds - waited_s)) * whole, min(most_s, waited_s) * whole
        of_device = self.opened is not None and self.opened.computes_on_processors
        by_workers = {one: times for one, times in used.items() if one[0] != self._consumer[0]}
        return _sum_s(by_workers) if of_device else most_s, most_s


def _sum_s(used: Used) -> float:
    return sum(ran + queued for ran, queued in used.values())
