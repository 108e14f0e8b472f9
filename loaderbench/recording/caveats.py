"""Findings as records hold them: a code of the table of findings with its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from loaderbench.findings.row import INFORMATION, Severity
from loaderbench.findings.table import FINDINGS, words
from loaderbench.plain import Json


@dataclass(frozen=True)
class Caveat:
    """Something a reader must know before trusting a figure.

    Raises:
        ValueError: the code is no caveat of the table of findings.
    """

    code: str
    details: Mapping[str, Json] = field(default_factory=dict)
    """The figures and names that its words use."""
    severity: Severity = INFORMATION
    """`changes the verdict`, `limits a figure` or `for your information`; follows from the code."""
    message: str = ""
    """What it means, in words."""
    hint: str = ""
    """What to do about it; empty where nothing can be done."""

    def __post_init__(self) -> None:
        row = FINDINGS.get(self.code)
        if row is None or row.severity is None:
            raise ValueError(f"unknown caveat '{self.code}'")
        object.__setattr__(self, "severity", row.severity)

    def same_as(self, other: Caveat) -> bool:
        """Whether both say the same, whatever their words."""
        return (self.code, dict(self.details)) == (other.code, dict(other.details))

    def worded(self) -> Caveat:
        """Return it with its words; a caveat that was stored as a sentence keeps it."""
        if self.message:
            return self
        return replace(self, message=words(self.code, self.details), hint=FINDINGS[self.code].hint)

    def text(self) -> str:
        """Return what it means and what to do about it: `message: hint`."""
        worded = self.worded()
        return f"{worded.message}: {worded.hint}" if worded.hint else worded.message

    def sentence(self) -> str:
        """Return `code: message: hint`, for a line."""
        return f"{self.code}: {self.text()}"


@dataclass(frozen=True)
class Reason:
    """Why a verdict is undetermined or mixed, or a trace incomplete; a note on a watched script or on a comparison."""

    code: str
    details: Mapping[str, Json] = field(default_factory=dict)

    def text(self) -> str:
        """Return its words."""
        return words(self.code, self.details)
