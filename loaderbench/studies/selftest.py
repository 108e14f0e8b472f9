"""`loaderbench selftest`: known causes built into runs on this machine, and what the verdicts made of them.

Truth comes from a stopwatch (testbeds/truth.py): the wall time of the run with the cause against the same run
without it, taken in turns. The estimators see the recording of a run and nothing else. docs/validation.md
explains the method and how to read the matrix.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from loaderbench.analysis.record import make_record
from loaderbench.cases.case import Case
from loaderbench.cases.study import default_decoder, default_output
from loaderbench.errors import UnavailableError
from loaderbench.images.manifest import resolve_dataset
from loaderbench.machine import environment, usable_cpus
from loaderbench.recording.types import Run
from loaderbench.running.supervisor import Child, JobFailed

CLASSES = ("storage", "prep", "transfer", "launch", "compute", "mixed")
QUICK_LOADERS, FULL_LOADERS = ("multiprocess", "serial", "threaded"), ("serial", "multiprocess", "threaded", "dali")
MAGNITUDES = (1.4, 2.0, 3.0)
"""Step time with the cause ÷ step time of the device alone."""
CLEAR = 1.25
"""Cases whose cause is truly worth this much must be judged right."""
NOTHING = 1.05
"""A gain that cannot be told from none on a machine that others share."""
DEVICE_TO_LOADER = 2.0
"""The device takes so many times the loader's time, so that without a cause the run is bound by compute."""
RESOLUTION, WORKERS = 256, 2
BED_MISSING = "bed"
LOADER_STEP_S = 0.010
"""Batches are as large as the loader makes in this time: long against the issue time and the scheduler's ticks."""
MIN_BATCH, MAX_BATCH = 8, 128
QUICK_SECONDS, FULL_SECONDS = (7.5, 0.6), (12.0, 1.0)
"""Of each case: of measuring, and of each of the stopwatch's two turns on each side."""
LINK_BYTES_PER_S = 50e9
"""Of the emulated device (devices/profiles); on CUDA the copy's real rate decides, and truth is measured anyway."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Scenario:
    """One case of the self-test: what is built into the run, and what is left of it in the runs for truth."""

    name: str
    loader: str
    cause: str
    """A class out of CLASSES; `none` for a null."""
    magnitude: float
    bed: str | None = None
    """The test bed that makes the storage slow: slow_fuse, or throttled_loop (root's)."""


@dataclass(frozen=True)
class Outcome:
    """What came of one scenario: a row of the report."""

    name: str
    loader: str
    truth: str
    verdict: str
    true_speedup: float
    """What removing the true cause gives; where several are it only together, removing all of them."""
    predicted_speedup: float | None
    shares_true: Mapping[str, float]
    shares: Mapping[str, float | None]
    is_null: bool
    joint: Sequence[str] = ()
    reasons: str = ""
    best_alone: float = 1.0
    """For two causes: what removing the better one alone gives."""

    @property
    def clear(self) -> bool:
        """Whether one answer is right beyond the stopwatch's own error: the cause (added compute is one) is worth
        CLEAR, and two that are it only together are worth next to nothing alone."""
        if self.truth == "mixed" and self.best_alone > NOTHING:
            return False
        return self.true_speedup >= CLEAR

    @property
    def right(self) -> bool:
        return self.verdict == self.truth

    @property
    def confidently_wrong(self) -> bool:
        """A cause was named, and it is not the one, where the true one is clear: or that there is no single one, or
        that what was built in slows nothing."""
        named = {self.verdict} if self.verdict != "mixed" else {"mixed", *self.joint}
        if self.verdict == "undetermined":
            return False
        nothing = self.truth == "compute" and (self.is_null or self.true_speedup < NOTHING)
        return (self.clear or nothing) and self.truth not in named

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "loader": self.loader,
            "truth": self.truth,
            "verdict": self.verdict,
            "true_speedup": self.true_speedup,
            "predicted_speedup": self.predicted_speedup,
            "shares_true": dict(self.shares_true),
            "shares": dict(self.shares),
            "is_null": self.is_null,
            "joint": list(self.joint),
            "reasons": self.reasons,
            "best_alone": self.best_alone,
        }


