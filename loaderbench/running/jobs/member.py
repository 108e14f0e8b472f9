"""Jobs of a member of `model split`: a device with the model on it, and turns on its part of the batch.

A turn: the part's copy to the device, the step, the outputs' copy to the host. On a device in the host's memory both
copies are nothing. All stamps are of perf_counter_ns, on Linux CLOCK_MONOTONIC: one clock for all processes of a
machine (clock_gettime(2)).
"""

from __future__ import annotations

import functools
import time

import numpy as np
from numpy.typing import NDArray

from loaderbench.devices.base import Device
from loaderbench.devices.select import open_device
from loaderbench.errors import OutOfMemory
from loaderbench.recording.facts import DeviceFacts
from loaderbench.recording.progress import Phase, Report, StepsDone
from loaderbench.running.jobs.table import MemberRequest, PartRequest, PartRun, RepeatRequest, WarmRequest
from loaderbench.workloads import build_workload
from loaderbench.workloads.base import Workload
from loaderbench.workloads.example import image_size
from loaderbench.workloads.training import ModelWorkload

SPIN_NS = 1_000_000
"""Before a common start the process sleeps, and spins for the last of it: a sleeper wakes 0.06 ms late and more."""
REPORT_NS = 1_000_000_000


class Member:
    """The model on its device, beside the whole batch in the host's memory. Every member draws the same weights and the
    same batch from the same seed.

    Raises:
        OutOfMemory: the model, or the batch in the host's memory, does not fit.
        LoaderbenchError: as open_device and build_workload.
    """

    def __init__(self, request: MemberRequest) -> None:
        step = request.step
        self._step = step
        self.device: Device = open_device(step, image_size(step, None))
        try:
            self._workload: Workload = build_workload(
                step, self.device, image_size=image_size(step, None), seed=request.seed, num_classes=1
            )
            inputs, targets = self._workload.example("float32")
            self._inputs, self._targets = self.device.pin(inputs), self.device.pin(targets)
        except (OutOfMemory, RuntimeError) as error:
            if (whose := self._too_small(error)) is None:
                raise
            raise OutOfMemory(f"the model and the batch beside it need more than {whose}") from error
        self.facts: DeviceFacts = self.device.describe()

    @property
    def num_warm(self) -> int:
        """Turns of a size that is new before a clock may start."""
        return 1 if self.facts.on_host_cpus else max(1, self.device.num_search_steps)

    def turn(self, first: int, size: int) -> tuple[int, int, NDArray[np.float32] | None]:
        """(begin, end, outputs [size, classes]) of the images from `first` on; no outputs of a device that computes
        nothing.

        Raises:
            OutOfMemory: the part does not fit.
        """
        rows = slice(first, first + size)
        begin_ns = time.perf_counter_ns()
        try:
            inputs, targets = self.device.copy_in(self._inputs[rows], self._targets[rows])
            self._workload.step(inputs, targets)
            self.device.wait(self.device.record())
            output = None
            if isinstance(self._workload, ModelWorkload):
                output = self._workload.last_output.float().cpu().numpy()
        except OutOfMemory as error:
            self.device.release_memory()
            raise OutOfMemory(f"{size} images need more than {self._too_small(error) or 'its memory'}") from error
        return begin_ns, time.perf_counter_ns(), output

    def _too_small(self, error: BaseException) -> str | None:
        """Which memory, in words; None where the error is another one."""
        cause = error.__cause__ if isinstance(error, OutOfMemory) else error
        return None if cause is None else self.device.out_of_memory(cause)


@functools.lru_cache(maxsize=1)
def _member(request: MemberRequest) -> Member:
    """The member of this process, made at its first job."""
    return Member(request)


def open_member(request: MemberRequest, report: Report) -> DeviceFacts:
    """Start the device and build the model. Raises as Member."""
    report(Phase("building the model"))
    return _member(request).facts


def warm_member(request: WarmRequest, report: Report) -> float:
    """Seconds of the last of some turns that prepare this size. Raises OutOfMemory."""
    member = _member(request.member)
    begin_ns = end_ns = 0
    for _ in range(member.num_warm):
        begin_ns, end_ns, _ = member.turn(0, request.size)
    return (end_ns - begin_ns) / 1e9


def repeat_part(request: RepeatRequest, report: Report) -> NDArray[np.int64]:
    """[num_turns, 2] begin and end of turns one after the other, from the start until one ends behind the end.

    Raises:
        OutOfMemory: the part does not fit.
    """
    member = _member(request.member)
    stamps: list[tuple[int, int]] = []
    reported_ns = time.perf_counter_ns()
    _wait_until(request.start_ns)
    while not stamps or stamps[-1][1] < request.until_ns:
        begin_ns, end_ns, _ = member.turn(0, request.size)
        stamps.append((begin_ns, end_ns))
        if end_ns - reported_ns > REPORT_NS:
            reported_ns = end_ns
            report(StepsDone(len(stamps), len(stamps)))
    return np.array(stamps, dtype=np.int64)


def run_part(request: PartRequest, report: Report) -> PartRun:
    """One turn from the common start on. Raises OutOfMemory where the part does not fit."""
    member = _member(request.member)
    _wait_until(request.start_ns)
    begin_ns, end_ns, output = member.turn(request.first, request.size)
    return PartRun(begin_ns, end_ns, output if request.with_output else None)


def _wait_until(start_ns: int) -> None:
    if (remaining := start_ns - SPIN_NS - time.perf_counter_ns()) > 0:
        time.sleep(remaining / 1e9)
    while time.perf_counter_ns() < start_ns:
        pass
