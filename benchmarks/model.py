"""What the figures of the commands under `loaderbench model` are worth, on this machine's CPU.

    python benchmarks/model.py [--only PARTS] [--models NAMES] [--size 64] [--quick|--rest] [--json FILE]

Parts: layers, memory, fit, others, fit_others.

`layers`, a median over rounds (or calls) with its 95 % interval each:

- Rows ÷ whole: the rows of an iteration ÷ one without the stopwatch, measured in turns.
- With ÷ without: an iteration with the stopwatch ÷ one without.
- Alone: each call, and its backward, repeated by us ÷ the same by `torch.utils.benchmark`.
- In the step: the rows of each type and pass ÷ torch.profiler's operators of that type, in the same iterations.
- Parameters, FLOPs and shapes against torchinfo and fvcore, where they can be imported.

`memory`: for each model in training (SGD with momentum, and Adam) and inference, in fp32 and bf16 autocast, at three
batch sizes, the predicted peak of the live memory against torch.profiler's memory events of the third step; the limit
is 2 % each. inception_v3 takes at least 299 pixels.

`others`: the same for the second list, models that are not torchvision's classifiers (benchmarks/own_models.py) and
torchvision's of other kinds. `fit_others`: the largest batch of ten of these, by the ledger.

`fit`: two caps a model, in training and inference. By the ledger, the profiler's peak of the largest batch must be at
most the cap, and that of the next one more, both measured without a cap. By RLIMIT_DATA, the largest batch must be
within one of what plain scripts with that limit say (benchmarks/limited.py). At most 3 search trials.

`layers` measures times: leave the machine alone meanwhile. About 2, 25 and 40 minutes on 2 cores; `--quick` takes fewer
models, rounds, batches and caps, `--rest` the batches and caps that it leaves out.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import own_models
import torch
import torch.utils.benchmark
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves
from turns import Interval, median_interval, spread

from loaderbench.analysis.memory import line_through, peak_bytes
from loaderbench.cases.case import MODES, Mode, Optimizer, Precision, Step
from loaderbench.cases.inputs import Shapes, read_inputs
from loaderbench.cases.options import ModelOptions, Words
from loaderbench.devices.cpu import CpuDevice
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.loaders.base import Batch
from loaderbench.machine import environment
from loaderbench.plain import to_json
from loaderbench.recording.store import Store
from loaderbench.running.jobs.memory import measure_memory
from loaderbench.running.jobs.model_layers import time_layers
from loaderbench.running.jobs.table import LayersRequest, MeasureMemoryRequest
from loaderbench.running.layers import Found, Iteration, Stopwatch, copies_of, discover, repeated
from loaderbench.running.memory_trace import trace_step
from loaderbench.studies.fit_plan import plan_fit
from loaderbench.studies.measure import quiet
from loaderbench.studies.model import plan_model
from loaderbench.studies.model_fit import RLIMIT_BESIDE, FitStudy
from loaderbench.workloads import build_workload
from loaderbench.workloads.calls import CallTracer, Keywords, Site

MODELS = (
    "lenet", "squeezenet1_0", "squeezenet1_1", "mobilenet_v2", "resnet18", "resnet34", "resnet50", "inception_v3",
    "vgg16", "vgg19", "densenet121", "googlenet", "resnext50_32x4d",
)  # fmt: skip
QUICK_MODELS = ("lenet", "squeezenet1_1", "resnet18", "googlenet")
LAYERS_MODELS = ("lenet", "resnet18", "squeezenet1_1")
FIT_MODELS = ("squeezenet1_1", "mobilenet_v2", "resnet18", "googlenet")
OTHERS: tuple[tuple[str, str, str], ...] = (
    ("language_model", "128", "int64"), ("lstm", "60,40", "float32"), ("lstm_of_tokens", "50", "int64"),
    ("gru", "20,40", "float32"), ("image_and_text", "3,64,48+16", "float32,int64"), ("unet", "3,96,64", "float32"),
    ("mask", "3,64,64", "float32"), ("detector", "3,96,128", "float32"), ("two_heads", "3,64,64", "float32"),
    ("siamese", "3,64,64+3,64,64", "float32"), ("checkpointed", "3,64,64", "float32"), ("audio", "1,4000", "float32"),
    ("video", "3,8,32,32", "float32"), ("table", "40", "float32"),
    ("efficientnet_b0", "3,64,64", "float32"), ("convnext_tiny", "3,64,96", "float32"),
    ("swin_t", "3,64,64", "float32"), ("regnet_y_400mf", "3,64,64", "float32"),
    ("mobilenet_v3_small", "3,64,96", "float32"), ("shufflenet_v2_x0_5", "3,64,64", "float32"),
    ("bert", "64", "int64"), ("gpt2", "64", "int64"), ("llama", "64", "int64"),
    ("t5", "input_ids=32+decoder_input_ids=16", "int64"), ("vit", "3,64,64", "float32"),
)  # fmt: skip
"""The second list: (factory of benchmarks/own_models.py, or torchvision's name; --input-shape; --input-dtype)."""
OF_TRANSFORMERS = ("bert", "gpt2", "llama", "t5", "vit")
OTHER_STEPS: tuple[tuple[Mode, Precision, Optimizer, int], ...] = (
    ("train", "fp32", "adamw", 4), ("infer", "fp32", "sgd", 4), ("train", "amp-bf16", "sgd", 8),
)  # fmt: skip
FIT_OTHERS = (
    "language_model", "lstm", "image_and_text", "unet", "mask", "detector", "two_heads", "siamese", "audio", "video"
)  # fmt: skip
LIMIT_FRACTION = 0.02
LEAST_SIZE = {"inception_v3": 299}
TRAIN_BATCHES, INFER_BATCHES = (2, 4, 8), (1, 4, 8)
FIT_SIZE, FIT_TARGETS = 128, (4, 11)
"""Batches whose predicted peak, and half of the step to the next one, is a cap; RLIMIT_BESIDE more of RLIMIT_DATA."""
MOST_SEARCH = 3


LIMIT_S = 0.1
"""Of each call, for ours and theirs."""
COUNTING = "aten::add_ to a number"
"""BatchNorm2d.forward counts its batches before it calls aten::batch_norm."""
OPERATORS = {
    ("Conv2d", 0): ["aten::conv2d"],
    ("BatchNorm2d", 0): ["aten::batch_norm", COUNTING],
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


# -- layers --------------------------------------------------------------------------------------------


class Both:
    """A visitor that repeats each call by itself, and its backward, with our code and with torch.utils.benchmark, in
    turns."""

    def __init__(self, found: Found) -> None:
        self._found, self._kept, self._number = found, set(found.kept), 0
        self.ratios: dict[str, list[float]] = {"forward": [], "backward": []}

    def visit(self, site: Site, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Keywords) -> Any:
        number = self._number
        self._number += 1
        if number in self._kept:
            own_args, own_kwargs = copies_of((args, dict(kwargs)), [])
            self._time("forward", lambda: call(*own_args, **own_kwargs))
            if self._found.has_backward[number]:
                self._time("backward", backward_of(site, call, args, kwargs))
        return call(*args, **kwargs)

    def _time(self, name: str, call: Callable[[], Any]) -> None:
        """Ours, theirs, and ours again."""
        device = CpuDevice()
        timer = torch.utils.benchmark.Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
        before = repeated(device, call, LIMIT_S)
        theirs = timer.timeit(before.num_calls).mean
        after = repeated(device, call, LIMIT_S)
        ours = (float(np.median(before.block_s)) + float(np.median(after.block_s))) / 2
        self.ratios[name].append(ours / theirs)


def backward_of(
    site: Site, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Keywords
) -> Callable[[], tuple[Any, ...]]:
    """The call's backward alone: gradients of its inputs and parameters."""
    leaves = [] if site.module is None else [one for one in site.module.parameters() if one.requires_grad]
    own_args, own_kwargs = copies_of((args, dict(kwargs)), leaves)
    result = call(*own_args, **own_kwargs)
    outputs = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor) and one.requires_grad]
    ones = [torch.ones_like(one) for one in outputs]
    return lambda: torch.autograd.grad(outputs, leaves, ones, retain_graph=True, allow_unused=True)


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


