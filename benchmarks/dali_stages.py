"""DALI's stage times: do they add up to the time of a batch, and what does it cost to have them?

    python benchmarks/dali_stages.py [DATASET] [--workers 1] [--pairs 6] [--rounds 4] [--quick] [--json FILE]

Two processes run the `dali` loader free: in one NVTX's ranges are received (loaderbench/loaders/nvtx_times.c), in the
other NVTX finds no receiver. They take turns, the other one waiting, in an order that alternates. Where its memory
happens to lie makes one process up to a tenth slower than another for all its life, so new pairs of them are started.
Printed, with 95 % intervals over the pairs' medians: the rate with ÷ the rate without (aim: within 1 % of
1); the same of images a second of processor time, which other programs on the machine disturb less; and, of one
thread, the operators' times of a batch ÷ the wall time of a batch (aim: within 5 % of 1).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from turns import judged, median_interval, spread

from loaderbench.images.index import index_images
from loaderbench.images.manifest import resolve_dataset
from loaderbench.loaders.base import LoaderContext
from loaderbench.machine import environment
from loaderbench.plain import to_json

NO_RECEIVER = "/nonexistent/receiver.so"


def serve(pipe: Connection, dataset: str, workers: int, batch_size: int, receives: bool) -> None:
    """A process with one loader: runs it for as long as it is told to, answers
    (images/s, images a CPU second, s a batch, s by stage)."""
    if not receives:
        os.environ["NVTX_INJECTION64_PATH"] = NO_RECEIVER
    from loaderbench.loaders import dali

    context = LoaderContext(
        images=index_images(dataset), batch_size=batch_size, workers=workers, prefetch=2, decoder=None, input_size=224,
        mode="train", output="float32", seed=0,
    )  # fmt: skip
    loader = dali.build(dali.Options(), context)
    batches = loader.batches()
    for _ in range(8):
        next(batches)
    pipe.send(loader.no_stage_times)
    while seconds := pipe.recv():
        for _ in range(4):  # what was prepared while waiting
            next(batches)
        before, cpu, begun, taken = loader.stage_times(), time.process_time(), time.perf_counter(), 0
        while (spent := time.perf_counter() - begun) < seconds:
            next(batches)
            taken += 1
        after, cpu = loader.stage_times(), time.process_time() - cpu
        stages = {}
        if before is not None and after is not None:
            stages = {name: (after[name][1] - before[name][1]) / taken / 1e9 for name in after}
        pipe.send((taken * batch_size / spent, taken * batch_size / cpu, spent / taken, stages))
    batches.close()
    loader.close()


def run_pair(dataset: str, arguments: argparse.Namespace, pair: int) -> list[dict[str, Any]]:
    """What the rounds of two new processes gave."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for name in ("with", "without"):
        pipes[name], theirs = context.Pipe()
        process = context.Process(
            target=serve, args=(theirs, dataset, arguments.workers, arguments.batch_size, name == "with"), daemon=True
        )
        process.start()
        processes.append(process)
    reasons = {name: pipe.recv() for name, pipe in pipes.items()}
    if (reason := reasons["with"]) is not None:
        raise SystemExit(f"no stage times: {reason}")
    rows = []
    for number in range(arguments.rounds):
        told: dict[str, Any] = {}
        for name in list(pipes)[:: 1 if (pair + number) % 2 else -1]:
            pipes[name].send(arguments.seconds)
            told[name] = pipes[name].recv()
        images_s, images_cpu_s, batch_s, stages = told["with"]
        row = {
            "with": images_s,
            "without": told["without"][0],
            "ratio": images_s / told["without"][0],
            "cpu_ratio": images_cpu_s / told["without"][1],
            "batch_s": batch_s,
            "stages_s": stages,
            # Reading goes on beside the operators, on a thread of its own.
            "sum_fraction": sum(value for name, value in stages.items() if name != "read") / batch_s,
        }
        rows.append(row)
        print(f"pair {pair + 1}, round {number + 1}: {row['with']:,.0f} with, {row['without']:,.0f} without, "
              f"{row['ratio']:.4f}, by CPU time {row['cpu_ratio']:.4f}; "
              f"operators {row['sum_fraction']:.3f} of a batch", flush=True)  # fmt: skip
    for name, process in zip(pipes, processes, strict=True):
        pipes[name].send(0)
        process.join(20)
    return rows


def medians(rows: list[dict[str, Any]], name: str) -> list[float]:
    """Of each pair."""
    pairs = sorted({row["pair"] for row in rows})
    return [float(np.median([row[name] for row in rows if row["pair"] == pair])) for pair in pairs]


def interval(values: list[float]) -> dict[str, float | None]:
    """Median with its 95 % interval."""
    value, low, high = median_interval(values)
    return {"value": value, "low": low, "high": high}


def show(name: str, found: dict[str, Any], aim: tuple[float, float]) -> None:
    interval = found["value"], found["low"], found["high"]
    print(f"{name:44s} {spread(interval, 4)}  aim {aim[0]:g} to {aim[1]:g}: {judged(interval, *aim)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", help="an image tree  [default: the generated set at 256]")
    parser.add_argument("--workers", type=int, default=1, help="threads of DALI; the sum is of one thread")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=6, help="of processes")
    parser.add_argument("--rounds", type=int, default=4, help="of each pair")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--quick", action="store_true", help="3 pairs, 2 rounds of 0.5 s")
    parser.add_argument("--json", type=Path, help="write the figures, with the environment")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.pairs, arguments.rounds, arguments.seconds = 3, 2, 0.5
    dataset = arguments.dataset or resolve_dataset(None, 256)[0]
    rows: list[dict[str, Any]] = []
    for pair in range(arguments.pairs):
        rows += [{"pair": pair, **row} for row in run_pair(dataset, arguments, pair)]
    ratio, cpu, total = (interval(medians(rows, name)) for name in ("ratio", "cpu_ratio", "sum_fraction"))
    print()
    show("rate with ÷ without", ratio, (0.99, 1.01))
    show("the same by CPU time", cpu, (0.99, 1.01))
    show("operators' times ÷ time of a batch", total, (0.95, 1.05))
    names = list(rows[0]["stages_s"])
    stages = {name: float(np.median([row["stages_s"][name] for row in rows])) for name in names}
    print(
        f"ms a batch of {arguments.batch_size}, DALI with {arguments.workers} threads: "
        + ", ".join(f"{name} {1e3 * value:.2f}" for name, value in stages.items())
    )
    if arguments.json:
        figures = {"rate_ratio": ratio, "cpu_ratio": cpu, "sum_fraction": total, "stages_s": stages, "rounds": rows,
                   "workers": arguments.workers, "environment": to_json(environment())}  # fmt: skip
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
