"""Whether what was measured so far decides a run, looked at after each window, so that measuring ends with the answer.

The judging is that of a whole run (analysis/record.py, pipeline/verdict.py). Who looks again and again, and stops at
the look that he likes, is wrong more often than his intervals say. So a gain counts here by an interval that holds at
all looks together (analysis/statistics.py, `wider_at_every_look`), and that is the one that such a run tells.
"""

from __future__ import annotations

import numpy as np

from loaderbench.analysis.model import WORTH
from loaderbench.analysis.quantities import Quantity
from loaderbench.analysis.record import Judged, judged_run
from loaderbench.analysis.statistics import at_every_look
from loaderbench.cases.arms import Arm
from loaderbench.pipeline.fit import EXPLAINED
from loaderbench.pipeline.verdict import judged as replayed
from loaderbench.plain import Json
from loaderbench.recording.facts import Run
from loaderbench.recording.progress import Look
from loaderbench.recording.record import Verdict

WINDOWS, WINDOW_S = 3, 2.5
"""Windows of `real` before anything is decided: of what changes from one to the next, fewer tell nothing. One that
lasts for several of WINDOW_S, since its steps are long, counts for as many, unless others hold up the run: these come
and go."""
EVENTS = 3
"""Stalls of a storage before they are its kind: of fewer, neither length nor period is known."""


def look(run: Run) -> Look | None:
    """Judge a run so far; None before a complete step of `real`."""
    judged = None if run.recording is None else judged_run(run, run.recording)
    if judged is None:
        return None
    verdict, said, clear = judged.attribution.verdict, tuple[Json, ...](), _is_clear(judged)
    if clear:  # what takes longer to find out
        clear = _replay_agrees(run, verdict)
        kind = judged.slowness.kind if "storage" in _named(verdict) else None
        said = (verdict.bottleneck, *verdict.joint, kind, *(one.code for one in judged.verdict.advice))
    return Look(verdict, clear, said, _telling(judged))


def _ends(gain: Quantity) -> tuple[float, float]:
    """Of a gain, at all looks. Of one block nothing tells, nor, of one that is worth anything,
    where nothing says by how much others differ."""
    low, high = gain.ends
    if gain.n < 2 or (low == high and gain.value > 1.0):
        return 0.0, float("inf")
    low, high = (at_every_look(gain.value, end, gain.n) for end in (low, high))
    return low, high


def _named(verdict: Verdict) -> tuple[str, ...]:
    return (verdict.bottleneck, *verdict.joint)


def _is_clear(judged: Judged) -> bool:
    """Whether the gain of what is named lies beyond the limit from which on it counts, or those of all causes below it,
    and enough was seen of what makes the storage uneven."""
    model, verdict = judged.model, judged.attribution.verdict
    if verdict.bottleneck == "undetermined" or verdict.reasons or _num_windows(judged) < WINDOWS:
        return False
    stalls = judged.slowness.stalls
    if "storage" in _named(verdict) and stalls is not None and stalls.num < EVENTS:
        return False
    gains: dict[str, Quantity] = {str(cause): gain for cause, gain in model.gains.items()}
    if model.contention_gain is not None:
        gains["contention"] = model.contention_gain
    if verdict.bottleneck == "compute":
        return all(_ends(gain)[1] < WORTH for gain in gains.values())
    if verdict.bottleneck == "mixed":
        joint = verdict.joint_speedup
        return joint is not None and joint.low is not None and at_every_look(joint.value, joint.low, joint.n) >= WORTH
    best = gains.get(verdict.bottleneck)
    return best is not None and _ends(best)[0] >= WORTH


def _num_windows(judged: Judged) -> int:
    held_up = judged.model.contention_gain
    if held_up is not None and held_up.value >= WORTH:
        return len(judged.real.quantities)
    seconds = [float(values["duration"].sum()) for values in judged.real.quantities]
    return sum(max(1, int(one / WINDOW_S)) for one in seconds)


def _replay_agrees(run: Run, verdict: Verdict) -> bool:
    """Whether the replay explains the run, and names a cause that the rules name, too. Contention the rules may name
    before what gives more: it is enough that the replay gains by it."""
    found = replayed(run)
    if found is None:
        return True
    named, held_up = {found.bottleneck, *found.joint}, found.gains.get("contention")
    if held_up is not None and held_up.low is not None and held_up.low >= WORTH:
        named.add("contention")
    return abs(found.residual) <= EXPLAINED and not named.isdisjoint(_named(verdict))


def _telling(judged: Judged) -> tuple[Arm, ...]:
    """By the part of the variance of the largest gain that goes with the arm's own."""
    gains, arms = judged.model.gains, judged.arms
    if not gains:
        return ()
    best = max(gains.values(), key=lambda gain: gain.value).draws

    def part(arm: Arm) -> float:
        own = arms[arm].drawn("duration")
        return abs(float(np.corrcoef(own, best)[0, 1])) if own.std() > 0 and best.std() > 0 else 0.0

    return tuple(sorted((arm for arm in arms if arm is not Arm.REAL), key=part, reverse=True))
