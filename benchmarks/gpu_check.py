"""Everything of loaderbench that needs a GPU, run on one: tests, study, precision, models, trace, self-test, overhead.

    make gpu-check        or        python benchmarks/gpu_check.py [--out DIR] [--only study,checks] [--seconds 10]

Each part writes its files into DIR (default results/reference/GPU) as soon as it is done, and a part that is asked for
by name alone can be run again. `checks.json` holds what was expected and what was found; exit 1 where something
failed. Without a GPU it ends with one line.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loaderbench.devices.select import num_visible_gpus
from loaderbench.images.manifest import resolve_dataset
from loaderbench.machine import environment
from loaderbench.plain import to_json

Record = dict[str, Any]
LOADERBENCH = (sys.executable, "-m", "loaderbench")
HERE = Path(__file__).parent


class Check:
    """One GPU's folder of results and the checks made on them."""

    def __init__(self, out: Path, seconds: float, parts: Sequence[str]) -> None:
        """`parts`: those that are run now; the checks of others are kept."""
        self.out, self.seconds = out, seconds
        self.runs = out / "runs"
        kept = json.loads((out / "checks.json").read_text()) if (out / "checks.json").exists() else []
        self.part = ""
        self.found: list[dict[str, Any]] = [one for one in kept if one["part"] not in parts]
        out.mkdir(parents=True, exist_ok=True)

    def say(self, name: str, passed: bool, what: str) -> None:
        self.found.append({"part": self.part, "check": name, "passed": passed, "found": what})
        print(f"{'ok    ' if passed else 'FAILED'} {name}: {what}", flush=True)

    def call(self, name: str, *command: str | Path) -> bool:
        """Run a part; its output goes to this one's. A failure is a failed check."""
        print(f"\n== {name}", flush=True)
        done = subprocess.run([str(part) for part in command], check=False)
        if done.returncode:
            self.say(name, False, f"exit status {done.returncode}")
        return done.returncode == 0

    def run(self, name: str, *options: str) -> Record | None:
        """One stored run, and its record as DIR/NAME.json."""
        target = self.out / f"{name}.json"
        common = ("--device", "cuda", "--results", str(self.runs), "--quiet", "--json", str(target))
        if not self.call(name, *LOADERBENCH, "run", *options, *common):
            return None
        record: Record = json.loads(target.read_text())
        return record


