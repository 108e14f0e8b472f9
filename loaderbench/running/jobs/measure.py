"""Measure one case in one process: its arms in turns, then what is measured only once."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.devices.collective import all_reduce_of
from loaderbench.errors import CaseFailed
from loaderbench.loaders.base import Batch
from loaderbench.machine import environment, usable_cpus
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import (
    SPAN,
    CeilingProbe,
    Facts,
    FailureFacts,
    PrepProbe,
    RankRecording,
    Recording,
    RoundFacts,
    Run,
    Segment,
    StorageFacts,
)
from loaderbench.recording.progress import Look, Measured, Phase, Report, SoFar
from loaderbench.recording.rank_place import RankPlace
from loaderbench.running.alive import Pulse, told
from loaderbench.running.cache import CacheKeeper, RamCopy
from loaderbench.running.ceiling import PROBE_S, probe_ceiling
from loaderbench.running.deadline import Deadline
from loaderbench.running.feeds import WINDOWS, Feeds, arms_of_a_round
from loaderbench.running.foresight import ALIKE, foreseen
from loaderbench.running.heap import keep_freed_memory
from loaderbench.running.jobs.table import MeasureRequest
from loaderbench.running.joint import joint_seconds, measure_joint
from loaderbench.running.kernel_window import MAX_PART, TracedLoop, free_recorder, num_steps_for, trace_kernels
from loaderbench.running.link import link_bytes_per_s
from loaderbench.running.loop import StepLoop
from loaderbench.running.overhead import loop_overhead_s
from loaderbench.running.peers import ALONE, Together, joined
from loaderbench.running.prep_probe import image_seconds, probe_preparation
from loaderbench.running.read_times import slow_files
from loaderbench.running.rig import Rig, progress_of
from loaderbench.running.rough import Parts, RoughVerdicts
from loaderbench.running.rounds import SPARED, Budget, measure_rounds, most_steps, spread
from loaderbench.running.short_runs import measure_short_runs
from loaderbench.running.until_decided import UntilDecided
from loaderbench.running.window import (
    LONG_STEP_S,
    LONGEST_WINDOW_S,
    Length,
    Windows,
    durations,
    least_steps,
    shortest_s,
)
from loaderbench.samplers.process_io import wanted_processors_s
from loaderbench.samplers.sources import FILES_LOOKED_AT, StorageCounter

FIRST_PART = 0.3
"""Fraction of the measuring time for the data set as it is, where that can be measured only once."""
PROBE_FROM = 0.10
"""Decoders are timed where preparation takes at least this fraction of a step with the data in memory."""
DECODERS_PART = 0.4
"""Of the time that is left behind the rounds, the part for timing them, where images take long to decode."""
CEILING_FRACTION, SHORT_CEILING_FRACTION, LEAST_CEILING_S = 0.1, 0.25, 2.0
"""Fraction of the measuring time for the storage's ceiling, at most ceiling.PROBE_S; a larger one up to
LEAST_CEILING_S: with less its interval is wide."""
CEILING_PART = 0.15
"""Fraction of `max_bytes` for the storage's ceiling."""
SETTLE_S = 0.25
"""Window length in seconds that the kernel trace gives to the warm-up, which then gives up within a second."""
AGAIN_PART = 0.5
"""Of what was foreseen for the rest of the first round: by less beyond the deadline is not said."""
TOLD_FROM_S, TOLD_PART = 1.0, 0.1
"""By how much beyond the deadline, in seconds and of all that is foreseen, something else must end to be said."""
LEAST_ROUNDS_S = 1.0
"""For the rounds where everything before them took all of the time."""
LEAST_PART = 0.5
"""Of `--duration`, what is left for the rounds however long the start took, which then moves the deadline."""
BEFORE_ROUNDS_S = 1.0
"""Between the opened device and the rounds, besides the copy in memory: looks at the page cache, the first batches."""
MOST_EXAMPLES = 100


