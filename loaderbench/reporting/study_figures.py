"""A study's figures: the time of an image, times over serial, workers, bandwidth, gaps, short runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from loaderbench.recording.record import SHARES, Estimate, KernelGap, RunRecord, ShortRun
from loaderbench.recording.studies import Knee, Row, Sweep
from loaderbench.reporting import format as fmt
from loaderbench.reporting.figures import (
    HATCHES,
    MARKERS,
    UNATTRIBUTED,
    Figure,
    Name,
    colour,
    dots,
    errors,
    height_in,
    is_narrow,
    legend,
    name_rows,
    narrow_height_in,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

MOST_BARS = 48
"""More runs in one figure cannot be told apart: only the fastest setting of each loader and resolution is drawn."""
MOST_PANELS = 6
LABEL_FROM = 0.09
"""Parts of at least this fraction of the longest bar get their time written into them."""
BANDS_S = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Where bands of gaps by their length begin."""
FAR = 10
"""An interval's end beyond this many times the value says nothing."""
LEAST_COUNT = 0.1
"""Gaps a step; fewer are not counted out."""
CLASS_COLOURS = {"data_stall": "prep", "launch": "launch", "transfer_sync": "transfer"}
"""Class of gap → the cause whose colour it gets."""


@dataclass(frozen=True)
class _Drawn:
    """A row of the study, with what the figures need."""

    row: Row
    record: RunRecord
    """The record of its last repeat."""
    resolution: str
    setting: str

    @property
    def name(self) -> Name:
        return self.resolution, self.setting


def study_figures(records: Sequence[RunRecord], study: Sweep) -> list[Figure]:
    """All figures that these runs have data for. `study` is `analysis.study.summarize(records)`."""
    by_id = {record.run_id: record for record in records}
    labels = fmt.RowLabels(study.rows)

    def with_names(rows: Sequence[Row]) -> list[_Drawn]:
        return [
            _Drawn(row, by_id[row.run_ids[-1]], resolution, labels.of(row.case))
            for resolution, group in fmt.by_resolution(rows)
            for row in sorted(group, key=lambda row: -row.rate.value)
        ]

    every = with_names(study.rows)
    shown = with_names(_fastest_of_each(study.rows)) if len(study.rows) > MOST_BARS else every
    figures = [
        _by_cause(shown, cut=len(shown) < len(every)),
        _over_serial(shown, study.num_steps),
        _against_workers(every, labels, study.knees),
        _bandwidth(shown),
        _gaps(shown),
        _buffers(every),
    ]
    return [figure for figure in figures if figure is not None]


def _fastest_of_each(rows: Sequence[Row]) -> list[Row]:
    best: dict[tuple[int | None, str], Row] = {}
    for row in rows:
        key = (row.case.subject.resolution, row.case.feed.loader)
        if key not in best or row.rate.value > best[key].rate.value:
            best[key] = row
    return list(best.values())[:MOST_BARS]


# -- time by cause ---------------------------------------------------------------------------------------


def seconds_by_cause(record: RunRecord) -> dict[str, float] | None:
    """The mean step time split by the shares; the rest is `not attributed`. None: no step time.

    A share below zero (noise around zero) takes no room.
    """
    if record.step_time_s is None:
        return None
    mean_s = record.step_time_s.mean
    fractions = {cause: max(0.0, record.share(cause) or 0.0) for cause in SHARES}
    known = sum(fractions.values())
    stretch = 1 / known if known > 1 else 1.0
    seconds: dict[str, float] = {cause: fraction * stretch * mean_s for cause, fraction in fractions.items()}
    return {**seconds, UNATTRIBUTED: max(0.0, 1 - known) * mean_s}


