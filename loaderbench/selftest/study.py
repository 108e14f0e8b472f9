"""`loaderbench selftest`: builds known causes into runs on this machine and checks the verdicts.

Truth comes from a stopwatch (selftest/truth.py): the wall time of the run with the cause compared with the same run
without it, taken in turns. The estimators see only the recording of a run. Every case's run is kept in the study's own
folder, beside what was built in and what the stopwatch showed. docs/validation.md explains the method and how to read
the matrix; analysis/selftest.py scores it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from loaderbench import plugins
from loaderbench.analysis.selftest import alike_outcome, is_confidently_wrong, is_right, outcome_of, score
from loaderbench.cases.case import Case, Effort, Feed, Step, Subject
from loaderbench.devices.profile import for_mode
from loaderbench.errors import UnavailableError
from loaderbench.images.manifest import resolve_dataset
from loaderbench.machine import usable_cpus
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store, StudyFolder
from loaderbench.recording.studies import (
    Left,
    ScenarioFacts,
    ScenarioOutcome,
    SelfTest,
    SelfTestFacts,
    StudyRecord,
)
from loaderbench.running.supervisor import Child, JobFailed, KeptChild
from loaderbench.selftest import disturbers, slow_fuse, throttled_loop
from loaderbench.selftest.bench import BedMissing, Bench
from loaderbench.selftest.jobs import ALIKE, AlikeRequest
from loaderbench.selftest.request import FIRST_BATCH, MODEL, SelfTestRequest
from loaderbench.selftest.scenarios import Combination, Scenario, combinations, scenarios
from loaderbench.studies.kept import record_in
from loaderbench.studies.measure import measure_in, quiet
from loaderbench.temporary import temporary_folder

RESOLUTION, WORKERS = 256, 2
ALIKE_BATCH = 64
"""Batch size where arms are compared."""
QUICK_SECONDS, FULL_SECONDS = (7.5, 0.6), (12.0, 1.0)
"""(seconds of measuring a case, seconds of each of the stopwatch's two turns on each side)."""
BESIDE = 4.0
"""Beside busy processes a case is measured for so many times as long: windows differ more there."""
NULL_LOADER = "null-loader"
BEDS: Mapping[str, Callable[[], object]] = {
    "slow_fuse": slow_fuse.check_available,
    "throttled_loop": throttled_loop.check_available,
    "quota": disturbers.check_quota,
}
"""What a scenario may need of the machine → raises UnavailableError where that cannot be made."""

ALIKE_WORDS = {True: "ok", False: "UNLIKE", None: "undetermined"}

Say = Callable[[str], None]


class SelfTestStudy:
    """A self-test in progress. Each finished case is stored at once; stored cases are not run again."""

    def __init__(self, request: SelfTestRequest, store: Store, say: Say) -> None:
        """`say` gets a line for each case."""
        self._request, self._say = request, say
        self._todo = [one for one in scenarios(quick=request.quick) if _asked_for(one, request.only)]
        self._alike = [one for one in combinations(quick=request.quick) if _asked_for(one, request.only)]
        begun = _unfinished(store, request, self._todo, self._alike) if request.resume else None
        if begun is None:
            self._folder: StudyFolder = store.new_study("selftest", ["quick" if request.quick else "full"])
            self._facts = SelfTestFacts(
                request.quick, request.device, len(self._todo), beside=request.beside, only=request.only
            )
        else:
            self._folder, facts = store.open_study(begun), begun.facts
            assert isinstance(facts, SelfTestFacts)
            self._facts = replace(facts, skipped=(), failed=())
        self._records = {run.run_id: run.record for run in self._folder.runs.runs() if run.record is not None}
        self._duration_s, self._truth_s = QUICK_SECONDS if request.quick else FULL_SECONDS
        self._duration_s *= BESIDE if request.beside else 1.0
        self._begun, self._num_run, self._num_left = time.monotonic(), 0, 0

    def run(self) -> StudyRecord:
        """Run every scenario that this machine allows.

        Raises:
            ConfigError, CaseFailed: the results folder cannot be written.
        """
        template = self._template()
        self._skip_missing_beds()
        self._keep(self._facts)  # so that even after a kill the first case can be found
        done = {scenario.name for scenario in self._facts.scenarios}
        self._num_left = sum(scenario.name not in done for scenario in self._todo)
        with (
            temporary_folder() as folder,
            KeptChild(folder / "worker.log") as kept,
        ):
            for loader in dict.fromkeys(scenario.loader for scenario in self._todo):
                left = [one for one in self._todo if one.loader == loader and one.name not in done]
                self._run_loader(_case_for(template, loader), left, kept)
            self._run_alike(template, kept)
            if self._facts.null_loader_run is None:
                self._null_loader(template, kept)
        study = self.study()
        self._folder.write(study)
        return study

    def findings(self) -> SelfTest:
        """Findings from the cases so far."""
        return score(self._facts, self._records)

    def study(self) -> StudyRecord:
        """The study as it is stored."""
        return record_in(self._folder, self._facts, self.findings(), own_runs=tuple(self._records))

    def _template(self) -> Case:
        dataset, name = resolve_dataset(None, RESOLUTION)
        request = self._request
        return Case(
            Subject(dataset, name, RESOLUTION, "warm"),
            Feed(plugins.DEFAULT_LOADER, None, 0),
            Step(MODEL, request.mode, request.precision, request.device, batch_size=FIRST_BATCH, input_size=224),
            Effort(duration_s=self._duration_s, ci_target=0.02, kernels=False),
        )

    def _keep(self, facts: SelfTestFacts) -> None:
        self._facts = facts
        self._folder.write(self.study())

    def _skip_missing_beds(self) -> None:
        for bed, reason in _missing_beds(self._todo).items():
            skipped = [scenario for scenario in self._todo if scenario.bed == bed]
            left = tuple(Left(scenario.name, reason) for scenario in skipped)
            self._facts = replace(self._facts, skipped=(*self._facts.skipped, *left))
            self._say(f"skipped, {len(skipped)} cases on {bed}: {reason}")
            self._todo = [scenario for scenario in self._todo if scenario.bed != bed]

    def _count(self, line: str) -> None:
        self._num_run += 1
        left = self._num_left - self._num_run
        minutes = (time.monotonic() - self._begun) / self._num_run * left / 60
        number, total = len(self._todo) - left, len(self._todo)
        self._say(f"{number:>3} of {total}  {line}  ({minutes:.0f} min left)")

    def _run_loader(self, case: Case, todo: Sequence[Scenario], kept: KeptChild) -> None:
        waiting, bench = list(todo), None
        while waiting:
            try:
                child = kept.child(case.feed.decoder)
                if bench is None:
                    bench = Bench(child, case, self._truth_s)
                facts, record = self._ask(bench, child, waiting[0])
                self._records[record.run_id] = record
                self._keep(replace(self._facts, scenarios=(*self._facts.scenarios, facts)))
                self._count(_line(outcome_of(facts, record)))
                waiting.pop(0)
            except (JobFailed, BedMissing) as error:
                # What the loader lacks affects all its cases; a missing bed affects only one.
                lacking = isinstance(error, JobFailed) and isinstance(error.error, UnavailableError)
                stopped = waiting if lacking else waiting[:1]
                self._leave(stopped, str(error), skip=lacking or isinstance(error, BedMissing))
                waiting, bench = waiting[len(stopped) :], None
                kept.end()
        kept.end()

    def _ask(self, bench: Bench, child: Child, scenario: Scenario) -> tuple[ScenarioFacts, RunRecord]:
        """Measure the scenario, and time it with and without its cause. Raises JobFailed, BedMissing."""
        with bench.build(scenario, beside=self._request.beside) as built:
            built.enter(child.process.pid)
            record = measure_in(child, built.case, self._folder.runs, slowdown=built.injection)
            stopwatch = built.stopwatch(child)
        facts = ScenarioFacts(
            name=scenario.name,
            loader=scenario.loader,
            cause=scenario.cause,
            magnitude=scenario.magnitude,
            bed=scenario.bed,
            run_id=record.run_id,
            injected=built.amounts,
            stopwatch=stopwatch,
            hard=scenario.hard,
        )
        return facts, record

    def _leave(self, stopped: Sequence[Scenario], reason: str, *, skip: bool) -> None:
        left = tuple(Left(scenario.name, reason) for scenario in stopped)
        if skip:
            self._keep(replace(self._facts, skipped=(*self._facts.skipped, *left)))
        else:
            self._keep(replace(self._facts, failed=(*self._facts.failed, *left)))
        for scenario in stopped:
            self._count(f"{scenario.name:<40} {'skipped' if skip else 'FAILED'}: {reason}")

    def _run_alike(self, template: Case, kept: KeptChild) -> None:
        """Compare the arms of each loader × decoder × size that is not done yet."""
        done = {one.name for one in self._facts.alike}
        for one in self._alike:
            if one.name in done:
                continue
            dataset, name = resolve_dataset(None, one.resolution)
            case = replace(
                _case_for(template, one.loader), subject=Subject(dataset, name, one.resolution, "warm")
            ).changed(decoder=one.decoder, batch_size=ALIKE_BATCH)
            try:
                facts = kept.child(one.decoder).ask(ALIKE, AlikeRequest(one.name, case), quiet)
            except JobFailed as error:
                left = (Left(one.name, error.failure.message),)
                if isinstance(error.error, UnavailableError):
                    self._keep(replace(self._facts, skipped=(*self._facts.skipped, *left)))
                else:
                    self._keep(replace(self._facts, failed=(*self._facts.failed, *left)))
                self._say(f"{one.name:<40} {error.failure.message}")
                kept.end()
                continue
            self._keep(replace(self._facts, alike=(*self._facts.alike, facts)))
            found = alike_outcome(facts)
            self._say(
                f"{one.name:<40} from memory {found.ratio.value:.3f}x ({found.ratio.low:.3f} - {found.ratio.high:.3f}) "
                f"the CPU time  {ALIKE_WORDS[found.alike]}"
            )

    def _null_loader(self, template: Case, kept: KeptChild) -> None:
        """A loader that costs nothing must leave the device fully used: an ordinary training step, uint8 copies."""
        device = for_mode(template.step.device, "train")  # an emulated profile is for one mode
        case = _case_for(template, plugins.NULL_LOADER).changed(
            batch_size=64, output="uint8", mode="train", device=device
        )
        try:
            record = measure_in(kept.child(case.feed.decoder), case, self._folder.runs)
        except JobFailed as error:
            left = (Left(NULL_LOADER, error.failure.message),)
            if isinstance(error.error, UnavailableError):
                self._keep(replace(self._facts, skipped=(*self._facts.skipped, *left)))
            else:
                self._keep(replace(self._facts, failed=(*self._facts.failed, *left)))
            return
        self._records[record.run_id] = record
        self._keep(replace(self._facts, null_loader_run=record.run_id))
        used = record.accelerator_utilization_fraction
        told = "not measured" if used is None else f"{used:.1%}"
        self._say(f"{'null loader':<40} accelerator utilization {told}")


def _unfinished(
    store: Store, request: SelfTestRequest, todo: Sequence[Scenario], alike: Sequence[Combination]
) -> StudyRecord | None:
    """The newest self-test of this kind and device that has cases left."""
    for stored in reversed(store.studies()):
        study = stored.study
        if study is None or not isinstance(study.facts, SelfTestFacts):
            continue
        facts = study.facts
        asked = (request.quick, request.device, request.beside, request.only)
        if (facts.quick, facts.device, facts.beside, facts.only) != asked:
            continue
        done = {scenario.name for scenario in facts.scenarios}
        done |= {one.name for one in facts.alike}
        left = [name for name in (*(one.name for one in todo), *(one.name for one in alike)) if name not in done]
        return study if left or facts.null_loader_run is None else None
    return None


def _asked_for(scenario: Scenario | Combination, only: Sequence[str]) -> bool:
    return not only or any(part in scenario.name for part in only)


def _line(outcome: ScenarioOutcome) -> str:
    mark = "ok" if is_right(outcome) else "WRONG" if is_confidently_wrong(outcome) else "-"
    told = "" if outcome.detail_true is None else f" ({outcome.detail_true}: {outcome.detail or 'unknown'})"
    return (
        f"{outcome.name:<40} truth {outcome.truth:<10} {outcome.true_speedup:5.2f}x  "
        f"verdict {outcome.verdict:<13} {mark}{told}"
    )


def _missing_beds(todo: Sequence[Scenario]) -> dict[str, str]:
    """The beds that this machine cannot make, and why."""
    missing = {}
    for bed in dict.fromkeys(scenario.bed for scenario in todo if scenario.bed):
        try:
            BEDS[bed]()
        except UnavailableError as error:
            missing[bed] = str(error)
    return missing


def _case_for(template: Case, loader: str) -> Case:
    choice = plugins.loader_choice(loader)
    return template.changed(
        loader=loader,
        workers=0 if choice.traits.work == "in line" else min(WORKERS, usable_cpus()),
        decoder=None if choice.decoder is None else choice.decoder.name,
        output=choice.traits.output,
    )
