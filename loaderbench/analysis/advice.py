"""What to try next, each action with what it is predicted to give.

A prediction is the step time of a changed case, computed from what was measured of the present one:

    T' = max(consumer, storage, loader)          speed-up = T_real ÷ T' (per sample)

consumer  T_host with the copy scaled by the bytes: in parallel with T_device, or (without overlap) its exposed part
          added to T_device; with another batch size max(busy + copy, issue), with overlap max(busy, copy, issue)
storage   T_fetch where the files are read cold, else nothing
loader    L ÷ N for N workers, L being the worker time of a batch (the loader's own step time × the present
          workers, without their wait for a processor), and not less than (CPU seconds of a batch + those of its
          consumer) ÷ the CPUs that the run has beside others. A loader without workers runs in series with
          issuing: L + issue.

Another decoder, output or hand-over, decoding at a smaller scale, or samples that go straight into their batch, scales
the stages decode, augment and collate of L by the ratio of their costs in running/prep_probe.py. Of a loader whose
hand-over is not known it costs between the least and the most of those probed. A processor is slower when all are busy
than when it is alone; the probe says by how much.
How far predictions are off is measured by benchmarks/verify.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loaderbench import plain
from loaderbench.analysis import storage
from loaderbench.analysis.model import Model
from loaderbench.analysis.pixels import pixel_difference
from loaderbench.analysis.processors import left_for
from loaderbench.analysis.quantities import Draws, Quantity
from loaderbench.analysis.read_queue import Queue
from loaderbench.analysis.statistics import interval
from loaderbench.analysis.steps import STALLED_FRACTION
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import DIRECT, SAMPLES, SCALED, Case, Change, Feed, FieldValue
from loaderbench.cases.traits import Work
from loaderbench.plain import Json
from loaderbench.recording.facts import SPAN, Facts, PrepProbe, ScaleProbe, Table
from loaderbench.recording.record import Advice, Cause, ContentionBy, Estimate, StorageFigures, Verdict

WAITED = 0.1
"""Of the workers' time, the part that they waited for processors, from which on a stage's wall time does not tell its
work."""
WORTH_TRYING = 1.03
AS_FAST = 0.95
"""A prediction from here on is no loss: the model itself is less exact."""
KNEE = 0.97
"""The knee is the least number of workers with this part of the best predicted rate."""
MOST_ACTIONS = 5
MOST_READERS = 32
"""Most readers that advice proposes to hide storage latency, however many processors there are."""
MUCH_HELD = 0.25
"""Processors that other processes use, from which on a run of fewer threads may get a smaller part of all."""
MOST_PREFETCH = 16
"""Most batches that advice proposes to prepare ahead in each worker: they take memory."""
MODEL_ERROR = 0.10
"""Half-width that the model itself adds to a prediction's interval."""
PIXEL_BYTES = {"float32": 4, "uint8": 1}

MEMORY: Change = {"cache": "warm"}
"""The data set in memory."""
NOW_AND_THEN = ("tail", "stalls")
"""Kinds of storage that is slow at times."""
STANDS = ("bandwidth", "stalls")
"""Kinds of storage that serves many readers no faster than one."""
IO_THREADS = "io_threads"
"""The loader option that `--io-threads` sets, of loaders that read ahead."""


@dataclass(frozen=True)
class Measured:
    """What advice uses besides the arms."""

    case: Case
    facts: Facts
    spans: Table | None
    """Spans of the real arm's window batches; None where the loader gives none."""
    consumer_cpu_s: float | None
    """CPU seconds a step of the thread that takes batches and issues; None: unknown."""
    usable_cpus: int
    contention: bool
    """The workers wait for a processor."""
    held_up_by: ContentionBy | None = None
    """Who keeps the processors from them; None where nobody does, or where it is not known."""
    storage: StorageFigures | None = None
    queue: Queue | None = None
    """The loader's queue over a storage with slow files or stalls; None where it has none."""


@dataclass(frozen=True)
class Action:
    """One thing to try."""

    cause: Cause
    code: str
    change: Change | None = None
    """None: loaderbench cannot run this action."""
    predicted: Estimate | None = None
    details: Mapping[str, Json] | None = None


def advise(verdict: Verdict, model: Model, measured: Measured) -> tuple[Advice, ...]:
    """At most MOST_ACTIONS, the best predicted first.

    `predicted_speedup` is None where the outcome does not follow from what was measured; such actions come last.
    Predictions below WORTH_TRYING are dropped.
    """
    causes = verdict.joint or (verdict.bottleneck,)
    predictor = Predictor(model, measured)
    actions: list[Action] = []
    if "storage" in causes:
        actions += _for_storage(predictor, measured)
        actions += [] if "prep" in causes else _ahead(predictor, measured.storage, actions)
    if "contention" in causes:
        actions += _for_contention(predictor, measured, verdict)
    if {"prep", "contention"} & set(causes):
        actions += _for_prep(predictor)
        actions += _fewer_workers(predictor)
    if "transfer" in causes:
        actions += _for_transfer(predictor)
    if "launch" in causes:
        actions += _for_launch(predictor)
    if {"storage", "prep"} <= set(causes):
        actions += _together(predictor, actions)
    known = [one for one in actions if one.predicted is not None and one.predicted.value >= _least(one)]
    known.sort(key=lambda one: -one.predicted.value if one.predicted else 0.0)
    # The same change may be proposed for two causes.
    unique = {repr(sorted(one.change.items())) if one.change else one.code: one for one in reversed(known)}
    chosen = [one for one in known if one in unique.values()]
    chosen += [one for one in actions if one.predicted is None]
    gains = verdict.speedup_if_removed
    return tuple(advice_of(action, gains.get(action.cause)) for action in chosen[:MOST_ACTIONS])


