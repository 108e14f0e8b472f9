"""The report's figures: the rows that each one shows, and how Matplotlib draws them. No browser is needed.

A figure is made of its rows alone, which are also its downloadable data. Colours are the light ones of `COLOURS`; in a
page they become CSS variables, so that one drawing serves light and dark.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loaderbench.errors import ConfigError
from loaderbench.recording.store import write_atomic
from loaderbench.recording.types import STEP_FIELDS, Recording, Segment, Series
from loaderbench.reporting import format as fmt
from loaderbench.reporting.format import CAUSES, Record, part

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

UNATTRIBUTED = "not attributed"
COLOURS = {
    "page": ("#ffffff", "#14171b"),
    "ink": ("#1b1f24", "#e6e9ed"),
    "soft": ("#5b6570", "#9aa5b1"),
    "line": ("#d9dee4", "#323a43"),
    "panel": ("#f5f7f9", "#1c2127"),
    "compute": ("#2f7d4f", "#37935d"),
    "launch": ("#b58a0a", "#c79a1c"),
    "transfer": ("#1f7a9c", "#2a8bb0"),
    "prep": ("#d5691e", "#dd742c"),
    "contention": ("#b3323c", "#cc4a54"),
    "storage": ("#7646b0", "#9366cf"),
    "unexplained": ("#68727d", "#76818d"),
    "rest": ("#c3cad2", "#3b444e"),
    "line0": ("#0b65a8", "#58aee8"),
    "line1": ("#c2570c", "#f0914a"),
    "line2": ("#12805c", "#3cc196"),
    "line3": ("#a63b82", "#e283c0"),
    "line4": ("#6b5b12", "#c5b04f"),
    "line5": ("#4b4fb5", "#9a9df0"),
}
"""Name → (on light, on dark). The categories differ in lightness too, and carry a hatch or a marker besides."""
HATCHES = {
    "compute": "",
    "launch": "////",
    "transfer": "....",
    "prep": "\\\\\\\\",
    "contention": "xxxx",
    "storage": "++++",
    "unexplained": "----",
    UNATTRIBUTED: "",
}
MARKERS = "os^Dv*P"
"""One more than colours, so that the seventh line looks unlike the first."""
MOST_BARS = 48
"""More runs in one figure cannot be told apart: of each loader and resolution the fastest setting is then drawn."""
MOST_PANELS = 6
WIDTH_IN = 7.4
LABEL_FROM = 0.09
"""Narrowest part of the longest bar that gets its time written into it."""
STRIP_S = 1.5
"""Most seconds of a run that its timeline strip shows; further steps could not be told apart."""
STRIP_STEPS = 24
COPY_LANE, LOOP_LANE, DEVICE_LANE = "copy", "main loop", "device"

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Figure:
    """One figure. `rows` hold a value for each of `columns`, whose names end in their units."""

    name: str
    """Unique in a report; names its file."""
    title: str
    caption: str
    """What it shows and how to read it."""
    columns: tuple[str, ...]
    rows: list[Row]
    height_in: float
    draw: Callable[[Drawing], None]

    @property
    def description(self) -> str:
        """For those who do not see it."""
        return f"{self.title}. {self.caption} The same figures are in the table below it."


def colour(name: str) -> str:
    """The light colour of a name, `rest` for none."""
    return COLOURS.get(name, COLOURS["rest"])[0]


# -- drawing -------------------------------------------------------------------------------------------


def _drawn(figure: Figure) -> Drawing:
    """The figure with the style of all."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    style: dict[Any, Any] = {
        "font.size": 8.5,
        "font.family": "DejaVu Sans",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": colour("soft"),
        "axes.labelcolor": colour("ink"),
        "axes.titlesize": 9.0,
        "axes.titlecolor": colour("ink"),
        "axes.facecolor": "none",
        "axes.axisbelow": True,
        "text.color": colour("ink"),
        "xtick.color": colour("soft"),
        "ytick.color": colour("soft"),
        "xtick.labelcolor": colour("ink"),
        "ytick.labelcolor": colour("ink"),
        "grid.color": colour("line"),
        "legend.frameon": False,
        "hatch.linewidth": 0.6,
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": figure.name,
    }
    with mpl.rc_context(style):
        drawing = Drawing(figsize=(WIDTH_IN, figure.height_in), layout="constrained")
        FigureCanvasAgg(drawing)
        figure.draw(drawing)
    return drawing


