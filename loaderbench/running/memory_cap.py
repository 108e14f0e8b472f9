"""A limit on the memory of tensors on the CPU, kept by a ledger of live storages within the process."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class MemoryCap(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no annotations there
    """Within its context, operators whose results pass the cap end in the error that PyTorch's allocator for the CPU
    raises where the system has no memory (c10/core/impl/alloc_cpu.cpp).

    Counted are the storages that operators return, from the operator that made them until they are gone. What operators
    allocate inside and give back is not seen.
    """

    def __init__(self, cap_bytes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cap_bytes, self.live_bytes, self.peak_bytes = cap_bytes, 0, 0
        self.passed = False
        """An operator was ended."""
        self._live: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_among(out if isinstance(out, list | tuple) else (out,)):
            self._see(tensor)
        return out

    def _see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._live or not size or not tensor.is_cpu:
            return

        def gone(_: object) -> None:
            del self._live[key]
            self.live_bytes -= size

        self._live[key] = weakref.ref(storage, gone)
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        if self.live_bytes > self.cap_bytes:
            self.passed = True
            raise RuntimeError(
                f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {size} bytes. Error code 12 "
                "(Cannot allocate memory)"
            )


def tensors_among(results: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among results, one level of lists deep (operators on groups of tensors return lists)."""
    for result in results:
        if isinstance(result, torch.Tensor):
            yield result
        elif isinstance(result, list | tuple):
            yield from (inner for inner in result if isinstance(inner, torch.Tensor))
