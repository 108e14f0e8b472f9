"""Free-running rates of the loaders against plain torchvision ImageFolder + DataLoader of the same settings.

    python benchmarks/loader_rates.py DATASET [--workers 2] [--rounds 8] [--output float32]
    python benchmarks/loader_rates.py DATASET --stage-clocks | --read-log

DATASET is an ImageFolder tree. Every round runs each contestant once for a few seconds, in turn, after
a warm-up of its whole queue, with the files in the page cache; the ratio is of the medians of per-round
ratios to the reference, with a 95 % interval over the rounds. The reference is what torchvision's
training script does: RandomResizedCrop, RandomHorizontalFlip, ToTensor, Normalize, default collate.

--read-log measures what telling each read of a file costs: the same files of a memory that holds them, read with and
without, in turn.

--stage-clocks measures what the stage clocks cost: the serial and the multiprocess loader with the clocks
against the same loaders with the clocks taken out.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from turns import come_to_rest, cpu_s, median_interval, spread

from loaderbench import plugins
from loaderbench.images.index import index_images
from loaderbench.loaders import samples
from loaderbench.loaders.base import LoaderContext
from loaderbench.loaders.transform import IMAGENET_MEAN, IMAGENET_STD, resize_shorter_side

Contestant = Callable[[], Iterator[Any]]


def script_transform(size: int, output: str, mode: str) -> transforms.Compose:
    """What a script gives to ImageFolder."""
    steps: list[Any] = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
    if mode == "infer":
        steps = [transforms.Resize(resize_shorter_side(size)), transforms.CenterCrop(size)]
    if output == "float32":
        steps += [transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    else:
        steps.append(transforms.PILToTensor())
    return transforms.Compose(steps)


def reference(arguments: argparse.Namespace, workers: int, mode: str = "train") -> Contestant:
    """torchvision ImageFolder + DataLoader, endless."""
    transform = script_transform(arguments.input_size, arguments.output, mode)
    # allow_empty: a conversion inside the tree (`dataset convert`) looks like a class without images.
    dataset = ImageFolder(arguments.dataset, transform, allow_empty=True)
    loader = DataLoader(
        dataset,
        arguments.batch_size,
        sampler=torch.utils.data.RandomSampler(dataset, num_samples=10**7, replacement=True),
        num_workers=workers,
        persistent_workers=False,
        prefetch_factor=arguments.prefetch if workers else None,
    )
    return lambda: iter(loader)


def ours(
    arguments: argparse.Namespace, name: str, decoder: str | None, stack: ExitStack, mode: str = "train", **options: str
) -> Contestant:
    context = LoaderContext(
        images=index_images(arguments.dataset),
        batch_size=arguments.batch_size,
        workers=0 if name == "serial" else arguments.workers,
        prefetch=arguments.prefetch,
        decoder=decoder,
        input_size=arguments.input_size,
        mode=mode,
        output=arguments.output,
        seed=0,
    )
    module = plugins.LOADERS.load(name)
    lasting = {"persistent_workers": False} if name == "multiprocess" else {}
    loader = module.build(module.Options(**lasting, **options), context)
    stack.callback(loader.close)
    epochs = itertools.count(step=1000)  # other crops in each turn, as on the other side
    return lambda: loader.batches(next(epochs))


def rate(
    contestant: Contestant, seconds: float, num_warmup: int, batch_size: int, at_once: int = 1
) -> tuple[float, float]:
    """(images/s, CPU seconds an image), the queue's first fill left out. Returns when the contestant is at rest.

    `at_once`: batches between two looks at the clock. That of all workers, where one takes seconds.
    """
    stream = contestant()
    for _ in itertools.islice(stream, num_warmup):
        pass
    begun_cpu, begun, num_batches = cpu_s(), time.perf_counter(), 0
    while (elapsed := time.perf_counter() - begun) < seconds:
        for _ in range(at_once):
            next(stream)
        num_batches += at_once
    used_s = cpu_s() - begun_cpu
    close = getattr(stream, "close", None)
    if close is not None:
        close()
    del stream  # ends DataLoader's workers
    come_to_rest()
    num_images = num_batches * batch_size
    return num_images / elapsed, used_s / num_images


def compare(contestants: dict[str, Contestant], against: dict[str, str], arguments: argparse.Namespace) -> None:
    """Run all in turn, print rates and the ratios of each to the one it is held against."""
    num_warmup = max(1, arguments.workers * arguments.prefetch) + 1
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(arguments.rounds):
        order = list(contestants)
        for name in order if number % 2 == 0 else reversed(order):
            warmup = 1 if "serial" in name or "w0" in name else num_warmup
            rates[name].append(rate(contestants[name], arguments.seconds, warmup, arguments.batch_size)[0])
    for name, values in rates.items():
        line = f"{name:32s} {np.median(values):8.0f} images/s"
        if name in against:
            ratios = np.array(values) / np.array(rates[against[name]])
            line += f"   {spread(median_interval(ratios))} × {against[name]}"
        print(line)


class NoClock(samples.SpanClock):
    """Clocks that never look: what the stage clocks are compared with."""

    def begin(self) -> None: ...

    def end(self) -> Any:
        return np.zeros(len(samples.SPAN_FIELDS), dtype=np.int64)

    def add_pages(self, num_bytes: int) -> None: ...


class NoTime:
    """The module `time`, standing still."""

    perf_counter_ns = staticmethod(lambda: 0)


def without_clocks(contestant: Contestant) -> Contestant:
    """The same with the clocks taken out while it runs (workers are forked with them taken out)."""

    def run() -> Iterator[Any]:
        no_clock = mock.patch("loaderbench.loaders.torch_dataset.SpanClock", NoClock)
        with mock.patch.object(samples, "time", NoTime), no_clock:
            stream = contestant()
            try:
                yield from stream
            finally:
                stream.close()  # type: ignore[attr-defined]

    return run


def cost_of_read_log(arguments: argparse.Namespace) -> None:
    """Print the ns that a read takes more because it is told."""
    images = index_images(arguments.dataset)
    context = LoaderContext(images, 64, 0, 0, None, 224, "infer", "uint8", 0)
    now, log = time.perf_counter_ns, context.reads
    rounds = []
    for _ in range(arguments.rounds):
        differences = []
        for index in range(len(images)):
            samples.read_file(images.path(index))
            begun = now()
            now()  # one of the two that the stage clocks need; read_file has the second, read_image three
            samples.read_file(images.path(index))
            between = now()
            samples.read_image(context, index)
            differences.append(now() - between - (between - begun))
        rounds.append(float(np.median(differences)))
        log.take()
    begun = now()
    for _ in range(100_000):
        log.add(1, 2, 3, 4, 5)
    alone = (now() - begun) / 1e5
    value, low, high = median_interval(np.array(rounds))
    print(f"a read that is told takes {value:.0f} ns more [{low:.0f}, {high:.0f}]; the log alone {alone:.0f} ns")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--input-size", type=int, default=224)
    parser.add_argument("--output", choices=("float32", "uint8"), default="float32")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--stage-clocks", action="store_true")
    parser.add_argument("--read-log", action="store_true")
    arguments = parser.parse_args()
    if arguments.read_log:
        cost_of_read_log(arguments)
        return
    with ExitStack() as stack:
        if arguments.stage_clocks:
            contestants: dict[str, Contestant] = {}
            against = {}
            for name in ("serial", "multiprocess"):
                contestants[name] = ours(arguments, name, "pillow", stack)
                contestants[f"{name}, no clocks"] = without_clocks(ours(arguments, name, "pillow", stack))
                against[name] = f"{name}, no clocks"
        else:
            plain, plain_serial = f"torchvision w{arguments.workers}", "torchvision w0"
            contestants = {
                plain_serial: reference(arguments, 0),
                "serial pillow": ours(arguments, "serial", "pillow", stack),
                plain: reference(arguments, arguments.workers),
                "multiprocess pillow": ours(arguments, "multiprocess", "pillow", stack),
                "multiprocess turbojpeg": ours(arguments, "multiprocess", "turbojpeg", stack),
                "threaded pillow": ours(arguments, "threaded", "pillow", stack),
                "threaded turbojpeg": ours(arguments, "threaded", "turbojpeg", stack),
                "dali": ours(arguments, "dali", None, stack),
            }
            against = {name: plain for name in contestants if name not in (plain, plain_serial)}
            against["serial pillow"] = plain_serial
        compare(contestants, against, arguments)


if __name__ == "__main__":
    main()
