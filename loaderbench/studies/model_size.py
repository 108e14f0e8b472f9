"""`loaderbench model size`: batches measured one after the other, and the devices that a target needs.

First a ladder: each batch in a process of its own, where its memory is counted too. Then further rounds over the
batches that fitted, largest first, so that slow drift of the machine shows in the intervals. docs/model.md, `Sizing`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from loaderbench.analysis.sizing import sized, steps_needed, surely_above
from loaderbench.cases.inputs import image_side
from loaderbench.devices.base import KnownTimes
from loaderbench.errors import BatchTooSmall, ConfigError, OutOfMemory
from loaderbench.findings.table import words
from loaderbench.machine import available_memory_bytes, environment
from loaderbench.printable import counted
from loaderbench.recording.facts import DeviceFacts, Failure, MemoryFacts, Status, WorkloadFacts
from loaderbench.recording.model_size import (
    BatchFacts,
    BatchFigures,
    KnownStep,
    SizeFacts,
    StepRound,
    StoppedBy,
)
from loaderbench.recording.progress import Message, StepsDone
from loaderbench.recording.store import Store
from loaderbench.running.jobs.table import EXAMINE_DEVICE, TIME_BATCH, BatchRequest, ExamineRequest, TimedBatch
from loaderbench.running.supervisor import Child, JobFailed, KeptChild
from loaderbench.studies.kept import KeptStudy, Say
from loaderbench.studies.measure import quiet
from loaderbench.studies.memory import predict_peaks
from loaderbench.studies.size_plan import LEAST_STEPS, NUM_ROUNDS, SizePlan

USUAL_BATCHES = 10
"""Batches among which the time is divided: 1 to 512."""
CLEAR_GAIN = 1.1
"""Gain over two doublings with which a larger batch is tried, though the intervals overlap."""
LADDER_FRACTION = 0.6
"""Of the time, for the first round: its processes start anew for each batch."""
START_GROWTH = 1.25
"""By how much starting and warming up are taken to grow from a batch to its double."""


class SizeStudy(KeptStudy):
    """All batches of one model. What was measured is kept and stored, however `run` ends."""

    def __init__(self, plan: SizePlan, store: Store) -> None:
        self._plan = plan
        super().__init__(store.new_study("model_size", [plan.step.model, plan.step.mode]))
        self._environment = environment()
        self._device: DeviceFacts | None = None
        self._workload: WorkloadFacts | None = None
        self._stopped_by: StoppedBy = "interrupted"
        self._num_rounds = 0
        self.batches: list[BatchFacts] = []

    def run(self, say: Say) -> None:
        """Measure every batch. One that does not fit, or fails, ends the ladder and is kept with the reason.

        Raises:
            ConfigError: the model cannot be run at all.
            UnavailableError, CaseFailed: the device does not start, or the results cannot be written.
        """
        self._folder.begin()
        progress = _Progress(say, self._plan.duration_s)
        if self._plan.times is not None:
            self._examine()
            self._look_up(self._plan.times)
        else:
            self._climb(progress)
            self._measure_again(progress)
        self._predict_memory(say)
        self._folder.write(self.study())

    def _examine(self) -> None:
        try:
            with Child(self._log) as child:
                self._device = child.ask(EXAMINE_DEVICE, ExamineRequest(self._plan.step, ()), quiet).device
        except JobFailed as error:
            raise error.error from error

    def _predict_memory(self, say: Say) -> None:
        """Predict each batch's peak of live memory, without the device."""
        plan, sizes = self._plan, [batch.batch_size for batch in self.batches if batch.rounds or batch.known]
        if not sizes:
            return
        say("predicting memory", False)
        peaks: dict[int, int] = {}
        reason = None
        try:
            with Child(self._log) as child:
                peaks = predict_peaks(child, plan.step, sizes, plan.seed)
        except JobFailed as error:
            reason = error.failure.message
        self.batches = [
            replace(batch, predicted_peak_bytes=peaks.get(batch.batch_size), no_prediction=reason)
            if batch.batch_size in sizes
            else batch
            for batch in self.batches
        ]

    # -- known times -----------------------------------------------------------------------------------------

    def _look_up(self, times: KnownTimes) -> None:
        """Take the steps of the batches from the device's own times."""
        plan = self._plan
        sizes = plan.batch_sizes
        if sizes is None:
            last = min(times.largest_batch, plan.max_batch or times.largest_batch)
            doubled = [1 << number for number in range(last.bit_length())]
            sizes = tuple(sorted({*doubled, last}))
        names = ("allocated_bytes", "reserved_bytes", "process_bytes", "rss_growth_bytes")
        missing = dict.fromkeys(names, words("emulated_has_no_model", {}))
        for size in sizes:
            time_ms = times.period_ms(size, image_side(plan.step))
            known = KnownStep(time_ms.value / 1e3, time_ms.label, time_ms.source)
            memory = MemoryFacts(None, None, None, None, missing)
            self.batches.append(BatchFacts(size, "ok", memory=memory, known=known))
        listed = plan.batch_sizes is not None
        short = plan.max_batch is not None and plan.max_batch < times.largest_batch
        self._stopped_by = "list" if listed else "max_batch" if short else "known"

    # -- the ladder ------------------------------------------------------------------------------------------

    def _climb(self, progress: _Progress) -> None:
        """The first round: larger and larger batches, until a reason ends it."""
        for size in self._sizes():
            if self._stopped_by != "interrupted" or self._ends_before(size, progress):
                return
            self._first_time(size, progress)
            self._folder.write(self.study())
            self._stopped_by = self._reason_after() or self._stopped_by
        if self._stopped_by == "interrupted":
            self._stopped_by = "list" if self._plan.batch_sizes is not None else "max_batch"

    def _sizes(self) -> Iterator[int]:
        if self._plan.batch_sizes is not None:
            yield from self._plan.batch_sizes
            return
        size = 1
        while self._plan.max_batch is None or size <= self._plan.max_batch:
            yield size
            size *= 2

    def _first_time(self, size: int, progress: _Progress) -> None:
        """Time a batch in a process of its own; `batches` has what is known of it from the start."""
        status: Status = "interrupted"
        failure: Failure | None = None
        timed: TimedBatch | None = None
        begun = time.monotonic()
        try:
            progress.begin(f"batch {size}")
            with Child(self._log) as child:
                timed = child.ask(TIME_BATCH, self._request(size), progress.message)
            status, self._device, self._workload = "ok", timed.device, timed.workload
        except JobFailed as error:
            self._raise_if_wrong(error)
            status, failure = error.status, error.failure
        finally:
            rounds = () if timed is None else (timed.round,)
            memory = None if timed is None else timed.memory
            self.batches.append(BatchFacts(size, status, failure, rounds, memory))
        if timed is None:
            progress.say(f"batch {size}: {'' if failure is None else failure.message}")
        else:
            progress.first(size, timed.round, time.monotonic() - begun)

    def _raise_if_wrong(self, error: JobFailed) -> None:
        """Raise what is wrong with the request, and not with this batch alone."""
        tried = any(batch.status == "ok" for batch in self.batches)
        larger_may_fit = isinstance(error.error, BatchTooSmall) and self._plan.batch_sizes is None
        if isinstance(error.error, ConfigError) and not tried and not larger_may_fit:
            raise error.error from error

    def _request(self, size: int) -> BatchRequest:
        plan = self._plan
        enough = max(steps_needed(plan.percentile), steps_needed(99))
        num_steps = plan.num_steps or math.ceil(enough / NUM_ROUNDS)
        seconds = math.inf if plan.num_steps is not None else self._seconds_a_batch
        step = replace(plan.step, batch_size=size)
        return BatchRequest(step, num_steps, LEAST_STEPS, min(seconds, 1e6), plan.seed)

    @property
    def _seconds_a_batch(self) -> float:
        """Seconds for the steps of a batch in a round."""
        return self._plan.duration_s / (NUM_ROUNDS * USUAL_BATCHES)

    def _ends_before(self, size: int, progress: _Progress) -> bool:
        """Whether a batch is not to be tried, since the time is short or memory would be."""
        last = next((batch for batch in reversed(self.batches) if batch.rounds), None)
        if last is None:
            return False
        step_s = float(last.rounds[0].step_s.mean()) * size / last.batch_size
        steps = self._plan.num_steps or max(LEAST_STEPS, self._seconds_a_batch / step_s)
        expected = START_GROWTH * progress.last_start_s + step_s * steps
        if progress.elapsed_s + expected > LADDER_FRACTION * self._plan.duration_s:
            self._stopped_by = "duration"
            return True
        short = self._short_of_memory(size)
        if short is not None:
            self.batches.append(BatchFacts(size, "skipped", Failure(OutOfMemory.__name__, short)))
            self._stopped_by = "memory"
            progress.say(f"batch {size}: {short}")
        return short is not None

    def _short_of_memory(self, size: int) -> str | None:
        """On the host's processors the kernel ends what takes too much memory, and perhaps others with it. So a batch
        is not tried that would not fit, by the growth of memory from the last two batches."""
        grown = [
            (batch.batch_size, batch.memory.rss_growth_bytes)
            for batch in self.batches
            if batch.memory is not None and batch.memory.rss_growth_bytes is not None
        ]
        if not self._plan.on_host_cpus or len(grown) < 2:
            return None
        (first, less), (second, more) = grown[-2:]
        expected = more + max(0.0, (more - less) / (second - first)) * (size - second)
        free = available_memory_bytes()[0]
        if free is None or expected <= free:
            return None
        return (
            f"not tried: by the growth so far it needs about {expected / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        )

    def _reason_after(self) -> StoppedBy | None:
        """Why no larger batch is tried; None: there is no reason yet."""
        last = self.batches[-1]
        if last.failure is not None:
            if last.failure.kind == BatchTooSmall.__name__:
                return None
            return "memory" if last.failure.kind == OutOfMemory.__name__ else "failed"
        if self._plan.batch_sizes is not None:
            return None
        limit = self._plan.latency_s
        if limit is not None and float(np.median(last.rounds[0].step_s)) > limit:
            return "latency"
        rows = [row for row in sized(self.facts()).batches if row.samples_per_s is not None]
        return None if _gained(rows) else "no_gain"

    # -- further rounds --------------------------------------------------------------------------------------

    def _measure_again(self, progress: _Progress) -> None:
        """Further rounds over what was measured, largest first, while the time lasts; one process a round."""
        self._num_rounds = 1
        expected = sum(self._cost(batch) for batch in self.batches) + progress.last_start_s
        while self._num_rounds < NUM_ROUNDS and any(batch.rounds for batch in self.batches):
            if progress.elapsed_s + expected > self._plan.duration_s:
                return
            begun = progress.elapsed_s
            self._one_round(progress)
            expected = progress.elapsed_s - begun
            self._num_rounds += 1
            self._folder.write(self.study())

    def _cost(self, batch: BatchFacts) -> float:
        """Seconds that a further round of it takes, with its warm-up, which is about as long as a few steps."""
        return sum(float(one.step_s.sum() + 2 * LEAST_STEPS * one.step_s.mean()) for one in batch.rounds)

    def _one_round(self, progress: _Progress) -> None:
        with KeptChild(self._log) as kept:
            for number in reversed(range(len(self.batches))):
                batch = self.batches[number]
                if not batch.rounds:
                    continue
                progress.begin(f"round {self._num_rounds + 1} of {NUM_ROUNDS}, batch {batch.batch_size}")
                try:
                    timed = kept.child(None).ask(TIME_BATCH, self._request(batch.batch_size), progress.message)
                except JobFailed as error:  # it fitted before: its earlier rounds stand
                    kept.end()
                    progress.say(f"batch {batch.batch_size}, round {self._num_rounds + 1}: {error.failure.message}")
                    continue
                self.batches[number] = replace(batch, rounds=(*batch.rounds, timed.round))

    # -- what is kept ----------------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        return bool(self.batches)

    @property
    def kept(self) -> str:
        num_done = sum(bool(batch.rounds) for batch in self.batches)
        return f"{counted(num_done, 'batch size was measured and is', 'batch sizes were measured and are')} kept"

    def facts(self) -> SizeFacts:
        """What was measured so far."""
        plan, step = self._plan, self._plan.step
        return SizeFacts(
            model=step.model,
            mode=step.mode,
            precision=step.precision,
            optimizer=step.optimizer,
            device_name=step.device,
            input_size=step.input_size,
            channels=step.channels,
            inputs=step.inputs,
            seed=plan.seed,
            target_per_s=plan.target_per_s,
            latency_s=plan.latency_s,
            percentile=plan.percentile,
            environment=self._environment,
            device=self._device,
            workload=self._workload,
            batches=tuple(self.batches),
            num_rounds=self._num_rounds,
            stopped_by=self._stopped_by,
            duration_s=plan.duration_s,
            feed=plan.feed,
            no_feed=plan.no_feed,
            mean_file_bytes=plan.mean_file_bytes,
            mean_file_source=plan.mean_file_source,
        )

    @property
    def failed(self) -> bool:
        """Whether a batch failed, other than for lack of memory, or none was measured."""
        answers = (OutOfMemory.__name__, BatchTooSmall.__name__)
        bad = any(batch.failure is not None and batch.failure.kind not in answers for batch in self.batches)
        return bad or not any(batch.rounds or batch.known for batch in self.batches)


def _gained(rows: list[BatchFigures]) -> bool:
    """Whether images/s still grow: above those of two doublings before, beyond both intervals; or so clearly that wide
    intervals do not tell."""
    if len(rows) < 3:
        return True
    last, before = rows[-1].samples_per_s, rows[-3].samples_per_s
    assert last is not None and before is not None
    return surely_above(last, before) or last.value > CLEAR_GAIN * before.value


class _Progress:
    """Lines with the time that is left of what was allowed."""

    def __init__(self, say: Say, duration_s: float) -> None:
        self._say, self._duration_s = say, duration_s
        self._begun = time.monotonic()
        self._line = ""
        self.last_start_s = 0.0
        """Seconds that starting and warming up took for the last batch."""

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    def begin(self, line: str) -> None:
        self._line = line
        self._say(f"{line}{self._left()}", False)

    def message(self, message: Message) -> None:
        """Handle a message of the measuring process."""
        doing = f"step {message.done} of up to {message.total}" if isinstance(message, StepsDone) else "starting"
        self._say(f"{self._line}: {doing}{self._left()}", False)

    def first(self, size: int, timed: StepRound, took_s: float) -> None:
        """Tell a batch's first figures, which took so long altogether."""
        mean = float(timed.step_s.mean())
        self.last_start_s = max(0.0, took_s - float(timed.step_s.sum()))
        self.say(f"batch {size}: {mean * 1e3:.4g} ms a step, {size / mean:.4g} images/s")

    def say(self, line: str) -> None:
        self._say(line, True)

    def _left(self) -> str:
        left = self._duration_s - self.elapsed_s
        return f" (at most about {math.ceil(left)} s left)" if left > 0 else ""