def operator_times(profiler: Any) -> dict[str, float]:
    """Name → seconds of all the profiler's operators of that name."""
    totals: dict[str, float] = {}
    for event in profiler.key_averages(group_by_input_shape=True):
        name = event.key.removeprefix(ENGINE)
        if name == "aten::add_" and event.input_shapes and not event.input_shapes[0]:
            name = COUNTING
        if ENGINE in event.key or event.key.startswith("aten::"):
            totals[name] = totals.get(name, 0.0) + event.cpu_time_total / 1e6
    return totals


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
            with (
                tracer.installed(watch),
                profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler,
            ):
                iteration.run(watch.mark, tracer)
            watch.end_step()
            for name, seconds in operator_times(profiler).items():
                theirs.setdefault(name, []).append(seconds)
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


def layers(models: tuple[str, ...], size: int, *, quick: bool) -> dict[str, dict[str, object]]:
    """Model → what was found."""
    rounds, steps = (3, 4) if quick else (12, 6)
    figures: dict[str, dict[str, object]] = {}
    for model in models:
        side, batch = (None, 64) if model == "lenet" else (size, 8)
        rows, cost = closure(model, side, batch, rounds, steps)
        found: dict[str, object] = {"rows / whole": rows, "with / without stopwatch": cost}
        iteration = iteration_of(model, side, batch)
        iteration.run()
        tracer = CallTracer(iteration.workload.model)
        both = Both(discover(iteration, tracer))
        images, labels = iteration.copied_inputs(iteration.resident), iteration.copied_targets(iteration.resident)
        with tracer.installed(both), tracer:
            iteration.workload.forward(images, labels)
        for name, ratios in both.ratios.items():
            found[f"alone / torch.utils.benchmark, {name}"] = median_interval(ratios)
        by_type = against_profiler(iteration, rounds, steps)
        found |= {f"in the step / profiler, {name}": ratio for name, ratio in by_type.items()}
        found["in the step / profiler, median of these"] = float(np.median([ratio[0] for ratio in by_type.values()]))
        found |= against_others(iteration)
        figures[model] = found
        print(f"{model}, batch {batch}")
        for name, value in found.items():
            print(f"  {name:48} {_text(value)}", flush=True)
    return figures


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return spread(value)
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


