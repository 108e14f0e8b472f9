"""The search for the largest batch against limits whose truth is known: the trials' peaks are made by arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from loaderbench.analysis.batch_search import MOST_TRIALS, largest_by_peaks, next_batch
from loaderbench.analysis.memory import MOST_BATCH, MemoryLine
from loaderbench.analysis.model_memory import bounds_of
from loaderbench.recording.facts import Failure
from loaderbench.recording.model_memory import TrialFacts

MIB = 2**20
HUNG = Failure("CaseFailed", "no sign of life for 900 s: does the device cpu hang?")
TOO_LARGE = Failure("OutOfMemory", "does not fit: tensors need more than the cap")
LINE = MemoryLine(np.array([90.0, 40.0]) * MIB, np.array([1.0, 9.0]) * MIB)
"""An update of 90 MiB, and activations of 9 MiB an image, which pass it from batch 7 on."""


def trial(batch: int, failure: Failure | None = None, peak: int | None = None, how: str = "ledger") -> TrialFacts:
    live, data = (None, peak) if how == "rlimit" else (peak, None)
    return TrialFacts(batch, how, 3, failure, live, None, peak_data_bytes=data)


def searched(
    peak_of: Callable[[int], float], limit: int, line: MemoryLine | None, how: str = "ledger", *, beside: int = 0,
    tells: bool = True,
) -> list[int]:  # fmt: skip
    """The batches that are tried where the limit counts `peak_of`. `tells`: trials that fit tell their peak."""
    trials: list[TrialFacts] = []
    while (batch := next_batch(trials, line, limit, beside_bytes=beside)) is not None:
        peak = round(peak_of(batch))
        fits = peak <= limit
        trials.append(trial(batch, None if fits else TOO_LARGE, peak if fits and tells else None, how))
        assert len(trials) < 20
    fitted, failed = bounds_of(trials)
    assert failed == fitted + 1 and peak_of(failed) > limit and (not fitted or peak_of(fitted) <= limit)
    tried = [one.batch_size for one in trials]
    assert tried.count(failed) == 2 and tried.count(fitted) == (2 if fitted else 0)
    return tried


def num_searched(tried: list[int]) -> int:
    """Besides the largest batch, which is confirmed, and the next one."""
    twice = {size for size in tried if tried.count(size) == 2}
    return sum(size not in twice for size in tried)


@pytest.mark.parametrize("largest", [1, 2, 5, 9, 16, 100])
@pytest.mark.parametrize("times", [0.98, 1.0, 1.02])
def test_a_prediction_within_its_aim_needs_few_trials(largest: int, times: float) -> None:
    limit = round(times * (LINE.peak_bytes(largest) + LINE.peak_bytes(largest + 1)) / 2)
    tried = searched(lambda size: times * LINE.peak_bytes(size), limit, LINE)
    assert largest in tried and num_searched(tried) <= 3


@pytest.mark.parametrize("largest", [3, 7, 11, 16])
@pytest.mark.parametrize("beside", [0, 8, 20, 34])
@pytest.mark.parametrize("times", [0.95, 1.05])
def test_what_the_kernel_counts_beside_the_prediction_is_learned(largest: int, beside: int, times: float) -> None:
    """The process's data grow by more than the ledger says, by an amount that nobody knows before a trial."""

    def peak_of(batch: int) -> float:
        return times * LINE.peak_bytes(batch) + beside * MIB

    limit = round((peak_of(largest) + peak_of(largest + 1)) / 2)
    tried = searched(peak_of, limit, LINE, "rlimit", beside=20 * MIB)
    assert largest in tried and num_searched(tried) <= 3


@pytest.mark.parametrize("largest", [1, 2, 3, 4, 7, 16, 32])
def test_without_a_prediction_two_small_trials_make_the_line(largest: int) -> None:
    tried = searched(lambda size: (40 + 9 * size) * MIB, round((44.5 + 9 * largest) * MIB), None)
    assert largest in tried and num_searched(tried) <= 3


