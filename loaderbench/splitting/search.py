"""Which split of a batch ends first, by the times of the members' parts.

`times[d][b]`, in seconds: how long member `d` takes for `b` images, for b from 0 to the batch. `times[d][0]` is 0 (a
member without a part is left out, and its fixed cost with it); infinite where a part does not fit. Members begin
together and share nothing, so a split ends when its last member does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loaderbench.recording.split_times import Split

Times = Sequence[Sequence[float]]
LOOK_AHEAD = (1, 2, 4, 8, 16)
"""Images that the greedy search moves at once, the fewest first."""


def exact(times: Times, batch: int) -> Split | None:
    """The split that ends first; None where none fits. By dynamic programming over the members, O(members · batch²).

    Of splits that end at the same time: the one of fewest members, then that which gives the earlier members more.
    """
    table = _table(times, batch)
    ends = np.where(np.arange(batch + 1) == 0, 0.0, math.inf)
    for row in table:  # ends[n]: the least time for n images by the members so far
        ends = np.array([np.maximum(row[: n + 1], ends[n::-1]).min() for n in range(batch + 1)])
    finish = float(ends[batch])
    if math.isinf(finish):
        return None
    return Split(_fewest_members(table <= finish, batch), finish)


def _fewest_members(allowed: NDArray[np.bool_], batch: int) -> tuple[int, ...]:
    """Sizes of the split among those allowed ([members, batch + 1]) that has the fewest members. There is one."""
    used = np.where(np.arange(batch + 1) == 0, 0.0, math.inf)
    least = [used]  # of the members from the last to the first: least members that make n images
    for row in allowed[::-1]:
        cost = np.where(row, np.minimum(np.arange(batch + 1), 1), math.inf)
        used = np.array([(cost[: n + 1] + used[n::-1]).min() for n in range(batch + 1)])
        least.append(used)
    sizes, left = [], batch
    for member, row in enumerate(allowed):
        mine, others = least[len(allowed) - member], least[len(allowed) - member - 1]
        size = next(k for k in range(left, -1, -1) if row[k] and min(k, 1) + others[left - k] == mine[left])
        sizes.append(size)
        left -= size
    return tuple(sizes)


def greedy(times: Times, batch: int) -> Split | None:
    """The search of performance-based batch partitioning with TVM (KCC 2020), as its public code describes it.

    The whole batch begins on the member that is the fastest alone. Then images go from the member that ends last to
    the one that, with them, leaves the best split: the least finish, then the least second-last finish, and so on. One
    image a move; where that improves nothing 2, 4, 8 or 16 (the code looks up to 2 to 16 ahead, by its version). It
    ends where no such move helps, so a fixed cost above the gain of 16 images, or a step beyond them, stops it.

    None where the whole batch fits on no member: it has nothing to begin with.
    """
    begin = fastest_alone(times, batch)
    if begin is None:
        return None
    table, sizes = _table(times, batch), list(begin.sizes)
    while True:
        moved = next((better for step in LOOK_AHEAD if (better := _moved(table, sizes, step)) is not None), None)
        if moved is None:
            return Split(tuple(sizes), _ends(table, sizes)[0])
        sizes = moved


def _moved(table: NDArray[np.float64], sizes: list[int], step: int) -> list[int] | None:
    """The best split that a move of `step` images from the last member makes; None where none is better than now."""
    last = max(range(len(sizes)), key=lambda member: (table[member, sizes[member]], sizes[member]))
    if sizes[last] < step:
        return None
    candidates = []
    for to in range(len(sizes)):
        if to != last:
            candidate = list(sizes)
            candidate[last] -= step
            candidate[to] += step
            candidates.append((_ends(table, candidate), candidate))
    best = min(candidates, key=lambda one: one[0], default=None)
    return None if best is None or best[0] >= _ends(table, sizes) else best[1]


def _ends(table: NDArray[np.float64], sizes: Sequence[int]) -> list[float]:
    """When the members are done, the last first."""
    return sorted((float(row[size]) for row, size in zip(table, sizes, strict=True)), reverse=True)


def fastest_alone(times: Times, batch: int) -> Split | None:
    """The whole batch on the member that ends first (the first of equals); None where it fits on none."""
    table = _table(times, batch)
    member = int(np.argmin(table[:, batch]))
    if math.isinf(table[member, batch]):
        return None
    return Split(tuple(batch if one == member else 0 for one in range(len(table))), float(table[member, batch]))


def _table(times: Times, batch: int) -> NDArray[np.float64]:
    """[members, batch + 1]. Raises ValueError for times that break the contract above."""
    table = np.array([row[: batch + 1] for row in times], dtype=np.float64)
    if batch < 1 or table.ndim != 2 or table.shape[1] != batch + 1:
        raise ValueError(f"a batch of {batch} needs at least one member, each with times for 0 to {batch} images")
    if table[:, 0].any() or not (table >= 0).all():
        raise ValueError("times must be 0 for 0 images, and never below 0 or NaN")
    return table


# -- times from few measured sizes -------------------------------------------------------------------------


@dataclass(frozen=True)
class Filled:
    """One member's times of all sizes."""

    seconds: tuple[float, ...]
    """[batch + 1]: 0 for no image; infinite where a part does not fit, or nobody knows."""
    interpolated: frozenset[int]
    """Sizes whose time is on the line between its measured neighbours."""


def sizes_to_measure(batch: int) -> tuple[int, ...]:
    """2^n, 2^n ± 1 up to the batch, and the batch: times step at powers of two, where kernels fill the device."""
    powers = [2**n for n in range(batch.bit_length() + 1)]
    near = {power + step for power in powers for step in (-1, 0, 1)}
    return tuple(sorted(size for size in near | {batch} if 1 <= size <= batch))


def filled(points: Mapping[int, float], batch: int) -> Filled:
    """Times of all sizes from those of some (`size → seconds`, infinite: it does not fit), linear in between.

    Infinite beside a size that does not fit, and beyond the least and the largest size: nothing is extrapolated.
    """
    known = sorted(size for size in points if size > 0)
    seconds = [0.0] + [math.inf] * batch
    between = set()
    for size in range(1, batch + 1):
        if size in points:
            seconds[size] = points[size]
            continue
        below = max((one for one in known if one < size), default=None)
        above = min((one for one in known if one > size), default=None)
        if below is None or above is None or math.isinf(points[below]) or math.isinf(points[above]):
            continue
        part = (size - below) / (above - below)
        seconds[size] = points[below] + part * (points[above] - points[below])
        between.add(size)
    return Filled(tuple(seconds), frozenset(between))