# -- memory, and the largest batch ---------------------------------------------------------------------


def step_of(model: str, size: int, mode: Mode, precision: Precision, optimizer: Optimizer, batch: int) -> Step:
    lenet = model == "lenet"
    side = 28 if lenet else max(size, LEAST_SIZE.get(model, 0))
    return Step(model, mode, precision, "cpu", batch, side, optimizer=optimizer, channels=1 if lenet else 3)


def steps_of(models: tuple[str, ...], size: int, part: slice) -> Iterator[Step]:
    for model in models:
        for precision in ("fp32", "amp-bf16"):
            for optimizer in ("sgd", "adam"):
                for batch in TRAIN_BATCHES[part]:
                    yield step_of(model, size, "train", precision, optimizer, batch)  # type: ignore[arg-type]
            for batch in INFER_BATCHES[part]:
                yield step_of(model, size, "infer", precision, "sgd", batch)  # type: ignore[arg-type]


def other_step(name: str, mode: Mode, precision: Precision, optimizer: Optimizer, batch: int) -> Step:
    """A step of a model of OTHERS."""
    shape, dtypes = next((shape, dtypes) for one, shape, dtypes in OTHERS if one == name)
    model = f"own_models:{name}" if hasattr(own_models, name) else name
    options = ModelOptions(
        mode=mode, input_shape=Shapes.parse(shape), input_dtype=Words.parse(dtypes), precision=precision,
        optimizer=optimizer, device="cpu",
    )  # fmt: skip
    return replace(plan_model(model, options).step, batch_size=batch)


def other_steps(models: tuple[str, ...]) -> Iterator[Step]:
    has_transformers = importlib.util.find_spec("transformers") is not None
    for name in models:
        if name in OF_TRANSFORMERS and not has_transformers:
            print(f"{name}: not run: transformers is not installed")
            continue
        for mode, precision, optimizer, batch in OTHER_STEPS:
            yield other_step(name, mode, precision, optimizer, batch)


