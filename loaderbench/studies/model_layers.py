"""`loaderbench model layers`: an iteration of a model by its calls, in the step and alone (docs/model.md)."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.machine import environment
from loaderbench.recording.facts import Failure, Status
from loaderbench.recording.model_layers import LayersFacts
from loaderbench.recording.progress import Message, Phase, StepsDone
from loaderbench.recording.store import Store
from loaderbench.running.jobs.table import TIME_ALONE, TIME_LAYERS
from loaderbench.running.supervisor import Child, JobFailed
from loaderbench.studies.kept import KeptStudy, Say
from loaderbench.studies.layers_plan import LayersPlan


class LayersStudy(KeptStudy):
    """One model's layers. What was measured is kept and stored, however `run` ends."""

    def __init__(self, planned: LayersPlan, store: Store) -> None:
        self._plan, self._request = planned, planned.request
        step = planned.request.step
        super().__init__(store.new_study("model_layers", [step.model, step.mode]))
        self._facts = LayersFacts(step, planned.request.seed, environment(), planned.request.case)

    @property
    def measured(self) -> bool:
        """Whether there are any rows."""
        return self._facts.times is not None

    @property
    def kept(self) -> str:
        return "the layers' times in the step are kept" if self.measured else "no block was finished"

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
