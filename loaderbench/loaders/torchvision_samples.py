"""Samples and batches as a training script with torchvision's ImageFolder gets them: its way to open and decode a file,
its transforms, DataLoader's default collate. Only the seed of its random numbers is ours.

benchmarks/fidelity.py holds it against such a script.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch.utils.data import default_collate, get_worker_info
from torchvision import transforms

from loaderbench.decoders.base import DecodeError, PilDecoder
from loaderbench.errors import CaseFailed
from loaderbench.loaders.base import LoaderContext
from loaderbench.loaders.order import BatchPlan
from loaderbench.loaders.samples import (
    CPU_TIMED_EACH,
    MadeBatch,
    SpanClock,
    first_decodable,
    unreadable,
    wrong_size,
)
from loaderbench.loaders.transform import IMAGENET_MEAN, IMAGENET_STD, SampleRandom, infer_geometry, resize_shorter_side
from loaderbench.samplers.run_queue import RunQueue

T = TypeVar("T")


class TimedFile(io.FileIO):
    """An open file that knows what reading it took, for a decoder that reads while it decodes."""

    def __init__(self, path: str, *, cpu: bool, queue: RunQueue | None) -> None:
        """`cpu`: take the CPU time of reading, too: two system calls a read. `queue`: and its wait for a processor.

        Raises:
            OSError: it cannot be opened.
        """
        self._cpu, self._queue = cpu, queue
        self.cpu_ns = self.queue_ns = self.read_ns = 0
        begun_cpu = time.thread_time_ns() if cpu else 0
        self.begun_ns = time.perf_counter_ns()
        begun_queue = queue.ns() if queue is not None else 0
        super().__init__(path)
        if queue is not None:
            self.queue_ns = queue.ns() - begun_queue
        self.opened_ns = time.perf_counter_ns()
        if cpu:
            self.cpu_ns = time.thread_time_ns() - begun_cpu
        self.error: OSError | None = None
        """What reading it failed by, which Pillow reports as it reports a broken picture."""

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]
        return self._timed(lambda: io.FileIO.readinto(self, buffer))

    def readall(self) -> bytes | None:  # type: ignore[override]
        return self._timed(lambda: io.FileIO.readall(self))

    def evict(self) -> None:
        """Drop the file's pages from the page cache."""
        self._timed(lambda: os.posix_fadvise(self.fileno(), 0, 0, os.POSIX_FADV_DONTNEED))

    def _timed(self, read: Callable[[], T]) -> T:
        queue = self._queue
        begun_cpu = time.thread_time_ns() if self._cpu else 0
        begun = time.perf_counter_ns()
        begun_queue = queue.ns() if queue is not None else 0
        try:
            return read()
        except OSError as error:
            self.error = error
            raise
        finally:
            if queue is not None:
                self.queue_ns += queue.ns() - begun_queue
            self.read_ns += time.perf_counter_ns() - begun
            if self._cpu:
                self.cpu_ns += time.thread_time_ns() - begun_cpu


def no_room(reason: str) -> CaseFailed:
    """The error for a batch that shared memory cannot hold."""
    return CaseFailed(
        f"no shared memory for a batch ({reason}); enlarge /dev/shm (docker: --shm-size), or use fewer --workers, a "
        "smaller --prefetch or --loader threaded"
    )


def compose(context: LoaderContext, crop: transforms.RandomResizedCrop | None = None) -> transforms.Compose:
    """A PIL image to a sample [3, H, W]: torchvision's transforms of training or evaluation. `crop`: takes the place of
    its random one."""
    size, steps = context.input_size, list[Any]()
    if context.mode == "train":
        steps += [] if size is None else [crop or transforms.RandomResizedCrop(size)]
        steps.append(transforms.RandomHorizontalFlip())
    elif size is not None:
        steps += [transforms.Resize(resize_shorter_side(size)), transforms.CenterCrop(size)]
    if context.output == "uint8":
        return transforms.Compose([*steps, transforms.PILToTensor()])
    return transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)])


def seed_for(context: LoaderContext, epoch: int, index: int) -> None:
    """Let torchvision draw for a sample what depends on (seed, epoch, index) alone. It takes 6 µs."""
    torch.default_generator.manual_seed(SampleRandom(context.seed, epoch, index).bits())


