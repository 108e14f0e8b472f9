"""FFCV: one memory-mapped file of images, prepared in threads by code that numba compiles when the loader is built.

Set up as its ImageNet example: RandomResizedCropRGBImageDecoder and RandomHorizontalFlip (train) or
CenterCropRGBImageDecoder (infer), NormalizeImage for float32, ToTensor, ToTorchImage. It decodes for itself:

* The order is that of the Python loaders, given to FFCV's iterator.
* Crops and flips are drawn by numba's own generators, which cannot be seeded in its threads: in train the pixels of two
  runs with one seed differ. It decodes whole images, with libjpeg-turbo, and resizes by OpenCV's INTER_AREA.
* It ignores its decoder's status. `dataset convert` leaves out files without their start or end, and each is
  reported; the pixels of an image with damage inside are what the decoder left in the buffer.

Mapped pages cannot be evicted, so a cold run is refused. Reads `loaderbench dataset convert SRC --to ffcv`.
"""

from __future__ import annotations

import atexit
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from queue import Empty, Queue
from typing import Any

import numpy as np
import torch

from loaderbench import lacking
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.images.convert import BETON_FIELDS, INSTALL_FFCV, broken_images
from loaderbench.loaders.base import (
    MAX_STEPS_IN_FLIGHT,
    Batch,
    LoaderContext,
    check_no_decoder,
    check_workers,
    fixed_input_size,
)
from loaderbench.loaders.order import plan_batches
from loaderbench.loaders.samples import FailureLimit
from loaderbench.loaders.sound_files import sound_positions
from loaderbench.loaders.threaded import check_memory
from loaderbench.loaders.transform import (
    CROP_RATIO,
    CROP_SCALE,
    FLIP_PROBABILITY,
    IMAGENET_MEAN,
    IMAGENET_STD,
    resize_shorter_side,
)
from loaderbench.plain import JsonObject

try:
    ffcv: Any = importlib.import_module("ffcv.loader")
    decoders: Any = importlib.import_module("ffcv.fields.decoders")
    transforms: Any = importlib.import_module("ffcv.transforms")
    EpochIterator: Any = importlib.import_module("ffcv.loader.epoch_iterator").EpochIterator
    numba: Any = importlib.import_module("numba")
except lacking.LOAD_ERRORS as error:
    raise lacking.package("FFCV", error, INSTALL_FFCV) from error

ITERATOR_BATCHES = 256
"""Batches of one FFCV iterator: an endless stream chains iterators, since each takes its whole order in advance."""
OWN_BUFFERS = 2
"""Buffers that FFCV has besides `batches_ahead`: the one being written and the consumer's."""
POLL_S = 0.01


@dataclass(frozen=True)
class Options:
    """No options."""


