"""What waiting costs, against numbers computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loaderbench.analysis.price import MONTH_HOURS, priced
from loaderbench.cases.options import Price
from loaderbench.recording.facts import SCHEMA, WatchedEpoch, WatchedFacts
from loaderbench.recording.record import Advice, Cost, Estimate, PriceFigures, Range, RunRecord, Verdict
from tests.made import make_case
from tests.watched_facts import epoch, watched_facts

THREE = Price(3.0)
"""3 an hour."""
RATE = Estimate(200.0, 160.0, 250.0, "samples/s", 9, "made up")
IMAGES = 72_000
"""At 200/s 360 s, a tenth of an hour; 288 s at 250/s, 450 s at 160/s."""


def ratio(value: float, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(value, low, high, "ratio", 9, "made up")


def record_of(verdict: Verdict | None, rate: Estimate | None = RATE, watched: WatchedFacts | None = None) -> RunRecord:
    return RunRecord(
        SCHEMA, 1, "a-run", "ok", None, make_case(batch_size=8), None, "2026-01-02T03:04:05+00:00", 10.0,
        throughput=rate, verdict=verdict, watched=watched,
    )  # fmt: skip


def figures(verdict: Verdict | None, num_images: int | None = IMAGES, **changes: Any) -> PriceFigures:
    found = priced(record_of(verdict, **changes), THREE, num_images).price
    assert found is not None
    return found


def prep(gain: Estimate | None, *advice: Advice) -> Verdict:
    return Verdict("prep", speedup_if_removed={"storage": ratio(9.0), "prep": gain}, advice=advice)


def same(cost: Cost | None, hour: Any, epoch: Any, month: Any) -> None:
    assert cost is not None
    for found, wanted in ((cost.hour, hour), (cost.epoch, epoch), (cost.month, month)):
        assert found is not None
        for one, end in zip((found.value, found.low, found.high), wanted, strict=True):
            assert one == (None if end is None else pytest.approx(end, rel=1e-12))


def test_a_month_is_730_hours() -> None:
    assert MONTH_HOURS == 730.0


def test_running_costs_the_price_and_an_epoch_its_time() -> None:
    found = figures(prep(ratio(2.0, 1.5, 4.0)))
    same(found.running, (3.0, 3.0, 3.0), (0.3, 0.24, 0.375), (2190.0, 2190.0, 2190.0))
    assert found.epoch_samples == IMAGES and found.epoch_s == Range(360.0, 288.0, 450.0) and found.no_epoch is None
    assert (found.per_hour, found.month_hours) == (3.0, 730.0)


def test_waiting_is_the_step_now_less_the_step_without_the_cause() -> None:
    """Twice as fast without it: half of the step is waiting; 1.5 times a third, 4 times three quarters."""
    found = figures(prep(ratio(2.0, 1.5, 4.0)))
    same(found.waiting, (1.5, 1.0, 2.25), (0.15, 1.0 * 0.08, 2.25 * 0.125), (1095.0, 730.0, 1642.5))
    assert found.no_waiting is None


def test_advice_saves_by_its_predicted_speed_up() -> None:
    """1.25 times as fast: a fifth of 3 is 0.60 an hour; 1.6 times: three eighths; not faster at all: nothing."""
    by = Advice("more_workers", "prep", {"workers": 8}, predicted_speedup=ratio(1.25, 1.0, 1.6))
    found = figures(prep(ratio(2.0, 1.5, 4.0), Advice("smaller_images", "prep", at_most=ratio(2.0)), by))
    (one,) = found.savings
    same(one.saves, (0.6, 0.0, 1.125), (0.06, 0.0, 1.125 * 0.125), (438.0, 0.0, 821.25))
    assert (one.number, one.measured, one.speedup.value) == (2, False, 1.25)


def test_what_was_measured_counts_and_may_be_a_loss() -> None:
    """Measured 0.8 times as fast: each hour's work takes a quarter of an hour more, 0.75."""
    by = Advice(
        "more_workers", "prep", predicted_speedup=ratio(1.5), measured_speedup=ratio(0.8, 0.75, 1.0), verified=True
    )
    (one,) = figures(prep(ratio(2.0, 1.5, 4.0), by)).savings
    same(one.saves, (-0.75, -1.0, 0.0), (-0.075, -0.125, 0.0), (-547.5, -730.0, 0.0))
    assert one.measured


