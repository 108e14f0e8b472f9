"""Jobs of a rank of `capacity`: a loader over its shard of the files, an emulated device, and steps beside the others.

The ranks meet over gloo (torch.distributed) on this machine's loopback. All stamps are of perf_counter_ns, on Linux
CLOCK_MONOTONIC: one clock for all processes of a machine (clock_gettime(2)).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed

from loaderbench import plugins
from loaderbench.cases.case import Case
from loaderbench.devices.emulated import sleep_until
from loaderbench.devices.rank_queue import RankQueue, rank_queue
from loaderbench.devices.select import open_device
from loaderbench.images.shards import DataSet, open_data_set
from loaderbench.loaders.base import MAX_STEPS_IN_FLIGHT, Batch, Loader
from loaderbench.loaders.read_log import ReadLog
from loaderbench.recording.capacity import RankPart
from loaderbench.recording.facts import READ, CeilingProbe
from loaderbench.recording.progress import Phase, Report
from loaderbench.running.cache import CacheKeeper
from loaderbench.running.ceiling import probe_ceiling
from loaderbench.running.jobs.table import (
    RankOpened,
    RankProbeRequest,
    RankRequest,
    RankRunRequest,
    Surveyed,
    SurveyRequest,
)
from loaderbench.running.peers import PeerGone
from loaderbench.running.rig import loader_context, once_a_second, progress_of
from loaderbench.running.streams import close
from loaderbench.running.supervisor import HANG_S
from loaderbench.samplers.cpu_window import CpuClock
from loaderbench.samplers.sources import FILES_LOOKED_AT, StorageCounter

LEAD_NS = 50_000_000
"""From the agreement on a start to it."""
LONGEST = 4.0
"""Times the seconds asked for after which a rank stops though it has fewer than the least steps."""
FEWEST_STEPS = 4
"""Of any look: a step that is left out and a window of two ends."""


class Rank:
    """What a rank keeps from look to look."""

    def __init__(self, case: Case, report: Report) -> None:
        torch.set_num_threads(1)  # a rank is one of many
        self.case = case
        report(Phase("listing the images"))
        say = once_a_second(report)
        self.data = open_data_set(case.subject.dataset, None, lambda num: say(f"listing the images: {num:,} so far"))
        self.size = case.step.input_size or case.subject.resolution
        self.counter = StorageCounter(case.subject.dataset, self.data.files.some_paths(FILES_LOOKED_AT))
        self.keeper = CacheKeeper(case.subject.cache, self.data, progress_of(report))
        self._module = plugins.LOADERS.load(case.feed.loader)

    def queue(self) -> RankQueue:
        """A device that has done nothing yet."""
        return rank_queue(self.case.step.device, self.case.step.batch_size, self.size)

    def shard(self, rank: int, ranks: int) -> DataSet:
        """Every `ranks`-th file."""
        return DataSet(self.data.images.select(np.arange(rank, len(self.data.images), ranks)))

    def loader(self, shard: DataSet, log: ReadLog) -> Loader:
        """The case's loader over a shard, which drops the pages of what it reads where the storage is to answer."""
        context = loader_context(self.case, shard, gpu=None)
        options = plugins.parse_options(self._module, self.case.feed.loader_options)
        made: Loader = self._module.build(
            options, replace(context, evict_after_read=self.case.subject.cache == "cold", reads=log)
        )
        return made


_ranks: dict[str, Rank] = {}
"""Key of the case → the rank of this process: one."""


def _rank(request: RankRequest, report: Report) -> Rank:
    key = request.case.key
    if key not in _ranks:
        _ranks[key] = Rank(request.case, report)
    return _ranks[key]


def open_rank(request: RankRequest, report: Report) -> RankOpened:
    """List the files, open the device, and take one batch, so that everything is imported.

    Raises:
        LoaderbenchError: something that the user can fix, in one line.
    """
    rank = _rank(request, report)
    queue = rank.queue()
    device = open_device(request.case.step, rank.size)
    report(Phase("taking a first batch"))
    loader = rank.loader(rank.shard(request.rank, request.max_ranks), ReadLog())
    try:
        stream = loader.batches()
        next(stream)
        close(stream)
    finally:
        loader.close()
    return RankOpened(device.describe(), queue.step_ns, queue.period_ns)


def survey_files(request: SurveyRequest, report: Report) -> Surveyed:
    """Look how much of the files is in memory; before a look to a cold storage evict what is."""
    rank = _rank(request, report)
    if request.before:
        report(Phase("emptying the page cache"))
        resident = rank.keeper.before_segment(evicts_own_reads=False)
    else:
        resident = rank.keeper.after_segment()
    return Surveyed(resident, rank.counter.read(), rank.counter.source, rank.counter.reason)


def probe_storage(request: RankProbeRequest, report: Report) -> CeilingProbe:
    """What the storage gives to growing numbers of readers, of the data set's own files."""
    rank = _rank(request, report)
    report(Phase("probing the storage"))
    return probe_ceiling(rank.data.files, counter=rank.counter, deadline_s=request.seconds)


