"""Samples as torchvision's users get them: its own functions are the truth; files that cannot be read."""

from __future__ import annotations

import io
import os
import threading
import time
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torchvision import transforms
from torchvision.datasets.folder import default_loader

from loaderbench.errors import CaseFailed
from loaderbench.images.index import index_images
from loaderbench.loaders import multiprocess, serial
from loaderbench.loaders.base import SPAN_FIELDS, Batch, Loader, LoaderContext
from loaderbench.loaders.torchvision_samples import TimedFile, generator_kept, seed_for
from loaderbench.loaders.transform import IMAGENET_MEAN, IMAGENET_STD, SampleRandom

TO_TENSOR = {
    "uint8": [transforms.PILToTensor()],
    "float32": [transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)],
}


@pytest.fixture
def context(image_tree: Path) -> LoaderContext:
    return LoaderContext(
        images=index_images(str(image_tree)), batch_size=12, workers=0, prefetch=2, decoder="pillow", input_size=56,
        mode="infer", output="uint8", seed=5,
    )  # fmt: skip


def open_loader(context: LoaderContext, samples: str = "torchvision") -> Loader:
    if context.workers:
        return multiprocess.build(multiprocess.Options(samples=samples), context)  # type: ignore[arg-type]
    return serial.build(serial.Options(samples=samples), context)  # type: ignore[arg-type]


def batches_of(context: LoaderContext, samples: str = "torchvision") -> list[Batch]:
    with closing(open_loader(context, samples)) as loader:
        return list(islice(loader.batches(0, 1), 2))


@pytest.mark.parametrize("output", ["uint8", "float32"])
@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_batches_are_those_of_torchvision(context: LoaderContext, workers: int, output: str) -> None:
    transform = transforms.Compose([transforms.Resize(64), transforms.CenterCrop(56), *TO_TENSOR[output]])
    images = context.images
    for batch in batches_of(replace(context, workers=workers, output=output)):
        assert batch.indices is not None
        samples = [(transform(default_loader(images.path(one))), int(images.labels[one])) for one in batch.indices]
        inputs, targets = default_collate(samples)
        assert torch.equal(batch.inputs, inputs)
        assert batch.inputs.stride() == inputs.stride()
        assert torch.equal(batch.targets, targets)


@pytest.mark.parametrize("workers", [0, 2])
def test_training_batches_are_torchvisions_from_a_seed_for_each_sample(context: LoaderContext, workers: int) -> None:
    transform = transforms.Compose(
        [transforms.RandomResizedCrop(56), transforms.RandomHorizontalFlip(), *TO_TENSOR["float32"]]
    )
    for batch in batches_of(replace(context, mode="train", output="float32", workers=workers)):
        assert batch.indices is not None
        for index, found in zip(batch.indices.tolist(), batch.inputs, strict=True):
            image = default_loader(context.images.path(index))
            torch.manual_seed(SampleRandom(5, 0, index).bits())
            assert torch.equal(found, transform(image))


def test_each_sample_and_epoch_has_a_seed_of_its_own(context: LoaderContext) -> None:
    drawn = []
    with generator_kept():
        for epoch in range(4):
            for index in range(500):
                seed_for(context, epoch, index)
                drawn.append(torch.rand(2).tolist())
    table = np.array(drawn)
    assert len(np.unique(table)) == table.size
    assert np.abs(table.mean(axis=0) - 0.5).max() < 0.03  # 4.6 standard errors
    assert abs(np.corrcoef(table[:-1, 0], table[1:, 0])[0, 1]) < 0.1


def test_the_random_numbers_of_the_model_are_not_the_samples(context: LoaderContext) -> None:
    drawn = []
    for samples in ("direct", "torchvision"):
        torch.manual_seed(7)
        batches_of(replace(context, mode="train"), samples)
        drawn.append(torch.rand(3))
    assert torch.equal(*drawn)


def test_straight_into_the_batch_are_the_same_pixels_in_another_order_of_memory(context: LoaderContext) -> None:
    for copied, direct in zip(batches_of(context), batches_of(context, "direct"), strict=True):
        assert torch.equal(copied.inputs, direct.inputs)
        assert copied.inputs.is_contiguous()
        assert direct.inputs.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("decoder", "asked", "told"),
    [("pillow", "torchvision", "torchvision"), ("pillow", "direct", "direct"), ("turbojpeg", "torchvision", "direct")],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_the_record_tells_how_samples_are_made(
    context: LoaderContext, workers: int, decoder: str, asked: str, told: str
) -> None:
    with closing(open_loader(replace(context, workers=workers, decoder=decoder), asked)) as loader:
        assert loader.describe()["samples"] == told  # type: ignore[attr-defined]


def test_a_file_that_fails_while_it_is_read_ends_the_case_and_is_no_broken_image(
    context: LoaderContext, own_tree: Path
) -> None:
    # given a file that can be opened, and fails with EIO when read
    images = index_images(str(own_tree))
    path = Path(images.path(3))
    path.unlink()
    path.symlink_to("/proc/self/mem")
    context = replace(context, images=images, max_failure_fraction=1.0)
    with pytest.raises(CaseFailed, match=r"cannot read .*Input/output error; the storage failed"):
        batches_of(context)


@pytest.mark.parametrize("at_once", [-1, 1000])
def test_waiting_for_the_storage_is_reading(context: LoaderContext, tmp_path: Path, at_once: int) -> None:
    # given a picture that comes through a pipe, half of it 0.3 s late
    content = Path(context.images.path(0)).read_bytes()
    path = tmp_path / "late.jpg"
    os.mkfifo(path)

    def write() -> None:
        with path.open("wb") as pipe:
            pipe.write(content[: len(content) // 2])
            pipe.flush()
            time.sleep(0.3)
            pipe.write(content[len(content) // 2 :])

    writer = threading.Thread(target=write)
    writer.start()
    with TimedFile(str(path), cpu=True, queue=None) as raw, io.BufferedReader(raw) as file:
        begun = time.perf_counter()
        assert b"".join(iter(lambda: file.read(at_once), b"")) == content
        taken = time.perf_counter() - begun
    writer.join()
    assert 0.29 < raw.read_ns / 1e9 <= taken
    assert raw.cpu_ns < 0.1e9


def test_a_span_holds_the_reads_and_the_log_each_of_them(context: LoaderContext) -> None:
    (batch,) = batches_of(replace(context, batch_size=24))
    assert batch.spans is not None and batch.indices is not None
    span, reads = dict(zip(SPAN_FIELDS, batch.spans.tolist(), strict=True)), context.reads.take()
    assert reads[:, 0].tolist() == batch.indices.tolist()
    assert reads[:, 2:4].sum() == span["read_ns"]
    assert 0 < span["read_cpu_ns"] < span["cpu_ns"]
    assert min(span["decode_ns"], span["augment_ns"], span["collate_ns"]) > 0
