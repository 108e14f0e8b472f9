"""All benchmarks of loaders, measuring and models, one after the other; what each prints, and its figures as JSON.

    python benchmarks/all.py [--quick] [--only NAME,NAME] [--out results/benchmarks]

About 100 minutes on 2 cores, 18 with --quick. A benchmark that fails, cannot run or does not reach what it must is
named at the end, and the exit status is 1. Leave the machine alone meanwhile: see README.md of this folder.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from loaderbench.images.manifest import resolve_dataset

HERE = Path(__file__).parent
FULL = {
    "loaders": ["--rounds", "6", "--seconds", "1"],
    "overhead": ["DATASET", "--rounds", "12", "--seconds", "6"],
    "fidelity": [],
    "dali_stages": [],
    "time_to_verdict": ["--rounds", "1"],
    "nfs": ["--rounds", "6", "--processes", "8"],
    "model": ["--only", "layers,memory"],
    "split": ["--only", "search,members"],
    "capacity": [],
    "store": [],
}
QUICK = {
    "loaders": ["--quick", "--res", "512"],
    "overhead": ["DATASET", "--rounds", "3", "--seconds", "5"],
    "fidelity": ["--quick"],
    "dali_stages": ["--quick"],
    "time_to_verdict": ["--quick"],
    "nfs": ["--quick"],
    "model": ["--quick", "--only", "layers,memory"],
    "split": ["--only", "search"],
    "capacity": ["--only", "fuse,cpu", "--ranks", "4.5", "--duration", "6"],
    "store": ["--quick"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, resolutions and latencies")
    parser.add_argument("--only", help=f"some of {', '.join(FULL)}, comma separated")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="folder for the JSON files")
    arguments = parser.parse_args()
    chosen = list(FULL) if arguments.only is None else arguments.only.split(",")
    if set(chosen) - set(FULL):
        parser.error(f"--only takes some of {', '.join(FULL)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    dataset, _ = resolve_dataset(None, 512)
    failed, all_begun = [], time.monotonic()
    for name in chosen:
        flags = [dataset if flag == "DATASET" else flag for flag in (QUICK if arguments.quick else FULL)[name]]
        print(f"== {name}.py {' '.join((QUICK if arguments.quick else FULL)[name])}", flush=True)
        begun = time.monotonic()
        target = arguments.out.absolute() / f"{name}.json"
        ended = subprocess.run([sys.executable, str(HERE / f"{name}.py"), *flags, "--json", str(target)])
        print(f"== {name}: {time.monotonic() - begun:.0f} s\n", flush=True)
        if ended.returncode:
            failed.append(name)
    print(f"== all: {time.monotonic() - all_begun:.0f} s", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
