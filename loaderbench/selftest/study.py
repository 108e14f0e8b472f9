"""`loaderbench selftest`: builds known causes into runs on this machine and checks the verdicts.

Truth comes from a stopwatch (selftest/truth.py): the wall time of the run with the cause compared with the same run
without it, taken in turns. The estimators see only the recording of a run. Every case's run is kept in the study's own
folder, beside what was built in and what the stopwatch showed. docs/validation.md explains the method and how to read
the matrix; analysis/selftest.py scores it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import numpy as np

from loaderbench import plugins
from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.analysis.selftest import CLASSES, is_confidently_wrong, is_right, outcome_of, score
from loaderbench.cases.case import PRECISIONS, Case, Effort, Feed, Mode, Precision, Step, Subject
from loaderbench.cases.study import check_choice
from loaderbench.cases.traits import Work
from loaderbench.devices.profile import for_mode
from loaderbench.devices.select import parse_device
from loaderbench.errors import UnavailableError
from loaderbench.images.manifest import resolve_dataset
from loaderbench.machine import usable_cpus
from loaderbench.recording.facts import SCHEMA
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store, StudyFolder
from loaderbench.recording.studies import (
    InjectedCause,
    Left,
    ScenarioFacts,
    ScenarioOutcome,
    SelfTest,
    SelfTestFacts,
    Stopwatch,
    StudyRecord,
)
from loaderbench.running.supervisor import Child, JobFailed, KeptChild
from loaderbench.selftest.injections import Injection
from loaderbench.selftest.jobs import (
    DEVICE_SECONDS,
    LOADER_SECONDS,
    WALL_SECONDS,
    DeviceTimeRequest,
    LoaderTimeRequest,
    Side,
    WallTimeRequest,
)
from loaderbench.studies.measure import measure_in, quiet

QUICK_CAUSES: Mapping[Work, tuple[InjectedCause, ...]] = {
    "processes": ("prep", "storage", "transfer", "launch", "mixed", "compute"),
    "in line": ("prep", "storage", "transfer"),
    "threads": ("prep", "storage", "launch"),
}
"""Causes that the quick set builds into a loader, by where its batches are made."""
OWN_DECODER_CAUSES: tuple[InjectedCause, ...] = ("prep", "transfer", "launch", "compute")
"""Causes that the full set builds into a loader that decodes for itself."""
NULLS, QUICK_NULLS = 10, 2
"""Runs without a cause for each loader: full set, quick set."""
MAGNITUDES = (1.4, 2.0, 3.0)
"""Step time with the cause ÷ step time of the device alone."""
WARM_MAGNITUDE = 2.0
"""Of the cases in which the files are in memory and only their opens are slow."""
DEVICE_TO_LOADER = 2.0
"""Least device time ÷ loader time, so that a run without a cause is bound by compute."""
MODEL, RESOLUTION, WORKERS = "resnet50", 256, 2
FIRST_BATCH = 16
"""Batch size until the loader's own speed sets it."""
LOADER_STEP_S = 0.010
"""A batch is what the loader makes in this time: long compared with the issue time and the scheduler's ticks."""
MIN_BATCH, MAX_BATCH = 8, 128
QUICK_SECONDS, FULL_SECONDS = (7.5, 0.6), (12.0, 1.0)
"""(seconds of measuring a case, seconds of each of the stopwatch's two turns on each side)."""
LINK_BYTES_PER_S = 50e9
"""Link rate of the emulated device (devices/profiles); on CUDA it may differ, but truth is measured anyway."""
NULL_LOADER = "null-loader"

Say = Callable[[str], None]
Amounts = dict[str, float]
"""Field of Injection → how much."""


@dataclass(frozen=True)
class Scenario:
    """One case of the self-test: what is built into the run, and what of it stays in the runs for truth."""

    name: str
    loader: str
    cause: InjectedCause
    magnitude: float
    bed: str | None = None
    """The test bed that makes the storage slow: slow_fuse, or throttled_loop (root's)."""
    warm: bool = False
    """The files are in memory and it is their opens that are slow (slow_fuse)."""


