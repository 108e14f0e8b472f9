"""An NVIDIA GPU through PyTorch: a stream for the compute, one for the copies, events with times, a host that sleeps
while it waits."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity

from loaderbench.cases.case import Step
from loaderbench.devices.cpu import out_of_host_memory
from loaderbench.devices.profiler import ClockMap, TorchProfile
from loaderbench.devices.tracing import Recorder, Work, in_window, num_while_issuing, with_steps
from loaderbench.errors import OutOfMemory, UnavailableError
from loaderbench.recording.facts import (
    COPY,
    KERNEL,
    MEMSET,
    ROW,
    DeviceFacts,
    MemoryFacts,
    Segment,
    Table,
    TraceWitness,
)
from loaderbench.samplers.nvml import process_memory_bytes

_cuda: Any = torch.cuda
"""Some of its functions carry no annotations, and which ones differs between versions."""

SPIN_CYCLES_PER_S = 2.0e9
"""Clock of today's GPUs, within a factor of 1.5; the spin of `held_ns` only needs to be long enough."""
NUM_ANCHOR_TRIES = 20
"""Bracketed events of one anchor; the tightest bracket counts."""
CALIBRATION_CYCLES = 20_000_000
"""About 10 ms of `torch.cuda._sleep` at 2 GHz: long against the 10 µs around a kernel, short against anything else."""
NUM_CALIBRATIONS, NUM_WAKING = 10, 5

LAUNCH_CALLS = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperativeKernel", "cuLaunchCooperativeKernel")
"""Prefixes of the names of CUDA's calls that launch one kernel each."""
GRAPH_CALLS = ("cudaGraphLaunch", "cuGraphLaunch")
NO_KERNEL = (
    "aten::empty", "aten::new_empty", "aten::detach", "aten::alias", "aten::lift", "aten::resize", "aten::set_",
    "aten::is_", "aten::record_stream", "aten::_unsafe_view", "aten::_reshape_alias", "aten::_local_scalar_dense",
    "aten::as_strided",
)  # fmt: skip
"""Prefixes of the names of operators that run nothing on the device (views are recognized by their schema)."""


