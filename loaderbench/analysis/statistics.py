"""Resampling, isotonic fit and the two stopping rules. Pure functions of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from loaderbench.recording.record import Estimate

NUM_DRAWS = 2000
_SEED = 20191
BURST = 1.05
"""Leading rates belong to a burst while they exceed the second half by this factor, and by three times its spread."""
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""97.5 % quantiles of Student's t for 1 to 15 degrees of freedom (standard tables, e.g. NIST/SEMATECH 1.3.6.7.2)."""


def t_quantile(degrees: int) -> float:
    """97.5 % quantile of Student's t; beyond the table its expansion (Abramowitz & Stegun 26.7.5, exact to 0.03 %)."""
    if degrees < 1:
        return float("inf")
    if degrees <= len(T_975):
        return T_975[degrees - 1]
    return 1.95996 + 2.37227 / degrees + 2.8225 / degrees**2


def settled(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rates in slices of time without a first burst; it is looked for in the first half."""
    half = len(rates) // 2
    later = rates[half:]
    spread = float(later.std(ddof=1)) if len(later) > 1 else 0.0
    slow = rates[:half] <= max(BURST * later.mean(), later.mean() + 3 * spread)
    return rates[int(slow.argmax()) if slow.any() else half :]


def surely(values: NDArray[np.float64]) -> float:
    """The low end of the 95 % interval of their mean, by Student's t; a single value itself."""
    n = len(values)
    spread = float(values.std(ddof=1)) if n > 1 else 0.0
    return float(values.mean()) - (t_quantile(n - 1) * spread / n**0.5 if n > 1 else 0.0)


@dataclass(frozen=True)
class Blocks:
    """Sums over blocks of consecutive steps."""

    sums: NDArray[np.float64]
    """[num_blocks, K] of the K quantities."""
    steps: NDArray[np.float64]
    """[num_blocks] number of steps in each."""
    segment: NDArray[np.int64]
    """[num_blocks] index of the segment that each was cut from."""

    def __len__(self) -> int:
        return len(self.steps)

    def means(self) -> NDArray[np.float64]:
        """[K] Σ quantity ÷ Σ steps."""
        return np.asarray(self.sums.sum(axis=0) / self.steps.sum())

    def half_widths(self) -> NDArray[np.float64]:
        """[K] of the means' 95 % intervals; inf for fewer than two blocks.

        The larger of two: t(n − 1) standard errors over the n blocks, and t(1.5 · (m − 1)) over the m segments.
        Blocks of one segment may be far from independent (the machine is slower for a round; a queue
        remembers for longer than a block), and only the segments show that. t(m − 1) would be too wide for a
        maximum of two: with 1.5 times the degrees of freedom 3 to 6 segments cover 91 to 98 %, where blocks
        alone go down to 74 % (docs/validation.md, `Intervals`). The ratio estimator's variance comes from its
        residuals (Cochran, Sampling Techniques, 6.4).
        """
        if len(self) < 2:
            return np.full(self.sums.shape[1], np.inf)
        left = self.sums - self.means() * self.steps[:, None]
        names, where = np.unique(self.segment, return_inverse=True)
        by_segment = np.zeros((len(names), left.shape[1]))
        np.add.at(by_segment, where, left)
        width = _standard_error(left, self.steps.sum()) * t_quantile(len(left) - 1)
        if len(names) > 1:
            wide = _standard_error(by_segment, self.steps.sum()) * t_quantile(max(2, 3 * (len(names) - 1) // 2))
            width = np.maximum(width, wide)
        return width


def _standard_error(residuals: NDArray[np.float64], total_steps: float) -> NDArray[np.float64]:
    n = len(residuals)
    return np.asarray(np.sqrt((residuals**2).sum(axis=0) * n / (n - 1)) / total_steps)


def blocks_of(
    segments: Sequence[Sequence[NDArray[np.float64]]], round_steps: int = 1, blocks_per_segment: int = 4
) -> Blocks:
    """Cut each segment's steps into up to `blocks_per_segment` blocks of consecutive steps.

    `segments`: for each, K arrays of one value a step. Steps next to each other are correlated (a queue
    remembers), so the block, not the step, is resampled. `round_steps`: steps in which all workers hand over
    once; they do so in bursts, and a block holds whole rounds, so that its ends do not matter.
    """
    sums: list[NDArray[np.float64]] = []
    steps, numbers = [], []
    for number, quantities in enumerate(segments):
        table = np.stack(quantities, axis=1)
        if len(table) == 0:
            continue
        rounds = max(1, len(table) // round_steps)
        whole = np.array_split(np.arange(rounds) * round_steps, min(blocks_per_segment, rounds))
        for part in np.split(table, [int(first[0]) for first in whole[1:]]):
            sums.append(part.sum(axis=0))
            steps.append(len(part))
            numbers.append(number)
    return Blocks(np.array(sums, dtype=np.float64), np.array(steps, dtype=np.float64), np.array(numbers))


@lru_cache(maxsize=32)
def _weights(n: int, stream: int, num_draws: int) -> NDArray[np.float64]:
    """[num_draws, n] how often each of n blocks is drawn. Kept, since many runs are judged with the same."""
    generator = np.random.default_rng([_SEED, stream])
    weights: NDArray[np.float64] = generator.multinomial(n, np.full(n, 1 / n), size=num_draws).astype(np.float64)
    weights.flags.writeable = False
    return weights


def draws_of_mean(blocks: Blocks, stream: int, num_draws: int = NUM_DRAWS) -> NDArray[np.float64]:
    """Bootstrap draws [num_draws, K] of Σ quantity ÷ Σ steps, resampling blocks with replacement.

    The draws' deviations are stretched to the half-width of `Blocks.half_widths`, since the plain bootstrap
    of few blocks is too narrow (Davison & Hinkley, Bootstrap Methods, 2.3: the resampled variance is (n−1)/n
    of s²) and knows nothing of segments. `stream` names the arm, so that arms are drawn independently and a
    second call gives the same draws. A single block gives its own value without spread: the caller treats
    n = 1 as unknown width.
    """
    n = len(blocks)
    centre = blocks.means()
    if n < 2:
        return np.tile(centre, (num_draws, 1))
    weights = _weights(n, stream, num_draws)
    drawn = (weights @ blocks.sums) / (weights @ blocks.steps)[:, None]
    left = blocks.sums - centre * blocks.steps[:, None]
    plain = 1.96 * _standard_error(left, blocks.steps.sum()) * np.sqrt((n - 1) / n)
    # Without spread there is nothing to stretch; an unknown value (NaN) stays unknown.
    stretch = np.divide(blocks.half_widths(), plain, out=np.ones_like(plain), where=plain > 0)
    # A mean time cannot fall below zero, however stretched.
    return np.asarray(np.maximum(centre + (drawn - centre) * stretch, centre * 1e-3))


def interval(
    value: float, draws: NDArray[np.float64], unit: str, n: int, method: str = "block bootstrap, 95 %"
) -> Estimate:
    """Percentile interval of the draws, made to contain the value."""
    low, high = np.percentile(draws, [2.5, 97.5])
    return Estimate(float(value), float(min(low, value)), float(max(high, value)), unit, n, method)


def half_width_fraction(durations: Sequence[NDArray[np.float64]], round_steps: int = 1) -> float:
    """Half-width of the 95 % interval of the mean step time ÷ the mean; inf for fewer than two blocks.

    `durations`: the steps of each segment. `round_steps`: as for `blocks_of`. In closed form, cheap enough to
    decide after each round.
    """
    blocks = blocks_of([[segment] for segment in durations], round_steps)
    return float(blocks.half_widths()[0] / blocks.means()[0]) if len(blocks) else float("inf")


def pool_adjacent_violators(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least-squares non-decreasing fit along the last axis (Barlow et al. 1972), each value weighing the same.

    [..., K] → [..., K]; K is small (the arms). Max-min form: fit_i = max_{a ≤ i} min_{b ≥ i} mean(a..b).
    """
    values = np.asarray(values, dtype=np.float64)
    size = values.shape[-1]
    sums = np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)
    fitted = np.empty_like(values)
    for i in range(size):
        best = None
        for a in range(i + 1):
            least = np.minimum.reduce([(sums[..., b + 1] - sums[..., a]) / (b + 1 - a) for b in range(i, size)])
            best = least if best is None else np.maximum(best, least)
        fitted[..., i] = best
    return fitted


def is_steady(
    called_ns: NDArray[np.int64],
    returned_ns: NDArray[np.int64],
    ready_ns: NDArray[np.int64] | None,
    depth: int,
    num_workers: int = 1,
) -> bool:
    """Whether a loader's queue has become steadily full or steadily empty.

    [N] each: when `next()` was called and returned, and when the batch was complete (None where the
    loader cannot tell); `depth`: batches that the queue can hold. Compares the two halves of the last steps;
    a half is at least 3 steps and half the queue, and whole rounds of the workers, since these hand over their
    batches in bursts. With ages (returned − ready): a draining queue hands over ever younger batches, a
    filling one ever older; a drift below a tenth of a step for each step is steady. Without ages: the mean
    waits of both halves differ by at most a tenth of the step.
    """
    half = -(-max(3, depth // 2) // num_workers) * num_workers
    if len(called_ns) < 2 * half:
        return False
    called, returned = called_ns[-2 * half :], returned_ns[-2 * half :]
    step = float(called[-1] - called[0]) / (2 * half - 1)
    if ready_ns is None:
        signal, allowed = returned - called, 0.1 * step
    else:
        signal, allowed = returned - ready_ns[-2 * half :], 0.1 * step * half
    return bool(abs(float(signal[half:].mean() - signal[:half].mean())) <= max(allowed, 200_000.0))
