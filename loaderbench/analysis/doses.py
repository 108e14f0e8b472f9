"""What a watched script's windows with known delays say: dT/dδ, with its interval, beside what bursts and the timeline
let expect (docs/watch-method.md, `Delays`). Pure functions of recorded facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loaderbench.analysis.model import AGREEMENT, Model
from loaderbench.analysis.statistics import t_quantile
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import STEP, Segment
from loaderbench.recording.record import DoseFigures, Estimate

LEAST_PAIRS = 3
"""Windows with a delay; fewer do not tell their spread."""
APART = 0.1
"""Two intervals of dT/dδ that are further apart than this disagree."""


Place = Literal["host", "stream"]
PLACES: tuple[Place, ...] = ("host", "stream")


@dataclass(frozen=True)
class Response:
    """Of one place's delays."""

    value: Estimate
    delay_s: float


def responses(segments: Sequence[Segment]) -> dict[Place, Response]:
    """Nothing of a place with fewer than LEAST_PAIRS windows."""
    found: dict[Place, Response] = {}
    for place in PLACES:
        pairs = np.array(_pairs(segments, place), dtype=np.float64).reshape(-1, 3)
        if len(pairs) >= LEAST_PAIRS:
            found[place] = Response(response_of(pairs), float(pairs[:, 2].mean()))
    return found


def doses(found: Mapping[Place, Response], model: Model) -> tuple[DoseFigures, ...]:
    """The responses beside what else is known of the run."""
    return tuple(_figures(place, one.value, one.delay_s, model) for place, one in found.items())


def _figures(place: Place, response: Estimate, delay_s: float, model: Model) -> DoseFigures:
    expected = _expected(model, delay_s) if place == "host" else None
    agrees = None
    if expected is not None and response.low is not None and response.high is not None:
        agrees = response.low <= expected[1] + APART and response.high >= expected[0] - APART
    return DoseFigures(place, response, delay_s, None if expected is None else [*expected], agrees)


def _pairs(segments: Sequence[Segment], place: str) -> list[tuple[float, float, float]]:
    """(step with the delay, step without, delay) of each window, seconds. Without: the mean of the windows before and
    behind, so that a drift of the machine cancels out."""
    found = []
    for number, segment in enumerate(segments):
        if segment.delay is None or segment.delay.place != place:
            continue
        beside = [
            step
            for one in (*segments[max(0, number - 1) : number], *segments[number + 1 : number + 2])
            if one.arm is Arm.REAL and (step := _step_s(one)) is not None
        ]
        delayed = _step_s(segment)
        if delayed is not None and beside:
            found.append((delayed, sum(beside) / len(beside), segment.delay.mean_ns / 1e9))
    return found


def _step_s(segment: Segment) -> float | None:
    """Mean seconds a step of a window; None where it holds no whole step."""
    done = segment.steps[max(1, segment.num_warmup) - 1 :, STEP["done_ns"]]
    return float(done[-1] - done[0]) / (len(done) - 1) / 1e9 if len(done) > 1 else None


def response_of(pairs: np.ndarray) -> Estimate:
    """dT/dδ: Σ growth ÷ Σ delay, its interval by the pairs' residuals (Cochran, Sampling Techniques, 6.4) and
    Student's t."""
    growth, delay = pairs[:, 0] - pairs[:, 1], pairs[:, 2]
    value, n = float(growth.sum() / delay.sum()), len(pairs)
    left = growth - value * delay
    error = float(np.sqrt((left**2).sum() * n / (n - 1)) / delay.sum())
    half = t_quantile(n - 1) * error
    return Estimate(value, value - half, value + half, "ratio", n, "ratio of sums over windows, t interval")


def _expected(model: Model, delay_s: float) -> tuple[float, float] | None:
    """The ends of dT/dδ by bursts and timeline: a delay is hidden as far as the step waits for its batch. None where
    they do not tell, and of a device, whose work behind the host hides delays too. A loader without workers and the
    step take turns, and nothing hides a delay."""
    if not model.on_host_cpus:
        return None
    if model.synchronous:
        return 1.0, 1.0
    device = model.times.device
    if device is None:
        return None
    waits, slack = model.real - device, AGREEMENT * model.real.value
    low = 1.0 - (waits.high + slack) / delay_s
    high = 1.0 - (waits.low - slack) / delay_s
    return min(1.0, max(0.0, low)), min(1.0, max(0.0, high))
