"""Coverage of the 95 % intervals, and what holds of the findings on any timeline whatsoever."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.stats import t as student
from sklearn.isotonic import isotonic_regression

from loaderbench.analysis.model import arm_times
from loaderbench.analysis.statistics import (
    Width,
    blocks_of,
    draws_of_mean,
    interval,
    pool_adjacent_violators,
    t_quantile,
    widths,
)
from loaderbench.cases.arms import FED_ALIKE, Arm
from loaderbench.plain import to_json
from loaderbench.recording.facts import STEP, STEP_FIELDS, Segment
from tests.analysis.judging import assert_sound, estimates, join, judge_arms
from tests.analysis.machine import MACHINES, Windows, held, rounds, windows
from tests.analysis.simulate import ON_DEVICE
from tests.made import make_segment

NUM_TRIALS = 300


@pytest.mark.parametrize("degrees", [1, 2, 5, 15, 16, 30, 200])
def test_t_quantiles(degrees: int) -> None:
    assert t_quantile(degrees) == pytest.approx(student.ppf(0.975, degrees), rel=0.0005)


def _steps(random: np.random.Generator, num_steps: int, correlation: float, drift: float) -> NDArray[np.float64]:
    """Step times of mean 30 ms: AR(1) with a spread of 10 %, times the machine's speed in this round."""
    noise = random.standard_normal(num_steps) * np.sqrt(1 - correlation**2)
    noise[0] = random.standard_normal()
    for number in range(1, num_steps):
        noise[number] += correlation * noise[number - 1]
    return np.asarray(0.030 * (1 + 0.1 * noise) * (1 + drift * random.standard_normal()))


@pytest.mark.parametrize(
    ("correlation", "drift", "least"),
    [(0.0, 0.0, 0.93), (0.5, 0.0, 0.92), (0.8, 0.0, 0.90), (0.9, 0.0, 0.88), (0.0, 0.02, 0.90), (0.5, 0.05, 0.90)],
)
@pytest.mark.parametrize(("num_segments", "num_steps"), [(3, 30), (4, 40), (6, 40)])
def test_intervals_cover_the_mean(
    num_segments: int, num_steps: int, correlation: float, drift: float, least: float
) -> None:
    """`least` leaves room for 300 trials' own spread of 1.3 points; docs/validation.md has the figures of 2,000."""
    random = np.random.default_rng([num_segments, num_steps, int(10 * correlation), int(100 * drift)])
    hits = 0
    for trial in range(NUM_TRIALS):
        blocks = blocks_of([[_steps(random, num_steps, correlation, drift)] for _ in range(num_segments)])
        found = interval(float(blocks.means()[0]), draws_of_mean(blocks, trial, 300)[:, 0], "s", len(blocks))
        hits += found.low <= 0.030 <= found.high
    assert hits >= least * NUM_TRIALS, hits / NUM_TRIALS


def test_the_bootstrap_has_the_width_that_the_stopping_rule_uses() -> None:
    random = np.random.default_rng(5)
    durations = [_steps(random, 40, 0.5, 0.02) for _ in range(4)]
    blocks = blocks_of([[one] for one in durations])
    found = interval(float(blocks.means()[0]), draws_of_mean(blocks, 0)[:, 0], "s", len(blocks))
    half_width = (found.high - found.low) / 2 / found.value
    assert half_width == pytest.approx(widths({0: blocks}, ())[0].whole, rel=0.1)


def test_the_same_facts_give_the_same_draws_and_arms_are_drawn_apart() -> None:
    blocks = blocks_of([[_steps(np.random.default_rng(1), 40, 0, 0)]])
    assert np.array_equal(draws_of_mean(blocks, 3), draws_of_mean(blocks, 3))
    assert abs(np.corrcoef(draws_of_mean(blocks, 3)[:, 0], draws_of_mean(blocks, 4)[:, 0])[0, 1]) < 0.1


