"""Compares a stored record with today's: the same facts and rules must give the same record."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.plain import Json
from loaderbench.recording.record import RunRecord

ROUNDING = 1e-9
"""Relative difference that the arithmetic of two processors may make (their vector units add in other orders)."""


@dataclass(frozen=True)
class Difference:
    """A value that today's rules change."""

    place: str
    stored: Json
    today: Json


@dataclass(frozen=True)
class Again:
    """One run or study, judged again."""

    name: str
    rules_version: int | None
    """Version of the rules that judged it; None where there is no record."""
    differences: tuple[Difference, ...] = ()
    only_rounding: bool = False
    """All differences are in the last digits."""
    problem: str | None = None
    """Why it could not be judged."""
    record: RunRecord | None = None
    """The record by today's rules; None for a study, and where there is a problem."""
    folder: str | None = None
    """Where the run is stored."""

    @property
    def same_rules(self) -> bool:
        return self.rules_version == RULES_VERSION

    @property
    def broken(self) -> bool:
        """Whether it could not be judged, or the same rules gave another record from the same facts."""
        return self.problem is not None or (self.same_rules and bool(self.differences) and not self.only_rounding)


def differences(stored: Json, today: Json, place: str = "") -> Iterator[Difference]:
    """The places in which two JSON values differ."""
    if isinstance(stored, dict) and isinstance(today, dict):
        for name in dict.fromkeys([*stored, *today]):
            yield from differences(stored.get(name), today.get(name), f"{place}.{name}" if place else name)
    elif isinstance(stored, list) and isinstance(today, list) and len(stored) == len(today):
        for number, (before, after) in enumerate(zip(stored, today, strict=True)):
            yield from differences(before, after, f"{place}[{number}]")
    elif stored != today:
        yield Difference(place, stored, today)


def only_rounding(found: tuple[Difference, ...]) -> bool:
    """Whether all the differences are in the last digits."""
    return all(
        isinstance(one.stored, int | float)
        and isinstance(one.today, int | float)
        and math.isclose(one.stored, one.today, rel_tol=ROUNDING)
        for one in found
    )
