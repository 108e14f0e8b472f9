"""What the step loop itself costs, measured in place against a bare loop that does the same."""

from __future__ import annotations

import sys
import time
from itertools import repeat
from statistics import median

from loaderbench.devices.base import Device
from loaderbench.loaders.base import Batch
from loaderbench.recording.facts import WorkloadFacts
from loaderbench.running.loop import StepLoop

NUM_PAIRS, NUM_STEPS = 15, 100


class _NoWork:
    def __init__(self) -> None:
        self.phases: list[tuple[int, int, int]] = []

    def step(self, inputs: object, targets: object) -> None:
        """Does nothing, so that only the loops take time."""

    def example(self, output: str) -> tuple[None, None]:
        return None, None

    def describe(self) -> WorkloadFacts:
        return WorkloadFacts("none", "none", "none")


def loop_overhead_s(device: Device) -> float:
    """Seconds a step that the stamps and events add on this device: the median of NUM_PAIRS paired differences.

    Both loops take the same batch from the same iterator and call the same step, which does nothing; pairs
    take turns. About 60 ms in all.
    """
    batches = repeat(Batch(None, None, 1, 0))
    work = _NoWork()
    differences = []
    for _ in range(NUM_PAIRS):
        device.synchronize()
        begun = time.perf_counter_ns()
        for _ in range(NUM_STEPS):
            batch = next(batches)
            work.step(batch.inputs, batch.targets)
        bare = time.perf_counter_ns() - begun
        loop = StepLoop(batches, device, work, resident=True)
        begun = time.perf_counter_ns()
        loop.run(NUM_STEPS, sys.maxsize)
        differences.append((time.perf_counter_ns() - begun - bare) / NUM_STEPS)
    return float(median(differences)) * 1e-9
