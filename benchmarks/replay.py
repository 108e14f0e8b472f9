"""How well does the replay of a run predict its step under changes? Held against simulated pipelines of known truth.

    python benchmarks/replay.py [--num 5] [--seed 0] [--kinds KIND,KIND] [--arms real,device] [--by recorded]
                                [--truths FILE] [--json FILE]

Of each kind of pipeline (tests/pipeline/simulated.py) the typical one and `--num` − 1 random ones are recorded by an
event model that shares no code with the replay (tests/analysis/event_model.py), with 1, 2, 4 and 8 workers: 3 rounds
of 48 steps, 192 over an uneven storage, with a drift of 1 %. Each recording is asked for the step with every other
number of workers; the one with the XX is true is simulated with the change, over a long window.

Printed by kind: the median and the 95th percentile of |predicted ÷ true − 1|, the worst, the signed median, how often
the interval of the step held the truth, and how many questions had no answer. `--by recorded` answers everything with
the step as it was recorded: what a replay must be better than, and on `as it is` what the recording alone is off by.
Simulating the truths takes most of the time; `--truths` keeps them in a file for as long as the event model is the
same. They are known to 0.3 % where the storage is even and cores are not shared, where they are to 0.7 %, and to 1.5 %
with slow files or irregular standstills.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from loaderbench.cases.arms import Arm
from loaderbench.machine import environment
from loaderbench.pipeline.change import Change, changed
from loaderbench.pipeline.edits import Removed
from loaderbench.pipeline.fit import fit
from loaderbench.pipeline.gains import Replays
from loaderbench.plain import to_json
from loaderbench.recording.facts import STEP, Run

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.analysis.event_model import ARMS, Pipeline
from tests.analysis.judging import run_of
from tests.pipeline.simulated import KINDS, pipelines, probed
from tests.pipeline.truths import (
    AS_IT_IS,
    PREFETCH,
    RATES,
    Changed,
    causes_of,
    crews,
    read_known,
    reads,
    true_s,
    write_known,
)

ROUNDS, DRIFT = 3, 0.01
STEPS = {False: 48, True: 192}
"""Of a window, by whether the storage is uneven: runs go on until they met some slow files, too."""
ASKED = ("as it is", "workers", "prefetch", "storage rate", "gains", "together")


@dataclass(frozen=True)
class Figure:
    """Seconds a step, and the ends of their interval; None without one."""

    value: float
    low: float | None = None
    high: float | None = None


Answer = Callable[[Changed], Figure | None]
"""None: it does not say."""


def by_replay(run: Run) -> Answer | None:
    """The package's own answers: the one place that knows how it is asked."""
    fitted = fit(run)
    if fitted is None:
        return None
    replays = Replays(fitted)

    def answer(asked: Changed) -> Figure | None:
        removed = frozenset(cast(Removed, one) for one in asked.without)
        change = Change(asked.workers, asked.prefetch, reading=1.0 / asked.storage, without=removed)
        found = replays.estimate(replays.step_s(changed(fitted, change)), "s")
        return Figure(found.value, found.low, found.high)

    return answer


def by_recorded(run: Run) -> Answer | None:
    """The step as it was recorded, whatever is asked."""
    assert run.recording is not None
    seconds, num = 0.0, 0
    for one in run.recording.of(Arm.REAL):
        done = one.steps[one.num_warmup - 1 :, STEP["done_ns"]]
        seconds, num = seconds + float(done[-1] - done[0]) / 1e9, num + len(done) - 1
    return lambda asked: Figure(seconds / num)


WAYS: dict[str, Callable[[Run], Answer | None]] = {"replay": by_replay, "recorded": by_recorded}


@dataclass(frozen=True)
class Question:
    """What a recording is asked."""

    what: str
    change: Changed
    cause: str | None = None
    """Whose gain is asked for; None: the step itself."""


def questions(pipe: Pipeline, own_workers: int) -> Iterator[Question]:
    """Of a recording of the pipeline, whose own crew it may not have."""
    yield Question("as it is", AS_IT_IS)
    for workers in crews(pipe):
        if workers != pipe.workers:
            yield Question("workers", Changed(workers=workers))
    if pipe.workers != own_workers:
        return
    if pipe.workers:
        for prefetch in PREFETCH:
            if prefetch != pipe.prefetch:
                yield Question("prefetch", Changed(prefetch=prefetch))
    if reads(pipe):
        for rate in RATES:
            yield Question("storage rate", Changed(storage=rate))
    causes = causes_of(pipe)
    for cause in causes:
        yield Question("gains", Changed(without=frozenset({cause})), cause)
    yield Question("together", Changed(workers=2 * max(1, pipe.workers), storage=2.0))
    if {"storage", "prep"} <= set(causes):
        yield Question("together", Changed(without=frozenset({"storage", "prep"})), "storage and prep")


Row = dict[str, Any]


