"""Copies between the device and the host, and what waits for which.

On CUDA one stream copies out and another one in. The rules, where `compute` is the stream of the device's work when the
call comes. It may be another one at each call; memory belongs to the one that it was allocated for, whose next work may
get it once it is let go of:

- a copy out waits for what compute was given until then; compute and the memory's own stream wait for its end before
  the memory is let go of;
- memory for a copy in is allocated for compute, so the copy waits for what compute was given until then, and for the
  copy out that wrote the buffer; compute and the memory's own stream wait for its end before the memory is used or let
  go of; the allocator is told where another stream uses it;
- copies out wait for the last copy in from a buffer that is given back, for they may write it next.

The host waits for nothing.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from loaderbench.errors import ConfigError
from loaderbench.offloading.pool import HostBuffer, HostPool, pinned, second_arena

MOST_PAIRS = 1024
"""Of events that are kept before those that were reached are added up."""


@dataclass
class HostCopy:
    """A storage's bytes on the host, and the copies of it that are under way."""

    buffer: HostBuffer
    num_bytes: int
    source: Any = None
    """Held while it is read: until compute waits for the copy out."""
    owner: Any = None
    """The stream that the device's memory was allocated for: that of the copy out, then that of the last copy in."""
    out: Any = None
    """Event behind the copy out."""
    back: Any = None
    """Event behind the last copy in."""
    waiting: list[Any] = field(default_factory=list)
    """Streams that wait for the last copy in."""


@dataclass
class CopyTimes:
    copy_s: float = 0.0
    """What the copies themselves took."""
    exposed_s: float = 0.0
    """Of which the device's work waited."""


class Copier(Protocol):
    """Moves storages' bytes."""

    pool: HostPool

    def out(self, storage: torch.UntypedStorage) -> HostCopy:
        """Begin to copy a storage to the host."""
        ...

    def let_go(self, copy: HostCopy) -> None:
        """Before the storage's memory is let go of: compute waits for the copies of it that are under way."""
        ...

    def back(self, copy: HostCopy, storage: torch.UntypedStorage) -> None:
        """Begin to copy into a storage of the device, which was allocated for compute just now, after `let_go`."""
        ...

    def use(self, copy: HostCopy, storage: torch.UntypedStorage) -> None:
        """Before the storage on the device is used: compute waits for the copy in."""
        ...

    def give_back(self, copy: HostCopy) -> None:
        """The host's bytes are not needed any more."""
        ...

    def begin_times(self) -> None:
        """Time copies from now on."""
        ...

    def times(self) -> CopyTimes:
        """Of what was copied since `begin_times`. Waits for the device."""
        ...


class CpuCopier:
    """The CPU as the device: copies are done when the call returns, and nothing hides them."""

    def __init__(self) -> None:
        self.pool = HostPool(second_arena)
        self._seconds = 0.0

    def out(self, storage: torch.UntypedStorage) -> HostCopy:
        copy = HostCopy(self.pool.take(storage.nbytes()), storage.nbytes())
        self._move(copy.buffer.memory.ctypes.data, storage.data_ptr(), copy.num_bytes)
        return copy

    def let_go(self, copy: HostCopy) -> None:
        """Nothing is under way."""

    def back(self, copy: HostCopy, storage: torch.UntypedStorage) -> None:
        self._move(storage.data_ptr(), copy.buffer.memory.ctypes.data, copy.num_bytes)

    def use(self, copy: HostCopy, storage: torch.UntypedStorage) -> None:
        """Nothing is under way."""

    def give_back(self, copy: HostCopy) -> None:
        self.pool.give_back(copy.buffer)

    def begin_times(self) -> None:
        self._seconds = 0.0

    def times(self) -> CopyTimes:
        return CopyTimes(self._seconds, self._seconds)

    def _move(self, target: int, source: int, num_bytes: int) -> None:
        # No operator of PyTorch: ledgers that see operators must not count the host's side.
        begun = time.perf_counter()
        ctypes.memmove(target, source, num_bytes)
        self._seconds += time.perf_counter() - begun


class Streams(Protocol):
    """A device's queues, by which StreamCopier orders its copies. Streams and events are opaque; equal streams are one
    queue."""

    out: Any
    back: Any

    def compute(self) -> Any:
        """The stream that the device's work is given to now."""
        ...

    def record(self, stream: Any) -> Any:
        """An event behind all that the stream was given."""
        ...

    def wait(self, stream: Any, event: Any) -> None:
        """What the stream is given from now on waits for the event."""
        ...

    def copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> None:
        """Give the stream a copy: uint8 [bytes] both."""
        ...

    def lend(self, storage: torch.UntypedStorage, stream: Any) -> None:
        """The stream uses memory of another one from now on: once it is let go of, it is given out again only behind
        what the stream was given until then."""
        ...

    def synchronize(self) -> None: ...

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two events that were reached."""
        ...

    def is_reached(self, event: Any) -> bool: ...


class CudaStreams:
    """A CUDA device's."""

    def __init__(self, device: torch.device) -> None:
        cuda: Any = torch.cuda  # its streams and events have no annotations
        self._device, self._cuda = device, cuda
        self.out, self.back = cuda.Stream(device), cuda.Stream(device)

    def compute(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def record(self, stream: Any) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)

    def lend(self, storage: torch.UntypedStorage, stream: Any) -> None:
        bytes_of(storage).record_stream(stream)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1e3  # it gives milliseconds

    def is_reached(self, event: Any) -> bool:
        return bool(event.query())


