"""One window of one arm: warmed up until the loader is steady, measured, its counters read around it."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.statistics import is_steady
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.devices.tracing import Recorder
from loaderbench.errors import CaseFailed, UnavailableError
from loaderbench.loaders.base import Loader
from loaderbench.recording.facts import (
    MOST_SLOWEST,
    MOST_SLOWEST_OF_REAL,
    READ,
    SPAN,
    STEP,
    HeldSteps,
    ImageFailure,
    ReadTimes,
    Segment,
    StorageWindow,
    Table,
    tells_idle,
)
from loaderbench.recording.progress import Report, SegmentDone, StepsDone
from loaderbench.running.alive import Pulse
from loaderbench.running.cache import CacheKeeper
from loaderbench.running.feeds import Feeds
from loaderbench.running.kernel_window import keep_log
from loaderbench.running.loop import StepLoop
from loaderbench.running.peers import ALONE, Peers
from loaderbench.running.read_times import read_times
from loaderbench.running.rig import Rig
from loaderbench.running.streams import Pace, Stream, goes_straight_on, is_as_before, pace_of
from loaderbench.samplers.cpu_window import CpuClock
from loaderbench.samplers.process_io import tree_read_bytes
from loaderbench.samplers.procfile import read_text
from loaderbench.samplers.sources import StorageCounter

MIN_WINDOW_STEPS, MAX_MIN_WINDOW_STEPS = 5, 64
FEWEST_STEPS = 2
"""Of a window on storage that takes seconds for a batch."""
LEAST_WINDOW = 2 + FEWEST_STEPS
"""Steps of the shortest window with one of warm-up and the one that begins late for the readings, besides those in
which each worker of a loader hands over once."""
LONG_STEP_S = 2.0
"""Of steps as long (a batch of images of many megapixels, or a storage of little), one round of the workers is warm-up
enough, and what reading the counters takes is nothing of the next one."""
MAX_WARMUP_S = 3.0
LONGEST_WINDOW_S = 10.0
WARMUP_PART = 0.4
"""Of the longest time that a window may take."""
LAST_ROUND_S = 1.0
"""Most seconds beyond the longest for the rest of the workers' last round."""
HELD_STEPS, MAX_HOLD_S = 3, 0.5
"""Steps of each `device` window that are held back until all their work is enqueued, and the longest hold (s)."""

TOLD_EVERY_NS = 30_000_000_000
"""After so long the steps done are told, as a sign of life, too."""

StageTimes = Mapping[str, tuple[int, int]]
WarmUp = Callable[[StepLoop, Loader | None], tuple[int, bool]]
"""Runs a loop's first steps: (their number, whether the loader is steady)."""


@dataclass(frozen=True)
class Length:
    """How long a window is."""

    target_s: float
    steps: int | None = None
    """Exact number of steps; None: until `target_s`, and at least a few."""
    longest_s: float = field(default=math.inf, compare=False)
    """Most seconds with the warm-up: a round of the workers and two steps are enough where they take as long."""


@dataclass(frozen=True)
class Known:
    """What is known of a window's stream before it opens."""

    pace: Pace | None = None
    """How the loader fed the arm's last window."""
    resumed_ns: int | None = None
    """When the stream went on; None: it is new."""

    @property
    def tells(self) -> bool:
        """Whether the window may open once its last round is as before. A new queue must be seen to fill."""
        return self.pace == "starved" or (self.pace == "full" and self.resumed_ns is not None)


UNKNOWN = Known()


@dataclass(frozen=True)
class Readings:
    """Counters at one end of a window."""

    storage: Mapping[str, int] | None
    characters: int
    process_read_bytes: int | None


