"""`loaderbench precision`: one model in every precision, side by side: time, memory, and how far it strays from fp32.

Each mode has its own process, in which first the steps are timed, then the numbers are followed
(running/jobs/precision.py). docs/precision.md defines every figure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from loaderbench.cases.case import REFERENCE, Step
from loaderbench.errors import ConfigError
from loaderbench.machine import environment
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import DeviceFacts, Failure, Status
from loaderbench.recording.progress import Message, StepsDone
from loaderbench.recording.store import Store
from loaderbench.recording.studies import ModeFacts, NumberFacts, PrecisionFacts, TimingFacts
from loaderbench.running.jobs.table import EXAMINE_DEVICE, FOLLOW_STEPS, TIME_STEPS, ExamineRequest, StepsRequest
from loaderbench.running.supervisor import Child, JobFailed
from loaderbench.studies.kept import KeptStudy, Say
from loaderbench.studies.measure import quiet
from loaderbench.studies.precision_plan import PrecisionPlan

OTHER_ROUNDING = "1000"
"""A loss scale that changes only the last bits of fp32's weights: it is not a power of two."""


class PrecisionStudy(KeptStudy):
    """All modes of one model. Finished modes are kept and stored, however `run` ends."""

    def __init__(self, plan: PrecisionPlan, store: Store) -> None:
        self._plan, self._steps = plan, plan.steps
        super().__init__(store.new_study("precision", [plan.steps[0].model, plan.steps[0].mode]))
        self._environment = environment()
        self._device: DeviceFacts | None = None
        self._repeat: NumberFacts | None = None
        self._caveats: list[Caveat] = []
        self.modes: list[ModeFacts] = []

    def run(self, say: Say) -> None:
        """Run every mode in turn. A mode that the device lacks, or that fails, is kept with the reason.

        Raises:
            ConfigError: the model, or its images, cannot be run in any mode.
            UnavailableError, CaseFailed: the device does not start, or the results cannot be written.
        """
        self._folder.begin()
        lacking = self._examine()
        progress = _Progress(say, [step.precision for step in self._steps if step.precision not in lacking])
        for step in self._steps:
            reason = lacking.get(step.precision)
            if reason is not None:
                self.modes.append(ModeFacts(step.precision, "skipped", Failure("UnavailableError", reason)))
                continue
            self._measure(step, progress)
            if step.precision == REFERENCE and self.modes[-1].status == "ok":
                self._follow_again(step, progress)
            progress.finish(self.modes[-1])
            self._folder.write(self.study())

    def _examine(self) -> dict[str, str]:
        """The precisions that the device lacks, and why."""
        request = ExamineRequest(self._steps[0], tuple(step.precision for step in self._steps))
        try:
            with Child(self._log) as child:
                examined = child.ask(EXAMINE_DEVICE, request, quiet)
        except JobFailed as error:
            raise error.error from error
        self._device = examined.device
        return examined.lacking

    def _measure(self, step: Step, progress: _Progress) -> None:
        """Time and follow one mode; `modes` has what is known of it from the start."""
        request = StepsRequest(step, self._plan.num_steps, self._plan.seed)
        timing: TimingFacts | None = None
        numbers: NumberFacts | None = None
        status: Status = "interrupted"
        failure: Failure | None = None
        try:
            with Child(self._log) as child:
                progress.begin(step, "timing", 0.0)
                timing = child.ask(TIME_STEPS, request, progress.message)
                progress.begin(step, "following the numbers", 0.5)
                numbers = child.ask(FOLLOW_STEPS, request, progress.message)
            status = "ok"
        except JobFailed as error:
            if isinstance(error.error, ConfigError):  # the request is wrong in every mode
                raise error.error from error
            status, failure = error.status, error.failure
        finally:
            self.modes.append(ModeFacts(step.precision, status, failure, timing, numbers))

    def _follow_again(self, step: Step, progress: _Progress) -> None:
        progress.begin(step, "following the numbers again", 0.5)
        try:
            with Child(self._log) as child:
                again = StepsRequest(replace(step, loss_scale=OTHER_ROUNDING), self._plan.num_steps, self._plan.seed)
                self._repeat = child.ask(FOLLOW_STEPS, again, progress.message)
        except JobFailed as error:
            self._caveats.append(Caveat("fp32_repeat_not_measured", {"reason": error.failure.message}))

    @property
    def begun(self) -> bool:
        return bool(self.modes)

    @property
    def kept(self) -> str:
        num_done = sum(mode.status != "interrupted" for mode in self.modes)
        return f"{num_done} of {len(self._steps)} precisions finished and are kept"

    @property
    def failed(self) -> bool:
        """Whether a mode failed, or none could be run."""
        statuses = [one.status for one in self.modes]
        return "failed" in statuses or all(status == "skipped" for status in statuses)

    def facts(self) -> PrecisionFacts:
        """What was measured so far."""
        step = self._steps[0]
        return PrecisionFacts(
            model=step.model,
            mode=step.mode,
            device_name=step.device,
            num_steps=self._plan.num_steps,
            batch_size=step.batch_size,
            input_size=step.input_size,
            inputs=step.inputs,
            seed=self._plan.seed,
            environment=self._environment,
            device=self._device,
            modes=tuple(self.modes),
            repeat=self._repeat,
            caveats=tuple(self._caveats),
        )


class _Progress:
    """Lines with the time left, from the fraction of the work done (each mode: half timing, half following)."""

    def __init__(self, say: Say, precisions: Sequence[str]) -> None:
        self._say, self._num_modes = say, len(precisions)
        self._begun = time.monotonic()
        self._num_done, self._before, self._line = 0, 0.0, ""
        self._told = False

    def begin(self, step: Step, what: str, before: float) -> None:
        """`before`: the fraction of the mode that is done already."""
        self._before = before
        self._line = f"[{self._num_done + 1}/{self._num_modes}] {step.precision}: {what}"
        self._say(self._line + self._left(before), True)

    def message(self, message: Message) -> None:
        """Handle a message of the measuring process."""
        if not isinstance(message, StepsDone) or message.total is None:
            return
        part = self._before + 0.5 * message.done / message.total
        # The first meaningful estimate of the time left stays on screen and in the log.
        first = not self._told and message.done >= message.total / 10
        self._told = self._told or first
        left = self._left(part) if self._told else ""
        self._say(f"{self._line}, step {message.done} of {message.total}{left}", first)

    def finish(self, mode: ModeFacts) -> None:
        self._num_done += 1
        if mode.failure is not None:
            self._say(f"{mode.precision}: {mode.status}: {mode.failure.message}", True)

    def _left(self, part: float) -> str:
        done = self._num_done + part
        if not done:
            return ""
        seconds = (time.monotonic() - self._begun) / done * (self._num_modes - done)
        return f" (about {seconds / 60:.0f} min left)" if seconds >= 90 else f" (about {math.ceil(seconds)} s left)"