@contextmanager
def generator_kept() -> Iterator[None]:
    """torch's random numbers go on afterwards as if nothing had been drawn: in the consumer's process they are the
    model's."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


class TorchvisionSamples:
    """Makes batches for one worker. Build it in the process that uses it."""

    def __init__(self, context: LoaderContext, decoder: PilDecoder, shape: tuple[int, int], clock: SpanClock) -> None:
        self.clock = clock
        self._context, self._decoder, self._shape = context, decoder, shape
        self._transform = compose(context)
        self._encoded_bytes = 0

    def make(self, plan: BatchPlan, is_cancelled: Callable[[], bool]) -> tuple[torch.Tensor, MadeBatch] | None:
        """The planned samples in one tensor [N, 3, H, W]; None where cancelled. The caller begins and ends the clock.

        Raises:
            CaseFailed: a file cannot be read, sizes differ with `full`, too many images in a row are broken, or shared
                memory has no room.
        """
        context, clock = self._context, self.clock
        indices, failures, samples = plan.indices.copy(), list[tuple[int, str]](), []
        self._encoded_bytes = 0
        with generator_kept():
            for position, epoch in enumerate(plan.epochs.tolist()):
                if is_cancelled():
                    return None
                make = partial(self._sample, epoch)
                index, sample = first_decodable(context.images, int(indices[position]), failures, make)
                indices[position] = index
                samples.append((sample, int(context.images.labels[index])))
        begun = time.perf_counter_ns()
        try:
            inputs, targets = default_collate(samples)
        except RuntimeError as error:
            if get_worker_info() is None:  # no shared memory is taken
                raise
            raise no_room(str(error)) from error
        if context.slowdown is not None:
            context.slowdown.collate()
        clock.collate_ns += time.perf_counter_ns() - begun
        spans = np.empty(0, dtype=np.int64)
        return inputs, MadeBatch(indices, targets.numpy(), self._encoded_bytes, spans, failures)

    def _sample(self, epoch: int, index: int) -> torch.Tensor:
        """Raises DecodeError for a broken picture; CaseFailed for another size with `full`, or a file that fails."""
        context = self._context
        image = self._load(index)
        begun = time.perf_counter_ns()
        if context.input_size is None and (image.height, image.width) != self._shape:
            raise wrong_size(context, self._shape, index, image.height, image.width)
        if context.mode == "train":  # else nothing is drawn
            seed_for(context, epoch, index)
        else:
            infer_geometry(image.height, image.width, context.input_size)  # refuses one too narrow to be resized
        sample: torch.Tensor = self._transform(image)
        self.clock.augment_ns += time.perf_counter_ns() - begun
        return sample

    def _load(self, index: int) -> Image.Image:
        """The decoded picture, by torchvision's `pil_loader` on a file that is timed."""
        path, clock = self._context.images.path(index), self.clock
        timed = clock.num_reads % CPU_TIMED_EACH == 0
        raw = None
        begun = time.perf_counter_ns()
        try:
            raw = TimedFile(path, cpu=timed, queue=clock.queue_of_read())
            with io.BufferedReader(raw) as file:
                try:
                    return self._decoder.load(file)
                finally:
                    self._note(index, raw, begun, timed=timed)
        except DecodeError:
            if raw is not None and raw.error is not None:
                raise unreadable(path, raw.error.errno) from raw.error
            raise
        except OSError as error:
            raise unreadable(path, error.errno) from error

    def _note(self, index: int, raw: TimedFile, begun_ns: int, *, timed: bool) -> None:
        """Tell the clock and the log what reading and decoding took, and drop the file's pages where asked."""
        clock, context = self.clock, self._context
        decoded_ns = time.perf_counter_ns() - begun_ns
        opening_ns = raw.opened_ns - raw.begun_ns
        clock.decode_ns += max(0, decoded_ns - opening_ns - raw.read_ns)
        num_bytes = os.fstat(raw.fileno()).st_size
        if context.evict_after_read:
            raw.evict()
        read_ns = opening_ns + raw.read_ns
        context.reads.add(index, raw.begun_ns, raw.opened_ns, raw.begun_ns + read_ns, num_bytes)
        clock.add_read(read_ns, raw.cpu_ns if timed else None, raw.queue_ns)
        clock.add_pages(num_bytes)
        self._encoded_bytes += num_bytes
