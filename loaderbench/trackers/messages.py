"""What the script's process sends to a tracker's process, as lines of JSON, and what that does with them."""

from __future__ import annotations

from collections.abc import Callable

from loaderbench import plain
from loaderbench.plain import JsonObject
from loaderbench.trackers.tracker import Point, Summary, Tracker

MOST_FAILED = 3
"""Calls in a row that fail before a tracker is given up. Its end is tried once more."""
LONGEST_PROBLEM = 300
"""Characters of what a library says of an error, which may be pages."""


def what_failed(error: BaseException) -> str:
    """Describe an error in one line: `UsageError: No API key configured`."""
    said = " ".join(str(error).split())
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return text if len(text) <= LONGEST_PROBLEM else f"{text[: LONGEST_PROBLEM - 1]}…"


class Caller:
    """Calls one tracker, whatever it raises."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker, self._num_failed = tracker, 0
        self.problem: str | None = None
        """The first thing that failed."""

    def point(self, point: Point) -> None:
        """Log a point, unless too many calls failed."""
        if self._num_failed < MOST_FAILED:
            self._try(lambda: self._tracker.point(point))

    def summarize(self, summary: Summary) -> None:
        """Set the summary."""
        self._try(lambda: self._tracker.summarize(summary))

    def close(self, *, failed: bool) -> None:
        """End the run."""
        self._try(lambda: self._tracker.close(failed=failed))

    def heed(self, message: JsonObject) -> bool:
        """Do what a message says. Whether more may follow."""
        match message:
            case {"point": found}:
                self.point(plain.from_json(Point, found))
            case {"summary": found}:
                self.summarize(plain.from_json(Summary, found))
            case {"close": failed}:
                self.close(failed=bool(failed))
                return False
        return True

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
            self._num_failed = 0
        except Exception as error:  # whatever a library raises
            self._num_failed += 1
            self.problem = self.problem or what_failed(error)
