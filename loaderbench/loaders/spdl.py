"""SPDL: a pipeline of stages in threads, with FFmpeg's decoders.

Set up as its image examples do: a source of batches, one stage that reads, demuxes, decodes and batches with
`concurrency` tasks in as many threads, a sink. It decodes for itself:

* crop, resize and flip are FFmpeg filters (`crop`, `scale` with `flags=bilinear`, `hflip`), whose boxes are those of
  the Python loaders, from the same random numbers: the same crop of each image, with another decoder's pixel values.
* FFmpeg makes a picture of a truncated file. Truncated files are recognized by their last bytes. Like files that it
  cannot decode, they are counted and replaced by the next image; damage inside the data goes unseen.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from loaderbench import lacking
from loaderbench.decoders.base import DecodeError, Geometry, read_header
from loaderbench.errors import CaseFailed, UnavailableError
from loaderbench.loaders.base import Batch, LoaderContext, check_no_decoder, check_workers
from loaderbench.loaders.order import BatchPlan, plan_batches
from loaderbench.loaders.sample_calls import LibraryLoader, LibraryThreads
from loaderbench.loaders.samples import MOST_REPLACEMENTS, check_end, failure_list, read_image, sample_geometry
from loaderbench.loaders.torch_dataset import VOID, Payload
from loaderbench.loaders.transform import Normalizer
from loaderbench.plain import JsonObject

DEBIAN_PACKAGES = "libavdevice59 libavfilter8 libavformat59"

try:
    spdl: Any = importlib.import_module("spdl.io")
    builder: Any = importlib.import_module("spdl.pipeline")
except lacking.LOAD_ERRORS as error:
    install = f"apt-get install {DEBIAN_PACKAGES}, then pip install 'loaderbench[spdl]'"
    raise lacking.package("SPDL", error, install) from error


@dataclass(frozen=True)
class Options:
    """No options."""


class SpdlLoader(LibraryLoader):
    """`workers` threads, `workers × prefetch` batches ahead (those being made included)."""

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        context = self._context
        work = _Work(context, self._shape)
        plans = plan_batches(len(context.images), context.batch_size, context.seed, first_epoch, num_epochs)
        pipeline = (
            builder.PipelineBuilder()
            .add_source(plans)
            .pipe(work, concurrency=context.workers, output_order="input")
            .add_sink(max(1, context.workers * (context.prefetch - 1)))
            .build(num_threads=context.workers)
        )
        pipeline.start()
        try:
            yield from self._delivered(pipeline.get_iterator(), work, pin=self._pin)
        finally:
            self._drained = work.cancel()
            pipeline.stop()

    def describe(self) -> JsonObject:
        """Facts for the record."""
        return {
            "loader": "SPDL",
            "version": importlib.import_module("importlib.metadata").version("spdl"),
            "num_threads": self._context.workers,
            "resize": "FFmpeg swscale, bilinear",
        }


class _Work(LibraryThreads):
    """The stage: a batch from its plan."""

    def __init__(self, context: LoaderContext, shape: tuple[int, int]) -> None:
        super().__init__()
        self._context, self._shape = context, shape
        self._normalize = Normalizer(*shape) if context.output == "float32" else None

    def __call__(self, plan: BatchPlan) -> Payload:
        if not self.begin():
            return VOID
        try:
            payload = self._make(plan)
        except CaseFailed as error:
            payload = VOID._replace(failed=str(error))
        finally:
            span = self.end()
        return payload._replace(spans=span)

    def _make(self, plan: BatchPlan) -> Payload:
        clock, images = self.clock(), self._context.images
        frames: list[Any] = []
        failures: list[tuple[int, str]] = []
        indices = np.empty(len(plan.indices), dtype=np.int64)
        encoded_bytes = 0
        for position, (index, epoch) in enumerate(zip(plan.indices.tolist(), plan.epochs.tolist(), strict=True)):
            if self.cancelled:
                return VOID
            frame, indices[position], num_bytes = self._make_frame(index, epoch, failures)
            frames.append(frame)
            encoded_bytes += num_bytes
        begun = time.perf_counter_ns()
        pixels = spdl.to_numpy(spdl.convert_frames(frames))
        clock.collate_ns += time.perf_counter_ns() - begun
        if self._normalize is not None:
            begun = time.perf_counter_ns()
            levels, pixels = pixels, np.empty(pixels.shape, dtype=np.float32)
            for image, slot in zip(levels, pixels, strict=True):
                self._normalize(image, slot)
            clock.augment_ns += time.perf_counter_ns() - begun
        targets = torch.from_numpy(images.labels[indices].astype(np.int64))
        inputs = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        return Payload(inputs, targets, encoded_bytes, indices, None, failures)

    def _make_frame(self, index: int, epoch: int, failures: list[tuple[int, str]]) -> tuple[Any, int, int]:
        """(frame, its index, bytes read) of image `index`, or of the next one that can be decoded."""
        clock, images = self.clock(), self._context.images
        num_bytes = 0
        for _ in range(min(MOST_REPLACEMENTS, len(images))):
            encoded = read_image(self._context, index, clock)
            num_bytes += len(encoded)
            clock.add_pages(len(encoded))
            read = time.perf_counter_ns()
            try:
                return self._decode(encoded, index, epoch), index, num_bytes
            except DecodeError as error:
                failures.append((index, str(error)))
                index = (index + 1) % len(images)
            finally:
                clock.decode_ns += time.perf_counter_ns() - read
        raise CaseFailed(failure_list(failures, len(failures), images))

    def _decode(self, encoded: bytes, index: int, epoch: int) -> Any:
        """Decode, crop, resize and flip: one call, so that all of it counts as decoding."""
        check_end(encoded)
        read_header(encoded)
        try:
            packets = spdl.demux_image(encoded)
            height, width = packets.height, packets.width
        except RuntimeError as error:
            raise DecodeError(_first_line(error)) from error
        geometry = sample_geometry(self._context, self._shape, height, width, epoch, index)
        try:
            return spdl.decode_packets(packets, filter_desc=filters(geometry, self._shape))
        except RuntimeError as error:
            raise DecodeError(_first_line(error)) from error


def _first_line(error: RuntimeError) -> str:
    return f"FFmpeg: {str(error).strip().splitlines()[0]}"


def filters(geometry: Geometry, shape: tuple[int, int]) -> str:
    """FFmpeg's filter graph for a geometry, output of (height, width) `shape`.

    >>> filters(Geometry(8, 16, 100, 120, 64, 64, 0, 0, True), (64, 64))
    'crop=120:100:16:8:exact=1,scale=64:64:flags=bilinear,hflip,format=pix_fmts=rgb24'
    """
    top, left, height, width, resized_height, resized_width, window_top, window_left, flip = geometry
    steps = [f"crop={width}:{height}:{left}:{top}:exact=1"]
    if (resized_height, resized_width) != (height, width):
        steps.append(f"scale={resized_width}:{resized_height}:flags=bilinear")
    if (resized_height, resized_width) != shape:
        steps.append(f"crop={shape[1]}:{shape[0]}:{window_left}:{window_top}:exact=1")
    if flip:
        steps.append("hflip")
    return ",".join([*steps, "format=pix_fmts=rgb24"])


def build(options: Options, context: LoaderContext) -> SpdlLoader:
    """
    Raises:
        ConfigError: a decoder was asked for, or there is no thread to work.
        UnavailableError: the system has no FFmpeg libraries that SPDL can load.
    """
    check_no_decoder("SPDL", context)
    check_workers("spdl", context)
    try:
        spdl.demux_config()  # loads FFmpeg
    except RuntimeError as error:
        raise UnavailableError(
            f"SPDL finds no FFmpeg libraries; on Debian 12: apt-get install {DEBIAN_PACKAGES}"
        ) from error
    return SpdlLoader(context)
