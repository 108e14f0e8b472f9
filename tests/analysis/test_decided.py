"""When what was measured so far decides a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from loaderbench.analysis import decided
from loaderbench.analysis.decided import look
from loaderbench.analysis.statistics import at_every_look, wider_at_every_look
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import Segment
from loaderbench.recording.progress import Look
from tests.analysis.event_model import EPOCH_MS, Pipeline, segment, slower
from tests.analysis.judging import run_of
from tests.pipeline.simulated import TYPICAL, probed

FIRST = (Arm.DEVICE, Arm.HOST, Arm.REAL, Arm.FETCH, Arm.RAM, Arm.FREE)


def windows(pipe: Pipeline, arms: Sequence[Arm]) -> list[Segment]:
    """One after the other, each 1 % faster or slower than the pipeline."""
    made, begin_ms = list[Segment](), EPOCH_MS
    for number, arm in enumerate(arms):
        at = slower(pipe, 1 + 0.01 * (-1) ** number)
        one = segment(at, arm, number, num_steps=8 * max(1, pipe.workers), begin_ms=begin_ms, seed=3)
        made.append(replace(one, round=sum(one.arm is Arm.REAL for one in made)))
        begin_ms += 1e3 * (one.wall_s or 0.0) + 500.0
    return made


def said(pipe: Pipeline, arms: Sequence[Arm]) -> Look:
    found = look(probed(pipe, run_of(pipe, windows(pipe, arms))))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kind", "cause"),
    [("bandwidth", "storage"), ("latency", "storage"), ("cpu", "prep"), ("launch", "launch")],
)
def test_a_clear_cause_takes_three_windows(kind: str, cause: str) -> None:
    more = [Arm.REAL, Arm.HOST, Arm.DEVICE, Arm.RAM]
    found = [said(TYPICAL[kind], (*FIRST, *more * rounds)) for rounds in range(4)]
    assert not any(one.is_clear for one in found[:1])
    assert found[-1].is_clear and found[-1].verdict.bottleneck == cause == found[-1].said[0]


def test_a_window_of_long_steps_counts_for_as_many_as_it_lasts() -> None:
    slow = slower(TYPICAL["latency"], 5.0)
    assert said(slow, FIRST).is_clear


def test_a_gain_near_the_limit_is_not_clear() -> None:
    # of a device step of 40 ms, preparation takes 44 to 45 in steady state: 1.1 times
    close = replace(TYPICAL["cpu"], decode_ms=170.0)
    found = said(close, (*FIRST, *[Arm.REAL] * 3))
    assert not found.is_clear


@pytest.mark.parametrize(("n", "ends"), [(8, (3.17, 3.17)), (1, (3.0, 3.3))])
def test_a_gain_of_which_nothing_tells_how_much_it_moves_is_not_known(n: int, ends: tuple[float, float]) -> None:
    gain = SimpleNamespace(value=3.17, n=n, ends=ends)
    assert decided._ends(cast(Any, gain)) == (0.0, float("inf"))


def test_a_gain_of_nothing_in_all_draws_is_known() -> None:
    gain = SimpleNamespace(value=1.0, n=8, ends=(1.0, 1.0))
    assert decided._ends(cast(Any, gain)) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("before", "now", "is_decided"),
    [
        ((True, ("storage", "bandwidth")), (True, ("storage", "bandwidth")), True),
        ((True, ("storage", "bandwidth")), (True, ("storage", "latency")), False),
        ((False, ("storage", "bandwidth")), (True, ("storage", "bandwidth")), False),
        (None, (True, ("storage", "bandwidth")), False),
    ],
)
def test_two_looks_that_say_the_same_decide(before: Any, now: Any, is_decided: bool) -> None:
    def of(one: tuple[bool, tuple[str, ...]] | None) -> Look | None:
        return None if one is None else Look(cast(Any, None), one[0], one[1], ())

    found = of(now)
    assert found is not None and found.is_decided(of(before)) is is_decided


def test_intervals_hold_at_all_looks_together() -> None:
    """Of 4,000 series of normal draws, looked at after each from the third to the 200th on."""
    draws = np.random.default_rng(11).standard_normal((4000, 200))
    num = np.arange(1, 201)
    means = np.cumsum(draws, axis=1) / num
    plain = 1.96 / np.sqrt(num)
    wide = plain * [wider_at_every_look(int(one)) for one in num]
    looked = slice(2, None)
    assert (np.abs(means) > plain)[:, looked].any(axis=1).mean() > 0.2  # who looks again and again is misled
    assert (np.abs(means) > wide)[:, looked].any(axis=1).mean() <= 0.05


def test_an_end_at_all_looks_is_farther_out_on_its_own_side() -> None:
    assert at_every_look(2.0, 1.8, 5) < 1.8 < 2.0 < 2.2 < at_every_look(2.0, 2.2, 5)
    assert at_every_look(2.0, float("inf"), 5) == float("inf")
