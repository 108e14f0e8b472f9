"""A case's images, device and workload, opened, and its loaders, built on demand."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from loaderbench import plugins
from loaderbench.cases.case import Case
from loaderbench.devices.base import Device
from loaderbench.devices.select import open_device
from loaderbench.errors import ConfigError
from loaderbench.images.shards import DataSet, open_data_set
from loaderbench.loaders import fetch
from loaderbench.loaders.base import Loader, LoaderContext, Slowdown
from loaderbench.loaders.read_log import ReadLog
from loaderbench.recording.progress import Phase, Report
from loaderbench.running.cache import OnDone
from loaderbench.workloads import build_workload
from loaderbench.workloads.base import Workload


def once_a_second(report: Report) -> Callable[[str], None]:
    """Reports a phase, at most once a second: a supervisor that hears nothing gives up."""
    said = time.monotonic()

    def on_progress(phase: str) -> None:
        nonlocal said
        if time.monotonic() - said > 1:
            said = time.monotonic()
            report(Phase(phase))

    return on_progress


def progress_of(report: Report) -> Callable[[str], OnDone]:
    """A factory: for the name of a long task over the files, the function that reports its progress."""

    def of(what: str) -> OnDone:
        progress = once_a_second(report)
        return lambda done, total: progress(f"{what}: {done:,} of {total:,}")

    return of


def loader_context(case: Case, data: DataSet, *, gpu: int | None) -> LoaderContext:
    """What the case's loader is told, over `data`."""
    subject, feed, step, effort = case.subject, case.feed, case.step, case.effort
    return LoaderContext(
        images=data.images,
        shards=data.shards,
        batch_size=step.batch_size,
        workers=feed.workers,
        prefetch=feed.prefetch,
        decoder=feed.decoder,
        input_size=step.input_size,
        mode=step.mode,
        output=feed.output,
        seed=effort.seed,
        gpu=gpu,
        keep_evictable=subject.cache != "warm",
        max_failure_fraction=effort.max_failure_fraction,
        decoder_options=feed.all_decoder_options,
    )


def part_of(data: DataSet, case: Case) -> DataSet:
    """The images of the case's shard; all without one.

    Raises:
        ConfigError: they are in containers, or too few.
    """
    if case.subject.shard is None:
        return data
    if data.shards is not None:
        raise ConfigError(
            f"--loader {case.feed.loader} reads container files, which ranks cannot share: use another loader"
        )
    rank, ranks = map(int, case.subject.shard.split("/"))
    if len(data.images) < ranks:
        raise ConfigError(
            f"{case.subject.dataset} has {len(data.images)} images for {ranks} ranks: use a larger set or fewer ranks"
        )
    return DataSet(data.images.select(np.arange(rank, len(data.images), ranks)))


class Rig:
    """Everything that a case runs on. Closed with `stack`.

    `slowdown`: work of known cost to build in; None in every real run.
    """

    def __init__(self, case: Case, stack: ExitStack, report: Report, slowdown: Slowdown | None = None) -> None:
        self.case, self._stack, self._slowdown = case, stack, slowdown
        self._module = plugins.LOADERS.load(case.feed.loader)
        self.traits = plugins.LOADERS.find(case.feed.loader).traits
        self.opened_s: dict[str, float] = {}
        """Seconds of each part of this, by the names of deadline.PHASES."""
        begun_s = time.perf_counter()
        report(Phase("listing the images"))
        progress = once_a_second(report)
        self.data = open_data_set(
            case.subject.dataset,
            self.traits.format,
            lambda num: progress(f"listing the images: {num:,} so far"),
        )
        self.data = part_of(self.data, case)
        self.images = self.data.images
        plugins.check_formats(case.feed, self.images.formats, case.subject.dataset)
        listed_s = time.perf_counter()
        report(Phase("opening the device"))
        size = case.step.input_size or case.subject.resolution  # None: uncropped images of no stated resolution
        self.device: Device = open_device(case.step, size)
        stack.callback(self.device.close)
        opened_s = time.perf_counter()
        num_classes = len(self.images.classes)
        self.workload: Workload = build_workload(
            case.step, self.device, image_size=size, seed=case.effort.seed, num_classes=num_classes
        )
        built_s = time.perf_counter()
        self.opened_s = {"list": listed_s - begun_s, "device": opened_s - listed_s, "model": built_s - opened_s}
        self._pin = self.device.pins_memory
        if slowdown is not None:
            self._pin = self._pin and not slowdown.pageable
            self.device = slowdown.wrap_device(self.device)
            self.workload = slowdown.wrap_workload(self.workload, self.device)

    @property
    def buffer_batches(self) -> int:
        """Batches that are prepared ahead when the loader rests."""
        return self.traits.buffer_batches(self.case.feed)

    def context(self, data: DataSet, *, evict: bool) -> LoaderContext:
        """The context of the case's loader over `data`. `evict`: drop each file's pages once read."""
        context = loader_context(self.case, data, gpu=self.device.gpu)
        return replace(context, pin_memory=self._pin, evict_after_read=evict, slowdown=self._slowdown)

    def build_loader(self, data: DataSet, *, evict: bool, log: ReadLog | None = None) -> Loader:
        """The case's loader over `data`. `log`: receives when each file was read."""
        options = plugins.parse_options(self._module, self.case.feed.loader_options)
        context = self.context(data, evict=evict)
        loader: Loader = self._module.build(options, context if log is None else replace(context, reads=log))
        self._stack.callback(loader.close)
        return loader

    def build_fetch(self, data: DataSet, *, evict: bool, readers: int, log: ReadLog) -> Loader:
        """A loader whose `readers` threads only read the same files. `log`: receives when each was read."""
        context = replace(self.context(data, evict=evict), workers=readers, reads=log)
        loader: Loader = fetch.FetchLoader(context)
        self._stack.callback(loader.close)
        return loader
