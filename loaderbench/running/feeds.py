"""What feeds each arm's loop: the loaders of a case, its files in memory, and batches kept ready."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from loaderbench import plugins
from loaderbench.cases.arms import ARMS, Arm
from loaderbench.cases.case import Case
from loaderbench.findings.table import words
from loaderbench.images.index import ImageIndex
from loaderbench.images.shards import DataSet
from loaderbench.loaders import fetch
from loaderbench.loaders.base import Batch, Loader
from loaderbench.loaders.read_log import ReadLog
from loaderbench.plain import JsonObject
from loaderbench.recording.facts import CopyFacts, LoaderFacts, StartupFacts, Table
from loaderbench.recording.progress import Phase, Report
from loaderbench.running.cache import RamCopy
from loaderbench.running.deadline import LEAST_MOVED_S, Deadline
from loaderbench.running.foresight import foreseen
from loaderbench.running.rig import Rig, progress_of
from loaderbench.running.streams import Stream, close, come_to_rest
from loaderbench.samplers.process_io import pss_of

COPY_PART = 0.25
"""Fraction of `max_bytes` for the copy in memory."""
COPY_PART_OF_TIME, COPY_S = 0.15, 3.0
"""The copy in memory ends after this fraction of the measuring time, and this many seconds: a batch is enough, and the
first verdict waits for it."""
COPY_BATCHES = 128
"""Batches of images that are copied into memory: a large set is not copied completely."""
NUM_HOST_BATCHES = 3
"""Ready batches that the `host` arm cycles through, so that no batch stays in the processor's cache."""
FIRST_BATCHES_S = 4.0
"""From so many seconds on the first batch is enough where the run has a limit: large images take long to decode."""
REST_S = 0.5
"""Most seconds for a loader to fill its queue before another arm opens."""
WINDOWS = (*ARMS, Arm.PREP)
"""Arms whose windows may share a stream: those of a round."""


