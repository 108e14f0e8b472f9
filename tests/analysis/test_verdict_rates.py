"""How often the verdict is right, over random pipelines of the event model. The bounds are those of issue 3.

Truth is the pipeline simulated again without the cause. A verdict is right where it names the cause that is worth
most, or one within 5 % of it; a confident wrong one names a cause worth less than nine tenths of that, or compute.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest

from loaderbench.analysis.verdict import Attribution
from loaderbench.recording.record import STAGES, Cause
from tests.analysis.event_model import Pipeline, true_speedup
from tests.analysis.judging import assert_sound, gain, judge

CLEAR = 1.25
NUM_RUNS, NUM_NULLS = 200, 100


def _between(random: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(random.uniform(np.log(low), np.log(high))))


def random_pipeline(random: np.random.Generator) -> Pipeline:
    """Every stage from a tenth to four times the device's 20 ms, alone or together, any crew."""
    device_ms = 20.0
    workers = int(random.choice([0, 1, 2, 4, 8]))
    crew = max(workers, 1)
    cores = None if random.random() < 0.6 else int(random.choice([1, 2, 4]))
    decode_ms = _between(random, 0.1, 4) * device_ms * min(crew, cores or crew)
    kind = random.integers(4)
    latency_ms = _between(random, 0.1, 4 if kind == 1 else 1) * device_ms * crew if kind in (1, 3) else 0.0
    storage_ms = _between(random, 0.1, 4 if kind == 2 else 2) * device_ms if kind in (2, 3) else 0.0
    return Pipeline(
        workers=workers,
        prefetch=int(random.choice([1, 2, 4])),
        latency_ms=latency_ms,
        storage_ms=storage_ms,
        decode_ms=0.95 * decode_ms,
        collate_ms=0.05 * decode_ms,
        cores=cores,
        transfer_ms=float(random.choice([0.02, _between(random, 0.02, 1.5)])) * device_ms,
        busy_ms=device_ms,
        gap_ms=float(random.choice([0, 0, 0, _between(random, 1, 20)])),
        issue_ms=float(random.choice([0.05, _between(random, 0.02, 3)])) * device_ms,
        crowded_issue_ms=float(random.choice([0, 0, _between(random, 0.05, 0.5)])) * device_ms,
        jitter=float(random.choice([0, 0.1, 0.3])),
        overlap=bool(random.random() < 0.5),
    )


@cache
def case(seed: int) -> tuple[Pipeline, dict[Cause, float]]:
    """A random pipeline and what removing each cause is truly worth."""
    pipe = random_pipeline(np.random.default_rng([1, seed]))
    return pipe, {cause: true_speedup(pipe, cause) for cause in STAGES}


def null_pipeline(random: np.random.Generator) -> Pipeline:
    """A loader at half the device's time, as the self-test's nulls have it."""
    workers = int(random.choice([0, 2, 4, 8]))
    part = random.uniform(0.3, 0.6) * 20.0 * max(workers, 1)
    reading = random.uniform(0, 0.5)
    return Pipeline(
        workers=workers, latency_ms=reading * part, decode_ms=(1 - reading) * part, transfer_ms=random.uniform(0, 0.5),
        busy_ms=random.uniform(18.6, 20.0), issue_ms=random.uniform(0.5, 3), jitter=random.uniform(0, 0.3),
    )  # fmt: skip


def outcome(found: Attribution, truth: dict[Cause, float]) -> str:
    """`right`, `undetermined`, `wrong` (confidently), or `vague`: the cause is named among others worth less."""
    best = max(truth.values())
    if found.verdict.bottleneck == "undetermined":
        return "undetermined"
    if found.verdict.bottleneck in truth:
        worth = truth[found.verdict.bottleneck]
        return "right" if worth >= 0.95 * best else "wrong" if worth < 0.9 * best else "vague"
    if found.verdict.bottleneck == "compute" or not any(truth[cause] == best for cause in found.verdict.joint):
        return "wrong"
    return "right" if all(truth[cause] >= 0.9 * best for cause in found.verdict.joint) else "vague"


@pytest.mark.parametrize("drift", [pytest.param(0.005, marks=pytest.mark.slow), 0.02])
def test_verdicts_over_random_pipelines(drift: float, capsys: pytest.CaptureFixture[str]) -> None:
    table: Counter[tuple[str, str]] = Counter()
    errors, undetermined = [], 0
    for seed in range(NUM_RUNS):
        pipe, truth = case(seed)
        found = judge(pipe, rounds=3, num_steps=32, drift=drift, seed=seed)
        assert_sound(found)
        undetermined += found.verdict.bottleneck == "undetermined"
        best = max(STAGES, key=lambda cause: truth[cause])
        if truth[best] >= CLEAR:
            table[best, outcome(found, truth)] += 1
            errors.append(abs(gain(found, best) / truth[best] - 1))
    columns = ("right", "vague", "undetermined", "wrong")
    with capsys.disabled():
        print(f"\nrounds that differ by ±{drift:.1%}: the cause worth most (≥ {CLEAR}×) → verdict")
        for cause in STAGES:
            print(f"  {cause:<9}", "  ".join(f"{name} {table[cause, name]:>3}" for name in columns))
        print(f"  predicted gain: median error {np.median(errors):.1%}, 95 % within {np.percentile(errors, 95):.1%}")
    num_clear = sum(table.values())
    assert num_clear >= 100
    assert sum(table[cause, "right"] for cause in STAGES) >= 0.95 * num_clear
    assert sum(table[cause, "wrong"] for cause in STAGES) == 0
    assert undetermined <= 0.05 * NUM_RUNS
    assert np.median(errors) <= 0.02


def test_nulls_are_compute(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts: Counter[str] = Counter()
    for seed in range(NUM_NULLS):
        pipe = null_pipeline(np.random.default_rng([2, seed]))
        found = judge(pipe, rounds=3, num_steps=32, drift=0.01, seed=seed)
        verdicts[found.verdict.bottleneck] += 1
    with capsys.disabled():
        print(f"\nnothing wrong: {dict(verdicts)}")
    assert verdicts["compute"] >= 0.97 * NUM_NULLS


@pytest.mark.slow
def test_shares_are_what_the_removals_leave() -> None:
    """Where one cause bounds, its share is the part of the step that is gone without it."""
    errors = []
    for seed in range(60):
        random = np.random.default_rng([3, seed])
        cause = str(random.choice(["storage", "prep", "transfer"]))
        size = random.uniform(1.4, 4.0)
        stage: dict[str, float] = {
            "storage": {"latency_ms": 4 * 20.0 * size}, "prep": {"decode_ms": 4 * 20.0 * size},
            "transfer": {"transfer_ms": 20.0 * (size - 1)},
        }[cause]  # fmt: skip
        pipe = Pipeline(**{"decode_ms": 16.0, "busy_ms": 20.0, "jitter": random.uniform(0, 0.3), **stage})  # type: ignore[arg-type]
        found = judge(pipe, rounds=3, num_steps=32, drift=0.01, seed=seed)
        value = sum(one.value for name in {cause, "contention"} if (one := found.shares[name]) is not None)
        errors.append(abs(value - (1 - 1 / true_speedup(pipe, cause))))
    assert np.mean(errors) <= 0.04
    assert np.percentile(errors, 95) <= 0.10
