"""What `loaderbench model fit` asks for, read into a plan."""

from __future__ import annotations

from dataclasses import dataclass

from loaderbench.cases.case import Step
from loaderbench.cases.options import ModelOptions
from loaderbench.cases.study import check_choice
from loaderbench.errors import ConfigError
from loaderbench.studies.model import memory_limit, plan_model

EMULATED = "an emulated device builds no model: the largest batch is the predicted one"


@dataclass(frozen=True)
class FitPlan:
    """What `model fit` is to do."""

    step: Step
    """Of batch 1."""
    seed: int
    memory_bytes: int
    memory_source: str
    memory_asked: int | None
    how: str
    not_tried: str | None
    """Why no trial is run."""


def plan_fit(model: str, options: ModelOptions, memory: str | None, how: str | None) -> FitPlan:
    """The limit and what holds it.

    Raises:
        ConfigError: as plan_model, a size that is none, a way that the device has not, or no limit known.
    """
    planned = plan_model(model, options)
    limit = memory_limit(planned, memory)
    if how is not None:
        from loaderbench.recording.model_memory import CAP_HOWS  # late: it needs numpy

        check_choice("--how", how, CAP_HOWS)
        if not planned.device.on_host_cpus:
            raise ConfigError("--how applies to the CPU only: leave it out, or give --device cpu")
    if not planned.device.computes:
        used, not_tried = "prediction", EMULATED
    else:
        used, not_tried = (how or "ledger") if planned.device.on_host_cpus else "fraction", None
    return FitPlan(planned.step, planned.seed, limit.bytes, limit.source, limit.asked, used, not_tried)
