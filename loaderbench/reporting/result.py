"""What every command says: an answer, tables, remarks under headings, figures. `console`, `html`, `markdown` and `csv`
show any of it, and know no command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from loaderbench.recording.record import Estimate, Range
from loaderbench.reporting import format as fmt

if TYPE_CHECKING:
    from loaderbench.reporting.figures import Figure

Cell = str | int | float | Estimate | Range | None
"""A text is shown as it is, None as a dash, anything else in the unit of its column."""
Row = Sequence[Cell]
Section = tuple[str, Sequence[str]]
"""(heading, lines)"""


def _scaled(scale: float, value: float) -> str:
    return fmt.number(value * scale)


SCALES: Mapping[str, float] = {"ms": 1e3, "MiB": 2**-20, "GFLOP": 1e-9}
"""Unit that every value of a column is shown in, without its sign → its number in one of SI's."""
SHOW: Mapping[str, Callable[[float], str]] = {
    "": lambda value: f"{value:,}" if isinstance(value, int) else fmt.number(value),
    "s": fmt.duration,
    "bytes": fmt.size,
    "bytes/s": lambda value: fmt.size(value, "/s"),
    "memory": fmt.memory,
    "%": fmt.percent,
    "0.1 %": lambda value: fmt.percent(value, decimals=1),
    "×": lambda value: f"{value:.2f}×",
    **{unit: partial(_scaled, scale) for unit, scale in SCALES.items()},
}
"""Unit of a column → how a value is shown. Values are in SI units, shares are fractions; the unit is the shown one."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    unit: str = ""
    """A key of SHOW."""
    left: bool = False
    """Whether it holds names, not figures."""
    rank: int = 0
    """A narrow terminal leaves out the column of the highest rank first; those of 0 stay."""
    definition: str = ""
    """Name of its definition in the report's method."""
    show: Callable[[Any], str] | None = None
    """Its own way to show a value, where its unit's does not do."""

    def shown(self, cell: Cell) -> str:
        """The text of a cell."""
        if cell is None:
            return fmt.MISSING
        if isinstance(cell, str):
            return cell
        if self.show is not None:
            return self.show(cell)
        show = SHOW[self.unit]
        return fmt.with_interval(cell, show) if isinstance(cell, Estimate | Range) else show(cell)


@dataclass(frozen=True)
class Table:
    """Values in rows and columns."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    note: str = ""
    """What its columns mean."""
    brief: Sequence[int] | None = None
    """Numbers of the rows that a terminal shows where not all are asked for; None: all; empty: not even the table."""
    brief_note: str = ""
    """Which these are, and how to see the others."""

    @property
    def texts(self) -> list[list[str]]:
        """All rows as text."""
        return [[column.shown(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]


def names_and_values(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    """A table without headings: a name and a text in each row."""
    return Table(title, (Column("", left=True), Column("", left=True)), rows)


@dataclass(frozen=True)
class Result:
    """What was found, ready to be shown."""

    title: str
    """What it is about."""
    settings: Sequence[str]
    """What was asked for, in a few words each."""
    answer: Sequence[str]
    """The answer in sentences; the first says it all."""
    tables: Sequence[Table] = ()
    sections: Sequence[Section] = ()
    """Remarks under their headings; those without lines are not shown."""
    code: Sequence[tuple[str, str]] = ()
    """(heading, what to copy into a shell or a script)"""
    draw: Callable[[], Sequence[Figure]] = field(default=tuple, repr=False)
    """Makes its figures, where they are shown."""
    style: str = ""
    """Colour of its answer in a terminal."""

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        from loaderbench.reporting.piece import html  # late: it draws

        return html(self)

    @property
    def headline(self) -> str:
        return self.answer[0]

    @property
    def remarks(self) -> list[Section]:
        """The sections that have lines."""
        return [(heading, list(lines)) for heading, lines in self.sections if lines]
