"""Offloading by a plan against everything offloaded, torch's save_on_cpu, torchtune's and TRL's, in turns.

    python benchmarks/model_offload.py [--device cuda] [--model resnet50] [--batch-size 64] [--rounds 8] [--json FILE]

All train the same model on the same batch, for some steps a turn. `plan`: below a cap halfway between the least memory
that a plan exists for and what the step takes without offloading, only what must move does. `everything`: all saved
storages go, below the same cap. `by size`: loaderbench.offload without a trace, storages from 1 MiB on. `save_on_cpu`:
torch.autograd.graph.save_on_cpu, pinned on a GPU. `torchtune` and `trl`: their OffloadActivations, where they are
installed. `none`: without offloading, and without the cap.

The ratio of each round, its median and 95 % interval. Aims on a GPU: the plan at least 1.5 times the images/s of
everything offloaded and 1.2 times those of save_on_cpu, and the allocator's peak at most the cap. On the CPU the host's
side is a second arena in the same memory, and no copy is hidden: its ratios mean nothing; they show that all run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from turns import judged, median_interval, spread

import loaderbench
from loaderbench.cases.case import Step
from loaderbench.devices.select import open_device
from loaderbench.errors import UnavailableError
from loaderbench.offloading.hooks import Offload, offload
from loaderbench.offloading.plan import Plan, least_cap, ledger, plan_for
from loaderbench.running.offload_trace import saved_trace
from loaderbench.workloads import build_workload
from loaderbench.workloads.training import ModelWorkload

BY_SIZE_BYTES = 1 << 20
WORKSPACES_FRACTION = 0.1
"""Of the cap, left for what the trace lacks: cuDNN's workspaces and what batch norm reserves."""
AIM_EVERYTHING, AIM_SAVE_ON_CPU = 1.5, 1.2


@dataclass
class Contestant:
    """One way to train: a context for each step, and what was measured in it."""

    name: str
    context: Callable[[ModelWorkload], AbstractContextManager[Any]]
    cap_bytes: int | None
    images_per_s: list[float] = field(default_factory=list)
    peak_bytes: int | None = None
    failure: str | None = None


def torchtune() -> Callable[[ModelWorkload], AbstractContextManager[Any]]:
    from torchtune.training import OffloadActivations  # type: ignore[import-not-found]

    one = OffloadActivations(use_pin_memory=True, use_streams=True)
    return lambda workload: one  # type: ignore[no-any-return]


def trl() -> Callable[[ModelWorkload], AbstractContextManager[Any]]:
    from trl.models.activation_offloading import OffloadActivations  # type: ignore[import-not-found]

    one = OffloadActivations(use_pin_memory=True, use_streams=True)
    return lambda workload: one  # type: ignore[no-any-return]


def contestants(
    model: nn.Module, plan: Plan, everything: Plan, cap: int, *, on_gpu: bool
) -> tuple[list[Contestant], dict[str, str]]:
    """Those that can run here, and why others cannot."""
    engines = (
        offload(model, plan=plan),
        offload(model, plan=everything),
        loaderbench.offload(model, above_bytes=BY_SIZE_BYTES),
    )
    found = [
        Contestant("none", lambda workload: nullcontext(), None),
        Contestant("plan", lambda workload: engines[0], cap),
        Contestant("everything", lambda workload: engines[1], cap),
        Contestant("by size", lambda workload: engines[2], cap),
        Contestant("save_on_cpu", lambda workload: torch.autograd.graph.save_on_cpu(pin_memory=on_gpu), cap),
    ]
    skipped = {}
    for make in (torchtune, trl):
        try:
            if not on_gpu:
                raise UnavailableError("it copies between a GPU and the host only")
            found.append(Contestant(make.__name__, make(), cap))
        except (ImportError, UnavailableError) as error:
            skipped[make.__name__] = str(error)
    return found, skipped


