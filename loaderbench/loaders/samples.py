"""The work on one sample, shared by every loader written in Python: read, decode, crop, resize, flip, normalize.

The stage clocks stay on: four clock reads an image (45 ns each), two of the thread's CPU time (1 to 2 µs) for one image
in eight, two of its run queue (3 µs) where the read before took 50 µs, and 6 µs a batch, 0.05 % of an image of 1.5 ms.
To repeat: `benchmarks/loader_rates.py DATASET --stage-clocks`.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from loaderbench import plugins
from loaderbench.decoders.base import (
    DecodeError,
    Decoder,
    Filled,
    FillingDecoder,
    Geometry,
    SlotFiller,
    Stopped,
    read_size,
)
from loaderbench.errors import CaseFailed
from loaderbench.images.index import ImageIndex
from loaderbench.images.scan import TAIL_BYTES
from loaderbench.loaders.base import SPAN_FIELDS, LoaderContext
from loaderbench.loaders.order import BatchPlan
from loaderbench.loaders.transform import Normalizer, SampleRandom, infer_geometry, recipe_of, train_geometry
from loaderbench.recording.facts import WAITING_READ_NS
from loaderbench.samplers.run_queue import RunQueue

T = TypeVar("T")

MOST_REPLACEMENTS = 100
"""Broken images in a row after which a sample is given up and the case fails."""

MOST_NAMES_LISTED = 10
JUDGED_FROM, CHANCE = 100, 4.0
"""Images read before their broken part is judged; standard deviations by which it must be too large before all were."""

CPU_TIMED_EACH = 8
"""One file in so many has the CPU time of reading it taken, and stands for the others. A thread's clock is a system
call, at which Linux may give the processor to a thread that waits: outside the stages, which then account for less."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

BYTES_AT_ONCE, MOST_AT_ONCE = 2 << 20, 32
"""Bytes and files that a decoder which makes whole samples gets in one call: 10 to 20 ms of work, so that calls cost
next to nothing and a closed stream ends soon."""


def read_file(path: str, evict: bool = False) -> bytes:
    """All bytes of a file; with `evict` its pages leave the page cache afterwards.

    Raises:
        CaseFailed: the file cannot be read. A missing file does not count as a broken image: the storage is gone.
    """
    return _read_file(path, evict)[0]


def read_image(context: LoaderContext, index: int, clock: SpanClock | None = None) -> bytes:
    """All bytes of image `index`, evicted where the context asks for it. Its times go to the context's log, and to the
    clock's stage read.

    Raises:
        CaseFailed: as `read_file`.
    """
    timed = clock is not None and clock.num_reads % CPU_TIMED_EACH == 0
    queue = None if clock is None else clock.queue_of_read()
    begun_cpu = time.thread_time_ns() if timed else 0
    begun = time.perf_counter_ns()
    begun_queue = queue.ns() if queue is not None else 0
    encoded, opened = _read_file(context.images.path(index), context.evict_after_read)
    queued_ns = queue.ns() - begun_queue if queue is not None else 0
    ended = time.perf_counter_ns()
    context.reads.add(index, begun, opened, ended, len(encoded))
    if clock is not None:
        clock.add_read(ended - begun, time.thread_time_ns() - begun_cpu if timed else None, queued_ns)
    return encoded


def _read_file(path: str, evict: bool) -> tuple[bytes, int]:
    """All bytes of a file, and when (perf_counter_ns) it was open."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        opened = time.perf_counter_ns()
        try:
            size = os.fstat(descriptor).st_size
            data = os.read(descriptor, size)
            while len(data) < size:
                more = os.read(descriptor, size - len(data))
                if not more:
                    break
                data += more
            if evict:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unreadable(path, error.errno) from error
    return data, opened


def unreadable(path: str, number: int | None) -> CaseFailed:
    """The error for a file that cannot be read, by errno."""
    if number in (errno.EMFILE, errno.ENFILE):
        advice = "raise the limit of open files (`ulimit -n`)"
    elif number in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENOTCONN, errno.ENODEV):
        advice = "the data set vanished during the run"
    else:
        advice = "the storage failed during the run"
    return CaseFailed(f"cannot read {path}: {os.strerror(number or 0)}; {advice}")


def slot_filler(decoder: Decoder, context: LoaderContext, shape: tuple[int, int]) -> SlotFiller | None:
    """The decoder's filler for whole samples; None where it has none. Only for the calling thread."""
    return decoder.slot_filler(recipe_of(context, shape)) if isinstance(decoder, FillingDecoder) else None


