"""Accelerator utilization by `dlio-benchmark` and by `loaderbench capacity`, on the same storage (capacity.py --dlio).

Both read the same JPEGs, each from a FUSE mount of its own with the same bandwidth, so that nothing is in memory; both
with PyTorch's DataLoader of one worker a rank, batches of the same size and steps of the same length. Truth: the part
of what the ranks could take that the storage was set to give. Of DLIO's steps also: where the time went besides the
computing.

    python -m venv VENV
    VENV/bin/pip install torch tensorflow-cpu pillow psutil pyyaml h5py pandas hydra-core mpi4py mpich pydftracer==1.0.2
    VENV/bin/pip install --no-deps dlio-benchmark==2.0.0

Its other requirements (DALI, torchvision, torchaudio) are not needed with PyTorch's loader and JPEGs; TensorFlow is
imported whatever is asked for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loaderbench.errors import LoaderbenchError
from loaderbench.images.index import index_images
from loaderbench.selftest.slow_fuse import slow_fuse

IMAGES_PER_S, BATCH, NUM_FILES = 200.0, 4, 2000
"""Of the bed; of a step; files of DLIO's epoch."""
LOOK_S = NUM_FILES / IMAGES_PER_S
PLACES = ((1, 60.0), (2, 60.0), (1, 180.0), (2, 110.0), (2, 150.0), (4, 90.0))
"""(ranks, images/s of one rank at AU 1)"""
LIMIT_S = 180.0


@dataclass
class Pair:
    """Both on one bed."""

    ranks: int
    demand: float
    truth: float
    """AU by what the storage was set to."""
    dlio: float
    ours: float
    mlperf: float
    """MLPerf Storage's formula on our steps."""
    dlio_seconds: float
    our_seconds: float
    dlio_ms: dict[str, float]
    """Of its steps; as `step_parts`."""


def make_set(made: Path, root: Path) -> Path:
    """`root/train/*.jpeg`, as DLIO wants them: the images of `made`."""
    target = root / "train"
    if not target.exists():
        target.mkdir(parents=True)
        (root / "valid").mkdir()  # it lists this one too
        images = sorted(made.rglob("*.jpg"))
        for number in range(NUM_FILES):
            shutil.copyfile(images[number % len(images)], target / f"{number:05d}.jpeg")
    return root


def overrides(data: str, out: Path, demand: float) -> list[str]:
    """Of DLIO's configuration."""
    given: dict[str, Any] = {
        "framework": "pytorch", "workflow.generate_data": False, "workflow.train": True, "workflow.evaluation": False,
        "workflow.checkpoint": False, "dataset.data_folder": data, "dataset.format": "jpeg",
        "dataset.num_files_train": NUM_FILES, "dataset.num_samples_per_file": 1, "dataset.keep_files": True,
        "dataset.num_subfolders_train": 0, "dataset.num_subfolders_eval": 0,
        "dataset.record_length": 96 * 96 * 3, "reader.data_loader": "pytorch", "reader.read_threads": 1,
        "reader.batch_size": BATCH, "reader.file_shuffle": "seed", "reader.sample_shuffle": "seed", "train.epochs": 1,
        "train.computation_time": BATCH / demand, "output.folder": out, "storage.storage_type": "local_fs",
    }  # fmt: skip
    return ["workload=default", *(f"++workload.{name}={value}" for name, value in given.items()),
            f"hydra.run.dir={out}/hydra"]  # fmt: skip


def quiet_run(command: Sequence[str], **options: Any) -> float:
    """Seconds that it took. Raises LoaderbenchError where it fails."""
    begun = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, **options)
    except subprocess.TimeoutExpired:
        raise LoaderbenchError(f"took more than {LIMIT_S:.0f} s") from None
    if done.returncode:
        raise LoaderbenchError(f"ended with {done.returncode}: {(done.stderr or done.stdout)[-400:]}")
    return time.perf_counter() - begun


