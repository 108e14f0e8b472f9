"""Jobs of the measuring process for the precision study: one mode's time and memory, and what its numbers do.

The two are separate passes over separate models with the same weights: reading losses and norms costs time and memory.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from loaderbench.cases.case import Case
from loaderbench.devices.base import Device
from loaderbench.devices.select import open_device
from loaderbench.errors import UnavailableError
from loaderbench.loaders.base import Batch
from loaderbench.recording.types import STEP_FIELDS
from loaderbench.running.loop import StepLoop
from loaderbench.samplers.nvml import process_memory_bytes
from loaderbench.workloads.example import random_batch
from loaderbench.workloads.vision import VisionWorkload, check_precision

Report = Callable[[str, Any], None]

NUM_BATCHES = 8
"""Different batches that the numbers are followed on, in turns: few, so that their labels can be learnt."""
NUM_WARMUP = {"cuda": 10, "cpu": 2}
"""Steps before the clock: cuDNN's algorithm search and the allocator's growth, oneDNN's first set-up."""
NUM_SETTLING = 2
"""Steps between the reset of the memory peaks and the clock."""
REPORT_NS = 1_000_000_000


def examine_device(case: Case, report: Report, precisions: Sequence[str]) -> dict[str, Any]:
    """The device's facts, and of `precisions` those that it lacks: {"device": …, "unavailable": {precision: reason}}.

    Raises:
        ConfigError: no such device or precision.
        UnavailableError: the device does not start.
    """
    with ExitStack() as stack:
        device = open_device(case)
        stack.callback(device.close)
        lacking = {}
        for precision in precisions:
            try:
                check_precision(precision, torch.device(case.device))
            except UnavailableError as error:
                lacking[precision] = str(error)
        return {"device": device.describe(), "unavailable": lacking}


def time_steps(case: Case, report: Report, num_steps: int) -> dict[str, Any]:
    """Time `num_steps` undisturbed steps on one batch that stays on the device, and the memory they need.

    Returns step_s (each from the end of the step before to its own, on the device's clock, so that they sum to the
    total), memory (`_peaks`), and workload (its facts). Reports ("steps", (done, all)) about once a second.

    Raises:
        LoaderbenchError: as VisionWorkload and its step.
    """
    with ExitStack() as stack:
        device = open_device(case)
        stack.callback(device.close)
        inputs, targets = random_batch(case, "float32")
        before_bytes = _start_of_memory(device)
        workload = VisionWorkload(case)
        batch = Batch(*device.copy_in(inputs, targets), case.batch_size, 0)
        loop = StepLoop(repeat(batch), device, workload, resident=True)
        num_before = NUM_WARMUP[device.kind]
        _run(loop, num_before, 0, report)
        if device.kind == "cuda":  # what the algorithm search took is given back
            device.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(torch.device(case.device))
        num_before += NUM_SETTLING
        loop.run(NUM_SETTLING, sys.maxsize)
        _run(loop, num_before + num_steps, num_before, report)
        done_ns = loop.steps()[num_before - 1 :, STEP_FIELDS.index("done_ns")]
        return {
            "step_s": (np.diff(done_ns) / 1e9).tolist(),
            "memory": _peaks(case, device, before_bytes),
            "workload": workload.describe(),
        }


def _run(loop: StepLoop, up_to: int, num_before: int, report: Report) -> None:
    """Run the loop until it has `up_to` steps. Between reports nothing but the loop runs."""
    while len(loop.host) < up_to:
        loop.run(up_to - len(loop.host), time.perf_counter_ns() + REPORT_NS)
        if num_before:
            report("steps", (len(loop.host) - num_before, up_to - num_before))
        else:
            report("phase", "warming up")


def follow_steps(case: Case, report: Report, num_steps: int) -> dict[str, Any]:
    """What the numbers do over `num_steps`: every mode gets the same weights and batches from the same seed.

    Train: loss and gradient_norm, a value a step, in full training (values stay on the device to the end).
    Infer: outputs float32 [NUM_BATCHES × batch, classes], the logits of each batch once.

    Raises:
        LoaderbenchError: as VisionWorkload and its step.
    """
    with ExitStack() as stack:
        device = open_device(case)
        stack.callback(device.close)
        workload = VisionWorkload(case)
        first_seed = case.seed * NUM_BATCHES
        batches = [random_batch(replace(case, seed=first_seed + number), "float32") for number in range(NUM_BATCHES)]
        train = case.mode == "train"
        num_steps = num_steps if train else NUM_BATCHES
        torch.manual_seed(case.seed)  # for dropout: this process is ours
        seen, reported_ns = [], time.perf_counter_ns()
        for number in range(num_steps):
            inputs, targets = device.copy_in(*batches[number % NUM_BATCHES])
            if train:
                seen.append(workload.observed_step(inputs, targets))
            else:
                workload.step(inputs, targets)
                seen.append(workload.last_output.float())
            if time.perf_counter_ns() - reported_ns > REPORT_NS:
                report("steps", (number + 1, num_steps))
                reported_ns = time.perf_counter_ns()
        if not train:
            return {"outputs": torch.cat(seen).cpu().numpy()}
        loss, gradient_norm = torch.stack(seen).cpu().T.tolist()
        return {"loss": loss, "gradient_norm": gradient_norm}


def _start_of_memory(device: Device) -> int | None:
    """On the CPU: this process's resident bytes now, its peak being reset. None: unknown, or not needed."""
    if device.kind != "cpu":
        return None
    try:
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak resident set size
    except OSError:
        return None
    return int(psutil.Process().memory_info().rss)


def _peaks(case: Case, device: Device, before_bytes: int | None) -> dict[str, Any]:
    """Peak memory of the steps so far; what is unknown is null and has its reason under `missing`.

    allocated_bytes, reserved_bytes: PyTorch's allocator on CUDA. process_bytes: NVML's figure for this process now,
    which holds the CUDA context, libraries and all that is reserved. rss_growth_bytes: on the CPU, the peak of the
    resident set less what was resident before the model was built (VmHWM of proc(5)).
    """
    missing: dict[str, str] = {}
    found: dict[str, Any] = dict.fromkeys(("allocated_bytes", "reserved_bytes", "process_bytes", "rss_growth_bytes"))
    if device.kind == "cpu":
        missing |= dict.fromkeys(tuple(found)[:3], "the CPU has no memory of its own: see rss_growth_bytes")
        if before_bytes is None:
            missing["rss_growth_bytes"] = "this kernel does not let a process reset its memory peak"
        else:
            found["rss_growth_bytes"] = max(_peak_rss_bytes() - before_bytes, 0)
    else:
        where = torch.device(case.device)
        found["allocated_bytes"] = torch.cuda.max_memory_allocated(where)
        found["reserved_bytes"] = torch.cuda.max_memory_reserved(where)
        missing["rss_growth_bytes"] = "the model's memory is the device's"
        try:
            found["process_bytes"] = process_memory_bytes(where.index or 0, os.getpid())
        except UnavailableError as error:
            missing["process_bytes"] = str(error)
    return {**found, "missing": missing}


def _peak_rss_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024  # "VmHWM:     12345 kB"