@dataclass
class Windows:
    """Measures windows of one case, one after the other."""

    rig: Rig
    feeds: Feeds
    cache: CacheKeeper
    storage: StorageCounter
    report: Report
    most_steps: int = sys.maxsize
    """Most steps that a window may read from the storage."""
    log: Recorder | None = None
    """Records the windows of `real` themselves, where recording leaves the device's times as they are."""
    failures: list[ImageFailure] = field(default_factory=list)
    """Every read of an image that could not be decoded."""
    cpu: CpuClock = field(default_factory=CpuClock)
    peers: Peers = ALONE
    """They begin each window together."""
    pulse: Pulse = field(default_factory=Pulse)
    foreseeing: Callable[[Arm, int], AbstractContextManager[None]] = field(default=lambda arm, number: nullcontext())
    """What is open while a window of an arm in a round runs."""
    _paces: dict[Arm, Pace | None] = field(default_factory=dict)
    """How the loader fed the last window of each arm."""

    def fewest_steps(self) -> int:
        """The fewest steps of a window: two whole rounds of the workers, since these hand over in bursts."""
        return min(max(MIN_WINDOW_STEPS, 2 * self.rig.case.feed.workers), MAX_MIN_WINDOW_STEPS)

    @property
    def may_be_idle(self) -> bool:
        """Whether it can turn out that the storage has nothing to do: the files are to be in memory, the loader's reads
        can be counted, and the kernel tells of this file system whatever reaches the storage."""
        in_memory = self.rig.case.subject.cache != "cold" and not self.cache.measured_once
        counted = self.feeds.reads_files and self.rig.traits.can_be_cold
        # Where several ranks share a client, what it asks a server for is not one rank's.
        return counted and in_memory and tells_idle(self.storage.file_system.kind) and self.peers.ranks == 1

    def storage_idle(self, segments: Sequence[Segment]) -> bool:
        """Whether the windows of `real` so far provably took nothing from the storage; False before the first."""
        windows = [segment.storage for segment in segments if segment.arm is Arm.REAL]
        return self.may_be_idle and bool(windows) and all(one is not None and one.untouched for one in windows)

    def new_loop(self, arm: Arm, stream: Stream) -> StepLoop:
        """A loop over a stream of the arm's batches."""
        device, workload = (self.rig.device, self.rig.workload) if arm.on_device else (None, None)
        resident = arm.source == "resident" or self.feeds.owns_transfer
        loop = StepLoop(stream.batches, device, workload, resident=resident)
        self.pulse.begins(loop, arm.value)
        return loop

    def _goes_on(self, arm: Arm, warm_up: WarmUp | None) -> bool:
        """Whether the stream of a window may go on behind it: nothing reads cold files then, or more than it may."""
        effort, cache = self.rig.case.effort, self.cache
        if warm_up is not None or effort.warmup is not None or not arm.is_fed:
            return False
        in_memory = cache.state == "warm" or (cache.state == "as-is" and not cache.measured_once)
        files_stay = not self.feeds.reads_files or arm.source == "memory" or in_memory
        return arm.decodes and files_stay and self.most_steps == sys.maxsize

    def evicting(self, arm: Arm, loop: StepLoop, loader: Loader | None) -> AbstractContextManager[None]:
        """Evicts the files of delivered batches, where the run is to be cold and the loader does not evict them."""
        cold = self.rig.case.subject.cache == "cold" and self.feeds.reads_files and arm.touches_storage
        return self.cache.evicting_behind(
            loop.indices if cold and loader is not None and not loader.evicts_own_reads else None
        )

    def before_segment(self, arm: Arm) -> float | None:
        """Bring the cache into the case's state for a window of the arm."""
        with self.pulse.during("preparing the cache"):
            return self.cache.before_segment(self.feeds.loader(arm).evicts_own_reads)

    def measure(self, arm: Arm, number: int, length: Length, warm_up: WarmUp | None = None) -> Segment:
        """One window of `arm` in round `number`. `warm_up`: what runs before it; None: until the loader is steady."""
        begun = time.perf_counter_ns()
        device = self.rig.device
        if arm.source == "memory":
            self.feeds.copy_to_memory()
        self.feeds.rest(arm)
        touches_storage = self.feeds.reads_files and arm.touches_storage
        most = self.most_steps if touches_storage else sys.maxsize
        before = self.before_segment(arm) if touches_storage else None
        self.feeds.take_reads(arm)  # those of whoever used the loader before are not this window's
        readings = self._readings()
        device.anchor()
        self.peers.meet()
        opened = time.perf_counter_ns()
        stream = self.feeds.stream(arm)
        loop, loader = self.new_loop(arm, stream), stream.loader
        log = self.log if arm is Arm.REAL else None
        with self.foreseeing(arm, number), self.evicting(arm, loop, loader), log or nullcontext():
            straight = goes_straight_on(stream, arm)
            num_warmup, steady = self._open(arm, stream, loop, length, most, warm_up, straight=straight)
            stages_begun, cpu_begun = _stage_times(loader), time.thread_time()
            more = straight or (arm is Arm.REAL and _takes_long(loop))  # a round of the workers, for those spared
            least = FEWEST_STEPS + self.rig.case.feed.lanes * more
            fewest = min(length.steps or self.fewest_steps(), most - num_warmup)
            self._fill(loop, num_warmup, fewest, length, most, least)
            consumer_cpu_s, stages_ended = time.thread_time() - cpu_begun, _stage_times(loader)
            cpu = self.cpu.end()
            if arm.on_device:
                device.synchronize()
            goes_on = self._goes_on(arm, warm_up)
            drained = None if goes_on else self.feeds.end(arm, stream)
        closed = time.perf_counter_ns()
        segment = self.segment_of(loop, arm, number, num_warmup, steady, opened, closed, drained)
        if stream.resumed_ns is not None:
            segment.first_batch_s = None
        if touches_storage:
            segment.storage = self._storage_window(readings, before, loop, drained)
        segment.reads = self._read_times(arm, opened, loop)
        if log is not None:
            keep_log(log, segment)
        segment.clock_drift_ns = device.drift_ns() if arm.on_device else None
        segment.cpu = cpu
        segment.consumer_cpu_s, segment.stage_times = consumer_cpu_s, _grown(stages_begun, stages_ended)
        segment.wall_s = (time.perf_counter_ns() - begun) / 1e9
        if arm is Arm.DEVICE:
            segment.held = self._hold_steps(segment.window)
        self._paces[arm] = pace_of(segment, self.rig.case.feed.lanes)
        if goes_on:
            stream.fed(segment, self._paces[arm])
        self._tell(segment)
        return segment

    def _open(
        self, arm: Arm, stream: Stream, loop: StepLoop, length: Length, most: int, warm_up: WarmUp | None, *,
        straight: bool,
    ) -> tuple[int, bool]:  # fmt: skip
        """Run a window's first steps, and begin to count its CPU time. `straight`: the loader is as in the last window.
        Returns (their number, whether it is steady)."""
        if warm_up is not None:
            num_warmup, steady = warm_up(loop, stream.loader)
            self.cpu.begin()
            return num_warmup, steady
        if straight:
            self.cpu.begin()
            loop.run(1, sys.maxsize)
            return 1, stream.windows[-1].steady
        steps = min(length.steps or self.fewest_steps(), most)
        warmup_s = math.inf if length.steps is not None else WARMUP_PART * length.longest_s
        # Nothing but the loader holds up an arm without a device.
        pace = self._paces.get(arm) if arm.on_device or stream.resumed_ns is None else "starved"
        known = Known(pace, stream.resumed_ns)
        num_warmup, steady = self.warm_up(loop, stream.loader, length.target_s, most - steps - 1, warmup_s, known=known)
        self.cpu.begin()
        if self.rig.case.effort.warmup is None and not _takes_long(loop):
            loop.run(1, sys.maxsize)  # the step that begins late for the reading is none of the window
            num_warmup += 1
        return num_warmup, steady

    def _read_times(self, arm: Arm, opened_ns: int, loop: StepLoop) -> ReadTimes | None:
        """The reads of a window. A batch that came from a stream that went on was read before it, at rest perhaps."""
        rows = self.feeds.take_reads(arm)
        made = loop.made if self.rig.data.shards is None else ()  # else a read is of many images
        most = MOST_SLOWEST_OF_REAL if arm is Arm.REAL else MOST_SLOWEST
        return read_times(rows[rows[:, READ["begin_ns"]] >= opened_ns], made, most)

    def segment_of(
        self, loop: StepLoop, arm: Arm, number: int, num_warmup: int, steady: bool, opened: int, closed: int,
        drained: Table | None,
    ) -> Segment:  # fmt: skip
        """The segment of a loop's run; counts its broken images."""
        self.pulse.ends()
        self.count_failures(arm, loop)
        return Segment(
            arm=arm,
            round=number,
            num_warmup=num_warmup,
            steady=steady,
            steps=loop.steps(),
            spans=loop.table_of_spans(drained),
            opened_ns=opened,
            closed_ns=closed,
            phases=loop.phases(),
            lane=self.rig.case.step.device,
            first_batch_s=(loop.host[0][1] - opened) / 1e9,
            num_drained=None if drained is None else len(drained),
        )

    def count_failures(self, arm: Arm, loop: StepLoop) -> None:
        """Add the broken images that a loop met."""
        images = self.feeds.data_of(arm).images
        self.failures += [ImageFailure(self.feeds.path(images, index), reason) for index, reason in loop.failures]

    def _tell(self, segment: Segment) -> None:
        rows = segment.steps
        samples, encoded = (int(rows[:, STEP[name]].sum()) for name in ("num_samples", "encoded_bytes"))
        mean_s = float(np.mean(durations(segment))) if len(segment.window) > 1 else None
        self.report(SegmentDone(segment.arm, segment.round, len(rows), samples, encoded, mean_s))

    def _fill(
        self, loop: StepLoop, num_warmup: int, steps: int, length: Length, most: int, least: int = FEWEST_STEPS
    ) -> None:
        """Run the window's own steps: at least `steps`, but `least` are enough for a storage that takes seconds for a
        batch; until its time is up, where their number is not fixed."""
        fixed = length.steps is not None
        # Storage that takes seconds for a batch must not stretch a window to minutes.
        longest_s = min(math.inf if fixed else LONGEST_WINDOW_S, (1 - WARMUP_PART) * length.longest_s)
        longest_ns = sys.maxsize if math.isinf(longest_s) else time.perf_counter_ns() + int(longest_s * 1e9)
        begun_ns = time.perf_counter_ns()
        least = min(least, steps)
        loop.run(least, sys.maxsize)
        if time.perf_counter_ns() < longest_ns:
            self._run(loop, steps - least, longest_ns)
        left_ns = int(length.target_s * 1e9) - (loop.host[-1][3] - loop.host[num_warmup][0])
        if not fixed and left_ns > 0:
            self._run(loop, most - len(loop.host), time.perf_counter_ns() + left_ns)
        num, lanes = len(loop.host) - num_warmup, self.rig.case.feed.lanes
        if not fixed and num >= lanes:
            # Half a round of the workers' bursts would count as a whole one, or as none.
            now_ns, rest, last_ns = time.perf_counter_ns(), -num % lanes, int(LAST_ROUND_S * 1e9)
            round_ns = min((now_ns - begun_ns) * lanes // num, last_ns)
            if num == lanes and now_ns >= longest_ns and round_ns < last_ns:
                rest, round_ns = lanes, last_ns  # of one round, which is all that there was time for, nothing is known
            loop.run(min(rest, most - len(loop.host)), max(longest_ns, now_ns + round_ns))

    def _run(self, loop: StepLoop, num_steps: int, deadline_ns: int) -> None:
        """Run up to `num_steps` further steps, as StepLoop.run; where they take long, tell how many are done."""
        num_done = 0
        while num_done < num_steps:
            if num_done:
                self.report(StepsDone(num_done, num_steps if deadline_ns == sys.maxsize else None))
            num_done += loop.run(num_steps - num_done, min(deadline_ns, time.perf_counter_ns() + TOLD_EVERY_NS))
            if time.perf_counter_ns() >= deadline_ns:
                return

    def warm_up(
        self, loop: StepLoop, loader: Loader | None, target_s: float, most: int, longest_s: float = math.inf,
        known: Known = UNKNOWN,
    ) -> tuple[int, bool]:  # fmt: skip
        """Run until the loader's queue is steady, or the given number of steps, or `most`, or for `longest_s`, and at
        least a round of the workers. `known`: of the window before. Returns (steps, steady)."""
        feed, asked = self.rig.case.feed, self.rig.case.effort.warmup
        if asked is not None:
            self._run(loop, asked, sys.maxsize)
            return len(loop.host), loader is None
        limit = time.perf_counter_ns() + int(min(MAX_WARMUP_S, 2 * target_s + 0.5, longest_s) * 1e9)
        if loader is None:
            loop.run(4, limit)
            return len(loop.host), True
        # Without workers there is no queue, but the first batches pay for memory and tables that later ones reuse.
        depth = self.rig.buffer_batches
        loop.run(feed.lanes, sys.maxsize)
        if _takes_long(loop):
            return len(loop.host), depth == 0
        loop.run(1, sys.maxsize)
        if known.tells:
            while len(loop.host) < min(2 * depth + 2 * feed.lanes + 1, most) and loop.host[-1][3] <= limit:
                if is_as_before(loop, known.pace or "full", known.resumed_ns, feed.lanes):
                    return len(loop.host), True
                loop.run(1, sys.maxsize)
        while len(loop.host) < min(4 * depth + 16, most):
            recent = slice(-(2 * depth + 8), None)
            host = np.array([row[:2] for row in loop.host[recent]], dtype=np.int64)
            ages = [span[SPAN["ready_ns"]] for span in loop.spans[recent] if span is not None]
            ready = np.array(ages, dtype=np.int64) if len(ages) == len(host) else None
            if is_steady(host[:, 0], host[:, 1], ready, depth, feed.lanes):
                return len(loop.host), True
            if loop.host[-1][3] > limit:
                break
            loop.run(1, sys.maxsize)
        return len(loop.host), depth == 0

    def _hold_steps(self, rows: Table) -> HeldSteps | None:
        """Steps on the resident batch that were enqueued completely before they began; None where the device cannot be
        held, or need not be, since it tells its busy time."""
        if rows[0, STEP["busy_ns"]] >= 0:
            return None
        issue_ns = rows[:, STEP["issued_ns"]] - rows[:, STEP["returned_ns"]]
        hold_s = float(min(2 * issue_ns.max() / 1e9 + 0.002, MAX_HOLD_S))
        step, inputs, targets = self.rig.workload.step, self.feeds.resident.inputs, self.feeds.resident.targets
        took_ns = 0

        def issue() -> None:
            nonlocal took_ns
            begun = time.perf_counter_ns()
            step(inputs, targets)
            took_ns = time.perf_counter_ns() - begun

        held = [(self.rig.device.held_ns(issue, hold_s), took_ns) for _ in range(HELD_STEPS)]
        told = [(busy, took) for busy, took in held if busy is not None]
        return HeldSteps(tuple(busy for busy, _ in told), tuple(took for _, took in told)) if told else None

    def _readings(self) -> Readings:
        try:
            storage = self.storage.read()
        except UnavailableError as error:
            raise CaseFailed(f"the storage became unreadable while it was measured: {error}") from error
        return Readings(storage, _read_characters(), tree_read_bytes(os.getpid()))

    def _storage_window(
        self, before: Readings, resident_before: float | None, loop: StepLoop, drained: Table | None
    ) -> StorageWindow:
        after, data = self._readings(), self.rig.data
        moved = None
        # A node's counters hold what all of its ranks read.
        if after.storage is not None and before.storage is not None and self.peers.num_local == 1:
            known = [name for name in after.storage if name in before.storage]
            moved = {name: after.storage[name] - before.storage[name] for name in known}
        spans = loop.table_of_spans(drained)
        requested = after.characters - before.characters
        if spans is not None:
            expected = float(spans[:, SPAN["page_bytes"]].sum())
        else:
            # The loader reads ahead unseen: take the bytes of its system calls, scaled to whole pages like the files.
            expected = requested * data.sample_page_bytes / data.sample_bytes
        if not self.storage.whole_pages:
            expected *= data.sample_bytes / data.sample_page_bytes
        return StorageWindow(
            moved=moved,
            expected_bytes=int(expected),
            requested_bytes=requested,
            residency_before=resident_before,
            residency_after=self.cache.after_segment(),
            process_read_bytes=_growth(before.process_read_bytes, after.process_read_bytes),
            looked_s=self.cache.take_longest_look_s(),
        )


def _takes_long(loop: StepLoop) -> bool:
    """Whether the steps so far took LONG_STEP_S each."""
    return loop.host[-1][3] - loop.host[0][0] >= LONG_STEP_S * 1e9 * len(loop.host)


def _growth(before: int | None, after: int | None) -> int | None:
    """None where either is unknown, or a process took its bytes with it."""
    return None if before is None or after is None or after < before else after - before


def least_steps(case: Case, *, fed: bool, step_s: float = 0.0) -> int:
    """Steps of the shortest window, with its warm-up. `fed`: by a loader; `step_s`: what one takes, if known."""
    warmup = case.effort.warmup
    if fed and warmup is None and step_s >= LONG_STEP_S:
        return case.feed.lanes + FEWEST_STEPS
    return LEAST_WINDOW + case.feed.lanes * fed if warmup is None else warmup + FEWEST_STEPS


def shortest_s(segment: Segment, case: Case) -> float:
    """What a window took, with its preparation, warm-up and end, had it had no more steps than it must have."""
    least = least_steps(case, fed=segment.arm.is_fed, step_s=float(durations(segment).mean()))
    return whole_s(segment) * min(1.0, least / len(segment.steps))


def whole_s(segment: Segment) -> float:
    """Seconds of a window with its preparation, warm-up and end."""
    return max(segment.wall_s or 0.0, float(durations(segment).sum()))


def durations(segment: Segment) -> NDArray[np.float64]:
    """Seconds of each step of the window: between completions on the device, or between deliveries without one."""
    column = "done_ns" if segment.steps[-1, STEP["done_ns"]] >= 0 else "returned_ns"
    done = segment.steps[:, STEP[column]]
    seconds: NDArray[np.float64] = np.diff(done[max(segment.num_warmup - 1, 0) :]) / 1e9
    return seconds


def _stage_times(loader: Loader | None) -> StageTimes | None:
    """Stage → (batches, wall ns) so far, of a loader that counts whole batches; None of any other."""
    count = getattr(loader, "stage_times", None)
    times: StageTimes | None = None if count is None else count()
    return times


def _grown(before: StageTimes | None, after: StageTimes | None) -> StageTimes | None:
    """The growth between both; None where the loader does not count."""
    if before is None or after is None:
        return None
    return {name: (after[name][0] - before[name][0], after[name][1] - before[name][1]) for name in after}


def _read_characters() -> int:
    """Bytes that this process and its reaped children asked for in read calls (`rchar` of /proc/self/io, proc(5))."""
    for line in (read_text("/proc/self/io") or "").splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise CaseFailed("/proc/self/io has no rchar: this kernel lacks CONFIG_TASK_XACCT, CONFIG_TASK_IO_ACCOUNTING")
