"""Figures that carry their bootstrap draws, so that intervals go through every formula."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.statistics import interval
from loaderbench.analysis.steps import ArmSteps
from loaderbench.recording.record import Estimate

Draws = NDArray[np.float64]


@dataclass(frozen=True)
class Quantity:
    """A value with its draws."""

    value: float
    draws: Draws
    n: int
    """Number of independent blocks behind it."""

    @classmethod
    def of(cls, arm: ArmSteps, name: str) -> Quantity:
        """The mean of one of an arm's quantities, seconds a step."""
        return cls(arm.mean(name), arm.drawn(name), arm.num_blocks)

    def __add__(self, other: Quantity | None) -> Quantity:
        """None adds nothing."""
        if other is None:
            return self
        return Quantity(self.value + other.value, self.draws + other.draws, min(self.n, other.n))

    def __sub__(self, other: Quantity) -> Quantity:
        return Quantity(self.value - other.value, self.draws - other.draws, min(self.n, other.n))

    def __truediv__(self, other: Quantity) -> Quantity:
        return Quantity(self.value / other.value, self.draws / other.draws, min(self.n, other.n))

    def __mul__(self, other: Quantity) -> Quantity:
        return Quantity(self.value * other.value, self.draws * other.draws, min(self.n, other.n))

    def scaled(self, factor: float) -> Quantity:
        return Quantity(self.value * factor, self.draws * factor, self.n)

    def clipped(self, low: Quantity | float, high: Quantity | float) -> Quantity:
        """Within the two ends, draw by draw."""
        least, least_draws = (low.value, low.draws) if isinstance(low, Quantity) else (low, low)
        most, most_draws = (high.value, high.draws) if isinstance(high, Quantity) else (high, high)
        value, draws = float(np.clip(self.value, least, most)), np.clip(self.draws, least_draws, most_draws)
        return Quantity(value, draws, self.n)

    def at_least(self, low: float) -> Quantity:
        return Quantity(max(self.value, low), np.maximum(self.draws, low), self.n)

    def at_most(self, other: Quantity) -> Quantity:
        return Quantity(min(self.value, other.value), np.minimum(self.draws, other.draws), self.n)

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The 95 % interval of the draws, made to contain the value."""
        low, high = np.percentile(self.draws, [2.5, 97.5])
        return float(min(low, self.value)), float(max(high, self.value))

    @property
    def low(self) -> float:
        return self.ends[0]

    @property
    def high(self) -> float:
        return self.ends[1]

    def estimate(self, unit: str) -> Estimate:
        return interval(self.value, self.draws, unit, self.n)


def largest(*quantities: Quantity) -> Quantity:
    """The largest, draw by draw."""
    return Quantity(
        max(quantity.value for quantity in quantities),
        np.maximum.reduce([quantity.draws for quantity in quantities]),
        min(quantity.n for quantity in quantities),
    )
