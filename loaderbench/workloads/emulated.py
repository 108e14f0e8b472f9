"""The step of an emulated device: its profile's model, of which only the times exist."""

from __future__ import annotations

import math
from typing import Any

from loaderbench.cases.case import Case
from loaderbench.devices.emulated import EmulatedDevice
from loaderbench.workloads.example import random_batch


class EmulatedWorkload:
    """A `Workload` that computes nothing: it issues the profile's step, at the cost in CPU time it states."""

    def __init__(self, case: Case, device: EmulatedDevice) -> None:
        self._case = case
        self._device = device
        self.phases: list[tuple[int, int, int]] = []

    def step(self, inputs: Any, targets: Any) -> None:
        """Enqueue one step on inputs [N, 3, H, W]. Other sizes than the profile's scale by their pixels."""
        num_samples, _, height, width = inputs.shape
        self._device.enqueue_step(num_samples, height if height == width else math.sqrt(height * width))

    def example(self, output: str) -> tuple[Any, Any]:
        return random_batch(self._case, output)

    def describe(self) -> dict[str, Any]:
        profile = self._device.profile
        return {
            "model": profile.model,
            "mode": profile.mode,
            "precision": profile.precision,
            "emulated": True,
            "num_parameters": None,
        }
