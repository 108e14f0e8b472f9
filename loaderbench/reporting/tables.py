"""Tables of a report, and the content of a study that has its own page in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from loaderbench.reporting.figures import Figure

Cells = list[list[str]]


@dataclass(frozen=True)
class Table:
    """Text in rows and columns. A column is (heading, name of its definition in the method, or empty)."""

    title: str
    columns: tuple[tuple[str, str], ...]
    rows: Cells
    num_left: int
    """Number of leading columns that hold names, not figures."""
    note: str = ""


@dataclass(frozen=True)
class Page:
    """What a report shows of a study that has no runs of its own in the store."""

    title: str
    sentence: str
    settings: list[str]
    tables: list[Table] = field(default_factory=list)
    findings: list[tuple[str, list[str]]] = field(default_factory=list)
    """(heading, lines)."""
    figures: list[Figure] = field(default_factory=list)
