"""User scripts with something slow built in: what it truly costs, and what is said of it.

    python benchmarks/watch.py [--only NAME,NAME] [--quick] [--rounds 3] [--traceml COMMAND] [--json FILE] [--resume]
    python benchmarks/watch.py --causes [--only NAME,NAME] [--rounds 3] [--traceml COMMAND] [--py-spy COMMAND]
        [--json FILE] [--results DIR]
    python benchmarks/watch.py --overhead [--rounds 2] [--seconds 16] [--only 'no probes'] [--json FILE]

The scripts (benchmarks/watched) are such as users have: plain loops, accumulation, AMP, several loaders, a loader for
each epoch, an iterable data set, no workers, Hugging Face, Lightning, Accelerate, DALI. None imports loaderbench.
Packages that are absent leave their scripts out, by name. A case is `SCRIPT/INJECTION@STEP-MS`.

Truth is the scripts' own stopwatch: seconds a step, all pauses included, with the injection and without it, in turns;
the gain is the median over rounds of the ratio within a round. The rival's gain is that of taking away the other side
of the pipeline while the injection stays: the step where the loader was slowed, preparation where the step was. A case
is clear where the gain is CLEAR at least and the rival's below RIVAL. Neighbours have no rival: what they slow would,
taken away, gain as much, and that does not make them less of a cause. Nor have validation and the change of the epoch,
which are no part of a step. What is slow may be seen by both sides, so that a script's samples and losses are compared
too: those with the injection and without it must be the same, bit for bit.

TraceML (with --traceml) is given the same script with no line added, as `traceml run` is meant. It tells neither
storage from preparation nor what holds up the main thread or the processors: `input` counts for slow samples, collate
and storage, `compute` for more compute and slow issuing, and it is not asked about the rest.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from turns import median_interval, spread
from watch_causes import measure as measure_causes
from watch_causes import traceml_says
from watch_overhead import SIDES, overhead

from loaderbench.errors import LoaderbenchError, UnavailableError
from loaderbench.machine import environment, usable_cpus
from loaderbench.plain import to_json
from loaderbench.selftest.bench import MORE_ROUNDS, leaves_open
from loaderbench.selftest.disturbers import neighbours
from loaderbench.selftest.slow_fuse import slow_fuse

SCRIPTS = Path(__file__).parent / "watched"
CLEAR, RIVAL = 1.3, 1.15
NUM_FILES, FILE_FLOATS = 1024, 1024
"""As `FLOATS` of benchmarks/watched/scene.py."""
BATCH_SIZE, WORKERS = 8, 2
"""Of the scripts."""
LIMIT_S = 240.0
"""Of one run of a script. All run in the folder of the scripts: Python finds what lies in the working directory, and a
folder `datasets` there hides the package of that name, which Hugging Face asks for."""
NEEDS = {
    "hf_trainer": ("transformers", "accelerate"),
    "lightning_fit": ("lightning",),
    "accelerate_loop": ("accelerate",),
    "dali_iterator": ("nvidia.dali",),
}
NEEDS_CUDA = ("pinned",)
"""Scripts that do without a GPU what another one does."""
CAUSES = {
    "item": "prep", "collate": "prep", "storage": "storage", "issue": "launch", "compute": "compute",
    "neighbours": "contention", "validation": "validation", "epoch": "epoch",
}  # fmt: skip
"""Injection → what must be named, in the words of verdicts where these have one."""
WITHOUT_RIVAL = ("neighbours", "validation", "epoch")
OF_TRACEML = {
    "item": "INPUT_BOUND", "collate": "INPUT_BOUND", "storage": "INPUT_BOUND",
    "issue": "COMPUTE_BOUND", "compute": "COMPUTE_BOUND",
}  # fmt: skip

NO_DIAGNOSIS = ("none", "NO_DATA")
"""Of TraceML, which sees the steps of Hugging Face and Lightning; a loop of one's own needs its `trace_step`."""


