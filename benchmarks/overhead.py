"""What measuring costs: loaderbench's step loop with all samplers running against a bare loop.

    python benchmarks/overhead.py DATASET [--device cpu|emulated] [--model resnet18] [--rounds 12] [--seconds 2]

Both feed the same model from the same loader, in one process, in turn; the samplers run in a process of their
own, as `loaderbench run` has them, and only while its loop runs. The bare loop is what a training script does:
next, copy, step, and a bound on the steps in flight. Printed: the ratio of the rates (ours ÷ bare), the median over
rounds with its 95 % interval, and the same of steps a second of processor time, all processes counted, which
neighbours on the machine disturb less; 1 is free of cost.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from turns import cpu_s, median_interval, spread

from loaderbench.cases.case import Case, Feed, Step, Subject
from loaderbench.devices.select import nvml_ordinal, parse_device
from loaderbench.loaders.base import MAX_STEPS_IN_FLIGHT
from loaderbench.machine import environment
from loaderbench.plain import to_json
from loaderbench.plugins import loader_choice
from loaderbench.running.loop import StepLoop
from loaderbench.running.rig import Rig
from loaderbench.samplers.base import Sampler, SamplerThread
from loaderbench.samplers.sources import samplers_for

Side = Callable[..., int]


class Kept:
    """A sampler that lives through all rounds, as it does through all arms of a run: a thread's end does not close it.

    What it reads rarely (the memory of all processes: 0.1 s of CPU) it then reads as rarely as in a run.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.channels, self.caveats, self.read = sampler.channels, sampler.caveats, sampler.read

    def close(self) -> None: ...


def sample(pipe: Connection, dataset: str, pid: int, gpu: int | None) -> None:
    """The sampling process: starts and stops all samplers when told to."""
    samplers: list[Kept] = []
    while pipe.recv():
        samplers = samplers or [Kept(sampler) for sampler in samplers_for(dataset, pid, gpu)[0]]
        sampling = SamplerThread(samplers)
        sampling.start()
        pipe.send(True)
        pipe.recv()
        pipe.send(sampling.stop()[2])


@contextmanager
def sampling(pipe: Connection) -> Iterator[list[int]]:
    """Samplers on while the block runs; yields a list that then holds their CPU time in ns."""
    cpu_ns: list[int] = []
    pipe.send(True)
    pipe.recv()
    yield cpu_ns
    pipe.send(False)
    cpu_ns.append(pipe.recv())


def bare(rig: Rig, batches: Any, seconds: float) -> int:
    """Steps of a plain loop."""
    in_flight: deque[Any] = deque()
    device, workload = rig.device, rig.workload
    steps, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        batch = next(batches)
        inputs, targets = device.copy_in(batch.inputs, batch.targets)
        workload.step(inputs, targets)
        in_flight.append(device.record())
        if len(in_flight) > MAX_STEPS_IN_FLIGHT:
            device.wait(in_flight.popleft())
        steps += 1
    return steps


def ours(rig: Rig, batches: Any, seconds: float) -> int:
    """Steps of the measuring loop."""
    loop = StepLoop(batches, rig.device, rig.workload)
    return loop.run(sys.maxsize, time.perf_counter_ns() + int(seconds * 1e9))


def turn(side: Side, *arguments: Any) -> tuple[float, float]:
    """(steps a second, steps a CPU second)"""
    begun_cpu, begun = cpu_s(), time.perf_counter()
    steps = side(*arguments)
    return steps / (time.perf_counter() - begun), steps / (cpu_s() - begun_cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--device", default="emulated")
    parser.add_argument("--precision")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--loader", default="multiprocess")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", help="write the figures to this file")
    arguments = parser.parse_args()
    choice = parse_device(
        arguments.device, model=arguments.model, mode="train", precision=arguments.precision,
        batch_size=arguments.batch_size,
    )  # fmt: skip
    loader = loader_choice(arguments.loader)
    decoder = loader.decoder and loader.decoder.name
    case = Case(
        Subject(dataset=str(Path(arguments.dataset).resolve()), dataset_name="benchmark", resolution=None),
        Feed(loader.name, decoder, workers=arguments.workers, output=loader.traits.output),
        Step(
            model=arguments.model, mode="train", precision=choice.precision, device=choice.device,
            batch_size=arguments.batch_size, input_size=224,
        ),
    )  # fmt: skip
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    watched = (far, case.subject.dataset, os.getpid(), nvml_ordinal(case.step.device))
    sampler = context.Process(target=sample, args=watched, daemon=True)
    sampler.start()
    ratios: list[float] = []
    cpu_ratios: list[float] = []
    sampling_cpu = 0.0
    with ExitStack() as stack:
        rig = Rig(case, stack, lambda message: None)
        batches = rig.build_loader(rig.data, evict=False).batches()
        bare(rig, batches, arguments.seconds)  # warm-up
        for number in range(arguments.rounds):
            told: dict[str, tuple[float, float]] = {}
            for name in ("bare", "ours") if number % 2 else ("ours", "bare"):
                if name == "bare":
                    told[name] = turn(bare, rig, batches, arguments.seconds)
                else:
                    with sampling(near) as cpu_ns:
                        told[name] = turn(ours, rig, batches, arguments.seconds)
                    sampling_cpu += cpu_ns[0] / 1e9
            ratios.append(told["ours"][0] / told["bare"][0])
            cpu_ratios.append(told["ours"][1] / told["bare"][1])
            print(f"round {number + 1}: bare {told['bare'][0]:.2f} steps/s, ours {told['ours'][0]:.2f}, "
                  f"{ratios[-1]:.4f}, by CPU time {cpu_ratios[-1]:.4f}", flush=True)  # fmt: skip
        batches.close()
    near.send(False)
    ratio, low, high = by_clock = median_interval(ratios)
    cpu_ratio, cpu_low, cpu_high = by_cpu = median_interval(cpu_ratios)
    cpu = sampling_cpu / (arguments.rounds * arguments.seconds)
    print(
        f"\nratio {spread(by_clock, 4)}, by CPU time {spread(by_cpu, 4)}, sampling {cpu:.2%} of one core; {case.title}"
    )
    if arguments.json:
        figures = {
            "ratio": ratio, "low": low, "high": high, "ratios": ratios, "cpu_ratio": cpu_ratio, "cpu_low": cpu_low,
            "cpu_high": cpu_high, "cpu_ratios": cpu_ratios, "sampling_cpu": cpu,
        }  # fmt: skip
        with open(arguments.json, "w") as file:
            json.dump({**figures, "case": case.to_json(), "environment": to_json(environment())}, file, indent=1)


if __name__ == "__main__":
    main()