class CudaDevice:
    """A `Device` on PyTorch's current stream of GPU `index` (counted within CUDA_VISIBLE_DEVICES).

    With `overlap` copies have a stream of their own, so that they run beside the compute of earlier steps.

    Raises UnavailableError where CUDA does not start or has no such GPU.
    """

    copies = True
    pins_memory = True
    num_search_steps = 10
    """cuDNN's algorithm search and the allocator's growth."""

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
        self.gpu: int | None = index
        self.torch_device: Any = torch.device("cuda", index)
        self._stream = torch.cuda.current_stream(self.torch_device)
        self._copy_stream = _cuda.Stream(self.torch_device) if overlap else self._stream
        self._properties = torch.cuda.get_device_properties(self.torch_device)
        self.name = self._properties.name
        self._anchor_event: Any = None
        self._anchor_ns = 0
        self._anchor_uncertainty_ns = 0
        self.anchor()

    def copy_in(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Enqueue the copy. Asynchronous from pinned memory; from pageable memory CUDA makes the host wait.

        Raises OutOfMemory where the batch does not fit.
        """
        try:
            with _cuda.stream(self._copy_stream):
                moved = (
                    inputs.to(self.torch_device, non_blocking=True),
                    targets.to(self.torch_device, non_blocking=True),
                )
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"does not fit: a batch of {inputs.nbytes / 1e6:.0f} MB beside the model needs more than "
                f"{self.out_of_memory(error)}; try a smaller --batch-size"
            ) from error
        if self._copy_stream is not self._stream:
            self._stream.wait_stream(self._copy_stream)
            for tensor in moved:  # the allocator must not give their memory to a later copy while a step reads it
                tensor.record_stream(self._stream)
        return moved

    def record(self) -> Any:
        return self._record(self._stream)

    def record_copy(self) -> Any:
        return self._record(self._copy_stream)

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

        These events spin, since a sleeping host would stamp the end tens of microseconds late.
        """
        torch.cuda.synchronize(self.torch_device)
        events = [_cuda.Event(enable_timing=True) for _ in range(NUM_ANCHOR_TRIES)]
        for event in events:  # the first record creates the CUDA event; keep that out of the brackets
            event.record(self._stream)
        torch.cuda.synchronize(self.torch_device)
        brackets = []
        for event in events:
            begin = time.perf_counter_ns()
            event.record(self._stream)
            event.synchronize()
            brackets.append((time.perf_counter_ns() - begin, begin, event))
        width, begin, event = min(brackets, key=lambda bracket: bracket[0])
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
        """A spinning kernel holds the stream. The event after it tells whether it spun until all work was enqueued:
        CUDA accepts about 1,024 launches ahead and blocks the host at further ones until the first have run.

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

    def pageable(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """CUDA itself makes the host wait for a copy from such memory."""
        return self.copy_in(_unpinned(inputs), _unpinned(targets))

    def occupying(self, seconds: float) -> Callable[[], None]:
        """A function that enqueues a spinning kernel. First measures the clock that it counts: about 0.1 s."""
        cycles = round(seconds * self.cycles_per_s())
        return lambda: _cuda._sleep(cycles)

    def cycles_per_s(self) -> float:
        """Clock cycles a second of the spinning kernel `torch.cuda._sleep`, measured with events.

        A GPU at rest clocks low: the first runs wake it, and the fastest of the others counts.
        """
        rates = []
        for _ in range(NUM_CALIBRATIONS):
            self.synchronize()
            begin = self.record()
            _cuda._sleep(CALIBRATION_CYCLES)
            first, last = self.times_ns([begin, self.record()])
            rates.append(CALIBRATION_CYCLES / ((last - first) * 1e-9))
        return float(max(rates[NUM_WAKING:]))

    def recorder(self) -> Recorder:
        return CudaRecorder()

    def begin_memory(self) -> None:
        self.reset_peak_memory()

    def release_memory(self) -> None:
        self.synchronize()
        torch.cuda.empty_cache()
        self.reset_peak_memory()

    def memory(self) -> MemoryFacts:
        missing = {"rss_growth_bytes": "the model's memory is the device's"}
        process_bytes = None
        try:
            process_bytes = process_memory_bytes(self.torch_device.index, os.getpid())
        except UnavailableError as error:
            missing["process_bytes"] = str(error)
        return MemoryFacts(
            allocated_bytes=torch.cuda.max_memory_allocated(self.torch_device),
            reserved_bytes=torch.cuda.max_memory_reserved(self.torch_device),
            process_bytes=process_bytes,
            rss_growth_bytes=None,
            missing=missing,
        )

    def peak_memory_bytes(self) -> int | None:
        """Peak of PyTorch's allocator. Memory that other libraries allocate (CUDA context, DALI) is not included."""
        return torch.cuda.max_memory_allocated(self.torch_device)

    def reset_peak_memory(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch_device)

    def lacks(self, precision: str) -> str | None:
        major, minor = self._properties.major, self._properties.minor
        if major >= 8 or not (precision == "tf32" or precision.endswith("bf16")):
            return None
        return (
            f"--precision {precision} needs a GPU of compute capability 8.0, this one has {major}.{minor}: "
            "use fp32, fp16, pure-fp16 or amp-fp16"
        )

    def out_of_memory(self, error: BaseException) -> str | None:
        """Recognizes errors of PyTorch's allocator, of CUDA itself, and of the host's memory."""
        if isinstance(error, torch.OutOfMemoryError) or "CUDA error: out of memory" in str(error):
            return f"the device's {self._properties.total_memory / 1e9:.0f} GB"
        return out_of_host_memory(error)

    def describe(self) -> DeviceFacts:
        cudnn: Any = torch.backends.cudnn
        return DeviceFacts(
            "cuda",
            self.name,
            overlap=self._copy_stream is not self._stream,
            has_counters=True,
            memory_bytes=self._properties.total_memory,
            details={
                "compute_capability": f"{self._properties.major}.{self._properties.minor}",
                "num_multiprocessors": self._properties.multi_processor_count,
                "driver": _driver_version(),
                "cuda": torch.version.cuda,
                "cudnn": cudnn.version(),
                "torch": str(torch.__version__),
                "anchor_uncertainty_ns": self._anchor_uncertainty_ns,
            },
        )

    def close(self) -> None:
        """Give PyTorch's cached device memory back."""
        torch.cuda.synchronize(self.torch_device)
        torch.cuda.empty_cache()


def _unpinned(tensor: Any) -> Any:
    """A copy in pageable memory where the tensor is pinned."""
    return tensor.clone() if tensor.is_pinned() else tensor


def _driver_version() -> str | None:
    """Version of the loaded NVIDIA kernel module, None where the kernel does not tell (WSL)."""
    try:
        return Path("/sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except OSError:
        return None


# -- what it ran -----------------------------------------------------------------------------------------


class CudaRecorder(TorchProfile):
    """CUPTI's activities through torch.profiler, CUDA's alone.

    Launches cannot be counted without CUPTI. But an operator launches at least one kernel, so there must be at least as
    many kernels as operators; and each launch that CUPTI's callbacks saw must have its kernel in CUPTI's activity
    buffers, which are the first to lose records.
    """

    def __init__(self) -> None:
        super().__init__(ProfilerActivity.CUDA)

    def read(self) -> Work:
        return cuda_work(self.events(), self.clock)

    def table(self, work: Work, steps: Table) -> Table:
        return with_steps(work, steps)

    def witnesses(self, work: Work, traced: Segment, operators: Counter[str]) -> tuple[TraceWitness, ...]:
        num_steps, table = len(traced.window), in_window(traced)
        launching = sum(count for name, count in operators.items() if not name.startswith(NO_KERNEL))
        num_kernels = int((table[:, ROW["kind"]] == KERNEL).sum())
        launched = num_while_issuing(work.calls, traced) / num_steps
        return (
            TraceWitness("operators", len(table) / num_steps, launching, at_least=True),
            TraceWitness("launch_calls", num_kernels / num_steps, launched, at_least=True),
        )


def cuda_work(events: Sequence[Any], host_clock: ClockMap) -> Work:
    """Kineto's device activities, each with the call of CUDA's API that launched it (same correlation number)."""
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
        elif event.device_type() == DeviceType.CUDA and not event.is_user_annotation():
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


def build(detail: str, step: Step, image_size: int | None) -> CudaDevice:
    """The GPU number `detail`, or the first if that is empty. Raises UnavailableError where CUDA does not start."""
    return CudaDevice(int(detail or 0), overlap=step.overlap)
