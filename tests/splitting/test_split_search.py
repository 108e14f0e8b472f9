"""The search for the split that ends first: against every split there is; the greedy one against hand-made tables."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from loaderbench.splitting.search import exact, fastest_alone, filled, greedy, sizes_to_measure

NUM_TABLES = 200


def brute_force(times: list[list[float]], batch: int) -> tuple[float, int, list[int]] | None:
    """(finish, number of members, sizes) of the best split by its own rules, out of all of them."""
    every = itertools.product(range(batch + 1), repeat=len(times))
    found = [
        (max(row[size] for row, size in zip(times, sizes, strict=True)), sum(map(bool, sizes)), [-one for one in sizes])
        for sizes in every
        if sum(sizes) == batch
    ]
    finish, num, less = min(found)
    return None if math.isinf(finish) else (finish, num, [-one for one in less])


def random_table(draw: random.Random, batch: int) -> list[list[float]]:
    """A row a member: fixed cost, steps, sizes that do not fit, times that fall as a part grows, ties."""
    table = []
    for _ in range(draw.randint(2, 4)):
        fixed, each, step = draw.choice([0, 0, 3, 10]), draw.randint(1, 9), draw.choice([1, 2, 4])
        row = [0.0] + [float(fixed + each * math.ceil(size / step) * step) for size in range(1, batch + 1)]
        if draw.random() < 0.3:
            row[1:] = [time - draw.choice([0, 0, 4]) if time > 4 else time for time in row[1:]]
        if draw.random() < 0.4:
            most = draw.randint(0, batch // 2)
            row[most + 1 :] = [math.inf] * (batch - most)
        if draw.random() < 0.1:
            row[draw.randint(1, batch)] = math.inf
        table.append(row)
    return table


def test_the_exact_search_finds_what_trying_every_split_finds() -> None:
    draw = random.Random(19)
    num_none = 0
    for _ in range(NUM_TABLES):
        batch = draw.randint(1, 12)
        table = random_table(draw, batch)
        best, found = brute_force(table, batch), exact(table, batch)
        num_none += best is None
        assert (found is None) == (best is None), table
        if found is not None and best is not None:
            assert (found.finish_s, list(found.sizes)) == (best[0], best[2]), table
    assert 0 < num_none < NUM_TABLES / 4  # both answers were seen


def test_no_search_beats_the_exact_one_and_each_tells_the_time_of_its_own_split() -> None:
    draw = random.Random(20)
    num_worse = 0
    for _ in range(NUM_TABLES):
        batch = draw.randint(1, 40)
        table = random_table(draw, batch)
        best = exact(table, batch)
        for other in (greedy(table, batch), fastest_alone(table, batch)):
            if other is None:
                continue
            assert best is not None and sum(other.sizes) == batch
            assert other.finish_s == max(row[size] for row, size in zip(table, other.sizes, strict=True))
            assert best.finish_s <= other.finish_s
        tried = greedy(table, batch)
        alone = fastest_alone(table, batch)
        if tried is not None and alone is not None and best is not None:
            assert tried.finish_s <= alone.finish_s  # it begins there
            num_worse += tried.finish_s > best.finish_s
    assert num_worse  # else the exact search would be for nothing


def straight(fixed: float, each: float, batch: int) -> list[float]:
    return [0.0] + [fixed + each * size for size in range(1, batch + 1)]


def test_a_member_gets_images_by_its_speed() -> None:
    table = [straight(0, 1, 90), straight(0, 2, 90)]
    for search in (exact, greedy):
        found = search(table, 90)
        assert found is not None and (found.sizes, found.finish_s) == ((60, 30), 60.0)


def test_a_member_whose_fixed_cost_is_more_than_it_brings_is_left_out() -> None:
    table = [straight(0, 1, 10), straight(20, 1, 10)]
    for search in (exact, greedy, fastest_alone):
        found = search(table, 10)
        assert found is not None and (found.sizes, found.finish_s) == ((10, 0), 10.0)


def test_the_greedy_search_stops_at_a_fixed_cost_that_16_images_do_not_bring_in() -> None:
    # given a second member that takes less time for 17 to 60 images than for fewer
    table = [straight(0, 1, 100), [0.0, *([95.0] * 16), *([60.0] * 44), *([200.0] * 40)]]
    best, tried = exact(table, 100), greedy(table, 100)
    assert best is not None and tried is not None
    assert (best.sizes, best.finish_s) == ((60, 40), 60.0)
    assert (tried.sizes, tried.finish_s) == ((94, 6), 95.0)


def test_equal_splits_go_to_fewer_members_then_to_the_earlier() -> None:
    flat = [0.0, *[5.0] * 8]
    found = exact([flat, flat, flat], 8)
    assert found is not None and found.sizes == (8, 0, 0)
    found = exact([straight(0, 1, 9), straight(0, 1, 9)], 9)  # 5 and 4, or 4 and 5
    assert found is not None and found.sizes == (5, 4)
    found = fastest_alone([flat, flat], 8)
    assert found is not None and found.sizes == (8, 0)


def test_a_batch_that_fits_on_no_member_alone_is_still_split() -> None:
    row = [0.0, 1.0, 2.0, math.inf, math.inf]
    assert fastest_alone([row, row], 4) is None
    assert greedy([row, row], 4) is None  # it would begin with the fastest alone
    found = exact([row, row], 4)
    assert found is not None and found.sizes == (2, 2)
    assert exact([row], 4) is None


def test_times_that_break_the_contract_are_refused() -> None:
    for table in ([[1.0, 2.0]], [[0.0]], [[0.0, -1.0]], [[0.0, math.nan]], []):
        with pytest.raises(ValueError):
            exact(table, 1)


# -- from few sizes ----------------------------------------------------------------------------------------


def test_sizes_are_those_around_the_powers_of_two_and_the_batch() -> None:
    assert sizes_to_measure(20) == (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 20)
    assert sizes_to_measure(1) == (1,)
    assert sizes_to_measure(64) == (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64)


def test_times_between_measured_sizes_are_on_their_line_and_beyond_them_unknown() -> None:
    found = filled({2: 4.0, 4: 8.0, 8: 10.0}, 10)
    assert found.seconds == (0, math.inf, 4, 6, 8, 8.5, 9, 9.5, 10, math.inf, math.inf)
    assert found.interpolated == {3, 5, 6, 7}


def test_nothing_is_known_beside_a_size_that_does_not_fit() -> None:
    found = filled({1: 1.0, 4: math.inf, 8: 8.0, 9: 9.0}, 9)
    assert found.seconds == (0, 1, *[math.inf] * 6, 8, 9)
    assert not found.interpolated
    assert filled({}, 2).seconds == (0, math.inf, math.inf)
