"""The order of copies on a made-up device: its queues run whenever they may, and memory that is let go of is given out
again at once, as CUDA's allocator does within one stream."""

from __future__ import annotations

import ctypes
import random
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

from loaderbench.offloading.copies import CpuCopier, HostCopy, StreamCopier
from loaderbench.offloading.plan import buffer_bytes
from loaderbench.offloading.pool import HostPool

BYTES = 5000


class Event:
    def __init__(self) -> None:
        self.is_reached = False


NAMES = ("compute", "out", "back", "compute")
"""Of the queues."""


class MadeUpDevice:
    """A queue for copies each way, and two for compute, each with an allocator of its own."""

    out, back = 1, 2

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.queues: list[deque[tuple[str, Any]]] = [deque() for _ in NAMES]
        self.blocks: list[torch.Tensor] = []
        self.free: dict[int, list[int]] = {0: [], 3: []}
        """Stream → blocks that it may have."""
        self.lent: dict[int, set[int]] = {}
        """Block → other streams that use it."""
        self.pending: list[tuple[int, int, list[Event]]] = []
        """(stream, block, what it is free behind)."""
        self.current = 0
        self.num_copies = 0

    # -- what StreamCopier asks of it

    def compute(self) -> int:
        return self.current

    def lend(self, storage: torch.UntypedStorage, stream: int) -> None:
        (block,) = [number for number, one in enumerate(self.blocks) if one.data_ptr() == storage.data_ptr()]
        self.lent.setdefault(block, set()).add(stream)

    def record(self, stream: int) -> Event:
        event = Event()
        self.queues[stream].append(("record", event))
        return event

    def wait(self, stream: int, event: Event) -> None:
        self.queues[stream].append(("wait", event))

    def copy(self, stream: int, target: torch.Tensor, source: torch.Tensor) -> None:
        assert target.numel() == source.numel() == BYTES
        to, of = target.data_ptr(), source.data_ptr()  # no tensor is held: as on a device, memory may be given out anew
        self.num_copies += 1
        self.queues[stream].append(("do", lambda: ctypes.memmove(to, of, BYTES)))

    def synchronize(self) -> None:
        self.run(None)

    def seconds(self, begin: Event, end: Event) -> float:
        assert begin.is_reached and end.is_reached
        return 1.0

    def is_reached(self, event: Event) -> bool:
        return event.is_reached

    # -- what a model asks of it

    def allocate(self) -> torch.UntypedStorage:
        """Memory for compute: what was let go of last comes first."""
        owner = self.current
        for one in [one for one in self.pending if all(event.is_reached for event in one[2])]:
            self.pending.remove(one)
            self.free[one[0]].append(one[1])
        if not self.free[owner]:
            self.blocks.append(torch.zeros(BYTES, dtype=torch.uint8))
            self.free[owner].append(len(self.blocks) - 1)
        number = self.free[owner].pop()
        memory = (ctypes.c_char * BYTES).from_address(self.blocks[number].data_ptr())
        storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
        weakref.finalize(storage, self._released, owner, number).atexit = False
        return storage

    def _released(self, owner: int, number: int) -> None:
        behind = [self.record(stream) for stream in self.lent.pop(number, ())]
        if behind:
            self.pending.append((owner, number, behind))
        else:
            self.free[owner].append(number)

    def write(self, storage: torch.UntypedStorage, value: int) -> None:
        at = storage.data_ptr()
        self.queues[self.current].append(("do", lambda: ctypes.memset(at, value, BYTES)))

    def read(self, storage: torch.UntypedStorage, seen: Callable[[bytes], None]) -> None:
        at = storage.data_ptr()
        self.queues[self.current].append(("do", lambda: seen(ctypes.string_at(at, BYTES))))

    def run(self, most: int | None) -> None:
        """Do what may be done, in any order that the queues and their waits allow; `most` of it."""
        while most is None or most > 0:
            ready = [one for one in self.queues if one and (one[0][0] != "wait" or one[0][1].is_reached)]
            if not ready:
                break
            kind, what = self.random.choice(ready).popleft()
            if kind == "record":
                what.is_reached = True
            elif kind == "do":
                what()
            most = None if most is None else most - 1
        assert most is not None or not any(self.queues), "queues wait for each other"


class Program:
    """Storages that are written, copied out, let go of, brought back, read and forgotten, at random.

    `changes`: the stream that is current changes between any two of these, and nothing else makes the two wait for each
    other.
    """

    def __init__(self, seed: int, *, changes: bool = False) -> None:
        self.device = MadeUpDevice(seed)
        self.changes = changes
        self.host = [torch.zeros(0)]
        self.copier = StreamCopier(self.device, HostPool(self._make))
        self.wrong: list[int] = []
        self.num_read = 0

    def _make(self, num_bytes: int) -> torch.Tensor:
        self.host.append(torch.zeros(num_bytes, dtype=torch.uint8))
        return self.host[-1]

    def change(self) -> None:
        if self.changes:
            self.device.current = self.device.random.choice((0, 3))

    def forward(self, value: int) -> HostCopy:
        self.change()
        storage = self.device.allocate()
        self.device.write(storage, value)
        copy = self.copier.out(storage)
        if self.device.random.random() < 0.5:  # a later operator reads it too
            self.check(storage, value)
        self.change()
        self.copier.let_go(copy)
        return copy

    def backward(self, copy: HostCopy, value: int, *, early: torch.UntypedStorage | None) -> None:
        self.change()
        storage = self.device.allocate() if early is None else early
        if early is None:
            self.copier.back(copy, storage)
        self.change()
        if self.device.random.random() < 0.2:  # brought for nothing
            self.copier.let_go(copy)
        else:
            self.copier.use(copy, storage)
            self.check(storage, value)
        self.change()
        self.copier.give_back(copy)

    def check(self, storage: torch.UntypedStorage, value: int) -> None:
        def seen(found: bytes) -> None:
            self.num_read += 1
            if found != bytes([value]) * BYTES:
                self.wrong.append(value)

        self.device.read(storage, seen)

    def step(self, first: int, num_saved: int = 6) -> None:
        copies = {}
        for value in range(first, first + num_saved):
            copies[value] = self.forward(value)
            self.device.run(self.device.random.randint(0, 4))
        ahead: torch.UntypedStorage | None = None
        for value in reversed(range(first, first + num_saved)):
            early, ahead = ahead, None
            if value > first and self.device.random.random() < 0.7:
                self.change()
                ahead = self.device.allocate()
                self.copier.back(copies[value - 1], ahead)
            self.backward(copies[value], value, early=early)
            del early
            self.device.run(self.device.random.randint(0, 6))


