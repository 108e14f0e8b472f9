"""How long until a verdict, and how wrong is it? Three ways, on runs whose cause was built in.

    python benchmarks/time_to_verdict.py [--rounds 3] [--quick] [--only CAUSE,CAUSE] [--traceml COMMAND] [--json FILE]
                                         [--resume]

- loaderbench: one process, its arms in turn (the job of `loaderbench run`), `--duration` seconds of measuring.
- three phases: the method of DS-Analyzer (Mohan et al., VLDB 2021), three runs in processes of their own: batches that
  stay on the device, an epoch with the files in the page cache, an epoch with it cleared. Prep stall = cached −
  synthetic, fetch stall = cold − cached.
- TraceML (with --traceml): `traceml run` of an epoch of a plain training loop on the same loader and device.

A run reads the generated 256² set with the `multiprocess` loader on an emulated device that takes twice the loader's
time. Built in are the self-test's causes (loaderbench/selftest/bench.py): slower decoding, storage of a lower
bandwidth, of slow opens, with few slow files (tails) or standstills (stalls), storage and decoding of which either may
go, busy processes beside the run, a CPU quota, a model on the CPU that shares it with the loader, files in memory on
FUSE; or nothing. Truth is the stopwatch's: the wall time of that run against the same one without the cause, in turn
(selftest/truth.py).

Seconds count from the start of the way's first process to its answer. The error is that of the data stall, the
fraction of the step that always-ready data would save, in points. `cause` counts answers that name the built-in cause
(compute where there is none; a row in which the stopwatch sees another one is marked `!`; where either of two may go,
one of them is enough); TraceML does not tell storage from preparation, so there `input` counts for both. The three
phases and TraceML know no contention. Every round asks all ways about all causes, in an order that turns; in brackets
stand the lowest and the highest answer.

An answer of loaderbench has an interval, the others' have none. `equal interval`, from three rounds on: the seconds of
as many answers of a way as it takes until the 95 % interval of their mean stall, by the spread between the rounds, is
no wider than that of one answer of loaderbench; two at least, of each cause, then the mean over the causes.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loaderbench.analysis.record import analyze
from loaderbench.analysis.selftest import EITHER, truth_by
from loaderbench.analysis.statistics import t_quantile
from loaderbench.cases.case import CacheState, Case, Effort, Feed, Step, Subject
from loaderbench.devices.select import parse_device
from loaderbench.images.index import index_images
from loaderbench.images.manifest import resolve_dataset
from loaderbench.machine import environment, usable_cpus
from loaderbench.plain import to_json
from loaderbench.recording.facts import Run
from loaderbench.recording.record import RunRecord, Share
from loaderbench.running.jobs.table import MEASURE, A, Job, MeasureRequest, Q
from loaderbench.running.supervisor import Child, KeptChild
from loaderbench.selftest.bench import BedMissing, Bench, Built
from loaderbench.selftest.injections import Injection
from loaderbench.selftest.jobs import DEVICE_SECONDS, WALL_SECONDS, DeviceTimeRequest, Side, WallTimeRequest
from loaderbench.selftest.scenarios import HARD, Scenario, scenarios
from loaderbench.studies.measure import quiet

LOADER, RESOLUTION, FIRST_BATCH = "multiprocess", 256, 16
WORTH = 1.10
"""A gain from which a cause counts as one (docs/method.md, `Verdict`), for the three phases."""
LEAST_ROUNDS, MOST_ANSWERS = 3, 1000
TURN_S = 1.0
"""Of the stopwatch."""
WAITS_FOR_DATA: tuple[Share, ...] = ("prep", "contention", "storage")


def causes() -> dict[str, Scenario]:
    """Name → what is built in: causes of constant size, then of each hard class the first magnitude."""
    found = {"nothing": Scenario("nothing", LOADER, "none", 1.0)}
    for kind, bed in (("prep", None), ("storage", "slow_fuse")):
        for size in (1.5, 2.5):
            found[f"{kind} ×{size:g}"] = Scenario(f"{kind}-{size}", LOADER, kind, size, bed)  # type: ignore[arg-type]
    for one in scenarios(quick=False):
        if one.loader == LOADER and one.hard is not None and one.magnitude == HARD[one.hard].magnitudes[0]:
            found.setdefault(one.hard, one)
    return found


QUICK = ("nothing", "prep ×2.5", "storage ×2.5")


@dataclass(frozen=True)
class AskedRun:
    """The run that is asked about."""

    case: Case
    injection: Injection
    built: Built
    epoch_s: float
    """About what an epoch takes."""

    def with_cache(self, state: CacheState) -> Case:
        return self.case.changed(cache=state)

    def side(self, *, cold: bool) -> Side:
        return Side(self.with_cache("warm"), self.injection, cold)


def ask(log: Path, built: Built, job: Job[Q, A], request: Q) -> A:
    """Have a measuring process of its own do one job, where the run is made."""
    with Child(log) as child:
        built.enter(child.process.pid)
        return child.ask(job, request, quiet)


@dataclass(frozen=True)
class Answer:
    """What a way says."""

    seconds: float
    cause: str
    stall_fraction: float
    half_width: float | None = None
    """Of the 95 % interval of `stall_fraction`; None where the way gives none."""


def template(duration_s: float) -> Case:
    dataset, name = resolve_dataset(None, RESOLUTION)
    choice = parse_device("emulated", model="resnet50", mode="train", precision=None, batch_size=FIRST_BATCH)
    return Case(
        Subject(dataset, name, RESOLUTION),
        Feed(LOADER, "pillow", workers=min(2, usable_cpus())),
        Step("resnet50", "train", choice.precision, choice.device, FIRST_BATCH, input_size=224),  # type: ignore[arg-type]
        Effort(duration_s=duration_s, kernels=False),
    )


def by_loaderbench(subject: AskedRun, log: Path, arguments: argparse.Namespace) -> Answer:
    begun = time.perf_counter()
    case = subject.case
    recording = ask(log, subject.built, MEASURE, MeasureRequest(case, subject.injection))
    record = analyze(Run("benchmark", case, "ok", "", 0.0, environment(), recording))
    assert record.verdict is not None
    stall = sum(record.share(name) or 0.0 for name in WAITS_FOR_DATA)
    named = "+".join(record.verdict.joint) if record.verdict.bottleneck == "mixed" else record.verdict.bottleneck
    return Answer(time.perf_counter() - begun, named or "mixed", stall, half_width_of(record))


def half_width_of(record: RunRecord) -> float | None:
    """Of the stall's 95 % interval: waiting for data, and contention, which is no part of that, as if they varied
    independently. None where one of them is not known."""
    assert record.verdict is not None and record.shares is not None
    known = record.verdict.waiting_for_data
    parts = [None if known is None else known.by_arms]
    if record.share("contention"):
        parts.append(record.shares["contention"])
    widths = [part.half_width for part in parts if part is not None and part.half_width is not None]
    return math.hypot(*widths) if len(widths) == len(parts) else None


def by_three_phases(subject: AskedRun, log: Path, arguments: argparse.Namespace) -> Answer:
    """Step times of three runs; what each adds to the one before is a stall."""
    begun = time.perf_counter()
    num_steps = len(index_images(subject.case.subject.dataset)) // subject.case.step.batch_size
    warm = subject.with_cache("warm")
    synthetic_s = ask(log, subject.built, DEVICE_SECONDS, DeviceTimeRequest(warm, subject.injection, num_steps))
    cached_s, cold_s = (
        ask(
            log,
            subject.built,
            WALL_SECONDS,
            WallTimeRequest((subject.side(cold=cold),), seconds=subject.epoch_s, rounds=1),
        )[0][0]
        for cold in (False, True)
    )
    stalls = {"prep": max(0.0, cached_s - synthetic_s), "storage": max(0.0, cold_s - cached_s)}
    cause = max(stalls, key=lambda name: stalls[name])
    if cold_s < WORTH * (cold_s - stalls[cause]):
        cause = "compute"
    return Answer(time.perf_counter() - begun, cause, min(1.0, sum(stalls.values()) / cold_s))


def by_traceml(subject: AskedRun, log: Path, arguments: argparse.Namespace) -> Answer:
    """An epoch of a plain training loop under `traceml run`; its own diagnosis and times."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="loaderbench-traceml-") as folder:
        job = Path(folder, "job.json")
        job.write_text(json.dumps({"case": subject.case.to_json(), "injection": subject.injection.to_json()}))
        place = [] if subject.built.disturber is None else subject.built.disturber.command_prefix
        command = [
            *place,
            arguments.traceml,
            "run",
            __file__,
            "--mode=summary",
            "--run-name",
            "run",
            "--logs-dir",
            folder,
        ]
        with log.open("ab") as file:
            subprocess.run([*command, "--args", "--job", str(job)], stdout=file, stderr=file, check=True)
        told = json.loads(Path(folder, "run", "final_summary.json").read_text())
    average = told["step_time"]["global"]["average"]
    kind = told["step_time"]["diagnosis"]["kind"]
    cause = {"INPUT_BOUND": "input", "COMPUTE_BOUND": "compute", "H2D_BOUND": "transfer"}.get(kind, kind.lower())
    stall = (average["input_wait_ms"] or 0.0) / average["step_time_ms"]
    return Answer(time.perf_counter() - begun, cause, stall)