class Feeds:
    """The sources of batches of one case, each made when it is first needed and kept. Closed with `stack`."""

    def __init__(self, rig: Rig, stack: ExitStack, report: Report, deadline: Deadline) -> None:
        self._rig, self._stack, self._report, self._case = rig, stack, report, rig.case
        self._deadline = deadline
        self._build_s: dict[Arm, float] = {}
        self._loaders: dict[Arm, Loader] = {}
        self._read_logs: dict[Arm, ReadLog] = {}
        self._open: dict[Arm, Stream] = {}
        self._epoch = 0
        self.ram: RamCopy | None = None
        self._ready: list[Batch] = []
        self.first_spans: list[NDArray[np.int64]] = []
        """Of the batches that were taken for the arms without a loader, where it tells them."""
        self._resident: Batch | None = None
        self._pinned: bool | None = None
        self.process_s: float | None = None
        self.open_s: float | None = None
        """What came before the loaders, in seconds."""
        self._worker_memory: tuple[int | None, str | None] = (None, words("real_was_not_measured", {}))
        loader = self.loader(Arm.REAL)
        self.reads_files, self.owns_transfer = loader.decodes, loader.owns_transfer
        self.num_readers = fetch.readers_of(loader, self._case.feed.lanes)
        """Files that the loader reads at once."""

    def loader(self, arm: Arm) -> Loader:
        """The loader that feeds an arm: over the data set's files, over those in memory, or the one that only reads."""
        key = _key(arm)
        if key not in self._loaders:
            begun = time.perf_counter_ns()
            cold = self._case.subject.cache == "cold"
            log = self._read_logs[key] = ReadLog()
            if key is Arm.FETCH:
                self._loaders[key] = self._rig.build_fetch(
                    self._rig.data, evict=cold, readers=self.num_readers, log=log
                )
            elif key is Arm.RAM:
                self._loaders[key] = self._rig.build_loader(self.data_of(Arm.RAM), evict=False, log=log)
            else:
                self._loaders[key] = self._rig.build_loader(self._rig.data, evict=cold, log=log)
            self._build_s[key] = (time.perf_counter_ns() - begun) / 1e9
        return self._loaders[key]

    def take_reads(self, arm: Arm) -> Table:
        """The reads since the last call of the loader that feeds an arm, [R, len(READ_FIELDS)]: empty where it does not
        tell, and for arms without a loader."""
        log = self._read_logs.get(_key(arm)) if arm.is_fed else None
        return (ReadLog() if log is None else log).take()

    def data_of(self, arm: Arm) -> DataSet:
        """The files that an arm reads."""
        return self.ram.data if self.ram is not None and arm.source == "memory" else self._rig.data

    @property
    def copy_most_s(self) -> float:
        """How long the copy in memory may take."""
        return min(COPY_S, COPY_PART_OF_TIME * self._case.effort.duration_s)

    def copy_to_memory(self) -> None:
        """Copy images into memory, for the arms that read them there, unless that was done."""
        if self.ram is not None:
            return
        what = "copying images into memory"
        self._report(Phase(what))
        in_files = self._rig.data.shards is None
        least = min(self._case.step.batch_size if in_files else 2 * self._case.feed.lanes, len(self._rig.data.files))
        copy = RamCopy(
            self._rig.data,
            self._batch_bytes(),
            self._copy_bytes(),
            progress_of(self._report)(what),
            until=self._deadline.until(self.copy_most_s),
            at_least=least,
            evict_sources=self._case.subject.cache == "cold",
        )
        num_bytes = least * float(self._rig.data.files.sizes.mean())

        def on_rate(bytes_per_s: float, passed_s: float) -> bool:
            whole_s = num_bytes / bytes_per_s
            if whole_s - self.copy_most_s < LEAST_MOVED_S:
                return False
            copied = f"{least} {'images' if in_files else 'containers'} into memory"
            why = f"files come at {bytes_per_s / 1e6:.2g} MB/s: copying {copied} takes {whole_s:.0f} s"
            self._deadline.extend(whole_s - self.copy_most_s, why)
            return True

        with foreseen(on_rate):
            self.ram = self._stack.enter_context(copy)

    def _copy_bytes(self) -> int:
        """Most bytes to copy into memory: enough that no image repeats within a window."""
        data, case = self._rig.data, self._case
        # Each worker needs containers of its own, which may hold more than that many batches.
        enough = max(
            int(COPY_BATCHES * case.step.batch_size * data.sample_page_bytes),
            2 * case.feed.lanes * int(data.files.sizes.max()),
        )
        most = case.effort.max_bytes
        return enough if most is None else min(enough, int(COPY_PART * most))

    def _batch_bytes(self) -> int:
        side = self._case.step.input_size or 1024
        pixel = 4 if self._case.feed.output == "float32" else 1
        return self._case.step.batch_size * 3 * side * side * pixel * (self._rig.buffer_batches + 4)

    def collect_ready(self) -> None:
        """Take real batches for the arms that are not fed by a loader; they have the loader's own shape and type."""
        self._report(Phase("starting the loader"))
        loader = self.loader(Arm.RAM if self.ram is not None else Arm.REAL)
        if not set(self._case.effort.arms) & {Arm.DEVICE, Arm.HOST}:
            return
        device = self._rig.device
        until_s = self._deadline.until(FIRST_BATCHES_S) if self._case.effort.is_limited else math.inf
        stream = loader.batches(self._epoch)
        first = next(stream)
        if device.pins_memory and not self.owns_transfer:
            self._pinned = bool(first.inputs.is_pinned())
        kept = [_copy_of(first)]
        self.first_spans += [] if first.spans is None else [first.spans]
        while len(kept) < NUM_HOST_BATCHES and time.perf_counter() < until_s:
            batch = next(stream)
            kept.append(_copy_of(batch))
            self.first_spans += [] if batch.spans is None else [batch.spans]
        close(stream)
        if not self.owns_transfer:
            for batch in kept:
                batch.inputs, batch.targets = device.pin(batch.inputs), device.pin(batch.targets)
        self._ready = kept
        self._resident = first = kept[0]
        if not self.owns_transfer:
            inputs, targets = device.copy_in(first.inputs, first.targets)
            device.synchronize()
            self._resident = Batch(inputs, targets, first.num_samples, 0)

    @property
    def resident(self) -> Batch:
        """One batch that stays on the device."""
        assert self._resident is not None, "no arm needs one"
        return self._resident

    def stream(self, arm: Arm) -> Stream:
        """The stream for a window of an arm: the one that its loader has open, or a new one."""
        if arm.source == "resident":
            return Stream(cycle([self.resident]))
        if arm.source == "ready":
            return Stream(cycle(self._ready))
        kept = self._open.get(_key(arm))
        if kept is not None:
            kept.resumed_ns = time.perf_counter_ns()
            return kept
        loader = self.loader(arm)
        self._epoch += 1
        stream = self._open[_key(arm)] = Stream(loader.batches(self._epoch), loader)
        return stream

    def end(self, arm: Arm, stream: Stream) -> Table | None:
        """End the stream of an arm. Returns the spans of what it had ready; None where the loader does not tell."""
        if self._open.get(_key(arm)) is stream:
            del self._open[_key(arm)]
        return stream.close()

    def rest(self, arm: Arm | None = None) -> None:
        """Bring open streams to rest before a window of `arm` opens: a loader that was ahead of its arm fills its queue
        and then sleeps; the stream of any other ends. None: all of them end."""
        feeding = None if arm is None or not arm.is_fed else _key(arm)
        for key, stream in [*self._open.items()]:
            if key is feeding and arm is not None and arm.decodes and arm in WINDOWS:
                continue
            if arm not in WINDOWS or stream.pace != "full" or not come_to_rest(REST_S):
                del self._open[key]
                stream.close()

    def in_terms_of_the_data_set(self, message: str) -> str:
        """The message with the paths of copies in memory replaced by those of the user's own files."""
        return message if self.ram is None else message.replace(self.ram.data.images.root, self._rig.images.root)

    def path(self, images: ImageIndex, index: int) -> str:
        """The user's own file behind an image of `images`, which may be a copy in memory."""
        return self.in_terms_of_the_data_set(images.path(index))

    def startup_facts(self) -> StartupFacts:
        return StartupFacts(dict(self._build_s), self.process_s, self.open_s, dict(self._deadline.phases))

    def copy_facts(self, link_bytes_per_s: float | None) -> CopyFacts:
        batch = self._ready[0] if self._ready else None
        size = None if batch is None else int(batch.inputs.nbytes + batch.targets.nbytes)
        return CopyFacts(size, self._pinned, link_bytes_per_s)

    def read_worker_memory(self) -> None:
        """Take the memory of the worker processes that feed `real`, while they live. Those of the other arms' loaders
        are no part of what a user's run costs."""
        pids: Callable[[], list[int]] | None = getattr(self.loader(Arm.REAL), "worker_pids", None)
        if pids is None:
            self._worker_memory = (None, words("worker_processes_unknown", {}))
        else:
            known = pids()
            self._worker_memory = pss_of(known) if known else (None, words("workers_ended", {}))

    def loader_facts(self) -> LoaderFacts:
        loader = self.loader(Arm.REAL)
        describe: Callable[[], JsonObject] | None = getattr(loader, "describe", None)
        return LoaderFacts(
            decodes=self.reads_files,
            owns_transfer=self.owns_transfer,
            num_readers=self.num_readers,
            description={"loader": self._case.feed.loader} if describe is None else describe(),
            no_stage_times=getattr(loader, "no_stage_times", None),
            traits=self._rig.traits,
            alternatives=plugins.predictable_loaders(),
            workers_pss_bytes=self._worker_memory[0],
            no_workers_pss=self._worker_memory[1],
        )


