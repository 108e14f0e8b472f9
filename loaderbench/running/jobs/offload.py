"""Jobs of `model offload`: a step's time under a plan, the memory that it then needs, and if its results are right."""

from __future__ import annotations

import gc
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from loaderbench.devices.base import Device
from loaderbench.devices.select import traits_of
from loaderbench.offloading.hooks import Offload, offload
from loaderbench.offloading.inference import InferenceOffload
from loaderbench.offloading.moves import OffloadStatistics
from loaderbench.recording.offload_study import OffloadTurn, ResultCheck
from loaderbench.recording.progress import Phase, Report, StepsDone
from loaderbench.running.jobs.memory import cap_gpu
from loaderbench.running.jobs.table import OffloadRequest, OffloadTimed
from loaderbench.running.memory_events import events_of, marked
from loaderbench.running.models import model_on, on_device, opened
from loaderbench.workloads.objective import tensors_of
from loaderbench.workloads.training import ModelWorkload

NUM_WARM = 2
"""Steps before the clock, beside the device's own: momentum and the pool of host buffers are there after the first."""
NUM_COUNTED = 2
"""Steps while memory is counted; the last one counts."""


def time_offload(request: OffloadRequest, report: Report) -> OffloadTimed:
    """Time steps under the plan, each from its first launch on an idle device to its end.

    Raises:
        OutOfMemory: it does not fit.
        LoaderbenchError: as the device's and the workload's build, the step, and the plan's execution.
    """
    with ExitStack() as stack:
        device = opened(request.step, stack)
        if not traits_of(request.step.device).on_host_cpus:
            cap_gpu(device, request.cap_bytes)
        run = _built(request, device, stack, report)
        report(Phase("warming up"))
        for _ in range(NUM_WARM + device.num_search_steps):
            run.step()
        device.release_memory()
        device.reset_peak_memory()
        run.forget()
        for number in range(request.num_steps):
            run.step()
            report(StepsDone(number + 1, request.num_steps))
        return OffloadTimed(device.describe(), run.turn(device.peak_memory_bytes()), run.unhooked())


def count_offload(request: OffloadRequest, report: Report) -> int | None:
    """Most bytes of the last step that PyTorch's allocator for the CPU had given out, by the profiler's memory events
    since before the model was built. None where the device counts its memory itself.

    Raises:
        LoaderbenchError: as time_offload.
    """
    if not traits_of(request.step.device).on_host_cpus:
        return None
    gc.collect()  # what an earlier job of this process left
    with ExitStack() as stack:
        device = opened(request.step, stack)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler, ExitStack() as inner:
            run = _built(request, device, inner, report)
            for number in range(NUM_COUNTED):
                with marked(str(number)):
                    run.step()
                report(StepsDone(number + 1, NUM_COUNTED))
        return events_of(profiler).peak_bytes(str(NUM_COUNTED - 1))


def check_offload(request: OffloadRequest, report: Report) -> ResultCheck:
    """Compare a first step under the plan with one without offloading. Where they differ, a second one without tells
    what two steps differ by anyway.

    Raises:
        OutOfMemory: the step does not fit without offloading.
        LoaderbenchError: as time_offload.
    """
    without = replace(request, plan=None)
    plain = _results(without, report)
    difference = _largest_difference(plain, _results(request, report))
    again = None if difference == 0 else _largest_difference(plain, _results(without, report))
    return ResultCheck(request.step.batch_size, len(plain), difference, again)


def _results(request: OffloadRequest, report: Report) -> list[torch.Tensor]:
    """What a first step gives, on the host: the gradients, in inference the outputs."""
    gc.collect()  # what the step before left
    with ExitStack() as stack:
        device = opened(request.step, stack)
        device.release_memory()
        run = _built(request, device, stack, report)
        torch.manual_seed(request.seed)  # what random layers draw
        run.step()
        model, infers = run.workload.model, request.step.mode == "infer"
        found = list(tensors_of(run.workload.last_output)) if infers else [one.grad for one in model.parameters()]
        return [one.detach().to("cpu", copy=True) for one in found if one is not None]


def _largest_difference(some: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """As ResultCheck has it."""
    if [one.shape for one in some] != [one.shape for one in others]:
        return math.nan
    found = [0.0]
    for one, other in zip(some, others, strict=True):
        if not torch.allclose(one, other, rtol=0, atol=0, equal_nan=True):
            largest = one.abs().double().max()
            found.append(float((one.double() - other.double()).abs().max() / largest))
    return max(found) if all(map(math.isfinite, found)) else math.nan


@dataclass
class _Run:
    """A model and its batch on the device, under a plan."""

    workload: ModelWorkload
    device: Device
    inputs: Any
    targets: Any
    offloading: Offload | InferenceOffload | None
    seconds: list[float] = field(default_factory=list)
    statistics: list[OffloadStatistics] = field(default_factory=list)

    def step(self) -> None:
        """One step, from an idle device to its end."""
        self.device.synchronize()
        begun = time.perf_counter()
        engine = self.offloading
        if isinstance(engine, InferenceOffload):
            engine.begin_step(*tensors_of(self.inputs), self.targets)
        elif engine is not None:
            engine.begin_step()
        self.workload.step(self.inputs, self.targets)
        if isinstance(engine, InferenceOffload):
            _, *others = tensors_of(self.inputs)
            self.statistics.append(engine.end_step([*others, *tensors_of(self.workload.last_output)]))
        elif engine is not None:
            self.statistics.append(engine.end_step())
        self.device.synchronize()
        self.seconds.append(time.perf_counter() - begun)

    def forget(self) -> None:
        """Nothing before this counts."""
        self.seconds, self.statistics = [], []

    def unhooked(self) -> tuple[str, ...]:
        return () if self.offloading is None else self.offloading.unhooked

    def turn(self, peak_live_bytes: int | None) -> OffloadTurn:
        """What was seen since `forget`."""
        seconds = np.array(self.seconds)
        if not self.statistics:
            nothing = 0 if self.offloading is None else None
            return OffloadTurn(seconds, None, None, nothing, nothing, nothing, nothing, peak_live_bytes=peak_live_bytes)
        last, copies = self.statistics[-1], [one.copy_s for one in self.statistics]
        return OffloadTurn(
            step_s=seconds,
            exposed_s=np.array([one.exposed_s for one in self.statistics]),
            copy_s=None if None in copies else np.array(copies, dtype=np.float64),
            host_bytes=last.host_peak_bytes,
            out_bytes=last.out_bytes,
            in_bytes=last.in_bytes,
            num_copies=last.num_out + last.num_in,
            peak_live_bytes=peak_live_bytes,
        )


def _built(request: OffloadRequest, device: Device, stack: ExitStack, report: Report) -> _Run:
    """The model on the device, with its plan in force until the stack is left."""
    step = request.step
    report(Phase("building the model"))
    workload = model_on(device, step, request.seed, "tensors cannot be offloaded")
    inputs, targets = on_device(device, *workload.example("float32"))
    plain = request.plan is None
    offloading = None if plain else stack.enter_context(_offloading(request, workload, device.torch_device))
    return _Run(workload, device, inputs, targets, offloading)


@contextmanager
def _offloading(
    request: OffloadRequest, workload: ModelWorkload, device: torch.device
) -> Iterator[Offload | InferenceOffload]:
    assert request.plan is not None
    if request.step.mode == "infer":
        with InferenceOffload(workload.model, request.plan, device=device) as inferring:
            yield inferring
        return
    with warnings.catch_warnings(), offload(workload.model, plan=request.plan, device=device) as training:
        warnings.filterwarnings("ignore", "(?s).*no hook sees")  # the study says it
        yield training
