"""torchvision's classification models, with random weights."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torchvision
from torch import nn
from torch.nn import functional

from loaderbench.cases.case import Step
from loaderbench.cases.inputs import sample_inputs
from loaderbench.devices.base import Device
from loaderbench.errors import BatchTooSmall, ConfigError
from loaderbench.workloads.example import NUM_CLASSES
from loaderbench.workloads.factory import classifier
from loaderbench.workloads.known import unknown_model
from loaderbench.workloads.training import BATCH_NORM_SAYS, ModelWorkload, batch_of_one

AUXILIARY_LOSS_WEIGHTS = {"googlenet": 0.3, "inception_v3": 0.4}
"""Weight of the auxiliary classifiers' losses: Szegedy et al. 2014 §5; PyTorch's fine-tuning tutorial."""
USUAL_SIZE = 224
"""Of ImageNet's crops; torchvision makes its vision transformers for it, whatever the size of their best weights."""
_checks: Any = functional


def build(
    detail: str, step: Step, device: Device, *, image_size: int | None, seed: int, num_classes: int
) -> ModelWorkload:
    """torchvision's model `detail`. It has at least ImageNet's 1,000 outputs, so that small data sets cost the same.

    Raises:
        ConfigError: an unknown model, or images of a size that is unknown or that it cannot take; before any weight is
            allocated.
    """
    num_outputs = max(num_classes, NUM_CLASSES)
    check_images(detail, step, _height_and_width(detail, step, image_size))
    return ModelWorkload(
        step,
        device,
        _build_model(detail, seed, num_outputs),
        image_size=image_size,
        seed=seed,
        num_classes=num_outputs,
        objective=classifier(step, num_outputs, AUXILIARY_LOSS_WEIGHTS.get(detail, 0.0)),
        details={"torchvision": torchvision.__version__},
    )


def _build_model(name: str, seed: int, num_classes: int) -> nn.Module:
    """The model with random weights, the same for the same seed on every device. On the CPU, fp32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _made(name, num_classes)


def _made(name: str, num_classes: int) -> nn.Module:
    options = {"init_weights": False} if name in AUXILIARY_LOSS_WEIGHTS else {}  # skips minutes of scipy sampling
    model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=num_classes, **options)
    return model


# -- whether it takes the images -------------------------------------------------------------------------


def _height_and_width(name: str, step: Step, image_size: int | None) -> tuple[int, int]:
    """Of the step's images. Raises ConfigError for inputs that are no images."""
    inputs = sample_inputs(step, image_size)
    if len(inputs) != 1 or len(inputs[0].shape) != 3 or inputs[0].dtype != "float32" or inputs[0].name:
        raise ConfigError(f"{name} takes images: give --input-shape 3,HEIGHT,WIDTH, without --input-dtype")
    return inputs[0].shape[1], inputs[0].shape[2]


def check_images(name: str, step: Step, size: tuple[int, int]) -> None:
    """Check that the model takes the step's batches of images of `size` (height, width), from shapes alone: on
    PyTorch's `meta` device, which neither allocates nor computes.

    Raises:
        ConfigError: an unknown model, or images that it cannot take.
        BatchTooSmall: it trains on such images only from a batch of two on.
    """
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise unknown_model(name, known)
    if (channels := sample_inputs(step, size[0])[0].shape[0]) != 3:
        raise ConfigError(f"{name} takes images with 3 channels, not {channels}: leave --input-shape out")
    complaint = _complaint(name, step.mode, size, min(step.batch_size, 2))
    if complaint is None:
        return
    shapes = _Shapes(name, step.mode)
    if step.batch_size == 1 and complaint.startswith(BATCH_NORM_SAYS) and shapes.takes(size):
        raise BatchTooSmall(batch_of_one(name, size))
    does = f"{name} cannot {step.mode} on images of {size[0]}×{size[1]}"
    if (own := shapes.own_size()) is None or size[0] != size[1]:
        raise ConfigError(f"{does}: {complaint}")
    if not shapes.takes((2 * own, 2 * own)):
        raise ConfigError(f"{does}: it takes images of one size only; give --input-size {own}")
    least = shapes.least_size(size[0], own)
    why = ", for its auxiliary classifier," if step.mode == "train" and _Shapes(name, "infer").takes(size) else ""
    raise ConfigError(f"{does}: it takes images{why} of {least}×{least} or larger; give --input-size {own}")


@functools.cache
def _complaint(name: str, mode: str, size: tuple[int, int], num_images: int) -> str | None:
    """Return the model's complaint about this many images of `size`; cached, since a sweep's cases repeat it."""
    return _Shapes(name, mode).complaint(size, num_images)


def _norm(module: nn.Module, values: torch.Tensor) -> torch.Tensor:
    """A batch norm's complaint and shape; on the meta device its own way takes most of a forward pass's time."""
    if module.training:
        _checks._verify_batch_size(values.shape)
    return values


class _Shapes:
    """A model on the `meta` device."""

    def __init__(self, name: str, mode: str) -> None:
        self._name = name
        try:
            with torch.device("meta"):
                self._model = _made(name, NUM_CLASSES)
        except NotImplementedError:  # RegNet computes its widths with tensors: it is built, and then moved
            self._model = _made(name, NUM_CLASSES).to("meta")
        self._model.train(mode == "train")
        for module in self._model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.forward = functools.partial(_norm, module)  # type: ignore[method-assign]

    def complaint(self, size: tuple[int, int], num_images: int = 2) -> str | None:
        """The first line of what the model says of images of `size`; None where it takes them."""
        try:
            with torch.no_grad():
                self._model(torch.empty(num_images, 3, *size, device="meta"))
        except (RuntimeError, ValueError, AssertionError) as error:
            return (str(error).strip().splitlines() or [type(error).__name__])[0]
        return None

    def takes(self, size: tuple[int, int]) -> bool:
        return self.complaint(size) is None

    def own_size(self) -> int | None:
        """The side of the images that the model was made for; None where it takes neither that nor USUAL_SIZE."""
        made_for = torchvision.models.get_model_weights(self._name).DEFAULT.transforms.keywords["crop_size"]
        return next((size for size in (int(made_for), USUAL_SIZE) if self.takes((size, size))), None)

    def least_size(self, too_small: int, enough: int) -> int:
        """The smallest size that it takes, by bisection. A model that takes larger images alone: `enough`."""
        while enough - too_small > 1:
            middle = (too_small + enough) // 2
            too_small, enough = (too_small, middle) if self.takes((middle, middle)) else (middle, enough)
        return enough
