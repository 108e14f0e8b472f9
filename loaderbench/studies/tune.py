"""`loaderbench tune`: the best loader, decoder, workers and prefetch for a data set and a device, in a stated time.

A decoder that can decode large crops smaller is tried with that and without, and so is a loader of PIL images with
samples that go straight into their batch. The first changes pixels: by how much is measured before the finals.

The search begins with what is likeliest (studies/likely.py): settings that stored runs found fast or advised, then
those whose loader alone is fastest, by a short look at each without a device.

Successive halving (Jamieson & Talwalkar 2016, "Non-stochastic best arm identification"): in each rung all remaining
settings are measured in turn for the same time, in a new random order, and the faster half goes on. The last few and
the default then take turns as separate runs, which are stored; their intervals are the answer.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loaderbench import plugins
from loaderbench.analysis.comparison import rate_of_runs, rates
from loaderbench.analysis.tuning import tuned
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import SCALED, Case
from loaderbench.cases.options import RESULTS, TUNE_BUDGET_S
from loaderbench.cases.study import read_options
from loaderbench.errors import CaseFailed
from loaderbench.findings.table import words
from loaderbench.lacking import require_run
from loaderbench.recording.facts import ScaleProbe
from loaderbench.recording.kinds import with_facts
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store, StudyFolder
from loaderbench.recording.studies import Final, StudyRecord, TuneFacts, TuneScreen, TuneTrial, Tuning
from loaderbench.reporting.live import cell_of_notebook
from loaderbench.running.jobs.table import COMPARE_SCALES, SCREEN, ScalesRequest, ScreenRequest
from loaderbench.running.supervisor import JobFailed, KeptChild
from loaderbench.studies.kept import record_in
from loaderbench.studies.likely import fair_order, likely, ranked, representatives
from loaderbench.studies.measure import measure_case, measure_in, quiet
from loaderbench.studies.request import (
    Folder,
    Say,
    no_note,
    no_progress,
)
from loaderbench.studies.tune_plan import check_tuning, describe, plan_tuning
from loaderbench.temporary import temporary_folder

PREFETCHES = (2, 4)
"""Prefetch values that are searched by default."""
SEARCH_FRACTION = 0.6
"""Fraction of the budget for the looks and the rungs; the rest is for the finals."""
SCREEN_FRACTION, SCREEN_S = 0.2, 0.5
"""Fraction of the budget for looks at the loaders alone, and seconds of one."""
MIN_TRIAL_S = 2.0
"""Least seconds of measuring a setting in the first rung; with half the settings a rung measures twice as long."""
NUM_FINALISTS = 2
FINAL_ROUNDS = 3
"""Student's t over two rounds is 12.7 standard errors wide; over three 4.3."""
TRIAL_START_S = 2.5
"""Seconds of a trial besides measuring: starting the workers, warming up."""
START_S = 8.0
"""Seconds of a stored run besides measuring: importing torch, building, ending."""


def tune(
    dataset: Folder | None = None,
    *,
    budget_s: float = TUNE_BUDGET_S,
    results: Folder = RESULTS,
    say: Say = no_note,
    **options: Any,
) -> Tuning:
    """Find the fastest loader, decoder, workers and prefetch: `loaderbench tune` for Python.

    Args:
        dataset, results, say, options: as in `loaderbench.run`; `loader`, `decoder`, `workers` and `prefetch` are lists
            of values to try.
        budget_s: seconds for the whole search, finals included.

    Raises:
        ConfigError: an option is unknown or wrong, or the data set does not exist.
        CaseFailed: no setting could be measured.
        KeyboardInterrupt: the user interrupts the search; the runs measured so far are stored.
    """
    require_run("loaderbench.tune")
    asked = read_options({"prefetch": PREFETCHES, **options}, of="tune")
    check_tuning(asked, budget_s)
    cell = cell_of_notebook() if say is no_note else None
    say = say if cell is None else cell.show
    cases, default = plan_tuning(asked, dataset, on_note=say, progress=no_progress)
    study = Tune(cases, default, budget_s, Store(results), say).run()
    if cell is not None:
        cell.clear()
    assert isinstance(study.findings, Tuning)
    return with_facts(study.findings, study.facts)


