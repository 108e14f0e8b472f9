"""The one budget of a measuring process: `--duration` and a little more, from its start to its answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from loaderbench.cases.case import Case
from loaderbench.cases.study import PROMISED_S
from loaderbench.devices.select import nvml_ordinal
from loaderbench.machine import cpu_quota
from loaderbench.plain import Json
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.progress import Notice, Report

BESIDE_S = 3.0
"""Of the command, beside the process: up to 1.5 s pass before it is started (of `run` 0.5 s), and as many behind its
answer."""
OVERTIME_S = PROMISED_S - BESIDE_S
"""Seconds beyond `--duration` from the start of the process to its answer: Python's imports, the device, the loaders'
first batches."""
AFTER_ROUNDS_S, MOST_AFTER_S = 2.5, 5.0
"""Kept free behind the rounds for what is looked at once, besides the probe of the storage; and where processors are
slow."""
IMPORTS_S = 4.0
"""Of a processor, what Python and its imports take of a measuring process on a slow one; half of it on a fast one."""
LEAST_MOVED_S = 1.0
"""By less the deadline is not moved for the start: it would say nothing."""
NAMED_PART, MOST_NAMED = 0.2, 3
"""Of the time before the rounds, what a phase must have taken to be named as the cause, and how many are."""
PHASES = {
    "imports": "Python and its imports",
    "list": "listing the images",
    "device": "opening the device",
    "model": "building the model",
    "ranks": "waiting for the other ranks",
    "loader": "building the loader",
    "as_it_is": "measuring the data set unmodified",
    "copy": "copying images into memory",
    "cache": "preparing the page cache",
    "first_batches": "starting the loader",
    "first_step": "the device's first step",
}
"""What comes before the rounds: name in the run → in words."""


def moved_by_start_s(start_s: float) -> float:
    """By how much slow processors move the deadline, on which Python took `start_s` to start: so much more for that,
    and for what follows the rounds."""
    return 2 * max(0.0, start_s - MOST_AFTER_S)


def told_before(cases: Sequence[Case]) -> list[str]:
    """What is to be said before runs with a limit of time: what may make their start so long that it breaks that limit,
    a GPU's libraries or a CPU quota.

    Two machines that were new, with an H100 and an H200, took 40 and 26 s more than their limit of 15 s, most of it for
    this; under a quota of 0.3 processors two others took 13 and 26 s (docs/validation.md).
    """
    limited = [case for case in cases if case.effort.is_limited]
    lines = []
    if any(nvml_ordinal(case.step.device) is not None for case in limited):
        lines.append(
            "The first start after boot takes 10 to 40 s longer than --duration: Python's imports, the model "
            "and CUDA's first step read from disk."
        )
    quota = cpu_quota()
    slower = 1.0 if quota is None else max(1.0, 1.0 / quota.cpus)
    longer_s = moved_by_start_s(IMPORTS_S * slower) + BESIDE_S * (slower - 1.0)
    if limited and quota is not None and longer_s >= LEAST_MOVED_S:
        lines.append(
            f"A cgroup quota allows {quota.cpus:g} CPUs, and Python's imports take up to {IMPORTS_S:g} s of "
            f"CPU time: a run may take {longer_s:.0f} s more than --duration and the usual {PROMISED_S:g} s."
        )
    return lines


class Deadline:
    """When a measuring process is to be done. Every part of its work asks here how long it may take.

    What is looked at behind the rounds takes the longer, the slower the processors are (5 s under a quota of half of
    one). How long they took to start Python tells.
    """

    def __init__(
        self,
        duration_s: float,
        report: Report,
        started_s: float | None = None,
        start_s: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
        *,
        asked: bool = True,
        may_end: bool = False,
    ) -> None:
        """`started_s`: when the process was started for this work, by `clock`; None: now. `start_s`: for which its
        start, Python and its imports, used a processor or waited for one; None: unknown. `asked`: `duration_s` is a
        limit, and not only what is usual where a number of steps takes its time; `may_end`: the work may be done long
        before it."""
        self._clock, self._report, self.duration_s, self._asked = clock, report, duration_s, asked
        self._may_end = may_end
        self._started_s = clock() if started_s is None else started_s
        self.phases: dict[str, float] = {}
        """Seconds of what came before the rounds, by the names of PHASES, in order."""
        if started_s is not None:
            self.phases["imports"] = max(0.0, clock() - started_s)
        self._reasons: list[str] = []
        self._named: set[str] = set()
        """Phases that a notice has named."""
        self.after_rounds_s = min(max(AFTER_ROUNDS_S, start_s or 0.0), MOST_AFTER_S)
        """To be kept free behind the rounds."""
        self._ends_s = self._started_s + duration_s + OVERTIME_S
        self.extended_s = 0.0
        """Seconds that work which cannot be cut short took beyond its share, as was said before it began."""
        if start_s is not None and (moved_s := moved_by_start_s(start_s)):
            self._named.add("imports")
            self.extend(moved_s, f"Python took {start_s:.0f} s to start, because the CPUs are slow")

    def left_s(self) -> float:
        """Seconds until the deadline; 0 behind it."""
        return max(0.0, self._ends_s - self._clock())

    def until(self, most_s: float, part: float = 1.0) -> float:
        """When work must end that may take `most_s`, and `part` of the time that is left; by the clock."""
        return self._clock() + min(most_s, part * self.left_s())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times a part of what comes before the rounds. `name`: of PHASES."""
        begun_s = self._clock()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + self._clock() - begun_s

    def keep(self, seconds: float) -> None:
        """Leave at least `seconds` from now on: where the start took them, move the deadline and say what of it did."""
        beyond_s = seconds - self.left_s()
        if beyond_s < LEAST_MOVED_S:
            return
        whole_s = sum(self.phases.values())
        slow = sorted(self.phases.items(), key=lambda one: -one[1])[:MOST_NAMED]
        new = [(name, s) for name, s in slow if s >= NAMED_PART * whole_s and name not in self._named]
        self._named |= {name for name, _ in new}
        told = ", ".join(f"{PHASES[name]} took {s:.0f} s" for name, s in new)
        self.extend(beyond_s, told or f"the start took {whole_s:.0f} s in all")

    def say(self, text: str) -> None:
        """Say what the user must know, without moving anything."""
        self._report(Notice(text))

    def caveats(self) -> list[Caveat]:
        """At the end: why the run took longer than was promised; empty where it did not, and where nothing was."""
        took_s = self._clock() - self._started_s
        beyond_s = took_s - self.duration_s
        if not self._asked or beyond_s <= (OVERTIME_S if self._reasons else PROMISED_S):
            return []
        why: list[Json] = [*self._reasons]
        return [Caveat("took_longer", {"seconds": took_s, "beyond": beyond_s, "why": why})]

    def extend(self, seconds: float, why: str, *, to_end: bool = False) -> None:
        """Move the deadline for work that cannot be cut short, and say so once, before it is done.

        `seconds`: beyond what is left of it.
        `why`: what takes how long, as a part of a sentence. `to_end`: the run ends there, as far as is foreseen; how
        long it takes is not known otherwise where no limit was asked for.
        """
        moved_s = seconds + max(0.0, self._clock() - self._ends_s)  # it may have passed
        self._ends_s += moved_s
        self.extended_s += moved_s
        self._reasons.append(why)
        about_s = self.duration_s + self.extended_s + OVERTIME_S
        if not self._asked and not to_end:
            self._report(Notice(why))
            return
        limit = f", beyond --duration {self.duration_s:g}" if self._asked and not self._may_end else ""
        about = "at most" if self._may_end else "about"
        self._report(Notice(f"{why}: the run takes {about} {about_s:.0f} s{limit}", about_s))
