"""Kernel gaps: when the device had nothing to run between its kernels and copies, and what it waited for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.int64]
"""[N, 2]: begin_ns, end_ns of each."""


def union(intervals: Intervals) -> Intervals:
    """The time covered by any of the intervals, as disjoint intervals in order; int64 [M, 2] from [N, 2], M ≤ N.

    Intervals that touch become one; those of no length cover nothing and are left out.
    """
    intervals = intervals[intervals[:, 1] > intervals[:, 0]]
    if not len(intervals):
        return np.empty((0, 2), dtype=np.int64)
    begins = intervals[:, 0]
    if np.any(begins[1:] < begins[:-1]):
        intervals = intervals[np.argsort(begins, kind="stable")]
    reached = np.maximum.accumulate(intervals[:, 1])
    first = np.flatnonzero(intervals[1:, 0] > reached[:-1]) + 1
    begin = intervals[np.concatenate([[0], first]), 0]
    end = reached[np.concatenate([first - 1, [len(intervals) - 1]])]
    return np.stack([begin, end], axis=1)


def gaps(merged: Intervals, begin_ns: int, end_ns: int) -> Intervals:
    """What `merged` (of `union`) leaves of the window [begin_ns, end_ns): int64 [K, 2], in order, none empty.

    The idle time before the first and behind the last interval counts, so covered and idle time add up to the window.
    """
    inside = np.clip(merged, begin_ns, max(begin_ns, end_ns))
    edges = np.concatenate([[begin_ns], inside.reshape(-1), [max(begin_ns, end_ns)]]).reshape(-1, 2)
    return edges[edges[:, 1] > edges[:, 0]]
