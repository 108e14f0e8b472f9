"""Resampling, isotonic fit and the two stopping rules. Pure functions of arrays."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from loaderbench.recording.record import Estimate

NUM_DRAWS = 2000
_SEED = 20191
UNBOUNDED = 10.0
"""An upper end beyond this many times the value says nothing: it is given as not bounded."""
SCALES = ("s", "samples/s", "ratio")
"""Units in which a value is never 0, so that multiples of it mean something."""
POOLING_Z = 0.6745
"""75 % quantile of the normal distribution."""
TIGHTEST = 2.0
"""Blocks for each unit of m of a confidence sequence, which is tightest, beside one look, at about five of them."""
FEWEST_SHARED = 3
"""Rounds from which on an arm outside the pool can share something with the others."""
Key = TypeVar("Key", bound=Hashable)
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


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """(value, low, high) of above ÷ below, measured in turns: the geometric mean, and its 95 % interval by Student's t
    over the logarithms."""
    logs = np.log(np.asarray(above, dtype=np.float64) / np.asarray(below, dtype=np.float64))
    low, high = sorted((surely(logs), -surely(-logs)))
    return float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high))


@dataclass(frozen=True)
class Blocks:
    """Sums over blocks of consecutive steps."""

    sums: NDArray[np.float64]
    """[num_blocks, K] of the K quantities."""
    steps: NDArray[np.float64]
    """[num_blocks] number of steps in each."""
    segment: NDArray[np.int64]
    """[num_blocks] index of the segment that each was cut from."""
    turn: NDArray[np.int64]
    """[num_blocks] the round in which each was measured; arms of one round saw the machine in like states."""

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
        width = self.block_widths()
        names, where = np.unique(self.segment, return_inverse=True)
        if len(names) > 1:
            left = self.sums - self.means() * self.steps[:, None]
            by_segment = np.zeros((len(names), left.shape[1]))
            np.add.at(by_segment, where, left)
            wide = _standard_error(by_segment, self.steps.sum()) * t_quantile(max(2, 3 * (len(names) - 1) // 2))
            width = np.maximum(width, wide)
        return width

    def block_widths(self) -> NDArray[np.float64]:
        """[K] the half-widths by the blocks alone; inf for fewer than two."""
        if len(self) < 2:
            return np.full(self.sums.shape[1], np.inf)
        left = self.sums - self.means() * self.steps[:, None]
        return _standard_error(left, self.steps.sum()) * t_quantile(len(left) - 1)

    def of_next_run(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[K] ends of 95 % intervals of the same means in the next run of the same command; NaN for fewer than two
        segments (one segment: two blocks).

        What makes one run slower than the next (other programs, clocks, where the memory lies) lasts longer than a
        segment, so a run's segments do not average it out: the next run's mean is known no better than the mean of one
        more segment. Its interval is t(m − 1) · s · √(1 + 1/m), of the logarithms, since a disturbed step takes a
        multiple; of the values themselves where one is not positive.
        """
        of = self.segment if len(set(self.segment.tolist())) > 1 else np.arange(len(self))
        names, where = np.unique(of, return_inverse=True)
        centre, m = self.means(), len(names)
        if m < 2:
            unknown = np.full(centre.shape, np.nan)
            return unknown, unknown
        sums = np.zeros((m, len(centre)))
        np.add.at(sums, where, self.sums)
        means = sums / np.bincount(where, weights=self.steps)[:, None]
        factor = t_quantile(m - 1) * np.sqrt(1 + 1 / m)
        plain = factor * means.std(axis=0, ddof=1)
        positive = (means > 0).all(axis=0)
        logs = factor * np.log(np.where(positive, means, 1.0)).std(axis=0, ddof=1)
        low = np.where(positive, centre * np.exp(-logs), centre - plain)
        return low, np.where(positive, centre * np.exp(logs), centre + plain)

    def widths_within(self) -> NDArray[np.float64]:
        """[K] the half-widths by the blocks' deviations from the mean of their own segment; 0 where each has one."""
        names, where = np.unique(self.segment, return_inverse=True)
        degrees = len(self) - len(names)
        if degrees < 1:
            return np.zeros(self.sums.shape[1])
        of_segment = np.zeros((len(names), self.sums.shape[1]))
        np.add.at(of_segment, where, self.sums)
        means = of_segment / np.bincount(where, weights=self.steps)[:, None]
        left = self.sums - means[where] * self.steps[:, None]
        error = np.sqrt((left**2).sum(axis=0) * len(self) / degrees) / self.steps.sum()
        return np.asarray(error * t_quantile(degrees))


def _standard_error(residuals: NDArray[np.float64], total_steps: float) -> NDArray[np.float64]:
    n = len(residuals)
    return np.asarray(np.sqrt((residuals**2).sum(axis=0) * n / (n - 1)) / total_steps)