def _by_cause(shown: Sequence[_Drawn], *, cut: bool) -> Figure | None:
    bars: list[tuple[Name, dict[str, float], Estimate]] = []
    for drawn in shown:
        seconds = seconds_by_cause(drawn.record)
        if seconds is not None:
            # Per sample, so that settings with different batch sizes can be compared.
            batch_size = drawn.row.case.step.batch_size
            bars.append((drawn.name, {cause: value / batch_size for cause, value in seconds.items()}, drawn.row.rate))
    if not bars:
        return None
    names, parts = [of for of, _, _ in bars], [seconds for _, seconds, _ in bars]
    rates = [rate for _, _, rate in bars]
    causes = [cause for cause in (*SHARES, UNATTRIBUTED) if any(seconds[cause] for seconds in parts)]
    return Figure(
        "causes",
        "Time of an image, by cause",
        "The fastest first: a shorter bar is faster. Its parts are what an image's time goes to; what is hidden under "
        "device work takes no time and is in no part. At its end: the rate, with its 95 % interval as a line."
        + (f" Of {MOST_BARS} and more settings the fastest of each loader and resolution." if cut else ""),
        (
            "resolution", "setting", *(f"{cause.replace(' ', '_')}_s" for cause in causes), "images_per_s", "low",
            "high",
        ),
        [(*of, *(seconds[cause] for cause in causes), rate.value, rate.low, rate.high) for of, seconds, rate in bars],
        height_in(names, 1.15, 0.3),
        partial(_draw_by_cause, names=names, parts=parts, causes=causes, rates=rates),
        narrow_height_in(names, 1.5),
    )  # fmt: skip


def _draw_by_cause(
    drawing: Drawing,
    names: Sequence[Name],
    parts: Sequence[Mapping[str, float]],
    causes: Sequence[str],
    rates: Sequence[Estimate],
) -> None:
    axes = drawing.subplots()
    narrow, longest = is_narrow(drawing), max(sum(seconds.values()) for seconds in parts)
    scale, unit = (1e3, "ms") if longest >= 1e-3 else (1e6, "µs")
    room, height = longest * (1.45 if narrow else 1.28), 0.56 if narrow else 0.72
    for seconds, rate, place in zip(parts, rates, name_rows(axes, names), strict=True):
        left = 0.0
        for cause in causes:
            width = seconds[cause]
            axes.barh(
                place, width * scale, left=left * scale, height=height, color=colour(cause), edgecolor=colour("page"),
                hatch=HATCHES[cause], linewidth=0.6,
            )  # fmt: skip
            if width >= (2 if narrow else 1) * LABEL_FROM * longest:
                axes.text(
                    (left + width / 2) * scale, place, fmt.number(width * scale, 2), ha="center", va="center",
                    fontsize=7.5, bbox={"facecolor": colour("page"), "edgecolor": "none", "pad": 1.2},
                )  # fmt: skip
            left += width
        end = _whisker(axes, left, rate, place, scale, room)
        axes.annotate(
            _rate_text(rate, narrow=narrow), (end * scale, place), (5, 0), textcoords="offset points", fontsize=7.5,
            va="center", annotation_clip=False,
        )  # fmt: skip
    axes.set_xlim(0, room * scale)
    axes.set_xlabel(f"{unit} per image")
    legend(drawing, causes)


def _whisker(axes: Axes, total_s: float, rate: Estimate, place: float, scale: float, room_s: float) -> float:
    """The rate's interval as a line about the end of its bar, cut where the drawing ends. Returns where it ends."""
    if rate.low is None or not rate.value:
        return total_s
    longest = room_s if rate.low <= 0 else total_s * rate.value / rate.low
    begin, end = total_s * rate.value / rate.high if rate.high else total_s, min(longest, 0.78 * room_s)
    if end <= begin:
        return total_s
    style: dict[str, Any] = {"color": colour("ink"), "linewidth": 1.2, "solid_capstyle": "butt"}
    axes.plot([begin * scale, end * scale], [place, place], **style)
    for at in (begin, end) if end == longest else (begin,):
        axes.plot([at * scale] * 2, [place - 0.14, place + 0.14], **style)
    return max(end, total_s)


def _rate_text(rate: Estimate, *, narrow: bool) -> str:
    """`856 images/s (802 to 921)`"""
    text = f"{fmt.number(rate.value)}{'/s' if narrow else ' images/s'}"
    if narrow or rate.low is None:
        return text
    if rate.high is None or rate.high > FAR * rate.value:
        return f"{text} ({fmt.number(rate.low)} or more)"
    return f"{text} ({fmt.number(rate.low)} to {fmt.number(rate.high)})"


# -- over serial -----------------------------------------------------------------------------------------


