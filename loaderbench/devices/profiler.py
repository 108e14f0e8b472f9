"""torch.profiler as a recorder's source: its events, and their times on the clock of perf_counter_ns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile

_NUM_READINGS = 10


class ClockPair(NamedTuple):
    """One reading of both clocks."""

    host_ns: int
    """perf_counter_ns"""
    real_ns: int
    """CLOCK_REALTIME"""
    uncertainty_ns: int


class ClockMap(NamedTuple):
    """CLOCK_REALTIME → perf_counter_ns, by the line through two pairs of readings."""

    begin: ClockPair
    end: ClockPair

    def __call__(self, real_ns: Sequence[int]) -> NDArray[np.int64]:
        begin, end = self.begin, self.end
        at = np.asarray(real_ns, dtype=np.int64) - begin.real_ns
        slope = (end.host_ns - begin.host_ns) / max(1, end.real_ns - begin.real_ns)
        drift: NDArray[np.int64] = np.rint(at * (slope - 1.0)).astype(np.int64)
        return begin.host_ns + at + drift

    @property
    def drift_ns(self) -> int:
        """Drift of CLOCK_REALTIME against the host's clock between the readings."""
        return (self.end.real_ns - self.end.host_ns) - (self.begin.real_ns - self.begin.host_ns)

    @property
    def uncertainty_ns(self) -> int:
        return max(self.begin.uncertainty_ns, self.end.uncertainty_ns)


def read_clocks() -> ClockPair:
    """The tightest of ten readings of CLOCK_REALTIME, each between two of perf_counter_ns."""
    brackets = []
    for _ in range(_NUM_READINGS):
        before = time.perf_counter_ns()
        real = time.time_ns()
        after = time.perf_counter_ns()
        brackets.append((after - before, (before + after) // 2, real))
    width, host, real = min(brackets)
    return ClockPair(host, real, (width + 1) // 2)


class TorchProfile:
    """Records one of Kineto's activities within the context, in the profiler's memory: no file is written.

    Kineto converts its times to CLOCK_REALTIME; readings of both clocks at the start and the end map them back.
    """

    discards_first = True
    """The first use starts the profiler (CUPTI), which slows the steps around it: by 56 % on an H200."""

    def __init__(self, activity: ProfilerActivity) -> None:
        self.source = f"torch.profiler, {activity.name} activity"
        # There is one cycle. `acc_events` changes nothing then, but PyTorch 2.11 warns without it.
        self._profile = profile(activities=[activity], acc_events=True)
        self._clocks: list[ClockPair] = []

    def __enter__(self) -> None:
        self._profile.start()
        self._clocks.append(read_clocks())

    def __exit__(self, *error: object) -> None:
        self._clocks.append(read_clocks())
        self._profile.stop()

    @property
    def clock(self) -> ClockMap:
        """Maps the profiler's times to the host's; known after the context."""
        begin, end = self._clocks
        return ClockMap(begin, end)

    def events(self) -> Sequence[Any]:
        """Kineto's events (torch/_C/_autograd.pyi, _KinetoEvent), after the context."""
        result: Any = self._profile.profiler
        events: Sequence[Any] = result.kineto_results.events()
        return events
