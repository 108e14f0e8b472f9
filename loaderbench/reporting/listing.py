"""What is stored, as text: a row for each run, and one for each study with the first words of its answer."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from loaderbench.recording.store import ListedRun, StoredStudy
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import STYLES, Console, make_console, print_bullets, styled

if TYPE_CHECKING:
    from rich.segment import Segment

    from loaderbench.recording.studies import StudyRecord


def print_list(runs: Sequence[ListedRun], console: Console | None = None, studies: Sequence[StoredStudy] = ()) -> None:
    """The stored runs and studies, a row each, oldest first. The names shown are enough for `loaderbench show`."""
    console = console or make_console()
    if not runs and not studies:
        console.print(styled("no runs stored; measure one with `loaderbench run`"))
        return
    readable = [study.study for study in studies if study.study is not None]
    names = short_names([*(run.run_id for run in runs), *(study.study_id for study in readable)])
    if runs:
        _print_runs(runs, names[: len(runs)], console)
    if readable:
        _print_studies(readable, names[len(runs) :], console)
    problems = [(f"{run.run_id}: {run.problem}", run.record is None) for run in runs if run.problem is not None]
    problems += [(f"{one.study_id}: {one.problem}", one.study is None) for one in studies if one.problem is not None]
    for heading, without in (("Without a result", True), ("With a result, but incomplete", False)):
        print_bullets(console, heading, [fmt.clean(text) for text, is_lost in problems if is_lost is without])


def _print_runs(runs: Sequence[ListedRun], names: Sequence[str], console: Console) -> None:
    titles, device = _without_device([fmt.clean(run.title) for run in runs])
    tagged = any(run.record is not None and run.record.tag for run in runs)
    rows = []
    for run, name, title in zip(runs, names, titles, strict=True):
        record = run.record
        rate = fmt.plus_minus_percent(None if record is None else record.throughput)
        result = fmt.clean(run.status) if record is None else fmt.outcome(record)
        rows.append([fmt.clean(name), title, rate, result, *([fmt.clean((record and record.tag) or "")] * tagged)])
    columns = ("run", "case", "images/s", "result", *(["tag"] * tagged))
    _print_lines(columns, rows, console, cut={"case": 1.0, "tag": 0.3})
    if device:
        console.print(styled(f"device, unless the case names one: {device}", "dim"))


def _print_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], console: Console, cut: Mapping[str, float]
) -> None:
    """A table with one line for each row: what is too long for the terminal is cut, in the columns of `cut`, by their
    weights. The first column is the name that `show` takes and stays whole."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    kept = sum(width for width, title in zip(widths, columns, strict=True) if title not in cut)
    room = max(console.width - kept - 2 * (len(columns) - 1), 10 * len(cut))
    if sum(widths) - kept > room:
        weight = sum(cut[title] for title in columns if title in cut)
        widths = [
            min(width, int(room * cut[title] / weight)) if title in cut else width
            for width, title in zip(widths, columns, strict=True)
        ]
    from rich.segment import Segments

    lines = _lines([columns, ["─" * width for width in widths], *rows], widths, console)
    console.print(Segments(lines), end="", crop=False)


def _lines(rows: Sequence[Sequence[str]], widths: Sequence[int], console: Console) -> list[Segment]:
    """The rows as lines, the first as the heading and the second as the line below it, cut where the console ends.
    rich's own table takes 0.3 ms a row and its texts 0.1, which is most of a list of thousands."""
    from rich.segment import Segment

    found: list[Segment] = []
    is_right = [title == "images/s" for title in rows[0]]
    room, total = console.width, sum(widths) + 2 * (len(widths) - 1)
    for number, row in enumerate(rows):
        cells = [*map(_fitted, row, widths, is_right)]
        line = ("──" if number == 1 else "  ").join(cells)
        spans = [("bold", 0, len(line))] if number == 0 else []
        for column, cell in enumerate(row):
            if cell in STYLES:
                begin = sum(map(len, cells[:column])) + 2 * column
                spans.append((STYLES[cell], begin, begin + len(cells[column])))
        line, at = _cut(line, room) if total > room else line, 0
        for style, begin, end in spans:
            found += [Segment(line[at:begin]), Segment(line[begin:end], console.get_style(style))]
            at = end
        found.append(Segment(f"{line[at:]}\n"))
    return found


def _fitted(cell: str, width: int, is_right: bool) -> str:
    """The cell, cut or filled to as many places of the terminal."""
    from rich.cells import cell_len

    places = len(cell) if cell.isascii() else cell_len(cell)
    if places > width:
        cell = _cut(cell, width)
        places = cell_len(cell)
    room = " " * (width - places)
    return room + cell if is_right else cell + room


def _cut(text: str, width: int) -> str:
    from rich.cells import set_cell_size

    return f"{set_cell_size(text, width - 1)}…"


def _without_device(titles: Sequence[str]) -> tuple[list[str], str]:
    """(titles, the device that most of them end with and that is left out of those; empty where each has its own)"""
    devices = Counter(title.rpartition(" ")[2] for title in titles)
    device, count = devices.most_common(1)[0] if devices else ("", 0)
    if count < 2:
        return list(titles), ""
    return [title.removesuffix(f" {device}") for title in titles], device


def _print_studies(studies: Sequence[StudyRecord], names: Sequence[str], console: Console) -> None:
    from loaderbench.reporting.studies import cells  # it judges, whose imports take as long as 700 runs

    rows = [[fmt.clean(cell) for cell in (name, *cells(study))] for study, name in zip(studies, names, strict=True)]
    _print_lines(("study", "of", "answer"), rows, console, cut={"of": 1.0, "answer": 1.2})


def short_names(names: Sequence[str]) -> list[str]:
    """For each run or study the start of its name up to its time, if no other begins so, else the whole name."""
    times = [fmt.short_name(name) for name in names]
    ordered = sorted(names)

    def is_unique(time: str) -> bool:
        after = bisect.bisect_left(ordered, time) + 1  # the first that begins so is the name itself
        return after == len(ordered) or not ordered[after].startswith(time)

    return [time if is_unique(time) else name for name, time in zip(names, times, strict=True)]
