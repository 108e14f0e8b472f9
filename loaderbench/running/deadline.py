"""The one budget of a measuring process: `--duration` and a little more, from its start to its answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from loaderbench.recording.progress import Notice, Report

OVERTIME_S = 7.0
"""Seconds beyond `--duration` from the start of the process to its answer: Python's imports, the device, the loaders'
first batches. The command promises 10: about 1.5 s pass before the process is started and as many behind its answer."""
AFTER_ROUNDS_S, MOST_AFTER_S = 2.5, 5.0
"""Kept free behind the rounds for what is looked at once, besides the probe of the storage; and where processors are
slow."""


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
    ) -> None:
        """`started_s`: when the process was started for this work, by `clock`; None: now. `start_s`: for which its
        start, Python and its imports, used a processor or waited for one; None: unknown."""
        self._clock, self._report, self.duration_s = clock, report, duration_s
        self.after_rounds_s = min(max(AFTER_ROUNDS_S, start_s or 0.0), MOST_AFTER_S)
        """To be kept free behind the rounds."""
        self._ends_s = (clock() if started_s is None else started_s) + duration_s + OVERTIME_S
        self.extended_s = 0.0
        """Seconds that work which cannot be cut short took beyond its share, as was said before it began."""
        if start_s is not None and start_s > MOST_AFTER_S:
            # So much more for the start, and for what follows the rounds.
            self.extend(2 * (start_s - MOST_AFTER_S), f"Python took {start_s:.0f} s of slow processors to start")

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
        about = self.duration_s + self.extended_s + OVERTIME_S
        self._report(Notice(f"{why}: the run takes about {about:.0f} s, beyond --duration {self.duration_s:g}"))
