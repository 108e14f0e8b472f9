"""The job of `model io`: a batch's way to the device and its outputs' way back, without the step between them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loaderbench.cases.case import Step
from loaderbench.devices.base import Device
from loaderbench.devices.select import open_device
from loaderbench.errors import ConfigError, OutOfMemory
from loaderbench.recording.progress import Phase, Report
from loaderbench.running.jobs.table import CopiesRequest, CopiesTimed
from loaderbench.workloads import build_workload
from loaderbench.workloads.example import image_size
from loaderbench.workloads.training import ModelWorkload

NUM_WARM = 3
NUM_COPIES = 20
"""Of each way, at least."""


@dataclass(frozen=True)
class _Ready:
    """A device, images in the host's memory, and the largest batch's outputs on the device."""

    device: Device
    images: Any
    outputs: Any
    there: Any
    """Memory for the images beside them, where the device computes in the host's; else None."""
    back: Any
    """Memory for the outputs on the host."""


@functools.lru_cache(maxsize=1)
def _ready(step: Step, seed: int) -> _Ready:
    """Made at the first request of this process.

    Raises:
        LoaderbenchError: as open_device, build_workload and the step of one image.
    """
    device = open_device(step, image_size(step, None))
    workload = build_workload(step, device, image_size=image_size(step, None), seed=seed, num_classes=1)
    if not isinstance(workload, ModelWorkload):
        raise ConfigError(f"--model {step.model} is no model of PyTorch, whose outputs could be copied")
    inputs, targets = workload.example("float32")
    images = device.pin(inputs)
    workload.step(*device.copy_in(images[:1], targets[:1]))
    one = workload.last_output
    outputs = one.new_zeros((step.batch_size, *one.shape[1:]))
    back = device.pin(torch.zeros(outputs.shape, dtype=outputs.dtype))
    return _Ready(device, images, outputs, None if device.copies else torch.zeros_like(images), back)


def time_copies(request: CopiesRequest, report: Report) -> CopiesTimed:
    """Time copies of a batch's images and of its outputs, each from an idle device to its end, the host's clock.

    From and to pinned memory where the device has memory of its own; else from one part of the host's to another.

    Raises:
        OutOfMemory: the batch does not fit.
        LoaderbenchError: as open_device, build_workload and the step of one image.
    """
    report(Phase("starting"))
    ready, rows = _ready(request.step, request.seed), slice(0, request.batch_size)
    device, images, outputs = ready.device, ready.images[rows], ready.outputs[rows]
    no_targets = torch.empty(0, dtype=torch.int64)

    def copy_in() -> None:
        if ready.there is None:
            device.copy_in(images, no_targets)
            device.wait(device.record_copy())
        else:
            ready.there[rows].copy_(images)

    def copy_out() -> None:
        ready.back[rows].copy_(outputs, non_blocking=True)
        device.wait(device.record())

    try:
        in_s, out_s = _times(copy_in, request.seconds), _times(copy_out, request.seconds)
    except RuntimeError as error:
        whose = device.out_of_memory(error)
        if whose is None:
            raise
        raise OutOfMemory(f"{request.batch_size} images need more than {whose}") from error
    return CopiesTimed(device.describe(), images.nbytes, outputs.nbytes, in_s, out_s)


def _times(copy: Callable[[], None], seconds: float) -> NDArray[np.float64]:
    """[num_copies] seconds of each, for so long, and at least NUM_COPIES."""
    for _ in range(NUM_WARM):
        copy()
    taken: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(taken) < NUM_COPIES or time.perf_counter() < deadline:
        begun = time.perf_counter()
        copy()
        taken.append(time.perf_counter() - begun)
    return np.array(taken)
