"""NVIDIA DALI 2.x: its own reader, threads and decoders, on the CPU or with decoding on the GPU.

Where it differs from the transform of the other loaders:

* The samples of an epoch are the same, their order is DALI's own (`shuffle_after_epoch` over a list that is
  permuted by (seed, epoch)); the random crops and flips come from DALI's generator, seeded the same way.
* train: `decoders.image_random_crop` with the same areas, ratios and number of tries, then an antialiased
  linear (triangular) resize. It decodes the region alone: pixels at its edge may differ in chroma.
* infer: DALI rounds the longer side where torchvision truncates, and the centre window where torchvision
  rounds half to even: the picture may be shifted by up to one pixel.
* A file whose start or end a scan finds broken is left out from the beginning (no other image replaces it);
  one that DALI cannot decode fails the case.
* Closing an iterator ends the pipeline; the next one builds a new one (milliseconds), because DALI cannot
  drop batches that it has begun.

DALI's dynamic executor gives each batch its own memory for as long as someone holds a reference, so batches are
handed over without a copy.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.dlpack import from_dlpack

from loaderbench import lacking
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.findings.table import words
from loaderbench.images.index import ImageIndex
from loaderbench.loaders import nvtx_times
from loaderbench.loaders.base import Batch, LoaderContext, check_no_decoder, check_workers
from loaderbench.loaders.order import epoch_order
from loaderbench.loaders.samples import read_file
from loaderbench.loaders.sound_files import find_broken, sound_positions
from loaderbench.loaders.transform import (
    CROP_RATIO,
    CROP_SCALE,
    CROP_TRIES,
    FLIP_PROBABILITY,
    IMAGENET_MEAN,
    IMAGENET_STD,
    resize_shorter_side,
)
from loaderbench.plain import JsonObject
from loaderbench.temporary import temporary_folder

NO_RANGES = nvtx_times.inject()  # before DALI is imported: NVTX looks for a receiver only once
try:
    dali: Any = importlib.import_module("nvidia.dali")  # untyped: its stubs lack its own enums
except lacking.LOAD_ERRORS as error:
    raise lacking.package("DALI", error, "pip install 'loaderbench[dali]'") from error
fn, types = dali.fn, dali.types


READING = "[DALI][DataReader] Prefetch"
"""The NVTX range of the reader's own thread, one a batch."""
RUNNING = "[DALI][CPU op] Run {}"
OPERATORS = {
    "decoders__Image": "decode",
    "decoders__ImageRandomCrop": "decode",
    "PythonFunctionImpl": "decode",  # the self-test's extra work, which stands for a slower decoder
    "Resize": "resize",
    "CropMirrorNormalize": "normalize",
}
"""Operators by DALI's names for them → stages. One operator runs at a time, on all threads of the pipeline."""
UNDECODABLE = re.compile(r"Failed to decode sample #\d+ : (.+)")
DECODING = "nvidia.dali.fn.decoders."
"""In the error text where an operator that decodes has failed."""
STAGE_OF_RANGE = {READING: "read"} | {RUNNING.format(name): stage for name, stage in OPERATORS.items()}


@dataclass(frozen=True)
class Options:
    """Where DALI decodes."""

    gpu_decode: Literal["auto", "yes", "no"] = "auto"
    """auto: on the GPU where the case's device is one."""


