"""What is said of a run where it is hard to tell: `loaderbench run` beside a stopwatch that takes the cause away.

    python benchmarks/hard_cases.py [--only NAME,NAME] [--rounds 1] [--json FILE] [--results FOLDER]

The cases are storage whose speed is not constant (few slow files, standstills), a disk whose rate is capped in slices
of time (root's), slow opens with a deadline, processors that others have (busy processes, a cgroup's quota, the model's
own threads, more workers than processors), storage and preparation of which either may go, files in memory on FUSE, and
the table of `make bench` on busy processors.

Each is asked of the command itself, in a process of its own. Truth is the wall time of the very same case with what
disturbs it, and then really without, in turns (loaderbench/selftest/truth.py). A line a case: the truth (cause, gain),
what was said (cause, by whom or of which kind, gain with its interval), the mark, and the seconds from the command's
start to its answer; below it what was short of right. The marks:

    right         the cause; of which kind, or by whom; its gain within 10 % of the stopwatch's, or an interval that
                  holds that; in time; where either of two may go, both
    in part       the cause, but not all of that: what is short is said below the line
    undetermined  no cause
    WRONG         another cause
    unclear       the cause is worth less than 1.10× in truth, so nothing is judged

The exit status is 1 where one was confidently wrong, or broke off.

The oversubscribed case scores advice: each of the first two is run by the stopwatch, and so is a worker for each
processor; an advice whose predicted gain is off by more than 10 %, and whose interval does not hold the measured one,
is wrong.

`--stored FILE` asks nothing: it marks what an earlier `--json` kept, by the marks of today. The oversubscribed case and
the table keep theirs.

`--only bench-table --rounds 20` (a bit more than an hour) also counts how many of the rows' intervals hold the median
of their row's repeats.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from verify import PROFILE

from loaderbench.cases.case import Case, Effort, Feed, Step, Subject, flags
from loaderbench.errors import LoaderbenchError, UnavailableError
from loaderbench.images.manifest import resolve_dataset
from loaderbench.machine import environment, usable_cpus
from loaderbench.plain import to_json
from loaderbench.plugins import loader_choice
from loaderbench.running.supervisor import Child, JobFailed
from loaderbench.selftest.bench import timed_in_turns
from loaderbench.selftest.disturbers import Disturber, Neighbours, neighbours, quota
from loaderbench.selftest.jobs import (
    DEVICE_SECONDS,
    LOADER_SECONDS,
    WALL_SECONDS,
    DeviceTimeRequest,
    LoaderTimeRequest,
    Side,
    WallTimeRequest,
)
from loaderbench.selftest.slow_fuse import slow_fuse
from loaderbench.selftest.throttled_loop import ThrottledLoopBed, throttled_loop
from loaderbench.studies.measure import quiet

BATCH_SIZE = 32
LEAST_SLACK = 1.3
"""Device time ÷ loader time where only the storage is to limit."""
WORTH, OFF = 1.10, 0.10
"""A gain from which a cause counts as one (docs/method.md, `Verdict`); how far a predicted gain may be off."""
STOPWATCH = 0.05
"""How far the stopwatch itself may be off: loaderbench/analysis/selftest.py, `NOTHING`."""
LATE_S = 10.0
"""Seconds that an answer may take beyond `--duration`: processes start, and images are copied."""
WIDE = 3.0
"""An interval whose ends differ by more than this factor bounds nothing."""
TURNS_ALONE = 3
"""How often a model is timed alone."""
FEWEST_REPEATS = 3
"""Of the table, to score its intervals."""
TABLE_RESOLUTIONS, TABLE_LOADERS = "256,512,1024", "serial,multiprocess,threaded,dali"
"""Of `make bench`."""


@dataclass(frozen=True)
class Gain:
    """How much faster the run is without something, by the stopwatch."""

    what: str
    value: float
    turns: tuple[Sequence[float], Sequence[float]] | tuple[()] = ()
    """Seconds a step with it, and without it, measured in turns."""


@dataclass(frozen=True)
class Asked:
    """A run to ask about, while what disturbs it is there."""

    case: Case
    watch: Callable[[Child, Case], list[Gain]]
    """The stopwatch: gains of removing what is built in, the first of which decides whether it counts."""
    group: Disturber | ThrottledLoopBed | None = None
    """What the run's processes must be put in."""


