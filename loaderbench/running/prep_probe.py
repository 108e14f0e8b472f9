"""What a sample costs in other decoders: a short measurement on the data set's own images, in memory.

Run once after the arms, in its own threads, for about PROBE_S seconds; longer where images take long to decode. The
advice "another decoder", "another loader", "decode at a smaller scale" and "more workers" predicts its gain from these
facts.
"""

from __future__ import annotations

import io
import math
import mmap
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import RandomResizedCrop

from loaderbench import plugins
from loaderbench.cases.case import OUTPUTS
from loaderbench.decoders.base import DecodeError, Decoder, PilDecoder, Stopped
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.loaders.base import LoaderContext
from loaderbench.loaders.multiprocess import free_shared_memory_bytes
from loaderbench.loaders.samples import make_decoder, output_shape, read_file, slot_filler
from loaderbench.loaders.torch_dataset import TORCH_TYPES
from loaderbench.loaders.torchvision_samples import compose, generator_kept, seed_for
from loaderbench.loaders.transform import Normalizer, SampleRandom, infer_geometry, train_geometry
from loaderbench.recording.facts import DecoderProbe, PrepProbe, ScaleProbe

PROBE_S = 0.6
ALONE_FRACTION = 0.5
"""Fraction of PROBE_S for one thread alone; the rest is for all processors at once."""
NUM_IMAGES, MIN_IMAGES = 32, 4
HANDOVER_IMAGES = 16
SCALES_S = 0.3
"""Seconds of making samples with and without `--decode-scale auto`, for each decoder that takes it."""
SCALE = "scale"
"""The decoder's option that `--decode-scale` sets."""


def probe_preparation(context: LoaderContext, num_cpus: int, until_s: float = math.inf) -> PrepProbe:
    """Measure the decoders that are installed on up to NUM_IMAGES of the images.

    `until_s`: when it must end, by time.perf_counter(): from then on one image in each decoder is enough, and how fast
    they are on all processors at once stays unknown. Only what scaling gives may take SCALES_S more.

    Finished samples are written into memory that is `shared` (as a worker process hands batches over), `private`
    (fresh each time) or `reused`.
    """
    encoded = _some_files(context)
    probes = {name: _Probe(context, decoder) for name, decoder in _decoders(context).items()}
    decoders: dict[str, DecoderProbe] = {}
    handover_s: dict[str, dict[str, float]] = {}
    stack_s: dict[str, dict[str, float]] = {}
    scales: dict[str, ScaleProbe] = {}
    good: list[tuple[int, bytes]] = []

    def alone() -> None:
        decoders.update(_alone(probes, encoded, good, until_s))
        shape = output_shape(context)
        handover_s.update({output: _handover_s(shape, output) for output in OUTPUTS})
        if any(one.as_torchvision_s for one in decoders.values()):
            stack_s.update({output: _stack_s(context, shape, output) for output in OUTPUTS})

    def scaled() -> None:
        for name in decoders:
            if plugins.DECODERS.find(name).traits.scales:
                scales[name] = _compare_scales(context, name, encoded, until_s + SCALES_S)

    num_threads = torch.get_num_threads()
    try:
        _in_threads([alone])
        for name, probe in probes.items() if good else ():
            if time.perf_counter() > until_s:
                break
            seconds = PROBE_S * (1 - ALONE_FRACTION) / len(probes)
            image_s, rate = _on_all_cpus(probe, good, num_cpus, seconds)
            decoders[name] = replace(decoders[name], all_cpus_image_s=image_s, all_cpus_rate=rate)
        _in_threads([scaled])
    finally:
        # Threads that start later inherit this setting: restore it.
        torch.set_num_threads(num_threads)
    return PrepProbe(num_cpus, decoders, handover_s, stack_s, scales)


def compare_scales(context: LoaderContext) -> ScaleProbe:
    """The data set's own samples in the case's decoder, which takes `--decode-scale`, with it and without."""
    return _compare_scales(context, context.decoder or "", _some_files(context), math.inf)


