"""torch.profiler's memory events of the CPU: every byte that PyTorch's allocator gave out and took back, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.profiler import record_function
from torch.utils._pytree import tree_leaves

MARK = "loaderbench: "
"""How the names of marked spans begin."""


@dataclass(frozen=True)
class MemoryEvents:
    """What was live when."""

    at_ns: NDArray[np.int64]
    live: NDArray[np.int64]
    """Bytes after each event, from the profiler's start."""
    spans: Mapping[str, tuple[int, int]]
    """Mark → (begin, end), in nanoseconds."""

    def peak_bytes(self, first: str, last: str | None = None) -> int:
        """Most bytes live at once from the begin of one span to the end of another, or of itself."""
        begin, end = self.spans[first][0], self.spans[first if last is None else last][1]
        inside = (self.at_ns >= begin) & (self.at_ns <= end)
        return int(max(self.live[inside].max(initial=0), self.live_before(first)))

    def held_bytes(self, mark: str, results_bytes: int) -> int:
        """Most bytes that a span held besides what was there before it and its results."""
        return max(0, self.peak_bytes(mark) - self.live_before(mark) - results_bytes)

    def live_before(self, mark: str) -> int:
        """Bytes that were live when a span began."""
        earlier = self.live[self.at_ns < self.spans[mark][0]]
        return int(earlier[-1]) if len(earlier) else 0


def storage_bytes(results: Any) -> int:
    """Bytes of the storages of all tensors in it, each once."""
    tensors = [one for one in tree_leaves(results) if isinstance(one, torch.Tensor)]
    return sum({one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in tensors}.values())


def marked(mark: str) -> Any:
    """A context whose span is found by its mark."""
    return record_function(MARK + mark)


def events_of(profiler: Any) -> MemoryEvents:
    """What a profiler saw that was asked for memory."""
    changes, spans = [], {}
    for event in profiler.profiler.kineto_results.events():
        name = event.name()
        if name == "[memory]":
            changes.append((event.start_ns(), event.nbytes()))
        elif name.startswith(MARK):
            spans[name.removeprefix(MARK)] = event.start_ns(), event.start_ns() + event.duration_ns()
    changes.sort(key=lambda change: change[0])  # stable: what happened in one nanosecond stays in its order
    table = np.array(changes, dtype=np.int64).reshape(-1, 2)
    return MemoryEvents(table[:, 0], np.cumsum(table[:, 1]), spans)
