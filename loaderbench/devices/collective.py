"""The all-reduce at the end of a step, as data-parallel training has it: the next step of a device begins when the last
rank has arrived. Every device has its own way to wait.

A rank's arrival is stamped before: `done` is recorded, then the collective is enqueued.
"""

from __future__ import annotations

from typing import Any, Protocol

from loaderbench.devices.base import Device, Event
from loaderbench.devices.emulated import EmulatedDevice


class Collective(Protocol):
    """Called by the step loop, on all ranks alike."""

    waits: bool
    """The host stands at it now, for another rank."""

    def begin(self, done: Event) -> None:
        """The step was issued, and `done` recorded behind it."""
        ...

    def end(self) -> None:
        """The next step is about to be issued, or there is none."""
        ...


class VirtualAllReduce:
    """Of an emulated device. The ranks tell each other when their devices will be done, so that the host need not wait
    for its own; the collective itself takes no time, whatever its size."""

    def __init__(self, device: EmulatedDevice, offset_ns: int) -> None:
        """`offset_ns`: of this rank's clock to rank 0's."""
        self._device, self._offset_ns = device, offset_ns
        self.waits = False
        self._pending: Any = None
        self._last: Any = None

    def begin(self, done: Event) -> None:
        import torch
        from torch import distributed

        self._last = torch.tensor([done.time_ns + self._offset_ns], dtype=torch.int64)
        self._pending = distributed.all_reduce(self._last, op=distributed.ReduceOp.MAX, async_op=True)

    def end(self) -> None:
        if self._pending is not None:
            self.waits = True
            self._pending.wait()
            self.waits = False
            self._device.not_before(int(self._last[0]) - self._offset_ns)
            self._pending = None


class HostAllReduce:
    """Of a device that computes on the processors: the host has done the step when `done` is recorded, and stays until
    all ranks have."""

    def __init__(self, device: Device, num_bytes: int) -> None:
        import torch

        self.waits = False
        self._device, self._payload = device, torch.zeros(max(1, num_bytes // 4))

    def begin(self, done: Event) -> None:
        from torch import distributed

        self._device.wait(done)
        self.waits = True
        distributed.all_reduce(self._payload)
        self.waits = False

    def end(self) -> None:
        """It has ended."""


class StreamAllReduce:
    """Of a GPU: nccl's kernel follows `done` in the stream, and later steps follow it; the host goes on."""

    waits = False
    """The host waits for the device at last, and cannot tell for whom that waits."""

    def __init__(self, device: Device, num_bytes: int) -> None:
        import torch

        self._payload = torch.zeros(max(1, num_bytes // 4), device=device.torch_device)

    def begin(self, done: Event) -> None:
        from torch import distributed

        distributed.all_reduce(self._payload, async_op=True).wait()  # makes the stream wait, not the host

    def end(self) -> None:
        """The stream keeps the order."""


def all_reduce_of(device: Device, num_bytes: int, offset_ns: int) -> Collective:
    """The device's collective of `num_bytes` over the default process group."""
    if isinstance(device, EmulatedDevice):
        return VirtualAllReduce(device, offset_ns)
    return HostAllReduce(device, num_bytes) if device.gpu is None else StreamAllReduce(device, num_bytes)