@dataclass
class _Spans:
    """Pairs of events, and the seconds between them. Pairs that were reached are added up now and then: whoever never
    asks for the times keeps few events all the same."""

    streams: Streams
    pairs: list[tuple[Any, Any]] = field(default_factory=list)
    _seconds: float = 0.0
    _most: int = MOST_PAIRS

    def add(self, begin: Any, end: Any) -> None:
        self.pairs.append((begin, end))
        if len(self.pairs) >= self._most:
            self._fold(self.streams.is_reached)
            self._most = max(MOST_PAIRS, 2 * len(self.pairs))

    def clear(self) -> None:
        self.pairs, self._seconds, self._most = [], 0.0, MOST_PAIRS

    def total(self) -> float:
        """Of all, once the device is idle."""
        self._fold(lambda end: True)
        return self._seconds

    def _fold(self, is_reached: Callable[[Any], bool]) -> None:
        waiting = []
        for begin, end in self.pairs:
            if is_reached(end):
                self._seconds += self.streams.seconds(begin, end)
            else:
                waiting.append((begin, end))
        self.pairs = waiting


@dataclass
class StreamCopier:
    """A device with queues: copies run beside its work."""

    streams: Streams
    pool: HostPool = field(default_factory=lambda: HostPool(pinned))
    _is_timed: bool = False

    def __post_init__(self) -> None:
        self._copies, self._waits = _Spans(self.streams), _Spans(self.streams)

    def out(self, storage: torch.UntypedStorage) -> HostCopy:
        streams, num_bytes, compute = self.streams, storage.nbytes(), self.streams.compute()
        copy = HostCopy(self.pool.take(num_bytes), num_bytes, source=bytes_of(storage), owner=compute)
        streams.wait(streams.out, streams.record(compute))
        copy.out = self._copy(streams.out, copy.buffer.memory[:num_bytes], copy.source)
        return copy

    def let_go(self, copy: HostCopy) -> None:
        if copy.source is not None:
            for stream in self._concerned(copy):
                self._wait(stream, copy.out)
            copy.source = None
        self._await_back(copy)

    def back(self, copy: HostCopy, storage: torch.UntypedStorage) -> None:
        streams, compute = self.streams, self.streams.compute()
        streams.wait(streams.back, streams.record(compute))
        streams.wait(streams.back, copy.out)
        copy.owner, copy.waiting = compute, []
        copy.back = self._copy(streams.back, bytes_of(storage), copy.buffer.memory[: copy.num_bytes])

    def use(self, copy: HostCopy, storage: torch.UntypedStorage) -> None:
        self._await_back(copy)
        compute = self.streams.compute()
        if compute != copy.owner:
            self.streams.lend(storage, compute)

    def give_back(self, copy: HostCopy) -> None:
        self.let_go(copy)
        if copy.back is not None:
            self.streams.wait(self.streams.out, copy.back)
        self.pool.give_back(copy.buffer)

    def begin_times(self) -> None:
        self._is_timed = True
        self._copies.clear()
        self._waits.clear()

    def times(self) -> CopyTimes:
        self.streams.synchronize()
        return CopyTimes(self._copies.total(), self._waits.total())

    def _copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> Any:
        begin = self.streams.record(stream) if self._is_timed else None
        self.streams.copy(stream, target, source)
        end = self.streams.record(stream)
        if begin is not None:
            self._copies.add(begin, end)
        return end

    def _concerned(self, copy: HostCopy) -> list[Any]:
        """The stream of the device's work now, and that of the memory where it is another one."""
        compute = self.streams.compute()
        return [compute] if compute == copy.owner else [compute, copy.owner]

    def _await_back(self, copy: HostCopy) -> None:
        if copy.back is None:
            return
        for stream in self._concerned(copy):
            if stream not in copy.waiting:
                self._wait(stream, copy.back)
                copy.waiting.append(stream)

    def _wait(self, stream: Any, event: Any) -> None:
        begin = self.streams.record(stream) if self._is_timed else None
        self.streams.wait(stream, event)
        if begin is not None:
            self._waits.add(begin, self.streams.record(stream))


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """A storage's bytes: uint8 [bytes], over the same memory."""
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage)


def device_of(model: nn.Module, asked: torch.device | str | None = None) -> torch.device:
    """The device of the model's parameters, without any of its buffers; or the one that was asked for.

    Raises:
        ConfigError: the model has neither, and none was asked for; or what was asked for is no device.
    """
    if asked is not None:
        try:
            return torch.empty(0, device=asked).device  # "cuda" is the current one, with its number
        except (RuntimeError, TypeError) as error:
            reason = (str(error).strip().splitlines() or ["no message"])[0]
            raise ConfigError(f"PyTorch refuses device {asked!r}: {reason}") from error
    first = next(itertools.chain(model.parameters(), model.buffers()), None)
    if first is None:
        raise ConfigError("the model has no parameters or buffers that show its device: give device=…")
    return first.device


def copier_for(device: torch.device) -> Copier:
    """The way to copy between the host and a device.

    Raises:
        ConfigError: there is none.
    """
    some = torch.empty(0, device=device)
    if some.is_cuda:
        return StreamCopier(CudaStreams(device))
    if some.is_cpu:
        return CpuCopier()
    raise ConfigError(f"offloading needs a model on a CUDA device or on the CPU, not on {device}: move the model")