def svg(figure: Figure) -> str:
    """The figure as an <svg> element for a page: colours by CSS variable, ids of its own, its description inside."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": figure.name}):
        _drawn(figure).savefig(buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator")))
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for name, (light, _) in COLOURS.items():
        text = text.replace(light, f"var(--{name})")
    text = re.sub(r'\bid="', f'id="{figure.name}-', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{figure.name}-", text)
    label = html.escape(figure.description, quote=True)
    text = re.sub(
        r'<svg [^>]*?(viewBox="[^"]*")[^>]*>',
        lambda found: f'<svg {found[1]} role="img" aria-label="{label}">',
        text,
        count=1,
        flags=re.DOTALL,
    )
    return re.sub(r">\s+<", "><", text)


def save(figure: Figure, path: Path) -> None:
    """Write the figure as the ending of `path` says: .png or .svg. Raises ConfigError where it cannot be written."""
    buffer = io.BytesIO()
    kind = path.suffix.removeprefix(".")
    _drawn(figure).savefig(buffer, format=kind, dpi=160, facecolor=colour("page"))
    try:
        write_atomic(path, buffer.getvalue())
    except OSError as error:
        raise ConfigError(
            f"cannot write the figure {path}: {error.strerror}; name another folder with --out"
        ) from error


# -- studies -------------------------------------------------------------------------------------------


def seconds_by_cause(record: Record) -> dict[str, float] | None:
    """The mean step time cut by the shares; what no measured share covers is `not attributed`. None: no step time.

    A share below zero (noise around nothing) takes no room.
    """
    mean_s = part(record, "step_time_s", "mean")
    if mean_s is None:
        return None
    fractions = {cause: max(0.0, fmt.value_of(part(record, "shares", cause)) or 0.0) for cause in CAUSES}
    known = sum(fractions.values())
    stretch = 1 / known if known > 1 else 1.0
    seconds = {cause: fraction * stretch * mean_s for cause, fraction in fractions.items()}
    return {**seconds, UNATTRIBUTED: max(0.0, 1 - known) * mean_s}


def study_figures(records: Sequence[Record], study: Mapping[str, Any], name: str) -> list[Figure]:
    """All figures that these runs have data for. `study` is `analysis.study.summarize(records)`, `name` a prefix."""
    by_id = {record["run_id"]: record for record in records}
    rows = study["rows"]
    shown = _fastest_of_each(rows) if len(rows) > MOST_BARS else rows
    label = {id(row): fmt.row_label(row, rows) for row in rows}
    found = [
        _by_cause(shown, by_id, label, name),
        _over_serial(shown, label, study["num_steps"], name),
        _against_workers(rows, study["knees"], by_id, name),
        _bandwidth(shown, label, name),
        _gaps(shown, by_id, label, name),
        _buffers(rows, label, name),
    ]
    return [figure for figure in found if figure is not None]


def _fastest_of_each(rows: Sequence[Record]) -> list[Record]:
    best: dict[tuple[Any, ...], Record] = {}
    for row in rows:
        key = (row["case"]["resolution"], row["case"]["loader"])
        if key not in best or row["rate"]["value"] > best[key]["rate"]["value"]:
            best[key] = row
    return list(best.values())[:MOST_BARS]


def _by_cause(
    rows: Sequence[Record], by_id: Mapping[str, Record], label: Mapping[int, str], name: str
) -> Figure | None:
    bars: list[tuple[str, str, dict[str, float]]] = []
    for resolution, group in fmt.by_resolution(rows):
        for row in group:
            seconds = seconds_by_cause(by_id[row["run_ids"][-1]])
            if seconds is not None:
                # By samples, so that settings of other batch sizes stand beside each other.
                per_image = {cause: value / row["case"]["batch_size"] for cause, value in seconds.items()}
                bars.append((resolution, label[id(row)], per_image))
    if not bars:
        return None
    causes = [cause for cause in (*CAUSES, UNATTRIBUTED) if any(seconds[cause] for *_, seconds in bars)]

    def draw(drawing: Drawing) -> None:
        axes = drawing.subplots()
        longest = max(sum(seconds.values()) for *_, seconds in bars)
        places = _name_rows(axes, bars)
        scale, unit = _scale(longest)
        for (_, _, seconds), place in zip(bars, places, strict=True):
            left = 0.0
            for cause in causes:
                width = seconds[cause]
                axes.barh(
                    place, width * scale, left=left * scale, height=0.72, color=colour(cause),
                    edgecolor=colour("page"), hatch=HATCHES[cause], linewidth=0.6,
                )  # fmt: skip
                if width >= LABEL_FROM * longest:
                    axes.text(
                        (left + width / 2) * scale, place, fmt.number(width * scale, 2), ha="center", va="center",
                        fontsize=7.5, bbox={"facecolor": colour("page"), "edgecolor": "none", "pad": 1.2},
                    )  # fmt: skip
                left += width
        axes.set_xlabel(f"{unit} an image")
        _legend(drawing, causes)

    return Figure(
        f"{name}-causes",
        "Time of an image, by cause",
        "A bar is the step time over the batch's images, stacked by what it was spent on; time hidden under device "
        f"work is in no part. Of more than {MOST_BARS} settings the fastest of each loader and resolution; of repeats "
        "the last.",
        ("resolution", "setting", *(f"{cause.replace(' ', '_')}_s" for cause in causes)),
        [(resolution, text, *(seconds[cause] for cause in causes)) for resolution, text, seconds in bars],
        _height_in(bars, 1.15, 0.24),
        draw,
    )


def _over_serial(rows: Sequence[Record], label: Mapping[int, str], num_steps: int, name: str) -> Figure | None:
    points = [
        (resolution, label[id(row)], row["faster_than_serial"], row["total_s"])
        for resolution, group in fmt.by_resolution(rows)
        for row in group
        if row["faster_than_serial"] is not None
    ]
    if not points:
        return None

    def draw(drawing: Drawing) -> None:
        axes = _dots(drawing, [(resolution, text, ratio) for resolution, text, ratio, _ in points])
        axes.set_xlabel("× faster than the serial loader (images/s, with 95 % interval)")

    return Figure(
        f"{name}-serial",
        "Times faster than serial",
        "Images a second over those of the serial loader at the same resolution; the dashed line is serial itself.",
        ("resolution", "setting", "ratio", "low", "high", f"total_of_{num_steps}_steps_s"),
        [
            (resolution, text, ratio["value"], ratio["low"], ratio["high"], total_s)
            for resolution, text, ratio, total_s in points
        ],
        _height_in(points, 0.75, 0.22),
        draw,
    )


def _against_workers(
    rows: Sequence[Record], knees: Sequence[Record], by_id: Mapping[str, Record], name: str
) -> Figure | None:
    """A panel for each resolution: rates over workers, their knees, and what the device could take."""
    lines: dict[tuple[str, str], list[Record]] = {}
    for resolution, group in fmt.by_resolution(rows):
        for row in group:
            without = {**row, "case": {**row["case"], "workers": 0}}
            lines.setdefault((resolution, fmt.row_label(without, rows)), []).append(row)
    lines = {
        key: sorted(group, key=lambda row: int(row["case"]["workers"]))
        for key, group in lines.items()
        if len({row["case"]["workers"] for row in group}) > 1
    }
    panels = list(dict.fromkeys(resolution for resolution, _ in lines))[:MOST_PANELS]
    if not panels:
        return None
    settings = list(dict.fromkeys(text for _, text in lines))
    at_knee = {id(row) for row in rows for knee in knees if row["case"] == knee["case"]}

    def ceiling_of(row: Record) -> float | None:
        return fmt.value_of(part(by_id[row["run_ids"][-1]], "ingestion_rate"))

    table = [
        (
            resolution, text, row["case"]["workers"], row["rate"]["value"], row["rate"]["low"], row["rate"]["high"],
            ceiling_of(row), "yes" if id(row) in at_knee else "no",
        )
        for (resolution, text), group in lines.items()
        for row in group
    ]  # fmt: skip

    def draw(drawing: Drawing) -> None:
        num_columns = min(3, len(panels))
        grid = drawing.subplots(-(-len(panels) // num_columns), num_columns, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for axes, resolution in zip(grid.flat, panels, strict=False):
            mine = [row for row in table if row[0] == resolution]
            for number, text in enumerate(settings):
                line = [row for row in mine if row[1] == text]
                if not line:
                    continue
                values = np.array([row[3] for row in line])
                style = {
                    "color": colour(f"line{number % 6}"),
                    "marker": MARKERS[number % len(MARKERS)],
                    "markersize": 4,
                }
                errors = _errors(values, [row[4] for row in line], [row[5] for row in line])
                axes.errorbar([row[2] for row in line], values, yerr=errors, label=text, linewidth=1.3, **style)
                for row in line:
                    if row[7] == "yes":
                        axes.plot(row[2], row[3], "o", markersize=11, fillstyle="none", color=colour("ink"))
            ceilings = [row[6] for row in mine if row[6] is not None]
            if ceilings:
                axes.axhline(float(np.mean(ceilings)), color=colour("ink"), linestyle="--", linewidth=1)
            tried = sorted({row[2] for row in mine})
            axes.set_xscale("log", base=2)
            axes.set_xticks(tried, [str(number) for number in tried])
            axes.minorticks_off()
            most = max([*(row[3] for row in mine), *ceilings])
            axes.set_ylim(0, 1.25 * most)  # an interval that is all but unknown is cut
            axes.set_title(resolution)
            axes.set_xlabel("workers")
            axes.grid()
        grid.flat[0].set_ylabel("images/s")
        drawn = [axes.get_legend_handles_labels() for axes in grid.flat]
        by_name = {text: handle for handles, texts in drawn for handle, text in zip(handles, texts, strict=True)}
        drawing.legend(by_name.values(), by_name.keys(), loc="outside upper left", ncols=3)

    return Figure(
        f"{name}-workers",
        "Images a second against workers",
        "The ring marks the knee, the least workers within 3 % of the best; the dashed line is what the device takes "
        "when data is always there.",
        ("resolution", "setting", "workers", "images_per_s", "low", "high", "device_takes_images_per_s", "knee"),
        table,
        0.6 + 2.2 * -(-len(panels) // 3),
        draw,
    )


def _bandwidth(rows: Sequence[Record], label: Mapping[int, str], name: str) -> Figure | None:
    read = [
        (resolution, label[id(row)], row["read_bytes_per_s"], row["ceiling_bytes_per_s"])
        for resolution, group in fmt.by_resolution(rows)
        for row in group
        if row["read_bytes_per_s"] is not None
    ]
    if not read:
        return None

    def draw(drawing: Drawing) -> None:
        axes = drawing.subplots()
        places = _name_rows(axes, read)
        for (_, _, given, ceiling), place in zip(read, places, strict=True):
            axes.barh(place, given / 1e6, height=0.6, color=colour("storage"), hatch=HATCHES["storage"])
            if ceiling is not None:
                axes.plot([ceiling / 1e6] * 2, [place - 0.42, place + 0.42], color=colour("ink"), linewidth=2)
        axes.set_xlabel("MB/s")
        axes.grid(axis="x")

    return Figure(
        f"{name}-bandwidth",
        "What was read, and what the storage could give",
        "A bar is the growth of the storage's counter, which others of a shared disk move too; the upright line is the "
        "ceiling that the probe found.",
        ("resolution", "setting", "read_bytes_per_s", "ceiling_bytes_per_s"),
        read,
        _height_in(read, 0.75, 0.22),
        draw,
    )


def _gaps(rows: Sequence[Record], by_id: Mapping[str, Record], label: Mapping[int, str], name: str) -> Figure | None:
    """Gaps between kernels: their share of the step by class, and how many there are of which length."""
    found: list[tuple[str, str, Record]] = []
    for resolution, group in fmt.by_resolution(rows):
        for row in group:
            gap = part(by_id[row["run_ids"][-1]], "device", "kernel_gap")
            alike = gap is not None and (not found or _shape(gap) == _shape(found[0][2]))
            if alike:  # another version may have classed and counted otherwise
                found.append((resolution, label[id(row)], gap))
    if not found:
        return None
    classes = list(found[0][2]["by_class"])
    class_colours = {"data_stall": "prep", "launch": "launch", "transfer_sync": "transfer"}
    edges = found[0][2]["histogram"]["edges_s"]
    spans = [f"< {fmt.duration(edges[0])}", *(f"{fmt.duration(edge)} +" for edge in edges)]

    def draw(drawing: Drawing) -> None:
        left, right = drawing.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": [1, 1]})
        places = _name_rows(left, found)
        for (_, _, gap), place in zip(found, places, strict=True):
            at = 0.0
            for kind in classes:
                percent = gap["by_class"][kind]["fraction"] * 100
                cause = class_colours.get(kind, "unexplained")
                left.barh(place, percent, left=at, height=0.7, color=colour(cause), hatch=HATCHES[cause],
                          edgecolor=colour("page"), linewidth=0.6)  # fmt: skip
                at += percent
            counts = np.array(gap["histogram"]["counts"]) / gap["num_steps"]
            for number, count in enumerate(counts):
                if count > 0:
                    size = 8 + 26 * float(np.log10(1 + count))
                    right.scatter(number, place, s=size, color=colour("line0"), linewidths=0)
                    if count >= 0.5:
                        right.annotate(fmt.number(count, 2), (number, place), (5, 0), textcoords="offset points",
                                       fontsize=6.5, va="center")  # fmt: skip
        left.set_xlabel("% of the step in gaps")
        right.set_xticks(range(len(spans)), spans, rotation=45, ha="right", fontsize=7)
        right.set_xlabel("gaps a step, by length")
        left.grid(axis="x")
        right.grid(axis="x")
        _legend(drawing, [class_colours.get(kind, "unexplained") for kind in classes],
                [kind.replace("_", " ") for kind in classes])  # fmt: skip

    return Figure(
        f"{name}-gaps",
        "Gaps between kernels",
        "Left: the part of a step in which the device ran nothing, by what it waited for. Right: how many gaps of "
        "which length a step has. From the traced steps alone.",
        (
            "resolution", "setting", *(f"{kind}_fraction" for kind in classes), "gaps_per_step", "p50_s", "p95_s",
            *(f"gaps_per_step_from_{edge:g}_s" for edge in (0, *edges)),
        ),
        [
            (
                resolution, text, *(gap["by_class"][kind]["fraction"] for kind in classes), gap["count_per_step"],
                gap["p50_s"], gap["p95_s"], *(count / gap["num_steps"] for count in gap["histogram"]["counts"]),
            )
            for resolution, text, gap in found
        ],
        _height_in(found, 1.3, 0.24),
        draw,
    )  # fmt: skip


def _shape(gap: Mapping[str, Any]) -> tuple[list[str], list[float]]:
    return list(gap["by_class"]), gap["histogram"]["edges_s"]


def _buffers(rows: Sequence[Record], label: Mapping[int, str], name: str) -> Figure | None:
    """How a run as short as its buffer flatters a loader."""
    found = [
        (resolution, label[id(row)], row["short_run"])
        for resolution, group in fmt.by_resolution(rows)
        for row in group
        if row.get("short_run") is not None and row["short_run"]["flatters"] is not None
    ]
    if not found:
        return None

    def draw(drawing: Drawing) -> None:
        axes = _dots(drawing, [(resolution, text, short["flatters"]) for resolution, text, short in found])
        axes.set_xlabel("rate of the short run ÷ rate of the steady run")

    return Figure(
        f"{name}-buffers",
        "How a short run flatters a loader",
        "A run that begins with a full prefetch buffer consumes what was prepared before its clock started. At 1 (the "
        "dashed line) the short run tells the truth.",
        ("resolution", "setting", "iterations", "buffer_batches", "buffer_ratio", "flatters", "low", "high"),
        [
            (
                resolution, text, short["num_steps"], short["buffer_batches"], short["buffer_ratio"],
                short["flatters"]["value"], short["flatters"]["low"], short["flatters"]["high"],
            )
            for resolution, text, short in found
        ],
        _height_in(found, 0.75, 0.22),
        draw,
    )  # fmt: skip


# -- comparisons ---------------------------------------------------------------------------------------


def comparison_figure(comparison: Record, name: str) -> Figure | None:
    """Both sides' rates, a group for each cache state and number of workers."""
    labels = {side: fmt.clean(text) for side, text in comparison["labels"].items()}
    table = [
        (
            pair["cache"], pair["workers"], labels[side], rate["value"], rate["low"], rate["high"],
            pair[side]["bottleneck"],
        )
        for pair in comparison["pairs"]
        for side in ("a", "b")
        if (rate := pair[side]["throughput"]) is not None
    ]  # fmt: skip
    if not table:
        return None
    groups = list(dict.fromkeys((row[0], row[1]) for row in table))

    def draw(drawing: Drawing) -> None:
        axes = drawing.subplots()
        for number, side in enumerate(("a", "b")):
            mine = [row for row in table if row[2] == labels[side]]
            places = [groups.index((row[0], row[1])) + (number - 0.5) * 0.38 for row in mine]
            values = np.array([row[3] for row in mine])
            errors = _errors(values, [row[4] for row in mine], [row[5] for row in mine])
            axes.barh(
                places, values, height=0.34, xerr=errors, label=labels[side], color=colour(f"line{number}"),
                ecolor=colour("ink"), hatch=("", "////")[number], edgecolor=colour("page"), linewidth=0.6,
            )  # fmt: skip
            for row, place in zip(mine, places, strict=True):
                axes.annotate(
                    f" {row[6] or ''}", (0, place), (4, 0), textcoords="offset points", va="center", fontsize=7,
                    bbox={"facecolor": colour("page"), "edgecolor": "none", "pad": 0.8},
                )  # fmt: skip
        words = [f"{cache}, {workers} worker{'s' * (workers != 1)}" for cache, workers in groups]
        _name_bars(axes, words, [float(number) for number in range(len(groups))])
        axes.set_xlabel("images/s, with 95 % interval; the word is the verdict")
        axes.grid(axis="x")
        drawing.legend(loc="outside upper left", ncols=2)

    return Figure(
        f"{name}-rates",
        f"{labels['a']} and {labels['b']}: images a second",
        "Both sides measured in turns, for each state of the page cache and number of workers.",
        ("cache", "workers", "side", "images_per_s", "low", "high", "verdict"),
        table,
        1.0 + 0.5 * len(groups),
        draw,
    )


