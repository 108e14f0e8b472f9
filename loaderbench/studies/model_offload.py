"""`loaderbench model offload`: one setting, or the search for the best one, timed or replayed.

docs/model-offload.md defines every figure. On a device that computes nothing all of it is a replay of the model's trace
over the emulated card, whose times are assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from loaderbench.analysis.offload import HOST_MEMORY, UNTRIED, offload_of, outcome_of
from loaderbench.errors import BatchTooSmall, ConfigError, DoesNotFit
from loaderbench.machine import environment
from loaderbench.offloading.plan import plan_for
from loaderbench.offloading.search import EVERYTHING, Candidate, Choice, Search, candidate, candidates
from loaderbench.printable import counted, memory_sizes
from loaderbench.recording.facts import Failure
from loaderbench.recording.model_offload import SavedTrace
from loaderbench.recording.offload_study import OffloadFacts, OffloadSetting, ResultCheck, SettingFacts
from loaderbench.recording.store import LOG_FILE, Store
from loaderbench.running.jobs.table import EXAMINE_DEVICE, TRACE_SAVED, ExamineRequest, SavedTraceRequest
from loaderbench.running.supervisor import Child, JobFailed
from loaderbench.studies.kept import KeptStudy, Say
from loaderbench.studies.measure import quiet
from loaderbench.studies.memory import on_accelerator
from loaderbench.studies.model import host_memory
from loaderbench.studies.offload_plan import OffloadPlan
from loaderbench.studies.offload_runs import Replays, Runs, TimedRuns, step_seconds
from loaderbench.temporary import temporary_folder

EMULATED = (
    "an emulated device runs no model. Each row replays the model's trace (sizes, order, FLOPs) on a "
    "GPU of that memory and link; its times are assumed, so do not use them as measured speeds"
)
NOTHING = OffloadSetting(None, 0.0)
"""Nothing goes for its size; without a limit of memory, nothing at all."""
SMALL_BATCHES = (1, 2)
"""Batch norm on maps of 1×1 needs the second."""

Key = tuple[int, OffloadSetting | None]
"""(batch size, setting): None is without offloading."""


class OffloadStudy(KeptStudy):
    """One setting, or the search for the best. What was timed is kept and stored, however `run` ends."""

    def __init__(self, plan: OffloadPlan, store: Store) -> None:
        self._plan = plan
        super().__init__(store.new_study("model_offload", [plan.step.model, plan.step.mode]))
        self._facts = OffloadFacts(
            step=plan.step,
            seed=plan.seed,
            is_study=plan.is_study,
            on_accelerator=on_accelerator(plan.step),
            on_host=plan.on_host,
            environment=environment(),
            device=None,
            memory_bytes=plan.memory_bytes,
            memory_source=plan.memory_source,
            planned_bytes=plan.planned_bytes,
            host_free_bytes=None,
            not_measured=None if plan.times is None else EMULATED,
            not_compared=UNTRIED,
        )
        self._known: dict[Key, SettingFacts] = {}
        self._small: Key | None = None
        """Of the smallest batch."""

    # -- what is known ---------------------------------------------------------------------------------------

    def facts(self) -> OffloadFacts:
        """What is known so far."""
        return replace(
            self._facts,
            batch_one=None if self._small is None else self._known.get(self._small),
            without=self._known.get(self._without),
            settings=tuple(one for one in self._known.values() if one.setting is not None),
        )

    @property
    def _without(self) -> Key:
        return self._plan.step.batch_size, None

    @property
    def begun(self) -> bool:
        return bool(self._known)

    @property
    def num_timed(self) -> int:
        """Settings with a time."""
        return sum(bool(one.turns) or one.replay is not None for one in self.facts().settings)

    @property
    def kept(self) -> str:
        return f"{counted(self.num_timed, 'setting was timed and is', 'settings were timed and are')} kept"

    @property
    def failed(self) -> bool:
        """Whether a setting failed, or none fits."""
        outcomes = [outcome_of(self._facts, one)[0] for one in self.facts().settings]
        return "failed" in outcomes or "fits" not in outcomes

    # -- the whole -------------------------------------------------------------------------------------------

    def run(self, say: Say) -> None:
        """Trace, plan, then time or replay.

        Raises:
            ConfigError: the model is unknown, does not take the images, or cannot fit whatever is offloaded.
            UnavailableError: the model cannot be traced.
            CaseFailed: the results cannot be written.
        """
        trace, small = self._traces(say)
        choice = self._choose_from(trace)
        if self._plan.times is None:
            self._look_at_host(choice.found)
        self._folder.begin()
        with self._runs(say) as runs:
            timed = (small, trace) if self._plan.is_study else (trace,)
            traces = {one.batch_size: one for one in timed if one is not None}
            for size, one in traces.items():
                key = self._begin(size, candidate(one, NOTHING, 0, None), without=True)
                self._run(runs, key, one)
            self._over(runs, trace, choice)
            self._further(runs, traces, choice)
            self._check(runs, small, choice)
        self._facts = replace(self._facts, interrupted=False)

    def _runs(self, say: Say) -> Runs:
        plan = self._plan
        if plan.times is not None:
            return Replays(plan.step, plan.times)
        return TimedRuns(plan, self._log, say)

    def _traces(self, say: Say) -> tuple[SavedTrace, SavedTrace | None]:
        """(that of the batch, that of the smallest one in a study, and to compare results of where the batch does not
        fit). Nothing is stored before the batch is known to be
        possible. Raises what is wrong with the request."""
        say("tracing the tensors that the step saves", False)
        size, small = self._plan.step.batch_size, None
        try:
            with temporary_folder() as folder, Child(folder / LOG_FILE) as child:
                trace = self._trace(child, size)
                if self._plan.is_study or self._is_too_large(trace):
                    small = trace if size == SMALL_BATCHES[0] else self._small_trace(child)
                if self._plan.is_study and small is not None:
                    self._small = small.batch_size, None
                if self._plan.times is not None:
                    device = child.ask(EXAMINE_DEVICE, ExamineRequest(self._plan.step, ()), quiet).device
                    self._facts = replace(self._facts, device=device)
        except JobFailed as error:
            raise error.error from error
        return trace, small

    def _is_too_large(self, trace: SavedTrace) -> bool:
        """Whether its batch does not fit without offloading, on a device that computes."""
        peak = candidate(trace, NOTHING, 0, None).ledger.peak_live_bytes
        return self._plan.times is None and peak > self._plan.memory_bytes

    def _trace(self, child: Child, batch_size: int) -> SavedTrace:
        step = replace(self._plan.step, batch_size=batch_size)
        return child.ask(TRACE_SAVED, SavedTraceRequest(step, self._plan.seed, self._facts.on_accelerator), quiet)

    def _small_trace(self, child: Child) -> SavedTrace:
        try:
            return self._trace(child, SMALL_BATCHES[0])
        except JobFailed as error:
            if not isinstance(error.error, BatchTooSmall):
                raise
            return self._trace(child, SMALL_BATCHES[1])

    def _choose_from(self, trace: SavedTrace) -> Choice:
        """The settings to choose from. Raises ConfigError where there is none."""
        plan = self._plan
        try:
            if plan.is_study:
                candidate(trace, EVERYTHING, plan.memory_bytes, plan.planned_bytes)
                return candidates(trace, plan.memory_bytes, plan.planned_bytes)
            return Choice((candidate(trace, plan.setting, plan.memory_bytes, plan.planned_bytes),), 1)
        except DoesNotFit as error:
            raise ConfigError(str(error)) from error

    # -- the host's memory -----------------------------------------------------------------------------------

    def _look_at_host(self, found: tuple[Candidate, ...]) -> None:
        """Raises ConfigError where the host lacks the memory that every setting needs there."""
        free, source = host_memory()
        if free is None:
            return
        self._facts = replace(self._facts, host_free_bytes=free)
        needs = min(map(self._host_needs, found))
        if needs > free:
            needed, there = memory_sizes(needs, free)
            raise ConfigError(
                f"offloading needs {needed} of host memory, and {there} are free ({source} minus 1 GiB for the "
                "process): give a smaller --batch-size or a larger --offload-above"
            )

    def _host_needs(self, found: Candidate) -> int:
        """Bytes of this machine's memory; where the device computes in it, its own share too."""
        return found.ledger.host_reserved_bytes + (found.ledger.peak_live_bytes if self._plan.on_host else 0)

    # -- one after the other ---------------------------------------------------------------------------------

    def _begin(self, batch_size: int, found: Candidate, *, without: bool = False) -> Key:
        """Know of a setting, and whether it can be done at all."""
        key: Key = batch_size, None if without else found.setting
        facts = SettingFacts(batch_size, key[1], found.ledger)
        free, needs, peak = self._facts.host_free_bytes, self._host_needs(found), found.ledger.peak_live_bytes
        if free is not None and needs > free and not without:
            needed, there = memory_sizes(needs, free)
            failure = Failure(HOST_MEMORY, f"it needs {needed} of host memory; {there} are free")
            facts = replace(facts, failure=failure, tried=False)
        elif self._plan.times is not None and peak > self._plan.memory_bytes:
            needed, limit = memory_sizes(peak, self._plan.memory_bytes)
            failure = Failure(DoesNotFit.__name__, f"does not fit: it needs {needed} of {limit}")
            facts = replace(facts, failure=failure, tried=False)
        self._known.setdefault(key, facts)
        return key

    def _run(self, runs: Runs, key: Key, trace: SavedTrace, found: Candidate | None = None) -> None:
        """One turn of a setting."""
        if not self._known[key].tried:
            return
        self._known[key] = runs.run(self._known[key], trace, None if found is None else found.plan)
        self._facts = runs.told(self._facts)
        self.store()
        runs.say(self._known[key])

    def _over(self, runs: Runs, trace: SavedTrace, choice: Choice) -> None:
        """A turn of the setting that was asked for, or of those of the search and of the curve."""
        if not self._plan.is_study:
            (asked,) = choice.found
            self._run(runs, self._begin(trace.batch_size, asked), trace, asked)
            return
        self._facts = replace(self._facts, num_settings=choice.num_settings)
        search = Search(trace, choice, hides=not self._plan.on_host)
        seconds: dict[OffloadSetting, float | None] = {}
        while (one := search.next(seconds)) is not None:
            key = self._begin(trace.batch_size, one)
            self._run(runs, key, trace, one)
            seconds[one.setting] = step_seconds(self._known[key])
            self._facts = replace(self._facts, num_searched=len(seconds))
        for one in choice.found:
            if not one.setting.after_fraction and one.setting not in seconds:
                self._run(runs, self._begin(trace.batch_size, one), trace, one)

    def _further(self, runs: Runs, traces: Mapping[int, SavedTrace], choice: Choice) -> None:
        """Further rounds over all that was timed, in the other order each time: slow drift of the machine shows in the
        intervals."""
        plans = {one.setting: one for one in choice.found}
        order = list(self._known)
        self._facts = replace(self._facts, num_rounds=1)
        for number in range(1, runs.num_rounds):
            for key in order[:: -1 if number % 2 else 1]:
                if self._known[key].failure is None:
                    self._run(runs, key, traces[key[0]], None if key[1] is None else plans[key[1]])
            self._facts = replace(self._facts, num_rounds=number + 1)

    # -- whether the results are right -----------------------------------------------------------------------

    def _check(self, runs: Runs, small: SavedTrace | None, choice: Choice) -> None:
        """Compare the answer's results with those without offloading; where they differ, the next best is the answer.
        A batch that does not fit without is compared by the smallest one, with everything on the host."""
        size, why = self._plan.step.batch_size, None
        plans = {one.setting: one.plan for one in choice.found}
        fits = self._known[self._without].failure is None
        of_small: ResultCheck | None = None
        while (key := self._answer()) is not None and self._known[key].check is None:
            found: ResultCheck | str
            if fits:
                assert key[1] is not None
                found = runs.check(size, plans[key[1]])
            elif small is None or small.batch_size == size:
                found = f"batch {size} does not fit without offloading"
            else:
                found = of_small or runs.check(small.batch_size, plan_for(small, above_bytes=0))
                of_small = None if isinstance(found, str) else found
            if isinstance(found, str):
                why = found
                break
            self._known[key] = replace(self._known[key], check=found)
            self.store()
        self._facts = replace(self._facts, not_compared=why)

    def _answer(self) -> Key | None:
        """The best of a study, or the setting that was asked for; None where there is none."""
        found = offload_of(self.facts())
        fitting = [row for row in found.thresholds if row.outcome == "fits"]
        row = found.best if self._plan.is_study else next(iter(fitting), None)
        if row is None or row.after_fraction is None:
            return None
        return row.batch_size, OffloadSetting(row.above_bytes, row.after_fraction)
