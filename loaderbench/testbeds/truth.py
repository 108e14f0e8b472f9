"""What a run really takes, by a stopwatch: a plain loop and the wall clock, nothing of the estimators.

Jobs of the measuring process (`loaderbench.running.child`), asked for by the self-test alone. Two sides, a run
with an injection and the same run without, are built next to each other and take turns, so that whatever
else the machine does meets both.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from loaderbench.cases.case import Case
from loaderbench.images.cache_state import evict_files
from loaderbench.loaders.base import MAX_STEPS_IN_FLIGHT, Batch
from loaderbench.running.worker import Rig

Report = Callable[[str, Any], None]


def loader_seconds(case: Case, report: Report, seconds: float = 1.0) -> float:
    """Seconds a batch of the case's loader, running free, its files in the page cache."""
    with ExitStack() as stack:
        rig = Rig(case, stack, report)
        batches = rig.build_loader(rig.data, evict=False).batches()
        num_warmup = len(rig.images) // case.batch_size + _depth(case) + 2  # once through, so that all is cached
        for _ in range(num_warmup):
            next(batches)
        taken, begun = 0, time.perf_counter()
        while (spent := time.perf_counter() - begun) < seconds or taken < 4:
            next(batches)
            taken += 1
        _close(batches)
        return spent / taken


def device_seconds(
    case: Case, report: Report, injection: Mapping[str, Any] | None = None, num_steps: int = 20
) -> float:
    """Seconds a step of the case's device with one batch that stays on it."""
    with ExitStack() as stack:
        rig = Rig(case, stack, report, dict(injection or {}))
        batches = rig.build_loader(rig.data, evict=False).batches()
        batch = next(batches)
        inputs, targets = (batch.inputs, batch.targets) if batch.on_device else _copied(rig, batch)
        for _ in range(3):
            rig.workload.step(inputs, targets)
        rig.device.synchronize()
        begun = time.perf_counter()
        for _ in range(num_steps):
            rig.workload.step(inputs, targets)
        rig.device.synchronize()
        _close(batches)
        return (time.perf_counter() - begun) / num_steps


def wall_seconds(
    case: Case, report: Report, sides: Sequence[Mapping[str, Any]], seconds: float = 1.0, rounds: int = 2
) -> list[float]:
    """Wall seconds a step of each side, the fastest of its rounds: what else the machine does only adds.

    A side is {"injection": {…}, "dataset": path or None (the case's), "cold": bool}.
    """
    with ExitStack() as stack:
        built = [_Side(case, stack, report, side) for side in sides]
        times: list[list[float]] = [[] for _ in built]
        for number in range(rounds):
            for side, kept in zip(built, times, strict=True):
                kept.append(side.seconds_per_step(number, seconds))
        return [min(kept) for kept in times]


class _Side:
    def __init__(self, case: Case, stack: ExitStack, report: Report, side: Mapping[str, Any]) -> None:
        changed = {**case.to_json(), "dataset": side.get("dataset") or case.dataset}
        self._case = Case.from_json(changed)
        self._rig = Rig(self._case, stack, report, dict(side.get("injection") or {}))
        self._cold = bool(side.get("cold"))
        self._loader = self._rig.build_loader(self._rig.data, evict=self._cold)

    def seconds_per_step(self, epoch: int, seconds: float) -> float:
        if self._cold:
            evict_files(self._rig.data.files.paths())
        else:
            for path in self._rig.data.files.paths():
                with open(path, "rb") as file:
                    file.read()
        batches = self._loader.batches(epoch)
        in_flight: deque[Any] = deque()
        for _ in range(_depth(self._case) + 4):
            self._step(batches, in_flight)
        taken, begun = 0, time.perf_counter()
        workers = self._case.lanes  # they hand over in bursts: count whole rounds of them
        while (spent := time.perf_counter() - begun) < seconds or taken < 6 or taken % workers:
            self._step(batches, in_flight)
            taken += 1
        self._rig.device.synchronize()
        _close(batches)
        return spent / taken

    def _step(self, batches: Iterator[Batch], in_flight: deque[Any]) -> None:
        batch = next(batches)
        inputs, targets = (batch.inputs, batch.targets) if batch.on_device else _copied(self._rig, batch)
        self._rig.workload.step(inputs, targets)
        in_flight.append(self._rig.device.record())
        if len(in_flight) > MAX_STEPS_IN_FLIGHT:
            self._rig.device.wait(in_flight.popleft())


def _copied(rig: Rig, batch: Batch) -> tuple[Any, Any]:
    return rig.device.copy_in(batch.inputs, batch.targets)


def _depth(case: Case) -> int:
    return max(case.buffer_batches, 1)


def _close(batches: Any) -> None:
    batches.close()