# -- one run over time ---------------------------------------------------------------------------------


def timeline_figure(recording: Recording, series: Sequence[Series], title: str, name: str) -> Figure | None:
    """A few steps of the run's last real window: what the loop and the device did, and what the storage gave."""
    segments = [one for one in recording.segments if one.arm == "real" and len(one.steps) > one.num_warmup + 2]
    if not segments:
        return None
    rows = _strip(segments[-1])
    if not rows:
        return None
    begun_ns = min(row[3] for row in rows)
    end_ns = max(row[4] for row in rows)
    table: list[Row] = [(*row[:3], (row[3] - begun_ns) / 1e6, (row[4] - begun_ns) / 1e6, None) for row in rows]
    flow = _storage_flow(series, begun_ns, end_ns)
    table += [("storage", "read", None, begin, end, rate) for begin, end, rate in flow]
    lanes = [lane for lane in (LOOP_LANE, COPY_LANE, DEVICE_LANE) if any(row[0] == lane for row in rows)]
    looks = {
        "wait for data": "prep",
        "issue": "launch",
        "wait for device": "rest",
        "copy": "transfer",
        "compute": "compute",
        "stall": "contention",
    }

    def draw(drawing: Drawing) -> None:
        axes, below = drawing.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [1.6, 1]})
        for lane, what, _, begin, end, _ in table:
            if lane in lanes:
                cause = looks[what]
                axes.barh(lanes.index(lane), end - begin, left=begin, height=0.8, color=colour(cause),
                          hatch=HATCHES.get(cause, ""), edgecolor=colour("page"), linewidth=0.3)  # fmt: skip
        axes.set_yticks(range(len(lanes)), lanes)
        axes.invert_yaxis()
        axes.set_xlim(0, (end_ns - begun_ns) / 1e6)
        shown = [what for what in looks if any(row[1] == what for row in rows)]
        _legend(drawing, [looks[what] for what in shown], shown)
        if flow:
            times = [flow[0][0], *(end for _, end, _ in flow)]
            below.stairs([rate / 1e6 for *_, rate in flow], times, fill=True, color=colour("storage"))
        else:
            below.text(0.5, 0.5, "the storage's counter was not sampled", transform=below.transAxes, ha="center")
        below.set_ylim(bottom=0)
        below.set_ylabel("storage\nMB/s")
        below.set_xlabel("ms")

    return Figure(
        f"{name}-timeline",
        "A few steps of one run, over time",
        f"{title}. A stall is the device idle while the loop waits for data, compute a step there with its gaps; "
        "below, how the storage's counter grew.",
        ("lane", "what", "step", "begin_ms", "end_ms", "read_bytes_per_s"),
        table,
        3.1,
        draw,
    )


