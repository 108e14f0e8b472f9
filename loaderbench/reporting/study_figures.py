"""A study's figures: the time of an image, times over serial, workers, bandwidth, gaps, short runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from loaderbench.cases.case import Case
from loaderbench.recording.record import SHARES, Estimate, KernelGap, RunRecord
from loaderbench.recording.studies import Knee, Sweep
from loaderbench.recording.studies import Row as StudyRow
from loaderbench.reporting import format as fmt
from loaderbench.reporting.drawing import Axes, Drawing
from loaderbench.reporting.figures import (
    MARKERS,
    UNATTRIBUTED,
    Figure,
    Name,
    Row,
    cells,
    dots,
    doublings,
    height_in,
    legend,
    line,
    line_legend,
    name_axes,
    name_rows,
    narrow_height_in,
    stack,
)

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


@dataclass(frozen=True)
class _Drawn:
    """A row of the study, with what the figures need."""

    row: StudyRow
    record: RunRecord
    """The record of its last repeat."""
    resolution: str
    setting: str

    @property
    def named(self) -> Row:
        """The begin of its row in a figure's data."""
        return {"resolution": self.resolution, "setting": self.setting}


def _names(drawn: Sequence[tuple[_Drawn, object]]) -> list[Name]:
    """The names of rows, each with what is drawn of it."""
    return [(one.resolution, one.setting) for one, _ in drawn]


def study_figures(records: Sequence[RunRecord], study: Sweep) -> list[Figure]:
    """All figures that these runs have data for. `study` is `analysis.study.summarize(records)`."""
    by_id = {record.run_id: record for record in records}
    labels = fmt.RowLabels(study.rows)

    def with_names(rows: Sequence[StudyRow]) -> list[_Drawn]:
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


def _fastest_of_each(rows: Sequence[StudyRow]) -> list[StudyRow]:
    best: dict[tuple[int | None, str], StudyRow] = {}
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
    bars: list[tuple[_Drawn, dict[str, float]]] = []
    for drawn in shown:
        seconds = seconds_by_cause(drawn.record)
        if seconds is not None:
            # Per sample, so that settings with different batch sizes can be compared.
            batch_size = drawn.row.case.step.batch_size
            bars.append((drawn, {cause: value / batch_size for cause, value in seconds.items()}))
    if not bars:
        return None
    causes = [cause for cause in (*SHARES, UNATTRIBUTED) if any(seconds[cause] for _, seconds in bars)]
    return Figure(
        "causes",
        "Time of an image, by cause",
        "The fastest first: a shorter bar is faster. Its parts are what an image's time goes to; what is hidden under "
        "device work takes no time and is in no part. At its end: the rate, with its 95 % interval as a line."
        + (f" Of {MOST_BARS} and more settings the fastest of each loader and resolution." if cut else ""),
        [
            {
                **drawn.named,
                **{f"{cause.replace(' ', '_')}_s": seconds[cause] for cause in causes},
                **cells(drawn.row.rate, "images_per_s", "low", "high"),
            }
            for drawn, seconds in bars
        ],
        height_in(_names(bars), 1.15, 0.3),
        partial(_draw_by_cause, bars=bars, causes=causes),
        narrow_height_in(_names(bars), 1.5),
    )


def _draw_by_cause(drawing: Drawing, bars: Sequence[tuple[_Drawn, Mapping[str, float]]], causes: Sequence[str]) -> None:
    (axes,) = drawing.axes()
    narrow, longest = drawing.is_narrow, max(sum(seconds.values()) for _, seconds in bars)
    scale, unit = (1e3, "ms") if longest >= 1e-3 else (1e6, "µs")
    room, least = longest * scale * (1.45 if narrow else 1.28), longest * scale * LABEL_FROM * (2 if narrow else 1)
    for (drawn, seconds), place in zip(bars, name_rows(axes, _names(bars)), strict=True):
        left, rate = 0.0, drawn.row.rate
        for cause in causes:
            end = stack(axes, place, [(cause, seconds[cause] * scale)], left=left, height=0.56 if narrow else 0.72)
            if end - left >= least:
                text = fmt.number(end - left, 2)
                axes.note(text, ((left + end) / 2, place), (0, 0), size=7.5, anchor="middle", has_halo=True)
            left = end
        end = _whisker(axes, left, rate, place, room)
        axes.note(_rate_text(rate, narrow=narrow), (end, place), (5, 0), size=7.5)
    axes.x.low, axes.x.high, axes.x.label = 0, room, f"{unit} per image"
    legend(drawing, causes)