@dataclass(frozen=True)
class Asked:
    """A script with an injection of a strength: in steps, of `neighbours` their number for two processors."""

    script: str
    injection: str
    strength: float
    step_ms: float = 10.0
    base: float = 0.2
    """What the loader takes without the injection, in steps."""
    cuda: bool = False

    @property
    def name(self) -> str:
        return f"{self.script}/{self.injection}@{self.step_ms:g}"

    def flags(self, *, injected: bool, rival_gone: bool = False) -> list[str]:
        """The script's options; `rival_gone`: without the other side of the pipeline."""
        inside = injected and self.injection not in ("storage", "neighbours")
        of_loader = CAUSES[self.injection] in ("prep", "storage")
        base = 0.0 if rival_gone and not of_loader else self.base
        steps = round(128 * 10 / max(self.step_ms, 2.5))
        return [
            "--inject", self.injection if inside else "none", "--strength", str(self.strength), "--base", str(base),
            "--step-ms", str(self.step_ms), "--epoch-steps", str(steps), "--epochs", "3",
            *(["--no-step"] if rival_gone and of_loader else []), *(["--cuda"] if self.cuda else []),
        ]  # fmt: skip


def cases() -> dict[str, Asked]:
    """Name → case. A script without workers does one thing after the other: there only much is clear."""
    found = []
    for script in sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "scene"):
        alone = script == "no_workers"
        for injection in ("item", "collate", "storage", "issue", "compute"):
            if (script, injection) == ("dali_iterator", "collate"):
                continue  # DALI puts batches together itself
            of_loader = CAUSES[injection] in ("prep", "storage")
            found.append(Asked(script, injection, 9.0 if alone and of_loader else 2.0, base=0.1))
    one_ms = ("plain", "accumulation", "several_loaders", "lightning_fit")
    found += [Asked(script, kind, 6.0, 1.0) for script in one_ms for kind in ("item", "storage", "issue", "compute")]
    busy = ("plain", "accumulation", "several_loaders", "lightning_fit", "accelerate_loop", "hf_trainer")
    found += [Asked(script, "neighbours", 4, base=0.8) for script in busy]
    found += [Asked("several_loaders", "validation", 4.0)]
    found += [Asked(script, "epoch", 1.0) for script in ("plain", "loader_each_epoch", "lightning_fit")]
    return {one.name: one for one in found}


QUICK = ("plain/item@10", "plain/storage@10", "plain/compute@10")


def absent(script: str) -> list[str]:
    """Packages that the script needs and this environment lacks."""

    def lacks(package: str) -> bool:
        try:
            return importlib.util.find_spec(package) is None
        except ModuleNotFoundError:  # the package that it is in
            return True

    return [package for package in NEEDS.get(script, ()) if lacks(package)]