def _strip(segment: Segment) -> list[tuple[str, str, int, int, int]]:
    """(lane, what, step, begin_ns, end_ns) of the window's first steps behind its warm-up."""
    column = {name: number for number, name in enumerate(STEP_FIELDS)}
    steps = segment.steps[segment.num_warmup : segment.num_warmup + STRIP_STEPS]
    steps = steps[steps[:, column["called_ns"]] - steps[0, column["called_ns"]] < STRIP_S * 1e9]
    rows: list[tuple[str, str, int, int, int]] = []
    done_before: int | None = None
    for step, one in enumerate(steps.tolist()):
        called, returned, issued, waited, begin, end, done = one[:7]
        rows += [
            (LOOP_LANE, "wait for data", step, called, returned),
            (LOOP_LANE, "issue", step, returned, issued),
            (LOOP_LANE, "wait for device", step, issued, waited),
        ]
        if done < 0:  # an arm without a device
            continue
        rows.append((COPY_LANE, "copy", step, begin, end))
        if done_before is not None:
            rows.append((DEVICE_LANE, "stall", step, max(called, done_before), returned))
        rows.append((DEVICE_LANE, "compute", step, end if done_before is None else max(end, done_before), done))
        done_before = done
    return [row for row in rows if row[4] > row[3]]


