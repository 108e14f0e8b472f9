"""Random batches of the shape that a loader delivers."""

from __future__ import annotations

from typing import Any

from loaderbench.cases.case import Step
from loaderbench.errors import ConfigError

NUM_CLASSES = 1000
"""Number of classes of ImageNet."""


def image_size(step: Step, resolution: int | None) -> int:
    """Side of the square images that the model sees: the input size, else the stored resolution.

    Raises:
        ConfigError: uncropped images of no stated resolution.
    """
    return known_size(step.input_size or resolution)


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