def test_unequal_segments_weigh_by_their_steps() -> None:
    blocks = blocks_of([[np.full(90, 0.010)], [np.full(10, 0.020)]])
    assert blocks.means()[0] == pytest.approx(0.011)


# A machine that is disturbed: its long-run means are known in closed form.


@pytest.mark.parametrize(
    ("name", "num_rounds", "window_s", "mean", "ratio"),
    [
        ("independent steps", 3, 0.6, 0.93, 0.93),
        ("each window ± 5 %", 4, 1.0, 0.91, 0.90),
        ("each round ± 5 %", 4, 1.0, 0.91, 0.94),
        ("lognormal steps, sigma 1", 4, 1.0, 0.92, 0.92),
        ("5 % of steps 30 times longer", 4, 1.0, 0.90, 0.91),
        ("two states", 4, 2.1, 0.87, 0.92),
        ("two states and 1 % tails", 4, 2.1, 0.90, 0.91),
    ],
)
def test_intervals_hold_on_a_disturbed_machine(
    name: str, num_rounds: int, window_s: float, mean: float, ratio: float
) -> None:
    """The bounds leave room for 200 trials' own spread of 1.5 points, twice; docs/validation.md has the figures."""
    found = held(MACHINES[name], num_rounds, window_s, 200, num_draws=300)
    assert found.mean >= mean and found.ratio >= ratio, found


def _widths(table: dict[Arm, list[float]]) -> dict[Arm, Width]:
    """Of arms whose windows have these step times, and little spread within."""
    within = np.tile([0.999, 1.001], 10)
    return widths({arm: blocks_of([[one * within] for one in of_arm]) for arm, of_arm in table.items()}, FED_ALIKE)


def test_what_moved_all_arms_of_a_round_does_not_blur_their_ratio() -> None:
    speeds = np.array([1.0, 1.3, 0.9, 1.1])
    found = _widths({arm: list(length * speeds) for arm, length in zip(FED_ALIKE, (0.01, 0.02, 0.03), strict=False)})
    assert all(one.whole > 0.2 and one.own < 0.01 and one.shared > 0.99 for one in found.values())
    # an arm of another kind that moved with them shares it too, one that did not shares nothing
    found = _widths({Arm.REAL: list(speeds), Arm.RAM: list(speeds), Arm.HOST: list(speeds), Arm.DEVICE: [1.0] * 4})
    assert found[Arm.HOST].shared > 0.99 and found[Arm.DEVICE].shared == 0
    assert found[Arm.DEVICE].whole < 0.01


def test_arms_lend_each_other_their_spread_only_where_it_agrees() -> None:
    lucky = {Arm.REAL: [1.00, 1.01, 1.00], Arm.RAM: [1.0, 1.04, 0.97], Arm.FREE: [0.96, 1.0, 1.03]}
    alone = {arm: widths({arm: blocks_of([[one * np.tile([0.999, 1.001], 10)] for one in of_arm])}, ())[arm].whole
             for arm, of_arm in lucky.items()}  # fmt: skip
    found = _widths(lucky)
    assert found[Arm.REAL].whole > 3 * alone[Arm.REAL]
    assert found[Arm.RAM].whole < alone[Arm.RAM] and found[Arm.FREE].whole < alone[Arm.FREE]
    steady = _widths(lucky | {Arm.REAL: [1.0, 1.0, 1.0]} | {Arm.FREE: [0.7, 1.0, 1.3], Arm.RAM: [0.75, 1.3, 1.0]})
    assert steady[Arm.REAL].whole < 0.01
    # an arm of another loader, or of none, neither takes nor gives
    other = _widths({Arm.FETCH: [1.0, 1.0, 1.0], **lucky})
    assert other[Arm.FETCH].whole < 0.01 and other[Arm.REAL] == found[Arm.REAL]