def _storage_flow(series: Sequence[Series], begun_ns: int, end_ns: int) -> list[tuple[float, float, float]]:
    """(begin ms, end ms, bytes/s) between the samples of the storage's counter that touch the window."""
    channel = next((one for one in series if one.name == "storage_read_bytes"), None)
    if channel is None:
        return []
    known = np.isfinite(channel.value)
    times, values = channel.t_ns[known], channel.value[known]
    flow = []
    for before, after, grown in zip(times[:-1].tolist(), times[1:].tolist(), np.diff(values).tolist(), strict=True):
        if after > begun_ns and before < end_ns and after > before:
            flow.append(((before - begun_ns) / 1e6, (after - begun_ns) / 1e6, grown / ((after - before) / 1e9)))
    return flow


# -- parts of drawings ---------------------------------------------------------------------------------


def _places(groups: Sequence[str]) -> list[float]:
    """Heights of bars from the top, with room between groups."""
    places: list[float] = []
    for number, group in enumerate(groups):
        apart = 0.0 if not number else (1.0 if group == groups[number - 1] else 1.5)
        places.append((places[-1] if places else 0.0) + apart)
    return places


def _name_bars(axes: Axes, names: Sequence[str], places: Sequence[float]) -> None:
    axes.set_yticks(places, [name if len(name) <= 48 else f"{name[:47]}…" for name in names])
    axes.set_ylim(max(places) + 0.6, min(places) - 0.6)
    axes.tick_params(axis="y", length=0)


