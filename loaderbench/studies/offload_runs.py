"""How `model offload` gets a setting's figures: timed in a measuring process, or replayed over an emulated card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np

from loaderbench.cases.case import Step
from loaderbench.cases.inputs import image_side
from loaderbench.devices.base import KnownTime, KnownTimes
from loaderbench.devices.select import profile_link
from loaderbench.errors import ConfigError, OutOfMemory, UnavailableError
from loaderbench.offloading.plan import Plan, plan_for
from loaderbench.offloading.replay import replay
from loaderbench.recording.facts import DeviceFacts, Failure
from loaderbench.recording.model_offload import SavedTrace
from loaderbench.recording.offload_study import OffloadFacts, ResultCheck, SettingFacts
from loaderbench.running.jobs.table import (
    CHECK_OFFLOAD,
    COUNT_OFFLOAD,
    TIME_OFFLOAD,
    TRY_BATCH,
    OffloadRequest,
    TrialRequest,
)
from loaderbench.running.supervisor import JobFailed, KeptChild
from loaderbench.studies.kept import Say, told
from loaderbench.studies.memory import NUM_STEPS
from loaderbench.studies.offload_plan import NUM_ROUNDS, OffloadPlan

BY_FLOPS = "the step's time is shared out by FLOPs; operators without a formula, such as batch norm, take none"


class Runs(Protocol):
    """A context manager that gives a setting's figures."""

    num_rounds: int
    """Turns of each setting."""

    def __enter__(self) -> Runs: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(self, facts: SettingFacts, trace: SavedTrace, plan: Plan | None) -> SettingFacts:
        """The facts with one more turn; `plan` None: without offloading.

        Raises:
            ConfigError: the request is wrong.
            UnavailableError: the device does not start.
        """
        ...

    def say(self, facts: SettingFacts) -> None:
        """Say what the last turn gave. Called once it is kept: an interrupt behind the line loses nothing."""
        ...

    def told(self, facts: OffloadFacts) -> OffloadFacts:
        """The study's facts with what is known of device and model by now."""
        ...

    def check(self, batch_size: int, plan: Plan) -> ResultCheck | str:
        """Compare a step under the plan with one without offloading; why it cannot be done."""
        ...


def step_seconds(facts: SettingFacts) -> float | None:
    """Mean seconds of a step so far; None where there is none, or it failed."""
    if facts.failure is not None:
        return None
    if facts.replay is not None:
        return facts.replay.step_s
    return float(np.concatenate([turn.step_s for turn in facts.turns]).mean()) if facts.turns else None


class Replays:
    """Replays over an emulated card, by its profile's times, link and memory."""

    num_rounds = 1

    def __init__(self, step: Step, times: KnownTimes) -> None:
        self._step, self._times = step, times
        self._link, self._link_source = profile_link(step.device)
        self._taken: dict[int, KnownTime] = {}
        """Batch size → its step's time."""

    def __enter__(self) -> Replays:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to end."""

    def run(self, facts: SettingFacts, trace: SavedTrace, plan: Plan | None) -> SettingFacts:
        """The facts with the replay."""
        known = self._taken[facts.batch_size] = self._times.period_ms(facts.batch_size, image_side(self._step))
        done = replay(trace, plan or plan_for(trace), step_s=known.value / 1e3, link_bytes_per_s=self._link)
        return replace(facts, replay=done)

    def say(self, facts: SettingFacts) -> None:
        """A replay takes no time to speak of."""

    def told(self, facts: OffloadFacts) -> OffloadFacts:
        """With the card's constants and where they come from."""
        origins: dict[tuple[str, str], list[str]] = {}
        for size, one in self._taken.items():
            origins.setdefault((one.label, one.source), []).append(f"{one.value:.4g} ms at batch {size}")
        lines = [f"a step takes {', '.join(known)} ({label}: {source})" for (label, source), known in origins.items()]
        link = f"copies each way run at {self._link / 1e9:.4g} GB/s ({self._link_source})"
        return replace(facts, link_bytes_per_s=self._link, assumptions=(*lines, link, BY_FLOPS))

    def check(self, batch_size: int, plan: Plan) -> ResultCheck | str:
        """A replay has no results."""
        return "an emulated device runs no model"