def _over_serial(shown: Sequence[_Drawn], num_steps: int) -> Figure | None:
    points = [(drawn, ratio) for drawn in shown if (ratio := drawn.row.faster_than_serial) is not None]
    if not points:
        return None
    names = [drawn.name for drawn, _ in points]
    ratios = [ratio for _, ratio in points]
    return Figure(
        "over-serial",
        "Times faster than serial",
        "Images/s relative to the serial loader at the same resolution; the dashed line is serial itself.",
        ("resolution", "setting", "ratio", "low", "high", f"total_of_{num_steps}_steps_s"),
        [(*drawn.name, ratio.value, ratio.low, ratio.high, drawn.row.total_s) for drawn, ratio in points],
        height_in(names, 0.75, 0.26),
        partial(_draw_ratios, names=names, ratios=ratios, label="× the serial loader's images/s, with 95 % interval"),
        narrow_height_in(names, 0.9),
    )


def _draw_ratios(drawing: Drawing, names: Sequence[Name], ratios: Sequence[Estimate], label: str) -> None:
    dots(drawing, names, ratios).set_xlabel(label)


# -- against workers -------------------------------------------------------------------------------------


class _Point(NamedTuple):
    """A rate with a number of workers."""

    resolution: str
    setting: str
    workers: int
    images_per_s: float
    low: float | None
    high: float | None
    device_takes_images_per_s: float | None
    knee: str


