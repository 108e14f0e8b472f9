"""How far figures of one run are known as those of the next: what no window of the run itself can tell. What limits a
run is decided by its own windows alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from loaderbench.analysis.model import Model
from loaderbench.analysis.statistics import at_every_look
from loaderbench.cases.arms import Arm
from loaderbench.recording.others import OtherPrograms
from loaderbench.recording.record import Estimate, Verdict

BESIDE_OTHERS = "between runs, under load"
RUN_TO_RUN = 0.15
"""Standard deviation, from run to run, of the part of a step that others on the processors take, as a part of it: how
the scheduler places a run among them lasts longer than the run. Measured: docs/validation.md, `Run to run`."""
CROWDED = 0.30
"""The same of one thread of a loader that sets the pace, times the part of the processors that others hold: it shares
caches with them, and which processor it gets, and how fast that one is, differs from run to run. Threads on several
processors have their average: ÷ √ of how many. Measured: docs/validation.md, `Run to run`."""
CONTENTION_ERROR, PART_OF_IT = 0.10, 0.25
"""Half-width that the prediction itself adds to the gain without contention, as no arm runs without it: this much, and
at most so large a part of what contention takes. Measured: docs/validation.md, `Without contention`."""
WATCHED_ERROR = 0.15
"""Half-width that the prediction itself adds to the gain of a watched script, of a gain of 2 and more: the script
without the cause is another run of it, in which no loop of ours measured the parts. Measured: docs/validation.md."""


def rate(known: Estimate, model: Model, *, in_line: bool) -> Estimate:
    """Samples/s of the next run beside the same others. `in_line`: the loader works in the thread that issues."""
    crowded = _crowded(model) if in_line or model.loader_paces else 0.0
    return _widened(known, float(np.hypot(_run_to_run(model), crowded)), BESIDE_OTHERS)


def without_contention(verdict: Verdict, model: Model) -> Verdict:
    """The gain without contention as that of the next run, and as a prediction."""
    gain = verdict.speedup_if_removed.get("contention")
    if gain is None:
        return verdict
    gain = _widened(gain, _run_to_run(model), BESIDE_OTHERS)
    if model.watched is None:  # theirs have an error of their own
        own = min(CONTENTION_ERROR, PART_OF_IT * (gain.value - 1.0))
        gain = _widened(gain, own, f"± {own:.0%} of its own")
    if gain.low is not None:
        gain = replace(gain, low=max(1.0, gain.low))
    return replace(verdict, speedup_if_removed={**verdict.speedup_if_removed, "contention": gain})


def of_many_looks(verdict: Verdict) -> Verdict:
    """The gains of a run that was judged again and again, and ended when it was decided: with intervals that hold at
    all looks."""

    def held(gain: Estimate | None) -> Estimate | None:
        if gain is None or gain.n < 2:
            return gain
        low, high = (None if end is None else at_every_look(gain.value, end, gain.n) for end in (gain.low, gain.high))
        low = None if low is None else max(1.0, low)
        return replace(gain, low=low, high=high, method=f"{gain.method}; holds at every look")

    gains = {cause: held(gain) for cause, gain in verdict.speedup_if_removed.items()}
    return replace(verdict, speedup_if_removed=gains, joint_speedup=held(verdict.joint_speedup))


def of_a_script(verdict: Verdict) -> Verdict:
    """The gains of a watched script as those of its next run."""

    def widened(gain: Estimate | None) -> Estimate | None:
        if gain is None:
            return None
        return _widened(gain, WATCHED_ERROR * min(1.0, gain.value - 1.0), f"± {WATCHED_ERROR:.0%} of another run")

    gains = {cause: widened(gain) for cause, gain in verdict.speedup_if_removed.items()}
    return replace(verdict, speedup_if_removed=gains, joint_speedup=widened(verdict.joint_speedup))


def _run_to_run(model: Model) -> float:
    """Half-width, in logarithms, of what others on the processors take from one run more than from the next."""
    return 1.96 * RUN_TO_RUN * model.taken_by_others


def _crowded(model: Model) -> float:
    """Half-width, in logarithms, of what moves the threads of a loader from run to run."""
    seen = model.processors.get(Arm.REAL)
    if seen is None:
        return 0.0
    on = min(max(1.0, seen.own + seen.queued), seen.cpus)
    return 1.96 * CROWDED / math.sqrt(on) * min(1.0, seen.held / seen.cpus)


def under_load(known: Estimate, others: OtherPrograms | None) -> Estimate:
    """A time on the processors, as that of the next run while others use as much of them: how the scheduler places a
    run among them, and with whom it shares caches, lasts longer than the run."""
    held = 0.0 if others is None else min(others.fraction, 1.0)
    if known.low is None or not known.low > 0:
        return known
    return _widened(known, 1.96 * math.hypot(RUN_TO_RUN, CROWDED) * held, BESIDE_OTHERS)


def _widened(known: Estimate, more: float, why: str) -> Estimate:
    """The interval with a further half-width, in logarithms and independent of what the run's own windows tell."""
    if known.low is None or not more > 0:
        return known
    log = np.log(known.value)
    low = float(np.exp(log - np.hypot(log - np.log(known.low), more)))
    high = None if known.high is None else float(np.exp(log + np.hypot(np.log(known.high) - log, more)))
    return replace(known, low=low, high=high, method=f"{known.method}; {why}")
