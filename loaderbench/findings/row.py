"""What a row of the table of findings holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from loaderbench.plain import Json

Details = Mapping[str, Json]
"""Name → figure or text: what a finding's words use. Advice has its change of the case under `change`."""
Words = str | tuple[str, ...] | Callable[[Details], str]
Severity = Literal["changes the verdict", "limits a figure", "for your information"]
VERDICT: Severity = "changes the verdict"
FIGURE: Severity = "limits a figure"
INFORMATION: Severity = "for your information"


@dataclass(frozen=True)
class Row:
    """One finding: its code and everything that is said about it."""

    code: str
    words: Words
    """A text in the style of `str.format`, with the formats of findings/table.py. Several: the one with the fewest
    unknown figures is used, the first of equals. A function chooses the text by the details,
    where the sentence branches further."""
    hint: str = ""
    """What to do about it; empty if nothing can be done, or if the words say it."""
    examples: tuple[Details, ...] = ({},)
    """Details as its makers give them, with each set of names that they use."""
    choices: Mapping[str, Mapping[Json, str]] = field(default_factory=dict)
    """Name of a detail → value → text that replaces it; a value that is not here stands for itself."""
    severity: Severity | None = None
    """What it changes, for caveats only."""
    remark: str = ""
    """What the reference adds: when it is reported, or what it may mean."""
