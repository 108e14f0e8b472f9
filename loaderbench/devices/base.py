"""What a device is: a queue of work that is enqueued by the host and completes on its own clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from loaderbench.devices.tracing import Recorder
    from loaderbench.recording.facts import DeviceFacts, MemoryFacts

Event = Any
"""Opaque point in the device's queue, made by `Device.record`."""


@dataclass(frozen=True)
class Asked:
    """Arguments of a `choose` function of DeviceTraits: what follows the colon of `--device`, and what is to run."""

    detail: str
    model: str
    mode: str
    precision: str | None
    """None: use the default."""
    default_precision: str


@dataclass(frozen=True)
class Chosen:
    """What a `choose` function returns."""

    precision: str
    detail: str = ""
    """What follows the colon from now on, in the case and its record."""


class KnownTime(Protocol):
    """A time that nobody measured just now, with its origin."""

    @property
    def value(self) -> float: ...
    @property
    def label(self) -> str:
        """`measured` (elsewhere, once), `published` (by others), `assumed`, `interpolated` or `extrapolated`."""
        ...

    @property
    def source(self) -> str: ...


class KnownTimes(Protocol):
    """The times of a device's steps, of one model: what a `times` function of DeviceTraits returns."""

    @property
    def largest_batch(self) -> int:
        """Beyond it times are extrapolated."""
        ...

    def period_ms(self, num_samples: int, input_size: float | None = None) -> KnownTime:
        """Milliseconds from the end of a step to that of the next, its batch on the device, steps issued back to
        back. `input_size`: side of the images."""
        ...


class Device(Protocol):
    """One device, made by the `build(detail, step, image_size)` of its module: what follows the colon in `--device`,
    the case's step, and the side of the images that the model sees (None: unknown).

     All work is asynchronous to the host unless said otherwise.

    Callers use the attributes and methods here and never ask for the kind of device: only this folder knows
    kinds.
    """

    name: str
    """What reports call it. An emulated device says so here."""
    copies: bool
    """Whether it has memory of its own, so that batches are copied to it."""
    pins_memory: bool
    """Host memory can be pinned for it, so that copies do not make the host wait."""
    torch_device: Any
    """The torch.device that models live on; None where nothing computes (an emulated device)."""
    gpu: int | None
    """Number of the CUDA device, for libraries that take one; None: not a CUDA device."""
    num_search_steps: int
    """Steps before a clock may start: algorithm search, the allocator's growth, a library's first set-up."""

    def copy_in(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Enqueue the copy of a batch to the device; returns the device's tensors.

        With overlap the copy has a queue of its own, beside the compute of earlier steps; compute that is enqueued
        later waits for it.
        """
        ...

    def record(self) -> Event:
        """Mark this point of the compute's queue. Costs a few microseconds and never blocks.

        A device may have a method `stamp` too: the same at less cost, for events that are only asked for their times.
        """
        ...

    def record_copy(self) -> Event:
        """Mark this point of the copies' queue: the same as `record` without overlap."""
        ...

    def reached(self, event: Event) -> bool:
        """Whether the device has reached `event`. Never blocks."""
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
        """Device time of the work that `issue` enqueues, if all of it is enqueued before any of it starts.

        The queue is held for `hold_s`. None where the device cannot be held, or `issue` took longer.
        """
        ...

    def pin(self, tensor: Any) -> Any:
        """The tensor in memory that can be copied asynchronously (unchanged where that means nothing)."""
        ...

    def pageable(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """`copy_in` from memory that is not pinned: the host waits for the copy, and for all work before it."""
        ...

    def occupying(self, seconds: float) -> Callable[[], None]:
        """A function that enqueues `seconds` of compute at no cost to the host (the CPU device burns CPU time)."""
        ...

    def recorder(self) -> Recorder:
        """A recorder of everything that the device runs within its context.

        A device with an attribute `recording_is_free` that is true says that recording leaves its times as they are:
        the steps of `real` themselves are recorded then, and no window is run for it.
        """
        ...

    def begin_memory(self) -> None:
        """Call it before a model is built: `memory` counts from here."""
        ...

    def release_memory(self) -> None:
        """Free cached memory that is not in use (such as an algorithm search's), and reset the peaks."""
        ...

    def memory(self) -> MemoryFacts:
        """The peaks since `begin_memory` or `release_memory`, from every counter available."""
        ...

    def peak_memory_bytes(self) -> int | None:
        """Most device memory allocated since `reset_peak_memory`; None where unknown."""
        ...

    def reset_peak_memory(self) -> None: ...

    def lacks(self, precision: str) -> str | None:
        """Why it cannot compute in the precision, and what to use instead; None where it can."""
        ...

    def out_of_memory(self, error: BaseException) -> str | None:
        """Which memory was too small, in words, where the error means that; else None."""
        ...

    def describe(self) -> DeviceFacts:
        """Facts for the record."""
        ...

    def close(self) -> None: ...
