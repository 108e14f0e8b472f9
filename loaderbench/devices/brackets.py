"""An event between two stamps of the host: how a device's clock is tied to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from loaderbench.originals import time


def tightest_bracket(
    events: Sequence[Any], record: Callable[[Any], object], reach: Callable[[Any], object]
) -> tuple[Any, int, int]:
    """(event, host time, its uncertainty) of the tightest bracket: each event is recorded on an idle queue and reached
    before the next one; it is put into the middle of its bracket."""
    brackets = []
    for event in events:
        begin = time.perf_counter_ns()
        record(event)
        reach(event)
        brackets.append((time.perf_counter_ns() - begin, begin, event))
    width, begin, event = min(brackets, key=lambda bracket: bracket[0])
    return event, begin + width // 2, (width + 1) // 2