def _least(action: Action) -> float:
    """What an action must be predicted to give. Fewer workers take less memory: they need not be faster."""
    return AS_FAST if action.code == "fewer_workers" else WORTH_TRYING


def advice_of(action: Action, at_most: Estimate | None) -> Advice:
    """The action without its weights, as the record has it. `at_most`: the gain without its cause."""
    return Advice(
        code=action.code,
        cause=action.cause,
        change=action.change,
        predicted_speedup=action.predicted,
        at_most=at_most,
        details=action.details or {},
    )


class Predictor:
    """Predicts the step time of a changed case from the measured parts of the present one."""

    def __init__(self, model: Model, measured: Measured) -> None:
        case, facts, times = measured.case, measured.facts, model.times
        self.case, self.facts, self.cpus, self.times, self.arms = case, facts, measured.usable_cpus, times, model.arms
        self.seen, self.starved = model.processors.get(Arm.REAL), model.starved
        self.running = 1.0 if self.seen is None else 1.0 - (model.starved or 0.0)
        """Of the workers' time, the part in which they did not wait for a processor."""
        self.real = _array(times.real)
        self.num_blocks = times.real.n
        self.device = None if times.device is None else _array(times.device)
        self.busy = None if times.busy is None else _array(times.busy)
        self.base = None if model.base is None else _array(model.base)
        issuing, copying = model.part(Arm.DEVICE, "issue"), model.part(Arm.HOST, "copy")
        self.issue = np.zeros_like(self.real) if issuing is None else _array(issuing)
        self.copy = np.zeros_like(self.real) if copying is None else _array(copying)
        self.overlap = model.overlap
        self.lanes = case.feed.lanes
        self.lane = self._lane(Arm.REAL, times.free or times.prep)
        in_memory = case.subject.cache == "warm" and not model.storage_costs
        has_storage = model.has_storage and not in_memory
        self.lane_in_memory = self._lane(Arm.RAM, times.prep or (times.free if in_memory else None))
        fetches = case.subject.cache == "cold" or has_storage
        self.fetch = _array(times.fetch) if fetches and times.fetch is not None else None
        self.queue = measured.queue
        missed = not model.fetch_usable and self.queue is None
        self.storage_unknown = has_storage and (self.fetch is None or missed)
        """What the storage gives by itself was not measured, or without the standstills or slow files that `real` met
        (then `fetch` is still the least that it takes): a worker's time holds its waits."""
        self.lane_cpu, self.stage_part, self.stage_cpu_part = _worker_parts(measured.spans, self.real)
        # The consumer thread issues, takes over batches and frees their memory; a serial loader runs in it too.
        own = 0.0 if self.lane_cpu is None or case.feed.workers else float(self.lane_cpu[0])
        self.consumer_cpu = np.maximum(self.issue, (measured.consumer_cpu_s or 0.0) - own)
        if facts.device.on_host_cpus:  # PyTorch's threads compute on every processor
            self.consumer_cpu = self.consumer_cpu + self.issue * (self.cpus - 1)
        self.handing_cpu = np.zeros_like(self.real)
        """CPU seconds a batch beyond the workers' stages and the consumer's: what handing it over costs processes."""
        self.available = float(self.cpus)
        """Processors that the run has, beside those who keep some from it."""
        if self.seen is not None:
            self.available = left_for(self.seen, self.cpus)
            if self.lane_cpu is not None and case.feed.workers:
                self.handing_cpu = np.maximum(self.seen.own * self.real - self.consumer_cpu - self.lane_cpu, 0.0)
        self.probe = facts.prep_probe or PrepProbe(self.cpus)
        self.traits = facts.loader.traits
        self.known = {**facts.loader.alternatives, case.feed.loader: self.traits}
        self.readers = self._readers_of(case)
        self.stretched = 1.0
        """CPU time of the workers' stages ÷ what it would be with no more workers than processors."""
        if self.running < 1.0 - WAITED:
            self._parts_by_the_probe(measured.spans)
        # More workers than processors help only while some of them wait for the storage, and none for a processor.
        self.most_workers = self.cpus
        self.contention = measured.contention
        if not in_memory and not measured.contention:
            readers = storage.readers_needed(facts.storage.ceiling) or 0
            self.most_workers = max(2 * self.cpus, min(readers, MOST_READERS))

    def _parts_by_the_probe(self, spans: Table | None) -> None:
        """What decode, augment and collate take of a worker's time, where workers wait for processors: the wall time of
        a stage is then mostly waiting, and reading, which enters the kernel, is preempted more often than its work
        would suggest.

        Reading takes at most what it takes alone, with all processors at it (`fetch`). The rest is the stages' work,
        and how much more it is than the probe says, whose threads are as many as the processors, is the price of more
        workers than those: they take the caches from each other.
        """
        stage_s = self._stage_s(self.case, crowded=True)
        if stage_s is None or self.lane is None or self.lane_cpu is None or spans is None:
            return
        wall = float((spans[:, SPAN["ready_ns"]] - spans[:, SPAN["start_ns"]]).mean()) / 1e9
        self.lane = self.lane * min(1.0, wall * self.running / float(self.lane[0]))  # between batches they waited too
        whole, stage = float(self.lane_cpu[0]), float(stage_s[0]) * self.case.step.batch_size
        read = max(0.0, whole - stage)
        if self.times.fetch is not None:
            read = min(read, self.times.fetch.value * self.available)
        self.stage_part = min(1.0, (whole - read) / float(self.lane[0]))
        self.stage_cpu_part = (whole - read) / whole
        self.stretched = max(1.0, (whole - read) / stage)

    def _lane(self, paced_by: Arm, alone: Quantity | None) -> Draws | None:
        """Worker seconds of a batch: the loader's own step time × its workers.

        Where the arm waited for the loader, its delivery time beside the running device counts, and the loader's own
        only if it is surely longer: it has few windows, so that what two of them differ by would be a gain's interval.
        The time that its workers waited for a processor is none of their work: another number of workers waits less.
        """
        seconds = None if alone is None else _array(alone)
        arm = self.arms.get(paced_by)
        if arm is not None and arm.mean("stall") > STALLED_FRACTION * arm.mean("duration"):
            step = _array(self.times.real if paced_by is Arm.REAL or self.times.ram is None else self.times.ram)
            if self.case.feed.workers == 0:  # in series with issuing
                step = np.maximum(step - self.issue, 1e-9)
            surely_longer = alone is not None and alone.n > 1 and alone.low > float(step[0])
            seconds = np.maximum(seconds, step) if seconds is not None and surely_longer else step
        return None if seconds is None else seconds * self.lanes * self.running

    def speedup(self, change: Change, *, queued: bool = False) -> Draws | None:
        """T_real ÷ T', per sample; None where a part of it was not measured. `queued`: with what slow files and
        standstills leave of it, by simulation, which takes tens of milliseconds."""
        step = self._step_s(change)
        if step is None:
            return None
        held_up = self._held_up(self.case.changed(**change)) if queued else None
        if held_up is not None:
            step = np.maximum(step, held_up)
        return self.real / step * self.case.changed(**change).step.batch_size / self.case.step.batch_size

    def predict(self, change: Change) -> Estimate | None:
        """The speed-up with its interval, which includes the model's own error unless the outcome was measured."""
        gain = self.speedup(change, queued=True)
        if gain is None:
            return None
        if change == MEMORY:
            return interval(gain[0], gain[1:], "ratio", self.num_blocks, "the arm `ram`; block bootstrap, 95 %")
        spread = np.random.default_rng(7).normal(0.0, np.log1p(MODEL_ERROR) / 1.96, len(gain) - 1)
        method = f"model of measured parts (analysis/advice.py), ± {MODEL_ERROR:.0%} of its own; block bootstrap, 95 %"
        return interval(gain[0], gain[1:] * np.exp(spread), "ratio", self.num_blocks, method)

    def _step_s(self, change: Change) -> Draws | None:
        new, old = self.case.changed(**change), self.case
        in_memory = self._moves_to_memory(new)
        if change == MEMORY:
            return None if self.times.ram is None else _array(self.times.ram)
        factor = new.step.batch_size / old.step.batch_size
        consumer = self._consumer(new, factor)
        # Where other threads read, a worker's time is its own work, and the wait for them, which their number decides.
        reads_apart = new.feed.loader_options.get(IO_THREADS) != old.feed.loader_options.get(IO_THREADS)
        lane = self.lane_in_memory if in_memory or (reads_apart and new.feed.loader == old.feed.loader) else self.lane
        if consumer is None or lane is None:
            return None
        cpu, ratio = self.lane_cpu, self._stage_ratio(new)
        if ratio is None:
            return None
        if new.feed.workers <= self.cpus < self.lanes:
            ratio = ratio / self.stretched
        elif new.feed.decoder != old.feed.decoder:  # one that needs less of the caches pays less of that price
            less = np.random.default_rng(19).uniform(1 / self.stretched, 1.0, len(ratio))
            less[0] = (1 / self.stretched + 1.0) / 2  # measured: some pay all of it, some nothing
            ratio = ratio * less
        lane = lane * (1 - (self.stage_part or 0.0) * (1 - ratio))
        cpu = None if cpu is None else cpu * (1 - self.stage_cpu_part * (1 - ratio))
        handing = 0.0 if self._in_threads(new.feed.loader) and not self.in_threads else self.handing_cpu
        if new.feed.workers == 0:
            waits = self.running if old.feed.workers == 0 else 1.0  # what others kept from it they keep from it still
            return np.asarray(np.maximum(consumer, factor * lane / waits + self.issue))
        lanes_change = new.feed.workers != self.lanes or old.feed.workers == 0
        if lanes_change and (cpu is None or (self.storage_unknown and not in_memory)):
            return None  # how many workers the processors, or the storage, can feed is not known
        crowd = self._crowding(new.feed.workers) / self._crowding(self.lanes)
        parts = [consumer, factor * lane * crowd / new.feed.workers]
        if cpu is not None:
            parts.append((factor * (cpu * crowd + handing) + self.consumer_cpu) / self.available)
        if factor > 1.0:
            parts.append(self.real)  # a step of more samples is never shorter
        if self.fetch is not None and not in_memory:
            parts.append(factor * self._fetch_with(self._readers_of(new)))
        if self.storage_unknown and not in_memory:
            floor = self.real * np.random.default_rng(29).uniform(0.0, 1.0, len(self.real))
            floor[0] = 0.0
            parts.append(floor)
        probed = self.probe.decoders.get(new.feed.decoder or "")
        if self._in_threads(new.feed.loader) and probed is not None:
            rate, scaled = probed.all_cpus_rate, self._scale_ratio(new)
            if rate and scaled is not None and new.feed.workers >= self.cpus:  # Python's lock included
                batch_s = np.full_like(lane, new.step.batch_size / rate)
                if self.in_threads and new.feed.decoder == old.feed.decoder:  # they do at least what they did
                    batch_s = np.minimum(batch_s, factor * self.real)
                parts.append(batch_s * scaled)
        return np.asarray(np.maximum.reduce(parts))

    def _held_up(self, new: Case) -> Draws | None:
        """Step time of a changed loader by its queue over slow files or standstills: with more workers they lie on
        fewer of these, but no worker reads in a standstill. None where there are none, or the loader has no queue.

        It is the measured step × what the simulated one changes by. Workers that are more than the processors take
        longer for a batch, as they wait for each other.
        """
        now_s = self._now_queued_s
        if self.queue is None or now_s is None or not new.feed.workers or self._moves_to_memory(new):
            return None
        then_s = self._queued_s(self.queue, new)
        return None if then_s is None else np.asarray(self.real * then_s / now_s)

    @cached_property
    def _now_queued_s(self) -> float | None:
        return None if self.queue is None else self._queued_s(self.queue, self.case)

    def _moves_to_memory(self, new: Case) -> bool:
        return new.subject.cache == "warm" and self.case.subject.cache != "warm"

    def _queued_s(self, queue: Queue, case: Case) -> float | None:
        """Seconds a step of a case by simulation of its queue; None where a part of it is not known."""
        traits = self.known.get(case.feed.loader)
        factor = case.step.batch_size / self.case.step.batch_size
        consumer, ratio = self._consumer(case, factor), self._stage_ratio(case)
        if traits is None or consumer is None or ratio is None:
            return None
        crowd = max(1.0, case.feed.workers / self.available)
        changed = replace(
            queue,
            batch=case.step.batch_size,
            workers=case.feed.workers,
            depth=traits.buffer_batches(case.feed),
            prep_s=queue.prep_s * self.running * crowd * factor * float(ratio[0]),
            io_threads=self._readers_of(case) if queue.io_threads else 0,
        )
        return changed.step_s(float(consumer[0]))

    def _consumer(self, new: Case, factor: float) -> Draws | None:
        """Step time of device and copy when data are always ready."""
        if self.base is None or self.device is None:
            return None
        smaller = PIXEL_BYTES[new.feed.output] / PIXEL_BYTES[self.case.feed.output]
        copy = self.copy * smaller
        if factor == 1.0 and self.overlap:
            rest = self.base - np.maximum(self.device, self.copy)
            return np.asarray(np.maximum(self.device, copy) + np.maximum(rest, 0.0))
        if factor == 1.0:
            return np.asarray(self.device + (self.base - self.device) * smaller)
        if self.busy is None:
            return None
        both = np.maximum(self.busy, copy) if self.overlap else self.busy + copy
        return np.asarray(np.maximum(factor * both, self.issue))

    def _stage_ratio(self, new: Case) -> Draws | None:
        """Cost of decode, augment and collate after the change ÷ before, by the probe; None: not known."""
        old, same = self.case.feed, np.ones_like(self.real)
        if _stages(new.feed) == _stages(old):
            return same
        crowded = self.running < 1.0 - WAITED
        before, after = self._stage_s(self.case, crowded=crowded), self._stage_s(new, crowded=crowded)
        if before is not None and after is not None and self.stage_part is not None:
            return after / before
        # Fewer bytes never cost the workers more.
        return same if (new.feed.loader, new.feed.decoder) == (old.loader, old.decoder) else None

    def _stage_s(self, case: Case, *, crowded: bool = False) -> Draws | None:
        """Probed CPU seconds an image, the same resampled images for every decoder. `crowded`: with all processors at
        work, where that was probed."""
        probed = self.probe.decoders.get(case.feed.decoder or "")
        image_s, handed = (() if probed is None else probed.image_s), self.probe.handover_s
        if self.as_torchvision(case) and probed is not None:
            image_s, handed = probed.as_torchvision_s[case.feed.output], self.probe.stack_s
        handover, scaled = self._handover_s(case, handed), self._scale_ratio(case)
        if probed is None or not image_s or handover is None or scaled is None:
            return None
        seconds = np.asarray(image_s, dtype=np.float64)
        picks = np.random.default_rng(11).integers(len(seconds), size=(len(self.real) - 1, len(seconds)))
        means = np.concatenate([[seconds.mean()], seconds[picks].mean(axis=1)])
        if crowded and probed.all_cpus_image_s is not None:
            means = means * (probed.all_cpus_image_s / float(np.mean(probed.image_s)))
        return np.asarray(means * scaled + handover)

    def _handover_s(self, case: Case, handed: Mapping[str, Mapping[str, float]]) -> Draws | None:
        """CPU seconds an image of the memory that finished samples are written into."""
        traits, known = self.known.get(case.feed.loader), handed.get(case.feed.output, {})
        if traits is None or not known:
            return None
        if traits.handover is not None:
            found = known.get(traits.handover)
            return None if found is None else np.full_like(self.real, found)
        low, high = min(known.values()), max(known.values())
        draws = np.random.default_rng(31).uniform(low, high, len(self.real))
        draws[0] = (low + high) / 2
        return draws

    def _scale_ratio(self, case: Case) -> Draws | None:
        """Cost of decode and resize with the case's `--decode-scale` ÷ with the present one, on the same resampled
        samples; None: not known."""
        new, old = case.feed.decode_scale == SCALED, self.case.feed.decode_scale == SCALED
        if new == old or not self.scales(case.feed.decoder):
            return np.ones_like(self.real) if new == old or not new else None
        probed = self.probe.scales[case.feed.decoder or ""]
        off, auto = np.asarray(probed.off_s), np.asarray(probed.auto_s)
        picks = np.random.default_rng(37).integers(len(off), size=(len(self.real) - 1, len(off)))
        ratio = np.concatenate([[auto.mean() / off.mean()], auto[picks].mean(axis=1) / off[picks].mean(axis=1)])
        return ratio if new else 1 / ratio

    def as_torchvision(self, case: Case) -> bool:
        """Whether the case's loader makes samples as torchvision's users do, as far as the probe knows what that costs
        (runs of older versions never did)."""
        traits, probed = self.known.get(case.feed.loader), self.probe.decoders.get(case.feed.decoder or "")
        if traits is None or not traits.as_torchvision or case.feed.loader_options.get(SAMPLES) == DIRECT:
            return False
        return probed is not None and case.feed.output in probed.as_torchvision_s

    def _crowding(self, workers: int) -> float:
        """CPU time of an image with `workers` processors busy ÷ with one: linear between one and all."""
        probed = self.probe.decoders.get(self.case.feed.decoder or "")
        if self.cpus < 2 or probed is None or not probed.image_s or probed.all_cpus_image_s is None:
            return 1.0
        whole = max(1.0, probed.all_cpus_image_s / float(np.mean(probed.image_s)))
        return 1.0 + (whole - 1.0) * (min(workers, self.cpus) - 1) / (self.cpus - 1)

    def _readers_of(self, case: Case) -> int:
        """Files that the loader of a case reads at once."""
        traits = self.known.get(case.feed.loader)
        if traits is None:
            return case.feed.lanes
        ahead = int(case.feed.loader_options.get(IO_THREADS, 0)) if traits.reads_ahead else 0
        return ahead or traits.readers or case.feed.lanes

    def _fetch_with(self, readers: int) -> Draws:
        """T_fetch for another number of readers: the measured one × the ratio by the storage probe.

        Without a probe more readers may or may not be faster, which widens the interval.
        """
        assert self.fetch is not None
        gain = storage.gain_with_readers(self.facts.storage.ceiling, self.readers, readers)
        if gain is not None:
            return self.fetch / gain
        best = min(1.0, self.readers / readers)
        spread = np.random.default_rng(13).uniform(best, 1.0, len(self.fetch))
        spread[0] = 1.0
        return self.fetch * spread

    @property
    def shared(self) -> bool:
        """Whether others use so much of the processors that fewer threads would lose to them what this run has now: a
        fair scheduler gives to each thread alike, unless it deals with whole groups of them."""
        return self.seen is not None and (self.seen.neighbours or 0.0) >= MUCH_HELD

    @property
    def memory_helps(self) -> bool:
        """Whether the data set can be kept in memory, and is not yet."""
        copy = self.facts.storage.ram_copy
        return self.case.subject.cache != "warm" and (copy is None or copy.memory_holds_all is not False)

    def _in_threads(self, loader: str) -> bool:
        """Whether `loader` makes samples with our decoders in threads of one process."""
        traits = self.known.get(loader)
        return traits is not None and traits.work == "threads" and traits.handover is not None

    @property
    def in_threads(self) -> bool:
        """Whether the present loader does so."""
        return self._in_threads(self.case.feed.loader)

    def loader_with(self, work: Work) -> str | None:
        """A loader that works in `work` and whose preparation can be predicted; None: there is none."""
        return next((name for name, traits in self.facts.loader.alternatives.items() if traits.work == work), None)

    def knee(self, change: Change, numbers: Iterable[int]) -> int | None:
        """The least number of workers that gives KNEE of the best predicted rate; None where unpredictable."""
        return self.knee_of({number: {**change, "workers": number} for number in numbers})

    def knee_of(self, changes: Mapping[int, Change]) -> int | None:
        """The same for other numbers: each with its change."""
        gains = {}
        for number, change in changes.items():
            gain = self.speedup(change)
            if gain is None:
                return None
            gains[number] = float(gain[0])
        if not gains:
            return None
        best = max(gains.values())
        return min(number for number, gain in gains.items() if gain >= KNEE * best)

    def fastest_decoder(self, *, scaling: bool = False) -> str | None:
        """The fastest decoder by the probe, of those that scale or of all; None where none was probed."""
        probed = {
            name: np.mean(decoder.image_s)
            for name, decoder in self.probe.decoders.items()
            if not scaling or self.scales(name)
        }
        return min(probed, key=lambda name: float(probed[name])) if probed else None

    def scales(self, decoder: str | None) -> bool:
        """Whether the decoder takes `--decode-scale`, by the probe."""
        probed = self.probe.scales.get(decoder or "")
        return probed is not None and len(probed.off_s) > 0

    def with_loader(self, name: str) -> dict[str, FieldValue]:
        """Another loader, with those of the case's options that it takes by its traits."""
        feed, traits = self.case.feed, self.known[name]
        taken = {SAMPLES: traits.as_torchvision, IO_THREADS: traits.reads_ahead}
        options = {key: value for key, value in feed.loader_options.items() if taken.get(key)}
        return {"loader": name} | ({} if options == feed.loader_options else {"loader_options": options})

    def with_decoder(self, name: str) -> dict[str, FieldValue]:
        """A decoder, without the case's options where it is another one; `--decode-scale` stays if it takes that."""
        feed, change = self.case.feed, dict[str, FieldValue](decoder=name)
        if name != feed.decoder:
            change |= {"decoder_options": {}} if feed.decoder_options else {}
            change |= {"decode_scale": None} if feed.decode_scale and not self.scales(name) else {}
        return change


