"""What a run would take after a change, by replay (pipeline/): its step, what would limit it, and how far this may be
off."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from loaderbench.analysis.predictions import MODEL_ERROR
from loaderbench.analysis.price import saved
from loaderbench.analysis.record import judged_run
from loaderbench.cases.arms import Arm
from loaderbench.findings.table import words
from loaderbench.pipeline.change import Change, changed
from loaderbench.pipeline.fit import Fitted, batch_bytes, residual
from loaderbench.pipeline.gains import Replays
from loaderbench.pipeline.stages import Times
from loaderbench.pipeline.verdict import held_out_residual, limits
from loaderbench.recording.facts import STEP
from loaderbench.recording.record import Estimate
from loaderbench.recording.whatif import Limit, Missing, Pace, RanksThen, Whatif, WhatifFacts

OF_A_STEP = 0.03
"""Half-width that the model itself adds where only the step or the ranks are others (else MODEL_ERROR)."""
DRAWS_OF_RANKS = 20


@dataclass(frozen=True)
class Predicted:
    """The figures of a prediction."""

    now_s: Estimate
    then_s: Estimate
    gain: Estimate
    limit: Limit
    residual: float
    held_out: bool
    ranks: RanksThen | None


def predict(fitted: Fitted, change: Change, ranks: int | None, now_s: float, *, loader_changes: bool) -> Predicted:
    """What the change gives.

    Args:
        ranks: None for one.
        now_s: seconds a step as they were measured: the model tells the ratio.
        loader_changes: it changes more than the step.
    """
    replays = Replays(fitted)
    explained, held_out = held_out_residual(fitted.run) or (residual(fitted), False)
    scale = now_s / float(replays.now_s[0])
    off = max(abs(math.log(max(1.0 + explained, 1e-3))), abs(math.log(max(scale, 1e-3))))
    own = math.expm1(math.hypot(math.log1p(MODEL_ERROR if loader_changes else OF_A_STEP), off))
    limit = limits(fitted, replays, change)
    together = None
    if ranks is not None and ranks > 1:
        alone = replays.step_s(changed(fitted, change)) * scale
        alone_s = replays.estimate(alone, "s", own=own)
        replays = Replays(fitted, DRAWS_OF_RANKS)
        one_s = replays.step_s(changed(fitted, change))
        then_s = np.maximum(one_s, replays.in_step_s(changed(fitted, change), ranks))  # others make none faster
        waits = 1.0 - one_s / then_s
        together = RanksThen(ranks, alone_s, _fraction(replays, waits))
    else:
        then_s = replays.step_s(changed(fitted, change))
    return Predicted(
        replays.estimate(replays.now_s * scale, "s"), replays.estimate(then_s * scale, "s", own=own),
        replays.estimate(replays.now_s / np.maximum(then_s, 1e-12), own=own), limit, explained, held_out,
        together,
    )  # fmt: skip


def _fraction(replays: Replays, values: Times) -> Estimate:
    found = replays.estimate(1.0 - values, "fraction")  # of what is left: a wait may be 0
    low, high = (None if end is None else min(1.0, max(0.0, 1.0 - end)) for end in (found.high, found.low))
    return replace(found, value=float(values[0]), low=low, high=high)


def samples_per_step(fitted: Fitted) -> float:
    """Mean samples of a batch."""
    rows = np.concatenate([one.window for one in fitted.recording.of(Arm.REAL)])
    return float(rows[:, STEP["num_samples"]].mean())


def bytes_per_step(fitted: Fitted) -> float | None:
    """Mean bytes of the files behind a batch; None where it has none, or they are not known."""
    found = batch_bytes(fitted.recording)
    return found if found > 0 else None


def decoder_ratio(fitted: Fitted, decoder: str) -> tuple[float, float] | None:
    """(seconds of preparing a batch, its CPU seconds) with another decoder ÷ with this one, by the run's probe; None
    where it did not probe it."""
    run, recording = fitted.run, fitted.run.recording
    judged = None if recording is None else judged_run(run, recording)
    if judged is None or judged.usable_cpus is None:
        return None
    predictions = judged.predictions(judged.usable_cpus)
    if predictions is None or not predictions.costs.probe.decoders.get(decoder):
        return None
    return predictions.work_of(run.case.changed(decoder=decoder))


# -- findings --------------------------------------------------------------------------------------------


def whatif_of(facts: WhatifFacts) -> Whatif:
    """The prediction's figures. Nothing is predicted anew."""
    ranks = 1 if facts.ranks is None else facts.ranks.ranks
    now = Pace(facts.now_s, _rate(facts.now_s, facts.samples_per_step))
    then = Pace(facts.then_s, _rate(facts.then_s, facts.samples_per_step * ranks))
    missing: dict[Missing, str] = dict(facts.missing)
    if facts.then_s.low is None:
        missing["interval"] = words("whatif_one_block", {})
    return Whatif(
        facts.source_id, facts.asked, now, then, _times(facts.gain, ranks), facts.ranks, facts.limit, facts.residual,
        facts.held_out, tuple(one.text() for one in facts.assumed), facts.wanted, missing, facts.price,
        None if facts.price is None or facts.ranks is not None else saved(facts.price.per_hour, facts.gain),
    )  # fmt: skip


def _rate(step_s: Estimate, samples: float) -> Estimate:
    low, high = (None if end is None or end <= 0 else samples / end for end in (step_s.high, step_s.low))
    return replace(step_s, value=samples / step_s.value, low=low, high=high, unit="samples/s")


def _times(one: Estimate, factor: float) -> Estimate:
    low, high = (None if end is None else end * factor for end in (one.low, one.high))
    return replace(one, value=one.value * factor, low=low, high=high)