def run_rank(request: RankRunRequest, report: Report) -> RankPart:
    """Steps on the rank's shard beside the other ranks.

    Raises:
        PeerGone: another rank is gone.
        LoaderbenchError: as the loader.
    """
    rank = _rank(request, report)
    shard, log = rank.shard(request.rank, request.ranks), ReadLog()
    loader = rank.loader(shard, log)
    try:
        with _met(request):
            turn = _Turn(request, rank.queue(), loader.batches(request.epoch))
            keeper = CacheKeeper(rank.case.subject.cache, shard)
            evicts = rank.case.subject.cache == "cold" and not loader.evicts_own_reads
            with keeper.evicting_behind(turn.indices if evicts else None):
                turn.run(report if request.rank == 0 else None)
    except RuntimeError as error:  # what gloo raises; a loader's own errors are LoaderbenchErrors
        raise PeerGone(
            f"this rank waited for another one, which is gone ({str(error).splitlines()[0][:200]})"
        ) from error
    finally:
        loader.close()
    reads = log.take()
    return RankPart(
        steps=turn.table(),
        num_images=len(shard.images),
        encoded_bytes=turn.encoded_bytes,
        num_reads=len(reads),
        read_s=float(reads[:, READ["open_ns"]].sum() + reads[:, READ["read_ns"]].sum()) / 1e9,
        cpu=turn.cpu,
        num_failures=turn.num_failures,
    )


@contextmanager
def _met(request: RankRunRequest) -> Iterator[None]:
    """All ranks in a process group for the block; nothing where there is one rank."""
    if request.ranks == 1:
        yield
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # of one machine, whatever its name resolves to
    store: Any = distributed.FileStore(request.meeting, request.ranks)  # type: ignore[attr-defined]
    distributed.init_process_group(
        "gloo",
        store=store,
        rank=request.rank,
        world_size=request.ranks,
        timeout=timedelta(seconds=HANG_S),
    )
    try:
        yield
    finally:
        distributed.destroy_process_group()


class _Turn:
    """The loop of one look: the host issues steps, at most MAX_STEPS_IN_FLIGHT ahead of the device."""

    def __init__(self, request: RankRunRequest, queue: RankQueue, batches: Iterator[Batch]) -> None:
        self._request, self._queue, self._batches = request, queue, batches
        self._joint = request.joint and request.ranks > 1
        self._rows: list[tuple[int, int, int]] = []
        self._start_ns = 0
        self.indices: list[NDArray[np.int64] | None] = []
        """Of the batches that came, for who evicts behind them."""
        self.encoded_bytes = self.num_failures = 0
        self.cpu: Any = None

    def run(self, report: Report | None) -> None:
        """From the common start until the time is over; `report`: of the one rank that tells how far all are."""
        say = None if report is None else once_a_second(report)
        clock, cpu = time.perf_counter_ns, CpuClock()
        in_flight: deque[tuple[Any, Any]] = deque()
        self._start_ns = free_ns = self._agreed_start()
        sleep_until(self._start_ns)
        cpu.begin()
        until_ns = self._start_ns + round(self._request.seconds * 1e9)
        last_ns = self._start_ns + round(LONGEST * self._request.seconds * 1e9)
        going = True
        while going:
            called = clock()
            batch = next(self._batches)
            returned = clock()
            end = self._queue.issue(batch.inputs.nbytes + batch.targets.nbytes)
            # The arrival is stamped by now: the collective only hands it to the others, and learns theirs.
            in_flight.append(self._told_to_others(end))
            self._keep(batch, called, returned, end)
            if len(in_flight) > MAX_STEPS_IN_FLIGHT:
                free_ns = self._ended(in_flight.popleft(), free_ns)
                sleep_until(free_ns)
                # All ranks know the same end of the step, so that all stop at the same one.
                ended = len(self._rows) - MAX_STEPS_IN_FLIGHT
                enough = free_ns >= until_ns and ended >= max(self._request.least_steps, FEWEST_STEPS)
                going = not enough and not (free_ns >= last_ns and ended >= FEWEST_STEPS)
                if say is not None:
                    say(f"{ended} steps, {(free_ns - self._start_ns) / 1e9:.0f} s")
        while in_flight:
            free_ns = self._ended(in_flight.popleft(), free_ns)
        self.cpu = cpu.end()
        close(self._batches)

    def _agreed_start(self) -> int:
        """The same instant for all ranks, when all are ready."""
        start = torch.tensor([time.perf_counter_ns() + LEAD_NS], dtype=torch.int64)
        if self._request.ranks > 1:
            distributed.all_reduce(start, op=distributed.ReduceOp.MAX)
        return int(start[0])

    def _told_to_others(self, end_ns: int) -> tuple[Any, Any]:
        """(the collective under way, where the largest earliest end will be)"""
        largest = torch.tensor([end_ns], dtype=torch.int64)
        if not self._joint:
            return None, largest
        return distributed.all_reduce(largest, op=distributed.ReduceOp.MAX, async_op=True), largest

    def _ended(self, step: tuple[Any, Any], free_ns: int) -> int:
        """When all devices are free of a step. `free_ns`: of the one before."""
        under_way, largest = step
        if under_way is not None:
            under_way.wait()
        return max(free_ns + self._queue.step_ns, int(largest[0]))

    def _keep(self, batch: Batch, called: int, returned: int, end: int) -> None:
        self._rows.append((called, returned, end))
        self.indices.append(batch.indices)
        self.encoded_bytes += batch.encoded_bytes
        self.num_failures += len(batch.failures)

    def table(self) -> NDArray[np.int64]:
        """As RankPart.steps."""
        return np.array(self._rows, dtype=np.int64).reshape(-1, 3) - self._start_ns
