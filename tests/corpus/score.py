"""Cases judged by today's code, and held against their truth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import log
from typing import Literal, get_args

import numpy as np

from loaderbench.analysis.model import WORTH
from loaderbench.analysis.record import analyze
from loaderbench.analysis.selftest import is_clear, is_confidently_wrong, is_right
from loaderbench.pipeline.verdict import judged as replayed
from loaderbench.recording.facts import Run
from loaderbench.recording.record import Estimate, Verdict
from loaderbench.recording.studies import ScenarioOutcome
from tests.corpus.packed import Packed, Truth, half_of

NAMED = ("storage", "prep", "transfer", "launch", "compute", "contention")
"""Causes whose own gain a verdict predicts; of several together it predicts the joint one."""


@dataclass(frozen=True)
class Case:
    """One case's truth and what was said of it. Gains are (value, low, high)."""

    name: str
    half: str
    truth: str
    """`compute` where no cause is worth removing, or none is clear: the interval of its gain holds 1."""
    gain: tuple[float, float, float]
    verdict: str
    """`failed: …` where it could not be judged."""
    predicted: tuple[float, float | None, float | None] | None
    """An end is None where it is not bounded."""
    clear: bool
    """The right answer is clear beyond the stopwatch's own error."""
    null: bool
    """Nothing was built in, and nothing else slows the run."""
    right: bool
    confidently_wrong: bool
    kind: tuple[str | None, str | None] = (None, None)
    """(of slow storage in truth, as said)"""
    culprit: tuple[str | None, str | None] = (None, None)
    """(who truly holds up the run, as said)"""
    residual: float | None = None
    """Step replayed ÷ measured − 1; None: the rules replay nothing."""


@dataclass(frozen=True)
class Scores:
    """Of a set. Figures without any case are None. Gains are compared where the cause is clear."""

    num_cases: int
    num_clear: int
    num_right: int
    """Of the clear ones."""
    num_confidently_wrong: int
    num_undetermined: int
    num_kind_right: int
    num_culprit_right: int
    gain_error_median: float | None
    """|predicted ÷ true − 1|."""
    gain_error_p95: float | None
    interval_coverage: float | None
    """Part of the predicted gains that differ from the true one by no more than both intervals allow: half-widths of
    logarithms, added as squares."""
    coverage_num: int
    """Gains that have a predicted interval."""
    residual_median: float | None
    residual_p90: float | None


Judge = Literal["rules", "replay"]
JUDGES: tuple[Judge, ...] = get_args(Judge)


@dataclass(frozen=True)
class Said:
    """What a judge says of a run."""

    verdict: Verdict
    kind: str | None
    """Of slow storage."""
    by: str | None
    """Who holds up the run."""
    residual: float | None = None


def by_rules(run: Run) -> Said | None:
    record = analyze(run)
    kind, by = getattr(record.storage, "kind", None), None if record.contention is None else record.contention.by
    return None if record.verdict is None else Said(record.verdict, kind, by)


def by_replay(run: Run) -> Said | None:
    found = replayed(run)
    if found is None:
        return None
    verdict = Verdict(
        found.bottleneck, speedup_if_removed=found.gains, joint=found.joint, joint_speedup=found.joint_gain
    )  # fmt: skip
    return Said(verdict, found.kind, found.by, found.residual)


def judged(case: Packed, judge: Judge = "rules") -> Case:
    """Judge a case by today's code."""
    truth, run = case.opened()
    try:
        said = by_rules(run) if judge == "rules" else by_replay(run)
    except Exception as error:  # of the code that is tried out
        return _failed(case.name, truth, f"failed: {type(error).__name__}: {error}")
    return _failed(case.name, truth, "no verdict") if said is None else compare(case.name, truth, said, run)


def _failed(name: str, truth: Truth, why: str) -> Case:
    return Case(name, half_of(name), truth.cause, truth.gain, why, None, False, False, False, False)