class TimedRuns:
    """Timed steps, in a measuring process that is kept from one setting to the next."""

    num_rounds = NUM_ROUNDS

    def __init__(self, plan: OffloadPlan, log: Path, say: Say) -> None:
        self._plan, self._say = plan, say
        self._kept = KeptChild(log)
        self._device: DeviceFacts | None = None
        self._unhooked: dict[str, None] = {}

    def __enter__(self) -> TimedRuns:
        self._kept.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.__exit__(kind, error, trace)

    def run(self, facts: SettingFacts, trace: SavedTrace, plan: Plan | None) -> SettingFacts:
        """The facts with one more turn; the first one counts memory too. A failure is kept, and ends its turns."""
        asked = self._plan
        step = replace(asked.step, batch_size=facts.batch_size)
        try:
            above = facts.ledger is not None and facts.ledger.peak_live_bytes > asked.memory_bytes
            if plan is None and above and not facts.turns:
                self._try(step)
            return self._turn(facts, OffloadRequest(step, asked.seed, asked.num_steps, plan, asked.memory_bytes))
        except JobFailed as error:
            self._kept.end()
            if isinstance(error.error, ConfigError | UnavailableError):
                raise error.error from error
            return replace(facts, failure=error.failure)

    def _try(self, step: Step) -> None:
        """Whether a batch fits that should not, by its trace. Raises JobFailed where it does not."""
        request = TrialRequest(step, self._plan.seed, NUM_STEPS, self._plan.memory_bytes, "ledger")
        where = f"batch {step.batch_size} without offloading, {NUM_STEPS} steps below the limit"
        done = self._kept.child(None).ask(TRY_BATCH, request, told(self._say, where))
        if done.above_limit is not None:
            raise JobFailed(Failure(OutOfMemory.__name__, done.above_limit))

    def _turn(self, facts: SettingFacts, request: OffloadRequest) -> SettingFacts:
        where = self._where(facts, len(facts.turns) + 1)
        child = self._kept.child(None)
        done = child.ask(TIME_OFFLOAD, request, told(self._say, where))
        self._device = done.device
        self._unhooked |= dict.fromkeys(done.unhooked)
        peak = facts.peak_live_bytes
        if self._plan.on_host and not facts.turns:
            peak = child.ask(COUNT_OFFLOAD, request, told(self._say, f"{where}, counting memory"))
        return replace(facts, turns=(*facts.turns, done.turn), peak_live_bytes=peak)

    def say(self, facts: SettingFacts) -> None:
        """The time of the last turn, or why there is none."""
        turns, failure = facts.turns, facts.failure
        if failure is not None:
            self._say(f"{self._where(facts, len(turns) + 1)}: {failure.message}", True)
            return
        image_s = float(turns[-1].step_s.mean()) / facts.batch_size
        self._say(f"{self._where(facts, len(turns))}: {image_s * 1e3:.4g} ms per image", len(turns) == 1)

    def _where(self, facts: SettingFacts, turn: int) -> str:
        number, setting = f"[round {turn}/{self.num_rounds}] batch {facts.batch_size}", facts.setting
        if setting is None:
            return f"{number}, without offloading"
        if setting.above_bytes is None:
            return f"{number}, only tensors that would not fit"
        after = f" after {setting.after_fraction:g}" if setting.after_fraction else ""
        return f"{number}, above {setting.above_bytes / 1024:g} KB{after}"

    def told(self, facts: OffloadFacts) -> OffloadFacts:
        """With the device, and what offloading did not see."""
        return replace(facts, device=self._device, unhooked=tuple(self._unhooked))

    def check(self, batch_size: int, plan: Plan) -> ResultCheck | str:
        """Compare a step under the plan with one without offloading; why it cannot be done."""
        step = replace(self._plan.step, batch_size=batch_size)
        request = OffloadRequest(step, self._plan.seed, 1, plan, self._plan.memory_bytes)
        where = f"comparing with a step of batch {batch_size} without offloading"
        try:
            return self._kept.child(None).ask(CHECK_OFFLOAD, request, told(self._say, where))
        except JobFailed as error:
            self._kept.end()
            return error.failure.message