def step_parts(outputs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Mean ms of a step after the first, all ranks: the waiting for the batch, the computing asked for, what the sleep
    for it took more (with the writing of the log), and the rest of an epoch, by its AU: the barrier, and what the loop
    costs."""
    waits, asked, over, rest = [], [], [], []
    for output in outputs:
        parts = [output["1"][name]["block1"] for name in ("load", "proc", "compute")]
        load, proc, compute = (1e3 * np.array(part[1:]) for part in parts)
        waits.append(load.mean())
        asked.append(compute.mean())
        over.append((proc - load - compute).mean())
        rest.append(compute.mean() / (output["1"]["au"]["block1"] / 100) - proc.mean())
    names = ("waits_for_batch", "computes", "sleeps_longer", "barrier_and_rest")
    return {name: float(np.mean(part)) for name, part in zip(names, (waits, asked, over, rest), strict=True)}


def by_dlio(
    installed: Path, data: str, folder: Path, ranks: int, demand: float
) -> tuple[float, dict[str, float], float]:
    """(AU, as `step_parts`, seconds)"""
    out = folder / "dlio"
    shutil.rmtree(out, ignore_errors=True)
    command = [
        str(installed / "bin" / "mpiexec"), "-n", str(ranks), str(installed / "bin" / "python"), "-m",
        "dlio_benchmark.main", *overrides(data, out, demand),
    ]  # fmt: skip
    seconds = quiet_run(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    summary = json.loads((out / "summary.json").read_text())
    outputs = [json.loads((out / f"{rank}_output.json").read_text()) for rank in range(ranks)]
    return summary["metric"]["train_au_mean_percentage"] / 100, step_parts(outputs), seconds


def by_us(data: str, profile: Path, folder: Path, ranks: int) -> tuple[dict[str, Any], float]:
    """(the point of so many ranks, seconds)"""
    target = folder / "answer.json"
    command = [
        sys.executable, "-m", "loaderbench", "capacity", f"{data}/train", "--device", f"emulated:{profile}",
        "--batch-size", str(BATCH), "--input-size", "64", "--loader", "multiprocess", "--workers", "1",
        "--max-ranks", str(ranks), "--duration", str(LOOK_S), "--results", str(folder / "results"),
        "--json", str(target),
    ]  # fmt: skip
    seconds = quiet_run(command)
    for point in json.loads(target.read_text())["curve"]:
        if point["ranks"] == ranks:
            found: dict[str, Any] = point
            return found, seconds
    raise LoaderbenchError(f"no look at {ranks} ranks")


def compare(
    installed: Path, made: Path, folder: Path, profile_text: str, places: Sequence[tuple[int, float]]
) -> list[Pair]:
    """Both at each of the places, printed as they come. Raises LoaderbenchError where one fails."""
    root, pairs = make_set(made, folder / "dlio-set"), []
    bytes_per_s = IMAGES_PER_S * float(index_images(str(root / "train")).sizes.mean())
    profile = folder / "dlio.toml"
    for ranks, demand in places:
        profile.write_text(profile_text.format(batch=BATCH, ms=1e3 * BATCH / demand))
        with slow_fuse(root, bytes_per_s=bytes_per_s) as bed:
            dlio, parts, dlio_s = by_dlio(installed, bed.path, folder, ranks, demand)
        with slow_fuse(root, bytes_per_s=bytes_per_s) as bed:
            point, our_s = by_us(bed.path, profile, folder, ranks)
        truth = min(1.0, IMAGES_PER_S / (ranks * demand))
        ours, rule = point["au_fraction"], point["mlperf"]["au_fraction"]
        pairs.append(Pair(ranks, demand, truth, dlio, ours, rule, dlio_s, our_s, parts))
        print(
            f"{ranks}x{demand:g} images/s: truth {truth:.1%}, DLIO {dlio:.1%} ({dlio_s:.0f} s), ours {ours:.1%}, by "
            f"MLPerf Storage's formula {rule:.1%} ({our_s:.0f} s); DLIO's step: "
            + ", ".join(f"{name} {ms:.2f} ms" for name, ms in parts.items()),
            flush=True,
        )
    return pairs
