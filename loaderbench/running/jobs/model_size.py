"""The job of `model size`: steps of one batch, their memory and how long each takes alone."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from loaderbench.devices.base import Device
from loaderbench.errors import OutOfMemory
from loaderbench.loaders.base import Batch
from loaderbench.recording.facts import STEP
from loaderbench.recording.model_size import StepRound
from loaderbench.recording.progress import Phase, Report, StepsDone
from loaderbench.running.jobs.table import BatchRequest, TimedBatch
from loaderbench.running.loop import StepLoop
from loaderbench.running.models import on_device, opened
from loaderbench.workloads import build_workload
from loaderbench.workloads.base import Workload
from loaderbench.workloads.example import image_size

NUM_SETTLING = 2
"""Steps between the reset of the memory peaks and the clock."""
REPORT_NS = 1_000_000_000


def time_batch(request: BatchRequest, report: Report) -> TimedBatch:
    """Time undisturbed steps on one batch that stays on the device: back to back, and, where the device works beside
    the host, each alone. Reports the steps done about once a second.

    Raises:
        LoaderbenchError: as build_workload and ModelWorkload.step.
    """
    with ExitStack() as stack:
        step = request.step
        report(Phase("building the model"))
        device = opened(step, stack)
        device.begin_memory()
        workload = build_workload(step, device, image_size=image_size(step), seed=request.seed, num_classes=1)
        batch = _resident(device, workload, step.batch_size)
        report(Phase("warming up"))
        loop = StepLoop(repeat(batch), device, workload, resident=True)
        loop.run(device.num_search_steps, sys.maxsize)
        device.release_memory()  # frees the memory of the algorithm search
        loop.run(NUM_SETTLING, sys.maxsize)
        num_before = len(loop.host)
        _run(loop, num_before, request, report)
        done_ns = loop.steps()[num_before - 1 :, STEP["done_ns"]]
        memory = device.memory()
        facts = device.describe()
        alone_s = None if facts.on_host_cpus else _alone(device, workload, batch, request)
        return TimedBatch(facts, StepRound(np.diff(done_ns) / 1e9, alone_s), memory, workload.describe())


def _resident(device: Device, workload: Workload, batch_size: int) -> Batch:
    """A random batch on the device. Raises OutOfMemory where it does not fit, there or into the host's memory."""
    try:
        inputs, targets = workload.example("float32")
    except RuntimeError as error:
        whose = device.out_of_memory(error)
        if whose is None:
            raise
        raise OutOfMemory(f"does not fit: a batch of {batch_size} images needs more than {whose}") from error
    return Batch(*on_device(device, inputs, targets), batch_size, 0)


def _run(loop: StepLoop, num_before: int, request: BatchRequest, report: Report) -> None:
    """Run the loop for the steps, or the seconds, of the request; but never fewer than the least. Between reports only
    the loop runs."""
    deadline_ns = time.perf_counter_ns() + round(request.seconds * 1e9)
    while (done := len(loop.host) - num_before) < request.num_steps:
        report(StepsDone(done, request.num_steps))
        now_ns = time.perf_counter_ns()
        if now_ns >= deadline_ns:
            if done >= request.least_steps:
                return
            loop.run(request.least_steps - done, sys.maxsize)
            return
        loop.run(request.num_steps - done, min(deadline_ns, now_ns + REPORT_NS))


def _alone(device: Device, workload: Workload, batch: Batch, request: BatchRequest) -> NDArray[np.float64]:
    """[num_steps] seconds of the host's clock from the first launch of a step, on an idle device, to its end. The host
    sleeps while it waits, so its waking is part of them."""
    device.synchronize()
    seconds: list[float] = []
    deadline = time.perf_counter() + request.seconds
    while len(seconds) < request.num_steps and (len(seconds) < request.least_steps or time.perf_counter() < deadline):
        begun = time.perf_counter()
        workload.step(batch.inputs, batch.targets)
        device.wait(device.record())
        seconds.append(time.perf_counter() - begun)
    return np.array(seconds)
