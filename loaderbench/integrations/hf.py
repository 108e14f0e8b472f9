"""Hugging Face's Trainer: `Trainer(…, callbacks=[loaderbench.integrations.hf.Watch()])`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from loaderbench import lacking
from loaderbench.cases.options import RESULTS
from loaderbench.integrations.phases import TrainerWatch
from loaderbench.recording.record import RunRecord

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise lacking.package("transformers", error, "pip install transformers") from error


class Watch(TrainerCallback):  # type: ignore[misc, unused-ignore]  # untyped where transformers is not installed
    """Watches a Trainer from the beginning to the end of `train()`. Evaluation is counted separately."""

    def __init__(self, results: str | os.PathLike[str] = RESULTS, log_to: str | Sequence[str] | None = None) -> None:
        """`log_to`: experiment trackers, as `loaderbench.watch` takes them, and with its errors."""
        self._watch, self._phase = TrainerWatch(results, log_to), "train"
        self.record: RunRecord | None = None
        """The record of the last `train()`; None under `loaderbench watch`, which stores it when the script ends."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._phase = "train"
        self._watch.begin(lambda: self._phase)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._watch.stepped()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_evaluate:  # the Trainer does it next
            self._phase = "evaluate"

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_evaluate:
            self._phase = "evaluate"

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._phase = "train"

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._phase = "train"

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.record = self._watch.end()
