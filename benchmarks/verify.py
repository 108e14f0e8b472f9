"""Predicted against measured: the advice of runs with known limits, run.

    python benchmarks/verify.py [--only NAME] [--duration 20] [--json FILE] [--results DIR]

21 cases on emulated devices: preparation (serial, multiprocess, threaded at three resolutions of the generated
set), more workers than processors, storage (a slow FUSE mount, where there is /dev/fuse), the copy (a slow link) and
launches (a slow issue).
Each is measured with all arms, then its advice is run in turn with it (`loaderbench run --verify`). Prints each
prediction with its error, their median, and how many measured values lie in the predicted interval. The target
(median error ≤ 10 %) is that of a machine that does nothing else; 21 cases take about 32 minutes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loaderbench.cases.case import Case, Effort, Feed, Step, Subject
from loaderbench.errors import UnavailableError
from loaderbench.images.index import index_images
from loaderbench.images.manifest import resolve_dataset
from loaderbench.machine import usable_cpus
from loaderbench.plain import to_json
from loaderbench.plugins import loader_choice
from loaderbench.recording.record import Advice
from loaderbench.recording.store import Store
from loaderbench.selftest.slow_fuse import slow_fuse
from loaderbench.studies.measure import measure_case
from loaderbench.studies.verify import to_verify, verify_record

FAST = "h200-resnet50-train-fp32"
PROFILE = """
machine = "study"
device_name = "made for benchmarks/verify.py"
model = "resnet50"
mode = "train"
precision = "fp32"
input_size = 224
issue_ms = {{ value = {issue_ms}, label = "assumed", source = "benchmarks/verify.py" }}
tail_ms = {{ value = 0.03, label = "assumed", source = "benchmarks/verify.py" }}
link_bytes_per_s = {{ value = {link}, label = "assumed", source = "benchmarks/verify.py" }}