@pytest.mark.parametrize("seed", range(40))
def test_whatever_runs_first_no_copy_reads_or_writes_memory_of_others(seed: int) -> None:
    program = Program(seed)
    for number in range(3):
        program.step(1 + 10 * number)
    program.device.synchronize()
    assert program.wrong == [] and program.num_read > 10
    assert program.device.num_copies >= 36
    assert len(program.device.blocks) <= 4  # memory was given out again while copies were under way
    assert program.copier.pool.reserved_bytes <= 6 * buffer_bytes(BYTES)  # six are on the host at once


@pytest.mark.parametrize("seed", range(20))
def test_the_stream_may_change_between_any_two_calls(seed: int) -> None:
    """As where a model runs under `torch.cuda.stream` in its forward pass alone."""
    program = Program(seed, changes=True)
    for number in range(3):
        program.step(1 + 10 * number)
    program.device.synchronize()
    assert program.wrong == [] and program.num_read > 10
    assert len(program.device.blocks) <= 12  # memory was given out again


@pytest.mark.parametrize(
    ("without", "changes"),
    [
        ("out waits for compute", False),
        ("compute waits for out", False),
        ("back waits for compute", False),
        ("compute waits for back", False),
        ("back waits for out", True),
        ("out waits for back", True),
        ("lend", True),
    ],
)
def test_each_wait_is_needed(without: str, changes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up device finds what is wrong where any one of the waits is left out."""
    device = MadeUpDevice

    def wait(self: MadeUpDevice, stream: int, event: Event) -> None:
        by = self.made_by[id(event)]  # type: ignore[attr-defined]
        if f"{NAMES[stream]} waits for {by}" != without:
            self.queues[stream].append(("wait", event))

    def record(self: MadeUpDevice, stream: int) -> Event:
        event = Event()
        self.__dict__.setdefault("made_by", {})[id(event)] = NAMES[stream]
        self.__dict__.setdefault("kept", []).append(event)
        self.queues[stream].append(("record", event))
        return event

    monkeypatch.setattr(device, "wait", wait)
    monkeypatch.setattr(device, "record", record)
    if without == "lend":
        monkeypatch.setattr(device, "lend", lambda *_: None)
    wrong = 0
    for seed in range(60):
        program = Program(seed, changes=changes)
        for number in range(6):
            program.step(1 + number, num_saved=1)  # the buffer that was given back is the next one's
        for number in range(1, 4):
            program.step(1 + 10 * number)
        program.device.synchronize()
        wrong += len(program.wrong)
    assert wrong > 0


def test_times_are_those_of_copies_and_of_waits_for_them() -> None:
    program = Program(0)
    program.step(1)
    program.copier.begin_times()
    copy = program.forward(1)
    program.backward(copy, 1, early=None)
    found = program.copier.times()
    assert found.copy_s == 2.0  # a second each: out and in
    assert found.exposed_s == 2.0  # compute waited for both


def test_who_never_asks_for_times_keeps_few_events() -> None:
    program = Program(0)
    program.copier.begin_times()
    alive: list[Any] = []
    record = program.device.record

    def kept(stream: int) -> Event:
        event = record(stream)
        alive.append(weakref.ref(event))
        return event

    program.device.record = kept  # type: ignore[method-assign]
    for number in range(3000):
        copy = program.forward(number % 200)
        program.backward(copy, number % 200, early=None)
        program.device.synchronize()
    assert sum(one() is not None for one in alive) < 5000 < len(alive)
    assert program.copier.times().copy_s == 6000.0


def test_on_the_cpu_a_copy_is_done_at_once_and_nothing_hides_it() -> None:
    copier = CpuCopier()
    values = torch.arange(100, dtype=torch.float64)
    copier.begin_times()
    copy = copier.out(values.untyped_storage())
    other = torch.zeros(100, dtype=torch.float64)
    values.zero_()
    copier.back(copy, other.untyped_storage())
    assert torch.equal(other, torch.arange(100, dtype=torch.float64))
    times = copier.times()
    assert times.copy_s == times.exposed_s > 0


def test_buffers_are_powers_of_two_and_are_given_out_again() -> None:
    assert [buffer_bytes(size) for size in (1, 4096, 4097, 1 << 20, (1 << 20) + 1)] == [
        4096, 4096, 8192, 1 << 20, 1 << 21,
    ]  # fmt: skip
    pool = HostPool(bytearray)
    first, second = pool.take(5000), pool.take(8000)
    assert first.memory is not second.memory and pool.reserved_bytes == 2 * 8192
    pool.give_back(first)
    pool.give_back(second)
    assert pool.take(6000) is first and pool.take(4097) is second and pool.reserved_bytes == 2 * 8192
    assert pool.take(100).bytes == 4096
