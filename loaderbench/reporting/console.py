"""Building blocks of all terminal output: readable in 80 columns, plain where the output is not a terminal.

Everything printed is a rich `Text`, which ignores markup: the name of a data set `[red]` is printed literally.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from loaderbench.findings.row import VERDICT
from loaderbench.printable import clean_lines
from loaderbench.recording.caveats import Caveat
from loaderbench.reporting import format as fmt

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

BAR_WIDTH = 24
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


def make_console(stderr: bool = False) -> Console:
    """A console that never fails for a character its encoding lacks, and writes nothing that a terminal would obey but
    rich's own colours. rich obeys NO_COLOR and a missing terminal."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class CleanConsole(Console):
        """Here rich's control codes are segments of a kind of their own, and colours are not yet codes."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                text, style, control = segment
                yield segment if control or text.isprintable() else Segment(clean_lines(text), style)

    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return CleanConsole(file=stream, highlight=False, force_jupyter=False)  # a notebook shows each line apart else


def styled(content: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(content, style=style)


def plain_table() -> Table:
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


def print_caveats(console: Console, caveats: Iterable[Caveat], *, whole: bool = True) -> None:
    """Print each caveat with its code, what it means and what to do about it. Not `whole`: those that change the
    verdict so, of the others one line of codes."""
    caveats = list(caveats)
    worded = [caveat for caveat in caveats if whole or caveat.severity == VERDICT]
    lines = [fmt.clean(caveat.sentence()) for caveat in worded]
    others = dict.fromkeys(caveat.code for caveat in caveats if caveat not in worded)
    print_bullets(console, "Caveats", [*lines, *codes_line(list(others))])


def codes_line(codes: Sequence[str]) -> list[str]:
    """The codes of caveats that do not change the verdict, as a line; none where there are none."""
    codes = list(dict.fromkeys(codes))
    more = f", {len(codes) - MOST_CODES} more" if len(codes) > MOST_CODES else ""
    return [f"{', '.join(codes[:MOST_CODES])}{more} (in words: loaderbench show RUN --caveats)"] if codes else []