[[steps]]
batch_size = 64
duration_ms = {{ value = 32.0, label = "assumed", source = "benchmarks/verify.py" }}
busy_ms = {{ value = 32.0, label = "assumed", source = "benchmarks/verify.py" }}
"""


@dataclass(frozen=True)
class Study:
    """One case: what limits it, and how it is made."""

    name: str
    loader: str
    resolution: int
    workers: int
    device: str = FAST
    batch_size: int = 64
    fetch_s: float | None = None
    """Seconds that the slow storage takes for a batch; None: the files are in memory."""


def studies() -> Iterator[Study]:
    """21 cases over five causes."""
    many = min(2, usable_cpus())
    for resolution in (256, 512, 1024):
        yield Study(f"prep-serial-{resolution}", "serial", resolution, 0)
        yield Study(f"prep-multiprocess-{resolution}-w1", "multiprocess", resolution, 1)
        yield Study(f"prep-threaded-{resolution}-w1", "threaded", resolution, 1)
    yield Study(f"prep-multiprocess-256-w{many}", "multiprocess", 256, many)
    yield Study(f"prep-multiprocess-1024-w{many}", "multiprocess", 1024, many)
    for loader, resolution, times in (
        ("multiprocess", 256, 3), ("multiprocess", 512, 4), ("threaded", 256, 4), ("threaded", 512, 3),
    ):  # fmt: skip
        workers = times * usable_cpus()
        yield Study(f"oversubscribed-{loader}-{resolution}-w{workers}", loader, resolution, workers)
    yield Study("storage-multiprocess-256", "multiprocess", 256, many, fetch_s=0.25)
    yield Study("storage-threaded-512", "threaded", 512, many, fetch_s=0.45)
    yield Study("transfer-multiprocess-256", "multiprocess", 256, many, device="slow-link")
    yield Study("transfer-serial-256", "serial", 256, 0, device="slow-link")
    yield Study("launch-multiprocess-256", "multiprocess", 256, many, device="slow-issue", batch_size=8)
    yield Study("launch-threaded-256", "threaded", 256, many, device="slow-issue", batch_size=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--duration", type=float, default=20.0, help="seconds of measuring a case before its advice")
    parser.add_argument("--json", type=Path, help="write all rows")
    parser.add_argument("--results", type=Path, help="keep the runs there")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="loaderbench-verify-") as folder:
        devices = write_profiles(Path(folder))
        store = Store(arguments.results or Path(folder, "results"))
        chosen = [one for one in studies() if arguments.only in one.name]
        for number, study in enumerate(chosen, 1):
            print(f"[{number}/{len(chosen)}] {study.name}", flush=True)
            try:
                rows += measure(study, devices[study.device], arguments.duration, store)
            except UnavailableError as error:
                print(f"    skipped: {error}")
    print_summary(rows)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def write_profiles(folder: Path) -> dict[str, str]:
    """Name → what `Case.device` says."""
    slow = {"slow-link": {"issue_ms": 2.0, "link": 0.3e9}, "slow-issue": {"issue_ms": 40.0, "link": 50e9}}
    for name, values in slow.items():
        (folder / f"{name}.toml").write_text(PROFILE.format(**values))
    return {FAST: f"emulated:{FAST}"} | {name: f"emulated:{folder / name}.toml" for name in slow}


def measure(study: Study, device: str, duration_s: float, store: Store) -> list[dict[str, Any]]:
    """Measure the case with all arms, run its advice; a row for each piece."""
    dataset, name = resolve_dataset(None, study.resolution)
    loader = loader_choice(study.loader)
    case = Case(
        Subject(dataset, name, study.resolution, cache="warm"),
        Feed(loader.name, loader.decoder and loader.decoder.name, study.workers, output=loader.traits.output),
        Step("resnet50", "train", "fp32", device, study.batch_size, input_size=224),
        Effort(duration_s=duration_s, ci_target=0.02),
    )
    with ExitStack() as stack:
        if study.fetch_s is not None:
            rate = float(index_images(dataset).sizes.mean()) * study.batch_size / study.fetch_s
            bed = stack.enter_context(slow_fuse(dataset, bytes_per_s=rate))
            case = case.changed(dataset=bed.path, cache="cold")
        record = measure_case(case, store, lambda case, message: None)
        record = verify_record(record, store, lambda line: None)
    if record.verdict is None:
        print(f"    {record.status}: {record.failure and record.failure.message}")
        return []
    print(f"    {record.verdict.summary}")
    return [row for advice in to_verify(record) if (row := show(study, advice)) is not None]


def kind(advice: Advice) -> str:
    """What the advice changes first of all."""
    change = advice.change or {}
    for name in ("cache", "loader", "workers", "decoder", "output", "batch_size"):
        if name in change:
            return name if len(change) == 1 or name != "cache" else "cache and more"
    return "other"


def show(study: Study, advice: Advice) -> dict[str, Any] | None:
    change = " ".join(f"{name}={value}" for name, value in (advice.change or {}).items() if value != {})
    predicted, measured = advice.predicted_speedup, advice.measured_speedup
    assert predicted is not None and predicted.low is not None and predicted.high is not None
    if measured is None:
        print(f"    {change}: not run: {advice.not_verified}")
        return None
    assert measured.low is not None and measured.high is not None
    error = predicted.value / measured.value - 1
    inside = predicted.low <= measured.high and measured.low <= predicted.high
    print(
        f"    {change:<62} predicted {predicted.value:5.2f} [{predicted.low:.2f}, {predicted.high:.2f}]  "
        f"measured {measured.value:5.2f} [{measured.low:.2f}, {measured.high:.2f}]  {error:+6.1%}",
        flush=True,
    )
    return {
        "case": study.name, "kind": kind(advice), "change": dict(advice.change or {}), "predicted": to_json(predicted),
        "measured": to_json(measured), "error": error, "intervals_meet": inside,
    }  # fmt: skip


def print_summary(rows: list[dict[str, Any]]) -> None:
    if not rows:
        print("nothing was verified")
        return
    print(f"\n{'advice':<16}{'n':>4}{'median error':>15}{'largest':>10}{'mean (signed)':>16}")
    for name in [*dict.fromkeys(row["kind"] for row in rows), "all"]:
        errors = np.array([row["error"] for row in rows if name in (row["kind"], "all")])
        size = np.abs(errors)
        print(f"{name:<16}{len(size):>4}{np.median(size):>15.1%}{size.max():>10.1%}{errors.mean():>+16.1%}")
    num_cases = len({row["case"] for row in rows})
    meet = sum(row["intervals_meet"] for row in rows)
    print(f"{num_cases} cases; intervals of predicted and measured meet in {meet} of {len(rows)}")


if __name__ == "__main__":
    main()