def make_decoder(context: LoaderContext, default: str) -> Decoder:
    """The case's decoder."""
    module = plugins.DECODERS.load(context.decoder or default)
    options = plugins.parse_options(module, context.decoder_options)
    decoder: Decoder = module.build(options, context)
    return decoder if context.slowdown is None else context.slowdown.wrap_decoder(decoder)


def output_shape(context: LoaderContext) -> tuple[int, int]:
    """(height, width) of every sample: the input size, or the size of the first readable image (`full`).

    Raises:
        CaseFailed: `full`, and none of the first images has a header that can be read.
    """
    if context.input_size is not None:
        return context.input_size, context.input_size
    for index in range(min(len(context.images), MOST_REPLACEMENTS)):
        try:
            header = read_size(read_file(context.images.path(index)))
            return header.height, header.width
        except DecodeError:
            continue  # a broken image: counted when its turn comes
    raise CaseFailed(f"the first images of {context.images.root} are broken; see `loaderbench dataset scan`")


@dataclass
class MadeBatch:
    """What the worker knows about a batch besides its pixels."""

    indices: NDArray[np.int64]
    targets: NDArray[np.int64]
    encoded_bytes: int
    spans: NDArray[np.int64]
    failures: list[tuple[int, str]] = field(default_factory=list)


