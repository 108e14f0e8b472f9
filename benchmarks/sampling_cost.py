"""What the samplers cost: CPU share of one core at their cadence, and CPU time of one tick of each.

    python benchmarks/sampling_cost.py --workers 8 --seconds 10

The process tree is like a loader's: a process with worker processes of a few threads and some memory each.
The share comes from the sampling thread's own CPU clock, everything included; the limit is 1 % of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

from loaderbench.devices.select import nvml_ordinal
from loaderbench.samplers.base import DEFAULT_INTERVAL_S, Sampler, SamplerThread
from loaderbench.samplers.sources import StorageCounter, samplers_for

LIMIT_FRACTION = 0.01

TREE = """
import os, sys, threading, time
workers, threads, mib = map(int, sys.argv[1:])
block = bytearray(os.urandom(1024) * 1024 * mib)
for _ in range(workers):
    if os.fork() == 0:
        own = bytearray(block)
        break
for _ in range(threads - 1):
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
os.write(1, b".")
time.sleep(3600)
"""


def tick_cost_us(sampler: Sampler, num_ticks: int = 50) -> float:
    """Mean CPU time of `read` in this thread, after its first reading (rare, expensive parts left out)."""
    sampler.read()
    begun_ns = time.thread_time_ns()
    for _ in range(num_ticks):
        sampler.read()
    return (time.thread_time_ns() - begun_ns) / num_ticks / 1e3


def measure(dataset: str, workers: int, threads: int, mib: int, seconds: float, device: str) -> dict[str, object]:
    """Start the tree, sample it, end it."""
    command = [sys.executable, "-S", "-c", TREE, str(workers), str(threads), str(mib)]
    tree = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert tree.stdout is not None
        for _ in range(workers + 1):
            tree.stdout.read(1)
        samplers, caveats = samplers_for(dataset, tree.pid, nvml_ordinal(device))
        thread = SamplerThread(samplers)
        begun_s = time.perf_counter()
        thread.start()
        time.sleep(seconds)
        series, _, cpu_ns = thread.stop()
        passed_s = time.perf_counter() - begun_s
        num_processes = next((one.value[-1] for one in series if one.name == "num_processes"), None)

        fresh, _ = samplers_for(dataset, tree.pid, nvml_ordinal(device))
        costs = {type(sampler).__name__: tick_cost_us(sampler) for sampler in fresh}
        for sampler in fresh:
            sampler.close()
        counter = StorageCounter(dataset)
        begun_ns = time.perf_counter_ns()
        for _ in range(50):
            counter.read()
        counter_us = (time.perf_counter_ns() - begun_ns) / 50 / 1e3
        counter.close()
    finally:
        os.killpg(tree.pid, 9)
        tree.communicate()
    return {
        "cpu_fraction_of_one_core": cpu_ns / 1e9 / passed_s,
        "interval_s": DEFAULT_INTERVAL_S,
        "num_processes": num_processes,
        "threads_per_process": threads,
        "num_channels": len(series),
        "tick_us": costs,
        "storage_counter_read_us": counter_us,
        "missing": [caveat.worded().message for caveat in caveats],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default=".", help="a path on the storage whose counters are sampled")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--threads", type=int, default=4, help="threads of each process")
    parser.add_argument("--mib", type=int, default=64, help="memory of each process")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--device", default="cpu", help="cuda:0 to sample NVML as well")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    result = measure(given.dataset, given.workers, given.threads, given.mib, given.seconds, given.device)
    if given.json:
        print(json.dumps(result))
        return
    for name, cost_us in result["tick_us"].items():  # type: ignore[attr-defined]
        print(f"{name:20} {cost_us:8.0f} us CPU a tick")
    print(f"{'StorageCounter.read':20} {result['storage_counter_read_us']:8.0f} us")
    for message in result["missing"]:  # type: ignore[attr-defined]
        print(f"missing: {message}")
    print(
        f"sampling at {1 / DEFAULT_INTERVAL_S:.0f} Hz, {given.workers} workers: "
        f"{result['cpu_fraction_of_one_core']:.2%} of one core (limit {LIMIT_FRACTION:.0%})"
    )


if __name__ == "__main__":
    main()