def timed(command: list[str]) -> dict[str, Any]:
    """What the script's stopwatch printed. Raises LoaderbenchError where the command fails or prints none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, cwd=SCRIPTS)
    except subprocess.TimeoutExpired:
        raise LoaderbenchError(f"took more than {LIMIT_S:.0f} s") from None
    told = [line for line in done.stdout.splitlines() if line.startswith("TIMED ")]
    if done.returncode or len(told) != 1:
        raise LoaderbenchError(f"ended with {done.returncode}: {(done.stderr or done.stdout)[-400:]}")
    figures: dict[str, Any] = json.loads(told[0].removeprefix("TIMED "))
    return figures


@contextmanager
def built_in(one: Asked, data: Path) -> Iterator[Path]:
    """The folder to read, while what is slow outside of the script is there."""
    if one.injection == "storage":
        lanes = 1 if one.script == "no_workers" else WORKERS
        with slow_fuse(data, open_latency_s=one.strength * one.step_ms / 1e3 * lanes / BATCH_SIZE) as bed:
            yield Path(bed.path)
    elif one.injection == "neighbours":
        with neighbours(round(one.strength * usable_cpus() / 2)):
            yield data
    else:
        yield data


def command_of(one: Asked, data: Path, **flags: bool) -> list[str]:
    return [sys.executable, str(SCRIPTS / f"{one.script}.py"), str(data), *one.flags(**flags)]


def one_round(one: Asked, data: Path, number: int) -> dict[str, Any]:
    """Seconds a step of each side, another one first in each round."""

    def injected(**flags: bool) -> dict[str, Any]:
        with built_in(one, data) as folder:
            return timed(command_of(one, folder, injected=True, **flags))

    sides: dict[str, Callable[[], dict[str, Any]]] = {
        "with": injected,
        "without": lambda: timed(command_of(one, data, injected=False)),
    }
    if one.injection not in WITHOUT_RIVAL:
        sides["rival_gone"] = lambda: injected(rival_gone=True)
    names = list(sides)
    first = number % len(names)
    return {name: sides[name]() for name in names[first:] + names[:first]}


@dataclass(frozen=True)
class Truth:
    """Of a case, by the stopwatch."""

    gains: tuple[float, ...]
    """One a round."""
    turns: dict[str, list[float]]
    """Side → seconds a step in each round."""
    rivals: tuple[float, ...]
    same: bool
    """Losses and samples with and without the injection."""
    hash: str
    """Of losses and samples."""

    @property
    def gain(self) -> float:
        return statistics.median(self.gains)

    @property
    def rival(self) -> float | None:
        """None: the case has none."""
        return statistics.median(self.rivals) if self.rivals else None

    @property
    def is_clear(self) -> bool:
        return self.gain >= CLEAR and (self.rival is None or self.rival < RIVAL)


def truth_of(rounds: list[dict[str, Any]]) -> Truth:
    """From the figures of `one_round`."""

    def ratios(other: str) -> tuple[float, ...]:
        key = "seconds_per_step"
        return tuple(one["with"][key] / one[other][key] for one in rounds if other in one)

    seen = {one[side]["losses_and_order"] for one in rounds for side in ("with", "without")}
    turns = {side: [one[side]["seconds_per_step"] for one in rounds] for side in rounds[0]}
    return Truth(ratios("without"), turns, ratios("rival_gone"), len(seen) == 1, sorted(seen)[0])


def asked_in_rounds(one: Asked, data: Path, num: int) -> Truth:
    """Of so many rounds, and two more where these do not tell whether the injection is worth its removal."""
    rounds = [one_round(one, data, number) for number in range(num)]
    found = truth_of(rounds)
    if leaves_open(found.turns["with"], found.turns["without"]):
        found = truth_of([*rounds, *(one_round(one, data, number) for number in range(num, num + MORE_ROUNDS))])
    return found


def by_traceml(one: Asked, data: Path, command: str) -> str:
    """TraceML's own diagnosis of the script's steps, `none` where it gives none."""
    with built_in(one, data) as read:
        _, script, *arguments = command_of(one, read, injected=True)
        return traceml_says(command, script, arguments, SCRIPTS)


def keep_truth(run: Path, one: Asked, truth: Truth) -> None:
    """Write what is known of a watched run beside it (tests/corpus). What is no part of a step is no cause there."""
    cause = CAUSES[one.injection]
    if cause in ("validation", "epoch"):
        return
    rival = "compute" if cause in ("prep", "storage") else "prep"
    also = RIGHT.get(cause, ()) or ([rival] if (truth.rival or 0.0) >= RIVAL else [None])
    told = {
        "name": one.name, "cause": cause, "without": "without_s", "built_in": asdict(one), "also": also[0],
        "turns": {f"{side}_s": seconds for side, seconds in truth.turns.items()},
        "kind": "latency" if cause == "storage" else None, "culprit": "neighbours" if cause == "contention" else None,
    }  # fmt: skip
    (run / "truth.json").write_text(json.dumps(told, indent=1) + "\n")


def by_watch(one: Asked, data: Path, truth: Truth, results: Path | None) -> dict[str, Any]:
    """What `loaderbench watch` says of the script with its injection, and the script's own figures meanwhile.
    `results`: where the run is kept, with its truth; None: nowhere."""
    with tempfile.TemporaryDirectory(prefix="loaderbench-watch-run-") as folder, built_in(one, data) as read:
        record, store = Path(folder, "record.json"), str(results or folder)
        python, *script = command_of(one, read, injected=True)
        figures = timed([python, "-m", "loaderbench", "watch", "--results", store, "--json", str(record), *script])
        found = json.loads(record.read_text())
        keep_truth(Path(store, found["run_id"]), one, truth)
    verdict = found["verdict"]
    gains = {cause: gain["value"] for cause, gain in verdict["speedup_if_removed"].items() if gain is not None}
    said = verdict["bottleneck"]
    seen = found["watched"]
    main, *others = seen["loaders"]
    return {
        "said": said,
        "joint": verdict["joint"],
        "said_gain": gains.get(said) or (verdict["joint_speedup"] or {}).get("value"),
        "summary": verdict["summary"],
        "seconds": {**main["seconds"], "others": sum(sum(one["seconds"].values()) for one in others)},
        "wall_s": seen["wall_s"],
        "losses_and_order": figures["losses_and_order"],
    }


OUTCOMES = ("right", "told", "joint", "undetermined", "WRONG", "NOT TOLD")
RIGHT = {"launch": ("compute",)}
"""Of a script on the processors nothing tells issuing from computing: both are its own step, and it says so."""


def outcome(cause: str, said: dict[str, Any]) -> str:
    """right, joint (named together with others), undetermined or WRONG; `told` where no verdict names the cause, but
    the script's time does."""
    if cause in ("validation", "epoch"):
        seconds, whole = said["seconds"], said["wall_s"]
        part = seconds["others"] if cause == "validation" else seconds["opening"] + seconds["first"]
        return "told" if part >= 0.1 * whole else "NOT TOLD"
    if said["said"] == cause or said["said"] in RIGHT.get(cause, ()):
        return "right"
    if said["said"] == "undetermined":
        return "undetermined"
    return "joint" if cause in said["joint"] else "WRONG"


