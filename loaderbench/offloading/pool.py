"""Host buffers: reused, in sizes of powers of two, so that storages of many sizes share few.

On CUDA they are pinned (page-locked), so that copies run beside the device's work. For the CPU as the device they are a
second arena that PyTorch's allocator does not give out: what its memory events count is then the device's side alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from loaderbench.offloading.plan import buffer_bytes


@dataclass
class HostBuffer:
    """Host memory: uint8 [bytes]."""

    memory: Any
    bytes: int


@dataclass
class HostPool:
    """Buffers that are given back are given out again, the longest unused first."""

    make: Callable[[int], Any]
    """Bytes → memory. What it raises where there is no host memory is raised by `take`."""
    reserved_bytes: int = 0
    """Of all buffers that were made."""
    _free: dict[int, deque[HostBuffer]] = field(default_factory=dict)

    def take(self, num_bytes: int) -> HostBuffer:
        """A buffer of at least so many bytes."""
        size = buffer_bytes(num_bytes)
        free = self._free.get(size)
        if free:
            return free.popleft()
        buffer = HostBuffer(self.make(size), size)
        self.reserved_bytes += size
        return buffer

    def give_back(self, buffer: HostBuffer) -> None:
        self._free.setdefault(buffer.bytes, deque()).append(buffer)


def second_arena(num_bytes: int) -> Any:
    """Memory beside PyTorch's: uint8 [num_bytes] of NumPy."""
    return np.empty(num_bytes, dtype=np.uint8)


def pinned(num_bytes: int) -> torch.Tensor:
    """Page-locked memory: uint8 [num_bytes]."""
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