def scenarios(*, quick: bool) -> list[Scenario]:
    """13 cases and 6 nulls, or the full set: six classes × three magnitudes × three loaders, DALI, and 40 nulls.

    Its storage cases come twice: on FUSE, and (as root) on a disk throttled in the block layer. On FUSE there are also
    files in memory whose opens are slow.
    """
    tested = {name: traits for name, traits in plugins.LOADERS.known().items() if traits.self_tested}
    made: list[Scenario] = []
    for name, traits in tested.items():
        if quick and traits.decodes != "ours":
            continue
        causes = QUICK_CAUSES[traits.work] if quick else CLASSES if traits.decodes == "ours" else OWN_DECODER_CAUSES
        sizes = (2.0,) if quick else MAGNITUDES
        cases = [_scenario(name, cause, magnitude) for cause in causes for magnitude in sizes]
        slow = [one for one in cases if one.bed]
        if not quick:
            cases += [replace(one, name=f"{one.name}@disk", bed="throttled_loop") for one in slow]
        if not quick or traits.work == "processes":
            warm = (one for one in slow if one.magnitude == WARM_MAGNITUDE)
            cases += [replace(one, name=f"{one.name}@opens", warm=True) for one in warm]
        nulls = range(QUICK_NULLS if quick else NULLS)
        made += [*cases, *(_scenario(name, "none", 1.0, number) for number in nulls)]
    return made


def _scenario(loader: str, cause: InjectedCause, magnitude: float, number: int | None = None) -> Scenario:
    suffix = f"#{number}" if number is not None else f"x{magnitude:g}"
    return Scenario(f"{loader}-{cause}-{suffix}", loader, cause, magnitude, "slow_fuse" if cause == "storage" else None)


@dataclass(frozen=True)
class SelfTestRequest:
    quick: bool
    device: str
    """The device text as resolved by `devices`, for inference."""
    precision: Precision
    mode: Mode = "infer"
    resume: bool = False
    """Continue the newest interrupted self-test of the store."""


def request_for(device: str, *, quick: bool, resume: bool = False) -> SelfTestRequest:
    """What `--device` asks for. Raises ConfigError, or UnavailableError where there is no such GPU."""
    choice = parse_device(device, model=MODEL, mode="infer", precision=None, batch_size=FIRST_BATCH)
    precision = check_choice("--precision", choice.precision, PRECISIONS)
    return SelfTestRequest(quick, choice.device, precision, resume=resume)


class SelfTestStudy:
    """A self-test in progress. Each finished case is stored at once; stored cases are not run again."""

    def __init__(self, request: SelfTestRequest, store: Store, say: Say) -> None:
        """`say` gets a line for each case."""
        self._request, self._say = request, say
        self._todo = scenarios(quick=request.quick)
        begun = _unfinished(store, request, self._todo) if request.resume else None
        if begun is None:
            self._folder: StudyFolder = store.new_study("selftest", ["quick" if request.quick else "full"])
            self._facts = SelfTestFacts(request.quick, request.device, len(self._todo))
        else:
            self._folder, facts = store.open_study(begun), begun.facts
            assert isinstance(facts, SelfTestFacts)
            self._facts = replace(facts, skipped=(), failed=())
        self._records = {run.run_id: run.record for run in self._folder.runs.runs() if run.record is not None}
        self._duration_s, self._truth_s = QUICK_SECONDS if request.quick else FULL_SECONDS
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
            tempfile.TemporaryDirectory(prefix="loaderbench-selftest-") as folder,
            KeptChild(Path(folder, "worker.log")) as kept,
        ):
            for loader in dict.fromkeys(scenario.loader for scenario in self._todo):
                left = [one for one in self._todo if one.loader == loader and one.name not in done]
                self._run_loader(_case_for(template, loader), left, kept)
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
        return StudyRecord(
            schema=SCHEMA,
            rules_version=RULES_VERSION,
            study_id=self._folder.study_id,
            kind="selftest",
            started_at=self._folder.started_at,
            facts=self._facts,
            findings=self.findings(),
            own_runs=tuple(self._records),
        )

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
                if bench is None:
                    bench = _Bench(kept.child(case.feed.decoder), case, self._truth_s, self._folder.runs)
                facts, record = bench.run(waiting[0])
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

    def _leave(self, stopped: Sequence[Scenario], reason: str, *, skip: bool) -> None:
        left = tuple(Left(scenario.name, reason) for scenario in stopped)
        if skip:
            self._keep(replace(self._facts, skipped=(*self._facts.skipped, *left)))
        else:
            self._keep(replace(self._facts, failed=(*self._facts.failed, *left)))
        for scenario in stopped:
            self._count(f"{scenario.name:<28} {'skipped' if skip else 'FAILED'}: {reason}")

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
        self._say(f"{'null loader':<28} accelerator utilization {told}")


