"""What contestants that take turns on one machine share: their CPU time, coming to rest, the interval of a ratio."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Sequence

import numpy as np
import psutil

from loaderbench.errors import LoaderbenchError

MOST_AT_REST = 0.2
"""CPUs that a contestant may use between two turns."""
REST_CHECK_S, REST_LIMIT_S = 0.2, 8.0
LEAST_ROUNDS = 6
"""For an interval: the range of fewer holds their median with less than 95 %."""


def cpu_s() -> float:
    """CPU seconds of this process and its children, ended ones included."""
    total = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # ended since: its parent's times have it
            times = child.cpu_times()
            total += times.user + times.system
    return total


def come_to_rest() -> None:
    """Return when this process and its children wait: after a turn they go on until their queues are full again,
    which a slow contestant's do for a second and more, on the CPUs of the next.

    Raises:
        LoaderbenchError: they go on working.
    """
    used, deadline = 0.0, time.monotonic() + REST_LIMIT_S
    while time.monotonic() < deadline:
        begun_cpu, begun = cpu_s(), time.monotonic()
        time.sleep(REST_CHECK_S)
        used = (cpu_s() - begun_cpu) / (time.monotonic() - begun)
        if used < MOST_AT_REST:
            return
    raise LoaderbenchError(f"uses {used:.1f} CPUs while it waits, which the others would lack")


Interval = tuple[float, float | None, float | None]
"""(median, low, high)"""


def median_interval(values: Sequence[float]) -> Interval:
    """(median, low, high) of one value a round: the narrowest pair of order statistics that holds the median with at
    least 95 %, whatever the distribution (the count of values below it is binomial). Below LEAST_ROUNDS rounds no pair
    does: low and high are then None.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    num = len(ordered)
    outside, cut = 0.0, 0
    while cut < num // 2 and (outside := outside + 2 * math.comb(num, cut) / 2**num) <= 0.05:
        cut += 1
    if not cut:
        return float(np.median(ordered)), None, None
    return float(np.median(ordered)), float(ordered[cut - 1]), float(ordered[num - cut])


def spread(interval: Interval, digits: int = 3) -> str:
    """`0.982 [0.950, 1.001]`; without brackets where the rounds are too few for an interval."""
    value, low, high = interval
    if low is None or high is None:
        return f"{value:.{digits}f}"
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def judged(interval: Interval, least: float, most: float = math.inf) -> str:
    """Whether a goal is reached, as far as the interval tells."""
    _, low, high = interval
    if low is None or high is None:
        return f"not decided in fewer than {LEAST_ROUNDS} rounds"
    if high < least or low > most:
        return "missed"
    return "reached" if low >= least and high <= most else "not decided"
