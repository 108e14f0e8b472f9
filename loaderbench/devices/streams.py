"""What accelerators of PyTorch have in common: a stream for the compute, one for the copies, events with times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch._C._autograd import DeviceType

from loaderbench.devices.brackets import tightest_bracket
from loaderbench.devices.cpu import out_of_host_memory
from loaderbench.devices.profiler import ClockMap
from loaderbench.devices.tracing import Work
from loaderbench.errors import OutOfMemory, UnavailableError
from loaderbench.findings.table import words
from loaderbench.recording.facts import COPY, KERNEL, MEMSET, MemoryFacts

NUM_ANCHOR_TRIES = 20
"""Bracketed events of one anchor; the tightest bracket counts."""

LAUNCH_CALLS = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperativeKernel", "cuLaunchCooperativeKernel")
"""Prefixes of the names of CUDA's calls that launch one kernel each."""
GRAPH_CALLS = ("cudaGraphLaunch", "cuGraphLaunch")
NO_KERNEL = (
    "aten::empty", "aten::new_empty", "aten::detach", "aten::alias", "aten::lift", "aten::resize", "aten::set_",
    "aten::is_", "aten::record_stream", "aten::_unsafe_view", "aten::_reshape_alias", "aten::_local_scalar_dense",
    "aten::as_strided",
)  # fmt: skip
"""Prefixes of the names of operators that run nothing on the device (views are recognized by their schema)."""