def _unfinished(store: Store, request: SelfTestRequest, todo: Sequence[Scenario]) -> StudyRecord | None:
    """The newest self-test of this kind and device that has cases left."""
    for stored in reversed(store.studies()):
        study = stored.study
        if study is None or not isinstance(study.facts, SelfTestFacts):
            continue
        facts = study.facts
        if (facts.quick, facts.device) != (request.quick, request.device):
            continue
        done = {scenario.name for scenario in facts.scenarios}
        left = [scenario for scenario in todo if scenario.name not in done]
        return study if left or facts.null_loader_run is None else None
    return None


def _line(outcome: ScenarioOutcome) -> str:
    mark = "ok" if is_right(outcome) else "WRONG" if is_confidently_wrong(outcome) else "-"
    return (
        f"{outcome.name:<28} truth {outcome.truth:<9} {outcome.true_speedup:5.2f}x  "
        f"verdict {outcome.verdict:<13} {mark}"
    )


def _missing_beds(todo: Sequence[Scenario]) -> dict[str, str]:
    """The beds that this machine cannot make, and why."""
    missing = {}
    for bed in dict.fromkeys(scenario.bed for scenario in todo if scenario.bed):
        try:
            import_module(f"loaderbench.selftest.{bed}").check_available()
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


class BedMissing(Exception):
    """A test bed could not be made; says why."""


