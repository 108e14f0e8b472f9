"""The one budget of a measuring process: `--duration` and a little more, from its start to its answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from loaderbench.recording.progress import Notice, Report

LATE_S = 10.0
"""Seconds beyond `--duration` within which the command answers."""
COMMAND_S = 3.0
"""Of these, the command's own: about a half before it starts this process, and as much behind its answer."""
AFTER_ROUNDS_S = 2.5
"""Kept free behind the rounds for what is looked at once, besides the probe of the storage."""
SLOW_START_S = 6.0
"""Where the process took longer to start, its processors are so slow that the promise cannot be held."""


class Deadline:
    """When a measuring process is to be done. Every part of its work asks here how long it may take.

    How long the process took to start tells how long the same machine takes for the rest, which is not measured and
    cannot be planned (under a quota of half a processor 5 s): COMMAND_S and AFTER_ROUNDS_S, or that time where it is
    longer.
    """

    def __init__(
        self,
        duration_s: float,
        report: Report,
        started_s: float | None = None,
        start_s: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`started_s`: when the process was started for this work, by `clock`; None: now. `start_s`: what its start
        took, Python and its imports; None: it had other work before."""
        self._clock, self._report, self.duration_s = clock, report, duration_s
        slow_s = min(start_s or 0.0, SLOW_START_S)
        self.after_rounds_s = max(AFTER_ROUNDS_S, slow_s)
        """To be kept free behind the rounds."""
        self.overtime_s = LATE_S - max(COMMAND_S, slow_s)
        """Beyond `--duration`, from the start of the process to its answer."""
        self._ends_s = (clock() if started_s is None else started_s) + duration_s + self.overtime_s
        self.extended_s = 0.0
        """Seconds that work which cannot be cut short took beyond its share, as was said before it began."""
        if start_s is not None and start_s > SLOW_START_S:
            # Once for the start itself, once for the command's own part.
            self.extend(2 * (start_s - SLOW_START_S), f"this process took {start_s:.0f} s to start")

    def left_s(self) -> float:
        """Seconds until the deadline; 0 behind it."""
        return max(0.0, self._ends_s - self._clock())

    def until(self, most_s: float, part: float = 1.0) -> float:
        """When work must end that may take `most_s`, and `part` of the time that is left; by the clock."""
        return self._clock() + min(most_s, part * self.left_s())

    def extend(self, seconds: float, why: str) -> None:
        """Move the deadline for work that cannot be cut short, and say so once, before it is done.

        `why`: what takes how long, as a part of a sentence.
        """
        self._ends_s += seconds
        self.extended_s += seconds
        about = self.duration_s + self.extended_s + LATE_S - COMMAND_S
        self._report(Notice(f"{why}: the run takes about {about:.0f} s, beyond --duration {self.duration_s:g}"))
