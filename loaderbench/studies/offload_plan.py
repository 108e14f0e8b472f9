"""What `loaderbench model offload` is asked for, read into a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loaderbench.cases.case import Step
from loaderbench.cases.options import ModelOptions
from loaderbench.cases.study import check_range
from loaderbench.devices.base import KnownTimes
from loaderbench.devices.select import known_times
from loaderbench.errors import ConfigError
from loaderbench.studies.model import memory_limit, plan_model

if TYPE_CHECKING:
    from loaderbench.recording.offload_study import OffloadSetting

NUM_ROUNDS = 3
LEAST_STEPS = 2
"""Steps of a setting in a round."""
STEPS, CPU_STEPS = 30, 12
"""Of a setting, all rounds together, where none are asked for."""
KB = 1024
RESERVE_FRACTION, CPU_RESERVE_FRACTION = 0.1, 0.005
"""Of the memory, left for what no trace shows: on an accelerator cuDNN's workspaces and the allocator's fragmentation,
on the CPU workspaces of operators without a rule (up to 0.1 % were seen)."""


@dataclass(frozen=True)
class OffloadPlan:
    """What `model offload` is to do."""

    step: Step
    """Of the asked batch."""
    seed: int
    setting: OffloadSetting
    """Where it is no study."""
    is_study: bool
    memory_bytes: int
    memory_source: str
    planned_bytes: int
    """Below which plans keep."""
    on_host: bool
    num_steps: int
    """Of a setting in a round."""
    times: KnownTimes | None
    """None: they are measured."""


def plan_offload(
    model: str,
    options: ModelOptions,
    batch_size: int,
    *,
    above_kb: float | None = None,
    after: float | None = None,
    memory: str | None = None,
    steps: int | None = None,
    study: bool = False,
) -> OffloadPlan:
    """What the options ask for.

    Raises:
        ConfigError: as plan_model, a value out of range, a contradiction, or no limit of memory known.
    """
    check_range("--batch-size", batch_size, 1)
    if above_kb is not None and not 0 <= above_kb * KB < math.inf:
        raise ConfigError(f"--offload-above must be a number of KB, 0 or more, not {above_kb:g}")
    if after is not None and not 0 <= after <= 1:
        raise ConfigError(f"--offload-after must be a fraction of the device's memory, from 0 to 1, not {after:g}")
    if study and (above_kb is not None or after is not None):
        raise ConfigError("--study finds the thresholds: leave --offload-above and --offload-after out")
    if after and above_kb is None:
        raise ConfigError("--offload-after needs --offload-above too")
    check_range("--steps", steps, LEAST_STEPS * NUM_ROUNDS)
    planned = plan_model(model, options)
    computes, on_host = planned.device.computes, planned.device.on_host_cpus
    limit = memory_limit(planned, memory)
    reserve = CPU_RESERVE_FRACTION if on_host else RESERVE_FRACTION
    wanted = steps or (CPU_STEPS if on_host else STEPS)
    from loaderbench.recording.offload_study import OffloadSetting  # late: it needs numpy

    return OffloadPlan(
        step=replace(planned.step, batch_size=batch_size),
        seed=planned.seed,
        setting=OffloadSetting(None if above_kb is None else round(above_kb * KB), after or 0.0),
        is_study=study,
        memory_bytes=limit.bytes,
        memory_source=limit.source,
        planned_bytes=round(limit.bytes * (1 - reserve)) if computes else limit.bytes,
        on_host=on_host,
        num_steps=math.ceil(wanted / NUM_ROUNDS),
        times=known_times(planned.step.device),
    )