def test_a_device_that_never_waits_keeps_its_own_spread() -> None:
    """By a device that takes 20 ms exactly, beside a loader alone whose windows differ by a third."""
    exact, random = np.full(40, 0.020), np.random.default_rng(3)
    free = [0.010 * (1 + 0.02 * random.standard_normal(40)) * speed for speed in (1.09, 0.86, 1.05)]
    measured = {Arm.DEVICE: [exact] * 3, Arm.HOST: [exact] * 3, Arm.REAL: [exact] * 3, Arm.FREE: free}
    found = join(_segments(measured))
    assert found[Arm.REAL].width.whole < 1e-6 and found[Arm.FREE].width.whole > 0.2
    waiting = _segments(measured)
    for one in waiting:  # the batch comes when the device has long been done
        if one.arm is Arm.REAL:
            one.steps[1:, STEP["called_ns"]] = one.steps[:-1, STEP["done_ns"]]
    assert join(waiting)[Arm.REAL].width.whole > 0.1


def test_parts_of_a_step_that_hardly_varies_do_not_explode() -> None:
    """Where the time of a step is widened by other arms, its parts move by no more than the step."""
    random = np.random.default_rng(4)
    blocks = blocks_of([[0.040 + 1e-9 * random.standard_normal(20), 0.004 * (1 + 0.05 * random.standard_normal(20))]])
    drawn = draws_of_mean(blocks, 0, width=Width(0.14, 0.14))
    assert np.percentile(drawn[:, 1], 99) < 0.004 + 2 * 0.14 * 0.040


def _segments(measured: Windows) -> list[Segment]:
    found = []
    for arm, of_arm in measured.items():
        for number, steps in enumerate(of_arm):
            table = np.full((len(steps) + 1, len(STEP_FIELDS)), -1, dtype=np.int64)
            ends = np.rint(np.cumsum([1.0, *steps]) * 1e9).astype(np.int64)
            table[:, :8] = ends[:, None] if arm in ON_DEVICE else -1
            table[:, :4], table[:, 7:] = ends[:, None], -1
            found.append(make_segment(arm, table, num_warmup=1, round=number))
    return found


@pytest.mark.parametrize("name", ["each window ± 5 %", "two states"])
def test_arms_that_are_alike_are_not_out_of_order_by_chance(name: str) -> None:
    random, contradicted = np.random.default_rng(11), 0
    for _ in range(100):
        arms = join(_segments(windows(rounds(MACHINES[name], random, 0.6), 3)))
        contradicted += arm_times(arms, has_storage=True).violation is not None
    assert contradicted <= 1


def test_an_arm_that_is_surely_faster_than_one_that_does_less_is_found() -> None:
    measured = dict(windows(rounds(MACHINES["each round ± 5 %"], np.random.default_rng(2), 0.6), 4))
    measured[Arm.RAM] = [1.3 * steps for steps in measured[Arm.RAM]]
    found = arm_times(join(_segments(measured)), has_storage=True).violation
    assert found is not None and (found.faster, found.slower) == (Arm.REAL, Arm.RAM)


def test_draws_of_a_time_stay_above_zero_and_its_parts_within_it() -> None:
    # given a wait that is most of the step, and windows that differ by a factor of 10
    waits = [np.full(12, one) for one in (0.001, 0.010, 0.002)]
    blocks = blocks_of([[0.001 + wait, wait] for wait in waits])
    draws = draws_of_mean(blocks, 0)
    assert (draws > 0).all() and (draws[:, 1] < draws[:, 0]).all()
    found = interval(1 / blocks.means()[0], 1 / draws[:, 0], "samples/s", len(blocks))
    assert found.low is not None and found.high is not None and found.high < 10 * found.value


def test_an_upper_end_of_ten_times_the_value_is_none() -> None:
    draws = np.array([0.5, 1.0, 11.0] * 100)
    assert interval(1.0, draws, "samples/s", 3).high is None and interval(1.0, draws, "samples/s", 3).low == 0.5
    assert interval(1.0, draws, "fraction", 3).high == 11.0  # a share may be anything
    assert interval(1.0, draws, "s", 1).low is None  # one block has no width


