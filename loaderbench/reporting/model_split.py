"""`model split`: the answer, each member's part, the table of times, what the figures mean, and both as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from loaderbench.printable import counted
from loaderbench.recording.model_split import ModelSplit, SplitFacts, SplitMember
from loaderbench.recording.record import Estimate
from loaderbench.recording.split_times import SplitTime
from loaderbench.reporting import format as fmt
from loaderbench.reporting.drawing import Drawing
from loaderbench.reporting.figures import (
    MARKERS,
    Figure,
    cells,
    ends,
    line,
    line_legend,
    name_axes,
    name_bars,
    stack,
    whisker,
)
from loaderbench.reporting.result import Cell, Column, Result, Row, Section, Table
from loaderbench.reporting.shown import Shown


def _time(estimate: Estimate) -> str:
    """61.2 ms (60.1–63.0)"""
    if estimate.low is None or estimate.high is None:
        return fmt.duration(estimate.value)
    return f"{fmt.duration(estimate.value)} ({_range(estimate.value, estimate.low, estimate.high)})"


def _range(value: float, low: float, high: float) -> str:
    """Both ends in the unit that `format.duration` gives the value."""
    unit = 1.0 if value >= 1 else 1e3 if value >= 1e-3 else 1e6
    return f"{fmt.number(low * unit)}–{fmt.number(high * unit)}"


COLUMNS = (Column("Device", left=True), Column("images"), Column("predicted", "s"), Column("measured", show=_time))
TIME_COLUMNS = (
    Column("Device", left=True), Column("beside", left=True), Column("images"), Column("time", "s"),
    Column("interval", rank=1), Column("turns", rank=2), Column("origin", rank=3),
)  # fmt: skip
MUCH_STOLEN = 0.03
"""Of the processors' time, beyond which figures are not this machine's."""
PART_NOTE = (
    "A part's time: from the common start of all members to its last output on the host, with the copies to and from "
    "the device. Measured: medians over the turns with their 95 % intervals."
)
ALONE_NOTE = "Alone: the whole batch, the other devices at rest, in turns with the split."
TABLE_NOTE = (
    "Time of a part, the median of its turns, with the interval of that one burst. Beside: the devices that worked "
    "meanwhile."
)
WITHIN = 0.1
OFF = (
    ", more than 10 % off: the machine is in another state than when the times were taken (another load, heat, a "
    "hypervisor); `--remeasure` takes them again"
)
EMULATED = (
    "An emulated member does not compute: its time comes from its profile, and the comparison of outputs leaves out "
    "its images."
)
INTERPOLATED = "*: on the line between measured sizes."
CLOSE_IN_ORDER = "images differ by less than the tolerance, so a wrong order would go unnoticed"


def times_table(times: Sequence[SplitTime]) -> Table:
    """The table of times."""
    return Table("Times", TIME_COLUMNS, [_time_row(one) for one in times], TABLE_NOTE)


def settings(result: ModelSplit) -> list[str]:
    """What was asked for."""
    devices = ", ".join(member.device for member in result.members)
    return [result.model, "infer", result.precision, fmt.image_shape(result), f"batch {result.batch_size}", devices]


# -- the answer ------------------------------------------------------------------------------------------


def answer_lines(result: ModelSplit) -> list[str]:
    """The answer in sentences, the first of which says it all."""
    lines = [split_sentence(result)]
    found = []
    for name, seconds, sizes in (
        ("greedy", result.greedy_s, result.greedy_sizes),
        ("exact", result.exact_s, result.exact_sizes),
    ):
        if seconds is not None and sizes is not None:
            found.append(f"the {name} search {fmt.duration(seconds)} ({' + '.join(map(str, sizes))})")
    if found:
        lines.append(f"Predicted: {', '.join(found)}.")
    if result.measured_over_predicted is not None:
        off = abs(result.measured_over_predicted - 1) > WITHIN
        lines.append(f"Measured ÷ predicted: {result.measured_over_predicted:.3f}{OFF if off else ''}.")
    if result.fastest_alone is not None and result.maybe_fastest:
        names = " or ".join(result.maybe_fastest)
        lines.append(f"By the table {names} may be as fast alone as {result.fastest_alone.device}, and was not run.")
    lines += [check for check in [_check_line(result)] if check]
    for one in result.dropped:
        lines.append(f"{one.device} has no part, for it cannot hold the model: {one.message.rstrip('.')}.")
    lines += _moved_lines(result)
    if result.failure is not None:
        lines.append(f"It ended early: {result.failure.rstrip('.')}.")
    elif result.interrupted:
        lines.append("It did not come to its end: the table keeps the times that were measured.")
    return lines


def _moved_lines(result: ModelSplit) -> list[str]:
    """A line for each member whose part no longer fitted in the run."""
    lines = []
    for number in sorted({one.member for one in result.moved}):
        device, moved = result.members[number].device, [one for one in result.moved if one.member == number]
        sizes = sorted({one.size for one in moved})
        gets = result.members[number].batch_size or "no part"
        drops = " ".join(f"--drop {device},{size}" for size in sizes)
        lines.append(
            f"In the run {', '.join(map(str, sizes))} images no longer fitted on {device} ({moved[-1].message}): "
            f"it gets {gets}. The table keeps that; to try again: {drops}"
        )
    return lines


def split_sentence(result: ModelSplit) -> str:
    """17 images on cpu:1 + 15 on cpu:1 take 61.2 ms (60.1–63.0), 0.53× (0.51–0.55) the time of cpu:1 alone."""
    alone, ratio = result.fastest_alone, result.ratio_to_fastest_alone
    parts = " + ".join(f"{one.batch_size} on {one.device}" for one in result.members if one.batch_size)
    if not parts:
        return "No split was found."
    if result.outcome == "alone":
        took = "" if result.measured_s is None else f" in {_time(result.measured_s)}"
        return f"The fastest alone is best: {parts}{took}; by the table no split ends before it."
    if result.measured_s is None:
        return f"{parts}: {fmt.duration(result.predicted_s)} predicted, not run."
    took = f"{parts} take {_time(result.measured_s)}"
    if alone is None:
        return f"{took}; no device can do the whole batch alone."
    if ratio is None:
        return f"{took}; {alone.device} alone was not run."
    against = f"{took}, {fmt.speedup(ratio)} the time of {alone.device} alone"
    if result.outcome is None:
        return f"{against}; {result.missing['outcome']}."
    if result.outcome == "slower":
        return f"This split is slower than {alone.device} alone: {against}."
    if result.outcome == "indistinguishable":
        return f"{against}: not decided, since the interval holds 1."
    return f"{against}."


def _check_line(result: ModelSplit) -> str | None:
    check = result.check
    if check is None:
        return None
    num, device = check.num_images, result.members[check.reference].device
    figures = f"deviation {check.deviation:.1e}, tolerance {check.tolerance:.0e}"
    if not result.is_equal:
        return f"The outputs DIFFER from those of {device} for the whole batch ({figures}, {num} images)."
    order = check.neighbours is not None and check.neighbours <= check.tolerance
    doubt = f"; {CLOSE_IN_ORDER}" if order else ""
    return f"The outputs of {num} images equal those of {device} for the whole batch ({figures}){doubt}."


# -- tables ----------------------------------------------------------------------------------------------


def part_rows(result: ModelSplit) -> list[Row]:
    """A row a member; then the whole, and the fastest device alone."""
    if result.predicted_s is None:
        return []
    rows: list[Row] = [_part_row(member) for member in result.members]
    rows.append(("all together", result.batch_size, result.predicted_s, result.measured_s))
    alone = result.fastest_alone
    if alone is not None and result.outcome != "alone":
        rows.append((f"{alone.device} alone", result.batch_size, alone.predicted_s, alone.s))
    return rows


def _part_row(member: SplitMember) -> Row:
    predicted: Cell = member.predicted_s if member.batch_size else "no part"
    if member.batch_size and member.interpolated:
        predicted = f"{fmt.duration(member.predicted_s)}*"
    return (member.device, member.batch_size, predicted, member.measured_s)


def _time_row(one: SplitTime) -> Row:
    spread = ""
    if one.low is not None and one.high is not None:
        spread = _range(one.seconds or one.low, one.low, one.high)
    seconds: Cell = "does not fit" if one.seconds is None else one.seconds
    turns: Cell = "" if one.num_turns is None else one.num_turns
    return (one.device, ", ".join(one.beside) or "alone", one.batch_size, seconds, spread, turns, one.origin)


def sections(result: ModelSplit) -> list[Section]:
    """(heading, lines): what the figures mean, and why some are missing."""
    means = []
    if result.outcome != "alone":
        means.append(ALONE_NOTE)
    if any(member.emulated for member in result.members):
        means.append(EMULATED)
    if any(member.interpolated for member in result.members):
        means.append(INTERPOLATED)
    for what, stolen in (
        ("times were taken", result.stolen_profile_fraction),
        ("the turns were run", result.stolen_turns_fraction),
    ):
        if stolen is not None and stolen > MUCH_STOLEN:
            share = fmt.percent(stolen)
            means.append(f"The hypervisor gave {share} of the processors' time to others while {what}: measure again.")
    if result.num_late:
        means.append(f"{counted(result.num_late, 'turn')} spoilt by a late member, and done again.")
    if result.num_left_out:
        what = counted(result.num_left_out, "turn")
        means.append(f"Left out, of the split and of its neighbour alike: {what} in which a member began late.")
    means.append(
        f"{len(result.times)} times of {result.table}, {result.num_measured} of them measured now; "
        f"{result.num_searches} search{'es' * (result.num_searches != 1)}."
    )
    alone = [
        f"{one.device}: {fmt.duration(one.predicted_s) if one.why is None else one.why}"
        for one in dict.fromkeys(result.alone)
        if one.predicted_s is not None or one.why is not None
    ]
    return [
        ("What it means", means),
        (f"Batch {result.batch_size} on each device alone, by the table", alone),
        ("Not measured here", result.assumptions),
        ("Without a figure", [f"{name}: {why}" for name, why in result.missing.items()]),
    ]


# -- figures ---------------------------------------------------------------------------------------------


class _Bar(NamedTuple):
    """One part, or the whole batch on one device."""

    name: str
    images: int
    predicted_s: float | None
    measured_s: Estimate | None
    colour: str


def split_figures(result: ModelSplit) -> list[Figure]:
    """Those that there is something to draw for."""
    return [figure for figure in (_parts(result), _times(result)) if len(figure.data) > (figure.name == "times")]


def _parts(result: ModelSplit) -> Figure:
    bars = [
        _Bar(f"{one.device}: {one.batch_size}", one.batch_size, one.predicted_s, one.measured_s, "line0")
        for one in result.members
        if one.batch_size
    ]
    alone = result.fastest_alone
    if bars and alone is not None and result.outcome != "alone":
        name = f"{alone.device} alone: {result.batch_size}"
        bars.append(_Bar(name, result.batch_size, alone.predicted_s, alone.s, "rest"))
    return Figure(
        "parts",
        f"{result.model}, batch {result.batch_size}: each member's part, and the fastest device alone",
        "From the common start to the end: measured (wide, with its 95 % interval) and predicted by the table "
        "(narrow). The split ends with its last member, at the dashed line.",
        [
            {
                "what": bar.name,
                "images": bar.images,
                "predicted_ms": ends(bar.predicted_s, 1e3)[0],
                **cells(bar.measured_s, "measured_ms", "low_ms", "high_ms", scale=1e3),
            }
            for bar in bars
        ],
        0.9 + 0.42 * len(bars),
        partial(_draw_parts, bars=bars, whole=result.measured_s),
    )


def _draw_parts(drawing: Drawing, bars: Sequence[_Bar], whole: Estimate | None) -> None:
    (axes,) = drawing.axes()
    for number, bar in enumerate(bars):
        if bar.measured_s is not None:
            measured_ms = stack(axes, number, [(bar.colour, bar.measured_s.value * 1e3)], height=0.62)
            whisker(axes, (measured_ms, number), bar.measured_s, scale=1e3)
        if bar.predicted_s is not None:
            stack(axes, number, [("line1", bar.predicted_s * 1e3)], height=0.16)
    if whole is not None:
        axes.level(x=whole.value * 1e3)
    name_bars(axes, [bar.name for bar in bars], [float(number) for number in range(len(bars))])
    name_axes(axes, "ms", from_zero="x")


def _times(result: ModelSplit) -> Figure:
    times = [one for one in result.times if one.seconds is not None and one.beside]
    return Figure(
        "times",
        f"{result.model}: time of a part by its size",
        "The times that the search goes by, each the median of turns while the other devices worked; between them it "
        "takes the line.",
        [{"device": _beside(one), "images": one.batch_size, "ms": ends(one.seconds, 1e3)[0]} for one in times],
        2.6,
        partial(_draw_times, times=times),
    )


def _beside(one: SplitTime) -> str:
    return f"{one.device} with {', '.join(one.beside)}"


def _draw_times(drawing: Drawing, times: Sequence[SplitTime]) -> None:
    (axes,) = drawing.axes()
    for number, name in enumerate(dict.fromkeys(map(_beside, times))):
        mine = [one for one in times if _beside(one) == name]
        sizes, seconds = [one.batch_size for one in mine], [one.seconds for one in mine]
        line(axes, sizes, seconds, f"line{number % 6}", MARKERS[number % len(MARKERS)], scale=1e3, label=name)
    name_axes(axes, "images of the part", "ms", from_zero="xy")
    line_legend(drawing, axes)


class ShownSplit(Shown[SplitFacts, ModelSplit]):
    """Shows a split over devices."""

    def about(self, facts: SplitFacts) -> str:
        return f"{facts.model}, batch {facts.batch_size} over {', '.join(one.device for one in facts.members)}"

    def result(self, facts: SplitFacts, found: ModelSplit) -> Result:
        rows = part_rows(found)
        tables = [Table("Parts", COLUMNS, rows, PART_NOTE)] if rows else []
        return Result(
            title=f"{found.model}, batch {found.batch_size} over {len(found.members)} devices",
            settings=settings(found),
            answer=answer_lines(found),
            tables=[*tables, replace(times_table(found.times), brief=())] if found.times else tables,
            sections=sections(found),
            draw=partial(split_figures, found),
        )
