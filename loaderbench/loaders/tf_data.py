"""TensorFlow's tf.data: a graph of operators in threads of its own, with TensorFlow's decoder.

Set up as its performance guide does: shuffle, a parallel map of native operators, batch, prefetch. It decodes for
itself, so where it differs from the transform of the other loaders:

* Order, random crops and flips are TensorFlow's own, drawn from (seed, epoch).
* train: `decode_and_crop_jpeg` of the box alone, with the same areas, ratios and number of tries; then, and in infer,
  `tf.image.resize` bilinear, which is not antialiased by default: pixels differ by several levels.
* A file whose start or end a scan finds broken is left out from the beginning; any other that TensorFlow cannot decode
  fails the case.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loaderbench import lacking
from loaderbench.errors import CaseFailed
from loaderbench.loaders.base import Batch, LoaderContext, check_no_decoder, check_workers
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

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
try:
    tf: Any = importlib.import_module("tensorflow")
except lacking.LOAD_ERRORS as error:
    raise lacking.package("TensorFlow", error, "pip install 'loaderbench[tf-data]'") from error


@dataclass(frozen=True)
class Options:
    """No options."""


class TfDataLoader:
    """A private pool of `workers` threads, `workers × prefetch` batches ahead."""

    decodes = True
    owns_transfer = False
    evicts_own_reads = False

    def __init__(self, context: LoaderContext) -> None:
        self._context = context
        self._pin = context.pin_memory and torch.cuda.is_available()
        if tf.config.list_physical_devices("GPU"):
            tf.config.set_visible_devices([], "GPU")  # the model's GPU is torch's
        self._failures = find_broken(context)
        self._sound = sound_positions(len(context.images), self._failures)

    def _data_set(self, first_epoch: int, num_epochs: int | None) -> Any:
        context, num_sound = self._context, len(self._sound)
        paths = tf.constant([context.images.path(int(index)) for index in self._sound])
        indices = tf.constant(self._sound)
        last = np.iinfo(np.int64).max if num_epochs is None else first_epoch + num_epochs

        def epoch_samples(epoch: Any) -> Any:
            order = tf.random.experimental.index_shuffle
            seed = tf.stack([tf.constant(context.seed % 2**31, tf.int64), epoch])

            def place(number: Any) -> tuple[Any, Any]:
                return order(number, seed, tf.constant(num_sound - 1, tf.int64)), epoch

            return tf.data.Dataset.range(num_sound).map(place)

        def load(place: Any, epoch: Any) -> tuple[Any, Any]:
            index = indices[place]
            seed = tf.stack([epoch * 1_000_003 + context.seed % 2**31, index])
            return self._transform(tf.io.read_file(paths[place]), seed), index

        samples = tf.data.Dataset.range(first_epoch, last).flat_map(epoch_samples)
        batches = samples.map(load, num_parallel_calls=context.workers).batch(context.batch_size)
        options = tf.data.Options()
        options.deterministic = True
        options.autotune.enabled = False
        options.threading.private_threadpool_size = context.workers
        return batches.prefetch(context.workers * context.prefetch).with_options(options)

    def _transform(self, encoded: Any, seed: Any) -> Any:
        """Operators from the bytes of a file to [H, W, 3] of the case's type."""
        context = self._context
        size, train = context.input_size, context.mode == "train"
        if train and size is not None:
            begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
                tf.io.extract_jpeg_shape(encoded),
                tf.zeros([1, 0, 4]),
                seed,
                area_range=CROP_SCALE,
                aspect_ratio_range=CROP_RATIO,
                max_attempts=CROP_TRIES,
                min_object_covered=0.0,
                use_image_if_no_bounding_boxes=True,
            )
            window = tf.concat([begin[:2], extent[:2]], 0)
            image = tf.image.resize(tf.io.decode_and_crop_jpeg(encoded, window, channels=3), [size, size])
        else:
            image = tf.io.decode_jpeg(encoded, channels=3)
            if size is not None:
                image = self._centre(image, size)
        if train:
            flip = tf.random.stateless_uniform([], seed + 1) < FLIP_PROBABILITY
            image = tf.cond(flip, lambda: tf.reverse(image, [1]), lambda: image)
        if context.output == "uint8":
            return tf.cast(tf.round(tf.cast(image, tf.float32)), tf.uint8)
        mean, std = (255 * tf.constant(values) for values in (IMAGENET_MEAN, IMAGENET_STD))
        return (tf.cast(image, tf.float32) - mean) / std

    def _centre(self, image: Any, size: int) -> Any:
        short = float(resize_shorter_side(size))
        shape = tf.cast(tf.shape(image)[:2], tf.float32)
        target = tf.cast(shape * short / tf.reduce_min(shape) + 1e-3, tf.int32)
        resized = tf.image.resize(image, target)
        top, left = (target[0] - size) // 2, (target[1] - size) // 2
        return resized[top : top + size, left : left + size]

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        failures = tuple(self._failures)
        iterator = iter(self._data_set(first_epoch, num_epochs))
        try:
            for pixels, indices in iterator:
                batch = self._to_batch(pixels, np.array(indices.numpy(), dtype=np.int64))
                batch.failures, failures = failures, ()  # files left out are reported once an iterator
                yield batch
        except tf.errors.OpError as error:
            raise CaseFailed(explain(str(error.message), self._context)) from error
        finally:
            del iterator

    def _to_batch(self, pixels: Any, indices: NDArray[np.int64]) -> Batch:
        images = self._context.images
        inputs = torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(pixels)).permute(0, 3, 1, 2)
        targets = torch.from_numpy(images.labels[indices].astype(np.int64))
        if self._pin:
            inputs, targets = inputs.pin_memory(), targets.pin_memory()
        return Batch(inputs, targets, len(indices), int(images.sizes[indices].sum()), indices)

    def describe(self) -> JsonObject:
        """Facts for the record."""
        return {
            "loader": "tf.data",
            "version": tf.__version__,
            "num_threads": self._context.workers,
            "resize": "tf.image bilinear, not antialiased",
            "num_left_out": len(self._failures),
        }

    def close(self) -> None:
        """Nothing to end: a stream's threads end with the stream."""


def explain(message: str, context: LoaderContext) -> str:
    """One line from TensorFlow's error text."""
    if found := re.search(r"(\S+); No such file or directory", message):
        return f"cannot read {found[1]}: No such file or directory; the data set vanished during the run"
    if "Cannot batch tensors with different shapes" in message or "Cannot add tensor to the batch" in message:
        shapes = re.findall(r"\[(\d+),(\d+),3\]", message)
        sizes = " and ".join(sorted({f"{width}×{height}" for height, width in shapes})[:2])
        return (
            f"--input-size full needs images of one size, but {context.images.root} has {sizes}; "
            f"make them equal with `loaderbench dataset derive`"
        )
    return f"tf.data failed: {message.strip().splitlines()[0]}"


def build(options: Options, context: LoaderContext) -> TfDataLoader:
    """
    Raises:
        ConfigError: a decoder was asked for, or there is no thread to work.
        CaseFailed: too many files are broken.
    """
    check_no_decoder("tf.data", context)
    check_workers("tf-data", context)
    return TfDataLoader(context)
