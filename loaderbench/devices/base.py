"""What a device is: a queue of work that is enqueued by the host and completes on its own clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Event = Any
"""Opaque point in the device's queue, made by `Device.record`."""


class Device(Protocol):
    """One device. All work is asynchronous to the host unless said otherwise."""

    kind: str
    """`cpu`, `cuda` or `emulated`."""
    name: str
    """What reports call it. An emulated device says so here."""

    def copy_in(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Enqueue the copy of a batch to the device; returns the device's tensors.

        With overlap the copy has a queue of its own, beside the compute of earlier steps; compute that is enqueued
        later waits for it.
        """
        ...

    def record(self) -> Event:
        """Mark this point of the compute's queue. Costs a few microseconds and never blocks."""
        ...

    def record_copy(self) -> Event:
        """Mark this point of the copies' queue: the same as `record` without overlap."""
        ...

    def wait(self, event: Event) -> None:
        """Block the host (asleep where possible) until the device has reached `event`."""
        ...

    def synchronize(self) -> None:
        """Block until everything enqueued is done."""
        ...

    def anchor(self) -> None:
        """Tie the device's clock to `time.perf_counter_ns`. Synchronizes; call it outside a window."""
        ...

    def drift_ns(self) -> int:
        """By how much the device's clock, as tied by `anchor`, is ahead of the host's now. Synchronizes."""
        ...

    def times_ns(self, events: Sequence[Event]) -> NDArray[np.int64]:
        """When the device reached each event of one queue, on the host's perf_counter_ns clock. Synchronizes."""
        ...

    def busy_ns(self, begin: Event, end: Event) -> int | None:
        """Time the device's compute was busy between two events; None where nothing can tell."""
        ...

    def held_ns(self, issue: Callable[[], None], hold_s: float) -> int | None:
        """Device time of the work that `issue` enqueues, when all of it is there before the first of it begins.

        The queue is held for `hold_s` meanwhile. None where the device cannot be held, or `issue` took longer.
        """
        ...

    def pin(self, tensor: Any) -> Any:
        """The tensor in memory that can be copied asynchronously (unchanged where that means nothing)."""
        ...

    def peak_memory_bytes(self) -> int | None:
        """Most device memory allocated since `reset_peak_memory`; None where unknown."""
        ...

    def reset_peak_memory(self) -> None: ...

    def describe(self) -> dict[str, Any]:
        """Facts for the record: name, kind, memory, driver; for an emulated device its profile and labels."""
        ...

    def close(self) -> None: ...
