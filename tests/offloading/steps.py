"""Steps of models on the CPU with and without offloading, for the tests of this folder."""

from __future__ import annotations

import functools
import gc
import re
from contextlib import nullcontext
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from loaderbench.cases.case import Mode, Precision, Step
from loaderbench.devices.select import open_device
from loaderbench.offloading.hooks import Offload, offload
from loaderbench.offloading.inference import InferenceOffload
from loaderbench.offloading.moves import OffloadStatistics
from loaderbench.offloading.plan import Plan
from loaderbench.recording.model_offload import SavedTrace
from loaderbench.running.offload_trace import saved_trace
from loaderbench.workloads import build_workload
from loaderbench.workloads.training import ModelWorkload

LEAST_SIZE = {"inception_v3": 299, "lenet": 28}
SEED = 5


def step_of(model: str, batch: int = 2, size: int = 64, mode: Mode = "train", precision: Precision = "fp32") -> Step:
    """`model`: a name of torchvision, lenet, or a class of models.py."""
    side = max(size, LEAST_SIZE[model]) if model == "inception_v3" else LEAST_SIZE.get(model, size)
    if model[0].isupper():
        model, side = f"tests.offloading.models:{model}", 8
    return Step(model, mode, precision, "cpu", batch, side, channels=1 if model == "lenet" else 3)


@functools.cache
def traced(step: Step) -> SavedTrace:
    return saved_trace(step, 0, on_accelerator=False)


class Running:
    """A step's model, its batch, and the engine that it runs in."""

    def __init__(self, step: Step) -> None:
        device = open_device(step, step.input_size)
        made = build_workload(step, device, image_size=step.input_size, seed=0, num_classes=1)
        assert isinstance(made, ModelWorkload)
        self.step, self.workload = step, made
        self.inputs, self.targets = made.example("float32")

    def engine(self, plan: Plan | None, above_bytes: int | None) -> Any:
        if self.step.mode == "infer":
            return nullcontext() if plan is None else InferenceOffload(self.workload.model, plan)
        if plan is None and above_bytes is None:
            return nullcontext()
        return offload(self.workload.model, plan=plan, above_bytes=above_bytes)

    def once(self, engine: Any) -> OffloadStatistics | None:
        """One step; what random layers draw is the same each time."""
        torch.manual_seed(SEED)
        if engine is not None:
            engine.begin_step(*(() if isinstance(engine, Offload) else (self.inputs, self.targets)))
        self.workload.step(self.inputs, self.targets)
        if engine is None:
            return None
        return engine.end_step() if isinstance(engine, Offload) else engine.end_step(self.workload.last_output)  # type: ignore[no-any-return]

    def results(self) -> list[torch.Tensor]:
        """What a step gives: the gradients, in inference the output."""
        if self.step.mode == "infer":
            return [self.workload.last_output.clone()]
        return [one.grad.clone() for one in self.workload.model.parameters() if one.grad is not None]


def results(
    step: Step, plan: Plan | None = None, above_bytes: int | None = None, num_steps: int = 2
) -> tuple[list[torch.Tensor], OffloadStatistics | None]:
    """The results of each step, and the last one's statistics."""
    running = Running(step)
    found, statistics = [], None
    with running.engine(plan, above_bytes) as engine:
        for _ in range(num_steps):
            statistics = running.once(engine)
            found += running.results()
    return found, statistics


def equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Bit for bit."""
    return len(some) == len(others) > 0 and all(map(torch.equal, some, others))


def plain(error: str) -> str:
    """Autograd's error without the function that made the tensor, and without the hint."""
    return re.sub(r", which is output \d+ of [\w:]+,", "", error).partition("Hint")[0]


def profiled_peak(step: Step, plan: Plan | None) -> int:
    """Most bytes that PyTorch's allocator for the CPU has given out at once in the third step, by the profiler's memory
    events; those of building the model count."""
    gc.collect()  # what others left must not be freed meanwhile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        running = Running(step)
        with running.engine(plan, None) as engine:
            for number in range(3):
                with record_function(f"step {number}"):
                    running.once(engine)
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    (last,) = [one for one in events if one.name() == "step 2"]
    live, peak = 0, 0
    for event in sorted((one for one in events if one.name() == "[memory]"), key=lambda one: one.start_ns()):
        begun = event.start_ns() >= last.start_ns()
        peak = max(peak, live if begun and not peak else 0)
        live += event.nbytes()
        if begun and event.start_ns() <= last.start_ns() + last.duration_ns():
            peak = max(peak, live)
    return peak