def _whisker(axes: Axes, total: float, rate: Estimate, place: float, room: float) -> float:
    """The rate's interval as a line about the end of its bar, cut where the drawing ends. Returns where it ends."""
    if rate.low is None or not rate.value:
        return total
    longest = room if rate.low <= 0 else total * rate.value / rate.low
    begin, end = total * rate.value / rate.high if rate.high else total, min(longest, 0.78 * room)
    if end <= begin:
        return total
    caps = (begin, end) if end == longest else (begin,)
    for ends in ([(begin, place), (end, place)], *([(at, place - 0.14), (at, place + 0.14)] for at in caps)):
        axes.line(ends, "ink", 1.2)
    return max(end, total)


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
    return _ratios(
        "over-serial",
        "Times faster than serial",
        "Images/s relative to the serial loader at the same resolution; the dashed line is serial itself.",
        [
            {**drawn.named, **cells(ratio, "ratio", "low", "high"), f"total_of_{num_steps}_steps_s": drawn.row.total_s}
            for drawn, ratio in points
        ],
        points,
        "× the serial loader's images/s, with 95 % interval",
    )


def _ratios(
    name: str, title: str, caption: str, data: Sequence[Row], points: Sequence[tuple[_Drawn, Estimate]], label: str
) -> Figure | None:
    """A ratio for each of these rows; None where there are none."""
    if not points:
        return None
    names = _names(points)
    draw = partial(dots, names=names, estimates=[ratio for _, ratio in points], label=label)
    return Figure(name, title, caption, data, height_in(names, 0.75, 0.26), draw, narrow_height_in(names, 0.9))


# -- against workers -------------------------------------------------------------------------------------


