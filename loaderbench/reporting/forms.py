"""A result in the forms that other programs take: Markdown, CSV, HTML."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loaderbench.recording.record import Estimate, Range
from loaderbench.reporting.console import make_console, print_result
from loaderbench.reporting.csv import Value, csv_rows
from loaderbench.reporting.markdown import section
from loaderbench.reporting.piece import html
from loaderbench.reporting.result import SCALES, Cell, Result, Table


def markdown(result: Result) -> str:
    """The answer, the tables and the remarks as Markdown."""
    return "\n".join(section(result, result.remarks, result.answer)).strip() + "\n"


def csv(result: Result) -> str:
    """Every table with its title above it, a blank line between them. Values are in the unit that the heading names,
    else in SI units; shares are fractions; an interval has columns of its own."""
    return "\n".join(csv_rows([table.title], _csv_rows(table)) for table in result.tables)


def _csv_rows(table: Table) -> list[list[Value]]:
    wide = [
        any(isinstance(row[number], Estimate | Range) for row in table.rows) for number in range(len(table.columns))
    ]
    head: list[Value] = []
    for column, has_interval in zip(table.columns, wide, strict=True):
        name = column.name
        if column.unit in SCALES and column.unit not in name:
            name = f"{name}, {column.unit}"
        head += [name, f"{name}, low", f"{name}, high"] if has_interval else [name]
    rows = [head]
    for row in table.rows:
        cells: list[Value] = []
        for cell, column, has_interval in zip(row, table.columns, wide, strict=True):
            cells += _values(cell, SCALES.get(column.unit, 1))[: 3 if has_interval else 1]
        rows.append(cells)
    return rows


def _values(cell: Cell, scale: float) -> list[Value]:
    """(value, low, high)"""
    values = (cell.value, cell.low, cell.high) if isinstance(cell, Estimate | Range) else (cell, None, None)
    return [value if value is None or isinstance(value, str) else value * scale for value in values]


@dataclass(frozen=True)
class Display(Result):
    """A result that `print` writes as a terminal does."""

    def __str__(self) -> str:
        """Return what a terminal of 100 columns shows."""
        with io.StringIO() as stream:
            print_result(self, make_console(file=stream, width=100, plain=True), whole=True)
            return stream.getvalue()


FORMS: Mapping[str, Callable[[Result], str]] = {"md": markdown, "csv": csv, "html": html}
"""Values of `loaderbench show --format`, other than text."""
