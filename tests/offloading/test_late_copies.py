"""The engines over queues whose copies are done as late as they may be: when compute waits for them, and not before.

Compute is the CPU's own, which runs at once, so a copy that nobody waits for is missing, and one whose memory was let
go of too early finds it gone.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from loaderbench.cases.case import Mode
from loaderbench.offloading.copies import StreamCopier
from loaderbench.offloading.hooks import Offload
from loaderbench.offloading.inference import InferenceOffload
from loaderbench.offloading.plan import Plan, least_cap, plan_for
from loaderbench.offloading.pool import HostPool
from loaderbench.offloading.sources import PlanSource, SizeSource, Source
from tests.offloading.steps import Running, equal, results, step_of, traced

COMPUTE = 0


@dataclass
class Event:
    stream: int
    is_reached: bool = False


@dataclass
class LateStreams:
    """As those of a device that begins a copy only when it must."""

    out: int = 1
    back: int = 2
    queues: dict[int, deque[Any]] = field(default_factory=lambda: {1: deque(), 2: deque()})
    num_late: int = 0

    def compute(self) -> int:
        return COMPUTE

    def record(self, stream: int) -> Event:
        if stream == COMPUTE:
            return Event(stream, is_reached=True)
        event = Event(stream)
        self.queues[stream].append(event)
        return event

    def wait(self, stream: int, event: Event) -> None:
        if stream == COMPUTE:
            self._reach(event)
        else:
            self.queues[stream].append(lambda: self._reach(event))

    def _reach(self, event: Event) -> None:
        while not event.is_reached:
            self._do(self.queues[event.stream].popleft())

    def lend(self, storage: torch.UntypedStorage, stream: int) -> None:
        raise AssertionError("there is one stream of compute")

    def copy(self, stream: int, target: torch.Tensor, source: torch.Tensor) -> None:
        views = [(weakref.ref(one.untyped_storage()), one.storage_offset(), one.shape) for one in (target, source)]

        def late() -> None:
            self.num_late += 1
            storages = [(of(), offset, size) for of, offset, size in views]
            assert None not in [storage for storage, _, _ in storages], "memory was let go of before its copy was done"
            to, of = (torch.empty(0, dtype=torch.uint8).set_(*one) for one in storages)  # type: ignore[call-overload]
            to.copy_(of)

        self.queues[stream].append(late)

    def synchronize(self) -> None:
        for queue in self.queues.values():
            while queue:
                self._do(queue.popleft())

    def seconds(self, begin: Event, end: Event) -> float:
        return 0.0

    def is_reached(self, event: Event) -> bool:
        return event.is_reached

    def _do(self, what: Any) -> None:
        if isinstance(what, Event):
            what.is_reached = True
        else:
            what()


def late() -> tuple[StreamCopier, LateStreams]:
    streams = LateStreams()
    return StreamCopier(streams, HostPool(lambda size: torch.full((size,), 255, dtype=torch.uint8))), streams


def plans(name: str, mode: Mode) -> list[Plan]:
    trace = traced(step_of(name, mode=mode))
    return [plan_for(trace, above_bytes=0), plan_for(trace, cap_bytes=least_cap(trace))]


@pytest.mark.parametrize("name", ["lenet", "Views", "InPlace", "Reused", "Dropout", "Custom"])
def test_gradients_are_bit_equal(name: str) -> None:
    step = step_of(name)
    expected, _ = results(step)
    sources: list[Source] = [*map(PlanSource, plans(name, "train")), SizeSource(0, 0)]
    for source in sources:
        running, (copier, streams) = Running(step), late()
        found = []
        with Offload(running.workload.model, source, copier) as engine:
            for _ in range(2):
                running.once(engine)
                found += running.results()
        assert equal(found, expected) and streams.num_late > 2


@pytest.mark.parametrize("name", ["lenet", "Views", "InPlace", "Reused"])
def test_outputs_are_bit_equal(name: str) -> None:
    step = step_of(name, mode="infer")
    expected, _ = results(step)
    for plan in plans(name, "infer"):
        running, (copier, streams) = Running(step), late()
        found = []
        with InferenceOffload(running.workload.model, plan, copier) as engine:
            for _ in range(2):
                running.once(engine)
                found += running.results()
        assert equal(found, expected) and streams.num_late > 2
