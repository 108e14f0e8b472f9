"""Forecasts beside the epochs that they forecast, and beside a null: the same epochs run once more.

    python benchmarks/forecast.py [--num 16] [--seconds 40] [--kinds device,prep,storage,cpu] [--json FILE]

Each case is a run (every third with a validation's run beside it), and twice a forecast of two epochs of its data set
with `--check`: the first epoch from the storage, one from memory. What the second epochs are off from the first ones is
the null, the machine's own drift: no forecast can do better. Both checks are scored. Kinds: `device` (an emulated card
bounds the step), `prep` (decoding does), `storage` (a FUSE bed of known speed does, with a warm run beside the cold
one; needs FUSE), `cpu` (the model computes on the loader's processors). Intervals are calibrated as the cases go on, as
a user's would be.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from loaderbench.images.synthesize import make_dataset
from loaderbench.machine import environment
from loaderbench.plain import to_json
from loaderbench.selftest.slow_fuse import slow_fuse

LOADERBENCH = (sys.executable, "-m", "loaderbench")
NUM_IMAGES, RESOLUTION, BED_BYTES_PER_S = 4800, 256, 10e6
AIM_MEDIAN, AIM_P90, AIM_COVERAGE = 0.03, 0.06, 0.90
KINDS: dict[str, tuple[str, ...]] = {
    "device": ("--device", "emulated:h200x0.2", "--loader", "threaded", "--workers", "2"),
    "prep": ("--device", "emulated", "--loader", "multiprocess", "--workers", "2"),
    "storage": ("--device", "emulated", "--loader", "multiprocess", "--workers", "2"),
    "cpu": ("--device", "cpu", "--model", "resnet18", "--input-size", "64", "--workers", "1"),
}
Row = dict[str, Any]


@contextmanager
def placed(kind: str, images: Path) -> Iterator[str]:
    """The folder to read: on the bed for `storage`."""
    if kind != "storage":
        yield str(images)
        return
    with slow_fuse(images, bytes_per_s=BED_BYTES_PER_S) as bed:
        yield str(bed.path)


def call(*command: str) -> Row:
    """A command's JSON. Raises RuntimeError with its last line where it failed."""
    done = subprocess.run(
        [*LOADERBENCH, *command, "--quiet", "--json", "-"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    found: Row = json.loads(done.stdout)
    return found


def case(kind: str, images: Path, results: str, seconds: float, *, validate: bool) -> list[Row]:
    """One case: a row for each epoch that was checked twice."""
    shared = ("--results", results)

    def measured(*options: str) -> str:
        """The cold run's id. The bed is asked at each open, so there a warm run tells of the later epochs."""
        given = (folder, *KINDS[kind], "--batch-size", "32", "--duration", str(seconds), "--no-kernels", *options)
        for cache in ("warm", "cold") if kind == "storage" else ("cold",):
            run: str = call("run", *given, "--cache", cache, *shared)["run_id"]
        return run

    with placed(kind, images) as folder:
        run = measured()
        asked = ["--epochs", "2"]
        if validate:
            asked += ["--val-images", str(NUM_IMAGES), "--val-run", measured("--mode", "infer")]
        first, second = (call("forecast", run, *asked, "--check", *shared) for _ in range(2))
    rows = []
    for one, again in zip(first["checked"], second["checked"], strict=True):
        null = again["measured_s"] / one["measured_s"] - 1
        for checked in (one, again):
            if checked["not_scored"] is not None:
                continue
            predicted, measured = checked["predicted"]["s"], checked["measured_s"]
            rows.append({
                "case": kind, "epoch": f"{checked['kind']} {checked['state']}", "predicted_s": predicted["value"],
                "low_s": predicted["low"], "high_s": predicted["high"], "measured_s": measured,
                "error": measured / predicted["value"] - 1, "null": null,
                "held": predicted["low"] <= measured <= predicted["high"],
            })  # fmt: skip
    return rows


def summary(rows: Sequence[Row]) -> Row:
    """Median and 90th percentile of the errors without sign, the null's, and how often intervals held."""
    error, null = (np.abs([row[name] for row in rows]) for name in ("error", "null"))
    return {
        "num": len(rows),
        "error_median": float(np.median(error)),
        "error_p90": float(np.percentile(error, 90)),
        "null_median": float(np.median(null)),
        "null_p90": float(np.percentile(null, 90)),
        "held_fraction": float(np.mean([row["held"] for row in rows])),
    }


def summaries(rows: Sequence[Row]) -> Row:
    """Of each kind, and of all."""
    kinds = dict.fromkeys(row["case"] for row in rows)
    return {
        "by_kind": {kind: summary([row for row in rows if row["case"] == kind]) for kind in kinds},
        "all": summary(rows),
    }


def show(name: str, found: Row) -> None:
    errors = f"error {found['error_median']:.1%} median, {found['error_p90']:.1%} in 90 %"
    null = f"null {found['null_median']:.1%}, {found['null_p90']:.1%}"
    print(f"{name:<18} {found['num']:>3} epochs: {errors}; {null}; held {found['held_fraction']:.0%}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--results")
    given = parser.parse_args()
    kinds = given.kinds.split(",")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="loaderbench-forecast-") as folder:
        images = make_dataset(Path(folder, "set"), [RESOLUTION], NUM_IMAGES)[str(RESOLUTION)]
        for number in range(given.num):
            kind = kinds[number % len(kinds)]
            try:
                found = case(
                    kind, images, given.results or f"{folder}/results", given.seconds, validate=number % 3 == 2
                )
            except RuntimeError as error:
                print(f"[{number + 1}] {kind}: {error}", flush=True)
                continue
            rows += found
            print(
                f"[{number + 1}] {kind}: " + ", ".join(f"{row['epoch']} {row['error']:+.1%}" for row in found),
                flush=True,
            )
            if given.json is not None and rows:
                told = {
                    "seconds": given.seconds,
                    "rows": rows,
                    **summaries(rows),
                    "environment": to_json(environment()),
                }
                given.json.write_text(json.dumps(told, indent=1) + "\n")
    if not rows:
        return 1
    told = summaries(rows)
    for kind, found in told["by_kind"].items():
        show(kind, found)
    show("all", whole := told["all"])
    met = (
        whole["error_median"] <= AIM_MEDIAN and whole["error_p90"] <= AIM_P90 and whole["held_fraction"] >= AIM_COVERAGE
    )
    print(f"aim (median 3 %, 6 % in 90 %, held 90 %): {'met' if met else 'missed'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
