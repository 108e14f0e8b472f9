"""Lightning's Trainer: `Trainer(…, callbacks=[loaderbench.integrations.lightning.Watch()])`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from loaderbench.cases.options import RESULTS
from loaderbench.errors import UnavailableError
from loaderbench.integrations.phases import TrainerWatch
from loaderbench.recording.record import RunRecord

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""Names of the one library; their classes differ."""


def _callback() -> Any:
    """The base class, of the package that the script uses."""
    problem: ImportError | None = None
    for package in sorted(PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(package).Callback
        except ImportError as error:
            problem = problem or error
    raise UnavailableError(
        f"loaderbench.integrations.lightning needs lightning: pip install lightning ({problem})"
    ) from problem


class Watch(_callback()):  # type: ignore[misc]
    """Watches a Trainer from the beginning to the end of `fit()`. Validation is counted separately."""

    def __init__(self, results: str | os.PathLike[str] = RESULTS, log_to: str | Sequence[str] | None = None) -> None:
        """`log_to`: experiment trackers, as `loaderbench.watch` takes them, and with its errors."""
        self._watch = TrainerWatch(results, log_to)
        self.record: RunRecord | None = None
        """The record of the last `fit()`; None under `loaderbench watch`, which stores it when the script ends."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._watch.begin(lambda: "evaluate" if trainer.evaluating or trainer.sanity_checking else "train")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._watch.stepped(trainer.global_step)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self.record = self._watch.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.record = self._watch.end()
