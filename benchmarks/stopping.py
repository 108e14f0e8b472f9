"""Runs that end as soon as they are decided: how early, how often their intervals hold, how often they are wrong.

    python benchmarks/stopping.py [--num 16] [--seed 0] [--kinds KIND,KIND] [--seconds 60] [--never] [--truths FILE]
                                  [--json FILE]

Of each kind of pipeline (tests/pipeline/simulated.py) the typical one and `--num` − 1 random ones are measured by the
rounds of `loaderbench run` themselves (running/until_decided.py), whose windows an event model makes that shares no
code with the judging (tests/analysis/event_model.py): each 0.5 s longer than its steps, and all of its times by a
factor of its own longer or shorter, ± 2 % (one standard deviation). After each window the run is judged, and it ends
once it is decided, or after `--seconds` of the simulated time. `--never`: always then, as with `--duration`.

Printed by kind: the runs, how many were decided, the median of the simulated seconds, real's part of these, how many
name the cause that is truly worth most (one worth 95 % of that is right, too), how many of the decided ones name
another one that is worth less than nine tenths of it (wrong), and how often the interval of the named cause's gain held
the true one. What is true is simulated without the cause, over a long window.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from loaderbench.analysis.decided import look
from loaderbench.analysis.model import WORTH
from loaderbench.analysis.record import analyze
from loaderbench.cases.arms import Arm
from loaderbench.machine import environment
from loaderbench.plain import to_json
from loaderbench.recording.facts import RoundFacts, Run, Segment
from loaderbench.recording.progress import Look
from loaderbench.running import rounds, until_decided
from loaderbench.running.peers import ALONE
from loaderbench.running.rounds import Budget, measure_rounds
from loaderbench.running.until_decided import UntilDecided
from loaderbench.running.window import Length, Windows

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.analysis.event_model import EPOCH_MS, Pipeline, arms_of, segment, slower
from tests.analysis.judging import run_of
from tests.pipeline.simulated import KINDS, pipelines, probed
from tests.pipeline.truths import causes_of, read_known, true_gain, write_known

DRIFT, BESIDE_S = 0.02, 0.5
"""Of a window: standard deviation of its speed, and what it takes besides its steps."""
NAMES = {"others": "contention"}
"""Causes of the event model by the names of verdicts, where these differ."""


class Simulated:
    """Windows of a pipeline, and the clock that they move."""

    def __init__(self, pipe: Pipeline, seed: int, *, until_decided: bool) -> None:
        self.pipe, self.now, self._seed = pipe, 1000.0, seed
        self._random = np.random.default_rng([seed, 7])
        case = run_of(pipe, []).case
        self.case = case.changed(until_decided=until_decided, ci_target=1e-9)
        self.rig = SimpleNamespace(case=self.case, device=SimpleNamespace(torch_device=None))
        self.peers, self.feeds = ALONE, SimpleNamespace(num_readers=max(1, pipe.workers))
        self.segments: list[Segment] = []
        self.last: Look | None = None

    def perf_counter(self) -> float:
        return self.now

    def measure(self, arm: Arm, number: int, length: Length) -> Segment:
        before = [one for one in self.segments if one.arm is arm]
        step_s = (before[-1].wall_s or 0.1) / len(before[-1].steps) if before else 0.05
        lanes = max(1, self.pipe.workers)
        num_steps = max(5, 2 * lanes, math.ceil(length.target_s / step_s / lanes) * lanes)
        made = slower(self.pipe, float(self._random.lognormal(0, DRIFT)))
        begin_ms = EPOCH_MS + 1e3 * (self.now - 1000.0)
        found = segment(made, arm, len(self.segments), num_steps=num_steps, begin_ms=begin_ms, seed=self._seed)
        found = replace(found, round=number, wall_s=(found.wall_s or 0.0) + BESIDE_S)
        self.now += found.wall_s or 0.0
        return found

    def run(self) -> Run:
        return replace(probed(self.pipe, run_of(self.pipe, self.segments)), case=self.case)

    def on_window(self) -> Look | None:
        self.last = look(self.run())
        return self.last


@dataclass(frozen=True)
class Row:
    """One run."""

    kind: str
    stopped_by: str
    seconds: float
    real_fraction: float
    truth: str
    true_gains: dict[str, float]
    verdict: str
    joint: tuple[str, ...]
    outcome: str
    gain: tuple[float, float | None, float | None] | None
    """Of what is named."""
    true_gain: float | None
    held: bool | None


def measured(kind: str, pipe: Pipeline, seed: int, *, seconds: float, never: bool) -> Row:
    windows = Simulated(pipe, seed, until_decided=not never)
    arms, budget, where = tuple(arms_of(pipe)), Budget(seconds, most_bytes=False), rounds if never else until_decided
    order = (Arm.DEVICE, Arm.HOST, Arm.REAL, Arm.RAM, Arm.FREE, Arm.PREP, Arm.FETCH)  # as running/feeds.py has it
    measuring = tuple(arm for arm in order if arm in arms)
    simulated, clock = cast(Windows, windows), where.time
    where.time = cast(Any, windows)  # of the rounds alone
    try:
        if never:
            facts = measure_rounds(simulated, measuring, budget, windows.segments)
        else:
            facts = UntilDecided(simulated, measuring, budget, windows.segments, on_window=windows.on_window).measure()
    finally:
        where.time = clock
    return _row(kind, pipe, windows, facts)


def _row(kind: str, pipe: Pipeline, windows: Simulated, facts: RoundFacts) -> Row:
    run = windows.run()
    assert run.recording is not None
    run.recording.facts = replace(run.recording.facts, rounds=facts)
    verdict = analyze(run).verdict
    assert verdict is not None
    known = [cause for cause in causes_of(pipe) if cause not in ("compute", "tail", "stalls")]
    true = {NAMES.get(cause, cause): true_gain(pipe, cause) for cause in known}
    best = max(true, key=lambda cause: true[cause])
    named = verdict.joint or (verdict.bottleneck,)
    estimate = verdict.joint_speedup if verdict.joint else verdict.speedup_if_removed.get(cast(Any, verdict.bottleneck))
    back = {name: cause for cause, name in NAMES.items()}
    gain_of = None
    if verdict.bottleneck not in ("undetermined", "compute") and set(named) <= set(true):
        gain_of = true_gain(pipe, *(back.get(name, name) for name in named))
    held = None
    if estimate is not None and gain_of is not None and estimate.low is not None:
        held = estimate.low <= gain_of and (estimate.high is None or gain_of <= estimate.high)
    real_s = sum(one.wall_s or 0.0 for one in windows.segments if one.arm is Arm.REAL)
    return Row(
        kind, facts.stopped_by, windows.now - 1000.0, real_s / (windows.now - 1000.0),
        best if true[best] >= WORTH else "compute", true, verdict.bottleneck, verdict.joint,
        _outcome(verdict.bottleneck, named, true),
        None if estimate is None else (estimate.value, estimate.low, estimate.high), gain_of, held,
    )  # fmt: skip


def _outcome(bottleneck: str, named: Sequence[str], true: dict[str, float]) -> str:
    best = max(true.values())
    if bottleneck == "undetermined":
        return "undetermined"
    if bottleneck == "compute":
        return "right" if best < WORTH else "vague" if best < WORTH / 0.9 else "wrong"
    worth = max(true.get(name, 1.0) for name in named)
    return "right" if worth >= 0.95 * best else "vague" if worth >= 0.9 * best else "wrong"


def show(rows: Sequence[Row]) -> None:
    heads = ("runs", "decided", "seconds", "real", "right", "vague", "wrong", "undet.", "held", "of")
    print(f"{'':<16}" + "".join(f"{head:>9}" for head in heads))
    for kind in (*dict.fromkeys(row.kind for row in rows), "all"):
        of = [row for row in rows if kind in ("all", row.kind)]
        held = [row.held for row in of if row.held is not None]
        counts = [sum(row.outcome == what for row in of) for what in ("right", "vague", "wrong", "undetermined")]
        figures = [
            str(len(of)), str(sum(row.stopped_by == "decided" for row in of)),
            f"{np.median([row.seconds for row in of]):.1f}", f"{np.median([row.real_fraction for row in of]):.2f}",
            *map(str, counts), "–" if not held else f"{np.mean(held):.1%}", str(len(held)),
        ]  # fmt: skip
        print(f"{kind:<16}" + "".join(f"{text:>9}" for text in figures))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=16, help="pipelines of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--never", action="store_true", help="measure for all of the time")
    parser.add_argument("--truths", type=Path, help="keep what is true in this file, and read it from there")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.truths is not None:
        read_known(given.truths)
    rows, begun, kinds = list[Row](), time.process_time(), given.kinds.split(",")
    for number, (kind, pipe) in enumerate(pipelines(given.num, given.seed)):
        if kind in kinds:
            seed = 1000 * given.seed + number
            rows.append(measured(kind, pipe, seed, seconds=given.seconds, never=given.never))
    if given.truths is not None:
        write_known(given.truths)
    show(rows)
    print(f"{time.process_time() - begun:.0f} s of processor time")
    if given.json is not None:
        told = {"num": given.num, "seed": given.seed, "never": given.never, "rows": [vars(row) for row in rows]}
        given.json.write_text(json.dumps({**told, "environment": to_json(environment())}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