def test_without_a_prediction_a_flat_start_is_left_quickly() -> None:
    tried = searched(lambda size: max(500 + size, 40 + 9 * size) * MIB, 1000 * MIB, None)  # the peak moves at 58
    assert 106 in tried and num_searched(tried) <= 7


@pytest.mark.parametrize("largest", [1, 5, 16, 100])
@pytest.mark.parametrize("off", [-4, -2, -1, 0, 1, 2, 4])
def test_without_any_peak_the_search_ends_all_the_same(largest: int, off: int) -> None:
    limit = LINE.peak_bytes(max(largest + off, 0))
    trials: list[TrialFacts] = []
    while (batch := next_batch(trials, LINE, limit)) is not None:
        trials.append(trial(batch, None if batch <= largest else TOO_LARGE))
        assert len(trials) < 20
    assert bounds_of(trials) == (largest, largest + 1)


def test_the_peak_of_a_trial_that_failed_counts_too() -> None:
    limit = LINE.peak_bytes(20)
    assert next_batch([trial(20, TOO_LARGE, limit + 30 * MIB)], LINE, limit) == 16  # 30 MiB are four images less


def test_the_line_through_peaks_is_that_of_the_two_largest() -> None:
    assert largest_by_peaks({2: 500, 4: 500, 8: 600}, None, 1000, 0, MOST_BATCH) == 24
    assert largest_by_peaks({2: 500}, None, 1000, 0, MOST_BATCH) is None
    assert largest_by_peaks({2: 500, 4: 500}, None, 1000, 0, MOST_BATCH) is None
    assert largest_by_peaks({}, LINE, 85 * MIB, 20 * MIB, MOST_BATCH) == LINE.largest_batch(65 * MIB)


def test_batch_one_that_does_not_fit_is_tried_twice_and_no_more() -> None:
    assert searched(LINE.peak_bytes, 10 * MIB, LINE) == [1, 1]
    assert searched(lambda size: (40 + 9 * size) * MIB, 10 * MIB, None) == [2, 1, 1]


def test_what_is_unknown_is_tried_once_more_and_never_counts_as_no() -> None:
    limit = LINE.peak_bytes(8)
    assert next_batch([trial(8, HUNG)], LINE, limit) == 8
    assert next_batch([trial(8, HUNG), trial(8, HUNG)], LINE, limit) is None
    assert bounds_of([trial(8, HUNG)]) == (0, None)


def test_the_most_that_is_tried_ends_the_search() -> None:
    assert next_batch([trial(4)], None, 10**9, most=4) == 4
    assert next_batch([trial(4), trial(4)], None, 10**9, most=4) is None


@pytest.mark.parametrize("times", [0.2, 0.5, 2.0, 4.2, 10.0])
@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("how", ["ledger", "rlimit"])
def test_a_prediction_that_is_wrong_by_a_factor_is_left_quickly(times: float, tells: bool, how: str) -> None:
    """Batch 139 fits where 588 were predicted, for one."""
    limit = round(times * (LINE.peak_bytes(139) + LINE.peak_bytes(140)) / 2)
    tried = searched(lambda size: times * LINE.peak_bytes(size), limit, LINE, how, tells=tells)
    assert 139 in tried and len(tried) <= (11 if tells else 17)


@pytest.mark.parametrize("seed", range(20))
def test_where_trials_near_the_limit_contradict_each_other_most_of_three_decide(seed: int) -> None:
    """Heaps differ from run to run: each trial's peak strays by up to an image and a half."""
    random, trials, limit = np.random.default_rng(seed), list[TrialFacts](), LINE.peak_bytes(100)
    while (batch := next_batch(trials, LINE, limit)) is not None:
        peak = LINE.peak_bytes(batch) + round(random.uniform(-14, 14) * MIB)
        trials.append(trial(batch, None if peak <= limit else TOO_LARGE, peak if peak <= limit else None))
        assert len(trials) < MOST_TRIALS
    fitted, failed = bounds_of(trials)
    outcomes = [one.failure is None for one in trials if one.batch_size == fitted]
    assert failed == fitted + 1 and abs(fitted - 100) <= 2 and outcomes.count(True) == 2
