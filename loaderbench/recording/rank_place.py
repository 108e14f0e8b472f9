"""Which rank of a launch measured, and how its clock stands against rank 0's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RankPlace:
    """One process of a launch."""

    rank: int
    """Over all nodes."""
    ranks: int
    local_rank: int
    """On its node."""
    node: str
    """Host name."""
    launcher: str


@dataclass(frozen=True)
class RankClock:
    """What to add to the rank's clock to have rank 0's, by round trips."""

    offset_s: float
    uncertainty_s: float
    """The truth lies within ± this: half of the shortest round trip."""
    at_ns: int
    """When, on the rank's own clock (perf_counter_ns)."""