def rows_of(kind: str, number: int, pipe: Pipeline, seed: int, arguments: argparse.Namespace) -> Iterator[Row]:
    """What each of the pipeline's recordings answers."""
    for workers in crews(pipe) if pipe.workers else (0,):
        recorded = replace(pipe, workers=workers)
        arms = tuple(arm for arm in ARMS if arguments.arms is None or arm in arguments.arms.split(","))
        num_steps = STEPS[pipe.is_uneven]
        run = probed(
            recorded, run_of(recorded, rounds=ROUNDS, num_steps=num_steps, drift=DRIFT, seed=seed + workers, arms=arms)
        )
        begun = time.process_time()
        answer = WAYS[arguments.by](run)
        as_it_is = None if answer is None else answer(AS_IT_IS)
        arguments.seconds += time.process_time() - begun
        for one in questions(recorded, pipe.workers):
            begun = time.process_time()
            found = None if answer is None else answer(one.change)
            arguments.seconds += time.process_time() - begun
            row = {"kind": kind, "number": number, "recorded_workers": workers, "what": one.what, "cause": one.cause}
            change = {**vars(one.change), "without": sorted(one.change.without)}
            yield {**row, "change": change, **_held_against(recorded, one, found, as_it_is)}


def _held_against(pipe: Pipeline, asked: Question, found: Figure | None, as_it_is: Figure | None) -> Row:
    """The prediction beside the truth; a gain is the step as it is ÷ that without the cause."""
    truth = true_s(pipe, asked.change)
    row: Row = {"true_s": truth, "predicted_s": None, "error": None, "held": None}
    if asked.cause is not None:
        row["true_gain"] = true_s(pipe) / truth
    if found is None or as_it_is is None:
        return row
    row |= {"predicted_s": found.value, "low_s": found.low, "high_s": found.high}
    if found.low is not None and found.high is not None:
        row["held"] = found.low <= truth <= found.high
    if asked.cause is None:
        return {**row, "error": found.value / truth - 1}
    predicted = as_it_is.value / found.value
    return {**row, "predicted_gain": predicted, "error": predicted / row["true_gain"] - 1}


def summary(rows: Sequence[Row]) -> Row:
    errors = np.array([row["error"] for row in rows if row["error"] is not None])
    held = [row["held"] for row in rows if row["held"] is not None]
    off = np.abs(errors)
    return {
        "asked": len(rows),
        "unanswered": len(rows) - len(errors),
        "median": float(np.median(off)) if len(off) else None,
        "p95": float(np.quantile(off, 0.95)) if len(off) else None,
        "worst": float(off.max()) if len(off) else None,
        "signed": float(np.median(errors)) if len(errors) else None,
        "held_fraction": float(np.mean(held)) if held else None,
    }


def summaries(rows: Sequence[Row]) -> list[Row]:
    """By what was asked, then by kind, then all kinds together."""
    found = []
    for what in ASKED:
        of = [row for row in rows if row["what"] == what]
        for kind in (*dict.fromkeys(row["kind"] for row in of), "all"):
            found.append({"what": what, "kind": kind, **summary([row for row in of if kind in ("all", row["kind"])])})
        for cause in dict.fromkeys(row["cause"] for row in of if row["cause"] is not None):
            found.append({"what": what, "kind": f"of {cause}", **summary([row for row in of if row["cause"] == cause])})
    return found


def show(found: Sequence[Row]) -> None:
    def percent(value: float | None, sign: str = "") -> str:
        return "–" if value is None else f"{value:{sign}.1%}"

    heads = ("asked", "median", "95 %", "worst", "signed", "held", "no answer")
    print(f"{'':<30}" + "".join(f"{head:>10}" for head in heads))
    for one in found:
        figures = [percent(one[name]) for name in ("median", "p95", "worst")]
        figures += [percent(one["signed"], "+"), percent(one["held_fraction"]), str(one["unanswered"])]
        line = f"{one['what']:<13}{one['kind']:<17}{one['asked']:>10}" + "".join(f"{text:>10}" for text in figures)
        print(line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=5, help="pipelines of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--arms", help="what is recorded; all arms by default")
    parser.add_argument("--by", choices=tuple(WAYS), default="replay")
    parser.add_argument("--truths", type=Path, help="keep what is true in this file, and read it from there")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(namespace=argparse.Namespace(seconds=0.0))
    rows: list[Row] = []
    begun = time.process_time()
    if given.truths is not None:
        read_known(given.truths)
    numbers = dict.fromkeys(KINDS, 0)
    for kind, pipe in pipelines(given.num, given.seed):
        if kind in given.kinds.split(","):
            rows += rows_of(kind, numbers[kind], pipe, 1000 * given.seed + 10 * numbers[kind], given)
            numbers[kind] += 1
    if not rows:
        print(f"no such kind: {given.kinds}; there are {', '.join(KINDS)}")
        return 1
    if given.truths is not None:
        write_known(given.truths)
    found = summaries(rows)
    show(found)
    took = time.process_time() - begun
    print(f"{len(rows)} questions in {took:.0f} s of processor time, {given.seconds:.0f} s of them the answers'")
    if given.json is not None:
        told = {"num": given.num, "seed": given.seed, "by": given.by, "arms": given.arms, "seconds": took,
                "summaries": found, "rows": rows, "environment": to_json(environment())}  # fmt: skip
        given.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
