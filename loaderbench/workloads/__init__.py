"""What a step does: torchvision's models for real, or an emulated device's profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from loaderbench.cases.case import Step
from loaderbench.devices.base import Device
from loaderbench.workloads.base import Workload
from loaderbench.workloads.example import NUM_CLASSES, known_size

if TYPE_CHECKING:
    from loaderbench.devices.emulated import EmulatedDevice


def build_workload(
    step: Step, device: Device, *, image_size: int | None, seed: int = 0, num_classes: int = NUM_CLASSES
) -> Workload:
    """The step's model on its device, ready for the first step.

    Args:
        image_size: side of the square images; None (unknown) is enough for an emulated device.
        seed: draws the weights and the examples.
        num_classes: the data set's; a model has at least ImageNet's 1,000 outputs, so that small sets cost the same.

    Raises:
        ConfigError: unknown model or precision, or images of a size that is unknown or that the model cannot take.
        UnavailableError: the device cannot do the precision.
        OutOfMemory: the model does not fit into memory.
    """
    if device.torch_device is None:  # nothing computes: the device's own profile says how long a step takes
        from loaderbench.workloads.emulated import EmulatedWorkload

        return EmulatedWorkload(step, cast("EmulatedDevice", device), image_size=image_size, seed=seed)
    from loaderbench.workloads.vision import VisionWorkload

    size = known_size(image_size)
    return VisionWorkload(step, device, image_size=size, seed=seed, num_classes=max(num_classes, NUM_CLASSES))