@dataclass
class Trial:
    """One setting and its results in each rung that it was in."""

    case: Case
    runs: list[str] = field(default_factory=list)
    """Ids of its runs in the study's own folder."""
    rates: list[float] = field(default_factory=list)
    """Samples/s."""
    failure: str | None = None


class Tune:
    """A search through settings. Results are stored as they come in, so an interruption keeps them."""

    def __init__(self, cases: Sequence[Case], default: Case, budget_s: float, store: Store, say: Say) -> None:
        """`say` gets a line for each measurement."""
        self._cases, self._default, self._budget_s, self._store, self._say = cases, default, budget_s, store, say
        self._folder: StudyFolder = store.new_study("tune", [str(default.subject.resolution or "")])
        self._begun = time.monotonic()
        self._trials: list[Trial] = []
        self._finals: list[Case] = []
        self._records: dict[str, list[RunRecord]] = {}
        self._num_rungs = 0
        self._screens: list[TuneScreen] = []
        self._settings = list(cases)
        self._scales: dict[str, ScaleProbe] = {}
        self._no_scales: str | None = None
        self.num_failed = 0
        """Settings that failed when looked at or measured; not those that this machine lacks something for."""

    def run(self) -> StudyRecord:
        """Search for the fastest setting within about the budget, the finals included.

        Raises:
            CaseFailed: no setting could be measured, or the results cannot be written.
        """
        self._keep()
        try:
            self._search()
            self._race()
        finally:
            study = self._keep()
        if not any(rate_of_runs(rates(records)) for records in self._records.values()):
            raise CaseFailed("no finalist could be measured; see `loaderbench list`")
        return study

    def _keep(self) -> StudyRecord:
        """Store what was measured so far, so that even a kill does not lose it."""
        study = self.study()
        self._folder.write(study)
        return study

    def facts(self) -> TuneFacts:
        """Facts of what was measured so far."""
        num_rungs = max(self._num_rungs, 1)  # count an unfinished first rung: it is all there is
        return TuneFacts(
            default=self._default,
            num_settings=len(self._settings),
            budget_s=self._budget_s,
            spent_s=time.monotonic() - self._begun,
            num_rungs=self._num_rungs,
            trials=tuple(TuneTrial(trial.case, tuple(trial.runs[:num_rungs]), trial.failure) for trial in self._trials),
            finals=tuple(
                Final(case, tuple(one.run_id for one in self._records[case.key]), case.key == self._default.key)
                for case in self._finals
            ),
            screens=tuple(self._screens),
            untried=tuple(case.feed.setting for case in self._untried()),
            scales=dict(self._scales),
            no_scales=self._no_scales,
        )

    def _untried(self) -> list[Case]:
        """Settings that were not measured, and are not known to fail."""
        tried = {trial.case.key for trial in self._trials if trial.runs or trial.failure}
        tried |= {case.key for case in self._finals if self._records[case.key]}
        return [case for case in ranked(self._settings, (), self._screens) if case.key not in tried]

    def study(self) -> StudyRecord:
        """The study as it is stored."""
        facts = self.facts()
        finals = [record for records in self._records.values() for record in records]
        own = [run.record for run in self._folder.runs.runs() if run.record is not None]
        findings = tuned(facts, {record.run_id: record for record in (*finals, *own)})
        runs, own_runs = ([record.run_id for record in records] for records in (finals, own))
        return record_in(self._folder, facts, findings, runs, own_runs)

    def best_so_far(self) -> tuple[Case, float, str] | None:
        """(the fastest setting so far, samples/s, by what it was measured): by the finals once each finalist had a run,
        else by the last short look at each, else by the loaders alone. None: nothing was measured."""
        raced = {case.key: rate_of_runs(rates(self._records[case.key])) for case in self._finals}
        finals = [(case, rate.value, "the finals so far") for case in self._finals if (rate := raced[case.key])]
        looks = [
            (trial.case, trial.rates[-1], f"a short measurement (rung {len(trial.rates)})")
            for trial in self._trials
            if trial.rates
        ]
        alone = [
            (one.case, one.samples_per_s, "the loader alone, without a device")
            for one in self._screens
            if one.samples_per_s is not None
        ]
        found = finals if finals and len(finals) == len(self._finals) else looks or alone
        return max(found, key=lambda one: one[1], default=None)

    # -- the rungs -----------------------------------------------------------------------------------------

    def _search(self) -> None:
        """Run rungs, each with the faster half of the one before, until the time for the search is up."""
        seed, deadline = self._default.effort.seed, time.monotonic() + SEARCH_FRACTION * self._budget_s
        first = likely(self._cases, self._store)
        known = {case.key for case in self._cases}
        self._settings = fair_order([*self._cases, *(case for case in first if case.key not in known)], seed)
        if first:
            self._say(f"starting with the {len(first)} that stored runs found fast or advised: {describe(first[0])} …")
        with (
            temporary_folder() as folder,
            KeptChild(folder / "worker.log") as kept,
        ):
            self._screen(kept)
            in_order = ranked(self._settings, first, self._screens)
            tried = in_order[: num_that_fit(len(in_order), deadline - time.monotonic())]
            if not tried:
                raise CaseFailed(f"no setting could be measured: {self._screens[0].failure}")
            if len(tried) < len(self._settings):
                self._say(
                    f"{len(tried)} of {len(self._settings)} settings fit into {self._budget_s:.0f} s; give a larger "
                    "--budget to try more"
                )
            self._trials = left = [Trial(case) for case in tried]
            while len(left) > NUM_FINALISTS or self._num_rungs == 0:
                drawn = random.Random(f"{seed} rung {self._num_rungs}").sample(left, len(left))
                if not self._rung(drawn, MIN_TRIAL_S * 2**self._num_rungs, deadline, kept):
                    break  # out of time within the rung: the rung before decides
                self._num_rungs += 1
                self._keep()
                alive = sorted((trial for trial in left if trial.failure is None), key=lambda trial: -trial.rates[-1])
                left = alive[: max(NUM_FINALISTS, math.ceil(len(alive) / 2))]
                if len(alive) <= NUM_FINALISTS:
                    break
            self._choose_finalists()
            self._compare_pixels(kept)

    def _screen(self, kept: KeptChild) -> None:
        """A look at each loader alone, until the time for it is up. Not where reading would change what is measured."""
        if len(self._settings) <= NUM_FINALISTS or self._default.subject.cache == "as-is":
            return
        deadline = time.monotonic() + SCREEN_FRACTION * self._budget_s
        todo = representatives(self._settings)
        for number, case in enumerate(todo, 1):
            if time.monotonic() > deadline:
                self._say(
                    f"measured {number - 1} of {len(todo)} loaders alone; the others are ranked by those of their kind"
                )
                return
            try:
                rate = kept.child(case.feed.decoder).ask(SCREEN, ScreenRequest(case, SCREEN_S), quiet)
            except JobFailed as error:
                self._count(error)
                self._screens.append(TuneScreen(case, None, error.failure.message))
                self._say(f"alone: {describe(case)}: {error.failure.message}")
                kept.end()
                continue
            self._screens.append(TuneScreen(case, rate))
            self._say(f"alone, {number} of {len(todo)}: {describe(case)}: {rate:,.0f} images/s")

    def _count(self, error: JobFailed) -> None:
        self.num_failed += error.status == "failed"

    def _rung(self, trials: Sequence[Trial], trial_s: float, deadline: float, kept: KeptChild) -> bool:
        """Measure each trial once. False where the time was up before all were measured."""
        for number, trial in enumerate(trials, 1):
            if time.monotonic() + trial_s > deadline:
                return False
            case = trial.case.changed(arms=(Arm.REAL,), duration_s=trial_s, steps=None, warmup=None, ci_target=0.01)
            where = f"rung {self._num_rungs + 1}"
            try:
                record = measure_in(kept.child(case.feed.decoder), case, self._folder.runs)
            except JobFailed as error:
                trial.failure = error.failure.message
                self._count(error)
                self._say(f"{where}: {describe(trial.case)}: {trial.failure}")
                kept.end()
                continue
            trial.runs.append(record.run_id)
            if record.throughput is None:
                trial.failure = "no step completed within a trial"
                continue
            rate = record.throughput.value
            trial.rates.append(rate)
            self._say(f"{where}, {number} of {len(trials)}: {describe(trial.case)}: {rate:,.0f} images/s")
        return True

    # -- the finals ----------------------------------------------------------------------------------------

    def _choose_finalists(self) -> None:
        """The fastest few and the default.

        Raises:
            CaseFailed: no setting could be measured.
        """
        default, known = self._default, max(self._num_rungs, 1)
        ranked = sorted(
            (trial for trial in self._trials if trial.rates),
            key=lambda trial: (-len(trial.rates[:known]), -trial.rates[:known][-1]),
        )
        if not ranked:
            raise CaseFailed(f"no setting could be measured: {self._trials[0].failure}")
        chosen = [trial.case for trial in ranked[:NUM_FINALISTS]]
        self._finals = [*chosen, *([default] if default.key not in {case.key for case in chosen} else [])]
        self._records = {case.key: [] for case in self._finals}

    def _compare_pixels(self, kept: KeptChild) -> None:
        """What scaled decoding changes, of the finalists that do it."""
        for case in self._finals:
            name = case.feed.decoder or ""
            if case.feed.decode_scale != SCALED or name in self._scales:
                continue
            if plugins.LOADERS.find(case.feed.loader).traits.format is not None:
                self._no_scales = words("images_in_containers", {})
                continue
            try:
                self._scales[name] = kept.child(name).ask(COMPARE_SCALES, ScalesRequest(case), quiet)
            except JobFailed as error:
                self._no_scales = error.failure.message
                self._say(f"the pixels of {name} could not be compared: {self._no_scales}")
                kept.end()

    def _race(self) -> None:
        """The finalists take turns as separate runs."""
        default = self._default
        left_s = self._budget_s - (time.monotonic() - self._begun)
        each_s = max(4.0, left_s / (FINAL_ROUNDS * len(self._finals)) - START_S)
        for number in range(FINAL_ROUNDS):
            drawn = random.Random(f"{default.effort.seed} {number}").sample(self._finals, len(self._finals))
            for case in drawn:
                self._say(f"final, round {number + 1} of {FINAL_ROUNDS}: {describe(case)}")
                timed = case.changed(repeat=number, duration_s=each_s)
                record = measure_case(timed, self._store, lambda case, message: None)
                self._records[case.key].append(record)
                if record.failure is not None:
                    self.num_failed += record.status == "failed"
                    which = "the default" if case.key == default.key else describe(case)
                    self._say(f"{which} {record.status}: {record.failure.message}")
                self._keep()


def num_that_fit(num: int, seconds: float) -> int:
    """How many of `num` settings fit into the seconds for the rungs; the finalists in any case."""
    while num > NUM_FINALISTS and _search_s(num) > seconds:
        num -= 1
    return num


def _search_s(num: int) -> float:
    """Seconds that the rungs take with `num` cases."""
    seconds, rung = 0.0, 0
    while num > NUM_FINALISTS or rung == 0:
        seconds += num * (MIN_TRIAL_S * 2**rung + TRIAL_START_S)
        num, rung = max(NUM_FINALISTS, math.ceil(num / 2)), rung + 1
    return seconds
