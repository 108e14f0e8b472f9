"""The host's own CPU as the device: synchronous, so every point of its queue is reached when it is recorded."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class CpuDevice:
    """A `Device` on which work is done when the call returns. Events are perf_counter_ns stamps."""

    kind = "cpu"

    def __init__(self) -> None:
        self.name = f"CPU {_cpu_model()}"

    def copy_in(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """The same tensors: they are where they are needed."""
        return inputs, targets

    def record(self) -> int:
        return time.perf_counter_ns()

    def record_copy(self) -> int:
        return time.perf_counter_ns()

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
        """None: the host's work and the device's are the same threads'."""
        return None

    def held_ns(self, issue: Callable[[], None], hold_s: float) -> int | None:
        """None: the host itself is the device."""
        return None

    def pin(self, tensor: Any) -> Any:
        return tensor

    def peak_memory_bytes(self) -> int | None:
        """None: the model's memory is part of the process's, which the memory sampler sees."""
        return None

    def reset_peak_memory(self) -> None:
        """Nothing to reset."""

    def describe(self) -> dict[str, Any]:
        import torch

        return {
            "kind": self.kind,
            "name": self.name,
            "emulated": False,
            "overlap": False,
            "num_threads": torch.get_num_threads(),
            "memory_bytes": None,
        }

    def close(self) -> None:
        """Nothing to release."""


def _cpu_model() -> str:
    """`model name` of /proc/cpuinfo, or what the platform module knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
