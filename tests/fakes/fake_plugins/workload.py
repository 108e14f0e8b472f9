"""A step that takes the mean of its images, `--model fake-workload:POWER` so many times."""

from __future__ import annotations

from typing import Any

from loaderbench.cases.case import Step
from loaderbench.devices.base import Device
from loaderbench.recording.facts import WorkloadFacts
from loaderbench.workloads.example import known_size, random_batch


class FakeWorkload:
    def __init__(self, times: int, step: Step, size: int, seed: int) -> None:
        self._times, self._step, self._size, self._seed = times, step, size, seed
        self.phases: list[tuple[int, int, int]] = []

    def step(self, inputs: Any, targets: Any) -> None:
        for _ in range(self._times):
            inputs.float().mean()

    def example(self, output: str) -> tuple[Any, Any]:
        return random_batch(self._step, self._size, output, self._seed)

    def describe(self) -> WorkloadFacts:
        return WorkloadFacts(f"means, {self._times} times", self._step.mode, self._step.precision)


def build(
    detail: str, step: Step, device: Device, *, image_size: int | None, seed: int, num_classes: int
) -> FakeWorkload:
    return FakeWorkload(int(detail or 1), step, known_size(image_size), seed)