def _stages(feed: Feed) -> tuple[object, ...]:
    """What the stages decode, augment and collate do, as far as their cost goes."""
    scaled, samples = feed.decode_scale == SCALED, feed.loader_options.get(SAMPLES)
    return feed.loader, feed.decoder, scaled, feed.output, samples


def _array(quantity: Quantity) -> Draws:
    return np.concatenate([[quantity.value], quantity.draws])


def _worker_parts(spans: Table | None, like: Draws) -> tuple[Draws | None, float | None, float]:
    """(CPU seconds of a batch, part of a worker's wall time in decode, augment and collate, part of its
    CPU time there)."""
    if spans is None or len(spans) == 0:
        return None, None, 0.0

    def of(name: str) -> NDArray[np.int64]:
        return spans[:, SPAN[name]]

    wall = float((of("ready_ns") - of("start_ns")).mean())
    stage = float((of("decode_ns") + of("augment_ns") + of("collate_ns")).mean())
    cpu = of("cpu_ns") / 1e9
    if not wall > 0 or not cpu.mean() > 0:
        return None, None, 0.0
    picks = np.random.default_rng(17).integers(len(cpu), size=(len(like) - 1, min(len(cpu), 64)))
    draws = np.concatenate([[cpu.mean()], cpu.mean() + (cpu[picks].mean(axis=1) - cpu.mean())])
    queued = float(of("runqueue_ns").mean()) if (of("runqueue_ns") >= 0).all() else 0.0
    running = max(0.0, 1.0 - queued / wall)  # these stages only compute: when not running they were queued
    return draws, min(1.0, stage / wall), min(1.0, stage * running / 1e9 / float(cpu.mean()))


