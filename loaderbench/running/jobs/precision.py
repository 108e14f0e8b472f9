"""Jobs of the precision study: one mode's time and memory, and its numbers.

The two are separate passes over separate models with the same weights: reading losses and norms costs time and memory.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from itertools import repeat

import numpy as np
import torch

from loaderbench.devices.base import Device
from loaderbench.loaders.base import Batch
from loaderbench.recording.facts import STEP
from loaderbench.recording.progress import Phase, Report, StepsDone
from loaderbench.recording.studies import NumberFacts, TimingFacts
from loaderbench.running.jobs.table import Examined, ExamineRequest, StepsRequest
from loaderbench.running.loop import StepLoop
from loaderbench.running.models import model_on, on_device, opened
from loaderbench.workloads.training import ModelWorkload

NUM_BATCHES = 8
"""Different batches on which the numbers are followed, cyclically: few, so that their labels can be learnt."""
NUM_SETTLING = 2
"""Steps between the reset of the memory peaks and the clock."""
REPORT_NS = 1_000_000_000


def examine_device(request: ExamineRequest, report: Report) -> Examined:
    """The device's facts, and which of the precisions it lacks.

    Raises:
        ConfigError: no such device.
        UnavailableError: the device does not start.
    """
    with ExitStack() as stack:
        device = opened(request.step, stack)
        reasons = {precision: device.lacks(precision) for precision in request.precisions}
        return Examined(device.describe(), {name: reason for name, reason in reasons.items() if reason is not None})


def _opened(request: StepsRequest, stack: ExitStack) -> tuple[Device, ModelWorkload]:
    """The device, whose memory is counted from here on, and the model on it."""
    device = opened(request.step, stack)
    device.begin_memory()
    return device, model_on(device, request.step, request.seed, "numbers cannot be compared")


def time_steps(request: StepsRequest, report: Report) -> TimingFacts:
    """Time undisturbed steps on one batch that stays on the device, and the memory they need.

    Step times sum to the total. Reports the steps done about once a second.

    Raises:
        LoaderbenchError: as ModelWorkload and its step.
    """
    with ExitStack() as stack:
        step = request.step
        device, workload = _opened(request, stack)
        inputs, targets = workload.example("float32")
        batch = Batch(*on_device(device, inputs, targets), step.batch_size, 0)
        loop = StepLoop(repeat(batch), device, workload, resident=True)
        num_before = device.num_search_steps
        _run(loop, num_before, 0, report)
        device.release_memory()  # frees the memory of the algorithm search
        num_before += NUM_SETTLING
        loop.run(NUM_SETTLING, sys.maxsize)
        _run(loop, num_before + request.num_steps, num_before, report)
        done_ns = loop.steps()[num_before - 1 :, STEP["done_ns"]]
        return TimingFacts(np.diff(done_ns) / 1e9, device.memory(), workload.describe())


def _run(loop: StepLoop, up_to: int, num_before: int, report: Report) -> None:
    """Run the loop until it has `up_to` steps. Between reports only the loop runs."""
    while len(loop.host) < up_to:
        loop.run(up_to - len(loop.host), time.perf_counter_ns() + REPORT_NS)
        if num_before:
            report(StepsDone(len(loop.host) - num_before, up_to - num_before))
        else:
            report(Phase("warming up"))


def follow_steps(request: StepsRequest, report: Report) -> NumberFacts:
    """A mode's numbers over some steps: every mode gets the same weights and batches from the same seed.

    Train: loss and gradient norm of each step of real training (values stay on the device to the end). Infer: the
    logits of NUM_BATCHES batches, each once.

    Raises:
        LoaderbenchError: as ModelWorkload and its step.
    """
    with ExitStack() as stack:
        step = request.step
        device, workload = _opened(request, stack)
        first_seed = request.seed * NUM_BATCHES
        batches = [workload.example("float32", first_seed + number) for number in range(NUM_BATCHES)]
        train = step.mode == "train"
        num_steps = request.num_steps if train else NUM_BATCHES
        torch.manual_seed(request.seed)  # for dropout: this process is ours
        seen, reported_ns = [], time.perf_counter_ns()
        for number in range(num_steps):
            inputs, targets = on_device(device, *batches[number % NUM_BATCHES])
            if train:
                seen.append(workload.observed_step(inputs, targets))
            else:
                workload.step(inputs, targets)
                seen.append(workload.scores().float())
            if time.perf_counter_ns() - reported_ns > REPORT_NS:
                report(StepsDone(number + 1, num_steps))
                reported_ns = time.perf_counter_ns()
        if not train:
            return NumberFacts(outputs=torch.cat(seen).cpu().numpy())
        loss, gradient_norm = torch.stack(seen).cpu().T.double().numpy()
        return NumberFacts(loss, gradient_norm)