def _key(arm: Arm) -> Arm:
    """The arm whose loader feeds `arm`."""
    return Arm.RAM if arm.source == "memory" else Arm.REAL if arm.decodes else Arm.FETCH


def _copy_of(batch: Batch) -> Batch:
    """A copy of a batch that outlives the loader's buffers."""
    return Batch(batch.inputs.clone(), batch.targets.clone(), batch.num_samples, batch.encoded_bytes)


def arms_of_a_round(case: Case, *, reads_files: bool, owns_transfer: bool, once: bool) -> tuple[Arm, ...]:
    """The arms of a round, in order. `once`: the data set's own cache state has been measured and is gone.

    `real` comes as soon as it can be compared, so that there is something to say early; `ram` behind it, since `real`
    may show that the storage has nothing to do.
    """
    wanted = set(case.effort.arms)
    arms = [arm for arm in (Arm.DEVICE,) if arm in wanted]
    if Arm.HOST in wanted and not owns_transfer:
        arms.append(Arm.HOST)
    if Arm.RAM in wanted and reads_files:
        arms.append(Arm.RAM)
    if Arm.REAL in wanted and not once:
        arms.insert(len(arms) - (Arm.RAM in arms), Arm.REAL)
    if Arm.FREE in wanted:
        arms.append(Arm.PREP if once else Arm.FREE)
    if reads_files and case.subject.cache == "cold" and {Arm.RAM, Arm.FREE} <= wanted:
        arms.append(Arm.PREP)
    if Arm.FETCH in wanted and reads_files and not once:
        arms.append(Arm.FETCH)
    return tuple(arms)
