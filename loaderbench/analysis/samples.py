"""What sampled channels say about given windows of time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import Recording, Series

Window = tuple[int, int]
"""Begin and end, on the clock of perf_counter_ns."""


def windows_of(recording: Recording, arm: Arm) -> list[Window]:
    """The windows of one arm."""
    return [(segment.opened_ns, segment.closed_ns) for segment in recording.of(arm)]


def channel(series: Sequence[Series], name: str) -> Series | None:
    """The channel of this name; None where it has fewer than two readings."""
    return next((one for one in series if one.name == name and len(one.t_ns) > 1), None)


def counter_rate(series: Series | None, windows: Sequence[Window]) -> float | None:
    """Growth of a counter a second over the windows, interpolated between its readings; None where unknown."""
    if series is None or not windows:
        return None
    grown = seconds = 0.0
    for begin, end in windows:
        if begin < series.t_ns[0] or end > series.t_ns[-1]:
            continue
        first, last = np.interp([begin, end], series.t_ns, series.value)
        grown += float(last - first)
        seconds += (end - begin) / 1e9
    return grown / seconds if seconds > 0 else None


def gauge_mean(series: Series | None, windows: Sequence[Window]) -> float | None:
    """Mean of the readings in the windows."""
    if series is None:
        return None
    inside = np.zeros(len(series.t_ns), dtype=bool)
    for begin, end in windows:
        inside |= (series.t_ns >= begin) & (series.t_ns <= end)
    return float(series.value[inside].mean()) if inside.any() else None


def sampled(series: Series, windows: Sequence[Window]) -> float | None:
    """A gauge's mean, or a counter's growth a second, over the windows."""
    if series.kind == "gauge":
        return gauge_mean(series, windows)
    return counter_rate(series if len(series.t_ns) > 1 else None, windows)
