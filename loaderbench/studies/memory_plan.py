"""What `loaderbench model memory` asks for, read into a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loaderbench.cases.case import Step
from loaderbench.cases.options import ModelOptions
from loaderbench.cases.study import check_range
from loaderbench.studies.model import plan_model

EMULATED = "an emulated device builds no model: its memory is predicted with the allocator rules of a GPU"
NOT_ASKED = "--no-measure was given"


@dataclass(frozen=True)
class MemoryPlan:
    """What `model memory` is to do."""

    step: Step
    """Of batch 1."""
    batch_sizes: tuple[int, ...]
    seed: int
    not_measured: str | None


def plan_memory(model: str, options: ModelOptions, batch_sizes: Sequence[int], *, measure: bool) -> MemoryPlan:
    """The batches to look at.

    Raises:
        ConfigError: as plan_model, or a batch size below 1.
    """
    for size in batch_sizes:
        check_range("--batch-size", size, 1)
    planned = plan_model(model, options)
    reason = EMULATED if not planned.device.computes else None if measure else NOT_ASKED
    return MemoryPlan(planned.step, tuple(dict.fromkeys(batch_sizes)), planned.seed, reason)
