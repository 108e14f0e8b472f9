"""`loaderbench model layers`: an iteration of a model by its calls, in the step and alone (docs/model.md)."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from loaderbench.cases.case import Case, Step
from loaderbench.cases.options import (
    EffortOptions,
    FeedOptions,
    ModelOptions,
    Numbers,
    Options,
    Side,
    StepOptions,
    SubjectOptions,
    Words,
    one_of_each,
)
from loaderbench.cases.study import check_range
from loaderbench.devices.select import traits_of
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.machine import environment
from loaderbench.recording.facts import Failure, Status
from loaderbench.recording.model_layers import LayersFacts
from loaderbench.recording.progress import Message, Phase, StepsDone
from loaderbench.recording.store import Store
from loaderbench.running.jobs.table import TIME_ALONE, TIME_LAYERS, LayersRequest
from loaderbench.running.supervisor import Child, JobFailed
from loaderbench.studies.kept import KeptStudy, Say
from loaderbench.studies.model import LENET, plan_model
from loaderbench.studies.refusals import planned
from loaderbench.studies.request import resolve

BATCH_SIZE, CPU_BATCH_SIZE = 64, 8
"""LeNet's batch is BATCH_SIZE on every device: that of its profile of 2019."""
NUM_STEPS, CPU_NUM_STEPS, LENET_NUM_STEPS = 50, 20, 100
"""LeNet's iteration takes milliseconds, so that 20 would be one moment of the machine."""
NUM_ROUNDS = 5
LEAST_RUN_SIZE = 32
"""Of the plan of a run; LeNet takes smaller images."""
NO_LAYERS = "not measured: an emulated device has no layers; use --device cpu"


@dataclass(frozen=True)
class DataOptions:
    """What feeds the model, for the whole iteration; None: a batch in memory."""

    data: str | None = None
    resolution: int | None = None
    loader: Words | None = None
    workers: Numbers | None = None


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
        raise ConfigError("--res, --loader and --workers belong to a data set: give --data")
    if options.device != "auto" and not traits_of(options.device).computes:
        raise ConfigError(NO_LAYERS)
    planned = plan_model(model, options, instead=("cpu",))
    on_cpu = planned.device.on_host_cpus
    size = batch_size if batch_size is not None else CPU_BATCH_SIZE if on_cpu and model != LENET else BATCH_SIZE
    usual = LENET_NUM_STEPS if model == LENET else CPU_NUM_STEPS if on_cpu else NUM_STEPS
    steps = num_steps if num_steps is not None else usual
    check_range("--batch-size", size, 1)
    check_range("--steps", steps, NUM_ROUNDS)
    # Copies beside the compute of another step would hide in its time.
    step = replace(planned.step, batch_size=size, overlap=False)
    case = None
    if data.data is not None:
        case = _case(model, options, data, replace(step, channels=3) if model == LENET else step)
        step = case.step
    request = LayersRequest(step, planned.seed, NUM_ROUNDS, math.ceil(steps / NUM_ROUNDS), case)
    return LayersPlan(request, alone)


def _case(model: str, options: ModelOptions, data: DataOptions, step: Step) -> Case:
    """The data set and its loader as `loaderbench run` would take them, files in whatever state of the cache.

    Raises:
        ConfigError: no such data set or loader, or a model that takes other images than loaders deliver.
    """
    if step.channels != 3:
        raise ConfigError(f"loaders deliver images with 3 channels, not {step.channels}: leave --input-shape out")
    asked = Options(
        SubjectOptions(cache=Words(("as-is",))),
        FeedOptions(loader=data.loader, workers=data.workers),
        StepOptions(
            batch_size=Numbers((step.batch_size,)),
            model=Words((model,)),
            mode=step.mode,
            input_size=Side(max(step.input_size or 0, LEAST_RUN_SIZE)),
            precision=Words((step.precision,)),
            device=step.device,
            overlap=False,
        ),
        EffortOptions(seed=options.seed),
    )
    one_of_each("model layers", asked, "loader", "workers")
    case = planned(resolve(asked, [(data.data, data.resolution)]))[0]
    return replace(case, step=replace(case.step, optimizer=step.optimizer, input_size=step.input_size))


class LayersStudy(KeptStudy):
    """One model's layers. What was measured is kept and stored, however `run` ends."""

    def __init__(self, planned: LayersPlan, store: Store) -> None:
        self._plan, self._request = planned, planned.request
        step = planned.request.step
        super().__init__("model_layers", store.new_study("model_layers", [step.model, step.mode]))
        self._facts = LayersFacts(step, planned.request.seed, environment(), planned.request.case)

    @property
    def measured(self) -> bool:
        """Whether there are any rows."""
        return self._facts.times is not None

    @property
    def failed(self) -> bool:
        return self._facts.failure is not None or (self._plan.alone and self._facts.alone is None)

    def run(self, say: Say) -> None:
        """Measure the calls in whole iterations, then each alone. What fails is kept with the reason.

        Raises:
            ConfigError, UnavailableError: the model, its images or the device cannot be used as asked.
        """
        self._folder.begin()
        try:
            with Child(self._log) as child:
                progress = _Progress(say, "layers in the step")
                layers = child.ask(TIME_LAYERS, self._request, progress.message)
                self._facts = replace(
                    self._facts,
                    device=layers.device,
                    workload=layers.workload,
                    input_bytes=layers.input_bytes,
                    calls=layers.calls,
                    times=layers.times,
                    no_alone=None if self._plan.alone else "--no-alone",
                )
                if self._plan.alone:
                    self.store()
                    progress = _Progress(say, "each layer alone")
                    self._facts = replace(self._facts, alone=child.ask(TIME_ALONE, self._request, progress.message))
            self._end("ok")
        except JobFailed as error:
            if not self.measured:
                if isinstance(error.error, ConfigError | UnavailableError):
                    raise error.error from error
                self._end(error.status, error.failure)
            else:
                self._facts = replace(self._facts, no_alone=error.failure.message)
                self._end("ok")

    def facts(self) -> LayersFacts:
        """What was measured so far."""
        return self._facts

    def _end(self, status: Status, failure: Failure | None = None) -> None:
        self._facts = replace(self._facts, status=status, failure=failure)


class _Progress:
    """Lines with the time left."""

    def __init__(self, say: Say, what: str) -> None:
        self._say, self._what = say, what
        self._begun: float | None = None
        say(what, True)

    def message(self, message: Message) -> None:
        """Handle a message of the measuring process."""
        if isinstance(message, Phase):
            self._say(f"{self._what}: {message.text}", False)
        elif isinstance(message, StepsDone):
            self._say(f"{self._what}: {message.done} of {message.total}{self._left(message)}", False)

    def _left(self, message: StepsDone) -> str:
        now = time.monotonic()
        if self._begun is None:
            self._begun = now
            return ""
        left = (now - self._begun) * ((message.total or message.done) - message.done) / message.done
        return f" (about {math.ceil(left)} s left)"
