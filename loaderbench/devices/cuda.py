"""An NVIDIA GPU through PyTorch: a stream for the compute, one for the copies, events with times, a host that sleeps
while it waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loaderbench.errors import CaseFailed, UnavailableError

_cuda: Any = torch.cuda
"""Some of its functions carry no annotations, and which ones differs between versions."""

SPIN_CYCLES_PER_S = 2.0e9
"""Clock of the GPUs of today, within a factor of 1.5; the spin of `held_ns` need only be long enough."""
NUM_ANCHOR_TRIES = 20
"""Bracketed events of one anchor; the tightest bracket counts."""


class CudaDevice:
    """A `Device` on PyTorch's current stream of GPU `index` (counted within CUDA_VISIBLE_DEVICES).

    With `overlap` copies have a stream of their own, so that they run beside the compute of earlier steps.

    Raises UnavailableError where CUDA does not start or has no such GPU.
    """

    kind = "cuda"

    def __init__(self, index: int = 0, *, overlap: bool = False) -> None:
        try:
            _cuda.init()
            num_gpus = torch.cuda.device_count()
            if index >= num_gpus:
                raise UnavailableError(f"no GPU {index} here: CUDA offers {num_gpus}; use a lower --device cuda:N")
            torch.cuda.set_device(index)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UnavailableError(
                f"CUDA does not start ({reason}): check the driver with nvidia-smi, or use --device emulated"
            ) from error
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.current_stream(self._device)
        self._copies = _cuda.Stream(self._device) if overlap else self._stream
        self._properties = torch.cuda.get_device_properties(self._device)
        self.name = self._properties.name
        self._anchor_event: Any = None
        self._anchor_ns = 0
        self._anchor_uncertainty_ns = 0
        self.anchor()

    def copy_in(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Enqueue the copy. Asynchronous from pinned memory; from pageable memory CUDA makes the host wait.

        Raises CaseFailed where the batch does not fit.
        """
        try:
            with _cuda.stream(self._copies):
                moved = inputs.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True)
        except torch.OutOfMemoryError as error:
            raise CaseFailed(
                f"does not fit: a batch of {inputs.nbytes / 1e6:.0f} MB beside the model needs more than the "
                f"device's {self._properties.total_memory / 1e9:.0f} GB; try a smaller --batch-size"
            ) from error
        if self._copies is not self._stream:
            self._stream.wait_stream(self._copies)
            for tensor in moved:  # the allocator must not give their memory to a later copy while a step reads it
                tensor.record_stream(self._stream)
        return moved

    def record(self) -> Any:
        return self._record(self._stream)

    def record_copy(self) -> Any:
        return self._record(self._copies)

    def _record(self, stream: Any) -> Any:
        # blocking=True is cudaEventBlockingSync: `wait` sleeps instead of spinning on a CPU that the loader needs.
        event = _cuda.Event(enable_timing=True, blocking=True)
        event.record(stream)
        return event

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
        """Device time since the anchor − host time since then. cudaEventElapsedTime gives float32 milliseconds: to
        1 µs over 8 s."""
        event, at_ns, _ = self._bracketed()
        elapsed_ms: float = self._anchor_event.elapsed_time(event)
        return round(elapsed_ms * 1e6) - (at_ns - self._anchor_ns)

    def _bracketed(self) -> tuple[Any, int, int]:
        """(event, host time, its uncertainty) of the tightest of NUM_ANCHOR_TRIES brackets around an event.

        These events spin, for a sleeping host would stamp the end tens of microseconds late.
        """
        torch.cuda.synchronize(self._device)
        events = [_cuda.Event(enable_timing=True) for _ in range(NUM_ANCHOR_TRIES)]
        for event in events:  # the first record creates the CUDA event; keep that out of the brackets
            event.record(self._stream)
        torch.cuda.synchronize(self._device)
        brackets = []
        for event in events:
            begin = time.perf_counter_ns()
            event.record(self._stream)
            event.synchronize()
            brackets.append((time.perf_counter_ns() - begin, begin, event))
        width, begin, event = min(brackets, key=lambda one: one[0])
        return event, begin + width // 2, (width + 1) // 2

    def times_ns(self, events: Sequence[Any]) -> NDArray[np.int64]:
        """Host-clock times of the events, each from its neighbour, the first from the anchor.

        cudaEventElapsedTime gives float32 milliseconds of about 0.5 µs resolution: 1 ns steps at 16 ms, but
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

    def held_ns(self, issue: Callable[[], None], hold_s: float) -> int | None:
        """A spinning kernel holds the stream. Whether it did so to the end is asked of the event behind it: CUDA
        takes about 1,024 launches ahead and lets the host wait with further ones until the first have run.

        What is left besides the kernels is the gap of about 1 µs between one and the next in a full queue.
        """
        self.synchronize()
        _cuda._sleep(round(hold_s * SPIN_CYCLES_PER_S))
        begin = self.record()
        issue()
        end = self.record()
        held = not begin.query()
        end.synchronize()
        return round(begin.elapsed_time(end) * 1e6) if held else None

    def pin(self, tensor: Any) -> Any:
        return tensor.pin_memory()

    def peak_memory_bytes(self) -> int | None:
        """Peak of PyTorch's allocator. What libraries beside it take (CUDA context, DALI) is not in it."""
        return torch.cuda.max_memory_allocated(self._device)

    def reset_peak_memory(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def describe(self) -> dict[str, Any]:
        cudnn: Any = torch.backends.cudnn
        return {
            "kind": self.kind,
            "name": self.name,
            "emulated": False,
            "overlap": self._copies is not self._stream,
            "memory_bytes": self._properties.total_memory,
            "compute_capability": f"{self._properties.major}.{self._properties.minor}",
            "num_multiprocessors": self._properties.multi_processor_count,
            "driver": _driver_version(),
            "cuda": torch.version.cuda,
            "cudnn": cudnn.version(),
            "torch": torch.__version__,
            "anchor_uncertainty_ns": self._anchor_uncertainty_ns,
        }

    def close(self) -> None:
        """Give PyTorch's cached device memory back."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()


def _driver_version() -> str | None:
    """Version of the loaded NVIDIA kernel module, None where the kernel does not tell (WSL)."""
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except OSError:
        return None