def turn(one: Contestant, workload: ModelWorkload, batch: tuple[Any, Any], steps: int, *, on_gpu: bool) -> None:
    """Some steps of one contestant, after one that is not timed."""
    if on_gpu:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(min(1.0, (one.cap_bytes or total) / total))
        torch.cuda.reset_peak_memory_stats()
    try:
        begun = 0.0
        for number in range(steps + 1):
            if number == 1:
                wait(on_gpu)
                begun = time.perf_counter()
            with one.context(workload) as engine:
                if isinstance(engine, Offload):
                    engine.begin_step()
                workload.step(*batch)
        wait(on_gpu)
        one.images_per_s.append(steps * len(batch[0]) / (time.perf_counter() - begun))
    except Exception as error:  # one contestant must not cost the others
        one.failure = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if on_gpu:
        one.peak_bytes = max(one.peak_bytes or 0, torch.cuda.max_memory_allocated())


def wait(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()


def ratio(some: Contestant, other: Contestant) -> tuple[float, float | None, float | None] | None:
    """Images/s of one over another's, round by round; None where one did not run."""
    if some.failure or other.failure:
        return None
    return median_interval([a / b for a, b in zip(some.images_per_s, other.images_per_s, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--steps", type=int, default=5, help="a turn")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    on_gpu = asked.device == "cuda"
    step = Step(asked.model, "train", asked.precision, asked.device, asked.batch_size, asked.size)
    device = open_device(step, step.input_size)
    trace = saved_trace(step, 0, on_accelerator=on_gpu, device=str(device.torch_device))
    least, most = least_cap(trace), ledger(trace, plan_for(trace)).peak_bytes
    cap = (least + most) // 2
    planned = max(least, round(cap * (1 - WORKSPACES_FRACTION))) if on_gpu else cap
    plan, everything = plan_for(trace, cap_bytes=planned), plan_for(trace, above_bytes=0, cap_bytes=planned)
    moved = {"plan": ledger(trace, plan).moved_bytes, "everything": ledger(trace, everything).moved_bytes}
    workload = build_workload(step, device, image_size=step.input_size, seed=0, num_classes=1)
    assert isinstance(workload, ModelWorkload)
    batch = device.copy_in(*workload.example("float32"))
    found, skipped = contestants(workload.model, plan, everything, cap, on_gpu=on_gpu)
    for number in range(asked.rounds):
        for one in found if number % 2 else reversed(found):
            if one.failure is None:
                turn(one, workload, batch, asked.steps, on_gpu=on_gpu)
    report(asked, found, skipped, cap, most, moved)


def report(
    asked: argparse.Namespace, found: list[Contestant], skipped: dict[str, str], cap: int, most: int,
    moved: dict[str, int],
) -> None:  # fmt: skip
    on_gpu = asked.device == "cuda"
    by_name = {one.name: one for one in found}
    print(f"{asked.model}, batch {asked.batch_size} of {asked.size}, {asked.precision}, {asked.rounds} rounds")
    print(f"cap {cap / 2**20:,.0f} MiB, {most / 2**20:,.0f} MiB without offloading")
    if not on_gpu:
        print("on the CPU: a second arena in the same memory, no copy hidden. These ratios mean nothing.")
    for one in found:
        rate = one.failure or f"{spread(median_interval(one.images_per_s), 1)} images/s"
        peak = "" if one.peak_bytes is None else f", peak {one.peak_bytes / 2**20:,.0f} MiB"
        moves = f", moves {moved[one.name] / 2**20:,.0f} MiB a step" if one.name in moved else ""
        print(f"{one.name:12} {rate}{peak}{moves}")
    for name, why in skipped.items():
        print(f"{name:12} not run: {why}")
    ratios = {one.name: ratio(by_name["plan"], one) for one in found if one.name != "plan"}
    aims = {"everything": AIM_EVERYTHING, "save_on_cpu": AIM_SAVE_ON_CPU}
    for name, value in ratios.items():
        verdict = f"  {judged(value, aims[name])} ({aims[name]})" if value and on_gpu and name in aims else ""
        print(f"plan over {name:12} {'not known' if value is None else spread(value)}{verdict}")
    if asked.json is not None:
        rates = {one.name: one.images_per_s for one in found}
        peaks = {one.name: one.peak_bytes for one in found}
        failures = {one.name: one.failure for one in found if one.failure}
        told = {"device": asked.device, "cap_bytes": cap, "without_bytes": most, "moved_bytes": moved, "ratios": ratios,
                "aims": aims, "images_per_s": rates, "peak_bytes": peaks, "failures": failures,
                "skipped": skipped}  # fmt: skip
        asked.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
