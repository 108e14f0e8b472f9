"""What a run would gain without a cause, by replay, with an interval.

The run's batches are drawn anew in blocks of whole rounds of its workers, and its windows, too; the wider of both
intervals counts, by Student's t. What comes from another arm is drawn beside it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loaderbench.analysis.statistics import t_quantile
from loaderbench.cases.arms import Arm
from loaderbench.pipeline.edits import Edited, Removed, without
from loaderbench.pipeline.fit import Fitted
from loaderbench.pipeline.replay import Order, of_ranks, orders, step_s
from loaderbench.pipeline.stages import Stages, Times
from loaderbench.recording.record import Estimate

DRAWS = 60
METHOD = "replay of the run's batches; blocks and windows drawn anew, Student's t, 95 %"
NORMAL = 1.96
RANKS_STREAM = 9
"""Of the random numbers that say where each rank begins."""
COLUMNS_AT_ONCE = 2048
"""Replays of ranks at once: 100 MB, of long recordings 400."""


def longer(most: float) -> Times:
    """[1 + 2 DRAWS] by how much what is not known may be longer: up to `most` times; the value itself is not."""
    part = np.random.default_rng(29).uniform(0.0, 1.0, 1 + 2 * DRAWS)
    part[0] = 0.0
    return np.asarray(most**part)


@dataclass(frozen=True)
class Replays:
    """A fitted run, and its replays in the same draws."""

    fitted: Fitted
    draws: int = DRAWS
    by_batch: bool = False
    """Draw single batches, of a run with too few whole rounds."""

    @cached_property
    def order(self) -> Order:
        return orders(self.fitted.real, self.draws, by_batch=self.by_batch)

    @cached_property
    def now_s(self) -> Times:
        """[1 + 2 draws] seconds a step as it is."""
        return step_s(self.fitted.real, self.order)

    def step_s(self, edited: Edited) -> Times:
        """[1 + 2 draws] seconds a step of an edit. Its arms' means are known no better than by their own windows."""
        return self._as_now(edited, step_s(edited.stages, self.order, self._factors_of(edited)))

    def in_step_s(self, edited: Edited, ranks: int) -> Times:
        """[1 + 2 draws] seconds a step of so many ranks that wait for each other in every step."""
        random, factors, parts = np.random.default_rng(RANKS_STREAM), self._factors_of(edited), []
        several = max(1, COLUMNS_AT_ONCE // ranks)
        for begin in range(0, len(self.order.rows), several):
            order = of_ranks(self.order.part(begin, begin + several), ranks, random)
            of_some = {name: np.repeat(one[begin : begin + several], ranks) for name, one in factors.items()}
            parts.append(step_s(edited.stages, order, of_some, ranks=ranks).reshape(-1, ranks).mean(axis=1))
        return self._as_now(edited, np.concatenate(parts))

    def _factors_of(self, edited: Edited) -> dict[str, Times]:
        factors = {name: self._factors[arm] for name, arm in edited.of_arms.items()}
        for name, drawn in edited.factors.items():
            factors[name] = factors.get(name, 1.0) * drawn[: len(self.order.rows)]
        return factors

    def _as_now(self, edited: Edited, found: Times) -> Times:
        return found if edited.against is None else self.now_s * found / step_s(edited.against, self.order)

    def gain(self, causes: Collection[Removed]) -> Times:
        """[1 + 2 draws] step as it is ÷ without these causes; no cause makes a run faster."""
        return np.maximum(1.0, self.now_s / np.maximum(self.step_s(without(self.fitted, causes)), 1e-12))

    @cached_property
    def _factors(self) -> dict[Arm, Times]:
        found = {}
        for number, (arm, stages) in enumerate(self.fitted.arms.items()):
            deviates = np.random.default_rng(number).standard_normal(len(self.order.rows))
            deviates[0] = 0.0
            found[arm] = np.exp(np.clip(deviates * _spread(stages), -1, 1))
        return found

    def estimate(self, values: Times, unit: str = "ratio", *, own: float = 0.0) -> Estimate:
        """A value with its interval, in logarithms. Of one window of one block nothing tells how far it may be off.
        `own`: half-width, as a part of it, that what is predicted adds by itself."""
        logs, draws, order = np.log(np.maximum(values, 1e-12)), self.draws, self.order
        half = np.inf
        if order.num_blocks > 1:
            half = _half(logs[1 : 1 + draws], order.num_blocks, order.num_blocks - 1)
        if order.num_windows > 1:
            half = max(half, _half(logs[1 + draws :], order.num_windows, max(2, 3 * (order.num_windows - 1) // 2)))
        if not np.isfinite(half):
            return Estimate(float(values[0]), None, None, unit, order.num_blocks, METHOD)
        half = float(np.hypot(half, np.log1p(own)))
        low, high = (float(np.exp(logs[0] + side * half)) for side in (-1, 1))
        return Estimate(float(values[0]), low, high, unit, order.num_blocks, METHOD)


def _half(logs: Times, num: int, degrees: int) -> float:
    return float(t_quantile(degrees) * logs.std() * (num / (num - 1)) ** 0.5)


def _spread(stages: Stages) -> float:
    """Standard error of an arm's mean batch, as a part of it: by its windows, or its batches where it has one."""
    one = stages.batches
    value = one.read + one.prep + one.issue + one.device
    means = np.array([value[stages.window == number].mean() for number in np.unique(stages.window)])
    num = len(means)
    if num == 1:
        return float(value.std() / len(value) ** 0.5 / max(float(value.mean()), 1e-12))
    error = means.std(ddof=1) / num**0.5 * t_quantile(max(2, 3 * (num - 1) // 2)) / NORMAL
    return float(error / max(float(value.mean()), 1e-12))
