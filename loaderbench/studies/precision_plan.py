"""What `loaderbench precision` asks for, read into a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loaderbench.cases.case import MODES, PRECISIONS, REFERENCE, Step
from loaderbench.cases.inputs import words_of
from loaderbench.cases.options import ModelOptions, PrecisionOptions
from loaderbench.cases.study import (
    MOST_SEED,
    MOST_SIDE,
    SCALED_PRECISIONS,
    check_choice,
    check_loss_scale,
    check_range,
)
from loaderbench.devices.select import DeviceChoice, num_visible_gpus, parse_device, traits_of
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.studies.model import plan_model

NUM_STEPS, BATCH_SIZE, INPUT_SIZE = 100, 64, 224
CPU_NUM_STEPS, CPU_BATCH_SIZE, CPU_INPUT_SIZE = 30, 8, 64
"""Defaults on the CPU, where a step of the GPU's size would take a minute."""


@dataclass(frozen=True)
class PrecisionPlan:
    """The steps of each mode, fp32's first."""

    steps: tuple[Step, ...]
    num_steps: int
    seed: int
    note: str | None
    """A sentence for the user."""


def plan_precision(options: PrecisionOptions) -> PrecisionPlan:
    """The modes to run, fp32 added where it was not asked for.

    Raises:
        ConfigError: a value out of range, a contradiction, no such model, or a device that does not compute or is not
            there.
    """
    if options.device != "auto" and not traits_of(options.device).computes:
        raise ConfigError("an emulated device computes no numbers, so precisions cannot be compared: use --device cpu")
    precisions = [check_choice("--precisions", name, PRECISIONS) for name in options.precisions or PRECISIONS]
    check_choice("--mode", options.mode, MODES)
    choice = _device(options)
    on_cpu = choice.traits.on_host_cpus
    num_steps = options.steps if options.steps is not None else CPU_NUM_STEPS if on_cpu else NUM_STEPS
    batch_size = options.batch_size if options.batch_size is not None else CPU_BATCH_SIZE if on_cpu else BATCH_SIZE
    input_size = options.input_size if options.input_size is not None else CPU_INPUT_SIZE if on_cpu else INPUT_SIZE
    check_range("--batch-size", batch_size, 1)
    check_range("--input-size", input_size, 32, MOST_SIDE)
    check_range("--steps", num_steps, 2)
    check_range("--seed", options.seed, 0, MOST_SEED)
    check_loss_scale(options.loss_scale, precisions, options.mode, computes=choice.traits.computes)
    shape = ModelOptions(
        mode=options.mode, input_size=input_size if options.input_shape is None else options.input_size,
        input_shape=options.input_shape, input_dtype=options.input_dtype, loss=options.loss,
        optimizer=options.optimizer, device=choice.device, precision=REFERENCE,
    )  # fmt: skip
    template = replace(plan_model(options.model, shape, instead=("cpu",)).step, batch_size=batch_size)
    steps = tuple(
        replace(template, precision=name, loss_scale=options.loss_scale if name in SCALED_PRECISIONS else None)
        for name in dict.fromkeys((REFERENCE, *precisions))
    )
    return PrecisionPlan(steps, num_steps, options.seed, _note(options, num_steps, template) if on_cpu else None)


def _device(options: PrecisionOptions) -> DeviceChoice:
    """The device that computes: the one asked for; with `auto` a GPU, else the CPU."""
    text = options.device
    if text == "auto":
        text = "cuda" if num_visible_gpus() else "cpu"
    size = 1 if options.batch_size is None else options.batch_size
    try:
        return parse_device(
            text, model=options.model, mode=options.mode, precision=None, batch_size=size, instead=("cpu",)
        )
    except UnavailableError as error:
        raise ConfigError(str(error)) from error


def _note(options: PrecisionOptions, num_steps: int, step: Step) -> str:
    missing = "No NVIDIA GPU here: " if options.device == "auto" else ""
    size = f"images of {step.input_size}×{step.input_size}"
    size = size if step.inputs is None else f"samples of {words_of(step.inputs)}"
    return (
        f"{missing}{num_steps} steps run on the CPU, {step.batch_size} {size} each; the remaining time appears "
        "after the first steps."
    )