class SpanClock:
    """The clocks of one worker thread: stages by perf_counter_ns, CPU, run queue and faults once a batch."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.queue = RunQueue()
        self._reads_wait = False
        """The last read took WAITING_READ_NS."""
        self._reset()
        self._start_ns = 0
        self._begun = (0, 0, 0, 0)

    def _reset(self) -> None:
        self.read_ns = self.decode_ns = self.augment_ns = self.collate_ns = self.page_bytes = 0
        self.read_cpu_ns = self._one_read_cpu_ns = self.num_reads = self.read_queue_ns = 0

    def _counters(self) -> tuple[int, int, int, int]:
        """CPU ns, run-queue ns (-1: unknown), major and minor faults of the calling thread."""
        used = resource.getrusage(resource.RUSAGE_THREAD)
        return time.thread_time_ns(), self.queue.ns(), used.ru_majflt, used.ru_minflt

    def queue_of_read(self) -> RunQueue | None:
        """What to ask for the next read's wait for a processor; None: it is not worth its time.

        Ask within the time that is taken of the read: a thread may lose its processor at the end of any system call.
        """
        return self.queue if self._reads_wait else None

    def add_read(self, took_ns: int, cpu_ns: int | None, queued_ns: int) -> None:
        """A file that was read. `cpu_ns`: None where it was not timed, and an earlier one stands for it."""
        self.read_ns += took_ns
        if cpu_ns is not None:
            self._one_read_cpu_ns = cpu_ns
        self.read_cpu_ns += self._one_read_cpu_ns
        self.read_queue_ns += queued_ns
        self.num_reads += 1
        self._reads_wait = took_ns >= WAITING_READ_NS

    def begin(self) -> None:
        self._reset()
        self._begun = self._counters()
        self._start_ns = time.perf_counter_ns()

    def add_filled(self, filled: Filled) -> None:
        """Samples that a decoder's filler read and made."""
        self.read_ns += filled.read_ns
        self.read_cpu_ns += filled.read_cpu_ns
        self.read_queue_ns += filled.read_queue_ns
        self.decode_ns += filled.decode_ns
        self.augment_ns += filled.augment_ns
        self.page_bytes += filled.page_bytes

    def add_pages(self, num_bytes: int) -> None:
        self.page_bytes += -(-num_bytes // PAGE_BYTES) * PAGE_BYTES

    def end(self) -> NDArray[np.int64]:
        """int64 [len(SPAN_FIELDS)]; the batch is ready now."""
        cpu_ns, runqueue_ns, major_faults, minor_faults = self._counters()
        row = (
            self.worker,
            self._start_ns,
            time.perf_counter_ns(),
            self.read_ns,
            self.decode_ns,
            self.augment_ns,
            self.collate_ns,
            cpu_ns - self._begun[0],
            runqueue_ns - self._begun[1] if runqueue_ns >= 0 else -1,
            major_faults - self._begun[2],
            self.page_bytes,
            minor_faults - self._begun[3],
            self.read_cpu_ns,
            self.read_queue_ns if runqueue_ns >= 0 else -1,
        )
        assert len(row) == len(SPAN_FIELDS)
        return np.array(row, dtype=np.int64)

    def close(self) -> None:
        self.queue.close()


class Reads(Protocol):
    """The files of one batch, read by other threads, in the order of its plan."""

    def take(self, most_bytes: int, most: int) -> list[bytes] | None:
        """The next files: at least one, more of those that are ready, up to a size and a number. None: cancelled.

        Raises:
            CaseFailed: the next one could not be read.
        """
        ...


class SampleMaker:
    """Makes batches for one worker thread. Build it in the thread (or process) that uses it."""

    def __init__(self, context: LoaderContext, decoder: Decoder, shape: tuple[int, int], clock: SpanClock) -> None:
        self.clock = clock
        self._context = context
        self._images: ImageIndex = context.images
        self._decoder = decoder
        self._filler = slot_filler(decoder, context, shape)
        self._shape = shape
        self._normalize = Normalizer(*shape) if context.output == "float32" else None
        num_at_once = 1 if self._filler is None or self._normalize is None else MOST_AT_ONCE
        self._scratch = np.empty((num_at_once, *shape, 3), dtype=np.uint8)

    def fill(
        self,
        plan: BatchPlan,
        slots: NDArray[Any],
        is_cancelled: Callable[[], bool] | None = None,
        reads: Reads | None = None,
    ) -> MadeBatch | None:
        """Make the planned samples into `slots` ([N, H, W, 3], float32 or uint8); None where cancelled.

        The caller begins the clock (so that getting the slots counts as collate) and ends it. With `reads` the
        stage read is the time that this worker waited for them.

        Raises:
            CaseFailed: a file cannot be read, sizes differ with `full`, or too many images in a row are broken.
        """
        failures: list[tuple[int, str]] = []
        indices = plan.indices.copy()
        encoded_bytes = position = 0
        make = self._make_slowly if self._filler is None else self._fill
        while position < len(indices):
            if is_cancelled is not None and is_cancelled():
                return None
            read: list[bytes] | None = None
            if reads is not None:
                begun, queue = time.perf_counter_ns(), self.clock.queue_of_read()
                begun_queue = queue.ns() if queue is not None else 0
                read = reads.take(BYTES_AT_ONCE, MOST_AT_ONCE)
                queued_ns = queue.ns() - begun_queue if queue is not None else 0
                self.clock.add_read(time.perf_counter_ns() - begun, None, queued_ns)
                if read is None:
                    return None
            num_made, num_bytes = make(indices[position:], plan.epochs[position:], slots[position:], read, failures)
            position += num_made
            encoded_bytes += num_bytes
        if self._context.slowdown is not None:
            begun = time.perf_counter_ns()
            self._context.slowdown.collate()
            self.clock.collate_ns += time.perf_counter_ns() - begun
        targets = self._images.labels[indices].astype(np.int64)
        return MadeBatch(indices, targets, encoded_bytes, np.empty(0, dtype=np.int64), failures)

    def _fill(
        self,
        indices: NDArray[np.int64],
        epochs: NDArray[np.int64],
        slots: NDArray[Any],
        read: list[bytes] | None,
        failures: list[tuple[int, str]],
    ) -> tuple[int, int]:
        """Make the first samples (all of `read` where given) by the decoder's filler. Broken images are replaced
        in `indices`. Returns how many were made and the bytes read."""
        assert self._filler is not None
        clock, images = self.clock, self._images
        num = self._num_at_once(indices) if read is None else len(read)
        position = num_bytes = num_broken = 0
        while position < num:
            some = slice(position, num)
            out = slots[some] if self._normalize is None else self._scratch[: num - position]
            if read is None:
                files = [images.encoded_path(index) for index in indices[some].tolist()]
            else:
                files = read[some]
            filled = self._filler.fill(files, indices[some], epochs[some], out, in_memory=read is not None)
            clock.add_filled(filled)
            if filled.times is not None:
                begun_reads = np.column_stack((indices[position : position + len(filled.times)], filled.times))
                self._context.reads.add_packed(begun_reads.tobytes())
            num_bytes += filled.encoded_bytes
            if self._normalize is not None:
                begun = time.perf_counter_ns()
                for made, slot in zip(out[: filled.num_made], slots[some], strict=False):
                    self._normalize(made, slot)
                clock.augment_ns += time.perf_counter_ns() - begun
            position += filled.num_made
            num_broken = 0 if filled.num_made else num_broken
            if filled.stopped is None:
                continue
            index = int(indices[position])
            if filled.stopped == Stopped.UNREADABLE:
                raise unreadable(images.path(index), filled.error_number)
            if filled.stopped == Stopped.WRONG_SIZE:
                raise wrong_size(self._context, self._shape, index, *filled.size)
            if filled.stopped == Stopped.NOT_HERE:
                encoded = None if read is None else read[position]
                indices[position], more = self._make(index, int(epochs[position]), slots[position], encoded, failures)
                num_bytes += more
                num_broken = 0
                position += 1
                continue
            failures.append((index, filled.reason))
            num_broken += 1
            if num_broken == min(MOST_REPLACEMENTS, len(images)):
                raise CaseFailed(failure_list(failures, len(failures), images))
            indices[position] = (index + 1) % len(images)
            if read is not None:
                read[position] = read_image(self._context, int(indices[position]), clock)
        return num, num_bytes

    def _num_at_once(self, indices: NDArray[np.int64]) -> int:
        sizes = self._images.sizes[indices[:MOST_AT_ONCE]]
        return max(1, int(np.searchsorted(np.cumsum(sizes), BYTES_AT_ONCE, side="right")))

    def _make_slowly(
        self,
        indices: NDArray[np.int64],
        epochs: NDArray[np.int64],
        slots: NDArray[Any],
        read: list[bytes] | None,
        failures: list[tuple[int, str]],
    ) -> tuple[int, int]:
        """As `_fill`, step by step for one sample after another: decode, then crop and resize."""
        num_bytes = 0
        for position, encoded in enumerate(read or [None]):
            index, epoch = int(indices[position]), int(epochs[position])
            indices[position], size = self._make(index, epoch, slots[position], encoded, failures)
            num_bytes += size
        return len(read or [None]), num_bytes

    def _make(
        self, index: int, epoch: int, slot: NDArray[Any], encoded: bytes | None, failures: list[tuple[int, str]]
    ) -> tuple[int, int]:
        """Make sample `index`, or the next one that can be decoded. Returns its index and the bytes read."""
        clock = self.clock
        num_bytes = 0

        def make(number: int) -> None:
            nonlocal encoded, num_bytes
            one, encoded = encoded, None
            if one is None:
                one = read_image(self._context, number, clock)
            num_bytes += len(one)
            clock.add_pages(len(one))
            self._augment(number, epoch, self._decode(one), slot)

        index, _ = first_decodable(self._images, index, failures, make)
        return index, num_bytes

    def make_from(self, encoded: bytes, index: int, epoch: int, slot: NDArray[Any]) -> None:
        """Make sample `index` from bytes that the caller has read (`read_ns` and `page_bytes` are the caller's).

        Raises:
            DecodeError: they are no complete image, or one too narrow to be resized; its time counts as decoding.
            CaseFailed: it has another size, with `full`.
        """
        if self._filler is not None and self._fill_from(encoded, index, epoch, slot):
            return
        self._augment(index, epoch, self._decode(encoded), slot)

    def _fill_from(self, encoded: bytes, index: int, epoch: int, slot: NDArray[Any]) -> bool:
        """`make_from` by the decoder's filler; False where that cannot read this kind of picture."""
        assert self._filler is not None
        out = slot[None] if self._normalize is None else self._scratch[:1]
        filled = self._filler.fill([encoded], np.array([index]), np.array([epoch]), out, in_memory=True)
        self.clock.decode_ns += filled.decode_ns
        self.clock.augment_ns += filled.augment_ns
        if filled.stopped == Stopped.NOT_HERE:
            return False
        if filled.stopped == Stopped.WRONG_SIZE:
            raise wrong_size(self._context, self._shape, index, *filled.size)
        if filled.stopped is not None:
            raise DecodeError(filled.reason)
        if self._normalize is not None:
            begun = time.perf_counter_ns()
            self._normalize(out[0], slot)
            self.clock.augment_ns += time.perf_counter_ns() - begun
        return True

    def _decode(self, encoded: bytes) -> Any:
        begun = time.perf_counter_ns()
        try:
            return self._decoder.decode(encoded)
        finally:
            self.clock.decode_ns += time.perf_counter_ns() - begun

    def _augment(self, index: int, epoch: int, pixels: Any, slot: NDArray[Any]) -> None:
        begun = time.perf_counter_ns()
        geometry = sample_geometry(self._context, self._shape, *self._decoder.size(pixels), epoch, index)
        if self._normalize is None:
            self._decoder.crop_resize(pixels, geometry, slot)
        else:
            self._decoder.crop_resize(pixels, geometry, self._scratch[0])
            self._normalize(self._scratch[0], slot)
        self.clock.augment_ns += time.perf_counter_ns() - begun


def first_decodable(
    images: ImageIndex, index: int, failures: list[tuple[int, str]], make: Callable[[int], T]
) -> tuple[int, T]:
    """What `make` gives for image `index`, or for the next one that can be decoded; and that one's index. Broken ones
    are added to `failures`.

    Raises:
        CaseFailed: too many in a row are broken.
    """
    for _ in range(min(MOST_REPLACEMENTS, len(images))):
        try:
            return index, make(index)
        except DecodeError as error:
            failures.append((index, str(error)))
            index = (index + 1) % len(images)
    raise CaseFailed(failure_list(failures, len(failures), images))


def sample_geometry(
    context: LoaderContext, shape: tuple[int, int], height: int, width: int, epoch: int, index: int
) -> Geometry:
    """The part of a picture of height × width pixels that sample `index` of an epoch uses.

    Raises:
        CaseFailed: with `full` the picture is not of `shape`.
        DecodeError: it is too narrow to be resized.
    """
    if context.input_size is None and (height, width) != shape:
        raise wrong_size(context, shape, index, height, width)
    if context.mode == "train":
        return train_geometry(height, width, context.input_size, SampleRandom(context.seed, epoch, index))
    return infer_geometry(height, width, context.input_size)


def wrong_size(context: LoaderContext, shape: tuple[int, int], index: int, height: int, width: int) -> CaseFailed:
    return CaseFailed(
        f"--input-size full needs images of one size, but {context.images.path(index)} is {width}×{height} and "
        f"the first is {shape[1]}×{shape[0]}; make them equal with `loaderbench dataset derive`"
    )


def check_end(encoded: bytes) -> None:
    """Reject truncated files, for decoders that would make a picture of one.

    Raises:
        DecodeError: no end-of-image marker within the last TAIL_BYTES.
    """
    if b"\xff\xd9" not in encoded[-TAIL_BYTES:]:
        raise DecodeError("truncated: no end-of-image marker" if encoded else "empty file")


def failure_list(failures: list[tuple[int, str]], num_read: int, images: ImageIndex) -> str:
    """One line that names the broken images, at most MOST_NAMES_LISTED of them, by their names within the data set."""
    named = dict(failures)
    shown = [
        f"{os.path.relpath(images.path(index), images.root)} ({reason})"
        for index, reason in list(named.items())[:MOST_NAMES_LISTED]
    ]
    more = f" and {len(named) - len(shown)} more" if len(named) > len(shown) else ""
    return f"{len(failures)} of {num_read} images could not be decoded: {', '.join(shown)}{more}"


def most_broken(allowed: float, num_read: int, num_images: int) -> float:
    """Most images of `num_read` that may be broken where the fraction `allowed` of all may be.

    Until all were read, CHANCE standard deviations of a Poisson distribution more: many streams begin anew in a run,
    and each asks behind every batch.
    """
    most = allowed * num_read
    return most if num_read >= num_images else most + CHANCE * most**0.5


def check_broken(failures: list[tuple[int, str]], num_read: int, images: ImageIndex, allowed: float) -> None:
    """Raises CaseFailed where surely more than the fraction `allowed` are broken, by the `num_read` images read."""
    if len(failures) > most_broken(allowed, num_read, len(images)):
        raise CaseFailed(
            f"{failure_list(failures, num_read, images)}; at most {100 * allowed:g} % are allowed (--max-failures); "
            "`loaderbench dataset scan` names all"
        )


class FailureLimit:
    """Counts broken images in the consuming process and ends the case where they are surely too many.

    Judged from JUDGED_FROM images on, or one epoch of a smaller set: one early failure says nothing.
    """

    def __init__(self, context: LoaderContext) -> None:
        self._images = context.images
        self._most_fraction = context.max_failure_fraction
        self._judged_from = min(JUDGED_FROM, len(context.images))
        self._num_read = 0
        self._failures: list[tuple[int, str]] = []

    def add(self, num_samples: int, failures: tuple[tuple[int, str], ...] | list[tuple[int, str]]) -> None:
        """Count one delivered batch.

        Raises:
            CaseFailed: more than `max_failure_fraction` of the images are broken, by those read so far.
        """
        self._num_read += num_samples + len(failures)
        self._failures.extend(failures)
        if self._num_read < self._judged_from:
            return
        check_broken(self._failures, self._num_read, self._images, self._most_fraction)
