"""A step's device, and the model of PyTorch that a study is about on it."""

from __future__ import annotations

from contextlib import ExitStack

from loaderbench.cases.case import Step
from loaderbench.devices.base import Device
from loaderbench.devices.select import open_device
from loaderbench.errors import ConfigError
from loaderbench.workloads import build_workload
from loaderbench.workloads.base import Workload
from loaderbench.workloads.example import image_size
from loaderbench.workloads.training import ModelWorkload


def opened(step: Step, stack: ExitStack) -> Device:
    """The step's device, closed with the stack. Raises as open_device."""
    device = open_device(step, image_size(step, None))
    stack.callback(device.close)
    return device


def model_on(device: Device, step: Step, seed: int, purpose: str) -> ModelWorkload:
    """The step's model on its device. `purpose`: what is to be done with a part of it, as of `of_pytorch`.

    Raises:
        LoaderbenchError: as build_workload and of_pytorch.
    """
    built = build_workload(step, device, image_size=image_size(step, None), seed=seed, num_classes=1)
    return of_pytorch(built, step, purpose)


def of_pytorch(workload: Workload, step: Step, purpose: str) -> ModelWorkload:
    """The workload, which is a model of PyTorch.

    Raises:
        ConfigError: it is not a PyTorch model, "so its memory cannot be measured": the words after `its` are `purpose`.
    """
    if not isinstance(workload, ModelWorkload):
        raise ConfigError(f"--model {step.model} is not a PyTorch model, so its {purpose}")
    return workload