def measure(request: MeasureRequest, report: Report) -> Recording:
    """Measure the case's arms, interleaved, and return the raw facts.

    Raises:
        LoaderbenchError: something that the user can fix, in one line.
    """
    begun_ns = time.perf_counter_ns()
    keep_freed_memory()
    wanted_s = None if request.started_ns is None else wanted_processors_s()  # by the start, and nothing else yet
    with ExitStack() as stack:
        pulse = Pulse() if request.seat is None else stack.enter_context(told(report))
        rough = RoughVerdicts(request.case, report, pulse)
        if request.judge is not None and request.started_ns is not None and Arm.REAL in request.case.effort.arms:
            stack.enter_context(rough.telling(request.started_ns))
            report = rough.hear
        effort = request.case.effort
        started_s = None if request.started_ns is None else request.started_ns / 1e9
        deadline = Deadline(
            effort.duration_s, report, started_s, wanted_s, asked=effort.is_limited, may_end=effort.until_decided
        )
        rig = Rig(request.case, stack, report, request.slowdown)
        deadline.phases |= rig.opened_s
        progress = pulse.seen_in(progress_of(report))
        opened_ns = time.perf_counter_ns()
        if request.seat is not None:
            report(Phase("meeting the other ranks"))
        with deadline.phase("ranks"):
            together = None if request.seat is None else stack.enter_context(joined(request.seat, gpu=rig.device.gpu))
        peers = ALONE if together is None else together
        cache = CacheKeeper(rig.case.subject.cache, rig.data, progress, deadline)
        once = not peers.every(not cache.survey())  # before a loader looks into the files
        with deadline.phase("loader"):
            feeds = Feeds(rig, stack, report, deadline)
        feeds.process_s = None if request.started_ns is None else (begun_ns - request.started_ns) / 1e9
        feeds.open_s = (opened_ns - begun_ns) / 1e9
        storage = StorageCounter(rig.case.subject.dataset, rig.data.files.some_paths(FILES_LOOKED_AT))
        stack.callback(storage.close)
        windows = Windows(rig, feeds, cache, storage, report, peers=peers, pulse=pulse)
        rough.opened = _Opened(windows)
        windows.log = free_recorder(rig.device) if effort.kernels else None
        try:
            measurement = _Measurement(windows, deadline, request, rough, once=once and feeds.reads_files)
            if together is None or request.seat is None:
                return measurement.run(stack)
            return as_rank(measurement.run, stack, windows, together, request.seat.place, deadline)
        except CaseFailed as error:
            raise type(error)(feeds.in_terms_of_the_data_set(str(error))) from error


def as_rank(
    run: Callable[[ExitStack], Recording], stack: ExitStack, windows: Windows, together: Together, place: RankPlace,
    deadline: Deadline,
) -> Recording:  # fmt: skip
    """Measure together with the other ranks, their clocks compared before and behind it."""
    before = together.align()
    recording = run(stack)
    together.meet()
    num_bytes, joint = windows.rig.case.step.all_reduce_bytes, list[Segment]()
    if num_bytes is not None:
        offset_ns = round(before.offset_s * 1e9)
        joint = measure_joint(windows, together, all_reduce_of(windows.rig.device, num_bytes, offset_ns), deadline)
    after = together.align()
    together.meet()  # nobody leaves while others still need it
    recording.rank = RankRecording(place, (before, after), joint)
    return recording


def _mean_s(segment: Segment) -> float:
    """Mean seconds of a window's steps."""
    return float(durations(segment).mean())