def _some_files(context: LoaderContext) -> list[tuple[int, bytes]]:
    """(index, bytes) of NUM_IMAGES of the images, or of all."""
    images = context.images
    chosen = np.random.default_rng(context.seed).permutation(len(images))[:NUM_IMAGES].tolist()
    return [(index, read_file(images.path(index))) for index in chosen]


def image_seconds(context: LoaderContext) -> float | None:
    """CPU seconds of the first image in the case's own decoder, the less of two tries, of which the first pays for its
    memory, too; None where it cannot be prepared."""
    probe = _Probe(context, make_decoder(context, context.decoder or ""))
    try:
        encoded = read_file(context.images.path(0))
        return min(probe.make(0, encoded) for _ in range(2))
    except DecodeError:
        return None  # the loader counts and names it


def _decoders(context: LoaderContext) -> dict[str, Decoder]:
    """The case's decoder and the others that are available here; those that can scale do so where the case does."""
    found: dict[str, Decoder] = {}
    own_traits = plugins.DECODERS.known().get(context.decoder or "")
    takes_scale = own_traits is not None and own_traits.scales
    scale = {key: value for key, value in context.decoder_options.items() if takes_scale and key == SCALE}
    for name, traits in plugins.DECODERS.known().items():
        own = name == context.decoder
        if not set(context.images.formats) <= set(traits.formats):
            continue
        if not own and traits.probed_as in found and not set(traits.needs.packages) & set(sys.modules):
            continue
        options = context.decoder_options if own else scale if traits.scales else {}
        try:
            found[name] = make_decoder(replace(context, decoder=name, decoder_options=options), name)
        except (UnavailableError, ConfigError):
            continue  # not installed here: nothing to advise
    return found


class _Probe:
    """One thread's work with one decoder."""

    def __init__(self, context: LoaderContext, decoder: Decoder) -> None:
        self._context, self._decoder = context, decoder
        shape = output_shape(context)
        self._scratch = np.empty((*shape, 3), dtype=np.uint8)
        self._filler = slot_filler(decoder, context, shape)

    @property
    def made(self) -> NDArray[np.uint8]:
        """The pixels of the image that `make` made last."""
        return self._scratch

    @property
    def pil_decoder(self) -> PilDecoder | None:
        """The decoder, if it is the case's own and gives PIL images: then it may work as torchvision's users do."""
        own = self._decoder.name == self._context.decoder
        return self._decoder if own and isinstance(self._decoder, PilDecoder) else None

    def as_torchvision(self, decoder: PilDecoder, index: int, encoded: bytes) -> dict[str, float]:
        """Output → CPU seconds of this thread for one image as torchvision's users make it, to its tensor."""
        context = self._context
        begun = time.thread_time_ns()
        image = decoder.load(io.BytesIO(encoded))
        common = time.thread_time_ns() - begun
        crop = None if context.input_size is None else _SameCrop(context.input_size)
        if crop is not None:
            crop.box = train_geometry(
                image.height, image.width, context.input_size, SampleRandom(context.seed, 0, index)
            )[:4]
        found: dict[str, float] = {}
        with generator_kept():
            for output in OUTPUTS:
                transform = compose(replace(context, output=output), crop)
                begun = time.thread_time_ns()
                seed_for(context, 0, index)
                transform(image)
                found[output] = (common + time.thread_time_ns() - begun) / 1e9
        return found

    def for_thread(self) -> _Probe:
        return _Probe(self._context, self._decoder)

    def make(self, index: int, encoded: bytes) -> float:
        """CPU seconds of this thread for one image: decoded, cropped, resized."""
        context, decoder = self._context, self._decoder
        begun = time.thread_time_ns()
        if self._filler is not None:
            place, epoch = np.array([index]), np.zeros(1, dtype=np.int64)
            filled = self._filler.fill([encoded], place, epoch, self._scratch[np.newaxis], in_memory=True)
            if filled.stopped is None:
                return (time.thread_time_ns() - begun) / 1e9
            if filled.stopped != Stopped.NOT_HERE:
                raise DecodeError(filled.reason)
        pixels = decoder.decode(encoded)
        height, width = decoder.size(pixels)
        if context.mode == "train":
            geometry = train_geometry(height, width, context.input_size, SampleRandom(context.seed, 0, index))
        else:
            geometry = infer_geometry(height, width, context.input_size)
        decoder.crop_resize(pixels, geometry, self._scratch[:height] if context.input_size is None else self._scratch)
        return (time.thread_time_ns() - begun) / 1e9


