"""The job of `model io`: a batch's way to the device and its outputs' way back, without the step between them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loaderbench.cases.case import Step
from loaderbench.devices.base import Device
from loaderbench.devices.select import open_device
from loaderbench.errors import ConfigError, OutOfMemory
from loaderbench.machine import largest_cache_bytes
from loaderbench.recording.progress import Phase, Report
from loaderbench.running.jobs.table import CopiesRequest, CopiesTimed
from loaderbench.running.models import on_device, pinned
from loaderbench.workloads import build_workload
from loaderbench.workloads.example import image_size
from loaderbench.workloads.objective import tensors_of
from loaderbench.workloads.training import ModelWorkload

NUM_WARM = 3
NUM_COPIES = 20
"""Of each way, at least."""
CACHES = 2
"""Times the largest cache: bytes of the host's memory that are copied before the same ones come again."""
UNKNOWN_CACHE_BYTES = 128 << 20
"""Where the kernel does not tell: an assumption, beyond the last-level cache of most sockets."""
ALIGNMENT = 64
"""A line of the cache: where a copy begins."""


Pieces = tuple[torch.Tensor, torch.Tensor]
"""(whence, where to)"""


class Pool:
    """Memory from which each copy takes the next piece, so that no cache still holds it."""

    def __init__(self, memory: Any) -> None:
        """`memory`: [bytes] uint8."""
        self._memory, self._at = memory, 0

    def next(self, like: torch.Tensor) -> torch.Tensor:
        """Memory for a tensor of this shape and type. Its values are whatever lies there."""
        begin = self._at if self._at + like.nbytes <= len(self._memory) else 0
        self._at = -(-(begin + like.nbytes) // ALIGNMENT) * ALIGNMENT
        piece: torch.Tensor = self._memory[begin : begin + like.nbytes]
        return piece.view(like.dtype).view(like.shape)


@dataclass(frozen=True)
class _Ready:
    """A device, with the bytes of the largest batch's inputs and outputs."""

    device: Device
    inputs: torch.Tensor
    """uint8 [batch, bytes of a sample], without memory."""
    outputs: torch.Tensor
    """uint8 [batch, bytes of a sample], on the device."""
    host: Pool
    there: Pool | None
    """Where the device computes in the host's memory: the other part of it."""


@functools.lru_cache(maxsize=1)
def _ready(step: Step, seed: int) -> _Ready:
    """Made at the first request of this process.

    Raises:
        LoaderbenchError: as open_device, build_workload and the step of one image.
    """
    device = open_device(step, image_size(step))
    one = replace(step, batch_size=1)
    workload = build_workload(one, device, image_size=image_size(step), seed=seed, num_classes=1)
    if not isinstance(workload, ModelWorkload):
        raise ConfigError(f"--model {step.model} is not a PyTorch model, so it has no outputs to copy: use one")
    inputs, targets = workload.example("float32")
    workload.step(*on_device(device, pinned(device, inputs), targets))
    given, made = (sum(one.nbytes for one in tensors_of(some)) for some in (inputs, workload.last_output))
    outputs = torch.zeros((step.batch_size, made), dtype=torch.uint8, device=device.torch_device)
    images = torch.empty((step.batch_size, given), dtype=torch.uint8, device="meta")
    cold = CACHES * (largest_cache_bytes() or UNKNOWN_CACHE_BYTES)
    num_bytes = max(cold, images.nbytes, outputs.nbytes)
    host, there = (torch.empty(num_bytes, dtype=torch.uint8) for _ in range(2))
    host.zero_()  # pages that were never written are all the same one
    if device.copies:
        return _Ready(device, images, outputs, Pool(device.pin(host)), None)
    return _Ready(device, images, outputs, Pool(host), Pool(there.zero_()))


def time_copies(request: CopiesRequest, report: Report) -> CopiesTimed:
    """Time copies of a batch's images and of its outputs, each from an idle device to its end, the host's clock.

    From and to pinned memory where the device has memory of its own; else from one part of the host's to another, by
    one thread. No copy begins in memory that a cache still holds.

    Raises:
        OutOfMemory: the batch does not fit.
        LoaderbenchError: as open_device, build_workload and the step of one image.
    """
    report(Phase("starting"))
    ready, rows = _ready(request.step, request.seed), slice(0, request.batch_size)
    device, images, outputs = ready.device, ready.inputs[rows], ready.outputs[rows]
    no_targets = torch.empty(0, dtype=torch.int64)

    def pieces_in() -> Pieces:
        return ready.host.next(images), images if ready.there is None else ready.there.next(images)

    def copy_in(source: torch.Tensor, target: torch.Tensor) -> None:
        if ready.there is None:
            device.copy_in(source, no_targets)
            device.wait(device.record_copy())
        else:
            target.copy_(source)

    def pieces_out() -> Pieces:
        return outputs if ready.there is None else ready.there.next(outputs), ready.host.next(outputs)

    def copy_out(source: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)
        device.wait(device.record())

    facts, threads = device.describe(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        in_s = _times(pieces_in, copy_in, request.seconds)
        out_s = _times(pieces_out, copy_out, request.seconds)
    except RuntimeError as error:
        whose = device.out_of_memory(error)
        if whose is None:
            raise
        raise OutOfMemory(f"{request.batch_size} images need more than {whose}") from error
    finally:
        torch.set_num_threads(threads)
    return CopiesTimed(facts, images.nbytes, outputs.nbytes, in_s, out_s)


def _times(
    pieces: Callable[[], Pieces], copy: Callable[[torch.Tensor, torch.Tensor], None], seconds: float
) -> NDArray[np.float64]:
    """[num_copies] seconds of each, for so long, and at least NUM_COPIES; finding the pieces is not timed."""
    for _ in range(NUM_WARM):
        copy(*pieces())
    taken: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(taken) < NUM_COPIES or time.perf_counter() < deadline:
        source, target = pieces()
        begun = time.perf_counter()
        copy(source, target)
        taken.append(time.perf_counter() - begun)
    return np.array(taken)
