"""A figure and how well it is known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float | None
    """None where the width of the interval is unknown."""
    high: float | None
    unit: str
    n: int
    """Number of independent blocks, rounds or processes behind it."""
    method: str

    @property
    def half_width(self) -> float | None:
        """The larger side of the interval; None where there is none."""
        if self.low is None or self.high is None:
            return None
        return max(self.value - self.low, self.high - self.value)
