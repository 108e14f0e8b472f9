"""What a study says on one screen of a terminal: what fits, and how to see the rest."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from loaderbench.reporting.console import Console, print_bullets, print_code, print_head, print_one_of, styled
from loaderbench.reporting.result import Result, Table

SCREEN_LINES, SCREEN_COLUMNS = 25, 80
FEWEST_ROWS = 3
"""Rows of the first table that are worth a table."""
FIRST = ("What to do", "What it costs")
"""Headings of remarks that go before tables: what helps, and what was asked for."""
SENTENCES = 2
"""Of each answer, if all of them take more than half of the screen."""


def room_on(console: Console) -> int:
    """Return the lines of a screen; more of them if the terminal is so narrow that they wrap."""
    return max(SCREEN_LINES, SCREEN_LINES * SCREEN_COLUMNS // console.width)


def print_on_a_screen(result: Result, console: Console, rest: str) -> None:
    """Print the answer and, while there is room, what to do, the first table, remarks and further tables.

    Args:
        rest: the command that prints all of it.
    """
    room = room_on(console)
    head = _captured(console, partial(print_head, result, console))
    if _height(head) > room // 2:
        brief = replace(result, answer=[_first_sentences(line) for line in result.answer])
        head = _captured(console, partial(print_head, brief, console, one_line=True))
    left = room - _height(head) - 1
    parts: list[tuple[int, str]] = []
    """(rank, text) in the order from top to bottom: those of a low rank are printed first, while there is room."""
    tables = [table for table in result.tables if table.brief is None or table.brief]
    for number, table in enumerate(tables):
        parts.append((3 if number else 1, _captured(console, partial(print_one_of, result, table, console))))
    for heading, lines in result.remarks:
        rank = 0 if heading in FIRST else 2
        parts.append((rank, _captured(console, partial(print_bullets, console, heading, lines))))
    parts += [(0, _captured(console, partial(print_code, console, *one))) for one in result.code]
    taken: dict[int, str] = {}
    for place in sorted(range(len(parts)), key=lambda place: parts[place][0]):
        rank, text = parts[place]
        if _height(text) > left and rank == 1:
            text = _shorter(result, tables[0], console, left)
        if 0 < _height(text) <= left:
            taken[place] = text
            left -= _height(text)
    console.file.write(head + "".join(taken[place] for place in sorted(taken)))
    hidden = sum(_height(text) for _, text in parts) - sum(map(_height, taken.values()))
    if hidden:
        console.print(styled(f"{hidden} more line{'s' * (hidden != 1)}: {rest}", "dim"))


def _shorter(result: Result, table: Table, console: Console, left: int) -> str:
    """Return the first rows of the table that fit, without its note; empty if they are fewer than FEWEST_ROWS."""
    rows = list(range(len(table.rows))) if table.brief is None else list(table.brief)
    while len(rows) >= FEWEST_ROWS:
        cut = replace(table, brief=rows, brief_note="", note="")
        text = _captured(console, partial(print_one_of, result, cut, console))
        if _height(text) <= left:
            return text
        rows = rows[: -max(1, _height(text) - left)]
    return ""


def _first_sentences(line: str) -> str:
    return " ".join(re.split(r"(?<=[.;]) (?=[A-Z])", line)[:SENTENCES])


def _captured(console: Console, write: Callable[[], None]) -> str:
    """Return what is printed, with its colours."""
    with console.capture() as capture:
        write()
    return capture.get()


def _height(text: str) -> int:
    return text.count("\n")
