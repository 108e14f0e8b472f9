"""Predicted against measured memory, and the largest batch against the profiler's peaks and a sweep.

    python benchmarks/model_memory.py [--models NAMES] [--size 64] [--quick] [--json FILE]
    python benchmarks/model_memory.py --fit [--models NAMES] [--json FILE]

First: for each model in training (SGD with momentum, and Adam) and inference, in fp32 and bf16 autocast, at three batch
sizes, the predicted peak of the live memory against torch.profiler's memory events of the third step; the limit is 2 %
each. inception_v3 takes at least 299 pixels. About 25 minutes on 2 cores; `--quick` takes four models and two batches.

`--fit`: two caps a model, in training and inference. By the ledger, the profiler's peak of the largest batch must be at
most the cap, and that of the next one more, both measured without a cap. By RLIMIT_DATA, the largest batch must be
within one of what a sweep of its neighbours says. At most 3 search trials. About 3 minutes a cap.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from loaderbench.analysis.memory import line_through, peak_bytes
from loaderbench.analysis.model_memory import outcome_of
from loaderbench.cases.case import Mode, Optimizer, Precision, Step
from loaderbench.cases.options import ModelOptions
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.recording.model_memory import TrialFacts
from loaderbench.recording.store import Store
from loaderbench.running.jobs.memory import measure_memory
from loaderbench.running.jobs.table import TRY_BATCH, MeasureMemoryRequest, TrialRequest
from loaderbench.running.memory_trace import trace_step
from loaderbench.running.supervisor import Child, JobFailed
from loaderbench.studies.measure import quiet
from loaderbench.studies.model_fit import FitStudy, plan_fit

MODELS = (
    "lenet", "squeezenet1_0", "squeezenet1_1", "mobilenet_v2", "resnet18", "resnet34", "resnet50", "inception_v3",
    "vgg16", "vgg19", "densenet121", "googlenet", "resnext50_32x4d",
)  # fmt: skip
QUICK_MODELS = ("lenet", "squeezenet1_1", "resnet18", "googlenet")
FIT_MODELS = ("squeezenet1_1", "mobilenet_v2", "resnet18", "googlenet")
LIMIT_FRACTION = 0.02
LEAST_SIZE = {"inception_v3": 299}
TRAIN_BATCHES, INFER_BATCHES = (2, 4, 8), (1, 4, 8)
FIT_SIZE, FIT_TARGETS = 128, (4, 11)
"""Batches whose predicted peak, and half of the step to the next one, is a cap."""
MOST_SEARCH = 3


def step_of(model: str, size: int, mode: Mode, precision: Precision, optimizer: Optimizer, batch: int) -> Step:
    lenet = model == "lenet"
    side = 28 if lenet else max(size, LEAST_SIZE.get(model, 0))
    return Step(model, mode, precision, "cpu", batch, side, optimizer=optimizer, channels=1 if lenet else 3)


def steps(models: tuple[str, ...], size: int, *, quick: bool) -> Iterator[Step]:
    for model in models:
        for precision in ("fp32", "amp-bf16"):
            for optimizer in ("sgd", "adam"):
                for batch in TRAIN_BATCHES[:2] if quick else TRAIN_BATCHES:
                    yield step_of(model, size, "train", precision, optimizer, batch)  # type: ignore[arg-type]
            for batch in INFER_BATCHES[:2] if quick else INFER_BATCHES:
                yield step_of(model, size, "infer", precision, "sgd", batch)  # type: ignore[arg-type]


def predict(models: tuple[str, ...], size: int, *, quick: bool) -> list[dict[str, object]]:
    """A row for each step; errors as fractions of the measured peak."""
    rows: list[dict[str, object]] = []
    trace_step(step_of("lenet", size, "train", "fp32", "sgd", 2), 0, on_accelerator=False)  # loads what tracing needs
    for step in steps(models, size, quick=quick):
        name = f"{step.model} {step.mode} {step.precision} {step.optimizer} batch {step.batch_size}"
        begun = time.perf_counter()
        try:
            predicted = peak_bytes(trace_step(step, 0, on_accelerator=False))
            took = time.perf_counter() - begun
            measured = measure_memory(MeasureMemoryRequest(step, 0, 3), quiet).memory.peak_live_bytes
        except (ConfigError, UnavailableError) as error:
            print(f"{name:52} not run: {error}", flush=True)
            continue
        gc.collect()
        assert measured is not None
        error_fraction = predicted / measured - 1
        verdict = "" if abs(error_fraction) <= LIMIT_FRACTION else "  OVER"
        sizes = f"{predicted / 2**20:9.2f} {measured / 2**20:9.2f} MiB"
        print(f"{name:52} {sizes} {error_fraction * 100:+7.2f} %  traced in {took:4.1f} s{verdict}", flush=True)
        rows.append({"name": name, "predicted": predicted, "measured": measured, "error": error_fraction, "s": took})
    errors = sorted((abs(float(str(row["error"]))), str(row["name"])) for row in rows)
    over = [one for one in errors if one[0] > LIMIT_FRACTION]
    if errors:
        worst = f"worst {errors[-1][0] * 100:.2f} % ({errors[-1][1]})"
        print(f"{len(rows)} steps: {len(over)} over {LIMIT_FRACTION:.0%}; {worst}")
    return rows


def fits_alone(step: Step, cap: int, how: str) -> bool | None:
    """Whether the batch fits below RLIMIT_DATA, in a process of its own; None where that is not known."""
    failure = None
    with tempfile.TemporaryDirectory() as folder, Child(Path(folder, "worker.log")) as child:
        try:
            child.ask(TRY_BATCH, TrialRequest(step, 0, 3, cap, "rlimit" if how == "rlimit" else "ledger"), quiet)
        except JobFailed as error:
            failure = error.failure
    outcome = outcome_of(TrialFacts(step.batch_size, how, 3, failure, None, None))
    return None if outcome == "unknown" else outcome == "fits"


def fit(models: tuple[str, ...], ways: tuple[str, ...]) -> list[dict[str, object]]:
    """A row for each model, mode, cap and way."""
    rows: list[dict[str, object]] = []
    modes: tuple[Mode, ...] = ("train", "infer")
    for model in models:
        for mode in modes:
            step = step_of(model, FIT_SIZE, mode, "fp32", "sgd", 1)
            traces = [trace_step(replace(step, batch_size=size), 0, on_accelerator=False) for size in (2, 4)]
            line = line_through(traces)
            assert line is not None
            for target in FIT_TARGETS:
                cap = (line.peak_bytes(target) + line.peak_bytes(target + 1)) // 2
                rows += [fit_row(step, cap, way) for way in ways]
    print(f"{sum(bool(row['right']) for row in rows)} of {len(rows)} right")
    return rows


def fit_row(step: Step, cap: int, way: str) -> dict[str, object]:
    options = ModelOptions(mode=step.mode, input_size=step.input_size, precision="fp32", device="cpu")
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
        sweep = {size: fits_alone(replace(step, batch_size=size), cap, way) for size in sizes}
        best = max((size for size, fits in sweep.items() if fits), default=0)
        truth, right = f"sweep says {best}", abs(best - largest) <= 1 and None not in sweep.values()
    right = right and found.confirmed and found.num_search_trials <= MOST_SEARCH
    name = f"{step.model} {step.mode} {cap / 2**20:.1f} MiB {way}"
    told = f"{found.num_search_trials} search trials; {truth}; {'right' if right else 'WRONG'}"
    print(f"{name:48} batch {largest} (predicted {found.predicted_batch}), {told}", flush=True)
    outcomes = [one.outcome for one in found.trials]
    return {"name": name, "largest": largest, "predicted": found.predicted_batch, "outcomes": outcomes, "right": right}


def measured_peak(step: Step) -> int:
    """The profiler's peak of all three steps and of building the model, without a cap."""
    peak = measure_memory(MeasureMemoryRequest(step, 0, 3), quiet).memory.peak_live_bytes
    assert peak is not None
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help=f"some of {', '.join(MODELS)}, comma separated")
    parser.add_argument("--size", type=int, default=64, help="side of the images (lenet takes 28)")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fit", action="store_true", help="the largest batch instead of the prediction")
    parser.add_argument("--how", default="ledger,rlimit", help="with --fit: ledger, rlimit or both")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    default = FIT_MODELS if arguments.fit else QUICK_MODELS if arguments.quick else MODELS
    models = default if arguments.models is None else tuple(arguments.models.split(","))
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads")
    if arguments.fit:
        rows = fit(models, tuple(arguments.how.split(",")))
    else:
        rows = predict(models, arguments.size, quick=arguments.quick)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