def _for_storage(predictor: Predictor, measured: Measured) -> list[Action]:
    facts = predictor.facts
    real, ram, probe = predictor.arms[Arm.REAL], predictor.times.ram, facts.storage.ceiling
    details: dict[str, Json] = {}
    if ram is not None and real.encoded_bytes:
        details = storage.headroom(real.encoded_bytes / real.num_steps / ram.value, probe)
    found = measured.storage
    kind = None if found is None else found.kind  # knows a capped rate by more than the probe
    # A storage that gives more than the run could take is no reason to buy a faster one, unless it is now and then that
    # it does not; memory always answers sooner.
    enough = storage.is_enough(details)
    code = "data_in_memory" if enough else "faster_storage"
    change = MEMORY if predictor.memory_helps else None
    details |= {"kind": kind} if enough else {}
    proposed = [] if enough and change is None and kind not in NOW_AND_THEN else [code]
    actions = [Action("storage", one, change, predictor.predict(MEMORY), details) for one in proposed]
    late = kind == "latency" or (kind not in STANDS and storage.bound_by(probe, predictor.readers) == "latency")
    actions += _more_readers(predictor) if late else []
    actions += _more_prefetch(predictor, measured.queue)
    if found is not None and found.kind == "latency" and found.latency_of == "open":
        actions.append(Action("storage", "fewer_opens"))
    if found is not None and found.tail is not None and (found.tail.same_files or found.tail.folder is not None):
        where: dict[str, Json] = {"folder": found.tail.folder, "files": [one.path for one in found.tail.files]}
        actions.append(Action("storage", "slow_files_elsewhere", details=where))
    if found is not None and found.slow_folder is not None:
        actions.append(Action("storage", "slow_files_elsewhere", details={"folder": found.slow_folder.folder}))
    return actions