def tests(check: Check) -> None:
    if check.call("tests", sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"):
        check.say("tests", True, "pytest -m gpu")


def study(check: Check) -> None:
    """Resolution × loader × workers, every case as long."""
    target = check.out / "study.json"
    parts: list[Record] = []
    for loaders, workers, *option in (
        ("serial,multiprocess,threaded", "1,2,4,8,16"),
        ("dali", "4,16", "--loader-option", "gpu_decode=no"),
        ("dali", "8", "--loader-option", "gpu_decode=yes"),
        ("nvjpeg", "8"),
    ):
        target.unlink(missing_ok=True)
        check.call(
            f"study {loaders} {' '.join(option)}", *LOADERBENCH, "sweep", "--res", "256,512,1024", "--loader", loaders,
            "--workers", workers, "--cache", "warm", "--duration", str(check.seconds), "--device", "cuda",
            "--results", check.runs, "--json", target, *option,
        )  # fmt: skip
        if target.exists():
            parts += json.loads(target.read_text())["runs"]
    target.write_text(json.dumps({"runs": parts}, indent=1))
    ended = sum(one["status"] == "ok" for one in parts)
    check.say("study", 0 < ended == len(parts), f"{ended} of {len(parts)} cases measured")


def precision(check: Check) -> None:
    check.call(
        "precision", *LOADERBENCH, "precision", "--model", "resnext50_32x4d", "--steps", "100", "--device", "cuda",
        "--json", check.out / "precision.json",
    )  # fmt: skip


MEMORY_MODELS = ("resnet50", "googlenet", "densenet121", "vgg16")
FIT_MODEL, FIT_MEMORY = "googlenet", "8G"
EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
LIVE_FRACTION, RESERVED_FRACTION = 0.03, 0.05
"""Of the measured figure: how far the predicted peak may be from it."""
MOST_SEARCH = 3
"""Trials of a fit besides the confirmations."""
Line = tuple[str, bool, str]
"""What is checked, whether it passed, what was found."""


def models(check: Check) -> None:
    """The commands under `loaderbench model`."""
    _model(check, "layers", layer_lines, "resnet50", "--batch-size", "64")
    for name in MEMORY_MODELS:
        for mode in ("train", "infer"):
            sizes = ("--batch-size", "1,16,64", "--mode", mode)
            _model(check, f"memory-{name}-{mode}", memory_lines, name, *sizes)
    for mode in ("train", "infer"):
        asked = (FIT_MODEL, "--memory", FIT_MEMORY, "--mode", mode)
        _model(check, f"fit-{mode}", fit_lines, *asked)
        _model(check, f"fit-{mode}-expandable", fit_lines, *asked, setting=EXPANDABLE)
    _model(check, "size", size_lines, "resnet50", "--mode", "infer", "--target", "5000/s")


def _model(
    check: Check,
    name: str,
    lines: Callable[[Record], list[Line]],
    model: str,
    *options: str,
    setting: str | None = None,
) -> None:
    """One command, NAME up to its first `-`, and the lines of its JSON, which is kept as DIR/model-NAME.json.
    `setting`: of the environment."""
    target = check.out / f"model-{name}.json"
    command = [*LOADERBENCH, "model", name.partition("-")[0], model, *options]
    common = ("--device", "cuda", "--results", str(check.runs), "--quiet", "--json", str(target))
    target.unlink(missing_ok=True)
    check.call(f"model {name}", *(() if setting is None else ("env", setting)), *command, *common)
    if target.exists():  # a fit that is not confirmed ends with 1, and has its figures
        for what, passed, found in lines(json.loads(target.read_text())):
            check.say(f"model {name}: {what}", passed, found)


def layer_lines(found: Record) -> list[Line]:
    rows, cost = (found[key] and found[key]["value"] for key in ("layers_over_whole", "timed_over_untimed"))
    return [
        ("rows ÷ whole step 0.95 to 1.05", rows is not None and 0.95 <= rows <= 1.05, f"{rows}"),
        ("with ÷ without stopwatch at most 1.05", cost is not None and cost <= 1.05, f"{cost}"),
    ]


def memory_lines(found: Record) -> list[Line]:
    """The two predicted figures against the allocator's, of each batch."""
    lines = []
    for batch in found["batches"]:
        predicted, measured = batch["predicted"], batch["measured"] or {}
        for name, most in (("live", LIVE_FRACTION), ("reserved", RESERVED_FRACTION)):
            what = f"batch {batch['batch_size']}, predicted within {most:.0%} of {name}"
            real = measured.get(f"peak_{name}_bytes")
            foreseen = (
                batch["predicted_reserved_bytes"] if name == "reserved" else (predicted or {}).get("peak_live_bytes")
            )
            if foreseen is None or not real:
                why = batch["trace_failure"] or batch["failure"] or measured.get("missing") or "not measured"
                lines.append((what, False, json.dumps(why, ensure_ascii=False)))
                continue
            error = foreseen / real - 1
            lines.append((what, abs(error) <= most, f"{error:+.2%} of {real:,} bytes"))
    return lines


def fit_lines(found: Record) -> list[Line]:
    largest = f"batch {found['largest_batch']} (predicted {found['predicted_batch']})"
    outcomes = ", ".join(f"{one['batch_size']} {one['outcome']}" for one in found["trials"])
    unknown = sum(one["outcome"] == "unknown" for one in found["trials"])
    return [
        ("largest batch confirmed", found["confirmed"], f"{largest}; {outcomes}"),
        (f"at most {MOST_SEARCH} search trials", found["num_search_trials"] <= MOST_SEARCH, outcomes),
        ("every failure is a typed one", not unknown, f"{unknown} unknown"),
    ]


def size_lines(found: Record) -> list[Line]:
    needed, batch = found["devices_needed"], found["chosen_batch"]
    return [("devices needed", needed is not None, f"{needed} at batch {batch}, bound by {found['bound']}")]


def trace(check: Check) -> None:
    record = check.run("traced-run", "--res", "512", "--workers", "4", "--cache", "warm", "--duration", "20")
    if record is not None:
        target = check.out / "run.perfetto.json.gz"
        if check.call("trace", *LOADERBENCH, "trace", record["run_id"], "--results", check.runs, "--out", target):
            size = target.stat().st_size
            check.say("trace below 50 MB", size < 50e6, f"{size / 1e6:.1f} MB")


def selftest(check: Check) -> None:
    target = check.out / "selftest.json"
    if check.call(
        "selftest", *LOADERBENCH, "selftest", "--quick", "--device", "cuda", "--results", check.runs, "--json", target
    ):
        result = json.loads(target.read_text())
        accuracy = result["accuracy_fraction"]
        check.say("self-test right", accuracy is not None and accuracy >= 0.95, f"{accuracy}")
        check.say("self-test confident wrong", result["confident_wrong"] == 0, str(result["confident_wrong"]))


def overhead(check: Check) -> None:
    target = check.out / "overhead.json"
    dataset, _ = resolve_dataset(None, 256)
    command = (sys.executable, HERE / "overhead.py", dataset, "--device", "cuda", "--model", "resnet50")
    if check.call("overhead", *command, "--json", target):
        ratio = json.loads(target.read_text())["ratio"]
        check.say("overhead at most 1 %", ratio >= 0.99, f"ours ÷ bare {ratio:.4f}")


def offloading(check: Check) -> None:
    """By a plan against everything offloaded and save_on_cpu, below half of what could be saved of the memory."""
    target = check.out / "offloading.json"
    command = (sys.executable, HERE / "model_offload.py", "--device", "cuda", "--json", target)
    if not check.call("offloading", *command):
        return
    found = json.loads(target.read_text())
    for name, aim in found["aims"].items():
        ratio = found["ratios"][name]
        told = "not measured" if ratio is None else " ".join(f"{one:.3f}" for one in ratio)
        check.say(f"a plan at least {aim} times {name}", ratio is not None and ratio[0] >= aim, told)
    peak, cap = found["peak_bytes"]["plan"], found["cap_bytes"]
    check.say("a plan's peak at most its cap", "plan" not in found["failures"] and peak <= cap, f"{peak:,} of {cap:,}")


def splitting(check: Check) -> None:
    """A batch over the CPU and the GPU, and the copies alone."""
    target = check.out / "split.json"
    shared = ("--device", "cpu,cuda:0", "--batch-size", "100", "--results", check.runs, "--json", target)
    if check.call("split", *LOADERBENCH, "model", "split", "resnet50", *shared):
        found = json.loads(target.read_text())
        off, ratio = found["measured_over_predicted"], found["ratio_to_fastest_alone"]
        check.say("a split ends within 10 % of its prediction", abs(off - 1) <= 0.1, f"{off:.3f}")
        slower = ratio is not None and ratio["low"] is not None and ratio["low"] > 1
        check.say("a split is not slower than the fastest alone", not slower, found["answer"][0])
        check.say("a split's outputs are those of one device", found["is_equal"] is True, json.dumps(found["check"]))
    target = check.out / "io.json"
    shared = ("--device", "cuda", "--max-batch", "128", "--results", check.runs, "--json", target)
    if check.call("io", *LOADERBENCH, "model", "io", "resnet50", *shared):
        last = json.loads(target.read_text())["batches"][-1]["data_in"]
        check.say(
            "data in was timed", last["bytes_per_s"]["value"] > 1e9, f"{last['bytes_per_s']['value'] / 1e9:.1f} GB/s"
        )


def profiles(check: Check) -> None:
    """The emulated device's files, from this GPU."""
    name = check.out.name
    for mode, sizes in (("train", (64, 256)), ("infer", (8, 64, 256))):
        target = check.out / f"{name}-resnet50-{mode}-amp-bf16.toml"
        for batch_size in sizes:
            check.run(
                f"profile-{mode}-{batch_size}", "--mode", mode, "--batch-size", str(batch_size),
                "--loader", "synthetic", "--duration", "8", "--save-profile", str(target),
            )  # fmt: skip


def checks(check: Check) -> None:
    """What is known of a GPU and must be found."""
    for batch_size, bound in ((1, "launch"), (8, "launch"), (256, "compute")):
        record = check.run(
            f"infer-{batch_size}", "--mode", "infer", "--batch-size", str(batch_size), "--loader", "synthetic",
            "--duration", "12",
        )  # fmt: skip
        if record is not None:
            verdict, step_ms = record["verdict"]["bottleneck"], 1e3 * record["step_time_s"]["mean"]
            check.say(
                f"inference at batch {batch_size} is {bound}-bound", verdict == bound, f"{verdict}, {step_ms:.2f} ms"
            )
    # NVML and GPM follow with a lag: windows of 8 s of about 55 ms a step, three of them.
    record = check.run(
        "steady", "--mode", "train", "--batch-size", "256", "--loader", "synthetic", "--arms", "real", "--steps", "450",
        "--duration", "60",
    )  # fmt: skip
    if record is not None:
        seen = record["device"]["busy_witnesses"] or {}
        others = [seen[name] for name in ("nvml", "gpm") if seen.get(name) is not None]
        agree = bool(others) and all(abs(one - seen["kernels"]) <= 0.03 for one in others)
        check.say("kernels and NVML or GPM agree within 3 points", agree, json.dumps(seen))
        check.say("kernel gaps measured", record["device"]["kernel_gap"] is not None, json.dumps(record["caveats"]))
    record = check.run("overhead-run", "--loader", "synthetic", "--batch-size", "64", "--duration", "12")
    if record is not None:
        check.say("own overhead at most 1 %", record["overhead_fraction"] <= 0.01, f"{record['overhead_fraction']:.4f}")
    record = check.run("stalled", "--res", "1024", "--workers", "1", "--cache", "warm", "--duration", "25")
    if record is not None:
        codes = {caveat["code"] for caveat in record["caveats"]}
        witnesses = [line for line in record["verdict"]["evidence"] if line.startswith("waiting for data")]
        check.say("one worker at 1024: both witnesses agree", "witnesses_disagree" not in codes, "; ".join(witnesses))


PARTS: dict[str, Callable[[Check], None]] = {
    one.__name__: one
    for one in (tests, checks, precision, models, trace, overhead, offloading, splitting, profiles, selftest, study)
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--only", help=f"parts to run, out of {','.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=10.0, help="of measuring for a case of the study")
    options = parser.parse_args(arguments)
    chosen = options.only.split(",") if options.only else list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if not num_visible_gpus():
        print(
            "gpu-check needs an NVIDIA GPU: there is no /dev/nvidia0, or CUDA_VISIBLE_DEVICES hides it", file=sys.stderr
        )
        return 1
    facts = environment()
    name = facts.gpus[0].name if facts.gpus else "gpu"
    short = re.sub(r"[^a-z0-9]+", "-", name.lower().replace("nvidia", "")).strip("-")
    check = Check(options.out or HERE.parent / "results" / "reference" / short, options.seconds, chosen)
    (check.out / "environment.json").write_text(json.dumps(to_json(facts), indent=1))
    for part in chosen:
        check.part = part
        try:
            PARTS[part](check)
        except Exception as error:  # one part must not cost the others
            check.say(part, False, f"{type(error).__name__}: {error}")
        (check.out / "checks.json").write_text(json.dumps(check.found, indent=1, ensure_ascii=False))
    shutil.rmtree(check.runs, ignore_errors=True)  # the records are in DIR; the raw facts are large
    failed = [one["check"] for one in check.found if not one["passed"]]
    print(f"\n{len(check.found) - len(failed)} of {len(check.found)} checks passed", *failed, sep="\n  ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