def test_a_gain_that_is_not_bounded_may_be_all_of_the_time() -> None:
    found = figures(prep(ratio(2.0, 1.5, None)))
    same(found.waiting, (1.5, 1.0, 3.0), (0.15, 0.08, 3.0 * 0.125), (1095.0, 730.0, 2190.0))


def test_ends_that_are_not_known_stay_so() -> None:
    found = figures(prep(ratio(2.0)), rate=replace(RATE, low=None, high=None))
    same(found.waiting, (1.5, None, None), (0.15, None, None), (1095.0, None, None))
    same(found.running, (3.0, 3.0, 3.0), (0.3, None, None), (2190.0, 2190.0, 2190.0))


def test_no_run_waits_for_less_than_nothing() -> None:
    found = figures(prep(ratio(1.2, 0.9, 1.5)))
    same(found.waiting, (0.5, 0.0, 1.0), (0.05, 0.0, 0.125), (365.0, 0.0, 730.0))


def test_of_several_causes_the_joint_gain_counts() -> None:
    mixed = Verdict(
        "mixed", speedup_if_removed={"storage": ratio(1.2), "prep": ratio(1.1)}, joint=("storage", "prep"),
        joint_speedup=ratio(3.0, 2.0, 6.0),
    )  # fmt: skip
    same(figures(mixed).waiting, (2.0, 1.5, 2.5), (0.2, 0.12, 0.3125), (1460.0, 1095.0, 1825.0))


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (Verdict("compute", speedup_if_removed={"compute": ratio(1.05), "prep": ratio(1.02)}), "compute"),
        (Verdict("undetermined", speedup_if_removed={"prep": ratio(2.0)}, joint_speedup=ratio(3.0)), "undetermined"),
        (Verdict("mixed", speedup_if_removed={"prep": ratio(2.0)}), "gain_not_measured"),
        (prep(None), "gain_not_measured"),
        (None, "no_verdict"),
    ],
)
def test_where_waiting_is_not_known_a_reason_is(verdict: Verdict | None, why: str) -> None:
    found = figures(verdict)
    assert found.waiting is None and found.no_waiting == why
    same(found.running, (3.0, 3.0, 3.0), (0.3, 0.24, 0.375), (2190.0, 2190.0, 2190.0))


def test_an_undetermined_run_has_its_price_alone() -> None:
    by = Advice("more_workers", "prep", predicted_speedup=ratio(1.5))
    assert figures(Verdict("undetermined", advice=(by,))).savings == ()


# -- an epoch --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_images", "rate", "why"),
    [(None, RATE, "no_facts"), (0, RATE, "no_files"), (IMAGES, None, "rate_not_measured")],
)
def test_where_an_epoch_is_not_known_a_reason_is(num_images: int | None, rate: Estimate | None, why: str) -> None:
    found = figures(prep(ratio(2.0, 1.5, 4.0)), num_images, rate=rate)
    assert (found.epoch_s, found.no_epoch) == (None, why)
    assert found.running.epoch is None and found.waiting is not None and found.waiting.epoch is None
    assert found.waiting.hour == Range(1.5, 1.0, 2.25)


def of_script(*num_batches: int, num_samples: int | None = 800) -> WatchedFacts:
    """Its loader's batches have 8 samples."""
    plain = watched_facts()
    epochs: tuple[WatchedEpoch, ...] = tuple(epoch(0.0, 0.0, 1.0, 1.0, num) for num in num_batches)
    return replace(plain, loaders=(replace(plain.loaders[0], num_samples=num_samples),), epochs=epochs)


@pytest.mark.parametrize(
    ("seen", "samples"),
    [
        (of_script(50, 50, 7), 400),  # a subset of the data set; the last one may have been cut short
        (of_script(10, 50, 50, 50), 400),  # one was left early
        (of_script(100, 100, num_samples=797), 797),  # its last batch is smaller
        (of_script(30), 800),  # one epoch, of which nobody knows whether it ended
        (of_script(), 800),
        (of_script(20, 3, num_samples=None), 160),
    ],
)
def test_an_epoch_of_a_script_is_as_long_as_those_that_ended(seen: WatchedFacts, samples: int) -> None:
    assert figures(prep(ratio(2.0)), None, watched=seen).epoch_samples == samples


def test_a_script_whose_loader_has_no_length_has_no_epoch() -> None:
    found = figures(prep(ratio(2.0)), None, watched=of_script(30, num_samples=None))
    assert (found.epoch_samples, found.epoch_s, found.no_epoch) == (None, None, "no_length")