def memory(steps: Iterator[Step]) -> list[dict[str, object]]:
    """A row for each step; errors as fractions of the measured peak. A step that is not predicted has no error."""
    rows: list[dict[str, object]] = []
    trace_step(step_of("lenet", 64, "train", "fp32", "sgd", 2), 0, on_accelerator=False)  # loads what tracing needs
    for step in steps:
        name = f"{step.model} {step.mode} {step.precision} {step.optimizer} batch {step.batch_size}"
        begun = time.perf_counter()
        try:
            predicted = peak_bytes(trace_step(step, 0, on_accelerator=False))
            took = time.perf_counter() - begun
            measured = measure_memory(MeasureMemoryRequest(step, 0, 3), quiet).memory.peak_live_bytes
        except ConfigError as error:
            print(f"{name:52} not run: {error}", flush=True)
            continue
        except UnavailableError as error:
            print(f"{name:52} not predicted: {error}", flush=True)
            rows.append({"name": name, "predicted": None, "why": str(error)})
            continue
        gc.collect()
        assert measured is not None
        error_fraction = predicted / measured - 1
        verdict = "" if abs(error_fraction) <= LIMIT_FRACTION else "  OVER"
        sizes = f"{predicted / 2**20:9.2f} {measured / 2**20:9.2f} MiB"
        print(f"{name:52} {sizes} {error_fraction * 100:+7.2f} %  traced in {took:4.1f} s{verdict}", flush=True)
        rows.append({"name": name, "predicted": predicted, "measured": measured, "error": error_fraction, "s": took})
    errors = sorted((abs(float(str(row["error"]))), str(row["name"])) for row in rows if "error" in row)
    over = [one for one in errors if one[0] > LIMIT_FRACTION]
    if errors:
        worst = f"worst {errors[-1][0] * 100:.2f} % ({errors[-1][1]})"
        unpredicted = len(rows) - len(errors)
        print(f"{len(rows)} steps: {len(over)} over {LIMIT_FRACTION:.0%}, {unpredicted} not predicted; {worst}")
    return rows


def fits_alone(step: Step, cap: int) -> bool:
    """Whether a plain script below RLIMIT_DATA (benchmarks/limited.py) ends its steps."""
    side, script = str(step.input_size), Path(__file__).with_name("limited.py")
    command = [sys.executable, str(script), step.model, step.mode, str(step.batch_size), str(cap), side]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def fit(models: tuple[str, ...], part: slice) -> list[dict[str, object]]:
    """A row for each model, mode, one of these caps and what holds it."""
    rows: list[dict[str, object]] = []
    modes: tuple[Mode, ...] = ("train", "infer")
    for model in models:
        for mode in modes:
            step = step_of(model, FIT_SIZE, mode, "fp32", "sgd", 1)
            sizes = (replace(step, batch_size=size) for size in (2, 4))
            traces = [trace_step(one, 0, on_accelerator=False, probed=False) for one in sizes]
            line = line_through(traces)
            assert line is not None
            for target in FIT_TARGETS[part]:
                cap = (line.peak_bytes(target) + line.peak_bytes(target + 1)) // 2
                rows += [fit_row(step, cap, "ledger"), fit_row(step, cap + RLIMIT_BESIDE, "rlimit")]
    print(f"{sum(bool(row['right']) for row in rows)} of {len(rows)} right")
    return rows


def fit_others(models: tuple[str, ...]) -> list[dict[str, object]]:
    """A row for each of these models, in training and inference: one cap each, by the ledger."""
    rows = []
    for name in models:
        for mode in MODES:
            step = other_step(name, mode, "fp32", "sgd", 1)
            traces = [
                trace_step(replace(step, batch_size=size), 0, on_accelerator=False, probed=False) for size in (2, 4)
            ]
            line = line_through(traces)
            target = FIT_TARGETS[1]
            cap = 64 << 20 if line is None else (line.peak_bytes(target) + line.peak_bytes(target + 1)) // 2
            rows.append(fit_row(step, cap, "ledger"))
    print(f"{sum(bool(row['right']) for row in rows)} of {len(rows)} right")
    return rows


