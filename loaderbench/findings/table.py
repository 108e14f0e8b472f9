"""The table of findings: each code that a record, a study or a trace can hold, and its words.

Formats in the words of a row, besides those of numbers: `%` (no digits after the point, `an unknown part` if unknown),
`MB`, `GB`, `size`, `rate`, `ms`, `duration`, `plural` (an s after all numbers but 1), `flags` and `arguments` (a change
as options of loaderbench, or as arguments of a DataLoader), `finding` (the words of that code with the same details,
without the change of the cache state), `findings` (a list of codes with their details), `shares` (name → fraction),
`range` (the two ends of a range of fractions). The format of a list is what stands between its items.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Mapping
from typing import Any, cast

from loaderbench.cases.case import flags, loader_arguments
from loaderbench.findings import figures
from loaderbench.findings.advice import ADVICE, NOT_VERIFIED, WATCHED_ADVICE
from loaderbench.findings.attach import ATTACH
from loaderbench.findings.caveats import CAVEATS
from loaderbench.findings.missing import (
    CAPACITY_LIMITS,
    CAPACITY_MISSING,
    MODEL_MISSING,
    RANKS_MISSING,
    RUN_MISSING,
    SIZING_MISSING,
    SPLIT_MISSING,
    WATCHED_MISSING,
)
from loaderbench.findings.reasons import COMPARISON_NOTES, EVIDENCE, REASONS, TRACE_FAULTS, WATCHED_NOTES
from loaderbench.findings.row import Details, Row
from loaderbench.findings.whatif import WHATIF_ASSUMED, WHATIF_MISSING
from loaderbench.plain import Json

SECTIONS: Mapping[str, tuple[Row, ...]] = {
    "Caveats": CAVEATS,
    "Reasons": REASONS,
    "Trace faults": TRACE_FAULTS,
    "Advice": ADVICE,
    "Advice for a watched script": WATCHED_ADVICE,
    "Why advice was not verified": NOT_VERIFIED,
    "Evidence": EVIDENCE,
    "Notes on a watched script": WATCHED_NOTES,
    "Notes of a comparison": COMPARISON_NOTES,
    "Limits of a capacity study": CAPACITY_LIMITS,
    "What a what-if assumes": WHATIF_ASSUMED,
    "What attach says of a job": ATTACH,
    "Why a figure is missing": (
        *RUN_MISSING,
        *WATCHED_MISSING,
        *SPLIT_MISSING,
        *RANKS_MISSING,
        *CAPACITY_MISSING,
        *SIZING_MISSING,
        *MODEL_MISSING,
        *WHATIF_MISSING,
    ),
}
FINDINGS: dict[str, Row] = {row.code: row for rows in SECTIONS.values() for row in rows}


def words(code: str, details: Details) -> str:
    """Return the words of a finding; a code that only a newer version knows stands for itself."""
    row = FINDINGS.get(code)
    if row is None:
        return code
    known = _Known(row, details)
    if callable(row.words):
        return row.words(details).format_map(known)
    texts = (row.words,) if isinstance(row.words, str) else row.words
    return min(texts, key=known.num_missing).format_map(known)


def names_in(text: str) -> set[str]:
    """Return the names of the details that a text uses: `change` of `{change[decoder]}`."""
    return {name.partition("[")[0] for _, name, _, _ in string.Formatter().parse(text) if name}


class _Known(dict[str, "_Shown"]):
    """Details by their names, as a text shows them."""

    def __init__(self, row: Row, details: Details) -> None:
        super().__init__()
        self._row, self._details = row, details

    def _is_chosen(self, name: str) -> bool:
        value = self._details.get(name)
        return name in self._row.choices and not isinstance(value, list | dict) and value in self._row.choices[name]

    def num_missing(self, text: str) -> int:
        """Return how many of the details that a text uses are unknown."""
        return sum(not self._has(name) for name in names_in(text))

    def _has(self, name: str) -> bool:
        value = self._details.get(name)
        if isinstance(value, float) and not math.isfinite(value):
            return False
        is_empty = isinstance(value, str | list | dict) and not value
        return self._is_chosen(name) or (value is not None and not is_empty)

    def __missing__(self, name: str) -> _Shown:
        value = self._details.get(name)
        if self._is_chosen(name):
            value = self._row.choices[name][value].format_map(self)
        return _Shown(value, self._details)


class _Shown:
    """A detail in a text."""

    def __init__(self, value: Json, details: Details) -> None:
        self._value, self._details = value, details

    def __getitem__(self, name: str) -> _Shown:
        return _Shown(cast(Mapping[str, Json], self._value)[name], self._details)

    def __format__(self, spec: str) -> str:
        value: Any = self._value
        if spec == "finding":
            return words(value, {**self._details, "change": _without_cache(self._details.get("change"))})
        if value is None:
            return "an unknown part" if spec == "%" else "unknown"
        if spec in FORMATS:
            return FORMATS[spec](value)
        if isinstance(value, list):
            return (spec or ", ").join(map(str, value))
        return format(value, spec)


def _without_cache(change: Json) -> Json:
    return {name: value for name, value in cast(Mapping[str, Json], change or {}).items() if name != "cache"}


def _all_words(findings: list[Mapping[str, Any]]) -> str:
    return "; ".join(words(finding["code"], finding["details"]) for finding in findings)


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "%": lambda value: f"{value:.0%}",
    "MB": lambda value: f"{value / 1e6:,.1f} MB",
    "GB": lambda value: f"{value / 1e9:,.1f} GB",
    "size": figures.size,
    "rate": figures.rate,
    "ms": lambda value: f"{value * 1e3:.2f} ms",
    "duration": figures.duration,
    "plural": lambda value: "s" * (value != 1),
    "flags": flags,
    "arguments": loader_arguments,
    "findings": _all_words,
    "range": lambda ends: f"{ends[0]:.0%}" if ends[1] - ends[0] < 0.005 else f"{ends[0]:.0%} to {ends[1]:.0%}",
    "shares": lambda value: ", ".join(f"{name.replace('_', ' ')} {part:.1%}" for name, part in value.items()),
}