class _SameCrop(RandomResizedCrop):  # type: ignore[misc]
    """Draws a crop as torchvision does, and takes that of the other decoders' samples: what is told apart is the
    work, not the luck of a few crops."""

    box: tuple[int, int, int, int]

    def get_params(self, img: Image.Image, scale: list[float], ratio: list[float]) -> tuple[int, int, int, int]:
        super().get_params(img, scale, ratio)
        return self.box


def _in_threads(works: Sequence[Callable[[], None]]) -> None:
    """Run each in a thread of its own, with one torch thread as a loader's worker has; raises what the first raised."""
    errors: list[BaseException] = []

    def begin(work: Callable[[], None]) -> None:
        torch.set_num_threads(1)
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=begin, args=(work,), name="loaderbench-probe") for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _alone(
    probes: dict[str, _Probe], encoded: Sequence[tuple[int, bytes]], good: list[tuple[int, bytes]], until_s: float
) -> dict[str, DecoderProbe]:
    """One thread, the decoders in turn on each image, so that other load of the machine affects all.

    Adds to `good` the images that every decoder can decode. The first image is decoded once untimed, while
    libraries set up their tables; where that takes until `until_s`, they are little of it, and it counts.
    """
    seconds: dict[str, list[float]] = {name: [] for name in probes}
    as_torchvision: dict[str, list[dict[str, float]]] = {name: [] for name in probes}
    deadline = time.perf_counter() + PROBE_S * ALONE_FRACTION
    for number, one in enumerate([*encoded[:1], *encoded]):
        now_s = time.perf_counter()
        if (len(good) >= MIN_IMAGES and now_s > deadline) or (good and now_s > until_s):
            break
        try:
            spent = [probe.make(*one) for probe in probes.values()]
            slower = {
                name: probe.as_torchvision(decoder, *one)
                for name, probe in probes.items()
                if (decoder := probe.pil_decoder) is not None
            }
        except DecodeError:
            continue  # the loader counts and names it
        if number or time.perf_counter() > until_s:
            good.append(one)
            for kept, one_s in zip(seconds.values(), spent, strict=True):
                kept.append(one_s)
            for name, by_output in slower.items():
                as_torchvision[name].append(by_output)
    return {
        name: DecoderProbe(
            tuple(kept),
            as_torchvision_s={
                output: tuple(one[output] for one in as_torchvision[name]) for output in OUTPUTS if as_torchvision[name]
            },
        )
        for name, kept in seconds.items()
    }


def _compare_scales(
    context: LoaderContext, name: str, encoded: Sequence[tuple[int, bytes]], until_s: float
) -> ScaleProbe:
    """Each sample in turn with and without scaling, the first one untimed before; empty where none can be decoded."""
    options = context.decoder_options if name == context.decoder else {}
    off, auto = (
        _Probe(context, make_decoder(replace(context, decoder=name, decoder_options={**options, SCALE: scale}), name))
        for scale in ("off", "auto")
    )
    rows: list[tuple[float, float, float]] = []
    deadline = time.perf_counter() + SCALES_S
    for number, one in enumerate([*encoded[:1], *encoded]):
        now_s = time.perf_counter()
        if (len(rows) >= MIN_IMAGES and now_s > deadline) or (rows and now_s > until_s):
            break
        try:
            if number % 2:  # the first of both finds the file's bytes in no cache
                off_s, auto_s = off.make(*one), auto.make(*one)
            else:
                auto_s, off_s = auto.make(*one), off.make(*one)
        except DecodeError:
            continue  # the loader counts and names it
        if number or time.perf_counter() > until_s:
            rows.append((off_s, auto_s, float(np.abs(off.made.astype(np.int16) - auto.made).mean())))
    off_rows, auto_rows, difference = zip(*rows, strict=True) if rows else ((), (), ())
    return ScaleProbe(off_rows, auto_rows, difference)


