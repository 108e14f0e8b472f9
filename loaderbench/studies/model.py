"""What the commands under `loaderbench model` ask for: a Step (the model, its input and the device), and the memory."""

from __future__ import annotations

import math
import typing
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loaderbench import plugins
from loaderbench.cases.case import MODES, OPTIMIZERS, PRECISIONS, Precision, Step
from loaderbench.cases.inputs import Input, image_side, inputs_asked, sample_inputs, text_of
from loaderbench.cases.options import Memory, ModelOptions, read
from loaderbench.cases.study import MOST_SEED, MOST_SIDE, check_choice, check_range
from loaderbench.cases.traits import DeviceTraits
from loaderbench.devices.select import lacks, num_visible_gpus, nvml_ordinal, parse_device, profile_memory
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.machine import available_memory_bytes, environment
from loaderbench.printable import memory_size
from loaderbench.workloads.known import check_path

INPUT_SIZE = 224
LENET = "lenet"
PROCESS_BYTES = 1 << 30
"""Kept free for a trial's interpreter, PyTorch and the profiler's events: 0.5 GB at import, and a few 100 MB more."""


@dataclass(frozen=True)
class ModelPlan:
    """A model's step, without its batch."""

    step: Step
    """Of batch 1."""
    device: DeviceTraits
    seed: int


def plan_model(model: str, options: ModelOptions, instead: Sequence[str] = ("emulated", "cpu")) -> ModelPlan:
    """The step that the options ask for. `instead`: as in parse_device.

    Raises:
        ConfigError: a value out of range, a contradiction, no such model or device, or one without that precision.
    """
    mode = check_choice("--mode", options.mode, MODES)
    optimizer = check_choice("--optimizer", options.optimizer, OPTIMIZERS)
    if options.precision is not None:
        check_choice("--precision", options.precision, PRECISIONS)
    check_range("--seed", options.seed, 0, MOST_SEED)
    channels, side, inputs = _inputs(model, options)
    if options.loss is not None:
        check_path(options.loss, "--loss")
    text = options.device
    if text == "auto":
        text = "cuda" if num_visible_gpus() else "cpu"
    try:
        choice = parse_device(text, model=model, mode=mode, precision=options.precision, batch_size=1, instead=instead)
    except UnavailableError as error:
        raise ConfigError(str(error)) from error
    if inputs is None:
        _check_channels(model, channels, choice.traits)
    precision = typing.cast(Precision, choice.precision)
    if (why := lacks(choice.device, precision)) is not None:
        raise ConfigError(why)
    step = Step(
        model, mode, precision, choice.device, 1, side, optimizer=optimizer, channels=channels, inputs=inputs,
        loss=options.loss,
    )  # fmt: skip
    plugins.check_model(step, replace(choice.traits, workload=None))  # the model itself is traced on any device
    if not choice.traits.computes:
        image_side(step)
    return ModelPlan(step, choice.traits, options.seed)


def _check_channels(model: str, channels: int, device: DeviceTraits) -> None:
    name, _ = plugins.workload_of(model, replace(device, workload=None))  # the model itself is traced on any device
    takes = plugins.WORKLOADS.find(name).traits.channels
    if takes not in (None, channels):
        raise ConfigError(
            f"--input-shape: {model} takes images with {takes} channels, not {channels}; lenet or your own "
            "model may take others"
        )


def _inputs(model: str, options: ModelOptions) -> tuple[int, int | None, str | None]:
    """(channels, side) of square images; else their channels, None, and the inputs as a step keeps them.

    Raises:
        ConfigError: a shape or type that is none, or that contradicts the size.
    """
    channels, side = (1, 28) if model == LENET else (3, INPUT_SIZE)
    shapes, size, dtypes = options.input_shape, options.input_size, options.input_dtype or ()
    check_range("--input-size", size, 1, MOST_SIDE)
    if shapes is None:
        if set(dtypes) - {"float32"}:
            raise ConfigError("--input-dtype needs --input-shape: give the shape of a sample, such as 512")
        return channels, size or side, None
    inputs = inputs_asked(shapes, dtypes)
    shape = inputs[0].shape
    if size is not None and (len(inputs) > 1 or shape[1:] != (size, size)):
        raise ConfigError(f"--input-size {size} and --input-shape differ: leave --input-size out")
    if len(inputs) == 1 and inputs[0] == Input(shape) and len(shape) == 3 and shape[1] == shape[2]:
        return shape[0], shape[1], None
    return channels, None, text_of(inputs)


@dataclass(frozen=True)
class MemoryLimit:
    """Of the device's memory, what a model may have."""

    bytes: int
    source: str
    asked: int | None
    """By `--memory`."""


def memory_limit(planned: ModelPlan, memory: str | None) -> MemoryLimit:
    """What `--memory` says, or what is there.

    Raises:
        ConfigError: a size that is none, more than there is to try it with, or no limit known.
    """
    asked = read("memory", Memory | None, memory)
    there = device_memory(planned)
    if asked is None and there is None:
        raise ConfigError(f"the memory of {planned.step.device} is unknown: give --memory, e.g. 16G")
    if asked is not None and there is not None and asked > there[0] and planned.device.computes:
        free = memory_size(there[0])
        raise ConfigError(f"--memory {memory} exceeds the available {free} ({there[1]}): give less")
    if asked is not None:
        _check_holds_an_image(planned.step, asked, memory)
        return MemoryLimit(asked, "--memory", asked)
    assert there is not None
    return MemoryLimit(*there, None)


def _check_holds_an_image(step: Step, memory_bytes: int, memory: str | None) -> None:
    """Raises ConfigError where no model could run: an image takes a byte a value, or more."""
    inputs = sample_inputs(step)
    least = sum(math.prod(one.shape) for one in inputs)
    if memory_bytes < least:
        noun = "image" if step.inputs is None else "sample"
        shape = " and ".join(one.words for one in inputs)
        raise ConfigError(f"--memory {memory}: one {noun} of {shape} takes {memory_size(least)}; give more, e.g. 1G")


def device_memory(planned: ModelPlan) -> tuple[int, str] | None:
    """(bytes, source) of the memory that a model can have on the device; None where that is not known."""
    device = planned.step.device
    if planned.device.on_host_cpus:
        size, source = host_memory()
        whose = f"this machine's free memory ({source}) minus 1 GiB for the process itself"
        return None if size is None else (size, whose)
    if (ordinal := nvml_ordinal(device)) is not None:
        found = environment().gpus[ordinal : ordinal + 1]
        return (found[0].memory_total_bytes, f"the memory of {found[0].name}") if found else None
    return profile_memory(device)


def host_memory() -> tuple[int | None, str]:
    """(bytes, source) of this machine's memory that a measuring process may fill; None where that is not known."""
    free, source = available_memory_bytes()
    return None if free is None else max(free - PROCESS_BYTES, 0), source