class StreamDevice:
    """The part of a `Device` that is the same on PyTorch's current stream of every accelerator.

    A subclass names PyTorch's module of its kind (`torch.cuda`, `torch.xpu`), which have the same functions.
    """

    api: Any
    """PyTorch's module. Some of its functions carry no annotations, and which ones differs between versions."""
    kind: str
    """As PyTorch's devices and `--device` call it."""
    memory_errors: tuple[str, ...]
    """What errors of the device's own library say where its memory was too small."""
    copies = True
    num_search_steps = 10
    """Algorithm search of the library of kernels, and the allocator's growth."""

    def __init__(self, index: int, *, overlap: bool) -> None:
        """With `overlap` copies have a stream of their own, so that they run beside the compute of earlier steps.

        The device must be there, and PyTorch's current one.
        """
        self.torch_device: Any = torch.device(self.kind, index)
        self._stream = self.api.current_stream(self.torch_device)
        self._copy_stream = self.api.Stream(self.torch_device) if overlap else self._stream
        self._properties = self.api.get_device_properties(self.torch_device)
        self.name: str = self._properties.name
        self._anchor_event: Any = None
        self._anchor_ns = 0
        self._anchor_uncertainty_ns = 0
        self.anchor()

    def copy_in(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Enqueue the copy. Asynchronous from pinned memory; from pageable memory PyTorch makes the host wait.

        Raises OutOfMemory where the batch does not fit.
        """
        try:
            with self.api.stream(self._copy_stream):
                moved = (
                    inputs.to(self.torch_device, non_blocking=True),
                    targets.to(self.torch_device, non_blocking=True),
                )
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"does not fit: a batch of {inputs.nbytes / 1e6:.0f} MB and the model need more than "
                f"{self.out_of_memory(error)}; try a smaller --batch-size"
            ) from error
        if self._copy_stream is not self._stream:
            self._stream.wait_stream(self._copy_stream)
            for tensor in moved:  # the allocator must not give their memory to a later copy while a step reads it
                tensor.record_stream(self._stream)
        return moved

    def record(self) -> Any:
        return self._record(self._stream)

    def stamp(self) -> Any:
        """As `record`, for its time alone: `wait` would spin, and the device need not wake a sleeper for it."""
        event = self.api.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def record_copy(self) -> Any:
        return self._record(self._copy_stream)

    def _record(self, stream: Any) -> Any:
        # blocking=True is cudaEventBlockingSync: `wait` sleeps instead of spinning on a CPU that the loader needs.
        event = self.api.Event(enable_timing=True, blocking=True)
        event.record(stream)
        return event

    def reached(self, event: Any) -> bool:
        done: bool = event.query()
        return done

    def wait(self, event: Any) -> None:
        event.synchronize()

    def synchronize(self) -> None:
        self.record().synchronize()

    def anchor(self) -> None:
        """Tie the device's clock to the host's: an event on an idle stream lies between two host stamps.

        Of NUM_ANCHOR_TRIES brackets the tightest is kept; the event is put into its middle.
        """
        self._anchor_event, self._anchor_ns, self._anchor_uncertainty_ns = self._bracketed()

    def drift_ns(self) -> int:
        """Device time since the anchor − host time since then. Elapsed times are float32 milliseconds: to
        1 µs over 8 s."""
        event, at_ns, _ = self._bracketed()
        elapsed_ms: float = self._anchor_event.elapsed_time(event)
        return round(elapsed_ms * 1e6) - (at_ns - self._anchor_ns)

    def _bracketed(self) -> tuple[Any, int, int]:
        """(event, host time, its uncertainty) of the tightest of NUM_ANCHOR_TRIES brackets around an event.

        These events spin, since a sleeping host would stamp the end tens of microseconds late.
        """
        self.api.synchronize(self.torch_device)
        events = [self.api.Event(enable_timing=True) for _ in range(NUM_ANCHOR_TRIES)]
        for event in events:  # the first record creates the event; keep that out of the brackets
            event.record(self._stream)
        self.api.synchronize(self.torch_device)
        return tightest_bracket(events, lambda one: one.record(self._stream), lambda one: one.synchronize())

    def times_ns(self, events: Sequence[Any]) -> NDArray[np.int64]:
        """Host-clock times of the events, each from its neighbour, the first from the anchor.

        Elapsed times are float32 milliseconds of about 0.5 µs resolution: 1 ns steps at 16 ms, but
        1 µs after 8 s. Neighbouring events are close, so their sum keeps the resolution over a long window.
        """
        for event in events:
            event.synchronize()
        elapsed_ms = np.empty(len(events), dtype=np.float64)
        previous = self._anchor_event
        for number, event in enumerate(events):
            elapsed_ms[number] = previous.elapsed_time(event)
            previous = event
        return self._anchor_ns + np.rint(np.cumsum(elapsed_ms) * 1e6).astype(np.int64)

    def busy_ns(self, begin: Any, end: Any) -> int | None:
        """None: events bound the kernels' time from above and do not show the gaps between them."""
        return None

    def pageable(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """PyTorch makes the host wait for a copy from such memory."""
        return self.copy_in(_unpinned(inputs), _unpinned(targets))

    def begin_memory(self) -> None:
        self.reset_peak_memory()

    def release_memory(self) -> None:
        self.synchronize()
        self.api.empty_cache()
        self.reset_peak_memory()

    def process_bytes(self) -> int:
        """The driver's figure for this process. Raises UnavailableError, which says why there is none."""
        raise UnavailableError(words("process_memory_unknown", {}))

    def memory(self) -> MemoryFacts:
        missing = {"rss_growth_bytes": words("model_is_on_device", {})}
        process_bytes = None
        try:
            process_bytes = self.process_bytes()
        except UnavailableError as error:
            missing["process_bytes"] = str(error)
        return MemoryFacts(
            allocated_bytes=self.api.max_memory_allocated(self.torch_device),
            reserved_bytes=self.api.max_memory_reserved(self.torch_device),
            process_bytes=process_bytes,
            rss_growth_bytes=None,
            missing=missing,
        )

    def peak_memory_bytes(self) -> int | None:
        """Peak of PyTorch's allocator. Memory that other libraries allocate (the context, DALI) is not included."""
        peak: int = self.api.max_memory_allocated(self.torch_device)
        return peak

    def reset_peak_memory(self) -> None:
        self.api.reset_peak_memory_stats(self.torch_device)

    def out_of_memory(self, error: BaseException) -> str | None:
        """Recognizes errors of PyTorch's allocator, of the device's own library, and of the host's memory."""
        if isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in self.memory_errors):
            return f"the device's {self._properties.total_memory / 1e9:.0f} GB"
        return out_of_host_memory(error)

    def close(self) -> None:
        """Give PyTorch's cached device memory back."""
        self.api.synchronize(self.torch_device)
        self.api.empty_cache()


def _unpinned(tensor: Any) -> Any:
    """A copy in pageable memory where the tensor is pinned."""
    return tensor.clone() if tensor.is_pinned() else tensor


# -- what it ran -----------------------------------------------------------------------------------------


def device_work(events: Sequence[Any], host_clock: ClockMap) -> Work:
    """Kineto's device activities, each with the host's call that launched it (same correlation number)."""
    launched_by: dict[int, int] = {}
    calls: dict[int, int] = {}
    graphs: dict[int, int] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    for event in events:
        number = event.correlation_id()
        if event.device_type() == DeviceType.CPU:
            at, name = event.start_ns(), event.name()
            launched_by[number] = at
            # The driver part of a call has the same number as its runtime part: together they are one launch.
            if name.startswith(LAUNCH_CALLS):
                calls[number or -len(calls) - 1] = at
            elif name.startswith(GRAPH_CALLS):
                graphs[number or -len(graphs) - 1] = at
        elif event.device_type() in (DeviceType.CUDA, DeviceType.XPU) and not event.is_user_annotation():
            kind = _kind_of(event.name())
            if kind is not None:
                rows.append((event.start_ns(), event.duration_ns(), event.device_resource_id(), kind, number))
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    begin = host_clock(table[:, 0].tolist())
    launched = [launched_by.get(number, 0) if number else 0 for number in table[:, 4].tolist()]
    launch = np.where(np.array(launched, dtype=np.int64) > 0, host_clock(launched), -1)
    return Work(
        np.column_stack([begin, begin + table[:, 1], table[:, 2:4], launch]),
        np.sort(host_clock(list(calls.values()))),
        np.sort(host_clock(list(graphs.values()))),
        {},
        host_clock.drift_ns,
        host_clock.uncertainty_ns,
    )


def _kind_of(name: str) -> int | None:
    """Kind of a device activity by Kineto's name for it; None for what occupies nothing (waits, synchronization)."""
    if name.startswith("Memcpy"):
        return COPY
    if name.startswith("Memset"):
        return MEMSET
    return None if name.endswith(" Sync") or name.startswith(("Stream Wait", "Event Record")) else KERNEL