def _name_rows(axes: Axes, rows: Sequence[Row]) -> list[float]:
    """Name each row after its first two values, (resolution, setting). Returns their places."""
    places = _places([row[0] for row in rows])
    _name_bars(axes, [f"{resolution} · {text}" for resolution, text, *_ in rows], places)
    return places


def _height_in(rows: Sequence[Row], around: float, each: float) -> float:
    """Of a figure with `each` for a row, room between resolutions, and `around` for axis and legend."""
    return around + each * len(rows) + 0.12 * len({row[0] for row in rows})


def _dots(drawing: Drawing, points: Sequence[Row]) -> Axes:
    """Ratios with their intervals, (resolution, setting, estimate) each, about a dashed line at 1."""
    axes = drawing.subplots()
    style: dict[str, Any] = {"color": colour("line0"), "markersize": 5, "capsize": 2, "linewidth": 1.4}
    for (*_, estimate), place in zip(points, _name_rows(axes, points), strict=True):
        errors = _errors(np.array([estimate["value"]]), [estimate["low"]], [estimate["high"]])
        axes.errorbar(estimate["value"], place, xerr=errors, fmt="o", **style)
        axes.annotate(
            f"{estimate['value']:.2f}×", (estimate["value"], place), (0, 5), textcoords="offset points",
            fontsize=6.5, ha="center",
        )  # fmt: skip
    axes.axvline(1.0, color=colour("soft"), linewidth=1, linestyle="--")
    axes.set_xlim(0, _reach([estimate for *_, estimate in points]))
    axes.grid(axis="x")
    return axes


def _reach(estimates: Sequence[Mapping[str, Any]]) -> float:
    """Where the axis ends: an interval that is all but unknown must not press all others together."""
    ends = [min(float(one["high"] or one["value"]), 1.8 * float(one["value"])) for one in estimates]
    return 1.08 * max([1.0, *ends])


def _errors(values: Any, lows: Sequence[float | None], highs: Sequence[float | None]) -> Any:
    """Distances to the intervals' ends, [2, N]; nothing where there is no interval."""
    low = np.array([np.nan if one is None else one for one in lows], dtype=float)
    high = np.array([np.nan if one is None else one for one in highs], dtype=float)
    return np.nan_to_num(np.array([np.maximum(values - low, 0), np.maximum(high - values, 0)]))


def _legend(drawing: Drawing, causes: Sequence[str], names: Sequence[str] | None = None) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=colour(cause), hatch=HATCHES.get(cause, ""), edgecolor=colour("page"), label=name)
        for cause, name in zip(causes, names or causes, strict=True)
    ]
    drawing.legend(handles=handles, loc="outside upper left", ncols=len(handles) if len(handles) <= 4 else 4)


def _scale(seconds: float) -> tuple[float, str]:
    return (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
