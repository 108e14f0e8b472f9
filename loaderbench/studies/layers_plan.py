"""What `loaderbench model layers` asks for, read into a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from loaderbench.cases.case import Case, Step
from loaderbench.cases.inputs import words_of
from loaderbench.cases.options import ModelOptions
from loaderbench.cases.study import check_range, read_options
from loaderbench.devices.select import traits_of
from loaderbench.errors import ConfigError
from loaderbench.studies.model import LENET, plan_model
from loaderbench.studies.refusals import planned
from loaderbench.studies.request import find_data_sets

if TYPE_CHECKING:
    from loaderbench.running.jobs.table import LayersRequest

BATCH_SIZE, CPU_BATCH_SIZE = 64, 8
"""LeNet's batch is BATCH_SIZE on every device: that of its profile of 2019."""
NUM_STEPS, CPU_NUM_STEPS = 50, 20
NUM_ROUNDS = 5
LEAST_ROUND_S = 1.0
"""A round takes at least so long unless --steps is given: five rounds of milliseconds would be one moment of the
machine, and agree better than two runs do."""
LEAST_RUN_SIZE = 32
"""Of the plan of a run; LeNet takes smaller images."""
NO_LAYERS = "not measured: an emulated device has no layers; use --device cpu"


@dataclass(frozen=True)
class DataOptions:
    """What feeds the model, for the whole iteration; None: a batch in memory."""

    data: str | None = None
    resolution: int | None = None
    loader: str | None = None
    workers: int | None = None


@dataclass(frozen=True)
class LayersPlan:
    request: LayersRequest
    alone: bool


def plan_layers(
    model: str,
    options: ModelOptions,
    batch_size: int | None = None,
    num_steps: int | None = None,
    *,
    alone: bool = True,
    data: DataOptions = DataOptions(),
) -> LayersPlan:
    """What to measure; None takes the device's default.

    Raises:
        ConfigError: a value out of range, a contradiction, no such device or data set, or a device without layers.
    """
    if data.data is None and (data.resolution, data.loader, data.workers) != (None, None, None):
        raise ConfigError("--res, --loader and --workers need a data set: give --data")
    if options.device != "auto" and not traits_of(options.device).computes:
        raise ConfigError(NO_LAYERS)
    planned = plan_model(model, options, instead=("cpu",))
    on_cpu = planned.device.on_host_cpus
    size = batch_size if batch_size is not None else CPU_BATCH_SIZE if on_cpu and model != LENET else BATCH_SIZE
    steps = num_steps if num_steps is not None else CPU_NUM_STEPS if on_cpu else NUM_STEPS
    check_range("--batch-size", size, 1)
    check_range("--steps", steps, NUM_ROUNDS)
    # Copies beside the compute of another step would hide in its time.
    step = replace(planned.step, batch_size=size, overlap=False)
    case = None
    if data.data is not None:
        case = _case(model, options, data, replace(step, channels=3) if model == LENET else step)
        step = case.step
    from loaderbench.running.jobs.table import LayersRequest  # late: it needs numpy

    least_s = LEAST_ROUND_S if num_steps is None else 0.0
    request = LayersRequest(step, planned.seed, NUM_ROUNDS, math.ceil(steps / NUM_ROUNDS), case, least_s)
    return LayersPlan(request, alone)


def _case(model: str, options: ModelOptions, data: DataOptions, step: Step) -> Case:
    """The data set and its loader as `loaderbench run` would take them, files in whatever state of the cache.

    Raises:
        ConfigError: no such data set or loader, or a model that takes other images than loaders deliver.
    """
    if step.inputs is not None:
        raise ConfigError(f"loaders deliver square images, not {words_of(step.inputs)}: leave --data out")
    if step.channels != 3:
        raise ConfigError(f"loaders deliver images with 3 channels, not {step.channels}: leave --input-shape out")
    size = max(step.input_size or 0, LEAST_RUN_SIZE)
    asked = read_options(
        {
            "res": data.resolution, "cache": "as-is", "loader": data.loader, "workers": data.workers,
            "batch_size": step.batch_size, "model": model, "mode": step.mode, "input_size": size,
            "precision": step.precision, "device": step.device, "overlap": False, "seed": options.seed,
        }
    )  # fmt: skip
    asked.require_single("model layers", "loader")
    case = planned(asked, find_data_sets(data.data, asked))[0]
    return replace(case, step=replace(case.step, optimizer=step.optimizer, input_size=step.input_size, loss=step.loss))
