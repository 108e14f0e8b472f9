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
from loaderbench.recording.progress import Phase, Report
from loaderbench.running.jobs.table import MemberRequest, PartRequest, PartRun, WarmRequest
from loaderbench.running.models import on_device, pinned, rows_of
from loaderbench.workloads import build_workload
from loaderbench.workloads.base import Workload
from loaderbench.workloads.example import image_size
from loaderbench.workloads.objective import flat
from loaderbench.workloads.training import ModelWorkload

SPIN_NS = 1_000_000
"""Before a common start a member with processors of its own sleeps, and spins for the last of it: a sleeper wakes 0.06
ms late and more. A member on the host's processors spins all the time: two that wake at one instant may find themselves
on one processor, and one that slept is slow at first."""


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
        self.device: Device = open_device(step, image_size(step))
        try:
            self._workload: Workload = build_workload(
                step, self.device, image_size=image_size(step), seed=request.seed, num_classes=1
            )
            inputs, targets = self._workload.example("float32")
            self._inputs, self._targets = pinned(self.device, inputs), self.device.pin(targets)
        except (OutOfMemory, RuntimeError) as error:
            if (whose := self._too_small(error)) is None:
                raise
            raise OutOfMemory(f"the model and the batch need more than {whose}") from error
        self.facts: DeviceFacts = self.device.describe()
        self._sizes = set[int]()
        """Whose turns were done."""

    def warm(self, request: WarmRequest) -> float:
        """Seconds of the last of some turns: one, or as many as the device needs for a size that is new to it; and more
        until `until_ns`. Raises OutOfMemory."""
        is_new = request.size not in self._sizes and not self.facts.on_host_cpus
        left = max(1, self.device.num_search_steps) if is_new else 1
        begin_ns = end_ns = 0
        while left > 0 or end_ns < request.until_ns:
            begin_ns, end_ns, _ = self.turn(request.first, request.size)
            left -= 1
        self._sizes.add(request.size)
        return (end_ns - begin_ns) / 1e9

    def turn(self, first: int, size: int) -> tuple[int, int, NDArray[np.float32] | None]:
        """(begin, end, outputs [size, values]) of the samples from `first` on; no outputs of a device that computes
        nothing.

        Raises:
            OutOfMemory: the part does not fit.
        """
        rows = slice(first, first + size)
        begin_ns = time.perf_counter_ns()
        try:
            inputs, targets = on_device(self.device, rows_of(self._inputs, rows), self._targets[rows])
            self._workload.step(inputs, targets)
            self.device.wait(self.device.record())
            output = None
            if isinstance(self._workload, ModelWorkload):
                output = flat(self._workload.last_output).cpu().numpy()
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
    """As Member.warm."""
    return _member(request.member).warm(request)


def run_part(request: PartRequest, report: Report) -> PartRun:
    """One turn from the common start on; turns of which nothing is told follow until `until_ns`.

    Raises:
        OutOfMemory: the part does not fit.
    """
    member = _member(request.member)
    _wait_until(request.start_ns, asleep=not member.facts.on_host_cpus)
    begin_ns, end_ns, output = member.turn(request.first, request.size)
    last_ns = end_ns
    while last_ns < request.until_ns:
        _, last_ns, _ = member.turn(request.first, request.size)
    return PartRun(begin_ns, end_ns, output if request.with_output else None)


def _wait_until(start_ns: int, *, asleep: bool) -> None:
    if asleep and (remaining := start_ns - SPIN_NS - time.perf_counter_ns()) > 0:
        time.sleep(remaining / 1e9)
    while time.perf_counter_ns() < start_ns:
        pass