@dataclass
class SelfTest:
    """The whole result."""

    outcomes: list[Outcome] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    """Cases that could run here and broke off: none of them counts as right."""
    overheads: list[float] = field(default_factory=list)
    null_loader_au: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The form of cli.md. Figures without a case behind them are null."""
        clear = [one for one in self.outcomes if one.clear and not one.is_null]
        num_clear = len(clear) + len(self.failed)
        nulls = [one for one in self.outcomes if one.is_null]
        both = [(one.shares[name], true) for one in self.outcomes for name, true in one.shares_true.items()]
        errors = np.array([abs(measured - true) for measured, true in both if measured is not None])
        gains = [
            abs(one.predicted_speedup / one.true_speedup - 1)
            for one in clear
            if one.predicted_speedup is not None and one.truth not in ("mixed", "compute")
        ]

        def fraction(part: int, whole: int) -> float | None:
            return part / whole if whole else None

        return {
            "cases": [one.to_json() for one in self.outcomes],
            "accuracy_fraction": fraction(sum(one.right for one in clear), num_clear),
            "num_clear_cases": num_clear,
            "undetermined_fraction": fraction(
                sum(one.verdict == "undetermined" for one in self.outcomes), len(self.outcomes)
            ),
            "confident_wrong": sum(one.confidently_wrong for one in self.outcomes),
            "share_error": {
                "mean": float(errors.mean()) if len(errors) else None,
                "p95": float(np.percentile(errors, 95)) if len(errors) else None,
            },
            "speedup_error_median": float(np.median(gains)) if gains else None,
            "null_false_positive_fraction": fraction(sum(one.verdict != "compute" for one in nulls), len(nulls)),
            "overhead_fraction": max(self.overheads) if self.overheads else None,
            "null_loader_au_fraction": self.null_loader_au,
            "skipped": self.skipped,
            "failed": self.failed,
        }


def scenarios(*, quick: bool) -> list[Scenario]:
    """12 cases and 6 nulls, or the full set: six classes × three magnitudes × three loaders, DALI, and 40 nulls.

    Its storage cases come twice: on FUSE, and (as root) on a disk throttled in the block layer.
    """
    if quick:
        spread = {"multiprocess": (2.0, 1.4), "serial": (2.0,), "threaded": (2.0,)}
        chosen = [
            ("multiprocess", "prep"), ("multiprocess", "storage"), ("multiprocess", "transfer"),
            ("multiprocess", "launch"), ("multiprocess", "mixed"), ("multiprocess", "compute"),
            ("serial", "prep"), ("serial", "storage"), ("serial", "transfer"),
            ("threaded", "prep"), ("threaded", "storage"), ("threaded", "launch"),
        ]  # fmt: skip
        cases = [_scenario(loader, cause, spread[loader][0]) for loader, cause in chosen]
        nulls = [_scenario(loader, "none", 1.0, number) for loader in QUICK_LOADERS for number in range(2)]
        return _by_loader(cases + nulls)
    cases = [
        _scenario(loader, cause, magnitude)
        for loader in FULL_LOADERS
        for cause in CLASSES
        for magnitude in MAGNITUDES
        if loader != "dali" or cause in ("prep", "transfer", "launch", "compute")
    ]
    cases += [replace(one, name=f"{one.name}@disk", bed="throttled_loop") for one in cases if one.bed]
    nulls = [_scenario(loader, "none", 1.0, number) for loader in FULL_LOADERS for number in range(10)]
    return _by_loader(cases + nulls)


def _scenario(loader: str, cause: str, magnitude: float, number: int | None = None) -> Scenario:
    suffix = f"#{number}" if number is not None else f"x{magnitude:g}"
    return Scenario(f"{loader}-{cause}-{suffix}", loader, cause, magnitude, "slow_fuse" if cause == "storage" else None)


def _by_loader(found: list[Scenario]) -> list[Scenario]:
    return sorted(found, key=lambda one: FULL_LOADERS.index(one.loader))


def run_selftest(
    *, quick: bool, device: str, precision: str, mode: str, state_file: Path | None, resume: bool, say: Say
) -> SelfTest:
    """Run every scenario that this machine allows. `say` gets a line for each.

    Finished scenarios are appended to `state_file` at once; with `resume` those found there are not run again.
    """
    result = SelfTest()
    done = _read_state(state_file) if resume and state_file is not None else {}
    if state_file is not None and not resume:
        state_file.unlink(missing_ok=True)
    duration_s, truth_s = QUICK_SECONDS if quick else FULL_SECONDS
    dataset, name = resolve_dataset(None, RESOLUTION)
    template = Case(
        dataset=dataset, dataset_name=name, resolution=RESOLUTION, loader="serial", decoder="pillow", workers=0,
        prefetch=2, batch_size=16, model="resnet50", mode=mode, precision=precision, device=device,
        input_size=224, cache="warm", duration_s=duration_s, ci_target=0.02, kernels=False,
    )  # fmt: skip
    todo = scenarios(quick=quick)
    for bed, reason in _missing_beds(todo).items():
        result.skipped += [{"name": one.name, "reason": reason} for one in todo if one.bed == bed]
        say(f"skipped, {sum(one.bed == bed for one in todo)} cases on {bed}: {reason}")
        todo = [one for one in todo if one.bed != bed]
    begun, num_left = time.monotonic(), sum(one.name not in done for one in todo)
    num_run = 0

    def count(line: str) -> None:
        nonlocal num_run
        num_run += 1
        minutes = (time.monotonic() - begun) / num_run * (num_left - num_run) / 60
        say(f"{len(todo) - num_left + num_run:>3} of {len(todo)}  {line}  ({minutes:.0f} min left)")

    with tempfile.TemporaryDirectory(prefix="loaderbench-selftest-") as folder:
        log = Path(folder, "worker.log")
        for loader in dict.fromkeys(one.loader for one in todo):
            mine = [one for one in todo if one.loader == loader]
            left = [one for one in mine if one.name not in done]
            result.outcomes += [done[one.name] for one in mine if one.name in done]
            if left:
                _run_loader(template, truth_s, loader, left, log, result, state_file, count)
        _null_loader(template, log, result, say)
    return result


def _missing_beds(todo: Sequence[Scenario]) -> dict[str, str]:
    """The beds that this machine cannot make, and why."""
    missing = {}
    for bed in dict.fromkeys(one.bed for one in todo if one.bed):
        try:
            import_module(f"loaderbench.testbeds.{bed}").check_available()
        except UnavailableError as error:
            missing[bed] = str(error)
    return missing


def _case_for(template: Case, loader: str) -> Case:
    return replace(
        template,
        loader=loader,
        workers=0 if loader == "serial" else min(WORKERS, usable_cpus()),
        decoder=default_decoder(loader),
        output=default_output(loader),
    )


def _run_loader(
    template: Case,
    truth_s: float,
    loader: str,
    todo: Sequence[Scenario],
    log: Path,
    result: SelfTest,
    state: Path | None,
    say: Say,
) -> None:
    case = _case_for(template, loader)
    waiting = list(todo)
    while waiting:
        with Child(log) as child:
            try:
                rig = _Bench(child, case, truth_s)
                while waiting:
                    outcome = rig.run(waiting[0], result)
                    result.outcomes.append(outcome)
                    if state is not None:
                        with state.open("a") as file:
                            file.write(json.dumps(outcome.to_json()) + "\n")
                    mark = "ok" if outcome.right else "WRONG" if outcome.confidently_wrong else "-"
                    say(f"{outcome.name:<28} truth {outcome.truth:<9} {outcome.true_speedup:5.2f}x  "
                        f"verdict {outcome.verdict:<13} {mark}")  # fmt: skip
                    waiting.pop(0)
            except JobFailed as error:
                stopped = waiting if error.kind == "UnavailableError" else waiting[:1]
                skip = error.kind in ("UnavailableError", BED_MISSING)
                for one in stopped:
                    (result.skipped if skip else result.failed).append({"name": one.name, "reason": error.message})
                    say(f"{one.name:<28} {'skipped' if skip else 'FAILED'}: {error.message}")
                waiting = waiting[len(stopped) :]


def _quiet(kind: str, payload: Any) -> None:
    """Progress of single jobs is not shown."""


class _Bench:
    """One loader on one device, the device slowed until a run without a cause is bound by compute."""

    def __init__(self, child: Child, case: Case, truth_s: float) -> None:
        self._truth_s = truth_s
        first_s = float(child.ask("loader_seconds", case, _quiet))
        batch_size = int(np.clip(round(case.batch_size * LOADER_STEP_S / first_s / 8) * 8, MIN_BATCH, MAX_BATCH))
        self._child, self._case = child, replace(case, batch_size=batch_size)
        self._loader_s = float(child.ask("loader_seconds", self._case, _quiet))
        own_device_s = float(child.ask("device_seconds", self._case, _quiet))
        wanted_s = max(DEVICE_TO_LOADER * self._loader_s, own_device_s)
        self._base = {"compute_extra_s": wanted_s - own_device_s}
        # Where issuing bound the bare device, a part of what was added went into its gaps.
        self._base["compute_extra_s"] += wanted_s - float(
            child.ask("device_seconds", self._case, _quiet, injection=self._base)
        )
        self._device_s = wanted_s

    def _amounts(self, scenario: Scenario) -> dict[str, float]:
        """What is built in besides the slowed device."""
        wanted_s = scenario.magnitude * self._device_s
        add_s = max(wanted_s - self._loader_s, 0.0)
        # DALI's added operator runs on one thread; workers of the others share the burn.
        lanes = 1 if self._case.loader == "dali" else self._case.lanes
        prep: dict[str, float] = {"decode_burn_s": add_s * lanes / self._case.batch_size}
        transfer: dict[str, float] = {"transfer_extra_bytes": int(wanted_s * LINK_BYTES_PER_S)}
        amounts: dict[str, dict[str, float]] = {
            "none": {},
            "storage": {},
            "prep": prep,
            "transfer": transfer,
            "launch": {"issue_delay_s": wanted_s},
            "compute": {"compute_extra_s": wanted_s - self._device_s},
        }
        return self._two_of_equal_size(prep) if scenario.cause == "mixed" else amounts[scenario.cause]

    def _two_of_equal_size(self, prep: dict[str, float]) -> dict[str, float]:
        """Preparation, and a copy that bounds the run at the same step time: by the stopwatch, since burning
        workers and issuing get in each other's way."""
        case = replace(self._case, cache="warm")
        # Beside the compute a copy shows only where it is the longer: three times the device's step surely is.
        transfer = {"transfer_extra_bytes": int(3 * self._device_s * LINK_BYTES_PER_S)}
        sides = [{"injection": _add(self._base, some)} for some in (prep, transfer)]
        with_prep_s, with_copy_s = self._child.ask("wall_seconds", case, _quiet, sides=sides, seconds=self._truth_s)
        return {**prep, "transfer_extra_bytes": int(with_prep_s / with_copy_s * transfer["transfer_extra_bytes"])}

    def run(self, scenario: Scenario, result: SelfTest) -> Outcome:
        amounts = self._amounts(scenario)
        with ExitStack() as stack:
            slow = stack.enter_context(self._slow_storage(scenario)) if scenario.bed else None
            case = replace(self._case, dataset=slow or self._case.dataset, cache="cold" if slow else "warm")
            full = _add(self._base, amounts)
            recording = self._child.ask("measure", case, _quiet, injection=full)
            sides = [{"injection": full, "dataset": slow, "cold": slow is not None}, {"injection": self._base}]
            if scenario.cause == "mixed":
                sides += [{"injection": _add(self._base, _without(amounts, key))} for key in amounts]
            times = self._child.ask("wall_seconds", case, _quiet, sides=sides, seconds=self._truth_s)
        record = make_record(scenario.name, _run_of(case, recording))
        result.overheads.append(record["overhead_fraction"])
        return _judge(scenario, record, times)

    @contextmanager
    def _slow_storage(self, scenario: Scenario) -> Iterator[str]:
        """The data set on the scenario's bed, at a bandwidth that takes `magnitude` times the device's step."""
        from loaderbench.images.index import index_images
        from loaderbench.testbeds.slow_fuse import slow_fuse
        from loaderbench.testbeds.throttled_loop import throttled_loop

        sizes = index_images(self._case.dataset).sizes
        # A loader without workers decodes only once it has read.
        in_line = 0.0 if self._case.workers else self._loader_s
        fetch_s = scenario.magnitude * self._device_s - in_line
        bytes_per_s = float(sizes.mean()) * self._case.batch_size / fetch_s
        try:
            if scenario.bed == "slow_fuse":
                with slow_fuse(self._case.dataset, bytes_per_s=bytes_per_s) as mounted:
                    yield mounted.path
            else:
                with throttled_loop(self._case.dataset, bytes_per_s=bytes_per_s) as disk:
                    disk.enter(self._child.process.pid)
                    yield disk.path
        except UnavailableError as error:
            raise JobFailed(BED_MISSING, str(error)) from error