def _on_all_cpus(
    probe: _Probe, encoded: Sequence[tuple[int, bytes]], num_cpus: int, seconds: float
) -> tuple[float, float]:
    """A thread on each processor, all at once: the speed of a processor when none is idle.

    Returns (mean CPU seconds an image, images/s of all together).
    """
    done: list[tuple[int, float]] = []
    deadline = time.perf_counter() + seconds

    def work(number: int) -> Callable[[], None]:
        mine = probe.for_thread()

        def run() -> None:
            count, spent = 0, 0.0
            while not count or time.perf_counter() < deadline:
                spent += mine.make(*encoded[(number + count) % len(encoded)])
                count += 1
            done.append((count, spent))

        return run

    works = [work(number) for number in range(num_cpus)]
    begun = time.perf_counter()
    _in_threads(works)
    wall = time.perf_counter() - begun
    images = sum(count for count, _ in done)
    return sum(spent for _, spent in done) / images, images / wall


def _ways(shape: tuple[int, int], output: str) -> dict[str, Callable[[], torch.Tensor]]:
    """Kind of memory → what allocates it for HANDOVER_IMAGES samples."""
    kind = TORCH_TYPES[output]
    num_bytes = HANDOVER_IMAGES * math.prod(shape) * 3 * kind.itemsize

    def shared() -> torch.Tensor:
        storage = torch.UntypedStorage._new_shared(num_bytes)  # type: ignore[no-untyped-call]
        return torch.empty(0, dtype=kind).set_(storage)

    def private() -> torch.Tensor:
        # A new mapping: the allocator would return the memory of the turn before, already faulted in.
        return torch.frombuffer(mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE), dtype=kind)

    return {"private": private} | ({"shared": shared} if num_bytes <= free_shared_memory_bytes() / 2 else {})


def _stack_s(context: LoaderContext, shape: tuple[int, int], output: str) -> dict[str, float]:
    """CPU seconds an image of stacking the tensors of samples into new memory, as the default collate does, and freeing
    it. `shared` is left out as in `_handover_s`."""
    transform = compose(replace(context, output=output, input_size=None, mode="infer"))
    samples = [transform(Image.new("RGB", shape[::-1])) for _ in range(HANDOVER_IMAGES)]

    def seconds(get: Callable[[], torch.Tensor]) -> float:
        begun = time.thread_time_ns()
        torch.stack(samples, out=get().view(HANDOVER_IMAGES, 3, *shape))
        return (time.thread_time_ns() - begun) / 1e9 / HANDOVER_IMAGES

    return {name: median(seconds(get) for _ in range(3)) for name, get in _ways(shape, output).items()}


def _handover_s(shape: tuple[int, int], output: str) -> dict[str, float]:
    """CPU seconds an image of allocating memory for finished samples, writing them into it, and freeing it.

    uint8 is resized straight into its place, so that only the memory costs time. `shared` is left out where
    /dev/shm has no room for it: a loader could not use it either.
    """
    normalize = Normalizer(*shape)
    pixels = np.zeros((*shape, 3), dtype=np.uint8)
    ways = _ways(shape, output)
    used = ways["private"]()
    ways["reused"] = lambda: used

    def seconds(get: Callable[[], torch.Tensor]) -> float:
        begun = time.thread_time_ns()
        for slot in get().view(HANDOVER_IMAGES, *pixels.shape).numpy():
            if output == "float32":
                normalize(pixels, slot)
            else:
                slot[...] = pixels
        slot = None  # drops the last reference: freeing the memory is part of the time
        return (time.thread_time_ns() - begun) / 1e9 / HANDOVER_IMAGES

    seconds(ways["reused"])  # pays for its page faults
    found = {name: median(seconds(get) for _ in range(3)) for name, get in ways.items()}
    if output == "uint8":
        return {name: max(0.0, one - found["reused"]) for name, one in found.items()}
    return found