@settings(max_examples=200, deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=st.floats(1e-3, 10.0)))
def test_pava(values: NDArray[np.float64]) -> None:
    fitted = pool_adjacent_violators(values)
    assert (np.diff(fitted, axis=-1) >= -1e-12).all()
    np.testing.assert_allclose(fitted.mean(axis=-1), values.mean(axis=-1), rtol=1e-9)
    np.testing.assert_allclose(pool_adjacent_violators(fitted), fitted, rtol=1e-9)
    for row, expected in zip(fitted, values, strict=True):
        np.testing.assert_allclose(row, isotonic_regression(expected), rtol=1e-9)


# Any timeline: stamps that only have to be in order within a step.

gaps = arrays(np.int64, st.tuples(st.integers(3, 12), st.just(6)), elements=st.integers(0, 50_000_000))


def _timeline(arm: Arm, number: int, pauses: NDArray[np.int64], busy_part: float | None) -> Segment:
    with_device = arm in ON_DEVICE
    table = np.full((len(pauses), len(STEP_FIELDS)), -1, dtype=np.int64)
    now = free = 10**12
    for row, (wait, issue, pause, copy, compute, rest) in enumerate(pauses.tolist()):
        called, returned = now, now + wait
        issued = returned + issue * with_device
        waited = now = issued + pause * with_device + 1
        table[row, :4] = called, returned, issued, waited
        if with_device:
            begin = max(returned, free)
            free = max(begin + copy + compute + rest, issued) + 1
            table[row, 4:8] = begin, begin + copy, free, -1 if busy_part is None else int(compute * busy_part)
    table[:, 8:10] = 64, 64 * 100_000
    return make_segment(arm, table, round=number)


@st.composite
def timelines(draw: st.DrawFn) -> tuple[list[Segment], bool, bool]:
    """Segments of arms that need not fit together; whether the loader reads files; whether busy time is told."""
    reads_files, tells_busy = draw(st.booleans()), draw(st.booleans())
    optional = (Arm.RAM, Arm.FETCH) if reads_files else ()
    segments = [
        _timeline(arm, number, draw(gaps), 0.7 if tells_busy else None)
        for number in range(draw(st.integers(1, 3)))
        for arm in (Arm.DEVICE, Arm.HOST, Arm.REAL, Arm.FREE, *optional)
    ]
    return segments, reads_files, tells_busy


@settings(max_examples=75, deadline=None)
@given(timelines(), st.booleans(), st.none() | st.floats(0, 1))
def test_shares_sum_to_one_on_any_timeline(
    given_: tuple[list[Segment], bool, bool], synchronous: bool, starved: float | None
) -> None:
    segments, reads_files, tells_busy = given_
    found = judge_arms(join(segments), reads_files=reads_files, synchronous=synchronous, starved_fraction=starved)
    assert {name for name, one in found.shares.items() if one is None} == (set() if tells_busy else {"launch"})
    assert sum(one.value for one in found.shares.values() if one is not None) == pytest.approx(1.0, abs=1e-9)
    assert_sound(found)
    json.dumps(to_json(estimates(found)), allow_nan=False)


@settings(max_examples=80, deadline=None)
@given(timelines(), st.sets(st.sampled_from([Arm.DEVICE, Arm.HOST, Arm.RAM, Arm.FREE, Arm.FETCH]), min_size=1))
def test_any_arms_may_be_missing(given_: tuple[list[Segment], bool, bool], missing: set[Arm]) -> None:
    segments, reads_files, _ = given_
    arms = join([one for one in segments if one.arm not in missing])
    found = judge_arms(arms, reads_files=reads_files)
    assert_sound(found)
    if Arm.DEVICE in missing:
        assert found.utilization is None and found.shares["compute"] is None
        # then nothing is known of what the device itself takes, and only what feeds it can be named
        assert found.verdict.bottleneck in ("undetermined", "storage", "prep", "mixed")
        assert set(found.verdict.joint) <= {"storage", "prep"}
    if Arm.FETCH in missing and reads_files:
        assert found.verdict.speedup_if_removed["prep"] is None
