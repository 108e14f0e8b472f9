"""Workloads run a step: a real model of torchvision or the user, an emulated device's profile, or a plug-in's work."""

from __future__ import annotations

from loaderbench import plugins
from loaderbench.cases.case import Step
from loaderbench.devices.base import Device
from loaderbench.devices.select import traits_of
from loaderbench.workloads.base import Workload
from loaderbench.workloads.example import NUM_CLASSES


def build_workload(
    step: Step, device: Device, *, image_size: int | None, seed: int = 0, num_classes: int = NUM_CLASSES
) -> Workload:
    """The step's model on its device, ready for the first step.

    Args:
        image_size: side of the square images; None (unknown) is enough for an emulated device.
        seed: draws the weights and the examples.
        num_classes: number of classes of the data set.

    Raises:
        ConfigError: unknown model or precision, or images of a size that is unknown or that the model cannot take.
        UnavailableError: the device cannot do the precision.
        OutOfMemory: the model does not fit into memory.
    """
    name, detail = plugins.workload_of(step.model, traits_of(step.device))
    module = plugins.WORKLOADS.load(name)
    made: Workload = module.build(detail, step, device, image_size=image_size, seed=seed, num_classes=num_classes)
    return made