def _add(base: Mapping[str, float], more: Mapping[str, float]) -> dict[str, Any]:
    return {key: base.get(key, 0) + more.get(key, 0) for key in {*base, *more} if base.get(key, 0) + more.get(key, 0)}


def _without(amounts: Mapping[str, float], key: str) -> dict[str, float]:
    return {name: amount for name, amount in amounts.items() if name != key}


def _run_of(case: Case, recording: Any) -> Run:
    return Run(case, "ok", "", 0.0, recording, [], [], environment())


def _judge(scenario: Scenario, record: Mapping[str, Any], times: Sequence[float]) -> Outcome:
    """Hold the record against the stopwatch."""
    with_s, without_s = times[0], times[1]
    gain, best_alone = with_s / without_s, 1.0
    truth = "compute"
    shares_true = dict.fromkeys(("storage", "prep", "transfer", "launch"), 0.0) | {"compute": 1.0}
    if scenario.cause == "mixed":
        alone = [with_s / one for one in times[2:]]  # without prep, without the copy
        best_alone = max(alone)
        if best_alone < 1.10 <= gain:
            truth = "mixed"
        elif gain >= 1.10:
            truth, gain = ("prep", "transfer")[alone.index(best_alone)], best_alone
        shares_true = {"compute": without_s / with_s}
    elif scenario.cause not in ("none", "compute"):
        if gain >= 1.10:
            truth = scenario.cause
        part = max(0.0, 1 - without_s / with_s)
        shares_true |= {scenario.cause: part, "compute": 1 - part}
    measured = {name: None if one is None else one["value"] for name, one in record["shares"].items()}
    shares = {name: _share(measured, name) for name in shares_true}
    found = record["verdict"]
    predicted = found["speedup_if_removed"].get(truth) if truth in found["speedup_if_removed"] else None
    if truth == "mixed":
        predicted = found["joint_speedup"]
    return Outcome(
        name=scenario.name,
        loader=scenario.loader,
        truth=truth,
        verdict=found["bottleneck"],
        true_speedup=gain,
        predicted_speedup=None if predicted is None else predicted["value"],
        shares_true=shares_true,
        shares=shares,
        is_null=scenario.cause == "none",
        joint=found["joint"],
        reasons=found["summary"],
        best_alone=best_alone,
    )


