"""What a trainer's callback adds to a watch: when it trains and when it evaluates, and its optimizer's steps."""

from __future__ import annotations

import os
from collections.abc import Callable

from loaderbench.cases.options import RESULTS
from loaderbench.recording.record import RunRecord
from loaderbench.studies.watch import OwnWatch, current
from loaderbench.watching.watcher import Watcher


class TrainerWatch:
    """The watch that a trainer's callback begins where none is going on, and tells what the trainer does."""

    def __init__(self, results: str | os.PathLike[str] = RESULTS) -> None:
        self._results = results
        self._own: OwnWatch | None = None
        self._watcher: Watcher | None = None

    def begin(self, phase: Callable[[], str]) -> None:
        """The trainer begins. `phase`: `train` or `evaluate`, at any time.

        Raises:
            ConfigError: the results folder cannot be written.
        """
        self._watcher = current()
        if self._watcher is None:
            self._own = OwnWatch.begin(self._results)
            self._watcher = self._own.watcher
        self._watcher.phase, self._watcher.optimizer_steps = phase, 0

    def stepped(self, num: int | None = None) -> None:
        """The optimizer did one more step; `num`: has done so many."""
        if self._watcher is not None:
            self._watcher.optimizer_steps = (self._watcher.optimizer_steps or 0) + 1 if num is None else num

    def end(self) -> RunRecord | None:
        """The trainer has ended. What was seen is stored and printed; by `loaderbench watch` when the script ends."""
        if self._watcher is not None:
            self._watcher.phase = None
        own, self._own, self._watcher = self._own, None, None
        return None if own is None else own.leave()
