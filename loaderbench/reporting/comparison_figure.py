"""The figure of a comparison: both sides' rates, a group for each cache state and number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from loaderbench.recording.studies import SIDE_NAMES, Comparison, Labels
from loaderbench.reporting.figures import Figure, colour, errors, name_bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


class _Rate(NamedTuple):
    """One side's rate in one configuration."""

    cache: str
    workers: int
    side: str
    images_per_s: float
    low: float | None
    high: float | None
    verdict: str | None


def comparison_figures(comparison: Comparison, labels: Labels) -> list[Figure]:
    """The rates, where any was measured."""
    rates = [
        _Rate(
            pair.cache, pair.workers, labels[side], rate.value, rate.low, rate.high, pair.side(side).bottleneck
        )
        for pair in comparison.pairs
        for side in SIDE_NAMES
        if (rate := pair.side(side).throughput) is not None
    ]  # fmt: skip
    if not rates:
        return []
    groups = list(dict.fromkeys((rate.cache, rate.workers) for rate in rates))
    sides = [labels[side] for side in SIDE_NAMES]
    figure = Figure(
        "rates",
        f"{sides[0]} and {sides[1]}: images/s",
        "Both sides measured in turns, for each state of the page cache and number of workers.",
        _Rate._fields,
        rates,
        1.0 + 0.5 * len(groups),
        partial(_draw, rates=rates, groups=groups, sides=sides),
        1.2 + 0.9 * len(groups),
    )
    return [figure]


def _draw(drawing: Drawing, rates: Sequence[_Rate], groups: Sequence[tuple[str, int]], sides: Sequence[str]) -> None:
    axes = drawing.subplots()
    for number, side in enumerate(sides):
        mine = [rate for rate in rates if rate.side == side]
        places = [groups.index((rate.cache, rate.workers)) + (number - 0.5) * 0.38 for rate in mine]
        values = [rate.images_per_s for rate in mine]
        axes.barh(
            places, values, height=0.34, xerr=errors(values, [rate.low for rate in mine], [rate.high for rate in mine]),
            label=side, color=colour(f"line{number}"), ecolor=colour("ink"), hatch=("", "////")[number],
            edgecolor=colour("page"), linewidth=0.6,
        )  # fmt: skip
        for rate, place in zip(mine, places, strict=True):
            axes.annotate(
                f" {rate.verdict or ''}", (0, place), (4, 0), textcoords="offset points", va="center", fontsize=7,
                bbox={"facecolor": colour("page"), "edgecolor": "none", "pad": 0.8},
            )  # fmt: skip
    words = [f"{cache}, {workers} worker{'s' * (workers != 1)}" for cache, workers in groups]
    name_bars(axes, words, [float(number) for number in range(len(groups))])
    axes.set_xlabel("images/s, with 95 % interval; on each bar its verdict")
    axes.grid(axis="x")
    drawing.legend(loc="outside upper left", ncols=2)
