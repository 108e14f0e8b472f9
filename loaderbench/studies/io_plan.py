"""What `loaderbench model io` asks for, read into a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loaderbench.cases.case import Step
from loaderbench.cases.options import ModelOptions
from loaderbench.cases.study import check_range
from loaderbench.devices.select import known_times, profile_link
from loaderbench.errors import ConfigError
from loaderbench.studies.model import plan_model

if TYPE_CHECKING:
    from loaderbench.recording.model_io import KnownLink


@dataclass(frozen=True)
class IoPlan:
    """What is to be copied."""

    step: Step
    """Of the largest batch."""
    seed: int
    batches: tuple[int, ...]
    known: KnownLink | None


def plan_io(model: str, options: ModelOptions, batch_size: int, max_batch: int, inc: int) -> IoPlan:
    """What the options ask for: batches from the first to the largest, by so many more each, and the largest itself.

    Raises:
        ConfigError: a value out of range, or no such device.
    """
    check_range("--batch-size", batch_size, 1)
    check_range("--inc", inc, 1)
    check_range("--max-batch", max_batch, 1)
    if max_batch < batch_size:
        raise ConfigError(f"--max-batch {max_batch} is below --batch-size {batch_size}: give a larger --max-batch")
    planned = plan_model(model, replace(options, mode="infer"))
    from loaderbench.recording.model_io import KnownLink  # late: it needs numpy

    known = None
    if known_times(planned.step.device) is not None:
        known = KnownLink(*profile_link(planned.step.device))
    batches = tuple(sorted({*range(batch_size, max_batch + 1, inc), max_batch}))
    return IoPlan(replace(planned.step, batch_size=max_batch), planned.seed, batches, known)
