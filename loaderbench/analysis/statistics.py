"""Resampling, isotonic fit and the two stopping rules. Pure functions of arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loaderbench.recording.types import Estimate

NUM_DRAWS = 2000
_SEED = 20191
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""97.5 % quantiles of Student's t for 1 to 15 degrees of freedom (standard tables, e.g. NIST/SEMATECH 1.3.6.7.2)."""


def t_quantile(degrees: int) -> float:
    """97.5 % quantile of Student's t; beyond the table 1.96 + 2.4 / degrees (within 0.3 % of the exact value)."""
    if degrees < 1:
        return float("inf")
    if degrees <= len(T_975):
        return T_975[degrees - 1]
    return 1.96 + 2.4 / degrees


def blocks_of(segments: Sequence[Sequence[NDArray[np.float64]]], blocks_per_segment: int = 4) -> NDArray[np.float64]:
    """Cut each segment's steps into up to `blocks_per_segment` blocks of consecutive steps.

    `segments`: for each, K arrays of one value a step. Returns [num_blocks, K + 1]: the K sums, then the
    number of steps. Steps next to each other are correlated (a queue remembers), so the block, not the step,
    is resampled.
    """
    rows: list[list[float]] = []
    for quantities in segments:
        table = np.stack(quantities, axis=1)
        if len(table) == 0:
            continue
        for part in np.array_split(table, min(blocks_per_segment, len(table))):
            rows.append([*part.sum(axis=0), len(part)])
    return np.array(rows, dtype=np.float64)


def draws_of_mean(blocks: NDArray[np.float64], stream: int, num_draws: int = NUM_DRAWS) -> NDArray[np.float64]:
    """Bootstrap draws of Σ quantity ÷ Σ steps, resampling blocks with replacement.

    `blocks` [n, K + 1]: K sums of quantities, then the number of steps; returns [num_draws, K]. The draws'
    deviations are widened by t(n−1) ÷ 1.96 · √(n ÷ (n−1)), since the plain bootstrap of few blocks is too
    narrow (Davison & Hinkley, Bootstrap Methods, 2.3: the resampled variance is (n−1)/n of s²). `stream`
    names the arm, so that arms are drawn independently and a second call gives the same draws. A single
    block gives its own value without spread: the caller treats n = 1 as unknown width.
    """
    n = len(blocks)
    centre = blocks[:, :-1].sum(axis=0) / blocks[:, -1].sum()
    if n == 1:
        return np.tile(centre, (num_draws, 1))
    generator = np.random.default_rng([_SEED, stream])
    weights = generator.multinomial(n, np.full(n, 1 / n), size=num_draws)
    totals = weights @ blocks
    drawn = totals[:, :-1] / totals[:, -1:]
    widen = t_quantile(n - 1) / 1.96 * np.sqrt(n / (n - 1))
    # A mean time cannot fall below zero, however widened.
    return np.asarray(np.maximum(centre + (drawn - centre) * widen, centre * 1e-3))


def interval(
    value: float, draws: NDArray[np.float64], unit: str, n: int, method: str = "block bootstrap, 95 %"
) -> Estimate:
    """Percentile interval of the draws, made to contain the value."""
    low, high = np.percentile(draws, [2.5, 97.5])
    return Estimate(float(value), float(min(low, value)), float(max(high, value)), unit, n, method)


def half_width_fraction(durations: Sequence[NDArray[np.float64]]) -> float:
    """Half-width of the 95 % interval of the mean step time ÷ the mean; inf for fewer than two blocks.

    The closed form t(n−1) · s ÷ √n over the blocks' means, cheap enough to decide after each round.
    """
    blocks = blocks_of([[segment] for segment in durations])
    if len(blocks) < 2:
        return float("inf")
    means = blocks[:, 0] / blocks[:, 1]
    mean = float(blocks[:, 0].sum() / blocks[:, 1].sum())
    return float(t_quantile(len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means)) / mean)


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
    called_ns: NDArray[np.int64], returned_ns: NDArray[np.int64], ready_ns: NDArray[np.int64] | None, depth: int
) -> bool:
    """Whether a loader's queue has become steadily full or steadily empty.

    [N] each: when `next()` was called and returned, and when the batch had been complete (None where the
    loader cannot tell); `depth`: batches that the queue can hold. Compares the two halves of the last
    2 · max(3, depth ÷ 2) steps. With ages (returned − ready): a draining queue hands over ever younger
    batches, a filling one ever older; steady is a drift below a tenth of a step for each step. Without ages:
    the mean wait of both halves differs by at most a tenth of the step.
    """
    half = max(3, depth // 2)
    if len(called_ns) < 2 * half:
        return False
    called, returned = called_ns[-2 * half :], returned_ns[-2 * half :]
    step = float(called[-1] - called[0]) / (2 * half - 1)
    if ready_ns is None:
        signal, allowed = returned - called, 0.1 * step
    else:
        signal, allowed = returned - ready_ns[-2 * half :], 0.1 * step * half
    return bool(abs(float(signal[half:].mean() - signal[:half].mean())) <= max(allowed, 200_000.0))
