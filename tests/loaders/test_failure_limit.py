"""When so many images are broken that a case ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loaderbench.errors import CaseFailed
from loaderbench.images.index import ImageIndex
from loaderbench.loaders.samples import FailureLimit

NUM_IMAGES, BATCH = 50_000, 64


class Images(ImageIndex):
    """Of a given number, of which nothing but names is asked for."""

    def __init__(self, number: int) -> None:
        self._number = number

    root = "/set"

    def __len__(self) -> int:
        return self._number

    def path(self, index: int) -> str:
        return f"/set/{index}.jpg"


def read_until_failed(part: float, num_images: int, seed: int, most: int, allowed: float = 0.01) -> int | None:
    """Images read when the case fails; None where it does not within `most`."""
    chance = np.random.default_rng(seed)
    context: Any = SimpleNamespace(images=Images(num_images), max_failure_fraction=allowed)
    limit = FailureLimit(context)
    for num_read in range(BATCH, most + 1, BATCH):
        broken = int(chance.binomial(BATCH, part))
        try:
            limit.add(BATCH - broken, [(index, "truncated") for index in range(broken)])
        except CaseFailed:
            return num_read
    return None


@pytest.mark.parametrize("part", [0.001, 0.003, 0.005])
def test_a_set_below_the_limit_is_measured(part: float) -> None:
    # A cold run reads a few hundred to a few thousand images in each of some twenty streams, and each stream counts
    # anew: with a bare comparison half of such runs failed at 0.3 %.
    assert all(read_until_failed(part, NUM_IMAGES, seed, 6_400) is None for seed in range(400))


@pytest.mark.parametrize(("part", "within"), [(0.03, 3_200), (0.05, 1_600), (0.2, 128), (1.0, 128)])
def test_a_set_above_it_fails_soon(part: float, within: int) -> None:
    failed = [read_until_failed(part, NUM_IMAGES, seed, within) for seed in range(100)]
    assert sum(number is not None for number in failed) >= 98


def test_behind_an_epoch_and_where_none_is_allowed_the_limit_holds_as_it_is() -> None:
    # 640 images of which 8 are broken: 1.25 %
    context: Any = SimpleNamespace(images=Images(640), max_failure_fraction=0.01)
    limit = FailureLimit(context)
    for _ in range(8):
        limit.add(63, [(0, "truncated")])
    with pytest.raises(CaseFailed, match="at most 1 % are allowed"):
        for _ in range(2):
            limit.add(64, [])
    assert read_until_failed(1.0, NUM_IMAGES, 0, 256, allowed=0.0) == 128
