"""What the figures of `loaderbench model layers` are worth, on this machine's CPU.

    python benchmarks/model_layers.py [--models resnet18,squeezenet1_1] [--input-size 64] [--rounds 6] [--json FILE]

- Rows ÷ whole: the rows of an iteration ÷ one without the stopwatch, measured in turns.
- With ÷ without: an iteration with the stopwatch ÷ one without.
- Alone: each call repeated by us ÷ the same call by `torch.utils.benchmark`.
- In the step: the rows of each type and pass ÷ torch.profiler's operators of that type, in the same iterations.
- Parameters, FLOPs and shapes against torchinfo and fvcore, where they can be imported.

Each line is a median over rounds (or calls) with its 95 % interval. About 2 minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.benchmark
from torch.profiler import ProfilerActivity, profile
from turns import Interval, median_interval

from loaderbench.cases.options import ModelOptions
from loaderbench.devices.cpu import CpuDevice
from loaderbench.loaders.base import Batch
from loaderbench.running.jobs.model_layers import time_layers
from loaderbench.running.jobs.table import LayersRequest
from loaderbench.running.layers import Found, Iteration, Stopwatch, copies_of, discover, repeated
from loaderbench.studies.model import plan_model
from loaderbench.workloads import build_workload
from loaderbench.workloads.calls import CallTracer, Keywords, Site

LIMIT_S = 0.1
"""Of each call, for ours and theirs."""
OPERATORS = {
    ("Conv2d", 0): ["aten::conv2d"],
    ("BatchNorm2d", 0): ["aten::batch_norm"],
    ("MaxPool2d", 0): ["aten::max_pool2d"],
    ("Linear", 0): ["aten::linear"],
    ("cat", 0): ["aten::cat"],
    ("Conv2d", 1): ["ConvolutionBackward0"],
    ("BatchNorm2d", 1): ["NativeBatchNormBackward0"],
    ("ReLU", 1): ["ReluBackward0"],
    ("MaxPool2d", 1): ["MaxPool2DWithIndicesBackward0"],
}
"""(type of a row, 1 for backward) → the profiler's names, of operators that occur nowhere else in these models."""
ENGINE = "autograd::engine::evaluate_function: "


class Both:
    """A visitor that repeats each call by itself, with our code and with torch.utils.benchmark, in turns."""

    def __init__(self, found: Found) -> None:
        self._kept, self._number = set(found.kept), 0
        self.ratios: list[float] = []

    def visit(self, site: Site, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Keywords) -> Any:
        if self._number in self._kept:
            own_args, own_kwargs = copies_of((args, dict(kwargs)), [])
            device = CpuDevice()
            timer = torch.utils.benchmark.Timer(
                "call(*args, **kwargs)",
                globals={"call": call, "args": own_args, "kwargs": own_kwargs},
                num_threads=torch.get_num_threads(),
            )
            before = repeated(device, lambda: call(*own_args, **own_kwargs), LIMIT_S)
            theirs = timer.timeit(before.num_calls).mean
            after = repeated(device, lambda: call(*own_args, **own_kwargs), LIMIT_S)
            self.ratios.append((float(np.median(before.block_s)) + float(np.median(after.block_s))) / 2 / theirs)
        self._number += 1
        return call(*args, **kwargs)


def iteration_of(model: str, size: int | None, batch: int) -> Iteration:
    step = replace(plan_model(model, ModelOptions(device="cpu", input_size=size)).step, batch_size=batch)
    device = CpuDevice()
    workload: Any = build_workload(step, device, image_size=step.input_size, num_classes=1)
    inputs, targets = workload.example("float32")
    return Iteration(device, workload, Batch(inputs, targets, batch, 0), None)


def closure(model: str, size: int | None, batch: int, rounds: int, steps: int) -> tuple[Interval, Interval]:
    step = plan_model(model, ModelOptions(device="cpu", input_size=size)).step
    request = LayersRequest(replace(step, batch_size=batch, overlap=False), 0, rounds, steps)
    times = time_layers(request, lambda message: None).times
    parts = np.nansum(times.parts_s[:, :, [1, 2, 3, 6, 7]], axis=2)
    rows = np.nansum(times.forward_s, axis=2) + np.nansum(times.backward_s, axis=2) + parts
    plain = np.median(times.plain_s, axis=1)
    return (
        median_interval((np.median(rows, axis=1) / plain).tolist()),
        median_interval((np.median(times.timed_s, axis=1) / plain).tolist()),
    )