def _share(measured: Mapping[str, float | None], name: str) -> float | None:
    """A measured share as truth counts it: contention goes with prep, as in the verdict. None: not measured."""
    value = measured[name]
    return value + (measured["contention"] or 0.0) if name == "prep" and value is not None else value


def _null_loader(template: Case, log: Path, result: SelfTest, say: Say) -> None:
    """A loader that costs nothing must leave the device fully used: an ordinary training step, uint8 on the link."""
    device = template.device.replace("-infer-", "-train-")  # an emulated profile is for one mode
    case = replace(_case_for(template, "synthetic"), batch_size=64, output="uint8", mode="train", device=device)
    with Child(log) as child:
        try:
            record = make_record("null-loader", _run_of(case, child.ask("measure", case, _quiet)))
        except JobFailed as error:
            missing = error.kind == "UnavailableError"
            (result.skipped if missing else result.failed).append({"name": "null-loader", "reason": error.message})
            return
    result.null_loader_au = record["accelerator_utilization_fraction"]
    result.overheads.append(record["overhead_fraction"])
    say(f"{'null loader':<28} accelerator utilization {result.null_loader_au:.1%}")


def _read_state(path: Path) -> dict[str, Outcome]:
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return {row["name"]: Outcome(**row) for row in rows}


def confusion(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """truth → verdict → how many."""
    table: dict[str, dict[str, int]] = {}
    for one in outcomes:
        row = table.setdefault(one.truth, dict.fromkeys((*CLASSES, "undetermined"), 0))
        row[one.verdict] += 1
    return table
