"""`loaderbench model fit`: the largest batch that fits, predicted, then tried in fresh processes below the limit.

docs/model-memory.md defines every figure.
"""

from __future__ import annotations

import math
import shutil
import time
from contextlib import ExitStack
from dataclasses import replace

from loaderbench.analysis.batch_search import next_batch
from loaderbench.analysis.memory import MOST_BATCH, MemoryLine, line_through
from loaderbench.analysis.model_memory import fit_of, outcome_of
from loaderbench.errors import BatchTooSmall, ConfigError, OutOfMemory
from loaderbench.machine import environment, oom_kills
from loaderbench.printable import counted, memory_sizes
from loaderbench.recording.facts import Failure
from loaderbench.recording.model_memory import CapHow, MemoryTrace, ModelFit, ModelFitFacts, TrialFacts
from loaderbench.recording.store import LOG_FILE, Store
from loaderbench.recording.studies import StudyRecord
from loaderbench.running.jobs.table import TRY_BATCH, TrialRequest
from loaderbench.running.supervisor import Child, JobFailed
from loaderbench.studies.fit_plan import FitPlan
from loaderbench.studies.kept import KeptStudy, Say, told
from loaderbench.studies.measure import same_machine
from loaderbench.studies.memory import CHECK_BATCH, LINE_BATCHES, NUM_STEPS, on_accelerator, predict_traces
from loaderbench.temporary import temporary_folder

HOPELESS = 2.0
"""Predicted ÷ available memory of a batch of one above which no trial is run: predictions were up to 1.5 times off for
tiny models, and far less for others (docs/model-memory.md)."""
RLIMIT_BESIDE = 20 << 20
"""What a trial's data probably grow by beside PyTorch's allocations: oneDNN's kernels and scratchpads, the heap."""


