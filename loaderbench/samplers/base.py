"""Sampled channels, and the one thread that samples them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from loaderbench.plain import Json, JsonObject
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import Series

DEFAULT_INTERVAL_S = 0.1


@dataclass(frozen=True)
class Channel:
    """One sampled quantity. `kind`: `counter` only grows, `gauge` is a level."""

    name: str
    unit: str
    kind: Literal["counter", "gauge"]
    source: str
    """Where it is read, as a path or an API name: `/proc/diskstats vda sectors_read`."""


class Sampler(Protocol):
    """A source of channels. Built once, read at every tick, closed at the end."""

    channels: Sequence[Channel]
    caveats: list[Caveat]
    """What it cannot measure, and how to enable that. May grow while sampling."""

    def read(self) -> Sequence[float | None]:
        """The channels' values now, in order; None where a value is unknown this time."""
        ...

    def close(self) -> None: ...


class SamplerThread:
    """Reads all samplers at a fixed interval in its own thread.

    A sampler that raises loses its series from then on and leaves a caveat; the others go on.
    """

    def __init__(self, samplers: Sequence[Sampler], interval_s: float = DEFAULT_INTERVAL_S) -> None:
        self._samplers = list(samplers)
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._rows: list[list[tuple[int, Sequence[float | None]]]] = [[] for _ in self._samplers]
        self._caveats: list[Caveat] = []
        self._cpu_ns = 0
        self._thread = threading.Thread(target=self._run, name="loaderbench-samplers", daemon=True)

    def start(self) -> None:
        """Begin sampling; the first reading is taken at once."""
        self._thread.start()

    def _run(self) -> None:
        begun_cpu = time.thread_time_ns()
        broken: set[int] = set()
        due = time.perf_counter()
        while True:
            is_last = self._stop.is_set()  # checked before reading: the last reading begins after `stop` was called
            for number, sampler in enumerate(self._samplers):
                if number in broken:
                    continue
                try:
                    values = sampler.read()
                except Exception as error:  # a broken source costs its own series, never the run
                    broken.add(number)
                    lost: list[Json] = [channel.name for channel in sampler.channels]
                    details: JsonObject = {"channels": lost, "error": f"{type(error).__name__}: {error}"}
                    self._caveats.append(Caveat("sampler_failed", details))
                else:
                    self._rows[number].append((time.perf_counter_ns(), values))
            self._cpu_ns = time.thread_time_ns() - begun_cpu
            if is_last:
                return
            due = max(due + self._interval_s, time.perf_counter())
            self._stop.wait(due - time.perf_counter())

    def stop(self) -> tuple[list[Series], list[Caveat], int]:
        """Take a last reading and end. Returns the series, the caveats and the thread's CPU time in ns."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        series = []
        for sampler, rows in zip(self._samplers, self._rows, strict=True):
            for column, channel in enumerate(sampler.channels):
                points = [(t, row[column]) for t, row in rows]
                kept = [(t, value) for t, value in points if value is not None]
                series.append(
                    Series(
                        name=channel.name,
                        unit=channel.unit,
                        kind=channel.kind,
                        source=channel.source,
                        t_ns=np.array([t for t, _ in kept], dtype=np.int64),
                        value=np.array([value for _, value in kept], dtype=np.float64),
                    )
                )
            sampler.close()
        caveats = [caveat for sampler in self._samplers for caveat in sampler.caveats] + self._caveats
        return series, caveats, self._cpu_ns
