"""Runs of few, long steps: what the replay names, and the bound of its gain, against what is true of the pipeline."""

from __future__ import annotations

import pytest

from loaderbench.analysis.record import analyze
from tests.analysis.event_model import measure
from tests.analysis.judging import run_of
from tests.pipeline.simulated import KINDS, drawn
from tests.pipeline.truths import causes_of, true_gain

NUM = 2
STAGES = ("storage", "prep", "transfer", "launch")
SLACK = 0.02
"""Of the simulated truth's own error."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [2, 4])
def test_what_few_steps_show_is_true(kind: str, steps: int) -> None:
    for number in range(NUM):
        pipe = drawn(kind, number, seed=3)
        verdict = analyze(run_of(pipe, measure(pipe, rounds=1, num_steps=steps, seed=1))).verdict
        assert verdict is not None
        gain = verdict.gain
        if gain is None or gain.low is None or gain.high is not None:
            continue  # by its arms, or not at all
        true = true_gain(pipe, verdict.bottleneck)
        assert true >= gain.low * (1 - SLACK)
        assert true >= max(true_gain(pipe, one) for one in STAGES if one in causes_of(pipe)) * (1 - SLACK)


@pytest.mark.parametrize("kind", ["bandwidth", "latency"])
def test_one_round_over_a_slow_storage_names_it(kind: str) -> None:
    found = 0
    for number in range(NUM):
        pipe = drawn(kind, number, seed=3)
        verdict = analyze(run_of(pipe, measure(pipe, rounds=1, num_steps=pipe.workers, seed=1))).verdict
        found += verdict is not None and verdict.bottleneck == "storage"
    assert found >= NUM / 2


def test_less_than_a_round_names_nothing() -> None:
    pipe = drawn("oversubscribed", 0, seed=3)
    verdict = analyze(run_of(pipe, measure(pipe, rounds=1, num_steps=2, seed=1))).verdict
    assert verdict is not None and [one.code for one in verdict.reasons] == ["too_few_steps"]