def _more_prefetch(predictor: Predictor, queue: Queue | None) -> list[Action]:
    """Against slow files and stalls: a deeper queue bridges them. Predicted by simulation (latency.Queue)."""
    now = predictor.case.feed.prefetch
    if queue is None or predictor.base is None or not now:
        return []
    host_s = float(predictor.base[0])
    numbers = [now, *(now * factor for factor in (2, 4, 8) if now * factor <= MOST_PREFETCH)]
    steps = {number: replace(queue, depth=queue.depth * number // now).step_s(host_s) for number in numbers}
    number = min(one for one, step in steps.items() if step <= min(steps.values()) / KNEE)
    if number == now:
        return []
    spread = np.random.default_rng(23).normal(0.0, np.log1p(MODEL_ERROR) / 1.96, len(predictor.real) - 1)
    gain = np.concatenate([[0.0], spread])
    gain = steps[now] / steps[number] * np.exp(gain)
    if (memory := predictor.speedup(MEMORY)) is not None:  # no queue makes it faster than a storage that costs nothing
        gain = np.minimum(gain, np.maximum(memory, 1.0))
    predicted = interval(gain[0], gain[1:], "ratio", predictor.num_blocks, "simulated queue, ± 10 %")
    return [Action("storage", "more_prefetch", {"prefetch": number}, predicted, {"now": now})]


def _ahead(predictor: Predictor, found: StorageFigures | None, actions: Sequence[Action]) -> list[Action]:
    """Against slow files and stalls, for a loader that has no queue: one that reads ahead, where none of the `actions`
    is another loader. What that gives is not predicted: its workers would share processors that this loader left
    alone."""
    parallel = predictor.loader_with("processes")
    if parallel is None or predictor.case.feed.workers or found is None or found.kind not in NOW_AND_THEN:
        return []
    if any("loader" in (one.change or {}) for one in actions):
        return []
    return [Action("storage", "parallel_loader", details={"loader": parallel, "workers": predictor.cpus})]


def _more_readers(predictor: Predictor) -> list[Action]:
    """Against latency: read more files at once."""
    case = predictor.case
    if predictor.traits.readers is not None:  # a fixed number, whatever the workers
        return []
    if IO_THREADS in case.feed.loader_options and predictor.traits.reads_ahead:
        return _more_io_threads(predictor)
    change: Change = {}
    if case.feed.workers == 0:
        parallel = predictor.loader_with("processes")
        if parallel is None:
            return []
        change = predictor.with_loader(parallel)
    most = max(predictor.lanes, predictor.most_workers)
    number = predictor.knee(change, range(predictor.lanes, most + 1))
    if number is None or predictor.facts.storage.ceiling is None:  # how many readers it serves at once is not known
        return [Action("storage", "more_files_at_once", {**change, "workers": most})] if most > predictor.lanes else []
    if number <= case.feed.workers:
        return []
    change = {**change, "workers": number}
    return [Action("storage", "more_files_at_once", change, predictor.predict(change))]


def _more_io_threads(predictor: Predictor) -> list[Action]:
    """The same where threads of their own read ahead: their number counts, not that of the workers."""
    options, now = predictor.case.feed.loader_options, predictor.readers
    changes: dict[int, Change] = {
        number: {"loader_options": {**options, IO_THREADS: str(number)}}
        for number in range(now, max(now, MOST_READERS) + 1)
    }
    number = predictor.knee_of(changes)
    if number is None or number == now:
        return []
    return [Action("storage", "more_files_at_once", changes[number], predictor.predict(changes[number]))]


def _for_contention(predictor: Predictor, measured: Measured, verdict: Verdict) -> list[Action]:
    """Free the processors: what that gives is what the arms say of contention as a whole."""
    gain, seen = verdict.speedup_if_removed.get("contention"), predictor.seen
    if seen is None:
        return []
    match measured.held_up_by:
        case "neighbours":
            told: tuple[str, dict[str, Json]] = ("stop_neighbours", {"cores": seen.neighbours})
        case "steal":
            told = ("less_steal", {"cores": seen.stolen})
        case "quota":
            told = ("raise_quota", {"quota": seen.quota_cpus})
        case "own threads":
            told = ("fewer_threads", {})
        case _:
            return []
    return [Action("contention", told[0], None, gain, {**told[1], "cpus": seen.cpus})]


def _fewer_workers(predictor: Predictor) -> list[Action]:
    """As many workers as the processors can feed, where more of them only wait for each other."""
    workers, cpus = predictor.case.feed.workers, predictor.cpus
    if not predictor.contention or workers <= cpus or predictor.shared:
        return []
    number = predictor.knee({}, range(1, workers + 1))
    if number is None or number >= workers:
        return []
    change: Change = {"workers": number}
    details: dict[str, Json] = {"now": workers, "cpus": cpus}
    return [Action("contention", "fewer_workers", change, predictor.predict(change), details)]


def _for_prep(predictor: Predictor) -> list[Action]:
    subject, feed, size = predictor.case.subject, predictor.case.feed, predictor.case.step.input_size
    actions = [*_more_workers(predictor), *_other_decoders(predictor), *_scaled_decode(predictor)]
    actions += _direct_samples(predictor)
    if predictor.traits.handover == "shared" and feed.output == "float32":
        change: Change = {"output": "uint8"}
        actions.append(Action("prep", "uint8_for_prep", change, predictor.predict(change)))
    if subject.resolution and size and subject.resolution >= 2 * size:
        actions.append(Action("prep", "smaller_images", details={"resolution": subject.resolution // 2}))
    waited = (predictor.starved or 0.0) > WAITED
    if predictor.contention and predictor.seen is None and waited:  # an older version did not store who had them
        actions.append(Action("prep", "free_processors"))
    return [one for one in actions if one.change is None or one.predicted is not None]


def _more_workers(predictor: Predictor) -> list[Action]:
    """More workers, or a loader that has them; with the knee."""
    feed, limit = predictor.case.feed, predictor.most_workers
    actions: list[Action] = []
    if feed.workers == 0:
        actions += _in_parallel(predictor, limit)
    elif feed.workers < limit:
        number = predictor.knee({}, range(feed.workers, limit + 1))
        if number is None and feed.workers < predictor.cpus and not predictor.contention:
            details: dict[str, Json] = {"workers": predictor.cpus, "now": feed.workers}
            actions.append(Action("prep", "more_workers", details=details))
        elif number is not None and number > feed.workers and not predictor.in_threads:
            change: Change = {"workers": number}
            actions.append(Action("prep", "more_workers", change, predictor.predict(change), {"now": feed.workers}))
    return [*actions, *_threads(predictor)]


def _in_parallel(predictor: Predictor, limit: int) -> list[Action]:
    parallel = predictor.loader_with("processes")
    if parallel is None:
        return []
    number = predictor.knee(predictor.with_loader(parallel), range(1, limit + 1))
    if number is None:
        return [Action("prep", "parallel_loader", details={"loader": parallel, "workers": predictor.cpus})]
    change: Change = {**predictor.with_loader(parallel), "workers": number}
    return [Action("prep", "parallel_loader", change, predictor.predict(change))]


def _threads(predictor: Predictor) -> list[Action]:
    """Threads instead of processes, with the fastest decoder, or more of them."""
    feed, threads = predictor.case.feed, predictor.loader_with("threads")
    if predictor.traits.handover is None or threads is None:
        return []
    change: dict[str, FieldValue] = {}
    fastest = predictor.fastest_decoder()
    if not predictor.in_threads:
        change = predictor.with_loader(threads) | (predictor.with_decoder(fastest) if fastest else {})
        change |= {"output": "uint8"}
    most = max(predictor.most_workers, feed.workers)
    # Workers that wait for each other would do so as threads too.
    fewer = change and predictor.contention and predictor.seen is not None and not predictor.shared
    least = 1 if fewer else max(feed.workers, 1)
    number = predictor.knee(change, range(least, most + 1))
    if number is None or (not change and number <= feed.workers):
        return []
    change["workers"] = number
    code = "more_threads" if predictor.in_threads else "decode_in_threads"
    return [Action("prep", code, change, predictor.predict(change))]


def _other_decoders(predictor: Predictor) -> list[Action]:
    feed, fastest = predictor.case.feed, predictor.fastest_decoder()
    if fastest is None or fastest == feed.decoder:
        return []
    change = predictor.with_decoder(fastest)
    return [Action("prep", "other_decoder", change, predictor.predict(change))]


def _scaled_decode(predictor: Predictor) -> list[Action]:
    """Large crops decoded at 1/2, 1/4 or 1/8, where that gives something beyond what its decoder gives. It changes the
    pixels: `details` say by how much."""
    feed = predictor.case.feed
    decoder = feed.decoder if predictor.scales(feed.decoder) else predictor.fastest_decoder(scaling=True)
    if decoder is None or feed.decode_scale == SCALED:
        return []
    unscaled = {} if decoder == feed.decoder else predictor.with_decoder(decoder)
    change: Change = {**unscaled, "decode_scale": SCALED}
    gain, without = predictor.speedup(change), predictor.speedup(unscaled)
    if gain is None or without is None or gain[0] < WORTH_TRYING * without[0]:
        return []
    details = _pixels(predictor.probe.scales[decoder])
    return [Action("prep", "scaled_decode", change, predictor.predict(change), details)]


def _pixels(probe: ScaleProbe) -> dict[str, Json]:
    return plain.to_object(pixel_difference(probe))


def _direct_samples(predictor: Predictor) -> list[Action]:
    """Samples straight into their batch, instead of the copies of torchvision's transforms and the collate."""
    if not predictor.as_torchvision(predictor.case):
        return []
    change: Change = {"loader_options": {**predictor.case.feed.loader_options, SAMPLES: DIRECT}}
    return [Action("prep", "direct_samples", change, predictor.predict(change))]


def _for_transfer(predictor: Predictor) -> list[Action]:
    actions = []
    if predictor.case.feed.output == "float32":
        change: Change = {"output": "uint8"}
        actions.append(Action("transfer", "uint8_for_transfer", change, predictor.predict(change)))
    if predictor.facts.copy.pinned is False:
        actions.append(Action("transfer", "pinned_memory"))
    return actions


def _for_launch(predictor: Predictor) -> list[Action]:
    now = predictor.case.step.batch_size
    change: Change = {"batch_size": 2 * now}
    return [
        Action("launch", "larger_batch", change, predictor.predict(change), {"now": now}),
        Action("launch", "fewer_launches"),
    ]


def _together(predictor: Predictor, actions: Sequence[Action]) -> list[Action]:
    """Storage and preparation bound the run together: the best change of prep with the data in memory."""
    best: Action | None = None
    for one in actions if predictor.memory_helps else ():
        if one.cause != "prep" or one.change is None:
            continue
        change = {**one.change, **MEMORY}
        predicted = predictor.predict(change)
        if predicted is not None and (best is None or best.predicted is None or predicted.value > best.predicted.value):
            best = Action("prep", "prep_and_memory", change, predicted, {**(one.details or {}), "of": one.code})
    return [] if best is None else [best]
