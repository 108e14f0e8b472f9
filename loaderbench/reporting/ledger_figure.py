"""The figure of the ledger: measured ÷ predicted of each entry, with the prediction's interval, a panel a kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from loaderbench.recording.ledger import LEDGER_KINDS, Entry
from loaderbench.reporting.figures import Figure, colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

PANEL_IN, AROUND_IN = 1.75, 0.45
"""Height of a row of panels, and of the legend above."""
LEAST_REACH = 0.02
"""By how much the axis goes beyond 1 at least: errors of 0.01 % shall look small."""
WIDE = 4.0
"""From which ratio of the largest to the smallest value on the axis has doublings."""
MANY = 40
"""Entries from which on their dots are small."""


class _Point(NamedTuple):
    """One entry."""

    kind: str
    begun_at: str
    what: str
    unit: str
    predicted: float
    low: float | None
    high: float | None
    measured: float
    measured_over_predicted: float
    held: str


def ledger_figure(entries: Sequence[Entry]) -> Figure:
    """`entries`: one at least, oldest first."""
    points = [
        _Point(
            one.kind, one.at, one.what, one.unit, one.predicted, one.low, one.high, one.measured,
            one.measured / one.predicted, "no interval" if one.held is None else "yes" if one.held else "no",
        )
        for one in entries
    ]  # fmt: skip
    kinds = [kind for kind in LEDGER_KINDS if any(point.kind == kind for point in points)]
    rows = -(-len(kinds) // 2)
    return Figure(
        "ledger-predictions",
        "Measured ÷ predicted",
        "A mark an entry, oldest first. The line at 1 is a prediction that came true; the bar is the prediction's own "
        "interval, in which the mark should lie.",
        _Point._fields,
        points,
        AROUND_IN + PANEL_IN * rows,
        partial(_draw, panels={kind: [point for point in points if point.kind == kind] for kind in kinds}),
    )


def _draw(drawing: Drawing, panels: dict[str, list[_Point]]) -> None:
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    grid = drawing.subplots(rows, columns, squeeze=False).ravel()
    for number, (axes, (kind, points)) in enumerate(zip(grid, panels.items(), strict=False)):
        _panel(axes, points)
        axes.set_title(f"{kind}: {len(points):,} prediction{'s' * (len(points) != 1)}", loc="left")
        if number % columns == 0:
            axes.set_ylabel("measured ÷ predicted")
        if number + columns >= len(panels):
            axes.set_xlabel("entry, oldest first")
    for axes in grid[len(panels) :]:
        axes.remove()
    _legend(drawing, [point for points in panels.values() for point in points])


STYLES: dict[str, dict[str, Any]] = {
    "yes": {"marker": "o", "color": colour("line0"), "label": "within its interval"},
    "no": {"marker": "X", "color": colour("line1"), "label": "outside it"},
    "no interval": {"marker": "D", "color": colour("line4"), "label": "predicted without an interval"},
}
BAR: dict[str, Any] = {"color": colour("rest"), "label": "predicted interval"}


def _panel(axes: Axes, points: Sequence[_Point]) -> None:
    from matplotlib.ticker import MaxNLocator

    small = len(points) > MANY
    places = range(1, len(points) + 1)
    bars = [(place, *ends) for place, point in zip(places, points, strict=True) if (ends := _interval(point))]
    width = min(4.0, 110 / len(points))  # half of the room that an entry has in a narrow panel, in points
    if bars:
        axes.vlines(*zip(*bars, strict=True), color=BAR["color"], linewidth=width, zorder=1.5)
    axes.axhline(1.0, color=colour("soft"), linewidth=1, linestyle="--", zorder=1.6)
    for held, style in STYLES.items():
        mine = [(place, point) for place, point in zip(places, points, strict=True) if point.held == held]
        values = [point.measured_over_predicted for _, point in mine]
        axes.plot([place for place, _ in mine], values, linestyle="", markersize=3.0 if small else 4.5, **style)
    axes.set_xlim(0.4, len(points) + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axes.grid(axis="y")
    _ratios(axes, [*(point.measured_over_predicted for point in points), *(end for bar in bars for end in bar[1:])])


def _interval(point: _Point) -> tuple[float, float] | None:
    """The prediction's interval ÷ the prediction."""
    if point.low is None or point.high is None:
        return None
    return point.low / point.predicted, point.high / point.predicted


def _ratios(axes: Axes, values: Sequence[float]) -> None:
    """The axis of ratios: even steps about 1, or doublings where values are far from it."""
    from matplotlib.ticker import FixedLocator, NullLocator

    known = [value for value in values if value > 0]
    low, high = min(1 - LEAST_REACH, *known), max(1 + LEAST_REACH, *known)
    if high / low < WIDE:
        room = 0.06 * (high - low)
        axes.set_ylim(low - room, high + room)
        return
    axes.set_yscale("log", base=2)
    axes.set_ylim(low / 1.2, high * 1.2)
    first, last = (round(math.log2(end)) for end in (low, high))
    every = max(1, -(-(last - first) // 5))
    ticks = [exponent for exponent in range(first, last + 1) if exponent % every == 0]
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(FixedLocator([2.0**exponent for exponent in ticks]))
    axes.set_yticklabels([f"{2.0**exponent:.4g}" for exponent in ticks])


def _legend(drawing: Drawing, points: Sequence[_Point]) -> None:
    """The marks that occur."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linestyle="", markersize=4.5, **style)
        for held, style in STYLES.items()
        if any(point.held == held for point in points)
    ]
    if any(point.held != "no interval" for point in points):
        handles.append(Line2D([], [], linewidth=4, **BAR))
    drawing.legend(handles=handles, loc="outside upper left", ncols=2 if len(handles) > 3 else len(handles))
