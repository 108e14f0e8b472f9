"""The user's own model: `--model package.module:factory`, a callable that returns a `torch.nn.Module`.

It takes images [N, C, S, S] (3 channels unless `--input-shape` says otherwise), normalized float32 in channels_last
order (in which `view` may refuse what `reshape` and `flatten` take), and returns logits [N, classes] (or a tuple that
begins with them, as torchvision's models with auxiliary classifiers do; their losses are left out).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from loaderbench.cases.case import Step
from loaderbench.devices.base import Device
from loaderbench.errors import ConfigError
from loaderbench.neutral import standing_in, users_folder
from loaderbench.workloads.example import known_size
from loaderbench.workloads.training import ModelWorkload


def build(
    detail: str, step: Step, device: Device, *, image_size: int | None, seed: int, num_classes: int
) -> ModelWorkload:
    """The model that the factory `detail` makes. `seed` sets its weights if it draws them with torch.

    Raises:
        ConfigError: it cannot be imported or made, or does not take these images, or has too few outputs.
    """
    size = known_size(image_size)
    factory = _imported(detail)
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
    num_outputs = _num_outputs(model, detail, (step.channels, size, size))
    if num_outputs < num_classes:
        raise ConfigError(f"--model {detail} has {num_outputs} outputs, and the data set {num_classes} classes")
    return ModelWorkload(
        step,
        device,
        model.float(),
        image_size=size,
        seed=seed,
        num_classes=num_outputs,
        details={"class": type(model).__name__},
    )


def _imported(path: str) -> Callable[[], Any]:
    module_name, _, name = path.partition(":")
    here = users_folder()
    if str(here) not in sys.path:
        sys.path.append(str(here))  # last: only the user's own module is wanted from there
    try:
        with standing_in(here):
            module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module raises
        reason = f"cannot import {module_name}: {_first_line(error)}"
        raise ConfigError(f"--model {path}: {reason}; run in its folder, or set PYTHONPATH") from error
    factory: Callable[[], Any] | None = getattr(module, name, None)
    if not callable(factory):
        raise ConfigError(f"--model {path}: {module_name} has no callable '{name}'")
    return factory


def _num_outputs(model: nn.Module, path: str, shape: tuple[int, int, int]) -> int:
    """Number of classes of the model, from its output for two images."""
    model.float().eval()
    try:
        with torch.no_grad():
            outputs = model(torch.zeros(2, *shape))
    except Exception as error:
        images = "×".join(map(str, shape))
        raise ConfigError(f"--model {path} does not take images of {images}: {_first_line(error)}") from error
    logits = outputs[0] if isinstance(outputs, tuple) else outputs
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != 2:
        found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise ConfigError(f"--model {path} returns {found} for two images, not logits of the shape (2, classes)")
    return logits.shape[1]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
