"""Whether the rate of a run changed for good while it was measured: a burst credit that is used up, a cache that is
full or warm, a neighbour that came. A mean over both is the rate of neither.

The run's step times, in blocks of whole rounds of its workers, are split in two where that separates them best. The
split counts if each block of one side is CLEARLY slower than each of the other, and if the k slow ones of n would stand
together at an end by CHANCE at most, were their order random (permutation test: Pitman, JRSS Supplement 4, 1937):
2 ÷ (n over k).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from loaderbench.recording.facts import STEP, Segment
from loaderbench.recording.record import RateChange

CLEARLY = 1.25
"""As a verdict must be able to exclude a gain (analysis/verdict.py, CLEAR)."""
CHANCE = 0.05


def rate_change(windows: Sequence[Segment], lanes: int, begun_ns: int) -> RateChange | None:
    """The change, if there was one. `windows`: of `real`; `lanes`: of its loader; `begun_ns`: when measuring began."""
    ends, seconds, samples = [], [], []
    for one in windows:
        column = "done_ns" if one.steps[-1, STEP["done_ns"]] >= 0 else "returned_ns"
        done, num = one.window[:, STEP[column]], one.window[:, STEP["num_samples"]]
        marks = np.arange(0, len(done), lanes)
        for begin, end in pairwise(marks):
            ends.append(int(done[end]))
            seconds.append((done[end] - done[begin]) / 1e9)
            samples.append(int(num[begin + 1 : end + 1].sum()))
    per_sample = np.array(seconds) / np.maximum(samples, 1)
    best: tuple[float, int] | None = None
    for place in range(1, len(per_sample)):
        before, after = per_sample[:place], per_sample[place:]
        apart = max(after.min() / before.max(), before.min() / after.max())
        chance = 2 / math.comb(len(per_sample), place)
        if apart >= CLEARLY and chance <= CHANCE and (best is None or apart > best[0]):
            best = float(apart), place
    if best is None:
        return None
    place = best[1]
    rates = [float(sum(samples[part]) / sum(seconds[part])) for part in (slice(None, place), slice(place, None))]
    return RateChange(float(ends[place - 1] - begun_ns) / 1e9, *rates)