class FfcvLoader:
    """`workers` threads that together make one batch after another, `prefetch` batches ahead (`batches_ahead`)."""

    decodes = True
    owns_transfer = False
    evicts_own_reads = False

    def __init__(self, context: LoaderContext) -> None:
        shards = context.shards
        assert shards is not None
        self._context = context
        self._pin = context.pin_memory and torch.cuda.is_available()
        self._failures = tuple(broken_images(shards))
        self._sound = sound_positions(len(context.images), self._failures)
        FailureLimit(context).add(len(self._sound), self._failures)
        self._num_torch_threads = torch.get_num_threads()
        image, label = BETON_FIELDS
        try:
            self._loader = ffcv.Loader(
                shards.files.path(0),
                batch_size=context.batch_size,
                num_workers=context.workers,
                order=ffcv.OrderOption.SEQUENTIAL,
                seed=0,
                drop_last=False,
                # FFCV soon reuses the buffers that it hands over: have more of them than wait in the queue (_Stream).
                batches_ahead=context.prefetch + MAX_STEPS_IN_FLIGHT,
                pipelines={image: self._operations(), label: [decoders.IntDecoder(), transforms.ToTensor()]},
            )
        finally:
            torch.set_num_threads(self._num_torch_threads)  # FFCV sets it for the whole process
        self._stream: _Stream | None = None
        pictures = self._loader.reader.metadata["f0"]
        # Besides the samples it allocates room for a whole decoded picture for each of them.
        largest = int(pictures["height"].max()) * int(pictures["width"].max()) * 3
        check_memory(self._loader.batches_ahead + OWN_BUFFERS, context.batch_size * largest)

    def _operations(self) -> list[Any]:
        context = self._context
        size = fixed_input_size(context)
        operations: list[Any]
        if context.mode == "train":
            decoder = decoders.RandomResizedCropRGBImageDecoder((size, size), CROP_SCALE, CROP_RATIO)
            operations = [decoder, transforms.RandomHorizontalFlip(FLIP_PROBABILITY)]
        else:
            operations = [decoders.CenterCropRGBImageDecoder((size, size), size / resize_shorter_side(size))]
        if context.output == "float32":
            mean, std = (255 * np.array(values) for values in (IMAGENET_MEAN, IMAGENET_STD))
            operations.append(transforms.NormalizeImage(mean, std, np.float32))
        return [*operations, transforms.ToTensor(), transforms.ToTorchImage()]

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        context = self._context
        failures = self._failures
        plans = plan_batches(len(self._sound), context.batch_size, context.seed, first_epoch, num_epochs)
        while some := [plan.indices for plan in islice(plans, ITERATOR_BATCHES)]:
            self._stream = _Stream(self._loader, np.concatenate(some).astype(np.uint64))
            atexit.register(self.close)  # else the interpreter would stop its thread at any point of its work
            try:
                for rows in some:
                    inputs, targets = self._stream.take()
                    torch.set_num_threads(self._num_torch_threads)
                    batch = self._to_batch(inputs, targets.flatten().clone(), self._sound[rows])
                    batch.failures, failures = failures, ()  # files left out are reported once an iterator
                    yield batch
            finally:
                self.close()
                torch.set_num_threads(self._num_torch_threads)

    def _to_batch(self, inputs: Any, targets: Any, indices: Any) -> Batch:
        if self._pin:
            inputs, targets = inputs.pin_memory(), targets.pin_memory()
        return Batch(inputs, targets, len(indices), int(self._context.images.sizes[indices].sum()), indices)

    def describe(self) -> JsonObject:
        """Facts for the record."""
        return {
            "loader": "FFCV",
            "version": version("ffcv"),
            "numba": version("numba"),
            "threading_layer": numba.threading_layer(),
            "num_threads": self._context.workers,
            "resize": "OpenCV INTER_AREA",
            "num_left_out": len(self._failures),
        }

    def close(self) -> None:
        """End the open stream. numba's threads stay and wait for work until the process ends."""
        atexit.unregister(self.close)
        stream, self._stream = self._stream, None  # free its buffers before the next stream allocates its own
        if stream is not None:
            stream.end()


class _Stream(EpochIterator):  # type: ignore[misc]
    """FFCV's iterator, changed so that delivered buffers stay untouched, errors reach the consumer, and it can end."""

    def start(self) -> None:
        """Begin; the constructor calls this last.

        Of batches_ahead + 2 buffers one is being written, the consumer has one, the others wait in the queue. A
        shorter queue leaves MAX_STEPS_IN_FLIGHT more of them to the consumer.
        """
        self.output_queue: Queue[Any] = Queue(self.loader.batches_ahead - MAX_STEPS_IN_FLIGHT)
        self.failed: BaseException | None = None
        super().start()

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:  # else the thread would die unseen and leave the consumer waiting
            self.failed = error
            self.output_queue.put(None)

    def take(self) -> Any:
        """The next batch.

        Raises:
            CaseFailed: FFCV failed.
        """
        try:
            return next(self)
        except StopIteration:
            raise CaseFailed(f"FFCV failed: {self.failed or 'its stream ended early'}") from self.failed

    def end(self) -> None:
        """End the thread after its current batch; returns when it has ended."""
        self.iter_ixes = iter(())
        self.close()
        while self.is_alive():
            try:
                self.output_queue.get(timeout=POLL_S)
            except Empty:
                self.join(POLL_S)


def build(options: Options, context: LoaderContext) -> FfcvLoader:
    """
    Raises:
        ConfigError: a decoder or `--input-size full` was asked for, or numba has fewer threads than workers.
        CaseFailed: too many files are broken.
    """
    check_no_decoder("FFCV", context)
    check_workers("ffcv", context)
    most = numba.config.NUMBA_NUM_THREADS
    if context.workers > most:
        raise ConfigError(
            f"FFCV has {most} threads here, one per CPU: give --workers {most} or fewer, or set "
            f"NUMBA_NUM_THREADS={context.workers}"
        )
    return FfcvLoader(context)
