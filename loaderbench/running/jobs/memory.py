"""Jobs of the memory studies: a step's trace without its device, its measured peaks, and a trial below a limit."""

from __future__ import annotations

import gc
import mmap
import resource
from contextlib import ExitStack
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from loaderbench.devices.base import Device
from loaderbench.devices.select import traits_of
from loaderbench.errors import OutOfMemory
from loaderbench.findings.table import words
from loaderbench.printable import memory_size, memory_sizes
from loaderbench.recording.model_memory import MeasuredMemory, MemoryTrace
from loaderbench.recording.progress import Phase, Report, StepsDone
from loaderbench.running.jobs.table import MeasureMemoryRequest, MemoryMeasured, TraceRequest, TrialRequest
from loaderbench.running.kept_traces import trace_of
from loaderbench.running.memory_cap import MemoryCap
from loaderbench.running.memory_events import events_of, marked
from loaderbench.running.models import model_on, on_device, opened
from loaderbench.workloads.training import ModelWorkload


def trace_memory(request: TraceRequest, report: Report) -> tuple[MemoryTrace, ...]:
    """The step's traces at each batch size.

    Raises:
        ConfigError, UnavailableError: as trace_step.
    """
    traces = []
    for step in request.steps:
        report(Phase(f"tracing batch {step.batch_size}"))
        kept = trace_of(step, request.seed, on_accelerator=request.on_accelerator, probed=request.probed)
        traces.append(kept)
    return tuple(traces)


def measure_memory(request: MeasureMemoryRequest, report: Report) -> MemoryMeasured:
    """Peaks of the last of `num_steps` steps, everything since the model was built counted.

    Raises:
        LoaderbenchError: as the device's and the workload's build, and the step.
    """
    with ExitStack() as stack:
        device = opened(request.step, stack)
        measure = _on_host if traits_of(request.step.device).on_host_cpus else _on_gpu
        return MemoryMeasured(device.describe(), measure(request, device, report))


def try_batch(request: TrialRequest, report: Report) -> MemoryMeasured:
    """Run the steps of one batch size below a limit of memory.

    Where the steps were done and their peak is above the limit all the same, the answer says so.

    Raises:
        OutOfMemory: it does not fit below the limit.
        LoaderbenchError: as the device's and the workload's build, and the step.
    """
    with ExitStack() as stack:
        device = opened(request.step, stack)
        measuring = MeasureMemoryRequest(request.step, request.seed, request.num_steps)
        if not traits_of(request.step.device).on_host_cpus:
            cap_gpu(device, request.cap_bytes)
            return MemoryMeasured(device.describe(), _on_gpu(measuring, device, report))
        if request.how == "rlimit":
            return MemoryMeasured(device.describe(), _below_rlimit(measuring, device, request.cap_bytes, report))
        return _below_ledger(measuring, device, request.cap_bytes, report)


def _below_ledger(request: MeasureMemoryRequest, device: Device, cap_bytes: int, report: Report) -> MemoryMeasured:
    """The ledger's limit: tensors may take so many bytes while the steps run, and so may all that the profiler saw."""
    cap = MemoryCap(cap_bytes)
    try:
        with cap:
            measured = _on_host(request, device, report, every_step=True)
    except (OutOfMemory, RuntimeError) as error:
        if not cap.passed:
            raise
        raise OutOfMemory(f"does not fit: tensors need more than the cap of {memory_size(cap_bytes)}") from error
    peak, above = measured.peak_live_bytes, None
    if peak is not None and peak > cap_bytes:
        # Operators' own workspaces, which only the profiler sees, went above it.
        given, limit = memory_sizes(peak, cap_bytes)
        above = f"does not fit: PyTorch's allocator needs {given}, above the cap of {limit}"
    return MemoryMeasured(device.describe(), measured, above)


def _steps(
    request: MeasureMemoryRequest, device: Device, report: Report, before_last: Any = None, mark: Any = None
) -> ModelWorkload:
    """Build the model and run its steps. `before_last` is called before the last one; `mark(number)` gives the context
    of each step."""
    step = request.step
    report(Phase("building the model"))
    workload = model_on(device, step, request.seed, "memory cannot be measured")
    inputs, targets = on_device(device, *workload.example("float32"))
    for number in range(request.num_steps):
        if before_last is not None and number == request.num_steps - 1:
            before_last()
        with ExitStack() as stack:
            if mark is not None:
                stack.enter_context(mark(number))
            workload.step(inputs, targets)
        device.synchronize()
        report(StepsDone(number + 1, request.num_steps))
    return workload


PROT_NONE = 0
"""<sys/mman.h>"""
NO_DATA = (
    "could not create", "could not execute", "bad_alloc", "Cannot allocate memory", "Resource temporarily unavailable"
)  # fmt: skip
"""In errors of oneDNN and the C++ library where the kernel refuses memory; the last where it is that of a thread's
stack."""


