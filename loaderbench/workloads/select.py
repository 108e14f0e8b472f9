"""Which workload a case means."""

from __future__ import annotations

from loaderbench.cases.case import Case
from loaderbench.devices.base import Device
from loaderbench.devices.emulated import EmulatedDevice
from loaderbench.workloads.base import Workload


def build(case: Case, device: Device) -> Workload:
    """The case's model on its device, ready for the first step.

    Raises:
        ConfigError: unknown model, or images of a size it cannot take.
        UnavailableError: the device cannot do the precision.
        CaseFailed: the model does not fit into the device's memory.
    """
    if isinstance(device, EmulatedDevice):
        from loaderbench.workloads.emulated import EmulatedWorkload

        return EmulatedWorkload(case, device)
    from loaderbench.workloads.vision import VisionWorkload

    return VisionWorkload(case)
