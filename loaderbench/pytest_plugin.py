"""A fixture for tests of a data set's or loader's speed: `loader_rate(dataset).at_least(500)`.

It imports nothing of loaderbench, and no PyTorch, before a test uses the fixture.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

PROPERTY = "loader_rate"
"""Name under which a report keeps a rate, in JUnit's XML, too."""
BLOCKS = 10
"""Parts of the measured time whose rates the interval is made of."""
SECONDS = 2.0


@dataclass(frozen=True)
class Rate:
    """Samples/s, with a 95 % interval."""

    value: float
    low: float
    high: float
    num_samples: int
    note: Callable[[str], None] = field(default=lambda line: None, repr=False, compare=False)
    """Keeps a line for the list of rates."""

    def __str__(self) -> str:
        return f"{self.value:,.0f} samples/s ({self.low:,.0f} – {self.high:,.0f})"

    def at_least(self, limit: float) -> Rate:
        """Fail the test if the whole interval lies below `limit` samples/s; return the rate. If the interval holds the
        limit, the list of rates says so."""
        __tracebackhide__ = True
        if self.high < limit:
            pytest.fail(f"{self} is below {limit:,.0f} samples/s")
        if self.low < limit:
            self.note(f"not decided: {self} holds the limit of {limit:,.0f}; more seconds= narrow it")
        return self


@pytest.fixture
def loader_rate(request: pytest.FixtureRequest) -> Callable[..., Rate]:
    """Measure how many samples a second a data set or loader delivers: `loader_rate(dataset, seconds=2.0)`.

    A DataLoader, or any iterable of batches, is iterated, again and again; what has an index and no iterator of its own
    (a data set) is read sample by sample in this process, in random order. Making an iterator and the first batch of
    each pass are not counted.
    """

    def note(text: str) -> None:
        request.node.user_properties.append((PROPERTY, text))

    def measure(data: Any, *, seconds: float = SECONDS) -> Rate:
        __tracebackhide__ = True
        rate = replace(rate_of(data, seconds), note=note)
        note(str(rate))
        return rate

    return measure


def rate_of(data: Any, seconds: float = SECONDS) -> Rate:
    """Return the samples/s that `data` delivers.

    Raises:
        TypeError: it is no data set and cannot be iterated.
        ValueError: it has fewer than two batches, or the time is not above 0.
    """
    __tracebackhide__ = True
    import numpy as np

    from loaderbench.analysis.statistics import t_quantile

    if not seconds > 0:
        raise ValueError(f"loader_rate needs seconds above 0, not {seconds}")
    counts, times = np.zeros(BLOCKS), np.zeros(BLOCKS)
    spent = 0.0
    for took, num in _taken(data):
        block = min(int(spent / seconds * BLOCKS), BLOCKS - 1)
        counts[block] += num
        times[block] += took
        spent += took
        if spent >= seconds:
            break
    known = times > 0
    rates, k = counts[known] / times[known], int(known.sum())
    value = float(counts.sum() / times.sum())
    half = float(t_quantile(k - 1) * rates.std(ddof=1) / np.sqrt(k)) if k > 1 else float("inf")
    return Rate(value, max(0.0, value - half), value + half, int(counts.sum()))


def _taken(data: Any) -> Iterator[tuple[float, int]]:
    """(seconds, samples) of each batch but the first of a pass; endless, unless it can be iterated once only."""
    __tracebackhide__ = True
    from loaderbench.watching.iterator import samples_of

    is_read = not hasattr(type(data), "__iter__") or isinstance(data, Sequence)
    if is_read and not hasattr(type(data), "__getitem__"):
        raise TypeError(f"loader_rate takes a data set, a DataLoader or another iterable, not {type(data).__name__}")
    num_passes = 0
    while True:
        batches: Iterator[Any] = iter(_samples(data) if is_read else data)
        next(batches, None)
        num_batches, begun = 0, time.perf_counter()
        for batch in batches:
            now = time.perf_counter()
            yield now - begun, 1 if is_read else samples_of(batch) or 1
            num_batches, begun = num_batches + 1, time.perf_counter()
        if not num_batches and num_passes:
            return
        if not num_batches:
            raise ValueError("loader_rate needs at least two batches, or samples, a pass")
        num_passes += 1


def _samples(data: Any) -> Iterator[Any]:
    """Each sample once, in random order."""
    __tracebackhide__ = True
    import random

    order = list(range(len(data)))
    random.Random(0).shuffle(order)
    for number in order:
        yield data[number]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the rates that were measured."""
    kept = [one for found in terminalreporter.stats.values() for one in found]  # deselected tests, and warnings, too
    rates = [
        (one.nodeid, value)
        for one in kept
        if isinstance(one, pytest.TestReport) and one.when == "call"
        for name, value in one.user_properties
        if name == PROPERTY
    ]
    if rates:
        terminalreporter.section("loader_rate")
        for test, rate in rates:
            terminalreporter.write_line(f"{test}  {rate}")
