"""The ledger: what was predicted and then measured. It is no file of its own: each entry stands in a stored run or
study, and is read from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from loaderbench.recording.facts import Environment

LedgerKind = Literal["epoch", "validation", "training", "gain", "whatif", "memory", "fit", "split"]
"""`epoch`, `validation`, `training`: of `forecast --check`; `gain`: of advice, by `run --verify`; `whatif`:
the step of a run as `whatif` predicted it, by the first later run of that; `memory`: peaks by
`model memory`; `fit`: largest batches by `model fit`; `split`: the finish of a split batch by `model split`."""
LEDGER_KINDS: tuple[LedgerKind, ...] = get_args(LedgerKind)
Unit = Literal["s", "ratio", "bytes", "images"]


@dataclass(frozen=True)
class Entry:
    """One prediction beside its measurement."""

    kind: LedgerKind
    source_id: str
    """The run or study that holds both."""
    at: str
    """When it began. UTC, ISO 8601."""
    what: str
    """A few words."""
    unit: Unit
    predicted: float
    low: float | None
    """Of the prediction's interval; None where it has none."""
    high: float | None
    measured: float
    environment: Environment | None
    """The machine; None where an older version did not store it."""
    score: float | None = None
    """Of an epoch or a validation: |ln(measured ÷ predicted)| ÷ (the run's own half width on that side +
    SPREAD_FLOOR of analysis/forecast.py). What later intervals are calibrated with."""
    emulated: bool = False
    """Of an epoch or a validation: whether an emulated device took its steps."""

    @property
    def error_fraction(self) -> float:
        """Predicted ÷ measured − 1: positive if the prediction was too high."""
        return self.predicted / self.measured - 1

    @property
    def held(self) -> bool | None:
        """Whether the measured value lies within the interval; None without one."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class LedgerScore:
    """How good the predictions of one kind were."""

    kind: LedgerKind
    num: int
    median_error_fraction: float
    """Of the errors without their sign."""
    p90_error_fraction: float | None
    """Value below which 90 % of the errors without their sign lie, on the line between the two nearest ones; None below
    10 entries, whose 90 % would be the largest one."""
    bias_fraction: float
    """Median of the errors with their sign."""
    num_intervals: int
    num_held: int
    """Of them those that held."""
    coverage_fraction: float | None
    """Held ÷ all intervals; None without any."""


@dataclass(frozen=True)
class Ledger:
    """Entries, oldest first, and a score for each kind that has any."""

    entries: tuple[Entry, ...]
    scores: Mapping[LedgerKind, LedgerScore]
    num_elsewhere: int = 0
    """Entries of other machines, and of unknown ones, that were left out."""
    num_unreadable: int = 0
    """Runs and studies that could not be read: what they hold is missing here."""


@dataclass(frozen=True)
class Collected:
    """What a store holds."""

    entries: tuple[Entry, ...]
    """Of all machines, oldest first."""
    num_unreadable: int
    """Runs and studies that could not be read."""