def ask(one: Asked, data: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """A row of the case."""
    truth = asked_in_rounds(one, data, arguments.rounds)
    row = {
        "name": one.name, **asdict(one), "cause": CAUSES[one.injection], "gain": truth.gain, "rival": truth.rival,
        "gains": truth.gains, "clear": truth.is_clear, "losses_and_order_same": truth.same, "traceml": None,
    }  # fmt: skip
    row["watch"] = said = by_watch(one, data, truth, arguments.results)
    row["outcome"] = outcome(row["cause"], said)
    row["watch_same"] = said["losses_and_order"] == truth.hash
    if arguments.traceml and one.injection in OF_TRACEML:
        row["traceml"] = by_traceml(one, data, arguments.traceml)
        row["traceml_right"] = row["traceml"] == OF_TRACEML[one.injection]
    return row


def line(row: dict[str, Any]) -> str:
    rival = "" if row["rival"] is None else f" rival {row['rival']:.2f}"
    mark = "clear" if row["clear"] else "not clear"
    same = "" if row["losses_and_order_same"] else "  LOSSES OR ORDER DIFFER"
    traceml = "" if row["traceml"] is None else f"  TraceML {row['traceml']}"
    gain = spread(median_interval(row["gains"]), 2)
    said, known = row["watch"], row["watch"]["said_gain"]
    told = f"  {row['outcome']}: {said['said']}" + ("" if known is None else f" {known:.2f}")
    watched = "" if row["watch_same"] else "  WATCHED RUN DIFFERS"
    return f"{row['name']:32s}{row['cause']:12s}{gain:>20s}{rival}  {mark}{same}{told}{watched}{traceml}"


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    clear = [row for row in rows if row["clear"]]
    asked = [row for row in clear if row["traceml"] is not None]
    told = [row for row in asked if row["traceml"] not in NO_DIAGNOSIS]
    return {
        "outcomes": {kind: sum(row["outcome"] == kind for row in clear) for kind in OUTCOMES},
        "watched_differing": [row["name"] for row in rows if not row["watch_same"]],
        "asked": len(rows),
        "clear": len(clear),
        "differing": [row["name"] for row in rows if not row["losses_and_order_same"]],
        "traceml_right": sum(row["traceml_right"] for row in told),
        "traceml_told": len(told),
        "traceml_asked": len(asked),
    }


def make_data(folder: Path) -> Path:
    """Sample files, the same on every machine."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(NUM_FILES):
        values = random.standard_normal(FILE_FLOATS, dtype=np.float32)
        (folder / f"{number:05d}.bin").write_bytes(values.tobytes())
    return folder


def ask_all(chosen: dict[str, Asked], arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, str]:
    """Add rows to those that are there already. Returns name → why there is none."""
    left_out: dict[str, str] = {}
    known = {(row["name"], row.get("cuda", False)) for row in rows}
    chosen = {name: one for name, one in chosen.items() if (name, one.cuda) not in known}
    with tempfile.TemporaryDirectory(prefix="loaderbench-watch-") as folder:
        data = make_data(Path(folder, "data"))
        for name, one in chosen.items():
            if lacking := absent(one.script):
                left_out[name] = f"not installed: {', '.join(lacking)}"
                continue
            if one.script in NEEDS_CUDA and not one.cuda:
                left_out[name] = "needs --cuda"
                continue
            try:
                rows.append(ask(one, data, arguments))
                print(line(rows[-1]), flush=True)
            except UnavailableError as error:
                left_out[name] = str(error)
            except (LoaderbenchError, subprocess.TimeoutExpired) as error:
                left_out[name] = f"failed: {error}"
            except KeyboardInterrupt:
                print("interrupted: what was finished counts")
                break
    return left_out


def measure_overhead(arguments: argparse.Namespace) -> None:
    wanted = tuple((arguments.only or "").split(","))
    sides = [side for side in SIDES if side.startswith(wanted)]
    if not sides:
        raise SystemExit(f"--only with --overhead takes some of {', '.join(SIDES)}")
    with tempfile.TemporaryDirectory(prefix="loaderbench-watch-") as folder:
        data = make_data(Path(folder, "data"))
        rows = overhead(data, arguments.rounds or 2, arguments.seconds, timed, sides)
    if arguments.json:
        facts = {"overhead": rows, "environment": to_json(environment())}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")
    if not all(row["same"] for row in rows) or any(row["judged"] in ("missed", "NOT FOUND") for row in rows):
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="3; with --overhead 2")
    parser.add_argument("--overhead", action="store_true", help="what watching costs a loop's main thread")
    parser.add_argument("--causes", action="store_true", help="scripts whose cause has a name and a line")
    parser.add_argument("--seconds", type=float, default=16.0, help="of one run, with --overhead")
    parser.add_argument("--cuda", action="store_true", help="the scripts train on the GPU")
    parser.add_argument("--quick", action="store_true", help="1 round of 3 cases")
    parser.add_argument("--only", help="cases, or with --overhead sides, or beginnings of their names, comma separated")
    parser.add_argument("--traceml", metavar="COMMAND", help="the command `traceml` of an environment with traceml-ai")
    parser.add_argument("--py-spy", metavar="COMMAND", help="with --causes: the command `py-spy`")
    parser.add_argument("--json", type=Path, help="write all rows, with the environment")
    parser.add_argument("--results", type=Path, help="keep the watched runs in this folder, with their truths")
    parser.add_argument("--resume", action="store_true", help="keep the rows that --json FILE has, and add the others")
    arguments = parser.parse_args()
    if arguments.overhead:
        if arguments.cuda:
            parser.error("--overhead is measured on the processors: leave --cuda out")
        measure_overhead(arguments)
        return
    arguments.rounds = arguments.rounds or 3
    if arguments.causes:
        others = {"traceml": arguments.traceml, "py_spy": arguments.py_spy}
        measure_causes(arguments.only, arguments.rounds, arguments.results, arguments.json, others)
        return
    known = cases()
    wanted = tuple(known) if arguments.only is None else tuple(arguments.only.split(","))
    if arguments.quick:
        wanted, arguments.rounds = QUICK, 1
    chosen = {name: replace(one, cuda=arguments.cuda) for name, one in known.items() if name.startswith(wanted)}
    if unknown := [begin for begin in wanted if not any(name.startswith(begin) for name in known)]:
        parser.error(f"--only: no case begins with {', '.join(unknown)}; there are {', '.join(known)}")
    rows: list[dict[str, Any]] = []
    if arguments.resume and arguments.json and arguments.json.exists():
        rows = json.loads(arguments.json.read_text())["rows"]
    left_out = ask_all(chosen, arguments, rows)
    found = summarize(rows)
    print(f"\n{found['clear']} clear of {found['asked']} cases; samples or losses differ in {len(found['differing'])}")
    print("watch, of the clear cases: " + ", ".join(f"{num} {kind}" for kind, num in found["outcomes"].items() if num))
    if found["traceml_asked"]:
        print(
            f"TraceML right in {found['traceml_right']} of {found['traceml_told']} diagnoses; "
            f"none in {found['traceml_asked'] - found['traceml_told']} clear cases"
        )
    for name, why in left_out.items():
        print(f"{name}: left out: {why}")
    if arguments.json:
        facts = {"summary": found, "rows": rows, "left_out": left_out, "rounds": arguments.rounds}
        arguments.json.write_text(json.dumps({**facts, "environment": to_json(environment())}, indent=1) + "\n")
    wrong = found["differing"] or found["watched_differing"] or found["outcomes"]["WRONG"]
    if wrong or any(why.startswith("failed") for why in left_out.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