def compare(name: str, truth: Truth, said: Said, run: Run) -> Case:
    """What is said of a run beside the truth."""
    verdict, gain = said.verdict, truth.gain
    worth = truth.cause != "none" and gain[0] >= WORTH and gain[1] > 1
    cause = truth.cause if worth else "compute"
    predicted = verdict.joint_speedup if cause == "mixed" else _gain_of(verdict, "prep" if cause == "either" else cause)
    outcome = ScenarioOutcome(
        name=name,
        loader=run.case.feed.loader,
        truth=cause,
        verdict=verdict.bottleneck,
        true_speedup=gain[0],
        predicted_speedup=None if predicted is None else predicted.value,
        shares_true={},
        shares={},
        is_null=truth.cause == "none" and truth.also is None,
        joint=verdict.joint,
        best_alone=truth.best_alone,
        also=truth.also,
    )
    return Case(
        name=name,
        half=half_of(name),
        truth=cause,
        gain=gain,
        verdict=verdict.bottleneck,
        predicted=None if predicted is None else (predicted.value, predicted.low, predicted.high),
        clear=is_clear(outcome) and not outcome.is_null and gain[1] > WORTH,
        null=outcome.is_null,
        right=is_right(outcome),
        confidently_wrong=is_confidently_wrong(outcome),
        kind=(truth.kind, said.kind) if cause == "storage" else (None, None),
        culprit=(truth.culprit, said.by) if cause == "contention" else (None, None),
        residual=said.residual,
    )


def _gain_of(verdict: Verdict, cause: str) -> Estimate | None:
    return next((gain for name, gain in verdict.speedup_if_removed.items() if name == cause), None)


def all_judged(cases: Iterable[Packed], processes: int, judge: Judge = "rules") -> Iterator[Case]:
    """Judge cases in so many processes; yields them in order."""
    by = partial(judged, judge=judge)
    if processes < 2:
        yield from map(by, cases)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(by, cases, chunksize=4)


def scores(cases: Sequence[Case]) -> Scores:
    """The figures of a set's cases."""
    clear = [one for one in cases if one.clear]
    right = [one for one in clear if one.right]
    gains = [one for one in clear if one.predicted is not None and one.truth in NAMED and one.truth != "compute"]
    errors = [abs(one.predicted[0] / one.gain[0] - 1) for one in gains if one.predicted is not None]
    held = [_held(one.predicted, one.gain) for one in gains if one.predicted is not None]
    residuals = [abs(one.residual) for one in cases if one.residual is not None]
    return Scores(
        num_cases=len(cases),
        num_clear=len(clear),
        num_right=len(right),
        num_confidently_wrong=sum(one.confidently_wrong for one in cases),
        num_undetermined=sum(one.verdict == "undetermined" for one in cases),
        num_kind_right=_num_alike(one.kind for one in right),
        num_culprit_right=_num_alike(one.culprit for one in right),
        gain_error_median=_percentile(errors, 50),
        gain_error_p95=_percentile(errors, 95),
        interval_coverage=sum(held) / len(held) if held else None,
        coverage_num=len(held),
        residual_median=_percentile(residuals, 50),
        residual_p90=_percentile(residuals, 90),
    )


def _num_alike(pairs: Iterable[tuple[str | None, str | None]]) -> int:
    return sum(true is not None and true == said for true, said in pairs)


def _held(predicted: tuple[float, float | None, float | None], true: tuple[float, float, float]) -> bool:
    """Whether two gains differ by no more than their intervals allow; an end that is not bounded allows anything."""
    value, low, high = predicted
    apart = log(true[0] / value)
    if (end := high if apart > 0 else low) is None:
        return True
    of_truth = true[0] / true[1] if apart > 0 else true[2] / true[0]  # the end that faces the prediction
    return abs(apart) <= float(np.hypot(log(end / value), log(of_truth)))


def _percentile(values: Sequence[float], part: float) -> float | None:
    return float(np.percentile(values, part)) if values else None
