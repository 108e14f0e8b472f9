"""Random batches of the shape that a loader delivers."""

from __future__ import annotations

from typing import Any

from loaderbench.cases.case import Case
from loaderbench.errors import ConfigError

NUM_CLASSES = 1000
"""Classes of every model here: ImageNet's."""


def image_size(case: Case) -> int:
    """Side of the square images that the model sees.

    Raises:
        ConfigError: uncropped images of no stated resolution.
    """
    size = case.input_size or case.resolution
    if size is None:
        raise ConfigError("--input-size full needs images of one size: give --res N, or --input-size N")
    return size


def random_batch(case: Case, output: str) -> tuple[Any, Any]:
    """Host tensors: inputs [N, 3, S, S] (`float32` standard normal, or `uint8`), targets int64 [N]. Seeded."""
    import torch

    shape = (case.batch_size, 3, image_size(case), image_size(case))
    random = torch.Generator().manual_seed(case.seed)
    if output == "uint8":
        inputs = torch.randint(0, 256, shape, dtype=torch.uint8, generator=random)
    else:
        inputs = torch.randn(shape, generator=random)
    return inputs, torch.randint(0, NUM_CLASSES, (case.batch_size,), generator=random)
