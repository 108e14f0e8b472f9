"""Random batches of the shape that a loader delivers, or that a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loaderbench.cases.case import Step
from loaderbench.cases.inputs import sample_inputs
from loaderbench.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from loaderbench.cases.inputs import Input

NUM_CLASSES = 1000
"""Number of classes of ImageNet."""
LEAST_VALUES = 2
"""Values of an integer input that no embedding bounds, such as a mask: 0 and 1."""


def image_size(step: Step) -> int | None:
    """Side of the square images that the model sees; None where it takes other inputs.

    Raises:
        ConfigError: uncropped images of no stated resolution.
    """
    return None if step.inputs is not None else known_size(step.input_size)


def known_size(image_size: int | None) -> int:
    """The size, where it is known.

    Raises:
        ConfigError: uncropped images of no stated resolution.
    """
    if image_size is None:
        raise ConfigError("--input-size full needs images of one size: give --res N, or --input-size N")
    return image_size


def random_batch(
    step: Step, image_size: int, output: str, seed: int, num_classes: int = NUM_CLASSES
) -> tuple[Any, Any]:
    """Host tensors: inputs [N, channels, S, S] (`float32` standard normal, or `uint8`), targets int64 [N]. Seeded."""
    import torch

    shape = (step.batch_size, step.channels, image_size, image_size)
    random = torch.Generator().manual_seed(seed)
    if output == "uint8":
        inputs = torch.randint(0, 256, shape, dtype=torch.uint8, generator=random)
    else:
        inputs = torch.randn(shape, generator=random)
    return inputs, torch.randint(0, num_classes, (step.batch_size,), generator=random)


def random_inputs(
    step: Step, num_samples: int, generator: torch.Generator, limits: Sequence[int] = (), size: int | None = None
) -> Any:
    """What the step's model takes, on the host: one tensor; a tuple of several; a dict of named ones.

    Args:
        limits: integers of each input are below these; LEAST_VALUES where they are not known.
        size: side of the square images, where the step does not say.

    Floating-point values are standard normal.
    """
    inputs = sample_inputs(step, size)
    drawn = []
    for number, one in enumerate(inputs):
        drawn.append(_drawn(one, num_samples, generator, limits[number] if limits else LEAST_VALUES))
    if inputs[0].name:
        return {one.name: tensor for one, tensor in zip(inputs, drawn, strict=True)}
    return drawn[0] if len(drawn) == 1 else tuple(drawn)


def _drawn(one: Input, num_samples: int, generator: torch.Generator, limit: int) -> torch.Tensor:
    import torch

    shape = (num_samples, *one.shape)
    dtype: torch.dtype = getattr(torch, one.dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, device=generator.device)
    high = {torch.uint8: 256, torch.bool: 2}.get(dtype, max(limit, LEAST_VALUES))
    return torch.randint(0, high, shape, generator=generator, device=generator.device).to(dtype)
