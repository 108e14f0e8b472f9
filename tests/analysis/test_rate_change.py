"""A rate that changed for good is told, with when; one that only varies is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loaderbench.analysis.record import analyze
from loaderbench.cases.arms import Arm
from loaderbench.recording.record import RateChange
from loaderbench.reporting.words import worded
from tests.analysis.event_model import Pipeline, measure
from tests.analysis.judging import run_of
from tests.pipeline.simulated import EVEN, KINDS, TYPICAL

ROUNDS = 8


def changed(before: Pipeline, after: Pipeline, at: int) -> RateChange | None:
    """Of a run whose rounds from `at` on are those of another pipeline."""
    segments = [*measure(before, rounds=at), *(one for one in measure(after, rounds=ROUNDS) if one.round >= at)]
    return analyze(run_of(before, segments)).rate_change


@pytest.mark.parametrize("at", [2, 4, 6])
@pytest.mark.parametrize("slower", [True, False])
def test_a_storage_that_falls_or_rises_is_told_with_both_rates(at: int, slower: bool) -> None:
    fast, slow = replace(EVEN, storage_ms=60.0, jitter=0.2), replace(EVEN, storage_ms=200.0, jitter=0.2)
    found = changed(fast, slow, at) if slower else changed(slow, fast, at)
    assert found is not None
    rates = [1e3 * 64 / ms for ms in ((60, 200) if slower else (200, 60))]
    assert [found.before, found.after] == pytest.approx(rates, rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_what_only_varies_is_not_a_change(kind: str) -> None:
    for seed in range(3):
        run = run_of(TYPICAL[kind], measure(TYPICAL[kind], rounds=ROUNDS, drift=0.05, seed=seed))
        assert analyze(run).rate_change is None


def test_it_stands_in_the_first_sentences() -> None:
    fast, slow = replace(EVEN, storage_ms=60.0), replace(EVEN, storage_ms=200.0)
    segments = [*measure(fast, rounds=4), *(one for one in measure(slow, rounds=ROUNDS) if one.round >= 4)]
    record = worded(analyze(run_of(fast, segments)))
    begun = min(one.opened_ns for one in segments)
    last = max(one.closed_ns for one in segments if one.arm is Arm.REAL and one.round < 4)
    assert record.verdict is not None and record.rate_change is not None
    assert record.rate_change.at_s == pytest.approx((last - begun) / 1e9, rel=0.2)
    assert "the rate fell from 1,0" in record.verdict.summary and np.isfinite(record.rate_change.after)
