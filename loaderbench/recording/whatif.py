"""`loaderbench whatif`: what a stored run would take if something were another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from loaderbench.cases.case import Case
from loaderbench.cases.options import Price
from loaderbench.recording.caveats import Reason
from loaderbench.recording.facts import Environment
from loaderbench.recording.record import Bottleneck, Cause, Cost, Estimate, Removable

Missing = Literal["interval", "wanted"]
"""What can be unknown."""

# -- facts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WhatifAsked:
    """What is another one. None: it stays."""

    workers: int | None = None
    prefetch: int | None = None
    decoder: str | None = None
    device: str | None = None
    """As it was given: an emulated device, or the time of a step."""
    storage: str | None = None
    """A rate, a factor, or the id of a run."""
    ranks: int | None = None


@dataclass(frozen=True)
class RanksThen:
    """Several ranks, each of them this run, in step with each other."""

    ranks: int
    alone_s: Estimate
    """Seconds a step of one that waits for no other."""
    waits_fraction: Estimate
    """Of a step, the part by which waiting for the slowest rank makes it longer."""


@dataclass(frozen=True)
class Limit:
    """What would limit it then."""

    bottleneck: Bottleneck
    joint: tuple[Cause, ...]
    gains: Mapping[Removable, Estimate]
    """Cause → how many times as fast it would be without that, beyond the change."""
    joint_gain: Estimate | None = None


@dataclass(frozen=True)
class WhatifFacts:
    """One prediction, as it was made. It is not made anew by later rules: what was measured since must not change
    it."""

    source_id: str
    """The run."""
    case: Case
    """Of the run."""
    environment: Environment | None
    asked: WhatifAsked
    samples_per_step: float
    now_s: Estimate
    """Seconds a step of the run as it was."""
    then_s: Estimate
    """Of the changed one; of each rank where there are several."""
    gain: Estimate
    """`now_s` ÷ `then_s`."""
    limit: Limit
    residual: float
    """Step of the run by the model ÷ measured, less 1."""
    held_out: bool
    """Whether the residual is of rounds that were not fitted."""
    assumed: tuple[Reason, ...] = ()
    ranks: RanksThen | None = None
    """None: one rank."""
    wanted: Case | None = None
    """The case that a run of exactly this would have; None where no run can be one."""
    missing: Mapping[Missing, str] = field(default_factory=dict)
    """What is None → why."""
    price: Price | None = None
    """Of the machine, where it was given."""


# -- findings --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pace:
    step_s: Estimate
    samples_per_s: Estimate


@dataclass(frozen=True)
class Whatif:
    """The figures of docs/whatif.md."""

    source_id: str
    asked: WhatifAsked
    now: Pace
    then: Pace
    """Of all ranks together, where there are several."""
    gain: Estimate
    """Samples a second then ÷ now."""
    ranks: RanksThen | None
    limit: Limit
    residual: float
    held_out: bool
    assumed: tuple[str, ...]
    """What was assumed, in sentences."""
    wanted: Case | None
    missing: Mapping[Missing, str]
    price: Price | None = None
    saves: Cost | None = None
    """For the same work, of a machine at that price; less than nothing where it is slower. Null without a price, and
    where there are several ranks, each of which has a machine."""
