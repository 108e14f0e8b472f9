"""Building blocks of all terminal output: readable in 80 columns, plain where the output is not a terminal.

Everything printed is a rich `Text`, which ignores markup: the name of a data set `[red]` is printed literally.
"""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO, TypeAlias

from loaderbench.printable import clean_lines
from loaderbench.recording.caveats import Caveat
from loaderbench.reporting import format as fmt

if TYPE_CHECKING:
    import rich.console
    from rich.table import Table as RichTable
    from rich.text import Text

    from loaderbench.reporting.result import Column, Result, Table

Console: TypeAlias = "rich.console.Console"
"""By this name its type is told; rich is imported where something is printed."""
BAR_WIDTH = 24
NAME_WIDTH = 14
"""Names in a table are folded where they are longer and the terminal is narrow."""
MOST_CODES = 6
"""Codes of caveats that are named where they are not put into words."""
STYLES = {
    "compute": "green",
    "launch": "yellow",
    "transfer": "cyan",
    "prep": "dark_orange",
    "contention": "red",
    "storage": "magenta",
    "failed": "bold red",
    "crashed": "red",
    "unreadable": "red",
    "skipped": "dim",
    "interrupted": "yellow",
    "running": "cyan",
}
"""Styles of causes, and of how a run ended."""


def make_console(
    stderr: bool = False, *, file: TextIO | None = None, width: int | None = None, plain: bool = False
) -> Console:
    """A console that never fails for a character its encoding lacks, and writes nothing that a terminal would obey but
    rich's own colours. rich obeys NO_COLOR and a missing terminal. `plain`: no colours, even if FORCE_COLOR, which a
    notebook's kernel sets, asks for them."""
    from rich.console import Console as RichConsole
    from rich.console import ConsoleOptions, RenderableType
    from rich.segment import Segment

    class CleanConsole(RichConsole):
        """Here rich's control codes are segments of a kind of their own, and colours are not yet codes."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                text, style, control = segment
                yield segment if control or text.isprintable() else Segment(clean_lines(text), style)

    stream = file or (sys.stderr if stderr else sys.stdout)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return CleanConsole(
        file=stream, width=width, highlight=False, force_terminal=False if plain else None, force_jupyter=False
    )  # a notebook shows each line apart else


def styled(content: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(content, style=style)


def plain_table() -> RichTable:
    """A table without lines except the one under its heading."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, header_style="bold")


def print_rows(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    """Name and value lines, long values wrapped under themselves."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=12)
    table.add_column()
    for name, value in rows:
        table.add_row(styled(name, "dim"), styled(value))
    console.print(table)


def print_bullets(console: Console, title: str, items: Sequence[str]) -> None:
    """Indented lines under a title; nothing where there are none."""
    from rich.padding import Padding

    if not items:
        return
    console.print()
    console.print(styled(title, "bold"))
    for item in items:
        console.print(Padding(styled(item), (0, 0, 0, 2)))


def print_result(result: Result, console: Console | None = None, *, whole: bool = False) -> None:
    """Print the answer, the tables and the remarks. Not `whole`: of long tables the rows that matter most."""
    console = console or make_console()
    print_head(result, console)
    for table in result.tables:
        if whole or table.brief is None or table.brief:
            print_one_of(result, table, console, whole=whole)
    for heading, lines in result.remarks:
        print_bullets(console, heading, lines)
    for heading, text in result.code:
        print_code(console, heading, text)


def print_head(result: Result, console: Console, *, one_line: bool = False) -> None:
    """Print the settings and the answer. `one_line`: the settings are cut where the line ends."""
    if result.settings:
        settings = styled(" · ".join(result.settings), "bold")
        console.print(settings, no_wrap=one_line, overflow="ellipsis" if one_line else None)
    for number, line in enumerate(result.answer):
        console.print(styled(line, f"bold {result.style}" if result.style and not number else ""))


def print_one_of(result: Result, table: Table, console: Console, *, whole: bool = False) -> None:
    """Print a table of the result after an empty line, under its title if another table has the same columns."""
    alike = Counter(tuple(column.name for column in one.columns) for one in result.tables)
    console.print()
    if alike[tuple(column.name for column in table.columns)] > 1:
        console.print(styled(table.title, "bold"))
    print_table_of(table, console, whole=whole)


def print_code(console: Console, heading: str, text: str) -> None:
    """Print what is to be copied: lines are not wrapped."""
    console.print(styled(f"\n{heading}\n", "bold"))
    console.print(styled(text), soft_wrap=True)


def print_table_of(table: Table, console: Console, *, whole: bool = True) -> None:
    """Print a table; a narrow console gets the columns that matter most, and says which it lacks."""
    brief, rows = None if whole else table.brief, table.texts
    if brief is not None:
        rows = [rows[number] for number in brief]
    least = [_least_width(column, [row[number] for row in rows]) for number, column in enumerate(table.columns)]
    kept = list(range(len(table.columns)))
    while not (fits := sum(least[number] + 1 for number in kept) - 1 <= console.width):
        droppable = [number for number in kept if table.columns[number].rank]
        if not droppable:
            break
        kept.remove(max(droppable, key=lambda number: table.columns[number].rank))
    console.print(_drawn(table.columns, rows, kept, least if fits else None))
    names = ", ".join(column.name for number, column in enumerate(table.columns) if number not in kept)
    notes = [table.brief_note if brief is not None else "", table.note]
    notes += [f"Not shown, for lack of width: {names}."] if names else []
    if note := " ".join(filter(None, notes)):
        console.print(styled(note, "dim"))


def _least_width(column: Column, texts: Sequence[str]) -> int:
    """Characters that a column takes with its names folded as far as they may be; some letters take two places."""
    from rich.cells import cell_len

    widest = max(cell_len(text) for text in (column.name, *texts))
    return min(widest, NAME_WIDTH) if column.left else widest


def _drawn(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], kept: Sequence[int], least: Sequence[int] | None
) -> RichTable:
    """The kept columns of the table. `least`: their widths, where they fit and only names are folded; None: figures are
    folded too."""
    drawn = plain_table()
    drawn.show_header = any(one.name for one in columns)
    for number in kept:
        name = columns[number].name
        if columns[number].left:
            drawn.add_column(name, overflow="fold", min_width=None if least is None else least[number])
        else:
            drawn.add_column(name, justify="right", overflow="fold", no_wrap=least is not None)
    for row in rows:
        drawn.add_row(*(styled(row[number], STYLES.get(row[number], "")) for number in kept))
    return drawn


def print_caveats(console: Console, caveats: Iterable[Caveat]) -> None:
    """Print each caveat with its code, what it means and what to do about it."""
    print_bullets(console, "Caveats", [fmt.clean(caveat.sentence()) for caveat in caveats])


def codes_line(codes: Sequence[str]) -> list[str]:
    """The codes of caveats that do not change the verdict, as a line; none where there are none."""
    codes = list(dict.fromkeys(codes))
    more = f", {len(codes) - MOST_CODES} more" if len(codes) > MOST_CODES else ""
    return [f"{', '.join(codes[:MOST_CODES])}{more} (in words: loaderbench show RUN --caveats)"] if codes else []
