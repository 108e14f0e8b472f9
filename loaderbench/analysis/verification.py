"""What running the advice gave, compared with the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loaderbench.analysis.statistics import interval
from loaderbench.analysis.steps import arm_steps
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Change
from loaderbench.recording.facts import Run, Segment, Trial
from loaderbench.recording.record import Advice, Estimate


def verified(run: Run, advice: Sequence[Advice]) -> tuple[Advice, ...]:
    """The advice with what its trials measured; unchanged where no trials were asked for."""
    if not run.trials and run.not_verified is None:
        return tuple(advice)
    return tuple(
        _verified(run, one) if one.change is not None and one.predicted_speedup is not None else one for one in advice
    )


def _verified(run: Run, advice: Advice) -> Advice:
    assert advice.change is not None
    if run.not_verified is not None:
        return replace(advice, verified=True, not_verified=run.not_verified)
    base, changed = trials_of(run.trials, {}), trials_of(run.trials, advice.change)
    failure = next((trial.failure for trial in (*base, *changed) if trial.failure is not None), None)
    if failure is not None:  # without the case itself no change was run
        return replace(advice, verified=True, not_verified=failure.message)
    if not changed:  # another version of the rules gave other advice, or an interruption came before it
        return advice
    before, after = segments_of(base), segments_of(changed)
    rounds = len({trial.turn for trial in changed})
    ratio = rate_ratio(before, after, base[0].case.feed.lanes, changed[0].case.feed.lanes, rounds)
    return replace(
        advice, verified=True, measured_speedup=ratio, not_verified=None if ratio is not None else "no_step_in_turn"
    )


def trials_of(trials: Sequence[Trial], change: Change) -> list[Trial]:
    """The trials of one change; an empty change is the case itself."""
    return [trial for trial in trials if dict(trial.change) == dict(change)]


def segments_of(trials: Sequence[Trial]) -> list[Segment]:
    return [segment for trial in trials if trial.recording is not None for segment in trial.recording.segments]


def rate_ratio(
    before: Sequence[Segment], after: Sequence[Segment], lanes_before: int, lanes_after: int, rounds: int
) -> Estimate | None:
    """Samples/s of the arm `real` in `after` ÷ in `before`; None where one has no complete step.

    `lanes_…`: batches that each side prepares at once (Feed.lanes).
    """
    first, second = arm_steps(before, Arm.REAL, lanes_before, stream=0), arm_steps(after, Arm.REAL, lanes_after, 1)
    if first is None or second is None:
        return None
    samples = (second.num_samples / second.num_steps) / (first.num_samples / first.num_steps)
    value = samples * first.mean("duration") / second.mean("duration")
    draws = np.asarray(samples * first.drawn("duration") / second.drawn("duration"))
    method = f"runs in turn, {rounds} each; block bootstrap, 95 %"
    return interval(value, draws, "ratio", min(first.num_blocks, second.num_blocks), method)
