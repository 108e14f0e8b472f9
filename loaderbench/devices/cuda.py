"""An NVIDIA GPU through PyTorch: spinning kernels to hold it, CUPTI to see what it ran, and a host that sleeps while it
waits."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from loaderbench.cases.case import Step
from loaderbench.devices.profiler import TorchProfile
from loaderbench.devices.streams import NO_KERNEL, StreamDevice, device_work
from loaderbench.devices.tracing import Recorder, Work, in_window, num_while_issuing, with_steps
from loaderbench.errors import UnavailableError
from loaderbench.recording.facts import KERNEL, ROW, DeviceFacts, Segment, Table, TraceWitness
from loaderbench.samplers.nvml import process_memory_bytes

SPIN_CYCLES_PER_S = 2.0e9
"""Clock of today's GPUs, within a factor of 1.5; the spin of `held_ns` only needs to be long enough."""
CALIBRATION_CYCLES = 20_000_000
"""About 10 ms of `torch.cuda._sleep` at 2 GHz: long against the 10 µs around a kernel, short against anything else."""
NUM_CALIBRATIONS, NUM_WAKING = 10, 5


class CudaDevice(StreamDevice):
    """A `Device` on PyTorch's current stream of GPU `index` (counted within CUDA_VISIBLE_DEVICES).

    Raises UnavailableError where CUDA does not start or has no such GPU.
    """

    api: Any = torch.cuda
    kind = "cuda"
    pins_memory = True
    memory_errors = ("CUDA error: out of memory",)

    def __init__(self, index: int = 0, *, overlap: bool = False) -> None:
        try:
            self.api.init()
            num_gpus = torch.cuda.device_count()
            if index >= num_gpus:
                raise UnavailableError(f"there is no GPU {index}: CUDA offers {num_gpus}; use a lower --device cuda:N")
            torch.cuda.set_device(index)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UnavailableError(
                f"CUDA does not start ({reason}): check the driver with nvidia-smi, or use --device emulated"
            ) from error
        self.gpu: int | None = index
        super().__init__(index, overlap=overlap)

    def held_ns(self, issue: Callable[[], None], hold_s: float) -> int | None:
        """A spinning kernel holds the stream. The event after it tells whether it spun until all work was enqueued:
        CUDA accepts about 1,024 launches ahead and blocks the host at further ones until the first have run.

        What is left besides the kernels is the gap of about 1 µs between one and the next in a full queue.
        """
        self.synchronize()
        self.api._sleep(round(hold_s * SPIN_CYCLES_PER_S))
        begin = self.record()
        issue()
        end = self.record()
        held = not begin.query()
        end.synchronize()
        return round(begin.elapsed_time(end) * 1e6) if held else None

    def pin(self, tensor: Any) -> Any:
        return tensor.pin_memory()

    def occupying(self, seconds: float) -> Callable[[], None]:
        """A function that enqueues a spinning kernel. First measures the clock that it counts: about 0.1 s."""
        cycles = round(seconds * self.cycles_per_s())
        return lambda: self.api._sleep(cycles)

    def cycles_per_s(self) -> float:
        """Clock cycles a second of the spinning kernel `torch.cuda._sleep`, measured with events.

        A GPU at rest clocks low: the first runs wake it, and the fastest of the others counts.
        """
        rates = []
        for _ in range(NUM_CALIBRATIONS):
            self.synchronize()
            begin = self.record()
            self.api._sleep(CALIBRATION_CYCLES)
            first, last = self.times_ns([begin, self.record()])
            rates.append(CALIBRATION_CYCLES / ((last - first) * 1e-9))
        return float(max(rates[NUM_WAKING:]))

    def recorder(self) -> Recorder:
        return CudaRecorder()

    def process_bytes(self) -> int:
        return process_memory_bytes(self.torch_device.index, os.getpid())

    def lacks(self, precision: str) -> str | None:
        major, minor = self._properties.major, self._properties.minor
        if major >= 8 or not (precision == "tf32" or precision.endswith("bf16")):
            return None
        return (
            f"--precision {precision} needs compute capability 8.0, and this GPU has {major}.{minor}: use "
            "fp32, fp16, pure-fp16 or amp-fp16"
        )

    def describe(self) -> DeviceFacts:
        cudnn: Any = torch.backends.cudnn
        return DeviceFacts(
            self.kind,
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
        return device_work(self.events(), self.clock)

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


def build(detail: str, step: Step, image_size: int | None) -> CudaDevice:
    """The GPU number `detail`, or the first if that is empty. Raises UnavailableError where CUDA does not start."""
    return CudaDevice(int(detail or 0), overlap=step.overlap)
