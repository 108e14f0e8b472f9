"""What a step does: torchvision's models for real, or an emulated device's profile."""

from __future__ import annotations

from loaderbench.cases.case import Case
from loaderbench.devices.base import Device
from loaderbench.devices.emulated import EmulatedDevice
from loaderbench.workloads.base import Workload
from loaderbench.workloads.example import NUM_CLASSES


def build_workload(case: Case, device: Device, num_classes: int = NUM_CLASSES) -> Workload:
    """The case's model on its device, ready for the first step.

    `num_classes` is the data set's; a model has at least ImageNet's 1,000 outputs, so that small sets cost the same.

    Raises:
        ConfigError: unknown model, or images of a size it cannot take.
        UnavailableError: the device cannot do the precision.
        CaseFailed: the model does not fit into the device's memory.
    """
    if isinstance(device, EmulatedDevice):
        from loaderbench.workloads.emulated import EmulatedWorkload

        return EmulatedWorkload(case, device)
    from loaderbench.workloads.vision import VisionWorkload

    return VisionWorkload(case, max(num_classes, NUM_CLASSES))