def _against_workers(every: Sequence[_Drawn], labels: fmt.RowLabels, knees: Sequence[Knee]) -> Figure | None:
    """A panel for each resolution: rates over workers, their knees, and what the device could take."""
    lines: dict[Name, list[_Drawn]] = {}
    for drawn in every:
        lines.setdefault((drawn.resolution, labels.without_workers(drawn.row.case)), []).append(drawn)
    lines = {
        name: sorted(group, key=lambda one: one.row.case.feed.workers)
        for name, group in lines.items()
        if len({one.row.case.feed.workers for one in group}) > 1
    }
    panes = list(dict.fromkeys(resolution for resolution, _ in lines))[:MOST_PANELS]
    if not panes:
        return None
    at_knees = [knee.case for knee in knees]
    return Figure(
        "workers",
        "Images/s by number of workers",
        "The ring marks the knee, the least workers within 3 % of the best; the dashed line is the device's rate when "
        "data are always ready.",
        [
            {
                "resolution": resolution,
                "setting": setting,
                "workers": drawn.row.case.feed.workers,
                **cells(drawn.row.rate, "images_per_s", "low", "high"),
                "device_takes_images_per_s": fmt.value_of(drawn.record.ingestion_rate),
                "knee": "yes" if drawn.row.case in at_knees else "no",
            }
            for (resolution, setting), group in lines.items()
            for drawn in group
        ],
        0.6 + 2.4 * -(-len(panes) // 3),
        partial(_draw_against_workers, lines=lines, panes=panes, knees=at_knees),
        0.9 + 2.2 * len(panes),
    )


def _draw_against_workers(
    drawing: Drawing, lines: Mapping[Name, Sequence[_Drawn]], panes: Sequence[str], knees: Sequence[Case]
) -> None:
    settings = list(dict.fromkeys(setting for _, setting in lines))
    grid = drawing.axes(len(panes), 1 if drawing.is_narrow else min(3, len(panes)))
    for axes, resolution in zip(grid, panes, strict=True):
        mine = {setting: group for (of, setting), group in lines.items() if of == resolution}
        for number, setting in enumerate(settings):
            if setting in mine:
                _draw_line(axes, mine[setting], number, setting, knees)
        _frame(axes, [drawn for group in mine.values() for drawn in group])
        axes.title = resolution
    grid[0].y.label = "images/s"
    line_legend(drawing, *grid)


def _draw_line(axes: Axes, group: Sequence[_Drawn], number: int, setting: str, knees: Sequence[Case]) -> None:
    """One setting's rates; `number`: its own, so that it looks the same in every panel."""
    workers, rates = [one.row.case.feed.workers for one in group], [one.row.rate for one in group]
    line(axes, workers, rates, f"line{number % 6}", MARKERS[number % len(MARKERS)], label=setting)
    for one in group:
        if one.row.case in knees:
            axes.mark((one.row.case.feed.workers, one.row.rate.value), "o", "ink", 5.5, hollow=True)


def _frame(axes: Axes, drawn: Sequence[_Drawn]) -> None:
    """The axes of one resolution, and the device's own rate."""
    ceilings = [rate.value for one in drawn if (rate := one.record.ingestion_rate) is not None]
    if ceilings:
        axes.level(y=float(np.mean(ceilings)), colour="ink")
    doublings(axes, (one.row.case.feed.workers for one in drawn))
    axes.y.low = 0
    axes.y.high = 1.25 * max([*(one.row.rate.value for one in drawn), *ceilings])  # a very wide interval is cut
    axes.x.label = "workers"
    axes.x.has_grid = axes.y.has_grid = True


# -- bandwidth -------------------------------------------------------------------------------------------


def _bandwidth(shown: Sequence[_Drawn]) -> Figure | None:
    reads = [(drawn, rate) for drawn in shown if (rate := drawn.row.read_bytes_per_s) is not None]
    if not reads:
        return None
    return Figure(
        "bandwidth",
        "What was read, and what the storage could give",
        "A bar is the growth of the storage's counter, which includes other users of a shared disk; the vertical line "
        "is the ceiling that the probe found.",
        [
            {**drawn.named, "read_bytes_per_s": rate, "ceiling_bytes_per_s": drawn.row.ceiling_bytes_per_s}
            for drawn, rate in reads
        ],
        height_in(_names(reads), 0.75, 0.26),
        partial(_draw_bandwidth, reads=reads),
        narrow_height_in(_names(reads), 0.9),
    )


def _draw_bandwidth(drawing: Drawing, reads: Sequence[tuple[_Drawn, float]]) -> None:
    (axes,) = drawing.axes()
    for (drawn, rate), place in zip(reads, name_rows(axes, _names(reads)), strict=True):
        stack(axes, place, [("storage", rate / 1e6)], height=0.6)
        ceiling = drawn.row.ceiling_bytes_per_s
        if ceiling is not None:
            axes.line([(ceiling / 1e6, place - 0.42), (ceiling / 1e6, place + 0.42)], "ink", 2)
    name_axes(axes, "MB/s")


# -- gaps ------------------------------------------------------------------------------------------------


def _gaps(shown: Sequence[_Drawn]) -> Figure | None:
    """Gaps between kernels: their share of the step by class, and their number by length."""
    traced: list[tuple[_Drawn, KernelGap]] = []
    for drawn in shown:
        gap = None if drawn.record.device is None else drawn.record.device.kernel_gap
        # Another version may have used other classes and bins.
        if gap is not None and (not traced or _shape(gap) == _shape(traced[0][1])):
            traced.append((drawn, gap))
    if not traced:
        return None
    return Figure(
        "gaps",
        "Gaps between kernels",
        "Left: the share of a step without a kernel, by what the device waited for. Right: the number of gaps in "
        "a step, by length. From the traced steps alone.",
        [
            {
                **drawn.named,
                **{f"{kind}_fraction": share.fraction for kind, share in gap.by_class.items()},
                "gaps_per_step": gap.count_per_step,
                "p50_s": gap.p50_s,
                "p95_s": gap.p95_s,
                **{f"gaps_per_step_of_{band.replace(' ', '_')}": count for band, count in _by_band(gap).items()},
            }
            for drawn, gap in traced
        ],
        height_in(_names(traced), 1.3, 0.3),
        partial(_draw_gaps, traced=traced),
        2 * narrow_height_in(_names(traced), 0.9),
    )


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


def _draw_gaps(drawing: Drawing, traced: Sequence[tuple[_Drawn, KernelGap]]) -> None:
    names = _names(traced)
    left, right = drawing.axes(2, 1 if drawing.is_narrow else 2)
    name_rows(right, names)
    right.y.is_named = drawing.is_narrow
    for (_, gap), place in zip(traced, name_rows(left, names), strict=True):
        stack(left, place, [(_cause(kind), share.fraction * 100) for kind, share in gap.by_class.items()])
        for number, count in enumerate(_by_band(gap).values()):
            if count > 0:
                area = 8 + 26 * float(np.log10(1 + count))
                right.mark((number, place), "o", "line0", float(np.sqrt(area / np.pi)))
                text = fmt.number(count, 2) if count >= LEAST_COUNT else f"< {LEAST_COUNT}"
                right.note(text, (number, place), (6, 0))
    classes, edges = _shape(traced[0][1])
    bands = _bands(edges)
    right.x.ticks = [(number, band.replace(" to ", "\nto ")) for number, band in enumerate(bands)]
    right.x.low, right.x.high, right.x.tick_size = -0.5, len(bands) - 0.3, 7
    name_axes(left, "% of the step in gaps")
    name_axes(right, "number of gaps in a step, by their length")
    legend(drawing, list(map(_cause, classes)), [kind.replace("_", " ") for kind in classes])


def _cause(kind: str) -> str:
    """The cause whose colour a class of gaps gets."""
    return {"data_stall": "prep", "launch": "launch", "transfer_sync": "transfer"}.get(kind, "unexplained")


# -- short runs ------------------------------------------------------------------------------------------


def _buffers(every: Sequence[_Drawn]) -> Figure | None:
    """How far a run as short as its buffer overstates a loader's rate."""
    points = [
        (drawn, short, short.flatters)
        for drawn in every
        if (short := drawn.row.short_run) is not None and short.flatters is not None
    ]
    return _ratios(
        "buffers",
        "How a short run flatters a loader",
        "A run that begins with a full prefetch buffer consumes what was prepared before its clock started. At 1 (the "
        "dashed line) the short run shows the steady rate.",
        [
            {
                **drawn.named,
                "iterations": short.num_steps,
                "buffer_batches": short.buffer_batches,
                "buffer_ratio": short.buffer_ratio,
                **cells(ratio, "flatters", "low", "high"),
            }
            for drawn, short, ratio in points
        ],
        [(drawn, ratio) for drawn, _, ratio in points],
        "rate of the short run ÷ rate of the steady run",
    )
