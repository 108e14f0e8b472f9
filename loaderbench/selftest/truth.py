"""The true time of a run by a stopwatch: a plain loop and the wall clock, without the estimators.

Jobs of the measuring process (running/jobs/table.py) for the self-test only. Two sides, a run with an
injection and the same run without, are built next to each other and take turns, so that other load of the machine
affects both.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from loaderbench.images.cache_state import evict_files
from loaderbench.loaders.base import MAX_STEPS_IN_FLIGHT, Batch
from loaderbench.recording.progress import Report
from loaderbench.running.rig import Rig
from loaderbench.running.streams import close
from loaderbench.selftest.jobs import DeviceTimeRequest, LoaderTimeRequest, Side, WallTimeRequest

TURNS = 3


def loader_seconds(request: LoaderTimeRequest, report: Report) -> float:
    """Seconds a batch of the case's loader, free-running, with its files in the page cache: the fastest of TURNS parts,
    since other load of the machine only adds time."""
    case = request.case
    with ExitStack() as stack:
        rig = Rig(case, stack, report, request.injection)
        batches = rig.build_loader(rig.data, evict=False).batches()
        depth = max(rig.buffer_batches, 1)
        num_warmup = len(rig.images) // case.step.batch_size + depth + 2  # once through, so that all is cached
        for _ in range(num_warmup):
            next(batches)
        times = []
        for _ in range(TURNS):
            taken, begun = 0, time.perf_counter()
            # Workers hand over in bursts: count whole rounds.
            while (
                (spent := time.perf_counter() - begun) < request.seconds / TURNS or taken < 4 or taken % case.feed.lanes
            ):
                next(batches)
                taken += 1
            times.append(spent / taken)
        close(batches)
        return min(times)


def device_seconds(request: DeviceTimeRequest, report: Report) -> float:
    """Seconds a step of the case's device with one batch that stays on it."""
    with ExitStack() as stack:
        rig = Rig(request.case, stack, report, request.injection)
        batches = rig.build_loader(rig.data, evict=False).batches()
        inputs, targets = _on_device(rig, next(batches))
        close(batches)  # what its workers prepare ahead would take the processors that a step on them needs
        for _ in range(3):
            rig.workload.step(inputs, targets)
        rig.device.synchronize()
        begun = time.perf_counter()
        for _ in range(request.num_steps):
            rig.workload.step(inputs, targets)
        rig.device.synchronize()
        return (time.perf_counter() - begun) / request.num_steps


def wall_seconds(request: WallTimeRequest, report: Report) -> list[tuple[float, ...]]:
    """Wall seconds a step of each side, in each of the rounds."""
    disturber = request.disturber
    with ExitStack() as stack:
        built = [_BuiltSide(side, stack, report) for side in request.sides]
        times: list[list[float]] = [[] for _ in built]
        if disturber is not None:
            stack.callback(disturber.turn, on=True)
        for number in range(request.rounds):
            for side, kept in zip(built, times, strict=True):
                if disturber is not None:
                    disturber.turn(on=side.disturbed)
                kept.append(side.seconds_per_step(number, request.seconds))
        return [tuple(kept) for kept in times]


class _BuiltSide:
    def __init__(self, side: Side, stack: ExitStack, report: Report) -> None:
        self._case, self._cold, self.disturbed = side.case, side.cold, side.disturbed
        self._rig = Rig(side.case, stack, report, side.injection)
        self._loader = self._rig.build_loader(self._rig.data, evict=side.cold)

    def seconds_per_step(self, epoch: int, seconds: float) -> float:
        if self._cold:
            evict_files(self._rig.data.files.paths())
        else:
            for path in self._rig.data.files.paths():
                with open(path, "rb") as file:
                    file.read()
        batches = self._loader.batches(epoch)
        in_flight: deque[Any] = deque()
        for _ in range(max(self._rig.buffer_batches, 1) + 4):
            self._step(batches, in_flight)
        taken, begun = 0, time.perf_counter()
        workers = self._case.feed.lanes  # they hand over in bursts: count whole rounds
        while (spent := time.perf_counter() - begun) < seconds or taken < 6 or taken % workers:
            self._step(batches, in_flight)
            taken += 1
        self._rig.device.synchronize()
        close(batches)
        return spent / taken

    def _step(self, batches: Iterator[Batch], in_flight: deque[Any]) -> None:
        self._rig.workload.step(*_on_device(self._rig, next(batches)))
        in_flight.append(self._rig.device.record())
        if len(in_flight) > MAX_STEPS_IN_FLIGHT:
            self._rig.device.wait(in_flight.popleft())


def _on_device(rig: Rig, batch: Batch) -> tuple[Any, Any]:
    return (batch.inputs, batch.targets) if batch.on_device else rig.device.copy_in(batch.inputs, batch.targets)
