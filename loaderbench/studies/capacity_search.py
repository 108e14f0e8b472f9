"""Which number of ranks to measure next: doubled until one misses the target, then halved in between, then the edge
again while it is not clear."""

from __future__ import annotations

from collections.abc import Sequence

from loaderbench.analysis.capacity import edge_of
from loaderbench.recording.capacity import CapacityPoint

MOST_LOOKS = 3
"""At a number of ranks whose interval holds the target."""


def next_ranks(curve: Sequence[CapacityPoint], target: float, most: int) -> int | None:
    """The number of ranks to look at next; None: the answer is known as well as it can be."""
    measured = {point.ranks: point for point in curve}
    for first in (1, 2):  # what is predicted is predicted from these
        if first <= most and first not in measured:
            return first
    reaches, misses = edge_of(curve, target)
    low = 0 if reaches is None else reaches.ranks
    if misses is None:
        if low < most:
            return min(2 * low, most)
        return _unclear([reaches])
    if misses.ranks - low > 1:
        return (low + misses.ranks) // 2
    return _unclear([misses, reaches])


def _unclear(points: Sequence[CapacityPoint | None]) -> int | None:
    open_points = [one for one in points if one is not None and not one.is_clear and one.num_looks < MOST_LOOKS]
    return min(open_points, key=lambda one: one.num_looks).ranks if open_points else None
