"""An Intel GPU, most often one in the processor, through torch.xpu. Written without such a GPU at hand.

Against CUDA: nothing spins, so the device cannot be held and its busy time is not known; memory is not pinned, for the
loaders pin for CUDA alone; NVML is NVIDIA's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from loaderbench.cases.case import Step
from loaderbench.devices.profiler import TorchProfile
from loaderbench.devices.select import lacks
from loaderbench.devices.streams import NO_KERNEL, StreamDevice, device_work
from loaderbench.devices.tracing import Recorder, Work, in_window, with_steps
from loaderbench.errors import UnavailableError
from loaderbench.recording.facts import DeviceFacts, Segment, Table, TraceWitness

SIDE = 1024
"""Of the matrices whose product keeps the device busy: 2 GFLOP, far above what issuing one takes."""
NUM_CALIBRATIONS, NUM_WAKING = 10, 5


class XpuDevice(StreamDevice):
    """A `Device` on PyTorch's current stream of Intel GPU `index` (counted as torch.xpu does: ZE_AFFINITY_MASK).

    Raises UnavailableError where this PyTorch has no torch.xpu, or finds no such GPU.
    """

    api: Any = torch.xpu
    kind = "xpu"
    pins_memory = False
    memory_errors = ("UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", "UR_RESULT_ERROR_OUT_OF_RESOURCES")
    gpu: int | None = None

    def __init__(self, index: int = 0, *, overlap: bool = False) -> None:
        try:
            num_gpus = self.api.device_count()
            if index >= num_gpus:
                raise UnavailableError(
                    f"there is no Intel GPU {index}: torch.xpu offers {num_gpus}; install PyTorch for XPU and Intel's "
                    "GPU driver, or use --device cpu"
                )
            self.api.init()
            self.api.set_device(index)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UnavailableError(
                f"torch.xpu does not start ({reason}): install PyTorch for XPU and Intel's GPU driver, or use "
                "--device cpu"
            ) from error
        super().__init__(index, overlap=overlap)

    def held_ns(self, issue: Callable[[], None], hold_s: float) -> int | None:
        """None: there is no kernel that waits."""
        return None

    def pin(self, tensor: Any) -> Any:
        """The tensor as it is: `pins_memory` is false."""
        return tensor

    def occupying(self, seconds: float) -> Callable[[], None]:
        """A function that enqueues as many matrix products as take `seconds`. First times one."""
        left, right = (torch.ones(SIDE, SIDE, device=self.torch_device) for _ in range(2))
        times = []
        for _ in range(NUM_CALIBRATIONS):
            self.synchronize()
            begin = self.record()
            torch.mm(left, right)
            first, last = self.times_ns([begin, self.record()])
            times.append(last - first)
        count = math.ceil(seconds * 1e9 / max(1, min(times[NUM_WAKING:])))

        def occupy() -> None:
            for _ in range(count):
                torch.mm(left, right)

        return occupy

    def recorder(self) -> Recorder:
        return XpuRecorder()

    def lacks(self, precision: str) -> str | None:
        if (why := lacks(self.kind, precision)) is not None:
            return why
        if precision.endswith("bf16") and not self.api.is_bf16_supported():
            return f"this Intel GPU does not take --precision {precision}: use fp32, fp16, pure-fp16 or amp-fp16"
        return None

    def describe(self) -> DeviceFacts:
        found = self._properties
        return DeviceFacts(
            self.kind,
            self.name,
            overlap=self._copy_stream is not self._stream,
            memory_bytes=found.total_memory,
            details={
                "driver": str(found.driver_version),
                "num_compute_units": int(found.max_compute_units),
                "torch": str(torch.__version__),
                "anchor_uncertainty_ns": self._anchor_uncertainty_ns,
            },
        )


class XpuRecorder(TorchProfile):
    """Intel's activities (PTI) through torch.profiler. How its launches are named differs between versions, so the
    operators alone are its witness: each launches at least one kernel."""

    def __init__(self) -> None:
        super().__init__(ProfilerActivity.XPU)

    def read(self) -> Work:
        return device_work(self.events(), self.clock)

    def table(self, work: Work, steps: Table) -> Table:
        return with_steps(work, steps)

    def witnesses(self, work: Work, traced: Segment, operators: Counter[str]) -> tuple[TraceWitness, ...]:
        launching = sum(count for name, count in operators.items() if not name.startswith(NO_KERNEL))
        found = len(in_window(traced)) / len(traced.window)
        return (TraceWitness("operators", found, launching, at_least=True),)


def build(detail: str, step: Step, image_size: int | None) -> XpuDevice:
    """The Intel GPU number `detail`, or the first if that is empty. Raises UnavailableError where there is none."""
    return XpuDevice(int(detail or 0), overlap=step.overlap)