def fit_row(step: Step, cap: int, way: str) -> dict[str, object]:
    options = ModelOptions(mode=step.mode, input_size=step.input_size, precision="fp32", device="cpu")
    if step.inputs is not None:
        given = read_inputs(step.inputs)
        shapes = Shapes((one.name, one.shape) for one in given)
        options = replace(options, input_shape=shapes, input_dtype=Words(one.dtype for one in given))
    with tempfile.TemporaryDirectory() as folder:
        study = FitStudy(plan_fit(step.model, options, str(cap), way), Store(folder))
        study.run(lambda line, keep: None)
        found = study.findings()
    largest = found.largest_batch or 0
    if way == "ledger":
        peaks = [measured_peak(replace(step, batch_size=size)) for size in (largest, largest + 1) if size]
        truth = f"peaks {', '.join(f'{peak / 2**20:.1f}' for peak in peaks)} MiB"
        right = peaks[-1] > cap and (len(peaks) == 1 or peaks[0] <= cap)
    else:
        sizes = range(max(largest - 2, 1), largest + 3)
        sweep = {size: fits_alone(replace(step, batch_size=size), cap) for size in sizes}
        best = max((size for size, fits in sweep.items() if fits), default=0)
        truth, right = f"plain scripts say {best}", abs(best - largest) <= 1
    right = right and found.confirmed and found.num_search_trials <= MOST_SEARCH
    name = f"{step.model} {step.mode} {cap / 2**20:.1f} MiB {way}"
    told = f"{found.num_search_trials} search trials; {truth}; {'right' if right else 'WRONG'}"
    print(f"{name:48} batch {largest} (predicted {found.predicted_batch}), {told}", flush=True)
    return {
        "name": name, "cap": cap, "largest": largest, "predicted": found.predicted_batch, "confirmed": found.confirmed,
        "search_trials": found.num_search_trials, "trials": [[one.batch_size, one.outcome] for one in found.trials],
        "truth": truth, "right": right,
    }  # fmt: skip


def measured_peak(step: Step) -> int:
    """The profiler's peak of the third step, without a cap."""
    peak = measure_memory(MeasureMemoryRequest(step, 0, 3), quiet).memory.peak_live_bytes
    assert peak is not None
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="layers,memory,fit", help="some of these, comma separated")
    parser.add_argument("--models", help="comma separated, instead of each part's own")
    parser.add_argument("--size", type=int, default=64, help="side of the images (lenet takes 28, the fits 128)")
    few = parser.add_mutually_exclusive_group()
    few.add_argument("--quick", action="store_true")
    few.add_argument("--rest", action="store_true")
    parser.add_argument("--json", type=Path, help="write the figures, with the environment")
    arguments = parser.parse_args()
    if unknown := set(arguments.only.split(",")) - {"layers", "memory", "fit", "others", "fit_others"}:
        parser.error(f"--only takes some of layers,memory,fit,others,fit_others, not {', '.join(sorted(unknown))}")
    asked = None if arguments.models is None else tuple(arguments.models.split(","))
    quick, rest, size = arguments.quick, arguments.rest, arguments.size
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads")
    figures: dict[str, object] = {}
    for part in arguments.only.split(","):
        begun = time.perf_counter()
        if part == "layers":
            figures[part] = layers(asked or LAYERS_MODELS, size, quick=quick)
        elif part == "memory":
            batches = slice(2) if quick else slice(2 if rest else 0, None)
            figures[part] = memory(steps_of(asked or (QUICK_MODELS if quick else MODELS), size, batches))
        elif part == "others":
            figures[part] = memory(other_steps(asked or tuple(name for name, _, _ in OTHERS)))
        elif part == "fit_others":
            figures[part] = fit_others(asked or FIT_OTHERS)
        else:
            caps = slice(1) if quick else slice(1 if rest else 0, None)
            figures[part] = fit(asked or (FIT_MODELS[:1] if quick else FIT_MODELS), caps)
        print(f"{part}: {time.perf_counter() - begun:.0f} s", flush=True)
    if arguments.json is not None:
        settings = {"threads": torch.get_num_threads(), "vector_units": torch.backends.cpu.get_cpu_capability()}
        figures |= {"settings": settings, "environment": to_json(environment())}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
