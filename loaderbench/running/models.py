"""A step's device, and the model of PyTorch that a study is about on it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

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
    device = open_device(step, image_size(step))
    stack.callback(device.close)
    return device


def on_device(device: Device, inputs: Any, targets: Any) -> tuple[Any, Any]:
    """A batch on the device. `inputs`: as a workload's example, a tensor or a tuple or dict of several."""
    leaves, form = tree_flatten(inputs)
    first, targets = device.copy_in(leaves[0], targets)
    others = [device.copy_in(one, targets[:0])[0] for one in leaves[1:]]
    return tree_unflatten([first, *others], form), targets


def pinned(device: Device, inputs: Any) -> Any:
    """Inputs in memory that can be copied asynchronously, as Device.pin."""
    return tree_map(device.pin, inputs)


def rows_of(inputs: Any, rows: slice) -> Any:
    """Some samples of a batch's inputs."""
    return tree_map(lambda one: one[rows], inputs)


def model_on(device: Device, step: Step, seed: int, purpose: str) -> ModelWorkload:
    """The step's model on its device. `purpose`: what is to be done with a part of it, as of `of_pytorch`.

    Raises:
        LoaderbenchError: as build_workload and of_pytorch.
    """
    built = build_workload(step, device, image_size=image_size(step), seed=seed, num_classes=1)
    return of_pytorch(built, step, purpose)


def of_pytorch(workload: Workload, step: Step, purpose: str) -> ModelWorkload:
    """The workload, which is a model of PyTorch.

    Raises:
        ConfigError: it is not a PyTorch model, "so its memory cannot be measured": the words after `its` are `purpose`.
    """
    if not isinstance(workload, ModelWorkload):
        raise ConfigError(f"--model {step.model} is not a PyTorch model, so its {purpose}")
    return workload
