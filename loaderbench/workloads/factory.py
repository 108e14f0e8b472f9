"""The user's own model: `--model package.module:factory`, a callable that returns a `torch.nn.Module`.

It takes images [N, C, S, S] (3 channels unless `--input-shape` says otherwise), normalized float32 in channels_last
order (in which `view` may refuse what `reshape` and `flatten` take), or what `--input-shape` and `--input-dtype` say.
It may return anything: workloads/objective.py chooses the loss of a training step by it, or `--loss` gives one.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from loaderbench.cases.case import Step
from loaderbench.cases.inputs import sample_inputs
from loaderbench.devices.base import Device
from loaderbench.errors import ConfigError
from loaderbench.neutral import standing_in, users_folder
from loaderbench.workloads.example import random_inputs
from loaderbench.workloads.objective import Objective, floats_of, tensors_of
from loaderbench.workloads.training import ModelWorkload, call

NUM_EXAMINED = 2
"""Samples of the pass that shows the outputs: batch norm in training needs two."""
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.clone.default)
_Examined = tuple[Any, tuple[int, ...]]
"""What a model returns, and the limits of `random_inputs`."""


def build(
    detail: str, step: Step, device: Device, *, image_size: int | None, seed: int, num_classes: int
) -> ModelWorkload:
    """The model that the factory `detail` makes. `seed` sets its weights if it draws them with torch.

    Raises:
        ConfigError: it cannot be imported or made, or does not take these inputs, or has too few outputs.
    """
    factory = imported(detail, "--model")
    own = None if step.loss is None else imported(step.loss, "--loss")
    try:
        with torch.random.fork_rng(devices=[]), standing_in(users_folder()):  # it may read files from there
            torch.manual_seed(seed)
            model = factory()
    except Exception as error:
        raise ConfigError(f"--model {detail}: {_first_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"--model {detail} returns a {type(model).__name__}, not a torch.nn.Module")
    if step.mode == "train" and not any(weights.requires_grad for weights in model.parameters()):
        raise ConfigError(f"--model {detail} has no trainable parameters: use --mode infer, or a model that has some")
    model = model.float().train(step.mode == "train")
    outputs, limits = _examined(model, step, image_size, f"--model {detail}")
    if not any(True for _ in tensors_of(outputs)):
        raise ConfigError(f"--model {detail} returns a {type(outputs).__name__} that holds no tensor")
    if step.mode == "train" and own is None and not floats_of(outputs):
        raise ConfigError(f"--model {detail} returns no floating-point tensor, so there is no loss: give --loss")
    whole_numbers = any(one.dtype.startswith(("int", "uint")) for one in sample_inputs(step, image_size))
    objective = Objective(outputs, integer_inputs=whole_numbers, own=own)
    if objective.one_class_each and objective.num_classes < num_classes:
        raise ConfigError(
            f"--model {detail} has {objective.num_classes} outputs, and the data set {num_classes} classes"
        )
    return ModelWorkload(
        step,
        device,
        model,
        image_size=image_size,
        seed=seed,
        num_classes=max(objective.num_classes, num_classes),
        objective=objective,
        limits=limits,
        details={"class": type(model).__name__},
    )


def classifier(step: Step, num_classes: int, auxiliary_weight: float = 0.0) -> Objective:
    """The loss of a model that returns logits [N, num_classes], or the user's own."""
    own = None if step.loss is None else imported(step.loss, "--loss")
    logits = torch.empty(NUM_EXAMINED, num_classes, device="meta")
    return Objective(logits, integer_inputs=False, auxiliary_weight=auxiliary_weight, own=own)


def imported(path: str, flag: str) -> Callable[..., Any]:
    """What `package.module:name` names. Raises ConfigError, which names the `flag`, where there is no such callable."""
    module_name, _, name = path.partition(":")
    here = users_folder()
    if str(here) not in sys.path:
        sys.path.append(str(here))  # last: only the user's own module is wanted from there
    try:
        with standing_in(here):
            module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module raises
        reason = f"cannot import {module_name}: {_first_line(error)}"
        raise ConfigError(f"{flag} {path}: {reason}; run in its folder, or set PYTHONPATH") from error
    found: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(found):
        raise ConfigError(f"{flag} {path}: {module_name} has no callable '{name}'")
    return found


def _examined(model: nn.Module, step: Step, image_size: int | None, what: str) -> _Examined:
    """What the model returns for two samples, and below which number each integer input must be.

    By fake tensors, which take no memory and change no buffer; a model that reads values is run. Raises ConfigError for
    inputs that it does not take.
    """
    on_meta = any(one.is_meta for one in model.parameters())
    try:
        return _pass(model, step, image_size, None if on_meta else FakeTensorMode(allow_non_fake_inputs=True))
    except Exception as error:
        failure = error
    if not on_meta:
        buffers = {name: one.clone() for name, one in model.named_buffers()}
        try:
            return _pass(model, step, image_size, None)
        except Exception as error:
            failure = error
        finally:
            for name, one in model.named_buffers():
                if name in buffers and one.shape == buffers[name].shape:
                    one.copy_(buffers[name])
    shapes = " and ".join(one.words for one in sample_inputs(step, image_size))
    noun = "images" if step.inputs is None else "inputs"
    raise ConfigError(f"{what} does not take {noun} of {shapes}: {_first_line(failure)}") from failure


def _pass(model: nn.Module, step: Step, image_size: int | None, fake: FakeTensorMode | None) -> _Examined:
    """One forward pass of two samples without gradients. Raises whatever the model raises."""
    weights = next(model.parameters(), torch.empty(0, device="cpu"))
    inputs = random_inputs(step, NUM_EXAMINED, torch.Generator(device="cpu").manual_seed(0), size=image_size)
    put = fake.from_tensor if fake is not None else lambda one: one.to(weights.device)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), fake or contextlib.nullcontext():
        inputs = tree_map(put, inputs)
        with _Lookups(list(tensors_of(inputs))) as lookups:
            outputs = call(model, inputs)
    return outputs, tuple(lookups.limits)


class _Lookups(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no annotations there
    """Notes the rows of the embeddings that inputs are looked up in: an integer input must be below them."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._input_of = {_storage(one): number for number, one in enumerate(inputs)}
        self._kept = list(inputs)
        self.limits = [0] * len(inputs)
        """Rows of the smallest; 0: none."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if "embedding" in func.__name__ and len(args) > 1 and isinstance(args[1], torch.Tensor):
            number, rows = self._input_of.get(_storage(args[1])), len(args[0])
            if number is not None:
                self.limits[number] = min(self.limits[number] or rows, rows)
        elif func in COPIES and (number := self._input_of.get(_storage(args[0]))) is not None:
            self._input_of[_storage(out)] = number
            self._kept.append(out)
        return out


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