def blocks_of(
    segments: Sequence[Sequence[NDArray[np.float64]]], round_steps: int = 1, blocks_per_segment: int = 4,
    turns: Sequence[int] | None = None, starts: Sequence[NDArray[np.int64] | None] | None = None,
) -> Blocks:  # fmt: skip
    """Cut each segment's steps into up to `blocks_per_segment` blocks of consecutive steps.

    `segments`: for each, K arrays of one value a step. Steps next to each other are correlated (a queue
    remembers), so the block, not the step, is resampled. `round_steps`: steps in which all workers hand over
    once; they do so in bursts, and a block holds whole rounds, so that its ends do not matter. `starts`: of a segment,
    the first step of each of what its blocks hold as a whole instead of such rounds. `turns`: the round in which each
    segment was measured; None: each in its own.
    """
    sums: list[NDArray[np.float64]] = []
    steps, numbers = [], []
    for number, quantities in enumerate(segments):
        table = np.stack(quantities, axis=1)
        if len(table) == 0:
            continue
        rounds = None if starts is None else starts[number]
        if rounds is None:
            rounds = np.arange(max(1, len(table) // round_steps)) * round_steps
        whole = np.array_split(rounds, min(blocks_per_segment, len(rounds)))
        for part in np.split(table, [int(first[0]) for first in whole[1:]]):
            sums.append(part.sum(axis=0))
            steps.append(len(part))
            numbers.append(number)
    segment = np.array(numbers, dtype=np.int64)
    turn = segment if turns is None else np.asarray(turns, dtype=np.int64)[segment]
    return Blocks(np.array(sums, dtype=np.float64), np.array(steps, dtype=np.float64), segment, turn)


@lru_cache(maxsize=32)
def _weights(n: int, stream: int, num_draws: int) -> NDArray[np.float64]:
    """[num_draws, n] how often each of n blocks is drawn. Kept, since many runs are judged with the same."""
    generator = np.random.default_rng([_SEED, stream])
    weights: NDArray[np.float64] = generator.multinomial(n, np.full(n, 1 / n), size=num_draws).astype(np.float64)
    weights.flags.writeable = False
    return weights


@lru_cache(maxsize=4)
def _rounds_in_common(num_draws: int) -> NDArray[np.float64]:
    """[num_draws] standard normal draws of what the arms of a round share: the same for all arms."""
    return np.random.default_rng([_SEED, 2**31]).standard_normal(num_draws)


def draws_of_mean(
    blocks: Blocks, stream: int, num_draws: int = NUM_DRAWS, width: Width | None = None
) -> NDArray[np.float64]:
    """Bootstrap draws [num_draws, K] of Σ quantity ÷ Σ steps, resampling blocks with replacement.

    The draws' deviations are stretched to the half-width of `Blocks.half_widths`, since the plain bootstrap
    of few blocks is too narrow (Davison & Hinkley, Bootstrap Methods, 2.3: the resampled variance is (n−1)/n
    of s²) and knows nothing of segments. `width`: of the first quantity, where the other arms of the rounds tell
    more of it (`widths`); the other quantities follow it by their regression on it. `stream` names the arm, so
    that arms are drawn apart but for what they share, and a second call gives the same draws. A single block gives
    its own value without spread: the caller treats n = 1 as unknown width.

    A first quantity (a time) that deviates by the fraction x is drawn as mean × exp(x), so that it never reaches zero
    and an end of its rate is as far as that of the time; the others keep their proportion to it.
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
    away = (drawn - centre) * stretch
    if width is not None:
        away = _along(away, float(centre[0]), width, stream)
    away = np.divide(away, centre, out=np.zeros_like(away), where=centre != 0)
    longer = np.maximum(away[:, :1], 0.0)
    factors = np.where(away < 0, np.exp(np.minimum(away, 0.0)), 1 + away) * np.exp(longer) / (1 + longer)
    return np.asarray(centre * factors)


def _along(away: NDArray[np.float64], centre: float, width: Width, stream: int) -> NDArray[np.float64]:
    """The deviations with those of the first quantity brought to `width`, its shared part the same in all arms; the
    other quantities move with it as they did. Blocks that are all alike say nothing of other windows: what these may be
    off by is then drawn for itself, of the first quantity alone."""
    first = away[:, 0]
    variance = float((first**2).mean())
    if not variance > 0:
        if not 0 < width.whole < np.inf:
            return away
        alone = np.random.default_rng([_SEED, 2**31, stream]).standard_normal(len(first))
        return np.column_stack([alone * centre * width.whole / 1.96, away[:, 1:]])
    shared = width.shared
    own = first / np.sqrt(variance)
    wanted = np.sqrt(shared) * _rounds_in_common(len(first)) + np.sqrt(1 - shared) * own
    moved = wanted * centre * width.whole / 1.96 - first
    # A part of a step changes by no more than the step: the slope on a step that hardly moved may be anything.
    slopes = np.clip((away * first[:, None]).mean(axis=0) / variance, -1.0, 1.0)
    return np.asarray(away + moved[:, None] * slopes)


# -- what the arms of a round share ------------------------------------------------------------------------


@dataclass(frozen=True)
class Width:
    """95 % half-width of an arm's mean step time, as a fraction of it."""

    whole: float
    own: float
    """What is left of it when that which all arms of a round share is taken out; it is what counts where two arms are
    compared."""

    def beside(self, other: float) -> Width:
        """With another half-width that has nothing to do with it."""
        return Width(float(np.hypot(self.whole, other)), float(np.hypot(self.own, other))) if other else self

    @property
    def shared(self) -> float:
        """The part of the variance that the arm shares with the others of its rounds."""
        return 1.0 - (self.own / self.whole) ** 2 if 0 < self.own < self.whole < float("inf") else 0.0


def widths(arms: Mapping[Key, Blocks], alike: Collection[Key]) -> dict[Key, Width]:
    """The half-widths of each arm's first quantity.

    `alike`: arms fed by one loader. The spread between windows of 3 or 4 rounds is badly known from one arm; where
    theirs agree it is that of all of them (`_pooled`). Elsewhere an arm's own part is what is left after the mean
    deviation of the others that are alike is taken out of each round. An arm that did not move with them has more left
    than it had, and then it shares nothing. What an arm of one window may be off by tell the windows of the others.
    """
    moves = {arm: _by_turn(blocks) for arm, blocks in arms.items()}
    crew = [arm for arm in arms if arm in alike and len(arms[arm]) > 1 and len(moves[arm]) > 1]
    turns = sorted(set.intersection(*(set(moves[arm]) for arm in crew))) if crew else []
    table = np.array([[moves[arm][turn] for turn in turns] for arm in crew])
    pooled = dict(zip(crew, _pooled(table), strict=True)) if len(crew) > 1 and len(turns) > 1 else {}
    found = {}
    for arm, blocks in arms.items():
        alone, within = _fraction(blocks, blocks.half_widths()), _fraction(blocks, blocks.widths_within())
        if (of_pool := pooled.get(arm)) is not None:
            whole, own = (one / len(moves[arm]) ** 0.5 for one in of_pool)
            whole = max(whole, _fraction(blocks, blocks.block_widths()))
            found[arm] = Width(whole, min(whole, max(own, within)))
            continue
        others = [row for row, other in enumerate(crew) if other != arm]
        both = [column for column, turn in enumerate(turns) if turn in moves[arm]]
        own = alone
        if others and len(both) >= FEWEST_SHARED:
            left = np.array([moves[arm][turns[c]] for c in both]) - table[np.ix_(others, both)].mean(axis=0)
            own = max(within, _t_width(float(left.var(ddof=1)), len(both) - 1) / len(both) ** 0.5)
        found[arm] = Width(alone, min(own, alone))
        if len(moves[arm]) == 1 and (of_one := _of_one_window(arms, moves, pooled)) is not None:
            whole, own = max(alone, of_one[0]), max(own, of_one[1])
            found[arm] = Width(whole, min(own, whole))
    return found


def _of_one_window(
    arms: Mapping[Key, Blocks], moves: Mapping[Key, Mapping[int, float]],
    pooled: Mapping[Key, tuple[float, float] | None],
) -> tuple[float, float] | None:  # fmt: skip
    """Half-widths of a single window, whole and own: as those of the pool differ, else as those of the arm that has the
    most. None where no arm has several."""
    known = [one for one in pooled.values() if one is not None]
    most = max(arms, key=lambda arm: len(moves[arm]))
    if known or len(moves[most]) == 1:
        return known[0] if known else None
    width = _fraction(arms[most], arms[most].half_widths()) * len(moves[most]) ** 0.5
    return width, width


def _by_turn(blocks: Blocks) -> dict[int, float]:
    """Round → by how much the steps of the round were longer than the arm's mean, as a fraction of it."""
    names, where = np.unique(blocks.turn, return_inverse=True)
    total = float(blocks.sums[:, 0].sum()) if len(blocks) else 0.0
    if not total > 0:
        return dict.fromkeys(names.tolist(), 0.0)
    left = blocks.sums[:, 0] - blocks.means()[0] * blocks.steps
    by_turn = np.bincount(where, weights=left) * len(names) / total
    return dict(zip(names.tolist(), by_turn.tolist(), strict=True))


def _fraction(blocks: Blocks, half_widths: NDArray[np.float64]) -> float:
    """The first quantity's half-width as a fraction of its mean; inf where one block or none tells of it."""
    if len(blocks) < 2:
        return float("inf")
    mean = float(blocks.means()[0])
    return float(half_widths[0]) / mean if mean > 0 else 0.0


def _t_width(variance: float, degrees: float) -> float:
    """The half-width for one window: as in `Blocks.half_widths`, 1.5 times the degrees of freedom."""
    return float(variance**0.5 * t_quantile(max(2, int(1.5 * degrees))))


def _pooled(table: NDArray[np.float64]) -> list[tuple[float, float] | None]:
    """Each arm's half-widths for one window, whole and own, from deviations [arms, rounds]; None for all arms where
    their spreads do not agree, and for an arm that spreads more than the others.

    A two-way layout: the mean squares between rounds and of the rest give the variance of a window and, of it, what the
    arm does not share with its round. Degrees of freedom after Satterthwaite (1946); where rounds differ by more than
    the rest, those of the rounds, since only they are independent of each other.
    """
    num_arms, num_turns = table.shape
    table = table - table.mean(axis=1, keepdims=True)
    if not _agree(table):
        return [None] * num_arms
    rest = table - table.mean(axis=0)
    degrees = (num_turns - 1, (num_arms - 1) * (num_turns - 1))
    between = num_arms * float((table.mean(axis=0) ** 2).sum()) / degrees[0]
    within = float((rest**2).sum()) / degrees[1]
    parts = between / num_arms, within * (num_arms - 1) / num_arms
    variance = sum(parts)
    if not variance > 0:
        return [(0.0, 0.0)] * num_arms
    known = variance**2 / sum(part**2 / many for part, many in zip(parts, degrees, strict=True))
    if _exceeds(between, within, *degrees):
        known = degrees[0]
    whole, own = (one**0.5 * t_quantile(max(2, int(many))) for one, many in ((variance, known), (within, degrees[1])))
    squares = (table**2).sum(axis=1)
    others = (squares.sum() - squares) / (num_arms - 1)
    return [None if _exceeds(a, b, *degrees) else (whole, own) for a, b in zip(squares, others, strict=True)]


def _agree(table: NDArray[np.float64]) -> bool:
    """Whether the spreads of the rows agree: Levene's test of the distances from the row's median (Brown & Forsythe
    1974), which a few disturbed windows do not mislead."""
    rows, columns = table.shape
    away = np.abs(table - np.median(table, axis=1, keepdims=True))
    means = away.mean(axis=1)
    first, second = rows - 1, rows * (columns - 1)
    between = columns * float(((means - means.mean()) ** 2).sum()) / first
    return not _exceeds(between, float(((away - means[:, None]) ** 2).sum()) / second, first, second)


def _exceeds(large: float, small: float, first: int, second: int) -> bool:
    """Whether one variance exceeds another by an F test at 25 %, the level for a test that decides on pooling
    (Bancroft 1964). The quantile's normal form is Paulson's (Abramowitz & Stegun 26.6.15)."""
    if not small > 0:
        return large > 0
    root, a, b = (large / small) ** (1 / 3), 2 / (9 * first), 2 / (9 * second)
    return bool(((1 - b) * root - (1 - a)) / (b * root**2 + a) ** 0.5 > POOLING_Z)


def interval(
    value: float, draws: NDArray[np.float64], unit: str, n: int, method: str = "block bootstrap, 95 %"
) -> Estimate:
    """Percentile interval of the draws, made to contain the value.

    None for both ends where there is one block and so no spread to go by, and for the high end of a time, a rate or a
    ratio that is not bounded: it reaches UNBOUNDED times the value.
    """
    if n < 2:
        return Estimate(float(value), None, None, unit, n, method)
    low, high = np.percentile(draws, [2.5, 97.5])
    bounded = unit not in SCALES or not high > UNBOUNDED * abs(value)
    return Estimate(float(value), float(min(low, value)), float(max(high, value)) if bounded else None, unit, n, method)


def wider_at_every_look(n: int) -> float:
    """How many times as wide as the interval of one look, of n blocks, one is that holds the truth at all looks
    together, at 95 %: a confidence sequence, the asymptotic one of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas
    (`Time-uniform central limit theory and asymptotic confidence sequences`, Annals of Statistics 52, 2024), whose
    boundary is the normal mixture of Robbins (1970): √(2 (1 + 1/m) ln(√(1 + m) ÷ α)) standard errors, with
    m = n ÷ TIGHTEST. That is 1.5 to 1.7 times for 4 to 200 blocks."""
    m = n / TIGHTEST
    return float(np.sqrt(2 * (1 + 1 / m) * np.log(np.sqrt(1 + m) / 0.05)) / 1.96)


def at_every_look(value: float, end: float, n: int) -> float:
    """An end of a ratio's interval of one look, of n blocks, moved to where it holds at all looks."""
    if not 0 < min(value, end) <= max(value, end) < np.inf:
        return end
    return float(value * (end / value) ** wider_at_every_look(n))


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