class _Bench:
    """One loader on one device that is slowed until a run without a cause is bound by compute."""

    def __init__(self, child: Child, case: Case, truth_s: float, runs: Store) -> None:
        self._child, self._truth_s, self._runs = child, truth_s, runs
        first_s = child.ask(LOADER_SECONDS, LoaderTimeRequest(case), quiet)
        batch_size = int(np.clip(round(case.step.batch_size * LOADER_STEP_S / first_s / 8) * 8, MIN_BATCH, MAX_BATCH))
        self._case = case.changed(batch_size=batch_size)
        self._loader_s = child.ask(LOADER_SECONDS, LoaderTimeRequest(self._case), quiet)
        own_device_s = child.ask(DEVICE_SECONDS, DeviceTimeRequest(self._case), quiet)
        wanted_s = max(DEVICE_TO_LOADER * self._loader_s, own_device_s)
        self._base: Amounts = {"compute_extra_s": wanted_s - own_device_s}
        # Where issuing bound the bare device, a part of the added compute filled its gaps.
        slowed = DeviceTimeRequest(self._case, _injection(self._base))
        self._base["compute_extra_s"] += wanted_s - child.ask(DEVICE_SECONDS, slowed, quiet)
        self._device_s = wanted_s

    def run(self, scenario: Scenario) -> tuple[ScenarioFacts, RunRecord]:
        """Measure the scenario, and time it with and without its cause.

        Raises:
            JobFailed, BedMissing
        """
        amounts = self._amounts(scenario)
        full = _sum(self._base, amounts)
        with ExitStack() as stack:
            plain = self._case.changed(cache="warm")
            slow = plain
            if scenario.bed:
                cache = "warm" if scenario.warm else "cold"
                slow = plain.changed(dataset=stack.enter_context(self._slow_storage(scenario)), cache=cache)
            record = measure_in(self._child, slow, self._runs, slowdown=_injection(full))
            sides = [
                Side(slow, _injection(full), cold=slow.subject.cache == "cold"),
                Side(plain, _injection(self._base)),
            ]
            if scenario.cause == "mixed":
                sides += [Side(plain, _injection(_sum(self._base, _without(amounts, key)))) for key in amounts]
            times = self._child.ask(WALL_SECONDS, WallTimeRequest(tuple(sides), self._truth_s), quiet)
        facts = ScenarioFacts(
            name=scenario.name,
            loader=scenario.loader,
            cause=scenario.cause,
            magnitude=scenario.magnitude,
            bed=scenario.bed,
            run_id=record.run_id,
            injected=full,
            stopwatch=Stopwatch(*times),
        )
        return facts, record

    def _amounts(self, scenario: Scenario) -> Amounts:
        """The extra work that is built in besides the slowed device."""
        wanted_s = scenario.magnitude * self._device_s
        add_s = max(wanted_s - self._loader_s, 0.0)
        in_line = plugins.LOADERS.find(self._case.feed.loader).traits.extra_work_in_line
        lanes = 1 if in_line else self._case.feed.lanes  # workers share the burn
        prep: Amounts = {"decode_burn_s": add_s * lanes / self._case.step.batch_size}
        amounts: dict[InjectedCause, Amounts] = {
            "none": {},
            "storage": {},
            "prep": prep,
            "transfer": {"transfer_extra_bytes": int(wanted_s * LINK_BYTES_PER_S)},
            "launch": {"issue_delay_s": wanted_s},
            "compute": {"compute_extra_s": wanted_s - self._device_s},
        }
        return self._two_of_equal_size(prep) if scenario.cause == "mixed" else amounts[scenario.cause]

    def _two_of_equal_size(self, prep: Amounts) -> Amounts:
        """Preparation, and a copy that bounds the run at the same step time: found by the stopwatch, since burning
        workers and issuing slow each other down."""
        case = self._case.changed(cache="warm")
        # A copy beside the compute shows only where it is longer: three times the device's step certainly is.
        transfer: Amounts = {"transfer_extra_bytes": int(3 * self._device_s * LINK_BYTES_PER_S)}
        sides = tuple(Side(case, _injection(_sum(self._base, amounts))) for amounts in (prep, transfer))
        with_prep_s, with_copy_s = self._child.ask(WALL_SECONDS, WallTimeRequest(sides, self._truth_s), quiet)
        return {**prep, "transfer_extra_bytes": int(with_prep_s / with_copy_s * transfer["transfer_extra_bytes"])}

    @contextmanager
    def _slow_storage(self, scenario: Scenario) -> Iterator[str]:
        """The data set on the scenario's bed, at a bandwidth, or with opens, at which reading takes `magnitude` × the
        device's step."""
        from loaderbench.images.index import index_images
        from loaderbench.selftest.slow_fuse import slow_fuse
        from loaderbench.selftest.throttled_loop import throttled_loop

        dataset, lanes = self._case.subject.dataset, self._case.feed.lanes
        # A loader without workers decodes only once it has read.
        in_line = 0.0 if self._case.feed.workers else self._loader_s
        fetch_s = scenario.magnitude * self._device_s - in_line
        bytes_per_s = float(index_images(dataset).sizes.mean()) * self._case.step.batch_size / fetch_s
        try:
            if scenario.warm:
                # Each worker waits for its own opens, and decodes between them.
                add_s = scenario.magnitude * self._device_s - self._loader_s
                with slow_fuse(dataset, open_latency_s=add_s * lanes / self._case.step.batch_size) as mounted:
                    yield mounted.path
            elif scenario.bed == "slow_fuse":
                with slow_fuse(dataset, bytes_per_s=bytes_per_s) as mounted:
                    yield mounted.path
            else:
                with throttled_loop(dataset, bytes_per_s=bytes_per_s) as disk:
                    disk.enter(self._child.process.pid)
                    yield disk.path
        except UnavailableError as error:
            raise BedMissing(str(error)) from error


def _injection(amounts: Mapping[str, float]) -> Injection:
    return Injection.from_json({name: amount for name, amount in amounts.items() if amount})


def _sum(base: Amounts, more: Amounts) -> Amounts:
    return {name: base.get(name, 0) + more.get(name, 0) for name in sorted({*base, *more})}


def _without(amounts: Amounts, key: str) -> Amounts:
    return {name: amount for name, amount in amounts.items() if name != key}
