"""nvJPEG through torchvision: threads read files, the GPU decodes them a batch at a time, crops, resizes and flips.

`workers` threads read ahead; one more thread hands batch after batch to torchvision's CUDA operator of
`torchvision.io.decode_jpeg` and enqueues the transform, all on a stream of its own. Order, boxes and flips are those of
the Python loaders; the resize is torch's antialiased bilinear in float. Batches arrive on the device.

A batch that nvJPEG refuses is decoded image by image: a broken one is counted and replaced by the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torchvision
from numpy.typing import NDArray
from torch.nn.functional import interpolate
from torchvision.io import ImageReadMode

from loaderbench.decoders.base import DecodeError, Geometry, read_header
from loaderbench.errors import CaseFailed, ConfigError, UnavailableError
from loaderbench.findings.table import words
from loaderbench.loaders.base import Batch, LoaderContext, check_no_decoder, check_workers
from loaderbench.loaders.batch_threads import BatchThreads
from loaderbench.loaders.order import BatchPlan, plan_batches
from loaderbench.loaders.read_ahead import BatchReads, ReadAhead
from loaderbench.loaders.samples import (
    MOST_REPLACEMENTS,
    FailureLimit,
    check_end,
    failure_list,
    output_shape,
    read_image,
    sample_geometry,
)
from loaderbench.loaders.transform import IMAGENET_MEAN, IMAGENET_STD, infer_geometry
from loaderbench.plain import JsonObject

RGB = ImageReadMode.RGB.value
MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Options:
    """No options."""


@dataclass(frozen=True)
class _Job:
    plan: BatchPlan
    reads: BatchReads


@dataclass(frozen=True)
class _Made:
    inputs: torch.Tensor
    """[N, 3, H, W] on the device, channels_last."""
    indices: NDArray[np.int64]
    encoded_bytes: int
    failures: tuple[tuple[int, str], ...]


class NvjpegLoader:
    """`workers` reading threads, `prefetch` batches ahead on the device."""

    decodes = True
    owns_transfer = True
    evicts_own_reads = True
    no_stage_times = words("gpu_decodes", {})

    def __init__(self, context: LoaderContext, device: torch.device) -> None:
        """`device`: a GPU; tests pass the CPU, on which torchvision then decodes."""
        self._context, self._device = context, device
        self._shape = output_shape(context)
        self.num_readers = context.workers
        self._read_ahead = ReadAhead(context, context.workers, context.batch_size)
        self._threads: BatchThreads[_Job, _Made] = BatchThreads(
            1, context.prefetch, lambda number: _DecodingThread(context, device, self._shape)
        )

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        context = self._context
        limit = FailureLimit(context)
        try:
            self._read_ahead.start()
            self._threads.start()
        except RuntimeError as error:
            raise CaseFailed(f"could not start the loader's threads: {error}") from error
        plans = plan_batches(len(context.images), context.batch_size, context.seed, first_epoch, num_epochs)
        stream = self._threads.stream(_Job(plan, self._read_ahead.ask(plan)) for plan in plans)
        try:
            for made in stream:
                batch = self._to_batch(made)
                limit.add(batch.num_samples, batch.failures)
                yield batch
        finally:
            self._read_ahead.cancel()
            stream.close()  # type: ignore[attr-defined]

    def _to_batch(self, made: _Made) -> Batch:
        if made.inputs.is_cuda:  # the batch is finished, but was allocated on the decoding stream
            made.inputs.record_stream(torch.cuda.current_stream(self._device))
        targets = torch.from_numpy(self._context.images.labels[made.indices].astype(np.int64))
        return Batch(
            made.inputs, targets.to(self._device, non_blocking=True), len(made.indices), made.encoded_bytes,
            made.indices, failures=made.failures, on_device=True,
        )  # fmt: skip

    def describe(self) -> JsonObject:
        """Facts for the record."""
        return {
            "loader": "torchvision nvJPEG",
            "version": torchvision.__version__,
            "num_threads": self._context.workers,
            "decode_device": str(self._device),
            "resize": "torch antialiased bilinear, float",
        }

    def close(self) -> None:
        self._threads.close()
        self._read_ahead.close()


class _DecodingThread:
    """The work of the thread that hands batches to the GPU, on a stream of its own."""

    def __init__(self, context: LoaderContext, device: torch.device, shape: tuple[int, int]) -> None:
        self._context, self._device, self._shape = context, device, shape
        mean, std = (255 * torch.tensor(values, device=device) for values in (IMAGENET_MEAN, IMAGENET_STD))
        self._mean, self._std = mean.view(1, 3, 1, 1), std.view(1, 3, 1, 1)
        self._stream: Any = None
        if self._mean.is_cuda:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            torch.cuda.synchronize(device)  # mean and std come from another stream

    def __call__(self, job: _Job, is_cancelled: Callable[[], bool]) -> _Made | None:
        encoded: list[bytes] = []
        while len(encoded) < len(job.plan.indices):
            some = job.reads.take(MOST_BYTES, len(job.plan.indices))
            if some is None or is_cancelled():
                return None
            encoded += some
        if self._stream is None:
            return self._make(job.plan, encoded)
        with torch.cuda.stream(self._stream):
            made = self._make(job.plan, encoded)
            # torchvision writes pictures on a stream of its own: it must not overwrite pictures still being read.
            self._stream.synchronize()
        return made

    def close(self) -> None:
        """Nothing to end."""

    def _make(self, plan: BatchPlan, encoded: list[bytes]) -> _Made:
        indices = plan.indices.copy()
        num_bytes = sum(map(len, encoded))
        failures: list[tuple[int, str]] = []
        try:
            pictures = self._decode(encoded)
        except DecodeError:
            pictures = []
            for position, data in enumerate(encoded):
                picture, indices[position], more = self._decode_or_next(int(indices[position]), data, failures)
                pictures.append(picture)
                num_bytes += more
        samples = [
            self._sample(picture, index, epoch)
            for picture, index, epoch in zip(pictures, indices.tolist(), plan.epochs.tolist(), strict=True)
        ]
        inputs = torch.stack(samples).contiguous(memory_format=torch.channels_last)
        if self._context.output == "float32":
            inputs = (inputs.float() - self._mean) / self._std
        return _Made(inputs, indices, num_bytes, tuple(failures))

    def _decode(self, encoded: Sequence[bytes]) -> list[torch.Tensor]:
        """uint8 [3, H, W] of each, on the device.

        Raises:
            DecodeError: one of them is no complete JPEG, or would cost too much.
            CaseFailed: the device's memory is full.
        """
        for data in encoded:
            check_end(data)
            header = read_header(data)
            if self._context.mode == "infer":
                infer_geometry(header.height, header.width, self._context.input_size)
        # A copy (5 µs per 100 KB), because torch warns about buffers that it may not write to.
        tensors = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in encoded]
        try:
            if self._mean.is_cuda:
                found: list[torch.Tensor] = torch.ops.image.decode_jpegs_cuda(tensors, RGB, self._device)
                return found
            return [torch.ops.image.decode_jpeg(one, RGB, False) for one in tensors]
        except torch.OutOfMemoryError as error:
            raise CaseFailed(
                f"the GPU has too little memory for {len(encoded)} decoded images: use a smaller --batch-size"
            ) from error
        except (RuntimeError, ValueError) as error:
            raise DecodeError(str(error).partition("\n")[0]) from error

    def _decode_or_next(
        self, index: int, data: bytes, failures: list[tuple[int, str]]
    ) -> tuple[torch.Tensor, int, int]:
        """(picture, its index, bytes read besides `data`) of `data`, or of the next image that can be decoded."""
        images, num_bytes = self._context.images, 0
        for _ in range(min(MOST_REPLACEMENTS, len(images))):
            try:
                return self._decode([data])[0], index, num_bytes
            except DecodeError as error:
                failures.append((index, str(error)))
            index = (index + 1) % len(images)
            data = read_image(self._context, index)
            num_bytes += len(data)
        raise CaseFailed(failure_list(failures, len(failures), images))

    def _sample(self, picture: torch.Tensor, index: int, epoch: int) -> torch.Tensor:
        """uint8 [3, H, W]"""
        height, width = picture.shape[1:]
        geometry = sample_geometry(self._context, self._shape, height, width, epoch, index)
        return crop_resize(picture, geometry, self._shape)


def crop_resize(picture: torch.Tensor, geometry: Geometry, shape: tuple[int, int]) -> torch.Tensor:
    """The part of `picture` (uint8 [3, H, W]) that `geometry` names, as uint8 [3, *shape] on the same device."""
    top, left, height, width, resized_height, resized_width, window_top, window_left, flip = geometry
    box = picture[:, top : top + height, left : left + width]
    if (resized_height, resized_width) != (height, width):
        size = [resized_height, resized_width]
        resized = interpolate(box[None].float(), size, mode="bilinear", antialias=True, align_corners=False)
        box = resized[0].round().to(torch.uint8)  # a weighted mean of levels stays in their range
    window = box[:, window_top : window_top + shape[0], window_left : window_left + shape[1]]
    return window.flip(2) if flip else window


def build(options: Options, context: LoaderContext) -> NvjpegLoader:
    """
    Raises:
        ConfigError: a decoder was asked for, there is no reading thread, or the case runs on no GPU.
        UnavailableError: torchvision has no CUDA decoder (any more).
    """
    check_no_decoder("nvJPEG", context)
    check_workers("nvjpeg", context)
    if context.gpu is None:
        raise ConfigError("the nvjpeg loader needs --device cuda")
    if not hasattr(torch.ops.image, "decode_jpegs_cuda"):
        raise UnavailableError(f"torchvision {torchvision.__version__} has no CUDA decoder; use --loader dali")
    return NvjpegLoader(context, torch.device("cuda", context.gpu))
