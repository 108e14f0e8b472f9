"""The image transform: torchvision's ImageNet reference, defined once for every loader written in Python.

train: RandomResizedCrop(input_size) + RandomHorizontalFlip(0.5) + Normalize.
infer: Resize(round(input_size × 256 / 224)) + CenterCrop(input_size) + Normalize.
Source: torchvision references/classification/presets.py and transforms.RandomResizedCrop.get_params.

The random numbers of a sample depend on (seed, epoch, index) alone, so every loader, with any number
of workers, makes the same pixels.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from loaderbench.decoders.base import DecodeError, Geometry, Recipe
from loaderbench.images.jpeg import too_large
from loaderbench.loaders.base import LoaderContext

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Mean and standard deviation of the ImageNet training images scaled to 0–1, from torchvision's reference training."""

CROP_SCALE = (0.08, 1.0)
CROP_RATIO = (3 / 4, 4 / 3)
CROP_TRIES = 10
FLIP_PROBABILITY = 0.5
"""Defaults of torchvision's RandomResizedCrop and of its classification preset."""

_LOG_RATIO = (math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1]))
_MASK = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(state: int) -> int:
    """SplitMix64's output function (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


class SampleRandom:
    """Uniform numbers in [0, 1) of one sample: SplitMix64 keyed by (seed, epoch, index).

    A numpy Generator would take 15 µs to build for each image; this takes 1.
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int, epoch: int, index: int) -> None:
        key = _mix((seed * _GOLDEN + 1) & _MASK)
        key = _mix((key + epoch * _GOLDEN + 1) & _MASK)
        self._state = _mix((key + index * _GOLDEN + 1) & _MASK)

    def bits(self) -> int:
        """The next 64 random bits."""
        self._state = (self._state + _GOLDEN) & _MASK
        return _mix(self._state)

    def uniform(self) -> float:
        return (self.bits() >> 11) * 2.0**-53


def random_crop(height: int, width: int, random: SampleRandom) -> tuple[int, int, int, int]:
    """(top, left, height, width) as torchvision's RandomResizedCrop.get_params draws it."""
    area = height * width
    for _ in range(CROP_TRIES):
        target = area * (CROP_SCALE[0] + (CROP_SCALE[1] - CROP_SCALE[0]) * random.uniform())
        ratio = math.exp(_LOG_RATIO[0] + (_LOG_RATIO[1] - _LOG_RATIO[0]) * random.uniform())
        crop_width = round(math.sqrt(target * ratio))
        crop_height = round(math.sqrt(target / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = int(random.uniform() * (height - crop_height + 1))
            left = int(random.uniform() * (width - crop_width + 1))
            return top, left, crop_height, crop_width
    crop_height, crop_width = height, width
    if width / height < CROP_RATIO[0]:
        crop_height = round(width / CROP_RATIO[0])
    elif width / height > CROP_RATIO[1]:
        crop_width = round(height * CROP_RATIO[1])
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def train_geometry(height: int, width: int, input_size: int | None, random: SampleRandom) -> Geometry:
    """Random crop to a square of `input_size` (None: the whole image) and a flip with probability ½."""
    if input_size is None:
        return Geometry(0, 0, height, width, height, width, 0, 0, random.uniform() < FLIP_PROBABILITY)
    top, left, crop_height, crop_width = random_crop(height, width, random)
    flip = random.uniform() < FLIP_PROBABILITY
    return Geometry(top, left, crop_height, crop_width, input_size, input_size, 0, 0, flip)


def resize_shorter_side(input_size: int) -> int:
    """Length of the shorter side before the centre crop: 256 for 224, as in torchvision's reference."""
    return round(input_size * 256 / 224)


def infer_geometry(height: int, width: int, input_size: int | None) -> Geometry:
    """Shorter side to round(input_size × 256 / 224), then the centre (None: the whole image).

    Raises:
        DecodeError: resized, the picture has more than MOST_PIXELS: 300 bytes of 1 × 65,535 pixels would be 10 GB.
    """
    if input_size is None:
        return Geometry(0, 0, height, width, height, width, 0, 0, False)
    short = resize_shorter_side(input_size)
    if width <= height:
        resized_height, resized_width = int(short * height / width), short
    else:
        resized_height, resized_width = short, int(short * width / height)
    if reason := too_large(resized_width, resized_height):
        raise DecodeError(f"too costly to resize: to {reason}")
    top = round((resized_height - input_size) / 2)
    left = round((resized_width - input_size) / 2)
    return Geometry(0, 0, height, width, resized_height, resized_width, top, left, False)


def recipe_of(context: LoaderContext, shape: tuple[int, int]) -> Recipe:
    """This transform for a decoder that makes whole samples of `shape` (height, width)."""
    size = context.input_size
    return Recipe(
        crop_scale=CROP_SCALE,
        log_ratio=_LOG_RATIO,
        crop_ratio=CROP_RATIO,
        flip_probability=FLIP_PROBABILITY,
        seed=context.seed,
        train=context.mode == "train",
        whole=size is None,
        short_side=0 if size is None else resize_shorter_side(size),
        height=shape[0],
        width=shape[1],
        evict=context.evict_after_read,
    )


class Normalizer:
    """uint8 [H, W, 3] to (x / 255 − mean) / std as float32 [H, W, 3].

    24 µs for 224² on one AVX-512 core; ToTensor + Normalize take 92 µs, a lookup table in numpy 114 µs.
    """

    def __init__(self, height: int, width: int) -> None:
        scale = 1 / (255 * np.array(IMAGENET_STD))
        bias = -np.array(IMAGENET_MEAN) / np.array(IMAGENET_STD)
        self._scale = torch.from_numpy(np.tile(scale, width).astype(np.float32))
        self._bias = torch.from_numpy(np.tile(bias, width).astype(np.float32))
        self._rows = (height, width * 3)

    def __call__(self, pixels: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """Both arrays are contiguous."""
        rows = torch.from_numpy(out).view(self._rows)
        rows.copy_(torch.from_numpy(pixels).view(self._rows))
        torch.addcmul(self._bias, rows, self._scale, out=rows)
