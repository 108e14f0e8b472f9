"""The figure of an offload study: time per image, and device and host memory, against the threshold."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from loaderbench.recording.offload_study import ModelOffload, OffloadRow
from loaderbench.reporting import format as fmt
from loaderbench.reporting.figures import Figure, colour, errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

MIB = 2**20
FAR = 1.5
"""Times the axis's end."""


class _Point(NamedTuple):
    """One setting."""

    threshold: str
    above_bytes: int | None
    after_fraction: float
    ms_per_image: float | None
    low_ms_per_image: float | None
    high_ms_per_image: float | None
    device_mib: float | None
    host_mib: float | None
    chosen: str


def offload_figures(result: ModelOffload) -> list[Figure]:
    """The curve, where there is one."""
    points = [_point(row, result) for row in result.thresholds]
    if len(points) < 2:
        return []
    assumed = any(row.label == "assumed" for row in result.thresholds)
    whose = "Times are those of a replay over an emulated card, assumed." if assumed else "Bars: 95 % intervals."
    curve = Figure(
        "thresholds",
        f"{result.model}, {result.mode}, batch {result.batch_size}: time per image and memory, by threshold",
        f"{whose} A threshold is the size from which tensors go to the host, from all of them to none, where only what "
        "would not fit goes. Hollow: thresholds that apply once the percentage shown is in use. The vertical line is "
        "the best setting.",
        _Point._fields,
        points,
        2.9,
        partial(_draw, points=points, result=result),
    )
    return [curve]


def _point(row: OffloadRow, result: ModelOffload) -> _Point:
    time = row.s_per_image if row.outcome == "fits" else None
    low, high = (
        None if end is None else end * 1e3 for end in ((None, None) if time is None else (time.low, time.high))
    )
    peak = row.peak_bytes
    threshold = "none" if row.above_bytes is None else "all" if not row.above_bytes else threshold_text(row.above_bytes)
    return _Point(
        threshold,
        row.above_bytes,
        row.after_fraction or 0.0,
        None if time is None else time.value * 1e3,
        low,
        high,
        None if peak is None else peak / MIB,
        None if row.host_bytes is None else row.host_bytes / MIB,
        "yes" if row == result.best else "no",
    )


def threshold_text(num_bytes: int) -> str:
    """64 KiB, not 64.0 KiB"""
    return fmt.memory(num_bytes).replace(".0 ", " ")


def _draw(drawing: Drawing, points: Sequence[_Point], result: ModelOffload) -> None:
    left, right = drawing.subplots(1, 2)
    names = list(dict.fromkeys(point.threshold for point in points))
    curve = [point for point in points if not point.after_fraction]
    later = [point for point in points if point.after_fraction]
    _times(left, curve, later, names)
    one = result.batch_one_s_per_image
    if one is not None and result.batch_one is not None:
        _level(left, one * 1e3, f"batch {result.batch_one.batch_size}", "ms")
    _memories(right, curve, later, names)
    _level(right, result.memory_bytes / MIB, "the device's memory", "MiB")
    for axes in (left, right):
        axes.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=7)
        axes.set_xlabel("on the host: tensors from")
        axes.set_xlim(-0.4, len(names) - 0.6)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
        for point in points:
            if point.chosen == "yes":
                axes.axvline(names.index(point.threshold), color=colour("soft"), linewidth=1, linestyle="--")


def _times(axes: Axes, curve: Sequence[_Point], later: Sequence[_Point], names: Sequence[str]) -> None:
    style: dict[str, Any] = {"color": colour("line0"), "markersize": 4, "linewidth": 1.4}
    known = [(point, point.ms_per_image) for point in curve if point.ms_per_image is not None]
    values = [value for _, value in known]
    reach = errors(values, [one.low_ms_per_image for one, _ in known], [one.high_ms_per_image for one, _ in known])
    axes.errorbar([names.index(one.threshold) for one, _ in known], values, yerr=reach, fmt="o-", capsize=2, **style)
    _hollow(axes, [(one, one.ms_per_image) for one in later], names, "o", style["color"])
    axes.set_ylabel("ms per image")


def _memories(axes: Axes, curve: Sequence[_Point], later: Sequence[_Point], names: Sequence[str]) -> None:
    for number, (label, marker) in enumerate((("device", "o"), ("host", "s"))):
        values = [[(one, one.device_mib if label == "device" else one.host_mib) for one in of] for of in (curve, later)]
        known = [(names.index(point.threshold), size) for point, size in values[0] if size is not None]
        style: dict[str, Any] = {"color": colour(f"line{number}"), "markersize": 4, "linewidth": 1.4, "label": label}
        axes.plot([at for at, _ in known], [size for _, size in known], f"{marker}-", **style)
        _hollow(axes, values[1], names, marker, style["color"])
    axes.set_ylabel("MiB at the peak")
    axes.legend(fontsize=7)


def _hollow(
    axes: Axes, later: Sequence[tuple[_Point, float | None]], names: Sequence[str], marker: str, tint: Any
) -> None:
    """Settings that set in later, each with the part of the device's memory that is in use then."""
    shown = [(point, names.index(point.threshold), value) for point, value in later if value is not None]
    style: dict[str, Any] = {"color": tint, "markerfacecolor": "none", "linestyle": "none", "markersize": 3.5}
    axes.plot([at for _, at, _ in shown], [value for _, _, value in shown], marker, **style)
    for point, at, value in shown:
        text = fmt.percent(point.after_fraction)
        axes.annotate(text, (at, value), (3, 0), textcoords="offset points", fontsize=5, color=tint, va="center")


def _level(axes: Axes, value: float, name: str, unit: str) -> None:
    """A dotted level with its name; one that is far above all else is only told."""
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 6.5, "color": colour("soft")}
    if value > FAR * axes.get_ylim()[1]:
        axes.annotate(f"{name}: {fmt.number(value)} {unit}", (0.01, 1.0), (0, 3), xycoords="axes fraction", **style)
        return
    axes.axhline(value, color=colour("soft"), linewidth=1, linestyle=":")
    axes.annotate(name, (0.01, value), (0, 2), xycoords=("axes fraction", "data"), **style)