class DaliLoader:
    """One pipeline of `workers` CPU threads, `prefetch` batches ahead. Batches are in channels_last order."""

    decodes = True
    evicts_own_reads = False
    num_readers = 1
    """fn.readers.file has one thread that reads file after file, whatever `num_threads` (DataReader::Prefetch)."""

    def __init__(self, options: Options, context: LoaderContext) -> None:
        self._context = context
        self._on_gpu = context.gpu is not None and options.gpu_decode != "no"
        self.owns_transfer = self._on_gpu
        self.no_stage_times = NO_RANGES
        """Why there are no stage times; None where they exist."""
        if self._on_gpu:
            self.no_stage_times = words("gpu_ranges_are_enqueueing", {})
        self._pin = context.pin_memory and not self._on_gpu and torch.cuda.is_available()
        self._pipeline: Any = None
        self._failures = find_broken(context)
        self._sound = sound_positions(len(context.images), self._failures)

    def _build_pipeline(self, first_epoch: int, order: NDArray[np.int64]) -> Any:
        """`order`: the images of the first epoch, whose order alone is ours."""
        context = self._context
        pipeline = dali.Pipeline(
            batch_size=context.batch_size,
            num_threads=context.workers,
            device_id=context.gpu if self._on_gpu else None,
            prefetch_queue_depth=context.prefetch,
            exec_dynamic=True,
            seed=int(np.random.default_rng([context.seed, first_epoch]).integers(2**31)),
        )
        with file_list(context.images, order) as path:
            with pipeline:
                encoded, labels = fn.readers.file(
                    file_root=context.images.root,
                    file_list=path,
                    shuffle_after_epoch=True,
                    dont_use_mmap=context.keep_evictable,
                    name="files",
                )
                if context.slowdown is not None:
                    encoded = fn.python_function(encoded, function=context.slowdown.burn_image)
                pipeline.set_outputs(self._transform(encoded), labels)
            pipeline.build()
        return pipeline

    def _transform(self, encoded: Any) -> Any:
        context = self._context
        device = "mixed" if self._on_gpu else "cpu"
        size, train = context.input_size, context.mode == "train"
        window: dict[str, list[int]] = {}
        if train and size is not None:
            images = fn.decoders.image_random_crop(
                encoded,
                device=device,
                output_type=types.RGB,
                random_area=list(CROP_SCALE),
                random_aspect_ratio=list(CROP_RATIO),
                num_attempts=CROP_TRIES,
            )
            images = fn.resize(images, size=[size, size], interp_type=types.INTERP_LINEAR, antialias=True)
        else:
            images = fn.decoders.image(encoded, device=device, output_type=types.RGB)
            if size is not None:
                short = resize_shorter_side(size)
                images = fn.resize(images, resize_shorter=short, interp_type=types.INTERP_LINEAR, antialias=True)
                window = {"crop": [size, size]}
        as_float = context.output == "float32"
        return fn.crop_mirror_normalize(
            images,
            mirror=fn.random.coin_flip(probability=FLIP_PROBABILITY) if train else 0,
            dtype=types.FLOAT if as_float else types.UINT8,
            mean=[255 * value for value in IMAGENET_MEAN] if as_float else 0.0,
            std=[255 * value for value in IMAGENET_STD] if as_float else 1.0,
            output_layout="HWC",
            **window,
        )

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        left = None if num_epochs is None else num_epochs * len(self._sound)
        failures, num_delivered = tuple(self._failures), 0
        order = self._sound[epoch_order(len(self._sound), self._context.seed, first_epoch)]
        try:
            self._pipeline = self._build_pipeline(first_epoch, order)
            self._pipeline.schedule_run()  # the first call begins `prefetch` runs
            while left is None or left > 0:
                batch = self._next_batch(left)
                batch.failures, failures = failures, ()  # files left out are reported once an iterator
                num_delivered += batch.num_samples
                if left is not None:
                    left -= batch.num_samples
                yield batch
        except RuntimeError as error:
            raise CaseFailed(self._explain(str(error), order, num_delivered)) from error
        finally:
            self._end_pipeline()

    def _explain(self, message: str, order: NDArray[np.int64], num_delivered: int) -> str:
        """One line that names the file. DALI does not name one whose header its parser refuses."""
        if DECODING in message and UNDECODABLE.search(message) is None:
            try:
                found = self._first_undecodable(order, num_delivered)
            except RuntimeError:  # that DALI cannot be asked again is not what failed
                found = None
            if found is not None:
                return undecodable(found)
        return explain(message, self._context.images.root)

    def _first_undecodable(self, order: NDArray[np.int64], num_delivered: int) -> str | None:
        """Path of the first image after those delivered that DALI cannot decode by itself; None where there is none."""
        context = self._context
        gpu = context.gpu if self._on_gpu else None
        pipeline = dali.Pipeline(batch_size=1, num_threads=1, device_id=gpu, prefetch_queue_depth=1, exec_dynamic=True)
        with pipeline:
            encoded = fn.external_source(name="encoded")
            pipeline.set_outputs(fn.decoders.image(encoded, device="mixed" if self._on_gpu else "cpu"))
        pipeline.build()
        ahead = context.batch_size * (context.prefetch + 1)
        for index in read_order(context.images, order, num_delivered + ahead)[num_delivered:].tolist():
            path = context.images.path(index)
            pipeline.feed_input("encoded", [np.frombuffer(read_file(path), dtype=np.uint8)])
            try:
                pipeline.run()
            except RuntimeError:
                return path
        return None

    def _next_batch(self, most_samples: int | None) -> Batch:
        images = self._context.images
        stream = torch.cuda.current_stream() if self._on_gpu else None
        pixels, labels = self._pipeline.share_outputs(stream)
        # The next run begins now, as with DALI's own iterator. If it began at the next call (Pipeline.run), one batch
        # less would be in preparation while the consumer works.
        self._pipeline.release_outputs()
        self._pipeline.schedule_run()
        if not pixels.is_dense_tensor():
            sizes = sorted({f"{shape[1]}×{shape[0]}" for shape in pixels.shape()})
            raise CaseFailed(
                f"--input-size full needs images of one size, but {images.root} has {' and '.join(sizes[:2])}; "
                f"make them equal with `loaderbench dataset derive`"
            )
        num_samples = self._context.batch_size if most_samples is None else min(self._context.batch_size, most_samples)
        inputs = from_dlpack(pixels.as_tensor())[:num_samples].permute(0, 3, 1, 2)
        indices: NDArray[np.int64] = np.array(labels.as_array(), dtype=np.int64).reshape(-1)[:num_samples]
        targets = torch.from_numpy(images.labels[indices].astype(np.int64))
        if self._on_gpu:
            targets = targets.to(inputs.device, non_blocking=True)
        elif self._pin:
            # Without a GPU in its pipeline DALI returns pageable memory: copy the batch once in this thread.
            inputs, targets = inputs.pin_memory(), targets.pin_memory()
        encoded_bytes = int(images.sizes[indices].sum())
        return Batch(inputs, targets, num_samples, encoded_bytes, indices, on_device=self._on_gpu)

    def _end_pipeline(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline._shutdown()  # waits for runs that have begun, and ends the threads

    def stage_times(self) -> dict[str, tuple[int, int]] | None:
        """Stage → (batches, wall ns) so far in this process, from the NVTX ranges; None: see `no_stage_times`."""
        if self.no_stage_times is not None:
            return None
        times = dict.fromkeys(("read", "decode", "resize", "normalize"), (0, 0))
        try:
            ranges = nvtx_times.read()
        except nvtx_times.LostRanges as error:
            self.no_stage_times = str(error)
            return None
        for name, time in ranges.items():
            if (stage := STAGE_OF_RANGE.get(name)) is not None:
                batches, ns = times[stage]
                times[stage] = (max(batches, time.num_ranges), ns + time.ns)
        return times

    def describe(self) -> JsonObject:
        """Facts for the record."""
        return {
            "loader": "DALI",
            "version": dali.__version__,
            "num_threads": self._context.workers,
            "prefetch_queue_depth": self._context.prefetch,
            "decode_device": "mixed" if self._on_gpu else "cpu",
            "dont_use_mmap": self._context.keep_evictable,
            "resize": "DALI linear, antialiased",
            "num_left_out": len(self._failures),
        }

    def close(self) -> None:
        self._end_pipeline()


@contextmanager
def file_list(images: ImageIndex, order: NDArray[np.int64]) -> Iterator[str]:
    """Path of a list of the images in this order, each with its position in the index as label, for `fn.readers.file`.

    DALI reads the list when the pipeline is built. 1.3 million images: 1.2 s and 180 MB to the first batch, against 3 s
    and 860 MB with the arguments `files` and `labels`.

    Raises:
        ConfigError: a name holds a line break, which ends an entry of such a list.
    """
    names = bytes(images.names)
    if b"\n" in names:
        index = int(np.searchsorted(images.offsets, names.index(b"\n"), side="right")) - 1
        raise ConfigError(f"DALI cannot read {images.path(index)!r}: its name contains a line break; rename it")
    begins, ends = images.offsets[order].tolist(), images.offsets[order + 1].tolist()
    entries = zip(begins, ends, order.tolist(), strict=True)
    descriptor = os.memfd_create("loaderbench-dali")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(b"".join([b"%s %d\n" % (names[begin:end], index) for begin, end, index in entries]))
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def read_order(images: ImageIndex, order: NDArray[np.int64], num: int) -> NDArray[np.int64]:
    """The first `num` indices as DALI's reader gives them for a list in this order: it shuffles the list before it
    begins. Asked of another reader, whose list has the same labels and one small file as the name of each."""
    with temporary_folder() as folder:
        small, listing = folder / "small", folder / "listing"
        small.write_bytes(b".")
        listing.write_bytes(b"".join(b"%s %d\n" % (os.fsencode(small), index) for index in order.tolist()))
        pipeline = dali.Pipeline(batch_size=1000, num_threads=1, device_id=None, exec_dynamic=True)
        with pipeline:
            pipeline.set_outputs(fn.readers.file(file_list=str(listing), shuffle_after_epoch=True)[1])
        pipeline.build()
        runs = [np.array(pipeline.run()[0].as_array(), dtype=np.int64).reshape(-1) for _ in range(-(-num // 1000))]
    return np.concatenate(runs)[:num]


def undecodable(path: str) -> str:
    return f"DALI could not decode {path}; remove it, or use a Python loader, which skips to the next image"


def explain(message: str, root: str) -> str:
    """One line from DALI's error text, which has about a dozen. `root`: what its names of files are relative to.

    >>> explain("Critical error:\\nencountered:\\n\\nFailed to decode sample #0 : a/b.jpg\\n…", "/d")
    'DALI could not decode /d/a/b.jpg; remove it or use a Python loader, which takes the next image instead'
    """
    if found := UNDECODABLE.search(message):
        return undecodable(os.path.join(root, found[1]))
    if found := re.search(r"Could not open file (.+): (.+)", message):
        return f"cannot read {found[1]}: {found[2]}; the data set vanished during the run"
    if found := re.search(r"File mapping failed: (.+)", message):
        return f"cannot read {found[1]}: it cannot be mapped; the data set vanished during the run"
    told = message.partition("encountered:")[2] or message
    lines = [line.strip() for line in told.splitlines() if line.strip() and not line.startswith("Current pipeline")]
    return f"DALI failed: {' '.join(lines[:2])}"


def build(options: Options, context: LoaderContext) -> DaliLoader:
    """
    Raises:
        ConfigError: a decoder was asked for, there is no thread, or GPU decoding without a GPU.
        CaseFailed: too many files are broken.
    """
    check_no_decoder("DALI", context)
    check_workers("dali", context)
    if options.gpu_decode == "yes" and context.gpu is None:
        raise ConfigError("gpu_decode=yes needs --device cuda")
    return DaliLoader(options, context)