class FitStudy(KeptStudy):
    """The search for one model's largest batch. Each trial is stored at once; `resume` continues an interrupted one.

    Its folder is held until `run` ends, so that nobody continues what is still running.
    """

    def __init__(self, plan: FitPlan, store: Store, *, resume: bool = False) -> None:
        """Raises ConfigError where the fit to be continued is still running."""
        self._asked_to_resume = resume
        self._holding = ExitStack()
        begun = self._continued(store, plan) if resume else None
        self._is_new = begun is None
        if begun is None:
            super().__init__(store.new_study("model_fit", [plan.step.model, plan.step.mode]))
            self._facts = ModelFitFacts(
                step=plan.step,
                seed=plan.seed,
                on_accelerator=on_accelerator(plan.step),
                environment=environment(),
                device=None,
                memory_bytes=plan.memory_bytes,
                memory_source=plan.memory_source,
                memory_asked=plan.memory_asked,
                how=plan.how,
                traces=(),
                trace_failure=None,
                not_measured=plan.not_tried,
                most=MOST_BATCH,
                interrupted=True,
            )
        else:
            super().__init__(store.open_study(begun))
            facts = begun.facts
            assert isinstance(facts, ModelFitFacts)
            self._facts = facts

    def _continued(self, store: Store, plan: FitPlan) -> StudyRecord | None:
        """The interrupted fit, held, as it is now; None where there is none."""
        begun = _unfinished(store, plan)
        if begun is None:
            return None
        self._holding.enter_context(store.open_study(begun).held())
        now = _unfinished(store, plan)  # it may have gone on, or ended, before it was held
        if now is not None and now.study_id == begun.study_id:
            return now
        self._holding.close()
        return None

    @property
    def trials(self) -> tuple[TrialFacts, ...]:
        """Those that were done."""
        return self._facts.trials

    @property
    def kept(self) -> str:
        return f"{counted(len(self.trials), 'trial is', 'trials are')} kept; --resume continues"

    @property
    def failed(self) -> bool:
        """Whether no batch fits, or the largest one was not confirmed."""
        found = self.findings()
        return not found.largest_batch or not (found.confirmed or found.not_measured)

    def run(self, say: Say) -> None:
        """Predict, then try.

        Raises:
            ConfigError: the model is unknown, does not take the images, or needs far more memory than there is.
            CaseFailed: the results cannot be written.
        """
        with self._holding:
            self._run(say)

    def _run(self, say: Say) -> None:
        if self._asked_to_resume and self._is_new:
            say("no interrupted fit with these options is stored: starting a new one", True)
        if not self._is_new:
            taken = counted(len(self.trials), "trial is", "trials are")
            say(f"{taken} reused from {self._folder.study_id}", True)
        if self._is_new:  # from its first moment on, so that no `--resume` begins another one beside it
            self._holding.enter_context(self._folder.held())
            self.store()
        if not self._facts.traces:
            say("predicting", False)
            try:
                self._predict()
            except ConfigError:
                if not self.trials:  # the model is refused: there is nothing to keep
                    shutil.rmtree(self._folder.path, ignore_errors=True)
                raise
        self.store()
        line = line_through(self._facts.traces)
        if line is not None:
            self._check_possible(line)
            say(f"predicted: batch {line.largest_batch(self._facts.memory_bytes, self._facts.most)}", True)
        if self._facts.not_measured is None:
            while (batch_size := self._next(line)) is not None:
                trial = self._try(batch_size, say)
                self._facts = replace(self._facts, trials=(*self._facts.trials, trial))
                self.store()
                ended = f"{outcome_of(trial).replace('_', ' ')}, {math.ceil(trial.wall_s or 0)} s"
                say(f"trial {len(self._facts.trials)}, batch {batch_size}: {ended}", True)
        self._facts = replace(self._facts, interrupted=False)
        self.store()

    def _check_possible(self, line: MemoryLine) -> None:
        """Raises ConfigError, and keeps nothing, where a batch of one is predicted to need far more than there is."""
        needed, limit = line.peak_bytes(1), self._facts.memory_bytes
        if self.trials or needed <= HOPELESS * limit:
            return
        shutil.rmtree(self._folder.path, ignore_errors=True)
        peak, there = memory_sizes(needed, limit)
        raise ConfigError(
            f"does not fit: {self._facts.step.model} is predicted to need {peak} of {there} for one image; "
            "give a larger --memory, a smaller --input-size or another model"
        )

    def _next(self, line: MemoryLine | None) -> int | None:
        facts = self._facts
        beside = RLIMIT_BESIDE if facts.how == "rlimit" else 0
        return next_batch(facts.trials, line, facts.memory_bytes, beside_bytes=beside, most=facts.most)

    def _predict(self) -> None:
        """The traces of the line. A model that no batch of which can be traced is tried without a guess."""
        traces: tuple[MemoryTrace, ...] = ()
        failure: Failure | None = None
        try:
            with temporary_folder() as folder, Child(folder / LOG_FILE) as child:
                sizes = (*LINE_BATCHES, CHECK_BATCH)
                traces = predict_traces(child, self._facts.step, sizes, self._facts.seed, probed=False)
        except JobFailed as error:
            if isinstance(error.error, ConfigError):
                raise error.error from error
            failure = error.failure
        self._facts = replace(self._facts, traces=traces, trace_failure=failure)

    def _try(self, batch_size: int, say: Say) -> TrialFacts:
        where = f"trial {len(self._facts.trials) + 1}, batch {batch_size}"

        say(f"{where}: starting", False)
        how: CapHow = "rlimit" if self._facts.how == "rlimit" else "ledger"
        step = replace(self._facts.step, batch_size=batch_size)
        request = TrialRequest(step, self._facts.seed, NUM_STEPS, self._facts.memory_bytes, how)
        begun, kills = time.monotonic(), oom_kills()
        trial = TrialFacts(batch_size, self._facts.how, NUM_STEPS, None, None, None)
        try:
            with Child(self._log) as child:
                done = child.ask(TRY_BATCH, request, told(say, where))
            self._facts = replace(self._facts, device=done.device)
            failure = None if done.above_limit is None else Failure(OutOfMemory.__name__, done.above_limit)
            peak, data = done.memory.peak_live_bytes, done.memory.peak_data_bytes
            trial = replace(trial, peak_live_bytes=peak, peak_data_bytes=data, failure=failure)
        except JobFailed as error:
            if isinstance(error.error, ConfigError):
                self._facts = replace(self._facts, interrupted=False)
                self.store()
                raise self._wrong(error.error) from error
            trial = replace(trial, failure=error.failure)
        now = oom_kills()
        killed = None if kills is None or now is None else now - kills
        return replace(trial, oom_kills=killed, wall_s=time.monotonic() - begun)

    def _wrong(self, error: ConfigError) -> ConfigError:
        """The error of a batch of one that batch norm refuses, in terms of the memory that the next one needs."""
        line = line_through(self._facts.traces)
        if not isinstance(error, BatchTooSmall) or line is None:
            return error
        needs, limit = memory_sizes(line.peak_bytes(2), self._facts.memory_bytes)
        return ConfigError(
            f"does not fit: {self._facts.step.model} needs about {needs} of {limit} for batch 2, the smallest "
            "that trains on such small images; give a larger --memory"
        )

    def facts(self) -> ModelFitFacts:
        """What is known so far."""
        return self._facts

    def findings(self) -> ModelFit:
        """What is known so far."""
        return fit_of(self._facts)


def _unfinished(store: Store, plan: FitPlan) -> StudyRecord | None:
    """The newest fit of the same request on this machine, where it was interrupted."""
    here = environment()
    for stored in reversed(store.studies()):
        study = stored.study
        if study is None or not isinstance(study.facts, ModelFitFacts):
            continue
        facts = study.facts
        same = (facts.step, facts.seed, facts.memory_asked, facts.how) == (
            plan.step, plan.seed, plan.memory_asked, plan.how,
        )  # fmt: skip
        if same and same_machine(facts.environment, here):
            return study if facts.interrupted else None
    return None
