"""`model split` as text: the answer, each member's part, the table of times, and what the figures mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from loaderbench.recording.model_split import ModelSplit, SplitFacts, SplitMember
from loaderbench.recording.record import Estimate
from loaderbench.recording.split_times import SplitTime
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import make_console, plain_table, print_bullets, styled
from loaderbench.reporting.model_split_figure import split_figures
from loaderbench.reporting.shown import Shown
from loaderbench.reporting.tables import Cells, Page, Table

if TYPE_CHECKING:
    from rich.console import Console

COLUMNS = ("Device", "images", "predicted", "measured")
TIME_COLUMNS = ("Device", "beside", "images", "time", "interval", "turns", "origin")
NUM_NAMES = 1
MUCH_STOLEN = 0.03
"""Of the processors' time, beyond which figures are not this machine's."""
PART_NOTE = (
    "Of a part: from the common start of all members to its last output on the host, the copies to and from the device "
    "within. Measured: medians over the turns with their 95 % intervals."
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
    "An emulated member computes nothing: its time is its profile's, it has no outputs, and its images are left out of "
    "the comparison of outputs."
)
INTERPOLATED = "*: on the line between measured sizes."
CLOSE_IN_ORDER = "images differ by less than the tolerance, so that a wrong order could not be told"


def print_split(result: ModelSplit, console: Console | None = None) -> None:
    """Print the answer, each part, and what the figures mean."""
    console, result = console or make_console(), fmt.cleaned(result)
    console.print(styled(" · ".join(settings(result)), "bold"))
    for line in answer_lines(result):
        console.print(styled(line))
    rows = part_rows(result)
    if rows:
        console.print()
        _print_table(console, COLUMNS, rows)
    for title, lines in notes(result):
        print_bullets(console, title, lines)


def print_times(times: Sequence[SplitTime], console: Console) -> None:
    """Print the table of times."""
    _print_table(console, TIME_COLUMNS, time_rows(fmt.cleaned(tuple(times))), num_names=2)
    console.print(styled(TABLE_NOTE, "dim"))


def _print_table(console: Console, columns: Sequence[str], rows: Cells, num_names: int = NUM_NAMES) -> None:
    table = plain_table()
    for number, title in enumerate(columns):
        is_name = number < num_names
        table.add_column(title, justify="left" if is_name else "right", no_wrap=not is_name, overflow="fold")
    for cells in rows:
        table.add_row(*(styled(cell) for cell in cells))
    console.print(table)


def settings(result: ModelSplit) -> list[str]:
    """What was asked for."""
    size = f"{result.channels}×{result.input_size}×{result.input_size}"
    devices = ", ".join(member.device for member in result.members)
    return [result.model, "infer", result.precision, size, f"batch {result.batch_size}", devices]


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
        return f"{parts}: {fmt.duration(result.predicted_s)} predicted, nothing was run."
    took = f"{parts} take {_time(result.measured_s)}"
    if alone is None:
        return f"{took}; no device can do the whole batch alone."
    if ratio is None:
        return f"{took}; {alone.device} alone was not run."
    against = f"{took}, {fmt.speedup(ratio)} the time of {alone.device} alone"
    if ratio.low is None:
        return f"{against}; {result.missing['outcome']}."
    if result.outcome == "slower":
        return f"This split is slower than {alone.device} alone: {against}."
    if result.outcome == "indistinguishable":
        return f"{against}, which the interval leaves open."
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


def _time(estimate: Estimate) -> str:
    """61.2 ms (60.1–63.0)"""
    if estimate.low is None or estimate.high is None:
        return fmt.duration(estimate.value)
    return f"{fmt.duration(estimate.value)} ({_range(estimate.value, estimate.low, estimate.high)})"


def _range(value: float, low: float, high: float) -> str:
    """Both ends in the unit that `format.duration` gives the value."""
    unit = 1.0 if value >= 1 else 1e3 if value >= 1e-3 else 1e6
    return f"{fmt.number(low * unit)}–{fmt.number(high * unit)}"


# -- tables ----------------------------------------------------------------------------------------------


def part_rows(result: ModelSplit) -> Cells:
    """A row a member; then the whole, and the fastest device alone."""
    if result.predicted_s is None:
        return []
    rows = [_part_cells(member) for member in result.members]
    whole = "" if result.measured_s is None else _time(result.measured_s)
    rows.append(["all together", str(result.batch_size), fmt.duration(result.predicted_s), whole or fmt.MISSING])
    alone = result.fastest_alone
    if alone is not None and result.outcome != "alone":
        taken = fmt.MISSING if alone.s is None else _time(alone.s)
        rows.append([f"{alone.device} alone", str(result.batch_size), fmt.duration(alone.predicted_s), taken])
    return rows


def _part_cells(member: SplitMember) -> list[str]:
    star = "*" if member.interpolated else ""
    return [
        member.device,
        str(member.batch_size),
        "no part" if not member.batch_size else f"{fmt.duration(member.predicted_s)}{star}",
        fmt.MISSING if member.measured_s is None else _time(member.measured_s),
    ]


def time_rows(times: Sequence[SplitTime]) -> Cells:
    """A row an entry."""
    rows = []
    for one in times:
        spread = ""
        if one.low is not None and one.high is not None:
            spread = _range(one.seconds or one.low, one.low, one.high)
        rows.append(
            [
                one.device,
                ", ".join(one.beside) or "alone",
                str(one.batch_size),
                "does not fit" if one.seconds is None else fmt.duration(one.seconds),
                spread,
                "" if one.num_turns is None else str(one.num_turns),
                one.origin,
            ]
        )
    return rows


def notes(result: ModelSplit) -> list[tuple[str, list[str]]]:
    """(heading, lines): what the figures mean, and why some are missing."""
    means = [PART_NOTE]
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
        means.append(f"{result.num_late} turn{'s' * (result.num_late != 1)} spoilt by a late member, and done again.")
    if result.num_left_out:
        what = f"{result.num_left_out} turn{'s' * (result.num_left_out != 1)} of both"
        means.append(f"Left out: {what}, in which a member began late, again and again.")
    means.append(
        f"{len(result.times)} times of {result.table}, {result.num_measured} of them measured now; "
        f"{result.num_searches} search{'es' * (result.num_searches != 1)}."
    )
    alone = [
        f"{one.device}: {fmt.duration(one.predicted_s) if one.why is None else one.why}"
        for one in dict.fromkeys(result.alone)
        if one.predicted_s is not None or one.why is not None
    ]
    found = [
        ("What it means", means),
        (f"Batch {result.batch_size} on each device alone, by the table", alone),
        ("Not measured here", [*result.assumptions]),
        ("Without a figure", [f"{name}: {why}" for name, why in result.missing.items()]),
    ]
    return [(heading, lines) for heading, lines in found if lines]


def split_page(result: ModelSplit, name: str, *, drawn: bool) -> Page:
    """The study in a report. `name`: prefix of its figures' names; `drawn`: whether it has any."""
    rows, times = part_rows(result), time_rows(result.times)
    tables = [Table("Parts", tuple((title, "") for title in COLUMNS), rows, NUM_NAMES, PART_NOTE)] if rows else []
    if times:
        tables.append(Table("Times", tuple((title, "") for title in TIME_COLUMNS), times, 2, TABLE_NOTE))
    return Page(
        title=f"{result.model}, batch {result.batch_size} over {len(result.members)} devices",
        sentence=split_sentence(result),
        settings=settings(result),
        tables=tables,
        findings=[("Answer", answer_lines(result)), *notes(result)],
        figures=split_figures(result, name) if drawn else [],
    )


class ShownSplit(Shown[SplitFacts, ModelSplit]):
    """Shows a split over devices."""

    is_paged = True

    def about(self, facts: SplitFacts) -> str:
        return f"{facts.model}, batch {facts.batch_size} over {', '.join(one.device for one in facts.members)}"

    def interrupted(self, facts: SplitFacts) -> bool:
        return facts.interrupted

    def page(self, found: ModelSplit, name: str, *, drawn: bool) -> Page:
        return split_page(found, name, drawn=drawn)

    def print_found(self, found: ModelSplit, console: Console) -> None:
        print_split(found, console)

    def answer(self, found: ModelSplit) -> list[str]:
        return answer_lines(found)
