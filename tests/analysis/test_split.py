"""A split judged from made-up facts, whose answers follow by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from split_facts import SEARCH, split_facts, turns_of

from loaderbench.analysis.model_split import deviation_of, median_of, split_of, tolerance_of
from loaderbench.recording.model_split import OutputCheck, SplitSearch
from loaderbench.recording.split_times import Split, SplitTime


def test_a_turn_ends_with_its_last_member_and_ratios_are_of_neighbouring_turns() -> None:
    """The machine is three times slower in every second turn: the ratio knows nothing of it."""
    drift = np.array([1.0, 3.0] * 6)
    found = split_of(split_facts(turns=turns_of(0.04 * drift, 0.06 * drift, 0.10 * drift)))
    assert found.measured_s is not None and found.measured_s.value == pytest.approx(np.median(0.06 * drift))
    ratio = found.ratio_to_fastest_alone
    assert ratio is not None and ratio.value == pytest.approx(0.6)
    assert (ratio.low, ratio.high) == (pytest.approx(0.6), pytest.approx(0.6))
    assert found.outcome == "faster"
    parts = [one.measured_s.value for one in found.members if one.measured_s is not None]
    assert parts == [pytest.approx(0.08), pytest.approx(0.12)]


@pytest.mark.parametrize(
    ("alone", "outcome"), [(0.10, "faster"), (0.05, "slower"), (None, "indistinguishable")], ids=str
)
def test_what_the_interval_says(alone: float | None, outcome: str) -> None:
    split = np.full(12, 0.06)
    both = np.full(12, alone) if alone is not None else np.where(np.arange(12) % 2, 0.05, 0.07)
    assert split_of(split_facts(turns=turns_of(split / 2, split, both))).outcome == outcome


def test_few_turns_have_no_interval_and_no_verdict() -> None:
    split = np.full(3, 0.06)
    found = split_of(split_facts(turns=turns_of(split, split, 2 * split)))
    assert found.ratio_to_fastest_alone is not None and found.ratio_to_fastest_alone.low is None
    assert found.outcome is None and found.num_turns == 3
    assert "fewer than 6 turns have no interval" in found.missing["outcome"]
    assert "outcome" not in split_of(split_facts()).missing


def test_a_turn_that_was_interrupted_counts_for_the_split_alone() -> None:
    found = split_of(split_facts(turns=turns_of(np.full(5, 0.01), np.full(5, 0.06), np.full(4, 0.1)), interrupted=True))
    assert found.measured_s is not None and found.measured_s.n == 5
    assert found.ratio_to_fastest_alone is not None and found.ratio_to_fastest_alone.n == 4


def test_nothing_is_known_before_the_search() -> None:
    found = split_of(split_facts(turns=None, searches=(), chosen=None))
    unknown = (
        "exact_s",
        "greedy_s",
        "predicted_s",
        "measured_s",
        "measured_over_predicted",
        "fastest_alone",
        "outcome",
    )
    assert {name: getattr(found, name) for name in unknown} == dict.fromkeys(unknown)
    assert all(found.missing[name] for name in unknown)
    assert split_of(split_facts()).missing == {}
    assert [one.batch_size for one in found.members] == [0, 0]


def test_a_batch_that_fits_on_no_device_alone_has_no_ratio_but_a_reason() -> None:
    search = SplitSearch((0, 1), None, Split((10, 6), 0.06), None, (0.05, 0.06), (None, None))
    turns = replace(turns_of(np.full(8, 0.05), np.full(8, 0.06), np.empty(0)), alone=None)
    found = split_of(split_facts(searches=(search,), turns=turns))
    assert found.measured_s is not None and found.ratio_to_fastest_alone is None and found.fastest_alone is None
    assert (
        "the whole batch fits on no device alone" in found.missing["ratio_to_fastest_alone"]
        and "greedy_s" in found.missing
    )


def test_a_device_whose_time_alone_may_be_as_short_as_the_fastest_ones_is_named() -> None:
    first = SplitTime("cpu:1", 16, 0.10, 0.09, 0.11, 6)
    for low, names in ((0.105, ("cuda:0",)), (0.115, ())):
        second = SplitTime("cuda:0", 16, 0.16, low, 0.20, 6)
        assert split_of(split_facts(times=(first, second))).maybe_fastest == names
    missed = replace(second, seconds=None, low=None, high=None, outcome="out_of_memory")
    search = replace(SEARCH, alone_s=(0.10, None))
    assert split_of(split_facts(times=(first, missed), searches=(search,))).maybe_fastest == ()


def test_outputs_equal_within_the_tolerance_of_the_precision() -> None:
    check = OutputCheck(0, 16, 2e-4, tolerance_of("fp32"), 0.3)
    assert split_of(split_facts(check=check)).is_equal is False
    assert split_of(split_facts(check=replace(check, tolerance=tolerance_of("amp-bf16")))).is_equal is True
    assert split_of(split_facts(check=replace(check, deviation=float("nan")))).is_equal is False
    assert split_of(split_facts(check=None, no_check="nothing computes")).missing["check"] == "nothing computes"


def test_a_deviation_is_of_each_image_by_itself() -> None:
    reference = np.array([[3, 4], [300, 400]], np.float32)
    assert deviation_of(reference + np.array([[0.5, 0], [0, 0]], np.float32), reference) == pytest.approx([0.1, 0])


def test_the_median_lies_within_its_interval_in_95_of_100_samples() -> None:
    """The truth is the distribution's median: skewed, as times are."""
    rng = np.random.default_rng(0)
    for num in (6, 10, 25):
        held = 0
        for _ in range(2000):
            one = median_of(rng.exponential(1.0, num))
            assert one.low is not None and one.high is not None
            held += one.low <= np.log(2) <= one.high
        assert held / 2000 > 0.94
    assert median_of(np.array([3.0, 1.0, 2.0])).low is None