def _against_workers(every: Sequence[_Drawn], labels: fmt.RowLabels, knees: Sequence[Knee]) -> Figure | None:
    """A panel for each resolution: rates over workers, their knees, and what the device could take."""
    lines: dict[Name, list[_Drawn]] = {}
    for drawn in every:
        setting = labels.without_workers(drawn.row.case)
        lines.setdefault((drawn.resolution, setting), []).append(drawn)
    points = [
        _Point(
            resolution, setting, drawn.row.case.feed.workers, drawn.row.rate.value, drawn.row.rate.low,
            drawn.row.rate.high, fmt.value_of(drawn.record.ingestion_rate),
            "yes" if any(knee.case == drawn.row.case for knee in knees) else "no",
        )
        for (resolution, setting), group in lines.items()
        if len({drawn.row.case.feed.workers for drawn in group}) > 1
        for drawn in sorted(group, key=lambda drawn: drawn.row.case.feed.workers)
    ]  # fmt: skip
    panels = list(dict.fromkeys(point.resolution for point in points))[:MOST_PANELS]
    if not panels:
        return None
    return Figure(
        "workers",
        "Images/s by number of workers",
        "The ring marks the knee, the least workers within 3 % of the best; the dashed line is the device's rate when "
        "data are always ready.",
        _Point._fields,
        points,
        0.6 + 2.4 * -(-len(panels) // 3),
        partial(_draw_against_workers, points=points, panels=panels),
        0.9 + 2.2 * len(panels),
    )


def _draw_against_workers(drawing: Drawing, points: Sequence[_Point], panels: Sequence[str]) -> None:
    settings = list(dict.fromkeys(point.setting for point in points))
    num_columns = 1 if is_narrow(drawing) else min(3, len(panels))
    grid = drawing.subplots(-(-len(panels) // num_columns), num_columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, resolution in zip(grid.flat, panels, strict=False):
        _draw_panel(axes, [point for point in points if point.resolution == resolution], settings)
        axes.set_title(resolution)
    grid.flat[0].set_ylabel("images/s")
    drawn = [axes.get_legend_handles_labels() for axes in grid.flat]
    by_name = {text: handle for handles, texts in drawn for handle, text in zip(handles, texts, strict=True)}
    ncols = 1 if is_narrow(drawing) else 4
    drawing.legend(by_name.values(), by_name.keys(), loc="outside upper left", ncols=ncols)


def _draw_panel(axes: Axes, points: Sequence[_Point], settings: Sequence[str]) -> None:
    """Draw one resolution's lines; a setting has the same style in every panel."""
    for number, setting in enumerate(settings):
        line = [point for point in points if point.setting == setting]
        if not line:
            continue
        rates = [point.images_per_s for point in line]
        style: dict[str, Any] = {
            "color": colour(f"line{number % 6}"), "marker": MARKERS[number % len(MARKERS)], "markersize": 4,
        }  # fmt: skip
        reach = errors(rates, [point.low for point in line], [point.high for point in line])
        axes.errorbar([point.workers for point in line], rates, yerr=reach, label=setting, linewidth=1.3, **style)
        for point in line:
            if point.knee == "yes":
                axes.plot(point.workers, point.images_per_s, "o", markersize=11, fillstyle="none", color=colour("ink"))
    ceilings = [rate for point in points if (rate := point.device_takes_images_per_s) is not None]
    if ceilings:
        axes.axhline(float(np.mean(ceilings)), color=colour("ink"), linestyle="--", linewidth=1)
    tried = sorted({point.workers for point in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(tried, [str(number) for number in tried])
    axes.minorticks_off()
    most = max([*(point.images_per_s for point in points), *ceilings])
    axes.set_ylim(0, 1.25 * most)  # an extremely wide interval is cut
    axes.set_xlabel("workers")
    axes.grid()


# -- bandwidth -------------------------------------------------------------------------------------------


class _Read(NamedTuple):
    """What a run read from its storage."""

    resolution: str
    setting: str
    read_bytes_per_s: float
    ceiling_bytes_per_s: float | None


def _bandwidth(shown: Sequence[_Drawn]) -> Figure | None:
    reads = [
        _Read(*drawn.name, rate, drawn.row.ceiling_bytes_per_s)
        for drawn in shown
        if (rate := drawn.row.read_bytes_per_s) is not None
    ]
    if not reads:
        return None
    return Figure(
        "bandwidth",
        "What was read, and what the storage could give",
        "A bar is the growth of the storage's counter, which includes other users of a shared disk; the vertical line "
        "is the ceiling that the probe found.",
        _Read._fields,
        reads,
        height_in([read[:2] for read in reads], 0.75, 0.26),
        partial(_draw_bandwidth, reads=reads),
        narrow_height_in([read[:2] for read in reads], 0.9),
    )


def _draw_bandwidth(drawing: Drawing, reads: Sequence[_Read]) -> None:
    axes = drawing.subplots()
    for read, place in zip(reads, name_rows(axes, [read[:2] for read in reads]), strict=True):
        axes.barh(place, read.read_bytes_per_s / 1e6, height=0.6, color=colour("storage"), hatch=HATCHES["storage"])
        if read.ceiling_bytes_per_s is not None:
            ceiling = [read.ceiling_bytes_per_s / 1e6] * 2
            axes.plot(ceiling, [place - 0.42, place + 0.42], color=colour("ink"), linewidth=2)
    axes.set_xlabel("MB/s")
    axes.grid(axis="x")


# -- gaps ------------------------------------------------------------------------------------------------


def _gaps(shown: Sequence[_Drawn]) -> Figure | None:
    """Gaps between kernels: their share of the step by class, and their number by length."""
    traced: list[tuple[Name, KernelGap]] = []
    for drawn in shown:
        gap = None if drawn.record.device is None else drawn.record.device.kernel_gap
        # Another version may have used other classes and bins.
        if gap is not None and (not traced or _shape(gap) == _shape(traced[0][1])):
            traced.append((drawn.name, gap))
    if not traced:
        return None
    names = [of for of, _ in traced]
    classes, edges = _shape(traced[0][1])
    return Figure(
        "gaps",
        "Gaps between kernels",
        "Left: the share of a step without a kernel, by what the device waited for. Right: the number of gaps in "
        "a step, by length. From the traced steps alone.",
        (
            "resolution", "setting", *(f"{kind}_fraction" for kind in classes), "gaps_per_step", "p50_s", "p95_s",
            *(f"gaps_per_step_of_{band.replace(' ', '_')}" for band in _bands(edges)),
        ),
        [
            (
                *of, *(share.fraction for share in gap.by_class.values()), gap.count_per_step, gap.p50_s, gap.p95_s,
                *_by_band(gap).values(),
            )
            for of, gap in traced
        ],
        height_in(names, 1.3, 0.3),
        partial(_draw_gaps, names=names, gaps=[gap for _, gap in traced]),
        2 * narrow_height_in(names, 0.9),
    )  # fmt: skip


def _shape(gap: KernelGap) -> tuple[list[str], tuple[float, ...]]:
    return list(gap.by_class), gap.histogram.edges_s


def _bands(edges: Sequence[float]) -> dict[str, float]:
    """Bands of a decade or more that a reader can name → where they begin, s: the histogram's own are finer."""
    begins = [0.0, *(edge for edge in edges if any(np.isclose(edge, one, rtol=1e-6) for one in BANDS_S))]
    ends = [*begins[1:], None]
    named = {}
    for begin, end in zip(begins, ends, strict=True):
        if end is None:
            named[f"over {_length(begin)}"] = begin
        else:
            named[f"{_length(begin)} to {_length(end)}" if begin else f"under {_length(end)}"] = begin
    return named


def _length(seconds: float) -> str:
    """`10 µs`, `0.1 ms`"""
    return f"{seconds * 1e6:g} µs" if seconds < 0.99e-4 else f"{seconds * 1e3:g} ms"


def _by_band(gap: KernelGap) -> dict[str, float]:
    """Gaps a step by their length."""
    bands = _bands(gap.histogram.edges_s)
    found = dict.fromkeys(bands, 0.0)
    for edge, count in zip((0.0, *gap.histogram.edges_s), gap.histogram.counts, strict=False):
        name = next(name for name, begin in reversed(bands.items()) if edge >= begin * (1 - 1e-6))
        found[name] += count / gap.num_steps
    return found


def _draw_gaps(drawing: Drawing, names: Sequence[Name], gaps: Sequence[KernelGap]) -> None:
    narrow = is_narrow(drawing)
    left, right = drawing.subplots(2, 1) if narrow else drawing.subplots(1, 2, sharey=True)
    if narrow:
        name_rows(right, names)
    for gap, place in zip(gaps, name_rows(left, names), strict=True):
        at = 0.0
        for kind, share in gap.by_class.items():
            cause = CLASS_COLOURS.get(kind, "unexplained")
            left.barh(
                place, share.fraction * 100, left=at, height=0.7, color=colour(cause), hatch=HATCHES[cause],
                edgecolor=colour("page"), linewidth=0.6,
            )  # fmt: skip
            at += share.fraction * 100
        for number, count in enumerate(_by_band(gap).values()):
            if count > 0:
                size = 8 + 26 * float(np.log10(1 + count))
                right.scatter(number, place, s=size, color=colour("line0"), linewidths=0)
                text = fmt.number(count, 2) if count >= LEAST_COUNT else f"< {LEAST_COUNT}"
                right.annotate(text, (number, place), (6, 0), textcoords="offset points", fontsize=7, va="center")
    classes, edges = _shape(gaps[0])
    bands = _bands(edges)
    left.set_xlabel("% of the step in gaps")
    right.set_xticks(range(len(bands)), [band.replace(" to ", "\nto ") for band in bands], fontsize=7)
    right.set_xlim(-0.5, len(bands) - 0.3)
    right.set_xlabel("number of gaps in a step, by their length")
    left.grid(axis="x")
    right.grid(axis="x")
    causes = [CLASS_COLOURS.get(kind, "unexplained") for kind in classes]
    legend(drawing, causes, [kind.replace("_", " ") for kind in classes])


# -- short runs ------------------------------------------------------------------------------------------


def _buffers(every: Sequence[_Drawn]) -> Figure | None:
    """How far a run as short as its buffer overstates a loader's rate."""
    points: list[tuple[Name, ShortRun, Estimate]] = []
    for drawn in every:
        short = drawn.row.short_run
        if short is not None and short.flatters is not None:
            points.append((drawn.name, short, short.flatters))
    if not points:
        return None
    names = [of for of, _, _ in points]
    return Figure(
        "buffers",
        "How a short run flatters a loader",
        "A run that begins with a full prefetch buffer consumes what was prepared before its clock started. At 1 (the "
        "dashed line) the short run shows the steady rate.",
        ("resolution", "setting", "iterations", "buffer_batches", "buffer_ratio", "flatters", "low", "high"),
        [
            (*of, short.num_steps, short.buffer_batches, short.buffer_ratio, ratio.value, ratio.low, ratio.high)
            for of, short, ratio in points
        ],
        height_in(names, 0.75, 0.26),
        partial(
            _draw_ratios, names=names, ratios=[ratio for _, _, ratio in points],
            label="rate of the short run ÷ rate of the steady run",
        ),
        narrow_height_in(names, 0.9),
    )  # fmt: skip
