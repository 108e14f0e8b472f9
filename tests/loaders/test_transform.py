"""The transform is torchvision's: same distribution of crops, same pixels where nothing is random."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pictures import encode
from PIL import Image
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms._presets import ImageClassification
from torchvision.transforms.functional import normalize, to_tensor

from loaderbench.decoders.pillow import PillowDecoder
from loaderbench.loaders.transform import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Normalizer,
    SampleRandom,
    infer_geometry,
    random_crop,
    train_geometry,
)

NUM_DRAWS = 4000


def ks_distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Two-sample Kolmogorov–Smirnov statistic."""
    at = np.sort(np.concatenate([a, b]))
    below_a, below_b = (np.searchsorted(np.sort(values), at, side="right") / len(values) for values in (a, b))
    return float(np.abs(below_a - below_b).max())


def crops_of(boxes: list[tuple[int, int, int, int]]) -> NDArray[np.float64]:
    return np.array(boxes, dtype=np.float64)


@pytest.mark.parametrize(("height", "width"), [(375, 500), (64, 64), (100, 900), (700, 80)])
def test_crops_are_distributed_as_torchvisions(height: int, width: int) -> None:
    torch.manual_seed(0)
    image = torch.empty(3, height, width, dtype=torch.uint8)
    theirs = crops_of([RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(NUM_DRAWS)])
    ours = crops_of([random_crop(height, width, SampleRandom(0, 0, index)) for index in range(NUM_DRAWS)])

    critical = 2.23 * np.sqrt(2 / NUM_DRAWS)  # reached once in 10,000 draws of equal distributions
    for name, column_a, column_b in zip(("top", "left", "height", "width"), ours.T, theirs.T, strict=True):
        assert ks_distance(column_a, column_b) < critical, name
    assert ks_distance(ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3]) < critical
    assert (ours[:, 0] + ours[:, 2] <= height).all()
    assert (ours[:, 1] + ours[:, 3] <= width).all()


@pytest.mark.parametrize(("height", "width"), [(1, 1000), (1000, 1), (1, 1)])
def test_crop_falls_back_to_the_centre_as_torchvisions(height: int, width: int) -> None:
    image = torch.empty(3, height, width, dtype=torch.uint8)
    expected = RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
    assert random_crop(height, width, SampleRandom(0, 0, 0)) == tuple(expected)


def test_half_of_the_images_are_flipped() -> None:
    flips = [train_geometry(300, 400, 224, SampleRandom(3, 1, index)).flip for index in range(NUM_DRAWS)]
    assert abs(np.mean(flips) - 0.5) < 4 * 0.5 / np.sqrt(NUM_DRAWS)


def test_random_numbers_depend_on_seed_epoch_and_index_alone() -> None:
    first = {key: SampleRandom(*key).uniform() for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]}
    assert len(set(first.values())) == 4
    assert SampleRandom(0, 1, 0).uniform() == first[0, 1, 0]


def test_neighbouring_samples_are_uncorrelated() -> None:
    draws = np.array([[SampleRandom(0, epoch, index).uniform() for index in range(1000)] for epoch in range(4)])
    assert abs(draws.mean() - 0.5) < 0.02
    assert np.abs(np.corrcoef(draws) - np.eye(4)).max() < 0.13
    assert abs(np.corrcoef(draws[:, :-1].ravel(), draws[:, 1:].ravel())[0, 1]) < 0.07


@pytest.mark.parametrize(("height", "width"), [(375, 500), (501, 333), (256, 256), (90, 121)])
@pytest.mark.parametrize("input_size", [224, 160])
def test_infer_gives_torchvisions_pixels(
    photographs: list[NDArray[np.uint8]], height: int, width: int, input_size: int
) -> None:
    encoded = encode(np.asarray(Image.fromarray(photographs[2]).resize((width, height))))
    resize_size = round(input_size * 256 / 224)
    preset = ImageClassification(crop_size=input_size, resize_size=resize_size)
    expected = preset(Image.open(io.BytesIO(encoded)).convert("RGB"))

    decoder = PillowDecoder()
    pixels = np.empty((input_size, input_size, 3), dtype=np.uint8)
    decoder.crop_resize(decoder.decode(encoded), infer_geometry(height, width, input_size), pixels)
    out = np.empty((input_size, input_size, 3), dtype=np.float32)
    Normalizer(input_size, input_size)(pixels, out)

    np.testing.assert_allclose(out.transpose(2, 0, 1), expected.numpy(), atol=2e-5)


def test_normalizer_is_to_tensor_and_normalize() -> None:
    pixels = np.arange(256, dtype=np.uint8).repeat(3 * 4).reshape(16, 64, 3)
    out = np.empty((16, 64, 3), dtype=np.float32)
    Normalizer(16, 64)(pixels, out)
    expected = normalize(to_tensor(pixels), list(IMAGENET_MEAN), list(IMAGENET_STD))
    np.testing.assert_allclose(out.transpose(2, 0, 1), expected.numpy(), atol=2e-6)
