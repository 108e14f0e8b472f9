"""Sizing by closed-form arithmetic: batches of known times, targets of known answers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loaderbench.analysis.sizing import (
    devices,
    fed,
    is_decided,
    order_statistics,
    sized,
    step_percentile,
    steps_needed,
    surely_above,
)
from loaderbench.recording.facts import Failure, MemoryFacts
from loaderbench.recording.model_size import BatchFacts, BatchFigures, FeedFacts, KnownStep, SizeFacts, StepRound
from tests.made import make_device, make_environment, make_estimate


def batch(size: int, step_s: float, *, num_steps: int = 700, spread: float = 0.0, rounds: int = 3) -> BatchFacts:
    """Steps of one mean time, every second one `spread` above it and the others below."""
    steps = step_s * (1 + spread * np.where(np.arange(num_steps) % 2, 1, -1))
    return BatchFacts(
        size, "ok", rounds=tuple(StepRound(steps) for _ in range(rounds)), memory=MemoryFacts(1000 * size, 1, 1, None)
    )


def facts(*batches: BatchFacts, **changes: Any) -> SizeFacts:
    made = SizeFacts(
        model="lenet", mode="infer", precision="fp32", optimizer="sgd", device_name="cuda:0", input_size=28, channels=1,
        seed=0, target_per_s=None, latency_s=None, percentile=99.0, environment=make_environment(),
        device=make_device(emulated=False), batches=batches, num_rounds=3, stopped_by="no_gain", duration_s=60.0,
    )  # fmt: skip
    return replace(made, **changes)


def out_of_memory(size: int) -> BatchFacts:
    return BatchFacts(size, "failed", Failure("OutOfMemory", "does not fit"))


# -- devices ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "rate", "half_width", "expected"),
    [
        (5000.0, 1250.0, 0.0, (4, 4, 4)),  # exactly four
        (5000.0, 1249.9, 0.0, (5, 5, 5)),  # and a little more
        (5000.0, 1250.0, 0.1, (4, 4, 5)),  # 5000 ÷ 1375 = 3.6, 5000 ÷ 1125 = 4.4
        (5000.0, 1000.0, 0.5, (5, 4, 10)),
        (1.0, 1000.0, 0.1, (1, 1, 1)),
        (0.3 * 3, 0.3, 0.0, (3, 3, 3)),  # 0.8999999999999999 ÷ 0.3
        (3 * 0.1, 0.1, 0.0, (3, 3, 3)),  # 0.30000000000000004 ÷ 0.1
    ],
)
def test_devices_are_the_target_over_the_rate_rounded_up(
    target: float, rate: float, half_width: float, expected: tuple[int, int, int]
) -> None:
    found = devices(target, make_estimate(rate, half_width))
    assert (found.value, found.low, found.high) == expected


def test_a_rate_without_an_interval_gives_a_count_without_one() -> None:
    found = devices(10.0, replace(make_estimate(3.0), low=None, high=None))
    assert (found.value, found.low, found.high) == (4, None, None)


@pytest.mark.parametrize(
    ("low", "high", "ends"),
    [(0.1, None, (1, 100)), (None, None, (None, None)), (None, 20.0, (1, None)), (0.0, 20.0, (1, None))],
)
def test_a_rate_that_is_not_bounded_decides_no_number_of_devices(
    low: float | None, high: float | None, ends: tuple[int | None, int | None]
) -> None:
    found = devices(10.0, replace(make_estimate(3.0), low=low, high=high))
    assert (found.value, found.low, found.high) == (4, *ends)
    assert not is_decided(found, constant=False)


@pytest.mark.parametrize("label", ["measured", "public spec"])
def test_a_step_of_one_moment_decides_nothing_and_a_constant_does(label: str) -> None:
    assert sized(facts(batch(8, 0.010, num_steps=1, rounds=1), target_per_s=5000.0)).is_decided is False
    known = BatchFacts(8, "ok", known=KnownStep(0.010, label, "a data sheet"))
    assert sized(facts(known, target_per_s=5000.0)).is_decided is True


def test_a_rate_is_the_batch_over_the_mean_step_and_its_interval_covers_the_rounds() -> None:
    # given rounds of 10, 11 and 12 ms
    one = batch(8, 0.010)
    rounds = tuple(StepRound(np.full(40, step_s)) for step_s in (0.010, 0.011, 0.012))
    (row,) = sized(facts(replace(one, rounds=rounds))).batches
    assert row.step_s is not None and row.samples_per_s is not None
    assert row.step_s.value == pytest.approx(0.011) and row.samples_per_s.value == pytest.approx(8 / 0.011)
    assert row.s_per_sample == pytest.approx(0.011 / 8) and row.num_steps == 120
    low, high = row.step_s.low, row.step_s.high
    # then the interval is wider than the standard error of three rounds, 1 ms ÷ √3
    assert low is not None and high is not None
    assert low < 0.011 - 0.001 / math.sqrt(3) and high > 0.011 + 0.001 / math.sqrt(3)
    assert row.samples_per_s.low == pytest.approx(8 / high, rel=0.01)


# -- percentiles -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("percent", "needed"), [(50, 14), (90, 66), (95, 132), (99, 660), (99.9, 6600), (10, 66)])
def test_steps_needed_for_a_percentile(percent: float, needed: int) -> None:
    assert steps_needed(percent) == needed
    steps = np.linspace(1, 2, needed)
    assert step_percentile(steps, percent).value is not None
    short = step_percentile(steps[1:], percent)
    assert (short.value, short.unknown, short.steps_needed, short.num_steps) == (
        None, "too_few_steps", needed, needed - 1,
    )  # fmt: skip
    # and so many leave the chance of seeing none beyond it at e^-6.6 or below
    assert max(percent, 100 - percent) / 100 <= math.exp(-6.6 / needed)


def binomial_below(n: int, p: float, rank: int) -> float:
    """P(B < rank), term by term."""
    return math.fsum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(rank))


@pytest.mark.parametrize(("n", "percent"), [(14, 50), (66, 90), (132, 95), (660, 99), (1000, 99), (301, 50)])
def test_ranks_are_the_narrowest_that_the_binomial_distribution_allows(n: int, percent: float) -> None:
    ranks, p = order_statistics(n, percent), percent / 100
    assert ranks is not None
    low, high = ranks
    assert binomial_below(n, p, low) <= 0.025 < binomial_below(n, p, low + 1)
    assert 1 - binomial_below(n, p, high) <= 0.025 < 1 - binomial_below(n, p, high - 1)


@pytest.mark.parametrize(("percent", "least"), [(50, 6), (95, 72), (99, 368)])
def test_an_interval_exists_from_the_number_of_steps_of_the_tables_on(percent: float, least: int) -> None:
    # (1 − 0.025) = 1 − pⁿ: n = ln 0.025 ÷ ln p
    assert least == math.ceil(math.log(0.025) / math.log(percent / 100))
    assert order_statistics(least - 1, percent) is None and order_statistics(least, percent) is not None


def test_the_interval_of_p99_covers_the_truth_as_often_as_it_says() -> None:
    random, truth, covered, tries = np.random.default_rng(7), -math.log(0.01), 0, 400
    for _ in range(tries):
        found = step_percentile(random.exponential(1.0, 660), 99)
        assert found.low is not None and found.high is not None
        covered += found.low <= truth <= found.high
    # 95 % nominal: 400 tries of it are 380 ± 13 (three standard deviations); the ranks give 95.9 %
    assert covered >= 367


def test_percentiles_are_of_single_steps_where_these_differ() -> None:
    # given steps that take 5 ms back to back, and 8 ms each when alone
    one = replace(batch(4, 0.005), rounds=(StepRound(np.full(700, 0.005), np.full(700, 0.008)),))
    (row,) = sized(facts(one, latency_s=0.006)).batches
    assert row.step_s is not None and row.step_s.value == pytest.approx(0.005)
    assert row.p50_s == row.p99_s == pytest.approx(0.008) and row.within_latency is False


# -- the answer ------------------------------------------------------------------------------------------


def test_the_batch_of_the_highest_rate_answers_a_target() -> None:
    # given 100, 160, 200 and 198 images/s
    found = sized(facts(batch(1, 0.01), batch(2, 0.0125), batch(4, 0.02), batch(8, 8 / 198), target_per_s=1001.0))
    assert (found.chosen_batch, found.devices_needed, found.bound) == (4, 6, "compute")
    assert found.devices_needed_interval is not None and found.devices_needed_interval.low == 6
    assert [row.grows for row in found.batches] == [None, True, True, False] and not found.still_grows


def test_memory_bounds_where_the_rate_still_grew_and_the_next_does_not_fit() -> None:
    grew = facts(batch(1, 0.01), batch(2, 0.0125), out_of_memory(4), target_per_s=320.0, stopped_by="memory")
    found = sized(grew)
    assert (found.chosen_batch, found.devices_needed, found.bound) == (2, 2, "memory")
    # but not where the rate had stopped growing
    flat = facts(batch(1, 0.01), batch(2, 0.02), out_of_memory(4), target_per_s=320.0, stopped_by="memory")
    assert sized(flat).bound == "compute"
    # nor where growth is within the intervals
    noisy = facts(
        batch(1, 0.01, spread=0.5, num_steps=9), batch(2, 0.0195, spread=0.5, num_steps=9), out_of_memory(4),
        target_per_s=320.0, stopped_by="memory",
    )  # fmt: skip
    assert sized(noisy).bound == "compute"


def test_latency_bounds_where_a_better_batch_is_beyond_the_limit() -> None:
    measured = (batch(1, 0.01), batch(2, 0.0125), batch(4, 0.02))
    found = sized(facts(*measured, target_per_s=800.0, latency_s=0.015))
    assert (found.chosen_batch, found.devices_needed, found.bound) == (2, 5, "latency")
    assert [row.within_latency for row in found.batches] == [True, True, False]
    # a limit that no batch exceeds does not bound
    assert sized(facts(*measured, target_per_s=800.0, latency_s=0.05)).bound == "compute"
    # nor one that excludes a batch that would do no more
    assert sized(facts(batch(1, 0.01), batch(2, 0.02), latency_s=0.015)).bound == "compute"


def test_a_latency_alone_needs_one_device() -> None:
    found = sized(facts(batch(1, 0.01), batch(2, 0.0125), latency_s=0.02))
    assert (found.chosen_batch, found.devices_needed) == (2, 1)
    assert found.demand is not None and found.demand.samples_per_s == pytest.approx(160)
    assert not found.demand.of_target


def test_the_percentile_decides_and_not_the_mean() -> None:
    # given steps of 10 ms, of which one in 20 takes 30
    steps = np.full(2000, 0.01)
    steps[::20] = 0.03
    one = replace(batch(1, 0.01), rounds=(StepRound(steps),))
    assert sized(facts(one, latency_s=0.02, percentile=99.0)).no_answer == "latency_below_all"
    assert sized(facts(one, latency_s=0.02, percentile=90.0)).chosen_batch == 1


def test_a_limit_below_batch_one_cannot_be_met_whatever_the_percentile() -> None:
    found = sized(facts(batch(1, 0.01, num_steps=4), target_per_s=100.0, latency_s=0.005))
    assert (found.devices_needed, found.bound, found.no_answer) == (None, None, "latency_below_all")
    assert found.demand is not None and found.demand.samples_per_s == 100, "the target is what it is"


def test_a_percentile_is_beyond_the_limit_where_a_lower_one_surely_is() -> None:
    # given 60 steps, of which one in four takes 1 ms and the others 30: enough for the median, and not for p99
    steps = np.full(60, 0.03)
    steps[::4] = 0.001
    one = replace(batch(1, 0.01), rounds=(StepRound(steps),))
    found = sized(facts(one, latency_s=0.02))
    assert found.batches[0].p50_s == 0.03 and found.batches[0].p99_s is None
    assert found.batches[0].within_latency is False and found.no_answer == "latency_below_all"
    assert sized(facts(one, latency_s=0.04)).no_answer == "latency_unknown"


def test_a_percentile_of_too_few_steps_decides_nothing() -> None:
    found = sized(facts(batch(1, 0.01, num_steps=10), target_per_s=100.0, latency_s=0.02))
    assert (found.devices_needed, found.no_answer) == (None, "latency_unknown")
    assert found.batches[0].within_latency is None and found.batches[0].p99_s is None


def test_nothing_measured_is_no_answer() -> None:
    found = sized(facts(out_of_memory(1), target_per_s=100.0, stopped_by="memory"))
    assert (found.devices_needed, found.bound, found.no_answer) == (None, None, "nothing_measured")
    assert sized(facts(device=None)).no_answer == "nothing_measured"


def test_known_times_have_no_percentiles_and_no_intervals() -> None:
    known = BatchFacts(4, "ok", known=KnownStep(0.02, "assumed", "a guess"))
    found = sized(facts(known, target_per_s=1000.0, latency_s=0.03))
    (row,) = found.batches
    assert isinstance(row, BatchFigures) and row.samples_per_s is not None
    assert (row.samples_per_s.value, row.samples_per_s.low, row.label, row.source) == (
        200.0,
        None,
        "assumed",
        "a guess",
    )
    assert {one.unknown for one in row.percentiles} == {"no_spread"} and row.p99_s is None
    assert row.within_latency is True
    assert found.devices_needed == 5 and found.devices_needed_interval is not None
    assert found.devices_needed_interval.low is None


def test_one_round_has_an_interval_and_one_step_has_none() -> None:
    (many,) = sized(facts(batch(1, 0.01, spread=0.1, num_steps=30, rounds=1))).batches
    (one,) = sized(facts(batch(1, 0.01, num_steps=1, rounds=1))).batches
    assert many.step_s is not None and many.step_s.low is not None and many.step_s.low < 0.01
    assert one.step_s is not None and (one.step_s.value, one.step_s.low) == (0.01, None)


def test_growth_is_beyond_both_intervals() -> None:
    assert surely_above(make_estimate(110, 0.04), make_estimate(100, 0.05))
    assert not surely_above(make_estimate(110, 0.06), make_estimate(100, 0.05))


# -- who feeds them --------------------------------------------------------------------------------------

FEED = FeedFacts(
    run_id="r", named=True, dataset_name="photos", resolution=256, loader="multiprocess", workers=8, input_size=28,
    capacities={"storage": make_estimate(620.0, 0.05), "prep": None, "loader": make_estimate(180.0, 0.1)},
    cpu_s_per_sample=0.004, no_cpu_s=None, mean_file_bytes=100_000.0,
)  # fmt: skip


def test_what_must_be_delivered_is_the_target_times_an_image() -> None:
    found = sized(facts(batch(2, 0.01), target_per_s=5000.0, feed=FEED, mean_file_bytes=110_000.0))
    assert found.demand is not None
    assert found.demand.of_target and found.demand.samples_per_s == 5000
    assert found.demand.bytes_per_s == pytest.approx(550e6)
    assert found.demand.cpus == pytest.approx(20.0)  # 5000 × 4 ms


def test_what_is_not_known_of_the_feed_is_none() -> None:
    found = sized(facts(batch(2, 0.01), target_per_s=5000.0))
    assert found.demand is not None and found.demand.bytes_per_s is found.demand.cpus is None
    assert found.supplies == ()


def test_stages_feed_capacity_over_rate_devices() -> None:
    # given a device of 200 images/s exactly
    supplies = {one.stage: one for one in sized(facts(batch(2, 0.01), target_per_s=1.0, feed=FEED)).supplies}
    storage, loader = supplies["storage"].devices, supplies["loader"].devices
    assert storage is not None and loader is not None
    assert storage.value == pytest.approx(3.1) and loader.value == pytest.approx(0.9)
    assert storage.low == pytest.approx(3.1 * 0.95) and storage.high == pytest.approx(3.1 * 1.05)
    assert supplies["prep"].capacity is None and supplies["prep"].devices is None


def test_both_intervals_widen_what_is_fed() -> None:
    found = fed(make_estimate(300.0, 0.1), make_estimate(100.0, 0.2))
    assert found.value == pytest.approx(3.0)
    assert found.low == pytest.approx(270 / 120) and found.high == pytest.approx(330 / 80)
