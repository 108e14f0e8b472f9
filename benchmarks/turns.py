"""What contestants that take turns on one machine share: their CPU time, coming to rest, the interval of a ratio."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np
import psutil

from loaderbench.errors import LoaderbenchError

MOST_AT_REST = 0.2
"""CPUs that a contestant may use between two turns."""
REST_CHECK_S, REST_LIMIT_S = 0.2, 8.0


def cpu_s() -> float:
    """CPU seconds of this process and its children, ended ones included."""
    total = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
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


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high) of one value a round, 95 % by resampling the rounds."""
    draws = np.median(np.random.default_rng(0).choice(values, (4000, len(values))), axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(np.median(values)), float(low), float(high)