def train_under_traceml(job: Path) -> None:
    """The loop that TraceML watches: take a batch, copy it, step, wait for the device."""
    import torch
    import traceml_ai as traceml

    from loaderbench.images.cache_state import evict_files
    from loaderbench.running.rig import Rig

    class Step(torch.nn.Module):
        def __init__(self, rig: Rig) -> None:
            super().__init__()
            self.weight, self.rig = torch.nn.Parameter(torch.zeros(1)), rig

        def forward(self, batch: Any) -> Any:
            self.rig.workload.step(*self.rig.device.copy_in(batch.inputs, batch.targets))
            self.rig.device.synchronize()
            return self.weight.sum()

    traceml.init()
    told = json.loads(job.read_text())
    case = Case.from_json(told["case"])
    with ExitStack() as stack:
        rig = Rig(case, stack, quiet, Injection.from_json(told["injection"]))
        evict_files(rig.images.paths())
        batches = rig.build_loader(rig.data, evict=True).batches()
        model, fetched = Step(rig), traceml.wrap_dataloader_fetch(batches)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # TraceML wants a backward pass and an update to see
        for _ in range(len(rig.images) // case.step.batch_size):
            batch = next(fetched)
            with traceml.trace_step(model):
                optimizer.zero_grad()
                model(batch).backward()
                optimizer.step()
        batches.close()  # type: ignore[attr-defined]


def mean_and_range(values: list[float]) -> tuple[float, float, float]:
    """(mean, lowest, highest)"""
    return float(np.mean(values)), min(values), max(values)


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for way in dict.fromkeys(row["way"] for row in rows):
        mine = [row for row in rows if row["way"] == way]
        found.append(
            {
                "way": way,
                "seconds": mean_and_range([row["seconds"] for row in mine]),
                "error": mean_and_range([abs(row["stall"] - row["stall_true"]) for row in mine]),
                "equal_interval_s": seconds_at_equal_interval(rows, way),
                "named": sum(row["named"] for row in mine),
                "asked": len(mine),
            }
        )
    return found


def seconds_at_equal_interval(rows: Sequence[Mapping[str, Any]], way: str) -> float | None:
    """As the text above says; None where a cause has fewer than LEAST_ROUNDS rounds, or no interval."""
    seconds = []
    for name in dict.fromkeys(row["built_in"] for row in rows):
        of_cause = [row for row in rows if row["built_in"] == name]
        widths = [row["half_width"] for row in of_cause if row.get("half_width") is not None]
        mine = [row for row in of_cause if row["way"] == way]
        if not widths or len(mine) < LEAST_ROUNDS:
            return None
        each_s = float(np.mean([row["seconds"] for row in mine]))
        gives_one = all(row.get("half_width") is not None for row in mine)
        answers = 1 if gives_one else answers_wanted([row["stall"] for row in mine], float(np.mean(widths)))
        seconds.append(answers * each_s)
    return float(np.mean(seconds)) if seconds else None


def answers_wanted(stalls: Sequence[float], half_width: float) -> int:
    """How many answers that spread as these do have a mean that is known to `half_width` (95 %, Student's t)."""
    spread, num = float(np.std(stalls, ddof=1)), 2
    while num < MOST_ANSWERS and t_quantile(num - 1) * spread / num**0.5 > half_width:
        num += 1
    return num


Way = Callable[[AskedRun, Path, argparse.Namespace], Answer]


def is_asked(rows: Sequence[Mapping[str, Any]], number: int, name: str, ways: Collection[str]) -> bool:
    """Whether the rows hold every way's answer about a cause in a round."""
    return set(ways) <= {row["way"] for row in rows if (row["round"], row["built_in"]) == (number, name)}


def ask_all(
    chosen: dict[str, Scenario], rounds: int, ways: dict[str, Way], arguments: argparse.Namespace,
    known: Sequence[Mapping[str, Any]] = (),
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A row for each answer, as it comes. `known`: rows of causes that are not asked about again."""
    with tempfile.TemporaryDirectory(prefix="loaderbench-verdict-") as folder, KeptChild(Path(folder, "log")) as kept:
        log = Path(folder, "log")
        bench = Bench(kept.child(None), template(arguments.duration), TURN_S)
        for number in range(rounds):
            for name, scenario in chosen.items():
                if is_asked(known, number, name, ways):
                    continue
                try:
                    with bench.build(scenario) as built:
                        for row in ask_of(scenario, built, kept.child(None), log, turned(ways, number), arguments):
                            yield {"round": number, "built_in": name, **row}
                except BedMissing as error:
                    print(f"{name}: skipped: {error}")


def turned(ways: dict[str, Way], number: int) -> dict[str, Way]:
    """The same ways, another one first."""
    names = list(ways)
    first = number % len(names)
    return {name: ways[name] for name in names[first:] + names[:first]}


def ask_of(
    scenario: Scenario, built: Built, child: Child, log: Path, ways: dict[str, Way], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """The stopwatch's answer, and each way's."""
    built.enter(child.process.pid)
    watch = built.stopwatch(child)
    true, _, _, _ = truth_by(scenario.cause, watch)
    kind = "compute" if scenario.cause == "none" else scenario.cause
    case = built.case if scenario.warm else built.case.changed(cache="cold")
    num_steps = len(index_images(case.subject.dataset)) / case.step.batch_size
    asked = AskedRun(case, built.injection, built, num_steps * watch.with_s)
    right = {"compute"} if kind == "compute" else {kind}
    if kind == "either":
        right = {*EITHER, "+".join(EITHER)}
    if kind in ("either", *EITHER):
        right.add("input")
    for way, answers in ways.items():
        answer = answers(asked, log, arguments)
        yield {
            "kind": kind, "way": way, "true": true, "stall_true": max(0.0, 1 - watch.without_s / watch.with_s),
            "stall": answer.stall_fraction, "half_width": answer.half_width, "says": answer.cause,
            "named": answer.cause in right, "seconds": answer.seconds,
        }  # fmt: skip


def show(found: list[dict[str, Any]]) -> None:
    print(f"\n{'way':14s}{'seconds':>22s}{'equal interval, s':>19s}{'stall error, points':>26s}{'cause':>12s}")
    for one in found:
        (s, s_low, s_high), (e, e_low, e_high) = one["seconds"], [100 * value for value in one["error"]]
        equal = "-" if one["equal_interval_s"] is None else f"{one['equal_interval_s']:.0f}"
        print(f"{one['way']:14s}{f'{s:.1f} [{s_low:.1f}, {s_high:.1f}]':>22s}{equal:>19s}"
              f"{f'{e:.1f} [{e_low:.1f}, {e_high:.1f}]':>26s}{one['named']:>8d} of {one['asked']}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", type=float, default=12.0, help="seconds of measuring of loaderbench, at least")
    parser.add_argument("--quick", action="store_true", help="1 round of 3 causes")
    parser.add_argument("--only", help="some of the causes, comma separated")
    parser.add_argument("--traceml", metavar="COMMAND", help="the command `traceml` of an environment with traceml-ai")
    parser.add_argument("--json", type=Path, help="write all rows, with the environment")
    parser.add_argument(
        "--resume", action="store_true", help="keep the rows that --json FILE has, and ask for the others"
    )
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        train_under_traceml(arguments.job)
        return
    known = causes()
    wanted = QUICK if arguments.quick else known if arguments.only is None else arguments.only.split(",")
    if set(wanted) - set(known):
        parser.error(f"--only takes some of {', '.join(known)}")
    chosen = {name: known[name] for name in wanted}
    rounds = 1 if arguments.quick else arguments.rounds
    ways: dict[str, Way] = {
        "loaderbench": by_loaderbench,
        "three phases": by_three_phases,
    }
    if arguments.traceml:
        ways["TraceML"] = by_traceml
    rows: list[dict[str, Any]] = []
    if arguments.resume and arguments.json and arguments.json.exists():
        rows = json.loads(arguments.json.read_text())["rows"]
    try:
        for row in ask_all(chosen, rounds, ways, arguments, tuple(rows)):
            rows = [*(one for one in rows if not same_question(one, row)), row]
            truth = f"truth {row['true']:10s} {row['stall_true']:6.1%}{' ' if row['true'] == row['kind'] else '!'}"
            answer = f"{row['way']:13s} {row['says']:13s} {row['stall']:6.1%}  {row['seconds']:5.1f} s"
            print(f"round {row['round'] + 1} {row['built_in']:13s} {truth}  {answer}", flush=True)
            store(rows, arguments)
    except KeyboardInterrupt:
        print("interrupted: what was finished counts")
    show(summarize(rows))


def same_question(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rows are of one way, cause and round."""
    return all(one[name] == other[name] for name in ("round", "built_in", "way"))


def store(rows: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Write what is known so far, where a file was asked for: a run that is killed keeps its rows."""
    if arguments.json:
        figures = {"summary": summarize(rows), "rows": rows, "duration_s": arguments.duration}
        facts = {**figures, "environment": to_json(environment())}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