@dataclass(frozen=True)
class Said:
    """What the command answered."""

    bottleneck: str
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    joint: tuple[str, ...] = ()
    by: str | None = None
    """Who has the processors, or what kind of slowness the storage shows; None: not told."""
    summary: str = ""
    rate_is_bounded: bool = True


Rate = tuple[float, float | None, float | None]
"""(images/s, the ends of its interval)"""


@dataclass
class Line:
    """One case of one round."""

    name: str
    truth: str
    mark: str
    seconds: float
    said: Said | None = None
    gains: list[Gain] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rates: dict[str, Rate] = field(default_factory=dict)
    """Of a table: each row's images/s with its interval."""


class Bench:
    """Where runs are made, and what is known of this machine's loaders."""

    def __init__(self, folder: Path, results: Path | None = None, real_first: Path | None = None) -> None:
        """`results`: where the runs are kept; None: nowhere. `real_first`: where a second run of each hard case is kept
        that measures `real` and `device` alone; None: there is none."""
        self.folder, self.results, self.real_first = folder, results or folder / "results", real_first
        self._profile = folder / "bench.toml"
        self._profile.write_text(PROFILE.format(issue_ms=1.0, link=50e9))
        self._loader_s: dict[str, float] = {}

    def case(self, loader: str, resolution: int, workers: int, **more: Any) -> Case:
        """A case whose device takes no time yet (`paced`)."""
        dataset, name = resolve_dataset(None, resolution)
        choice = loader_choice(loader)
        case = Case(
            Subject(dataset, name, resolution, cache="warm"),
            Feed(loader, choice.decoder and choice.decoder.name, workers, output=choice.traits.output),
            Step("resnet50", "train", "fp32", f"emulated:{self._profile}", BATCH_SIZE, input_size=224),
            Effort(duration_s=20.0),
        )
        return case.changed(**more)

    def paced(self, case: Case, step_s: float) -> Case:
        """The case on an emulated device that takes so long for a step."""
        factor = 0.032 * case.step.batch_size / 64 / step_s
        return case.changed(device=f"emulated:{self._profile}x{factor:.5g}")

    def loader_s(self, case: Case) -> float:
        """Seconds a batch of its loader, alone and undisturbed."""
        if case.key not in self._loader_s:
            with self.child() as child:
                self._loader_s[case.key] = child.ask(LOADER_SECONDS, LoaderTimeRequest(case), quiet)
        return self._loader_s[case.key]

    def child(self) -> Child:
        return Child(self.folder / "stopwatch.log")

    def run(
        self, command: str, case_flags: list[str], prefix: list[str], results: Path | None = None
    ) -> tuple[dict[str, Any], float]:
        """(what `--json` gave, seconds from its start to its answer). Raises LoaderbenchError where it fails."""
        target, begun = self.folder / "answer.json", time.perf_counter()
        store = ["--results", str(results or self.results), "--json", str(target), "--quiet"]
        done = subprocess.run(
            [*prefix, sys.executable, "-m", "loaderbench", command, *case_flags, *store],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds = time.perf_counter() - begun
        if done.returncode:
            raise LoaderbenchError(f"{command} ended with {done.returncode}: {(done.stderr or done.stdout)[-400:]}")
        answer: dict[str, Any] = json.loads(target.read_text())
        return answer, seconds


def keep_truth(run: Path, name: str, wanted: HardCase, gains: Sequence[Gain]) -> None:
    """Write what is known of a run into its folder, for tests/corpus."""
    told = [gain for gain in gains if gain.what == wanted.cause or wanted.cause == "either"]
    most = max(told, key=lambda gain: gain.value)
    truth = {
        "name": name, "cause": wanted.cause, "without": "without_s", "built_in": {"hard case": name},
        "turns": dict(zip(("with_s", "without_s"), most.turns, strict=True)),
        "kind": wanted.by if wanted.cause == "storage" else None,
        "culprit": wanted.by if wanted.cause == "contention" else None,
    }  # fmt: skip
    (run / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def flags_of(case: Case) -> list[str]:
    """The options of `run` that ask for the case."""
    subject, feed, step, effort = case.subject, case.feed, case.step, case.effort
    decoder = [] if feed.decoder is None else ["--decoder", feed.decoder]
    return [
        subject.dataset, "--cache", subject.cache, "--loader", feed.loader, *decoder, "--output", feed.output,
        "--workers", str(feed.workers), "--device", step.device, "--model", step.model, "--mode", step.mode,
        "--precision", step.precision, "--batch-size", str(step.batch_size), "--input-size", str(step.input_size),
        "--duration", str(effort.duration_s),
    ]  # fmt: skip


# -- the cases: each yields the run to ask about while what disturbs it is there -----------------------------


def in_turns(
    what: str, seconds: float, without: Callable[[Case], Side], disturber: Disturber | None, child: Child, case: Case
) -> list[Gain]:
    """The gain of the other side over the case, in turns."""
    sides = (Side(case, cold=case.subject.cache == "cold"), without(case))
    request = WallTimeRequest(sides, seconds=seconds, mean=True, disturber=disturber)
    return [gain_of(what, *timed_in_turns(child, request))]


def gain_of(what: str, with_s: Sequence[float], without_s: Sequence[float]) -> Gain:
    """By the means of both, since what slows these runs comes and goes."""
    return Gain(what, statistics.fmean(with_s) / statistics.fmean(without_s), (with_s, without_s))


@contextmanager
def uneven_storage(
    bench: Bench, loader: str, workers: int, step_s: float, duration_s: float, watch_s: float,
    bed: Mapping[str, Any],
) -> Iterator[Asked]:  # fmt: skip
    """Cold files on FUSE; without: the same files on this machine's disk, in memory. Where processors are slow, the
    device is too: else preparation would limit the run as well."""
    plain = bench.case(loader, 256, workers, duration_s=duration_s)
    plain = bench.paced(plain, max(step_s, LEAST_SLACK * bench.loader_s(plain)))
    with slow_fuse(plain.subject.dataset, **bed) as mounted:
        watch = partial(in_turns, "storage", watch_s, lambda case: Side(plain), None)
        yield Asked(plain.changed(dataset=mounted.path, cache="cold"), watch)


@contextmanager
def capped_disk(bench: Bench, loader: str, workers: int, step_s: float, bytes_per_s: float) -> Iterator[Asked]:
    """Cold files on a throttled disk; without: the same files on this machine's disk, in memory."""
    plain = bench.paced(bench.case(loader, 256, workers), step_s)
    with throttled_loop(plain.subject.dataset, bytes_per_s=bytes_per_s) as disk:
        watch = partial(in_turns, "storage", 3.0, lambda case: Side(plain), None)
        yield Asked(plain.changed(dataset=disk.path, cache="cold"), watch, disk)


@contextmanager
def held_up(
    bench: Bench, loader: str, device_to_loader: float, disturbing: Callable[[], AbstractContextManager[Disturber]]
) -> Iterator[Asked]:
    """A run that the device would limit, were its processors its own; without: the disturber switched off."""
    case = bench.case(loader, 256, min(2, usable_cpus()))
    case = bench.paced(case, device_to_loader * bench.loader_s(case))
    with disturbing() as disturber:
        watch = partial(in_turns, "contention", 2.0, lambda case: Side(case, disturbed=False), disturber)
        yield Asked(case, watch, disturber)


@contextmanager
def own_threads(bench: Bench, input_size: int, batch_size: int) -> Iterator[Asked]:
    """A model on the CPU, whose threads and the loader's processes share the processors. Without: the slower of the two
    alone."""

    def watch(child: Child, case: Case) -> list[Gain]:
        request = WallTimeRequest((Side(case),), seconds=3.0, rounds=1)
        # What shares the machine moves them by a fifth from second to second.
        together_s, models_s, loaders_s = [], [], []
        for _ in range(TURNS_ALONE):
            together_s += child.ask(WALL_SECONDS, request, quiet)[0]
            models_s.append(child.ask(DEVICE_SECONDS, DeviceTimeRequest(case), quiet))
            loaders_s.append(child.ask(LOADER_SECONDS, LoaderTimeRequest(case, seconds=2.0), quiet))
        return [gain_of("contention", together_s, max(models_s, loaders_s, key=statistics.fmean))]

    case = bench.case("multiprocess", 256, min(2, usable_cpus()), model="resnet18", mode="infer", device="cpu")
    yield Asked(case.changed(input_size=input_size, batch_size=batch_size), watch)


@contextmanager
def either(bench: Bench, slower: float) -> Iterator[Asked]:
    """Opens and decoding of equal time in each worker, together `slower` times the device's. Without the one: no slow
    opens. Without the other: the same images at a quarter of the side, which decode in a fraction of the time."""
    workers = min(2, usable_cpus())
    plain = bench.case("multiprocess", 1024, workers, batch_size=16)
    small, _ = resolve_dataset(None, 256)
    loader_s = bench.loader_s(plain)
    plain = bench.paced(plain, 2 / slower * loader_s)
    latency = {"open_latency_s": loader_s * workers / plain.step.batch_size}
    with slow_fuse(plain.subject.dataset, **latency) as mounted, slow_fuse(small, **latency) as also:

        def watch(child: Child, case: Case) -> list[Gain]:
            sides = (Side(case), Side(plain), Side(case.changed(dataset=also.path)))
            request = WallTimeRequest(sides, seconds=3.0, mean=True)
            both_s, no_storage_s, no_prep_s = timed_in_turns(child, request)
            return [gain_of("storage", both_s, no_storage_s), gain_of("prep", both_s, no_prep_s)]

        yield Asked(plain.changed(dataset=mounted.path), watch)


@contextmanager
def warm_fuse(bench: Bench, device_to_loader: float) -> Iterator[Asked]:
    """Files in memory on FUSE, which limit nothing: the decoders do. Without: the device alone."""
    plain = bench.case("multiprocess", 256, min(2, usable_cpus()))
    plain = bench.paced(plain, device_to_loader * bench.loader_s(plain))
    with slow_fuse(plain.subject.dataset) as mounted:

        def watch(child: Child, case: Case) -> list[Gain]:
            request = WallTimeRequest((Side(case), Side(plain)), seconds=2.0, mean=True)
            real_s, on_disk_s = timed_in_turns(child, request)
            alone_s = [child.ask(DEVICE_SECONDS, DeviceTimeRequest(case), quiet) for _ in real_s]
            return [gain_of("prep", real_s, alone_s), gain_of("storage", real_s, on_disk_s)]

        yield Asked(plain.changed(dataset=mounted.path), watch)


@dataclass(frozen=True)
class HardCase:
    """`cause`: what must be named, `either` of storage and preparation; `by`: of which kind, or by whom."""

    cause: str
    by: str | None
    make: Callable[[Bench], AbstractContextManager[Asked]]


def storage_case(
    by: str, loader: str, workers: int, step_s: float, watch_s: float, duration_s: float = 20.0, **bed: Any
) -> HardCase:
    """`step_s`: of the device, at least; `watch_s`: a turn of the stopwatch, several periods of what comes and goes."""
    make = partial(uneven_storage, loader=loader, workers=workers, step_s=step_s)
    return HardCase("storage", by, partial(make, duration_s=duration_s, watch_s=watch_s, bed=bed))


CASES: dict[str, HardCase] = {
    "tails-multiprocess": storage_case("tail", "multiprocess", 3, 0.040, 4.0, tail=(0.02, 0.25)),
    "tails-threaded": storage_case("tail", "threaded", 2, 0.030, 4.0, tail=(0.015, 0.6)),
    "tails-tenth": storage_case("tail", "multiprocess", 2, 0.040, 4.0, tail=(0.10, 0.10)),
    "tails-serial": storage_case("tail", "serial", 0, 0.040, 8.0, tail=(0.01, 0.4)),
    "tails-serial-often": storage_case("tail", "serial", 0, 0.060, 8.0, tail=(0.02, 0.3)),
    "stalls-serial": storage_case("stalls", "serial", 0, 0.040, 8.1, stall=(2.7, 0.8)),
    "stalls-serial-short": storage_case("stalls", "serial", 0, 0.050, 9.0, stall=(1.9, 0.7)),
    "stalls-threaded": storage_case("stalls", "threaded", 2, 0.030, 7.2, stall=(1.8, 0.6)),
    "stalls-threaded-3": storage_case("stalls", "threaded", 3, 0.030, 9.9, stall=(3.3, 1.2)),
    "stalls-multiprocess-3": storage_case("stalls", "multiprocess", 3, 0.040, 8.8, stall=(2.2, 0.9)),
    "stalls-long": storage_case("stalls", "multiprocess", 2, 0.035, 11.0, 30.0, stall=(5.5, 1.5)),
    "stalls-multiprocess": storage_case("stalls", "multiprocess", 2, 0.035, 9.2, stall=(4.6, 1.7)),
    "stalls-short": storage_case("stalls", "multiprocess", 2, 0.035, 4.0, stall=(0.5, 0.2)),
    "capped-serial": HardCase("storage", "bandwidth", partial(
        capped_disk, loader="serial", workers=0, step_s=0.040, bytes_per_s=8e6)),
    "capped-threaded": HardCase("storage", "bandwidth", partial(
        capped_disk, loader="threaded", workers=2, step_s=0.030, bytes_per_s=16e6)),
    "capped-multiprocess": HardCase("storage", "bandwidth", partial(
        capped_disk, loader="multiprocess", workers=3, step_s=0.040, bytes_per_s=12e6)),
    "opens-deadline": storage_case("latency", "multiprocess", 2, 0.040, 3.0, open_latency_s=0.005, duration_s=12.0),
    "opens-slow-deadline": storage_case("latency", "threaded", 2, 0.050, 3.0, open_latency_s=0.011, duration_s=18.0),
    "neighbours-1": HardCase("contention", "neighbours", partial(
        held_up, loader="multiprocess", device_to_loader=1.1, disturbing=partial(neighbours, 1))),
    "neighbours-2": HardCase("contention", "neighbours", partial(
        held_up, loader="multiprocess", device_to_loader=1.2, disturbing=partial(neighbours, 2))),
    "neighbours-3-threaded": HardCase("contention", "neighbours", partial(
        held_up, loader="threaded", device_to_loader=1.2, disturbing=partial(neighbours, 3))),
    "quota-0.3": HardCase("contention", "quota", partial(
        held_up, loader="multiprocess", device_to_loader=1.2, disturbing=partial(quota, 0.3))),
    "quota-0.5": HardCase("contention", "quota", partial(
        held_up, loader="multiprocess", device_to_loader=1.2, disturbing=partial(quota, 0.5))),
    "quota-1.1": HardCase("contention", "quota", partial(
        held_up, loader="threaded", device_to_loader=1.2, disturbing=partial(quota, 1.1))),
    "own-threads-96": HardCase("contention", "own threads", partial(own_threads, input_size=96, batch_size=16)),
    "own-threads-64": HardCase("contention", "own threads", partial(own_threads, input_size=64, batch_size=24)),
    "either-1.4": HardCase("either", None, partial(either, slower=1.4)),
    "either-1.7": HardCase("either", None, partial(either, slower=1.7)),
    "warm-fuse": HardCase("prep", None, partial(warm_fuse, device_to_loader=0.5)),
}  # fmt: skip
OVERSUBSCRIBED = {"oversubscribed-512": (512, 6), "oversubscribed-256": (256, 8)}
"""Name → (resolution, workers)."""
TABLE = "bench-table"


# -- asking, and judging ------------------------------------------------------------------------------------


def said_of(record: Mapping[str, Any]) -> Said:
    """What a record says; what an older engine does not tell is None."""
    verdict, rate = record["verdict"], record["throughput"]
    named = verdict["bottleneck"]
    gain = verdict["joint_speedup"] if named == "mixed" else verdict["speedup_if_removed"].get(named)
    gain = gain or {"value": None, "low": None, "high": None}
    contention, storage = record.get("contention") or {}, record.get("storage") or {}
    by = {"contention": contention.get("by"), "storage": storage.get("kind")}.get(named)
    return Said(
        named, gain["value"], gain["low"], gain["high"], tuple(verdict["joint"]), by, verdict["summary"],
        not is_wide(rate["low"], rate["high"]),
    )  # fmt: skip


def is_wide(low: float | None, high: float | None) -> bool:
    return low is None or high is None or not math.isfinite(high) or high > WIDE * low


def judge(wanted: HardCase, gains: Sequence[Gain], said: Said, late: Sequence[str] = ()) -> tuple[str, list[str]]:
    """(the mark, what is short of right). `late`: what is to be said of an answer that came too late."""
    short, besides = list[str](), [*_unbounded(said), *late]
    if gains[0].value < WORTH:
        return "unclear", []
    named = {*said.joint} if said.bottleneck == "mixed" else {said.bottleneck}
    if said.bottleneck == "undetermined":
        return "undetermined", besides
    if wanted.cause == "either":
        if not named & {"storage", "prep"}:
            return "WRONG", besides
        if not named >= {"storage", "prep"}:
            short.append("either may go, and it names one")
        elif "together" in said.summary:
            short.append(f"says `together`: {said.summary}")
    elif wanted.cause not in named:
        return "WRONG", besides
    elif len(named) > 1:
        short.append(f"names {' and '.join(said.joint)}")
    truth = next((gain.value for gain in gains if gain.what == said.bottleneck), gains[0].value)
    short += _of_gain(truth, said)
    if wanted.by is not None and said.by != wanted.by:
        short.append(f"{wanted.by}, not {said.by}")
    short += besides
    return "in part" if short else "right", short


def _of_gain(truth: float, said: Said) -> list[str]:
    if said.gain is None or is_wide(said.low, said.high):
        return ["its gain is not bounded"]
    assert said.low is not None and said.high is not None
    error = said.gain / truth - 1
    return [] if said.low <= truth <= said.high or abs(error) <= OFF else [f"its gain is off by {error:+.0%}"]


def _unbounded(said: Said) -> list[str]:
    return [] if said.rate_is_bounded else ["its throughput is not bounded"]


def lateness(seconds: float, duration_s: float) -> list[str]:
    late_s = seconds - duration_s
    return [f"answered {late_s:.0f} s after --duration {duration_s:g}"] if late_s > LATE_S else []


def judged_again(line: Mapping[str, Any]) -> Line:
    """A stored line, with the mark of today. What it says of lateness stays."""
    found = Line(**{**line, "said": line["said"] and Said(**{**line["said"], "joint": tuple(line["said"]["joint"])}),
                    "gains": [Gain(**gain) for gain in line["gains"]]})  # fmt: skip
    if found.name in CASES and found.said is not None:
        late = [note for note in found.notes if note.startswith("answered")]
        found.mark, found.notes = judge(CASES[found.name], found.gains, found.said, late)
    return found


def ask(bench: Bench, name: str, wanted: HardCase) -> Line:
    """Run a case, then hold the stopwatch against it."""
    with ExitStack() as stack:
        asked = stack.enter_context(wanted.make(bench))
        prefix = [] if asked.group is None else asked.group.command_prefix
        record, seconds = bench.run("run", flags_of(asked.case), prefix)
        runs = [bench.results / record["run_id"]]
        if bench.real_first is not None:
            alone = [*flags_of(asked.case), "--arms", "device,real", "--no-kernels"]
            runs.append(bench.real_first / bench.run("run", alone, prefix, bench.real_first)[0]["run_id"])
        child = stack.enter_context(bench.child())
        if asked.group is not None:
            asked.group.enter(child.process.pid)
        gains = asked.watch(child, Case.from_json(record["case"]))
    said = said_of(record)
    for run in runs:
        keep_truth(run, name, wanted, gains)
    mark, notes = judge(wanted, gains, said, lateness(seconds, asked.case.effort.duration_s))
    truth = wanted.cause if wanted.by is None else f"{wanted.cause} ({wanted.by})"
    return Line(name, truth, mark, seconds, said, gains, notes)


def ask_oversubscribed(bench: Bench, name: str) -> Line:
    """More workers than processors: its advice, and a worker for each processor, by the stopwatch."""
    resolution, workers = OVERSUBSCRIBED[name]
    case = bench.case("multiprocess", resolution, workers, device="emulated", batch_size=64)
    asked_flags = flags_of(case)
    asked_flags[asked_flags.index("--device") + 1] = "emulated"
    record, seconds = bench.run("run", asked_flags, [])
    case, said, notes, gains = Case.from_json(record["case"]), said_of(record), [], []
    advised = [one for one in record["verdict"]["advice"] if one["change"] and one["predicted_speedup"]][:2]
    changed = [case.changed(**one["change"]) for one in advised]
    for other in (*changed, case.changed(workers=usable_cpus())):
        with bench.child() as child:
            request = WallTimeRequest((Side(case), Side(other)), seconds=3.0, mean=True)
            real_s, other_s = request.of(child.ask(WALL_SECONDS, request, quiet))
        gains.append(Gain(flags({key: other.to_json()[key] for key in ("loader", "decoder", "output", "workers")}),
                          real_s / other_s))  # fmt: skip
    wrong, short = False, [*_unbounded(said), *lateness(seconds, case.effort.duration_s)]
    for one, gain in zip(advised, gains, strict=False):
        told_of, is_off, bounds_it = advice_beside(one["predicted_speedup"], gain)
        wrong = wrong or (is_off and bounds_it)
        short += [f"the advice {gain.what} is not bounded"] * (is_off and not bounds_it)
        notes.append(told_of)
    fewer = gains[-1].value
    if fewer >= WORTH and not any(one["change"].get("workers") == usable_cpus() for one in record["verdict"]["advice"]
                                  if one["change"]):  # fmt: skip
        short.append(f"{usable_cpus()} workers are worth {fewer:.2f}×, and not advised")
    causes = {"contention", "prep"} if fewer < WORTH * (1 + STOPWATCH) else {"contention"}
    if said.bottleneck == "mixed":
        short.append(f"names {' and '.join(said.joint) or 'no cause'}")
    elif said.bottleneck not in (*causes, "undetermined"):
        wrong = True
    mark = "undetermined" if said.bottleneck == "undetermined" else "in part" if short else "right"
    truth = f"{usable_cpus()} workers {fewer:.2f}×"
    return Line(name, truth, "WRONG" if wrong else mark, seconds, said, gains, [*notes, *short])


def advice_beside(predicted: Mapping[str, Any], gain: Gain) -> tuple[str, bool, bool]:
    """(a line, whether an advice's predicted gain is off, whether its interval says anything)"""
    error, bounded = predicted["value"] / gain.value - 1, not is_wide(predicted["low"], predicted["high"])
    inside = bounded and predicted["low"] / (1 + STOPWATCH) <= gain.value <= predicted["high"] * (1 + STOPWATCH)
    off = abs(error) > OFF and not inside
    interval = f"{predicted['value']:.2f} [{predicted['low'] or 0:.2f}, {predicted['high'] or math.inf:.2f}]"
    line = f"advice {gain.what}: predicted {interval}, measured {gain.value:.2f}, {error:+.0%}{' OFF' * off}"
    return line, off, bounded


def ask_table(bench: Bench, name: str, loaders: str, resolutions: str) -> Line:
    """`make bench` beside a busy process for each processor: is every row decided, finite, and has it kernel gaps?"""
    asked = [
        "--res", resolutions, "--loader", loaders, "--device", "emulated", "--precision", "fp32", "--cache", "warm",
        "--duration", "10",
    ]  # fmt: skip
    with neighbours(usable_cpus()) as busy:
        assert isinstance(busy, Neighbours)
        answer, seconds = bench.run("sweep", asked, [])
    rows = answer["runs"]
    decided = sum((row["verdict"] or {}).get("bottleneck") not in (None, "undetermined") for row in rows)
    finite = sum(not is_wide(row["throughput"]["low"], row["throughput"]["high"]) for row in rows if row["throughput"])
    gaps = sum((row["device"] or {}).get("kernel_gap") is not None for row in rows)
    notes = [f"{decided} of {len(rows)} rows decided, {finite} with a bounded interval, {gaps} with kernel gaps"]
    mark = "right" if decided == finite == gaps == len(rows) else "undetermined"
    return Line(name, f"{len(rows)} rows", mark, seconds, None, [], notes, rates_of(rows))


def rates_of(rows: Sequence[dict[str, Any]]) -> dict[str, Rate]:
    """Resolution and loader → (rate, its interval's ends), of the records that have one; an end is None where the
    interval is not bounded."""
    return {
        f"{row['case']['resolution']} {row['case']['loader']}": (rate["value"], rate["low"], rate["high"])
        for row in rows
        if (rate := row["throughput"])
    }


def held(lines: Sequence[Line]) -> str | None:
    """How many intervals of the table's repeats hold the median of their row's repeats, of those that are bounded; None
    with fewer than 3."""
    tables = [line.rates for line in lines if line.rates]
    if len(tables) < FEWEST_REPEATS:
        return None
    found, unbounded = list[bool](), 0
    for row in sorted(set.intersection(*map(set, tables))):
        median = statistics.median(table[row][0] for table in tables)
        for _, low, high in (table[row] for table in tables):
            if low is None or high is None:
                unbounded += 1
            else:
                found.append(low <= median <= high)
    more = f", {unbounded} are not bounded" if unbounded else ""
    return f"{len(tables)} repeats: {sum(found)} of {len(found)} intervals hold their row's median{more}"


def told(line: Line) -> str:
    """The line's text."""
    gains = ", ".join(f"{gain.value:.2f}×" for gain in line.gains)
    said = ""
    if line.said is not None:
        by = f" ({line.said.by})" if line.said.by else ""
        what = "+".join(line.said.joint) if line.said.bottleneck == "mixed" else line.said.bottleneck
        number = (
            ""
            if line.said.gain is None
            else f" {line.said.gain:.2f}× [{line.said.low or 0:.2f}, {line.said.high or 0:.2f}]"
        )
        said = f"{what}{by}{number}"
    return f"{line.name:22s} truth {f'{line.truth} {gains}':38s} said {said:44s} {line.mark:12s} {line.seconds:5.0f} s"


def main() -> None:
    names = [*CASES, *OVERSUBSCRIBED, TABLE]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"some of {', '.join(names)}, or the beginnings of their names, comma separated")
    parser.add_argument("--rounds", type=int, default=1, help="how often each case is asked")
    parser.add_argument("--table", default=f"{TABLE_LOADERS} {TABLE_RESOLUTIONS}", help="loaders and resolutions")
    parser.add_argument("--json", type=Path, help="write all lines, with the environment")
    parser.add_argument("--results", type=Path, help="keep the runs that were asked about in this folder")
    parser.add_argument(
        "--real-first", type=Path, help="run each hard case again, `real` and `device` alone, into here"
    )
    parser.add_argument("--stored", type=Path, help="mark the lines that --json wrote again, and ask nothing")
    arguments = parser.parse_args()
    if arguments.stored is not None:
        end_with([printed(judged_again(line)) for line in json.loads(arguments.stored.read_text())["lines"]])
    wanted = names if arguments.only is None else arguments.only.split(",")
    chosen = [name for name in names if name.startswith(tuple(wanted))]
    if not chosen:
        parser.error(f"--only takes some of {', '.join(names)}")
    lines: list[Line] = []
    with tempfile.TemporaryDirectory(prefix="loaderbench-hard-", dir=os.environ.get("TMPDIR")) as folder:
        bench = Bench(Path(folder), arguments.results, arguments.real_first)
        try:
            for _ in range(arguments.rounds):
                for name in chosen:
                    lines += one_line(bench, name, arguments.table)
        except KeyboardInterrupt:
            print("interrupted: what was finished counts")
    if arguments.json is not None:
        facts = {"lines": [asdict(line) for line in lines], "environment": to_json(environment())}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")
    if coverage := held(lines):
        print(coverage)
    end_with(lines)


def end_with(lines: Sequence[Line]) -> NoReturn:
    """How many there are of each mark, what was right in part by name, and the exit status."""
    marks = [line.mark for line in lines]
    print(", ".join(f"{marks.count(mark)} {mark}" for mark in dict.fromkeys(marks)))
    if partly := [f"{line.name} ({'; '.join(line.notes)})" for line in lines if line.mark == "in part"]:
        print(f"in part: {', '.join(partly)}")
    sys.exit(1 if {"WRONG", "failed"} & {*marks} else 0)


def one_line(bench: Bench, name: str, table: str) -> list[Line]:
    """Ask one case and print what came; empty where this machine cannot."""
    try:
        if name == TABLE:
            line = ask_table(bench, name, *table.split())
        elif name in OVERSUBSCRIBED:
            line = ask_oversubscribed(bench, name)
        else:
            line = ask(bench, name, CASES[name])
    except UnavailableError as error:
        print(f"{name:22s} skipped: {error}", flush=True)
        return []
    except (LoaderbenchError, JobFailed) as error:
        print(f"{name:22s} failed: {error}", flush=True)
        return [Line(name, "", "failed", 0.0)]
    return [printed(line)]


def printed(line: Line) -> Line:
    print(told(line), flush=True)
    for note in line.notes:
        print(f"{'':22s}   {note}", flush=True)
    return line


if __name__ == "__main__":
    main()