def _on_host(
    request: MeasureMemoryRequest, device: Device, report: Report, *, every_step: bool = False
) -> MeasuredMemory:
    """The profiler's memory events over the whole life: every byte that PyTorch's allocator for the CPU gave out.

    `every_step`: the peak of all steps, else of the last.
    """
    device.begin_memory()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        _steps(request, device, report, mark=lambda number: marked(str(number)))
    report(Phase("reading the profiler's events"))
    events = events_of(profiler)
    last = request.num_steps - 1
    growth = device.memory()
    missing = {"peak_reserved_bytes": words("cpu_reserves_nothing", {})}
    if growth.rss_growth_bytes is None:
        missing["peak_process_bytes"] = growth.missing["rss_growth_bytes"]
    return MeasuredMemory(
        peak_live_bytes=events.peak_bytes(str(0 if every_step else last), str(last)),
        peak_reserved_bytes=None,
        peak_process_bytes=growth.rss_growth_bytes,
        num_steps=request.num_steps,
        missing=missing,
    )


def _on_gpu(request: MeasureMemoryRequest, device: Device, report: Report) -> MeasuredMemory:
    """The allocator's peaks of the last step, without what the algorithm search left; and the driver's figure for the
    process after it."""
    device.begin_memory()
    _steps(request, device, report, before_last=device.release_memory)
    memory = device.memory()
    names = {
        "peak_live_bytes": ("allocated_bytes", memory.allocated_bytes),
        "peak_reserved_bytes": ("reserved_bytes", memory.reserved_bytes),
        "peak_process_bytes": ("process_bytes", memory.process_bytes),
    }
    missing = {name: memory.missing[of] for name, (of, value) in names.items() if value is None}
    return MeasuredMemory(
        memory.allocated_bytes, memory.reserved_bytes, memory.process_bytes, request.num_steps, missing
    )


def cap_gpu(device: Device, cap_bytes: int) -> None:
    """Let PyTorch's allocator hold at most so many bytes of the GPU's memory."""
    total = device.describe().memory_bytes
    if total is not None and cap_bytes < total:
        accelerator: Any = torch.get_device_module(device.torch_device)
        accelerator.set_per_process_memory_fraction(cap_bytes / total, device.torch_device)


def _below_rlimit(request: MeasureMemoryRequest, device: Device, cap_bytes: int, report: Report) -> MeasuredMemory:
    """The kernel's limit: the process's data may grow by so many bytes (RLIMIT_DATA of getrlimit(2)).

    As a script that sets the limit before it builds its model: threads' stacks, the heap as the C library keeps it and
    oneDNN's kernels count, so the limit is not as exact as the ledger's.
    """
    gc.collect()
    device.begin_memory()
    limit_bytes = _address_space("VmData") + cap_bytes
    try:
        with _DataGrowth() as data:
            resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, resource.RLIM_INFINITY))
            _steps(request, device, report)
    except (OutOfMemory, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(sign in str(error) for sign in NO_DATA):
            raise
        first = (str(error.__cause__ or error).strip().splitlines() or ["no memory"])[0]
        limit = f"RLIMIT_DATA of {memory_size(cap_bytes)} above the memory before the model"
        raise OutOfMemory(f"does not fit below an {limit}: {first[:200]}") from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    growth = device.memory()
    missing = {
        "peak_live_bytes": words("profiler_does_not_fit", {}),
        "peak_reserved_bytes": words("cpu_reserves_nothing", {}),
    }
    if growth.rss_growth_bytes is None:
        missing["peak_process_bytes"] = growth.missing["rss_growth_bytes"]
    return MeasuredMemory(
        peak_live_bytes=None,
        peak_reserved_bytes=None,
        peak_process_bytes=growth.rss_growth_bytes,
        num_steps=request.num_steps,
        missing=missing,
        peak_data_bytes=data.peak_bytes,
    )


class _DataGrowth:
    """How much the process's data grew at most within this context: by so much its address space grew, less what of
    that is no data at its end (what the C library reserves for a thread's heap, files).

    The kernel keeps the address space's peak (VmPeak of proc(5)). Pages that cannot be written fill it up to its
    earlier peak first, so that each further byte shows; they are no data.
    """

    def __enter__(self) -> _DataGrowth:
        filled = max(_address_space("VmPeak") - _address_space("VmSize"), 0) + mmap.PAGESIZE
        self._filling = mmap.mmap(-1, filled, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=PROT_NONE)
        self._before, self._reserved = _address_space("VmSize"), _reserved()
        self.peak_bytes = 0
        return self

    def __exit__(self, *error: object) -> None:
        self.peak_bytes = _address_space("VmPeak") - self._before - max(_reserved() - self._reserved, 0)
        self._filling.close()


def _reserved() -> int:
    return _address_space("VmSize") - _address_space("VmData")


def _address_space(field: str) -> int:
    """A size of this process in bytes, by its name in /proc/PID/status (proc(5)): `VmData`, the data segment;
    `VmSize`, all mappings; `VmPeak`, the most that VmSize ever was."""
    with open("/proc/self/status", encoding="utf-8") as file:
        line = next(line for line in file if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024  # "VmData:     12345 kB"
