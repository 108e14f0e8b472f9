"""Resampling and stopping rules against known truths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import isotonic_regression

from loaderbench.analysis.statistics import (
    blocks_of,
    draws_of_mean,
    interval,
    is_steady,
    pool_adjacent_violators,
    widths,
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=6))
def test_pava_is_the_isotonic_fit(values: list[float]) -> None:
    fitted = pool_adjacent_violators(np.array(values))
    np.testing.assert_allclose(fitted, isotonic_regression(values), rtol=1e-9)
    np.testing.assert_allclose(pool_adjacent_violators(fitted), fitted, rtol=1e-12)


def test_intervals_cover_the_true_mean() -> None:
    """iid and autocorrelated step times in 4 segments of 30: at least 90 % of the 95 % intervals hold the truth."""
    rng = np.random.default_rng(3)
    for correlation in (0.0, 0.5):
        hits = 0
        for trial in range(200):
            segments = []
            for _ in range(4):
                noise, value = rng.standard_normal(30), 0.0
                series = []
                for one in noise:
                    value = correlation * value + one
                    series.append(value)
                segments.append([np.maximum(0.03 + 0.003 * np.array(series), 1e-4)])
            blocks = blocks_of(segments)
            centre = float(blocks.means()[0])
            found = interval(centre, draws_of_mean(blocks, trial, 400)[:, 0], "s", len(blocks))
            hits += found.low <= 0.03 <= found.high
        assert hits >= 180, (correlation, hits)


@pytest.mark.parametrize(("memory", "least"), [(0.0, 0.98), (0.5, 0.92), (0.7, 0.84)])
def test_the_interval_of_the_next_run_holds_it_where_the_machine_changes_slowly(memory: float, least: float) -> None:
    """Runs of five rounds, the next one 40 rounds later, on a machine whose speed is `memory` of its last round's. By
    standard errors of the mean 0.84, 0.60 and 0.49 are held."""
    random, held, num_runs = np.random.default_rng(7), 0, 400
    for _ in range(num_runs):
        levels = [0.0]
        for rest in [1] * 5 + [40] + [1] * 4:
            for _ in range(rest):
                levels.append(memory * levels[-1] + random.normal() * 0.1 * (1 - memory**2) ** 0.5)
        spent = np.exp(levels)
        this, following = spent[1:6], spent[-5:]
        steps = [[level * np.exp(random.normal(0, 0.05, 8))] for level in this]
        low, high = blocks_of(steps).of_next_run()
        held += bool(low[0] <= following.mean() <= high[0])
    assert held / num_runs >= least


def test_the_interval_of_the_next_run_is_wider_than_that_of_the_mean_and_unknown_of_one_round() -> None:
    rounds = [[np.full(4, level)] for level in (1.0, 1.1, 0.9, 1.05, 0.95)]
    low, high = blocks_of(rounds).of_next_run()
    assert low[0] < 1 - blocks_of(rounds).half_widths()[0] and high[0] > 1 + blocks_of(rounds).half_widths()[0]
    assert np.isnan(blocks_of([[np.ones(1)]]).of_next_run()).all()
    assert [end[0] for end in blocks_of([[np.ones(4)], [np.ones(4)]]).of_next_run()] == [1, 1]
    below, above = blocks_of([[np.array([-1.0, -1.0])], [np.array([2.0, 2.0])]]).of_next_run()
    assert below[0] < 0.5 < above[0]  # values that are not all positive


def test_one_block_has_no_width_and_says_so_by_n() -> None:
    blocks = blocks_of([[np.array([0.5])]])
    assert len(blocks) == 1
    assert widths({0: blocks}, ())[0].whole == float("inf")
    assert interval(0.5, draws_of_mean(blocks, 0)[:, 0], "s", 1).high is None


def _queue(num: int, step: float, age: list[float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    called = (np.arange(num) * step * 1e9).astype(np.int64)
    returned = called + 1000
    return called, returned, returned - (np.array(age) * 1e9).astype(np.int64)


def test_steady_is_full_or_empty_and_not_draining() -> None:
    full = _queue(20, 0.03, [0.12] * 20)
    empty = _queue(20, 0.03, [0.001] * 20)
    draining = _queue(20, 0.03, [0.48 - 0.02 * number for number in range(20)])
    assert is_steady(*full, 4)
    assert is_steady(*empty, 4)
    assert not is_steady(*draining, 4)
    assert not is_steady(*(part[:3] for part in full), 4), "too few steps to tell"


def test_bursts_of_the_workers_are_no_noise() -> None:
    # given four workers that hand over together: three batches at once, then a wait
    burst = np.array([0.1, 0.0, 0.0, 0.0])
    segments = [[np.tile(burst, 5)], [np.tile(burst, 3)]]
    # then blocks of whole rounds all have the same mean, and cuts within a round do not
    blocks = blocks_of(segments, 4)
    assert blocks.steps.tolist() == [8, 4, 4, 4, 4, 4, 4]
    assert blocks.means()[0] == pytest.approx(0.025)
    assert widths({0: blocks}, ())[0].whole == pytest.approx(0, abs=1e-12)
    assert widths({0: blocks_of(segments, 3)}, ())[0].whole > 0.1


def test_every_step_is_in_one_block() -> None:
    for num_steps in range(1, 40):
        for round_steps in (1, 2, 3, 8):
            blocks = blocks_of([[np.arange(num_steps, dtype=float)]], round_steps)
            assert blocks.steps.sum() == num_steps
            assert blocks.sums.sum() == sum(range(num_steps))