class _Opened:
    """What a rough verdict needs to know of the loader and the device."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self.computes_on_processors = windows.rig.device.describe().on_host_cpus
        self.reads_files = windows.feeds.reads_files
        self.prepares_on_processors = not windows.feeds.owns_transfer

    def parts(self) -> Parts | None:
        """Of a batch: known in a cold run whose first batches came from memory."""
        windows, case = self._windows, self._windows.rig.case
        ram, files_s, spans = windows.feeds.ram, windows.cache.cold_files_s, windows.feeds.first_spans
        if ram is None or not files_s or not spans or windows.rig.data.shards is not None:
            return None
        one_by_one_s = case.step.batch_size * float(np.mean(files_s)) / case.feed.lanes
        all_bytes_s = case.step.batch_size * windows.rig.data.sample_page_bytes / ram.bytes_per_s
        worker_s = np.median([span[SPAN["ready_ns"]] - span[SPAN["start_ns"]] for span in spans]) / 1e9
        return Parts(max(one_by_one_s, all_bytes_s), float(worker_s) / case.feed.lanes)


class _Measurement:
    """Measures one case, in order. `once`: the data set's own cache state can be measured only once, first."""

    def __init__(
        self, windows: Windows, deadline: Deadline, request: MeasureRequest, rough: RoughVerdicts, *, once: bool
    ) -> None:
        self._windows, self._once, self._rough = windows, once, rough
        self._deadline, self._request, self._so_far_s = deadline, request, 0.0
        self._first_answer_s: float | None = None
        self._decided_s: float | None = None
        self._last_look: Look | None = None
        self._environment = environment()
        self._rig, self._feeds = windows.rig, windows.feeds
        self._case: Case = windows.rig.case
        self._arms = arms_of_a_round(
            self._case,
            reads_files=self._feeds.reads_files,
            owns_transfer=self._feeds.owns_transfer,
            once=once,
        )
        self._segments: list[Segment] = []
        self._caveats: list[Caveat] = []
        self._told_steps = False
        self._num_kept = 0
        windows.foreseeing = self._foreseeing

    def run(self, stack: ExitStack) -> Recording:
        """Measure everything, arms first."""
        device = self._rig.device
        self._keep_for_rounds(self._feeds.copy_most_s + BEFORE_ROUNDS_S)
        self._prepare(stack)
        self._foresee_preparation()
        with self._deadline.phase("first_batches"):
            self._feeds.collect_ready()
        self._take_first_step()
        self._keep_for_rounds(0.0)
        device.reset_peak_memory()
        rounds = self._measure_arms()
        self._rough.end()
        self._feeds.rest()
        self._feeds.read_worker_memory()
        if self._feeds.reads_files:
            self._windows.cache.time_cold_reads(self._case.effort.max_bytes)
        if self._case.feed.buffer_ratio is not None:
            self._measure_short_runs()
        # One rank alone: beside others each would find its part of the storage, and of the processors.
        self._windows.peers.meet()
        leads = self._windows.peers.rank == 0
        ceiling = self._probe_ceiling() if self._probes_ceiling and leads else None
        prep_probe = self._probe_preparation() if leads else None
        self._windows.peers.meet()
        peak_memory_bytes = device.peak_memory_bytes()  # of the arms, before anything else is allocated there
        overhead_s = loop_overhead_s(device)
        link = self._measure_link()
        begun = time.perf_counter()
        self._trace_kernels()
        return Recording(
            self._segments,
            replace(
                self._facts(rounds),
                storage=self._storage_facts(ceiling),
                failures=self._failure_facts(),
                copy=self._feeds.copy_facts(link),
                prep_probe=prep_probe,
                peak_memory_bytes=peak_memory_bytes,
                loop_overhead_s=overhead_s,
                tracing_s=time.perf_counter() - begun,
                so_far_s=self._so_far_s,
                overtime_s=self._deadline.extended_s,
                first_answer_s=self._first_answer_s,
                decided_s=self._decided_s,
            ),
            [*self._caveats, *self._windows.cache.caveats, *self._deadline.caveats()],
        )

    # -- the arms ----------------------------------------------------------------------------------------

    def _prepare(self, stack: ExitStack) -> None:
        """Bring the files into the wanted state and copy images into memory, where an arm needs that."""
        case, wanted = self._case, set(self._case.effort.arms)
        if not self._feeds.reads_files:
            return
        self._windows.most_steps = most_steps(
            case, self._rig.data, self._arms, self._windows.fewest_steps(), once=self._once
        )
        if self._once and Arm.REAL in wanted:
            # The other arms would fill the page cache, so its present state can be measured only once, first.
            self._windows.report(Phase("measuring the data set unmodified"))
            first_s = case.effort.duration_s * FIRST_PART
            longest_s = 2 * first_s if case.effort.is_limited else math.inf
            if case.effort.steps is not None:
                longest_s = max(longest_s, LONGEST_WINDOW_S)
            with self._deadline.phase("as_it_is"):
                length = Length(first_s, case.effort.steps, longest_s)
                self._segments.append(self._windows.measure(Arm.REAL, 0, length))
                self._hand_over(self._facts_so_far())
        # `ram` is not measured where it proves to be `real`, but `prep` is.
        if Arm.PREP in self._arms or (wanted & {Arm.RAM, Arm.HOST} and not self._windows.may_be_idle):
            with self._deadline.phase("copy"):
                self._feeds.copy_to_memory()
        with self._deadline.phase("cache"):
            stack.enter_context(self._windows.cache)
            self._windows.cache.time_cold_reads(case.effort.max_bytes)

    def _take_first_step(self) -> None:
        """A GPU loads its libraries with the first step, for seconds that are no window's: then it is known how much
        time there is for the rounds."""
        if self._rig.device.gpu is None or not set(self._case.effort.arms) & {Arm.DEVICE, Arm.HOST}:
            return
        self._windows.report(Phase("the device's first step"))
        with self._deadline.phase("first_step"):
            batch = self._feeds.resident
            self._rig.workload.step(batch.inputs, batch.targets)
            self._rig.device.synchronize()

    def _keep_for_rounds(self, ahead_s: float) -> None:
        """Have time for the rounds, however long the start took: all that was asked for where a GPU's start breaks the
        limit in any case. `ahead_s`: what is still to come before them."""
        if self._arms and self._case.effort.is_limited:
            part = 1.0 if self._rig.device.gpu is not None and self._deadline.extended_s else LEAST_PART
            least_s = max(0.0, part * self._case.effort.duration_s - self._spent_s)
            self._deadline.keep(ahead_s + least_s + self._behind_s)

    @property
    def _until_decided(self) -> bool:
        """Whether to stop as soon as the answer is decided. Of several ranks no one's windows decide for all."""
        return self._case.effort.until_decided and self._request.judge is not None and self._request.seat is None

    @property
    def _spent_s(self) -> float:
        """Of the measuring time, before the rounds."""
        return sum(segment.wall_s or 0.0 for segment in self._segments)

    @property
    def _probes_s(self) -> float:
        """Of the measuring time, behind the rounds."""
        joint_s = 0.0 if self._case.step.all_reduce_bytes is None else joint_seconds(self._case.effort.duration_s)
        return joint_s + (self._ceiling_s if self._probes_ceiling else 0.0)

    @property
    def _left_s(self) -> float:
        """Seconds for what follows the rounds; infinite where a number of steps takes its time."""
        return self._deadline.left_s() if self._case.effort.is_limited else math.inf

    @property
    def _behind_s(self) -> float:
        """To be kept free behind the rounds."""
        return self._probes_s + self._deadline.after_rounds_s

    @property
    def _probes_ceiling(self) -> bool:
        return self._feeds.reads_files and self._case.subject.cache == "cold" and Arm.FETCH in self._arms

    @property
    def _ceiling_s(self) -> float:
        if self._until_decided:
            return LEAST_CEILING_S
        measured_s = self._case.effort.duration_s
        least_s = min(LEAST_CEILING_S, SHORT_CEILING_FRACTION * measured_s)
        return min(PROBE_S, max(least_s, CEILING_FRACTION * measured_s))

    def _measure_arms(self) -> RoundFacts:
        if not self._arms:  # `real` was all there was to measure, and only once
            return RoundFacts((Arm.REAL,), 1, "measured_once")
        behind_s = self._behind_s
        self._foresee_a_round(behind_s)
        asked_s = self._case.effort.duration_s - self._probes_s - self._spent_s
        seconds = min(asked_s, self._deadline.left_s() - behind_s)
        budget = Budget(max(seconds, LEAST_ROUNDS_S), self._windows.most_steps < sys.maxsize)
        num_before = len(self._segments)

        def on_window(tells_more: bool = True) -> Look | None:
            facts = self._facts_so_far() if tells_more else None
            self._hand_over(facts)
            if facts is None:
                return None
            self._foresee_the_rest(self._segments[num_before:], behind_s)
            return self._look(facts)

        windows, idle = self._windows, self._windows.storage_idle
        if not self._until_decided:
            return measure_rounds(windows, self._arms, budget, self._segments, idle, on_window)
        found = UntilDecided(windows, self._arms, budget, self._segments, idle, on_window).measure()
        if found.stopped_by == "decided" and self._request.started_ns is not None:
            seconds = (time.perf_counter_ns() - self._request.started_ns) / 1e9
            self._deadline.say(f"decided after {seconds:.0f} s; --duration or --ci-target measure longer")
        return found

    def _foresee_the_rest(self, done: Sequence[Segment], behind_s: float) -> None:
        """Say where steps are so long that the first round, which is always measured as a whole, ends beyond the
        deadline. `done`: the windows of the rounds so far."""
        if done[-1].round:
            return
        if self._case.effort.steps is not None:
            self._foresee_steps(self._case.effort.steps, done, behind_s)
            if not self._case.effort.is_limited:
                return
        to_come = [arm for arm in self._to_come(done) if arm not in SPARED]
        rest_s = sum(self._least_s(done, arm) for arm in to_come)
        beyond_s = rest_s - (self._deadline.left_s() - behind_s)
        if rest_s > TOLD_FROM_S and beyond_s > max(TOLD_FROM_S, AGAIN_PART * rest_s):
            longest_s, warmup = max(map(_mean_s, done)), self._case.effort.warmup
            each = "" if warmup is None else f", and --warmup asks for {warmup} in each window"
            self._deadline.extend(
                beyond_s,
                f"steps take up to {longest_s:.2g} s{each}: the rest of the first round takes {rest_s:.0f} s",
            )

    def _foresee_steps(self, steps: int, done: Sequence[Segment], behind_s: float) -> None:
        """Say how long a number of steps takes, behind the first windows that tell it."""
        num_rounds, each = spread(steps)
        if self._told_steps or (num_rounds == 1 and self._case.effort.is_limited):
            return  # the first round is whole
        took = [(one.arm.is_fed, (one.wall_s or 0.0) * max(1.0, each / max(len(one.window), 1))) for one in done]
        to_come = [max((s for fed, s in took if fed is arm.is_fed), default=0.0) for arm in self._to_come(done)]
        whole_s = num_rounds * (sum(seconds for _, seconds in took) + sum(to_come))
        rest_s = whole_s - sum(one.wall_s or 0.0 for one in done)
        beyond_s = rest_s - (self._deadline.left_s() - behind_s)
        if beyond_s <= max(TOLD_FROM_S, TOLD_PART * rest_s):
            return
        why = f"--steps {steps} of each arm take about {whole_s:.0f} s"
        if self._case.effort.is_limited:
            self._told_steps = True
            self._deadline.say(f"{why}: --duration {self._case.effort.duration_s:g} ends the run earlier")
        else:
            self._deadline.extend(beyond_s, why, to_end=True)

    def _foreseeing(self, arm: Arm, number: int) -> AbstractContextManager[None]:
        """While a window of the first round reads the storage: say as soon as its rate tells that this window, and
        those behind it, take beyond the deadline."""
        reads = arm.touches_storage and arm in WINDOWS and self._feeds.reads_files
        if number or not reads or not self._case.effort.is_limited:
            return nullcontext()
        at = self._arms.index(arm) if arm in self._arms else len(self._arms)
        num_windows = 1 + sum(one.touches_storage and one not in SPARED for one in self._arms[at + 1 :])
        batch_bytes = self._rig.data.sample_bytes * self._case.step.batch_size

        def on_rate(bytes_per_s: float, passed_s: float) -> bool:
            step_s = batch_bytes / bytes_per_s
            if arm.on_device and step_s <= ALIKE * max(map(_mean_s, self._segments), default=0.0):
                return False  # they are taken no faster
            num_batches = self._least_batches(step_s)
            whole_s = num_windows * num_batches * step_s
            needed = f"{num_windows} windows of {num_batches}" if num_windows > 1 else f"{num_batches}"
            why = f"images come at {bytes_per_s / 1e6:.2g} MB/s, the {needed} batches needed take {whole_s:.0f} s"
            return self._extend_for(whole_s, passed_s, why)

        return foreseen(on_rate)

    def _to_come(self, done: Sequence[Segment]) -> tuple[Arm, ...]:
        """The arms of the first round behind those whose windows are done."""
        return self._arms[1 + max(self._arms.index(one.arm) for one in done) :]

    def _least_batches(self, step_s: float) -> int:
        """Batches that a loader must hand over for the shortest window, by whole rounds of its workers."""
        lanes = self._case.feed.lanes
        return -(-(least_steps(self._case, fed=True, step_s=step_s) + 1) // lanes) * lanes

    def _least_s(self, done: Sequence[Segment], arm: Arm) -> float:
        """What a window of the arm takes at least: as long as the longest one so far that a loader fed as well, or that
        none did, had this had no more steps than it must have; and as many steps of the device, where it runs on that.
        Files alone, without decoding, come as they did when they were copied into memory. 0 where nothing tells."""
        if not arm.decodes and (ram := self._feeds.ram) is not None:
            num_batches, batch_s = self._batches_read(ram)
            return num_batches * batch_s
        least = least_steps(self._case, fed=arm.is_fed)
        alike = [shortest_s(one, self._case) for one in done if one.arm.is_fed is arm.is_fed]
        steps_s = [_mean_s(one) for one in done if one.arm is Arm.DEVICE and arm.on_device]
        return max([*alike, *(least * step_s for step_s in steps_s)], default=0.0)

    def _foresee_preparation(self) -> None:
        """Say before the loader starts where its processors need so long for a batch that the first windows take beyond
        the deadline."""
        feed, batch_size = self._case.feed, self._case.step.batch_size
        decodes = self._feeds.reads_files and feed.decoder is not None and self._rig.data.shards is None
        if not self._case.effort.is_limited or not decodes:
            return
        if self._case.subject.cache == "cold" and self._feeds.ram is None:
            return  # a file that is read stays in the page cache
        image_s = image_seconds(self._rig.context(self._feeds.data_of(Arm.RAM), evict=False))
        step_s = (image_s or 0.0) * batch_size / min(feed.lanes, usable_cpus())
        if step_s < LONG_STEP_S:
            return
        fed = [arm for arm in self._arms if arm.is_fed and arm.decodes and arm not in SPARED]
        num_batches = feed.lanes + len(fed) * self._least_batches(step_s)  # the ready ones are a round, too
        whole_s = num_batches * step_s
        why = (
            f"an image takes {image_s:.2g} s of CPU time to prepare: the {num_batches} batches of "
            f"{batch_size} needed take {whole_s:.0f} s; use a smaller --batch-size for a shorter run"
        )
        self._extend_for(whole_s, 0.0, why)

    def _extend_for(self, whole_s: float, passed_s: float, why: str) -> bool:
        """Move the deadline for work of `whole_s`, of which `passed_s` are over, and say why, where it ends beyond it.
        Returns whether it does."""
        beyond_s = whole_s - passed_s - (self._deadline.left_s() - self._behind_s)
        if beyond_s <= max(TOLD_FROM_S, TOLD_PART * whole_s):
            return False
        self._deadline.extend(beyond_s, why)
        return True

    def _foresee_a_round(self, behind_s: float) -> None:
        """Say before it is measured where the storage is so slow that one window of each arm takes beyond the
        deadline."""
        ram, reading = self._feeds.ram, [arm for arm in self._arms if arm.touches_storage]
        if ram is None or not reading or not self._feeds.reads_files or self._case.effort.steps is not None:
            return
        num_batches, batch_s = self._batches_read(ram)
        beyond_s = len(reading) * num_batches * batch_s - (self._deadline.left_s() - behind_s)
        if beyond_s > 0:
            self._deadline.extend(
                beyond_s,
                f"this storage delivers {ram.bytes_per_s / 1e6:.1f} MB/s, so {len(reading)} windows of "
                f"{num_batches} batches take {len(reading) * num_batches * batch_s:.0f} s",
            )

    def _batches_read(self, ram: RamCopy) -> tuple[int, float]:
        """(batches of the shortest window that reads the storage, seconds that each takes to read) at the rate at which
        files were copied into memory."""
        batch_s = self._rig.data.sample_page_bytes * self._case.step.batch_size / ram.bytes_per_s
        return self._least_batches(batch_s), batch_s

    def _facts_so_far(self) -> Facts:
        """What is known behind a window. Collecting it takes milliseconds."""
        begun_ns = time.perf_counter_ns()
        facts = self._facts(RoundFacts(self._arms or (Arm.REAL,), 1 + self._segments[-1].round, "interrupted"))
        self._so_far_s += (time.perf_counter_ns() - begun_ns) / 1e9
        return facts

    def _hand_over(self, facts: Facts | None) -> None:
        """Give the windows that are done to the supervisor, who keeps them where this process comes to no end: between
        two windows, when nothing is measured. `facts`: None where those that it has will do."""
        begun_ns = time.perf_counter_ns()
        caveats = (*self._caveats, *self._windows.cache.caveats)
        self._windows.report(Measured(tuple(self._segments[self._num_kept :]), facts, caveats))
        self._num_kept = len(self._segments)
        self._so_far_s += (time.perf_counter_ns() - begun_ns) / 1e9

    def _look(self, facts: Facts) -> Look | None:
        """Judge the windows so far and tell what they say: between two windows, when nothing is measured."""
        judge, started_ns = self._request.judge, self._request.started_ns
        if judge is None or started_ns is None or not any(one.arm is Arm.REAL for one in self._segments):
            return None
        begun_ns, case, here = time.perf_counter_ns(), self._case, self._environment
        recording = Recording(self._segments, facts)
        found = judge(Run("", case, status="ok", started_at="", wall_s=0.0, environment=here, recording=recording))
        ended_ns = time.perf_counter_ns()
        self._so_far_s += (ended_ns - begun_ns) / 1e9
        if found is None:
            return None
        since_s = (ended_ns - started_ns) / 1e9
        if self._first_answer_s is None and found.verdict.bottleneck != "undetermined":
            self._first_answer_s = since_s
        if self._decided_s is None and found.is_decided(self._last_look):
            self._decided_s = since_s
        self._last_look = found
        self._windows.report(SoFar(found.verdict, since_s))
        return found

    def _measure_short_runs(self) -> None:
        if self._once:
            self._caveats.append(Caveat("short_runs_not_measured"))
        else:
            self._segments += measure_short_runs(self._windows, self._segments)

    # -- what is looked at once ----------------------------------------------------------------------------

    def _probe_ceiling(self) -> CeilingProbe:
        self._windows.report(Phase("probing the storage"))
        most = self._case.effort.max_bytes
        return probe_ceiling(
            self._rig.data.files,
            counter=self._windows.storage,
            deadline_s=min(self._ceiling_s, max(self._left_s, LEAST_CEILING_S / 2)),
            max_bytes=None if most is None else int(CEILING_PART * most),
        )

    def _probe_preparation(self) -> PrepProbe | None:
        if not self._prep_matters():
            return None
        self._windows.report(Phase("timing the decoders"))
        context = self._rig.context(self._feeds.data_of(Arm.RAM), evict=False)
        left_s = self._left_s
        if self._until_decided:  # there may be most of a minute left, and the answer is there
            left_s = min(left_s, self._deadline.after_rounds_s)
        until_s = time.perf_counter() + DECODERS_PART * left_s
        return probe_preparation(context, usable_cpus(), until_s)

    def _prep_matters(self) -> bool:
        """Whether advice needs the decoders' times: preparation takes enough of the step (PROBE_FROM), or the copy does
        and smaller pixels, which are also prepared faster, would shorten it."""
        feed = self._case.feed
        in_memory = Arm.REAL if self._windows.storage_idle(self._segments) else Arm.RAM
        if feed.decoder is None or self._rig.data.shards is not None:
            return False
        means = {
            arm: float(np.mean(np.concatenate([durations(one) for one in self._segments if one.arm is arm])))
            for arm in {segment.arm for segment in self._segments} & {Arm.DEVICE, Arm.HOST, in_memory}
        }
        if not {Arm.HOST, in_memory} <= means.keys():
            return False
        copied = means[Arm.HOST] - means.get(Arm.DEVICE, means[Arm.HOST]) if feed.output == "float32" else 0.0
        return max(means[in_memory] - means[Arm.HOST], copied) >= PROBE_FROM * means[in_memory]

    def _measure_link(self) -> float | None:
        if Arm.HOST not in self._arms:
            return None
        try:
            return link_bytes_per_s(self._rig.device)
        except (CaseFailed, RuntimeError) as error:  # out of memory: the arms' measurements stay valid
            self._caveats.append(Caveat("link_not_measured", {"reason": str(error).strip().splitlines()[0]}))
            return None

    def _trace_kernels(self) -> None:
        """Trace a window of the loop of `real`, after all arms; where that is not done, a caveat says why."""
        if any(segment.trace is not None for segment in self._segments):
            return  # windows of `real` were recorded as they ran
        planned = self._plan_trace()
        if isinstance(planned, Caveat):
            self._caveats.append(planned)
            return
        try:
            self._segments += self._traced(planned)
        except Exception as error:  # the arms are measured: an error of the trace costs only its own figures
            lines = str(error).strip().splitlines() or ["no message"]
            reason = f"{type(error).__name__}: {lines[0]}"
            self._caveats.append(Caveat("kernel_gap_not_measured", {"why": "failed", "reason": reason}))

    def _plan_trace(self) -> int | Caveat:
        """Steps of each window of the trace, or why there is none."""
        case, real = self._case, self._last_real()
        if not case.effort.kernels:
            return Caveat("kernel_gap_not_measured", {"why": "not_asked"})
        if real is None:
            return Caveat("kernel_gap_not_measured", {"why": "no_real_step"})
        if self._once:
            return Caveat("kernel_gap_not_measured", {"why": "measured_once"})
        if self._feeds.reads_files and case.effort.max_bytes is not None:
            return Caveat("kernel_gap_not_measured", {"why": "max_bytes"})
        step_s = float(np.mean(durations(real)))
        # In its part of the measuring time, and in what is left until the deadline.
        whole_s = min(case.effort.duration_s, self._left_s / MAX_PART)
        num_steps = num_steps_for(step_s, whole_s, case.feed.lanes)
        return num_steps or Caveat("kernel_gap_not_measured", {"why": "steps_too_long", "step_s": step_s})

    def _last_real(self) -> Segment | None:
        real = [segment for segment in self._segments if segment.arm is Arm.REAL and len(segment.steps) > 1]
        return real[-1] if real else None

    def _traced(self, num_steps: int) -> list[Segment]:
        """The windows of the kernel trace. Raises what the loader or the recorder raises."""
        case, rig, windows = self._case, self._rig, self._windows
        windows.report(Phase("tracing the device's kernels"))
        loader = self._feeds.loader(Arm.TRACED)
        if self._feeds.reads_files:
            windows.cache.before_segment(loader.evicts_own_reads)
        self._feeds.rest()
        stream = self._feeds.stream(Arm.TRACED)
        batches = stream.batches
        loops: list[StepLoop] = []

        def new_loop() -> StepLoop:
            loops.append(StepLoop(batches, rig.device, rig.workload, resident=self._feeds.owns_transfer))
            return loops[-1]

        traced = TracedLoop(
            device=rig.device,
            workload=rig.workload,
            lane=case.step.device,
            lanes=case.feed.lanes,
            new_loop=new_loop,
            ready=lambda: self._ready(batches),
            settle=lambda loop: windows.warm_up(loop, loader, SETTLE_S, sys.maxsize),
            behind=lambda loop: windows.evicting(Arm.TRACED, loop, loader),
        )
        try:
            return trace_kernels(traced, num_steps)
        finally:
            self._feeds.end(Arm.TRACED, stream)
            for loop in loops:
                windows.count_failures(Arm.TRACED, loop)

    def _ready(self, batches: Iterator[Batch]) -> tuple[Any, Any]:
        """The next batch, on the device."""
        batch = next(batches)
        if self._feeds.owns_transfer:
            return batch.inputs, batch.targets
        return self._rig.device.copy_in(batch.inputs, batch.targets)

    # -- facts -------------------------------------------------------------------------------------------

    def _facts(self, rounds: RoundFacts) -> Facts:
        """What is known before anything is probed."""
        return Facts(
            device=self._rig.device.describe(),
            workload=self._rig.workload.describe(),
            loader=self._feeds.loader_facts(),
            cache=self._windows.cache.facts(),
            storage=self._storage_facts(None),
            startup=self._feeds.startup_facts(),
            failures=self._failure_facts(),
            rounds=rounds,
            copy=self._feeds.copy_facts(None),
        )

    def _storage_facts(self, ceiling: CeilingProbe | None) -> StorageFacts:
        images, counter, ram = self._rig.images, self._windows.storage, self._feeds.ram
        names, folders = slow_files(self._segments, self._rig.data.files)
        return StorageFacts(
            num_images=len(images),
            image_bytes=int(images.sizes.sum()),
            source=counter.source,
            reason=counter.reason,
            file_system=counter.file_system.type,
            kind=counter.file_system.kind,
            ram_copy=None if ram is None else ram.facts(),
            ceiling=ceiling,
            slow_files=names,
            slow_folders=folders,
            num_containers=None if self._rig.data.shards is None else len(self._rig.data.files),
        )

    def _failure_facts(self) -> FailureFacts:
        failures = self._windows.failures
        return FailureFacts(len(failures), tuple(dict.fromkeys(failures))[:MOST_EXAMPLES])
