"""The part of a record that a line of `list` shows, or that the ledger looks at, read without the rest: a store holds
thousands of records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from loaderbench import plain
from loaderbench.cases.case import Case
from loaderbench.plain import JsonObject
from loaderbench.recording.facts import SCHEMA, Status
from loaderbench.recording.files import parsed
from loaderbench.recording.record import Bottleneck, Estimate, RunRecord, check_figures


@dataclass(frozen=True)
class VerdictLine:
    """The part of a `Verdict` that a line shows."""

    bottleneck: Bottleneck


@dataclass(frozen=True)
class AdviceLine:
    """The part of an `Advice` that tells whether it is of the ledger."""

    measured_speedup: Estimate | None = None


@dataclass(frozen=True)
class AdvisingLine(VerdictLine):
    """The part of a `Verdict` that tells whether it is of the ledger."""

    advice: tuple[AdviceLine, ...] = ()


@dataclass(frozen=True)
class WatchedLine:
    """The part of `WatchedFacts` that a line needs."""

    so_far_s: float | None = None


@dataclass(frozen=True)
class RunLine:
    """The part of a `RunRecord` that a line shows; its fields are the record's."""

    run_id: str
    status: Status
    case: Case
    started_at: str
    throughput: Estimate | None = None
    verdict: VerdictLine | None = None
    watched: WatchedLine | None = None
    tag: str | None = None

    @property
    def so_far_s(self) -> float | None:
        """How long the run had gone on when this was written; None where it had ended."""
        return None if self.watched is None else self.watched.so_far_s


@dataclass(frozen=True)
class LedgerLine(RunLine):
    """The line of a run, with what tells whether it has predictions that were measured."""

    verdict: AdvisingLine | None = None

    @property
    def is_measured(self) -> bool:
        """Whether the gain of a piece of advice was measured."""
        return self.verdict is not None and any(one.measured_speedup is not None for one in self.verdict.advice)


L = TypeVar("L", bound=RunLine)
Wanted = Mapping[str, "Wanted | None"]
"""Names of members; of an object in which only some members are wanted, those."""


def _wanted(kind: type[Any]) -> Wanted:
    """The members that a dataclass is read from."""
    parts = (VerdictLine, AdvisingLine, WatchedLine)
    wanted: dict[str, Wanted | None] = {}
    for name, member in plain.type_hints(kind).items():
        wanted[name] = next((_wanted(part) for part in parts if part in get_args(member)), None)
    return wanted


SHOWN: Mapping[type[RunLine], Wanted] = {kind: {"schema": None, **_wanted(kind)} for kind in (RunLine, LedgerLine)}


def read_line(content: bytes, kind: type[L]) -> L | None:
    """The line of a `run.json` of today's schema. None where it has another schema, is laid out differently from how
    the store writes it, or what the line holds is damaged: then the whole of it must be read."""
    try:
        chosen = members(content.decode().removesuffix("\n"), SHOWN[kind])
        if chosen is None:
            return None
        value: JsonObject = parsed(chosen)
        if value.get("schema") != SCHEMA:
            return None
        line = plain.from_json(kind, value)
        check_figures(line.case, line.throughput, None, value)
    except ValueError:
        return None
    return line


def line_of(record: RunRecord, kind: type[L]) -> L:
    """The line of a record that was read in whole."""
    return plain.from_json(kind, plain.to_json(record))


def members(text: str, wanted: Wanted, indent: str = " ") -> str | None:
    """The JSON object `text` with the wanted members alone, whose values are not checked. None where it is laid out
    differently from how `json_bytes` does it, or has a member twice.

    Each member begins on a line of its own with the `indent` before its name, and those of its value have more. No
    text in JSON holds a line break.
    """
    begin, end = f'{{\n{indent}"', f"\n{indent[1:]}}}"
    if not (text.startswith(begin) and text.endswith(end)):
        return None
    seen: set[str] = set()
    chosen = []
    for member in re.split(f',\n{indent}"', text[len(begin) : -len(end)]):  # twice as fast as str.split here
        name, _, value = member.partition('": ')
        if not _is_closed(value, indent) or name in seen or "\\" in name:
            return None
        seen.add(name)
        if name in wanted:
            inner = wanted[name]
            some = value if inner is None or value == "null" else members(value, inner, f"{indent} ")
            if some is None:
                return None
            chosen.append(f'"{name}": {some}')
    return f"{{{', '.join(chosen)}}}"


def _is_closed(value: str, indent: str) -> bool:
    """Whether the value ends where its member does, by how `json_bytes` lays it out."""
    if "\n" not in value:
        return value != "" and '":' not in value
    return (value[0] == "{" and value.endswith(f"\n{indent}}}")) or (value[0] == "[" and value.endswith(f"\n{indent}]"))
