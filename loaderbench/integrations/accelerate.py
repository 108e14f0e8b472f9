"""Accelerate: `with loaderbench.integrations.accelerate.Watch(log_to="wandb"): …` around the loop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from loaderbench import lacking
from loaderbench.cases.options import RESULTS
from loaderbench.integrations.phases import TrainerWatch
from loaderbench.recording.record import RunRecord

try:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook
except ImportError as error:
    raise lacking.package("torch", error, "pip install torch") from error


class Watch:
    """Watches a loop of Accelerate's in a `with` block. Loops without gradients are evaluation, and counted apart.

    Accelerate has no callbacks: its loaders are noticed as DataLoaders, and its optimizers' steps by PyTorch's hook,
    which an accumulation calls once.
    """

    def __init__(self, results: str | os.PathLike[str] = RESULTS, log_to: str | Sequence[str] | None = None) -> None:
        """`log_to`: experiment trackers, as `loaderbench.watch` takes them, and with its errors."""
        self._watch = TrainerWatch(results, log_to)
        self._hook: Any = None
        self.record: RunRecord | None = None
        """The record of the block; None under `loaderbench watch`, which stores it when the script ends."""

    def __enter__(self) -> Watch:
        self._watch.begin(lambda: "train" if torch.is_grad_enabled() else "evaluate")
        self._hook = register_optimizer_step_post_hook(lambda *_: self._watch.stepped())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hook.remove()
        self.record = self._watch.end()
