"""The step of an emulated device: only the times of its profile's model, no model."""

from __future__ import annotations

import math
from typing import Any

from loaderbench.cases.case import Step
from loaderbench.devices.base import Device
from loaderbench.devices.emulated import EmulatedDevice
from loaderbench.errors import ConfigError
from loaderbench.recording.facts import WorkloadFacts
from loaderbench.workloads.example import known_size, random_batch


class EmulatedWorkload:
    """A `Workload` without computation: it issues the profile's step, at the profile's cost in CPU time."""

    def __init__(self, step: Step, device: EmulatedDevice, *, image_size: int | None, seed: int = 0) -> None:
        self._asked = step
        self._device = device
        self._image_size, self._seed = image_size, seed
        self.phases: list[tuple[int, int, int]] = []

    def step(self, inputs: Any, targets: Any) -> None:
        """Enqueue one step on inputs [N, 3, H, W]. For sizes other than the profile's, times scale with the pixels."""
        num_samples, _, height, width = inputs.shape
        self._device.enqueue_step(num_samples, height if height == width else math.sqrt(height * width))

    def example(self, output: str) -> tuple[Any, Any]:
        """Raises ConfigError where the images' size is unknown."""
        return random_batch(self._asked, known_size(self._image_size), output, self._seed)

    def describe(self) -> WorkloadFacts:
        profile = self._device.profile
        return WorkloadFacts(profile.model, profile.mode, profile.precision, emulated=True)


def build(
    detail: str, step: Step, device: Device, *, image_size: int | None, seed: int, num_classes: int
) -> EmulatedWorkload:
    """The workload whose times are in the device's profile.

    Raises:
        ConfigError: the device has no profile.
    """
    if not isinstance(device, EmulatedDevice):
        raise ConfigError(f"--model {step.model} is the step of an emulated device, not a model: name a model")
    return EmulatedWorkload(step, device, image_size=image_size, seed=seed)
