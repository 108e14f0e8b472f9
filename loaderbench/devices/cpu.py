"""The host's own CPU as the device: synchronous, so every point of its queue is reached when it is recorded."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity

from loaderbench.cases.case import Step
from loaderbench.devices.emulated import burn_cpu
from loaderbench.devices.profiler import ClockMap, TorchProfile
from loaderbench.devices.select import lacks
from loaderbench.devices.tracing import Recorder, Work, num_while_issuing, with_steps
from loaderbench.findings.table import words
from loaderbench.machine import cpu_model, has_bf16_instructions
from loaderbench.recording.facts import KERNEL, ROW, STEP, DeviceFacts, MemoryFacts, Segment, Table, TraceWitness

USER_SCOPE = 7
"""RecordScope::USER_SCOPE of ATen/record_function.h: ranges that Python code marks, the optimizer's among them."""


def out_of_host_memory(error: BaseException) -> str | None:
    """What `Device.out_of_memory` says of an error of PyTorch's allocator for host memory."""
    return "this machine's free memory" if "can't allocate memory" in str(error) else None


class CpuDevice:
    """A `Device` on which work is done when the call returns. Events are perf_counter_ns stamps."""

    copies = False
    pins_memory = False
    torch_device: Any = torch.device("cpu")
    gpu: int | None = None
    num_search_steps = 2
    """oneDNN's first set-up."""

    def __init__(self, num_threads: int | None = None) -> None:
        """`num_threads`: threads of an operator, in this process and until `close`; the process's affinity stays as it
        is. None: as many as PyTorch takes by itself."""
        self.name = f"CPU {cpu_model() or platform.processor() or platform.machine()}"
        self._threads_before = torch.get_num_threads()
        if num_threads is not None:
            torch.set_num_threads(num_threads)
            self.name += f", {num_threads} thread{'s' if num_threads > 1 else ''}"
        self._rss_before: int | None = None
        """Resident bytes at `begin_memory`; None: `_no_rss` says why."""
        self._no_rss = "memory counting did not start before the model was built"

    def copy_in(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """The same tensors: they are where they are needed."""
        return inputs, targets

    def record(self) -> int:
        return time.perf_counter_ns()

    def record_copy(self) -> int:
        return time.perf_counter_ns()

    def reached(self, event: int) -> bool:
        """True: the event is past."""
        return True

    def wait(self, event: int) -> None:
        """Returns at once: the event is past."""

    def synchronize(self) -> None:
        """Returns at once: everything is done."""

    def anchor(self) -> None:
        """Nothing to tie: the device's clock is the host's."""

    def drift_ns(self) -> int:
        """0: there is one clock."""
        return 0

    def times_ns(self, events: Sequence[int]) -> NDArray[np.int64]:
        return np.array(events, dtype=np.int64)

    def busy_ns(self, begin: int, end: int) -> int | None:
        """None: the same threads do the host's work and the device's."""
        return None

    def held_ns(self, issue: Callable[[], None], hold_s: float) -> int | None:
        """None: the host itself is the device."""
        return None

    def pin(self, tensor: Any) -> Any:
        return tensor

    def pageable(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """The same tensors: nothing is copied."""
        return inputs, targets

    def occupying(self, seconds: float) -> Callable[[], None]:
        """A function that burns CPU time of the calling thread."""
        duration_ns = round(seconds * 1e9)
        return lambda: burn_cpu(duration_ns)

    def recorder(self) -> Recorder:
        return CpuRecorder()

    def begin_memory(self) -> None:
        """Note the process's resident bytes, and let the kernel begin a new peak."""
        self._rss_before = None
        try:
            Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak resident set size
        except OSError:
            self._no_rss = "this kernel does not let a process reset its memory peak"
        else:
            self._rss_before = int(psutil.Process().memory_info().rss)

    def release_memory(self) -> None:
        """Nothing: the peak counts from `begin_memory`."""

    def memory(self) -> MemoryFacts:
        missing = dict.fromkeys(
            ("allocated_bytes", "reserved_bytes", "process_bytes"),
            words("cpu_has_no_memory", {}),
        )
        growth = None
        if self._rss_before is None:
            missing["rss_growth_bytes"] = self._no_rss
        else:
            growth = max(_peak_rss_bytes() - self._rss_before, 0)
        return MemoryFacts(None, None, None, rss_growth_bytes=growth, missing=missing)

    def peak_memory_bytes(self) -> int | None:
        """None: the model's memory is part of the process's, which the memory sampler sees."""
        return None

    def reset_peak_memory(self) -> None:
        """Nothing to reset."""

    def lacks(self, precision: str) -> str | None:
        return lacks("cpu", precision)

    def out_of_memory(self, error: BaseException) -> str | None:
        return out_of_host_memory(error)

    def describe(self) -> DeviceFacts:
        return DeviceFacts(
            "cpu",
            self.name,
            copies=False,
            on_host_cpus=True,
            details={"num_threads": torch.get_num_threads(), "bf16_instructions": has_bf16_instructions()},
        )

    def close(self) -> None:
        """Give the process the threads back that it had."""
        torch.set_num_threads(self._threads_before)


def _peak_rss_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024  # "VmHWM:     12345 kB"


# -- what it ran -----------------------------------------------------------------------------------------


class CpuRecorder(TorchProfile):
    """Operator spans of torch.profiler: the outermost ones that a step runs are its kernels."""

    def __init__(self) -> None:
        super().__init__(ProfilerActivity.CPU)

    def read(self) -> Work:
        return cpu_work(self.events(), self.clock)

    def table(self, work: Work, steps: Table) -> Table:
        """The kernels by their launches, without operators that began after a step's issuing: they are the loader's."""
        table = with_steps(work, steps)
        inside: Table = table[table[:, ROW["begin_ns"]] <= steps[table[:, ROW["step"]], STEP["issued_ns"]]]
        return inside

    def witnesses(self, work: Work, traced: Segment, operators: Counter[str]) -> tuple[TraceWitness, ...]:
        """Each operator of an untraced step must be found in the trace."""
        nothing = np.empty(0, np.int64)
        num_steps = len(traced.window)
        found = sum(
            min(num_while_issuing(work.names.get(name, nothing), traced) / num_steps, count)
            for name, count in operators.items()
        )
        return (TraceWitness("operators_found", found, operators.total()),)


def cpu_work(events: Sequence[Any], host_clock: ClockMap) -> Work:
    """Operator spans of Kineto → the outermost of each thread as kernels, and when each operator began."""
    spans = [
        (event.start_ns(), event.duration_ns(), event.start_thread_id(), event.name())
        for event in events
        if event.scope() != USER_SCOPE and event.device_type() == DeviceType.CPU and not event.is_async()
    ]
    begin = host_clock([span[0] for span in spans])
    end = begin + np.array([span[1] for span in spans], dtype=np.int64)
    threads = np.array([span[2] for span in spans], dtype=np.int64)
    names: dict[str, list[int]] = {}
    for at, span in zip(begin.tolist(), spans, strict=True):
        names.setdefault(span[3], []).append(at)
    rows = np.column_stack([begin, end, threads, np.full(len(begin), KERNEL), begin])
    nothing = np.empty(0, np.int64)
    operators = {name: np.sort(np.array(at, dtype=np.int64)) for name, at in names.items()}
    outermost = rows[_outermost(begin, end, threads)]
    return Work(outermost, nothing, nothing, operators, host_clock.drift_ns, host_clock.uncertainty_ns)


def _outermost(begin: NDArray[np.int64], end: NDArray[np.int64], threads: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[N]: which spans lie inside no other span of their thread."""
    outer = np.zeros(len(begin), dtype=bool)
    for thread in np.unique(threads):
        mine = np.flatnonzero(threads == thread)
        mine = mine[np.lexsort((-end[mine], begin[mine]))]
        reached = np.maximum.accumulate(end[mine])
        outer[mine] = np.append(True, end[mine][1:] > reached[:-1])
    return outer


def build(detail: str, step: Step, image_size: int | None) -> CpuDevice:
    """The host's own CPU, with `detail` threads for an operator; empty: as PyTorch takes them."""
    return CpuDevice(int(detail) if detail else None)
