"""torchvision's classification models, with random weights."""

from __future__ import annotations

import difflib

import torch
import torchvision
from torch import nn

from loaderbench.cases.case import Step
from loaderbench.devices.base import Device
from loaderbench.errors import ConfigError
from loaderbench.workloads.example import NUM_CLASSES, known_size
from loaderbench.workloads.training import ModelWorkload

AUXILIARY_LOSS_WEIGHTS = {"googlenet": 0.3, "inception_v3": 0.4}
"""Weight of the auxiliary classifiers' losses: Szegedy et al. 2014 §5; PyTorch's fine-tuning tutorial."""


def build(
    detail: str, step: Step, device: Device, *, image_size: int | None, seed: int, num_classes: int
) -> ModelWorkload:
    """torchvision's model `detail`. It has at least ImageNet's 1,000 outputs, so that small data sets cost the same.

    Raises:
        ConfigError: an unknown model, or images of a size that is unknown or that it cannot take.
    """
    size, num_outputs = known_size(image_size), max(num_classes, NUM_CLASSES)
    model = _build_model(detail, seed, num_outputs)
    _check_images(detail, model, step, size)
    return ModelWorkload(
        step,
        device,
        model,
        image_size=size,
        seed=seed,
        num_classes=num_outputs,
        auxiliary_loss_weight=AUXILIARY_LOSS_WEIGHTS.get(detail, 0.0),
        details={"torchvision": torchvision.__version__},
    )


def _build_model(name: str, seed: int, num_classes: int) -> nn.Module:
    """The model with random weights, the same for the same seed on every device. On the CPU, fp32."""
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=5, cutoff=0.4)
        raise ConfigError(f"unknown model '{name}'; close names: {', '.join(close) or 'none'} (torchvision's names)")
    options = {"init_weights": False} if name in AUXILIARY_LOSS_WEIGHTS else {}  # skips minutes of scipy sampling
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=num_classes, **options)
    return model


def _check_images(name: str, model: nn.Module, step: Step, size: int) -> None:
    """Run the model's shapes (meta tensors: no data, no arithmetic) and turn what it objects to into a ConfigError."""
    num_images = min(step.batch_size, 2)
    state = {name: tensor.to("meta") for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    images = torch.empty(num_images, 3, size, size, device="meta")
    model.train(step.mode == "train")
    try:
        with torch.no_grad():
            torch.func.functional_call(model, state, (images,))
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        default = torchvision.models.get_model_weights(name).DEFAULT.transforms.keywords["crop_size"]
        raise ConfigError(
            f"{name} cannot {step.mode} on batches of {step.batch_size} images of {size}×{size} ({reason}); "
            f"its own size is --input-size {default}"
        ) from error
