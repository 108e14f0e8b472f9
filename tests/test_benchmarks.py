"""What the benchmarks' figures are judged by, against tables of the sign test."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def turns() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "turns.py"
    spec = importlib.util.spec_from_file_location("turns", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("rounds", "ranks"),
    # Ranks of the 95 % interval of a median: Conover, Practical Nonparametric Statistics, from the binomial of 1/2.
    [(6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (10, (2, 9)), (12, (3, 10)), (15, (4, 12)), (20, (6, 15)), (25, (8, 18))],
)
def test_the_interval_of_a_median_is_a_pair_of_order_statistics(
    turns: ModuleType, rounds: int, ranks: tuple[int, int]
) -> None:
    values = [float(2**number) for number in range(1, rounds + 1)]
    _, low, high = turns.median_interval(values[::-1])
    assert (low, high) == (2.0 ** ranks[0], 2.0 ** ranks[1])


def test_few_rounds_give_no_interval_and_no_judgement(turns: ModuleType) -> None:
    few = turns.median_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert few == (3.0, None, None)
    assert turns.spread(few) == "3.000"
    assert turns.judged(few, 1.0) == "not decided in fewer than 6 rounds"


@pytest.mark.parametrize(("goal", "judgement"), [(0.9, "reached"), (1.0, "not decided"), (1.2, "missed")])
def test_a_goal_is_judged_by_the_interval(turns: ModuleType, goal: float, judgement: str) -> None:
    assert turns.judged((1.0, 0.95, 1.1), goal) == judgement
    assert turns.spread((1.0, 0.95, 1.1), 2) == "1.00 [0.95, 1.10]"