def against_profiler(iteration: Iteration, rounds: int, steps: int) -> dict[str, Interval]:
    """Rows of a type and pass ÷ the profiler's operators, of each round."""
    tracer = CallTracer(iteration.workload.model)
    found = discover(iteration, tracer)
    watch = Stopwatch(iteration.device, found.has_backward)
    for _ in range(3):
        iteration.run()
    ratios: dict[str, list[float]] = {}
    for _ in range(rounds):
        theirs: dict[str, list[float]] = {}
        for _ in range(steps):
            with tracer.installed(watch), profile(activities=[ProfilerActivity.CPU]) as profiler:
                iteration.run(watch.mark, tracer)
            watch.end_step()
            for event in profiler.key_averages():
                name = event.key.removeprefix(ENGINE)
                if ENGINE in event.key or event.key.startswith("aten::"):
                    theirs.setdefault(name, []).append(event.cpu_time_total / 1e6)
        ours = np.median([one.calls_s[found.kept] for one in watch.read(len(found.has_backward))], axis=0)
        for (kind, phase), names in OPERATORS.items():
            rows = [number for number, call in enumerate(found.calls) if call.type == kind]
            known = [name for name in names if name in theirs]
            if rows and known:
                total = sum(float(np.median(theirs[name])) for name in known)
                name = f"{kind} {'backward' if phase else 'forward'}"
                ratios.setdefault(name, []).append(float(np.nansum(ours[rows, phase])) / total)
    return {name: median_interval(values) for name, values in ratios.items()}


def against_others(iteration: Iteration) -> dict[str, object]:
    """Parameters, multiply-adds and output shapes by torchinfo and fvcore."""
    model, found = iteration.workload.model, discover(iteration, CallTracer(iteration.workload.model))
    ours: dict[str, object] = {
        "parameters": sum(call.parameters for call in found.calls),
        "forward FLOPs": sum(call.forward_flops for call in found.calls),
    }
    images = iteration.copied_inputs(iteration.resident)
    try:
        import torchinfo

        info = torchinfo.summary(model, input_data=images, verbose=0)
        ours["torchinfo parameters"] = info.total_params
        shapes = {layer.var_name: tuple(layer.output_size) for layer in info.summary_list if layer.is_leaf_layer}
        mine = {call.name.rpartition(".")[2]: call.output_shape for call in found.calls}
        ours["shapes that differ from torchinfo's"] = sum(
            name in mine and len(shapes) == len(info.summary_list) and mine[name] != shape
            for name, shape in shapes.items()
        )
    except ImportError:
        ours["torchinfo"] = "not installed"
    try:
        from fvcore.nn import FlopCountAnalysis

        counted = (
            FlopCountAnalysis(model.eval(), images).unsupported_ops_warnings(False).uncalled_modules_warnings(False)
        )
        by_operator = counted.by_operator()
        model.train()
        ours["fvcore, 2 × of conv and linear"] = int(2 * (by_operator["conv"] + by_operator["linear"]))
    except ImportError:
        ours["fvcore"] = "not installed"
    return ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="lenet,resnet18,squeezenet1_1")
    parser.add_argument("--input-size", type=int, default=64, help="of all but lenet")
    parser.add_argument("--batch-size", type=int, default=8, help="of all but lenet, which has 64")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=6, help="a round")
    parser.add_argument("--threads", type=int, help="default: PyTorch's")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    figures: dict[str, dict[str, object]] = {}
    for model in asked.models.split(","):
        size, batch = (None, 64) if model == "lenet" else (asked.input_size, asked.batch_size)
        rows, cost = closure(model, size, batch, asked.rounds, asked.steps)
        found: dict[str, object] = {"rows / whole": rows, "with / without stopwatch": cost}
        iteration = iteration_of(model, size, batch)
        iteration.run()
        tracer = CallTracer(iteration.workload.model)
        both = Both(discover(iteration, tracer))
        with tracer.installed(both), tracer:
            iteration.workload.forward(
                iteration.copied_inputs(iteration.resident), iteration.copied_targets(iteration.resident)
            )
        found["alone / torch.utils.benchmark"] = median_interval(both.ratios)
        by_type = against_profiler(iteration, asked.rounds, asked.steps)
        found |= {f"in the step / profiler, {name}": ratio for name, ratio in by_type.items()}
        found["in the step / profiler, median of these"] = float(np.median([ratio[0] for ratio in by_type.values()]))
        found |= against_others(iteration)
        figures[model] = found
        print(f"{model}, batch {batch}")
        for name, value in found.items():
            print(f"  {name:48} {_text(value)}", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1))


def _text(value: object) -> str:
    if isinstance(value, tuple):
        middle, low, high = value
        return f"{middle:.3f}" + ("" if low is None else f" ({low:.3f} to {high:.3f})")
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    main()
