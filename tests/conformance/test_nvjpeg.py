"""Decoding on the GPU: on a machine without one the same loader runs with torchvision's CPU operator in its place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loader_cases import build, context_for, copied, indices_of, open_loader, take
from pictures import encode
from test_loaders import spoil

from loaderbench.devices.select import num_visible_gpus
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.loaders.nvjpeg import NvjpegLoader

NO_GPU = "no NVIDIA GPU (or not asked for: -m gpu)"
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(num_visible_gpus() == 0, reason=NO_GPU)]),
]


@contextmanager
def nvjpeg(tree: Path, device: str, **changes: Any) -> Iterator[NvjpegLoader]:
    loader = NvjpegLoader(context_for("threaded", tree, **changes), torch.device(device))
    try:
        yield loader
    finally:
        loader.close()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("mode", "output"), [("train", "uint8"), ("infer", "uint8"), ("train", "float32")])
def test_the_pictures_are_those_of_the_python_loaders(image_tree: Path, device: str, mode: str, output: str) -> None:
    with open_loader("serial", image_tree, decoder="torchvision", mode=mode, output=output) as serial:
        expected = take(serial, 6)
    with nvjpeg(image_tree, device, mode=mode, output=output) as loader:
        found = take(loader, 6)  # type: ignore[arg-type]
    level = 1.0 if output == "uint8" else 1 / (255 * 0.224)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.on_device
        assert ours.indices is not None
        assert theirs.indices is not None
        assert ours.indices.tolist() == theirs.indices.tolist()
        assert ours.targets.tolist() == theirs.targets.tolist()
        assert ours.encoded_bytes == theirs.encoded_bytes
        assert ours.inputs.dtype == theirs.inputs.dtype
        assert ours.inputs.is_contiguous(memory_format=torch.channels_last)
        difference = (ours.inputs.cpu().float() - theirs.inputs.float()).abs()
        assert difference.mean() < (0.6 if device == "cpu" else 2) * level


@pytest.mark.parametrize("device", DEVICES)
def test_epochs_end_and_broken_images_are_replaced(own_tree: Path, device: str) -> None:
    spoil(own_tree)
    with nvjpeg(own_tree, device, max_failure_fraction=0.5) as loader:
        batches = [copied(batch) for batch in loader.batches(0, 1)]
    failures = dict(failure for batch in batches for failure in batch.failures)
    assert sorted(failures) == [2, 7, 12, 23]
    assert all(failures.values())
    assert sorted(indices_of(batches)) == sorted([*set(range(24)) - set(failures), 0, 3, 8, 13])
    with nvjpeg(own_tree, device) as loader, pytest.raises(CaseFailed, match="1 % are allowed"):
        take(loader, 6)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", DEVICES)
def test_a_picture_too_narrow_to_be_resized_is_replaced(own_tree: Path, device: str) -> None:
    sorted(own_tree.rglob("*.jpg"))[4].write_bytes(encode(np.zeros((1, 3000, 3), dtype=np.uint8)))
    with nvjpeg(own_tree, device, mode="infer", input_size=224, max_failure_fraction=0.1) as loader:
        failures = dict(failure for batch in loader.batches(0, 1) for failure in batch.failures)
    assert failures == {4: failures[4]} and "too costly to resize" in failures[4]


@pytest.mark.parametrize("device", DEVICES)
def test_closing_ends_its_threads(image_tree: Path, device: str) -> None:
    before = threading.active_count()
    with nvjpeg(image_tree, device) as loader:
        for epoch in (0, 1, 0):
            stream = loader.batches(epoch)
            first = next(stream).indices
            stream.close()  # type: ignore[attr-defined]
            assert first is not None
            assert first.tolist() == np.random.default_rng([0, epoch]).permutation(24)[:8].tolist()
    assert threading.active_count() == before


def test_it_wants_a_gpu(image_tree: Path) -> None:
    with pytest.raises(ConfigError, match="needs --device cuda"):
        build("nvjpeg", context_for("threaded", image_tree))
    with pytest.raises(ConfigError, match="leave --decoder pillow out"):
        build("nvjpeg", context_for("threaded", image_tree, gpu=0, decoder="pillow"))
