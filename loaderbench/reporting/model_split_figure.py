"""The figures of a split: its members' parts beside the fastest device alone, and the times of parts by their size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from loaderbench.recording.model_split import ModelSplit
from loaderbench.recording.record import Estimate
from loaderbench.reporting.figures import MARKERS, Figure, colour, errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing


class _Bar(NamedTuple):
    """One part, or the whole batch on one device."""

    what: str
    images: int
    predicted_ms: float | None
    measured_ms: float | None
    low_ms: float | None
    high_ms: float | None


class _Point(NamedTuple):
    """One time of the table."""

    device: str
    images: int
    ms: float


def split_figures(result: ModelSplit) -> list[Figure]:
    """Those that there is something to draw for."""
    return [figure for figure in (_parts(result), _times(result)) if figure is not None]


def _parts(result: ModelSplit) -> Figure | None:
    bars = [
        _bar(f"{one.device}: {one.batch_size}", one.batch_size, one.predicted_s, one.measured_s)
        for one in result.members
        if one.batch_size
    ]
    if not bars:
        return None
    alone = result.fastest_alone
    if alone is not None and result.outcome != "alone":
        label = f"{alone.device} alone: {result.batch_size}"
        bars.append(_bar(label, result.batch_size, alone.predicted_s, alone.s))
    return Figure(
        "parts",
        f"{result.model}, batch {result.batch_size}: each member's part, and the fastest device alone",
        "From the common start to the end: measured (wide, with its 95 % interval) and predicted by the table "
        "(narrow). The split ends with its last member, at the dashed line.",
        _Bar._fields,
        bars,
        0.9 + 0.42 * len(bars),
        partial(_draw_parts, bars=bars, result=result),
    )


def _bar(what: str, images: int, predicted_s: float | None, measured: Estimate | None) -> _Bar:
    value, low, high = (None, None, None) if measured is None else (measured.value, measured.low, measured.high)
    predicted, *ends = (None if one is None else one * 1e3 for one in (predicted_s, value, low, high))
    return _Bar(what, images, predicted, *ends)


def _draw_parts(drawing: Drawing, bars: Sequence[_Bar], result: ModelSplit) -> None:
    axes = drawing.subplots()
    for number, bar in enumerate(bars):
        if bar.measured_ms is not None:
            reach: Any = errors([bar.measured_ms], [bar.low_ms], [bar.high_ms])
            of_split = number < sum(bool(one.batch_size) for one in result.members)
            fill = colour("line0") if of_split else colour("rest")
            error = {"ecolor": colour("ink"), "capsize": 2}
            axes.barh(number, bar.measured_ms, height=0.62, color=fill, xerr=reach, error_kw=error)
        if bar.predicted_ms is not None:
            axes.barh(number, bar.predicted_ms, height=0.16, color=colour("line1"), alpha=0.9)
    if result.measured_s is not None:
        axes.axvline(result.measured_s.value * 1e3, color=colour("soft"), linewidth=1, linestyle="--")
    axes.set_yticks(range(len(bars)), [bar.what for bar in bars])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("ms")
    axes.grid(axis="x")


def _times(result: ModelSplit) -> Figure | None:
    points = [
        _Point(f"{one.device} with {', '.join(one.beside)}", one.batch_size, one.seconds * 1e3)
        for one in result.times
        if one.seconds is not None and one.beside
    ]
    if len(points) < 2:
        return None
    return Figure(
        "times",
        f"{result.model}: time of a part by its size",
        "The times that the search goes by, each the median of turns while the other devices worked; between them it "
        "takes the line.",
        _Point._fields,
        points,
        2.6,
        partial(_draw_times, points=points),
    )


def _draw_times(drawing: Drawing, points: Sequence[_Point]) -> None:
    axes: Axes = drawing.subplots()
    for number, device in enumerate(dict.fromkeys(point.device for point in points)):
        mine = [point for point in points if point.device == device]
        style: dict[str, Any] = {"color": colour(f"line{number % 6}"), "markersize": 3.5, "linewidth": 1.2}
        marker = MARKERS[number % len(MARKERS)]
        axes.plot([one.images for one in mine], [one.ms for one in mine], f"{marker}-", label=device, **style)
    axes.set_xlabel("images of the part")
    axes.set_ylabel("ms")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    axes.legend(fontsize=7)
