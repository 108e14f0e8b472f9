"""A trainer's callback shows the watch when the trainer trains or evaluates, and counts optimizer steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from loaderbench.cases.options import RESULTS
from loaderbench.recording.record import RunRecord
from loaderbench.studies.watch import OwnWatch, current, log_too
from loaderbench.trackers.tracker import names_of
from loaderbench.watching.watcher import Watcher


class TrainerWatch:
    """Connects a trainer's callback to the active watch, or starts one, and reports what the trainer does."""

    def __init__(self, results: str | os.PathLike[str] = RESULTS, log_to: str | Sequence[str] | None = None) -> None:
        """`log_to`: experiment trackers, as `loaderbench.watch` takes them.

        Raises:
            ConfigError: there is no such tracker.
            MissingExtra: its library is not installed.
        """
        self._results, self._trackers = results, names_of(log_to)
        self._own: OwnWatch | None = None
        self._watcher: Watcher | None = None

    def begin(self, phase: Callable[[], str]) -> None:
        """Begin watching the trainer. `phase` returns its current phase, `train` or `evaluate`.

        Raises:
            ConfigError: the results folder cannot be written.
        """
        self._watcher = current()
        if self._watcher is None:
            self._own = OwnWatch.begin(self._results)
            self._watcher = self._own.watcher
        self._watcher.phase, self._watcher.optimizer_steps = phase, 0
        log_too(self._trackers)

    def stepped(self, num: int | None = None) -> None:
        """Count one optimizer step; `num`: set the total instead."""
        if self._watcher is not None:
            self._watcher.optimizer_steps = (self._watcher.optimizer_steps or 0) + 1 if num is None else num

    def end(self) -> RunRecord | None:
        """End watching: store and print the record; under `loaderbench watch` the script's end does that."""
        if self._watcher is not None:
            self._watcher.phase = None
        own, self._own, self._watcher = self._own, None, None
        return None if own is None else own.leave()
