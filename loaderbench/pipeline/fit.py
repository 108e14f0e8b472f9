"""From a run's recording to its pipeline: stamps of host, device and workers become what each batch costs each stage.

Five things a stamp does not say by itself:

- What comes in time and not with batches is no property of a batch: standstills of the whole storage leave the reads
  and return as standstills.
- A recorded read holds the wait for the other readers that it met. What the storage works for a batch is by the probe,
  else by `real` and `fetch`, where a reader meets some of the others and all of them.
- A worker's wait for a processor stays where it is behind other processes; behind the run's own threads it follows from
  the processors, and leaves the preparation.
- A batch that lay ready for a whole step takes the host what taking over costs; beyond that the host waited for the
  worker to send it.
- A device that was late waited for the host: the step with data at hand says what it takes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis import storage
from loaderbench.analysis.latency import Reads, reads_of, stalls
from loaderbench.analysis.processors import ANOTHER, FULL, Processors, available, processors_of
from loaderbench.cases.arms import Arm
from loaderbench.pipeline.replay import Order, step_s
from loaderbench.pipeline.stages import Batches, Stages, Standstill, Times
from loaderbench.recording.facts import (
    MAX_STEPS_IN_FLIGHT,
    PAUSE,
    READ,
    SCRIPT_LANE,
    SPAN,
    STEP,
    Recording,
    Run,
    Segment,
    Table,
)

NS = 1e-9
SLOW = 3.0
"""A file is slow from so many times the typical one on: beyond, an exponential tail has 1 in 20 (e⁻³)."""
EXPLAINED = 0.10
"""A residual beyond this is none of a run that is explained: twice what two witnesses may differ by (AGREEMENT)."""
PACED = 0.9
"""A device that computes for this part of the step paces the run."""
SURELY = 2.0
"""Standard errors that two means must differ by: 95 %."""
QUEUED = 0.5
"""Waiting for processors ÷ running, below which it is the scheduler's own: beside one other thread a thread waits as
long as it runs."""
ALL_MET = 0.1
"""Readers: where `real` meets as many as `fetch`, but for so few, the two are one point."""
CALIBRATING = (Arm.DEVICE, Arm.HOST, Arm.RAM, Arm.FREE, Arm.PREP, Arm.FETCH)
FED = (Arm.DEVICE, Arm.HOST)


@dataclass(frozen=True)
class Uneven:
    """What makes the storage slow at times."""

    typical_s: float = 0.0
    """Median seconds of a file."""
    standstill: Standstill | None = None
    pauses: NDArray[np.int64] | None = None
    """[P, 2] begin and end of each, where they leave the reads."""

    def inside(self, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Times:
        """Seconds of standstills in each interval."""
        if self.pauses is None or not len(self.pauses):
            return np.zeros(len(begin))
        met = np.minimum(end[:, None], self.pauses[:, 1]) - np.maximum(begin[:, None], self.pauses[:, 0])
        return np.asarray(met.clip(0).sum(axis=1) * NS)


@dataclass(frozen=True)
class Waits:
    """Who waited for processors in `real`, one value a window; all are parts of the time."""

    behind_others: Times
    """Of a wait for a processor, what is behind other processes and guests. A quota leaves fewer processors."""
    host: Times
    """The host's thread waited for one."""
    loader: Times
    """The loader's threads did, of the time in which they could have run."""
    host_cpu_s: Times
    """CPU seconds a step of the host's thread."""


@dataclass(frozen=True)
class Fitted:
    """A run's pipeline, with what its other arms say of it."""

    run: Run
    recording: Recording
    real: Stages
    arms: Mapping[Arm, Stages]
    seen: Processors | None
    """Who had the processors in `real`."""
    waits: Waits | None
    recorded: Stages
    """`real` with the batches of whole warm-ups, too."""
    fetch_s: float = 0.0
    """Seconds a batch of reading alone, all readers together."""

    @property
    def is_watched(self) -> bool:
        return self.recording.facts.watched is not None


def fit(run: Run, calibrated: Collection[int] | None = None, replayed: Collection[int] | None = None) -> Fitted | None:
    """The pipeline of a run; None where no step of `real` is complete.

    Where the storage seems to stand still, and standstills do not explain the run, it has slow files.

    Args:
        calibrated: rounds that tell all but the batches of `real`; None: all.
        replayed: rounds whose batches of `real` are taken; None: all.
    """
    if run.recording is None:
        return None
    known = _of_rounds(run.recording, calibrated)
    taken = known.segments if replayed is None else _of_rounds(run.recording, replayed).segments
    rest = [one for one in known.segments if one.arm is not Arm.REAL]
    recording = replace(known, segments=[*(one for one in taken if one.arm is Arm.REAL), *rest])
    uneven = _uneven(known, run.case.feed.lanes)
    found = _Fit(run, recording, uneven).fitted()
    if found is None or uneven.standstill is None or abs(residual(found)) <= EXPLAINED:
        return found
    return _Fit(run, recording, replace(uneven, standstill=None, pauses=None)).fitted()


def giving_workers(recording: Recording, workers: int) -> int:
    """How many of a loader's workers gave batches in the windows of `real`; all of them where that is not known."""
    spans = [one.spans for one in recording.of(Arm.REAL) if one.spans is not None]
    if not spans or workers < 2:
        return workers
    counts = np.bincount(np.concatenate([one[:, SPAN["worker"]] for one in spans]), minlength=workers)
    return max(1, int((counts >= LEAST_PART * counts.sum() / workers).sum()))


def _of_rounds(recording: Recording, rounds: Collection[int] | None) -> Recording:
    kept = recording.segments if rounds is None else [one for one in recording.segments if one.round in rounds]
    return replace(recording, segments=kept)


def residual(fitted: Fitted) -> float:
    """Step replayed ÷ measured, less 1, of the windows of `real`, each in the order in which it was recorded."""
    stages, replayed_s, measured_s = fitted.recorded, 0.0, 0.0
    for number in np.unique(stages.window):
        rows = np.flatnonzero(stages.window == number)
        counted = int(stages.inside[rows].sum())
        order = Order(rows[None], np.array([counted]), 1, 1)
        replayed_s += counted * float(step_s(replace(stages, measured_s=np.inf), order)[0])
        measured_s += counted * float(stages.window_s[number])
    return replayed_s / measured_s - 1.0


def _uneven(recording: Recording, lanes: int) -> Uneven:
    readers = recording.facts.loader.num_readers or lanes

    def of(*arms: Arm) -> Reads | None:
        return reads_of([one.reads for arm in arms for one in recording.of(arm)], readers)

    real, files = of(Arm.REAL), of(Arm.REAL, Arm.FREE, Arm.FETCH)
    known = real or files
    if known is None or files is None:
        return Uneven()
    typical_s, stood = known.typical_s, stalls(known, files)
    if stood is None or stood.period_s <= _mean_span_s(recording):  # pauses that every batch meets are its reading
        return Uneven(typical_s)
    rows = np.unique(files.stalled[:, [PAUSE["begin_ns"], PAUSE["end_ns"]]], axis=0)
    merged = list[list[int]]()
    for begin, end in rows.tolist():  # the slowest reads waited through several that overlap
        if merged and begin < merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    spread = 0.0 if stood.regular else stood.num**-0.5  # Poisson
    return Uneven(typical_s, Standstill(stood.period_s, stood.length_s, spread), np.array(merged, dtype=np.int64))


def _mean_span_s(recording: Recording) -> float:
    spans = [one.spans[: len(one.steps)] for one in recording.of(Arm.REAL) if one.spans is not None]
    if not sum(len(one) for one in spans):
        return 0.0
    rows = np.concatenate(spans)
    return float((rows[:, SPAN["ready_ns"]] - rows[:, SPAN["start_ns"]]).mean()) * NS


def _late_s(one: Segment) -> Times:
    """From when each batch was ready and asked for until the host had it."""
    assert one.spans is not None
    called, returned = one.steps[:, STEP["called_ns"]], one.steps[:, STEP["returned_ns"]]
    made = np.maximum.accumulate(one.spans[: len(one.steps), SPAN["ready_ns"]])
    return np.asarray((returned - np.maximum(called, made)).clip(0) * NS)


LEAST_PART = 0.25
"""Of an even part of the batches, that a worker gives which counts as one."""


class _Fit:
    """One fit of a recording, with what makes its storage uneven."""

    def __init__(self, run: Run, recording: Recording, uneven: Uneven) -> None:
        self.run, self.recording, self.uneven = run, recording, uneven
        facts, feed = recording.facts, run.case.feed
        script = facts.watched is not None and any(one.lane == SCRIPT_LANE for one in recording.segments)
        loader = facts.watched.loaders[0] if script and facts.watched is not None and facts.watched.loaders else None
        self.script = script
        self.workers = feed.workers if loader is None else loader.workers
        self.depth = facts.loader.traits.buffer_batches(feed) if loader is None else loader.workers * loader.prefetch
        if facts.watched is not None and (gave := giving_workers(recording, self.workers)) < self.workers:
            self.workers, self.depth = gave, max(1, self.depth * gave // self.workers)
        self.in_turn = facts.loader.traits.work != "threads"
        self.on_host_cpus = facts.device.on_host_cpus
        self.take_s = self._take_s()
        self.seen_by_arm = processors_of(recording)
        seen = self.seen_by_arm.get(Arm.REAL)
        if seen is not None:
            part = fair_part(seen, max(1, self.workers) + 1)
            self.processors = max(available(seen) * part, seen.own)  # a quota lets bursts by
        else:
            probe = facts.prep_probe
            known = None if probe is None else probe.num_cpus
            known = known if run.environment is None else run.environment.cpus_usable
            self.processors = float("inf") if known is None else float(known)

    def fitted(self) -> Fitted | None:
        real, recorded = self.stages(Arm.REAL), self.stages(Arm.REAL, whole=True)
        if real is None or recorded is None:
            return None
        arms = {arm: found for arm in CALIBRATING if (found := self.stages(arm)) is not None}
        seen, waits, fetch = self.seen_by_arm.get(Arm.REAL), self._waits(), arms.get(Arm.FETCH)
        real, recorded = (self._calibrated(one, arms, waits) for one in (real, recorded))
        if fetch is not None and real.workers and not real.opaque:
            served_s = _served_s(self.recording, fetch, self.recording.facts.loader.num_readers or real.workers)
            shared_s = _shared_s(real, fetch) if served_s is None else served_s
            real, recorded = replace(real, shared_s=shared_s), replace(recorded, shared_s=shared_s)
        fetch_s = 0.0 if fetch is None else fetch.measured_s
        return Fitted(self.run, self.recording, real, arms, seen, waits, recorded, fetch_s)

    def _take_s(self) -> float:
        """Median seconds that the host takes over a batch that is at hand; of a script at least what its sampler takes
        meanwhile."""
        watched = self.recording.facts.watched
        index_s = 0.0 if watched is None else watched.loaders[0].index_s or 0.0
        took = [_seconds(one, "called_ns", "returned_ns")[max(1, one.num_warmup) :]
                for arm in FED for one in self.recording.of(arm)]  # fmt: skip
        both = np.concatenate(took) if took else np.zeros(0)
        return max(index_s, float(np.median(both))) if len(both) else index_s

    def _calibrated(self, real: Stages, arms: Mapping[Arm, Stages], waits: Waits | None) -> Stages:
        """With what other arms say of a stage that `real` shows only where it is late, and without the workers' waits
        for the run's own threads."""
        if real.opaque and not self.script:
            free = arms.get(Arm.FREE)
            if free is not None and real.batches.device.mean() >= PACED * real.measured_s:
                real = real.with_(prep=np.resize(free.batches.prep, len(real.batches)))
            real = replace(real, workers=1, depth=max(1, real.depth))
        device = arms.get(Arm.DEVICE)
        if device is not None and not self.script:
            real = real.with_(device=np.minimum(real.batches.device, device.measured_s))
        return _without_own_waits(real, waits) if waits is not None and real.workers and not real.opaque else real

    def _waits(self) -> Waits | None:
        """Each window of `real` by itself, the other arms beside it."""
        windows = self.recording.of(Arm.REAL)
        rest = [one for one in self.recording.segments if one.arm is not Arm.REAL]
        whole = self.seen_by_arm.get(Arm.REAL)
        if whole is None:
            return None
        rows = []
        for number in range(len(windows)):
            alone = replace(self.recording, segments=[windows[number], *rest])
            seen = processors_of(alone).get(Arm.REAL, whole)
            queued, busiest = seen.queued_fraction, seen.busiest_queued_fraction
            steps = max(1, len(windows[number].steps) - max(1, windows[number].num_warmup))
            rows.append((
                seen.for_others * seen.held / max(seen.taken, 1e-12),
                min(1.0, (seen.consumer_queued or 0.0) + seen.suspended),
                queued if busiest is None else min(queued, busiest), (windows[number].consumer_cpu_s or 0.0) / steps,
            ))  # fmt: skip
        return Waits(*np.array(rows).T)

    def stages(self, arm: Arm, *, whole: bool = False) -> Stages | None:
        """An arm's windows as they were recorded; None where none has a complete step. Batches of the warm-up are as
        good as any, but for the first ones of each worker. `whole`: with those, too."""
        windows = self.recording.of(arm)
        opaque = all(one.spans is None for one in windows) and arm not in FED
        uneven = self.uneven if arm.touches_storage else replace(self.uneven, standstill=None, pauses=None)
        parts, numbers, inside, window_s, steps, by, late = [], [], [], [], [], [], []
        for number, one in enumerate(windows):
            first = max(1, one.num_warmup)
            if len(one.steps) <= first:
                window_s.append(np.nan)
                continue
            used = first if one.spans is None or self.script else min(first, max(1, 2 * self.workers))
            used = 0 if whole else used
            columns = self._columns(one, uneven, opaque=opaque)
            parts.append(columns.at(np.arange(used, len(one.steps))))
            if one.spans is not None:
                by.append(one.spans[used : len(one.steps), SPAN["worker"]])
                late.append(_late_s(one)[used:])
            numbers.append(np.full(len(one.steps) - used, number))
            inside.append(np.arange(used, len(one.steps)) >= first)
            end = "done_ns" if one.steps[-1, STEP["done_ns"]] >= 0 else "returned_ns"
            steps.append(len(one.steps) - first)
            window_s.append(float(one.steps[-1, STEP[end]] - one.steps[first - 1, STEP[end]]) * NS / steps[-1])
        if not parts:
            return None
        taken = np.array([one for one in window_s if np.isfinite(one)])
        workers = 0 if opaque and self.script else self.workers
        return Stages(
            workers, max(self.depth, workers, 1), self.in_turn,
            0 if self.script or self.on_host_cpus else MAX_STEPS_IN_FLIGHT, self.recording.facts.device.overlap,
            Batches.joined(parts), np.concatenate(numbers), np.concatenate(inside), np.array(window_s),
            float((taken * steps).sum() / sum(steps)), self.processors,
            standstill=uneven.standstill, opaque=opaque,
            worker=np.concatenate(by) if len(by) == len(parts) else None,
            late=np.concatenate(late) if len(late) == len(parts) else None,
        )  # fmt: skip

    def _columns(self, one: Segment, uneven: Uneven, *, opaque: bool) -> Batches:
        """Of all rows of a window. Where nothing is known of a batch's making, it is the host's wait for it in a
        script, else the distance of deliveries."""
        rows = one.steps
        nothing: Times = np.zeros(len(rows))
        called, returned, issued, done = (
            rows[:, STEP[f"{name}_ns"]] for name in ("called", "returned", "issued", "done")
        )
        issue = copy = device = nothing
        if self.script:  # its own work, from a batch to the next call
            issue = _s(done - returned)
        elif done[-1] >= 0 and self.on_host_cpus:
            issue = _s(np.maximum(issued, done) - returned)
        elif done[-1] >= 0:
            issue = _s(issued - returned)
            copy = _seconds(one, "copy_begin_ns", "copy_end_ns")
            before = np.concatenate([[0], done[:-1]])
            device = _s((done - np.maximum(before, rows[:, STEP["copy_end_ns"]])).clip(0))
        prep = nothing
        if opaque and one.arm not in FED:
            before = called if self.script else np.concatenate([called[:1], returned[:-1]])
            prep = _s(returned - before)
        cpu_s, ends = 0.0, (done if done[-1] >= 0 else returned)[max(1, one.num_warmup) - 1 :]
        if one.cpu is not None and not opaque and len(ends) > 1:
            cpu_s = one.cpu.own_s / one.cpu.wall_s * float(ends[-1] - ends[0]) * NS / (len(ends) - 1)
        made = Batches.of(len(rows), prep=prep, issue=issue, copy=copy, device=device, cpu=np.full(len(rows), cpu_s))
        if one.spans is None or len(one.spans) < len(rows):
            late = _s(returned - called) if one.arm in FED else nothing
            return made.changed(take=late)
        return self._by_spans(one, made, uneven)

    def _by_spans(self, one: Segment, made: Batches, uneven: Uneven) -> Batches:
        assert one.spans is not None
        spans = one.spans[: len(one.steps)]
        start, ready = spans[:, SPAN["start_ns"]], spans[:, SPAN["ready_ns"]]
        wall, read = (ready - start) * NS, spans[:, SPAN["read_ns"]] * NS
        read = np.minimum(read, wall)
        read = read - np.minimum(uneven.inside(start, ready), read)
        prep = wall - np.minimum(spans[:, SPAN["read_ns"]] * NS, wall)
        send, take, hand = self._handing(one, start, ready)
        return made.changed(
            read=read, prep=prep, queue=spans[:, SPAN["runqueue_ns"]].clip(0) * NS, cpu=self._cpu_s(one, made),
            read_queue=_read_queue_s(spans), tail=_tail_s(one, uneven, read), hand=hand, send=send, take=take,
        )  # fmt: skip

    def _cpu_s(self, one: Segment, made: Batches) -> Times:
        """Of all threads. Where the run's own were not told, of the worker and of the host's thread: it may wait in a
        script's step, and works in one of ours."""
        assert one.spans is not None
        if one.cpu is not None:
            return made.cpu
        host = np.zeros(len(made)) if self.script else made.issue
        if one.consumer_cpu_s is not None:
            host = np.full(len(made), one.consumer_cpu_s / max(1, len(made) - max(1, one.num_warmup)))
        return one.spans[: len(made), SPAN["cpu_ns"]].clip(0) * NS + host

    def _handing(self, one: Segment, start: Table, ready: Table) -> tuple[Times, Times, Times]:
        """(send, take, hand) of each batch."""
        called, returned = one.steps[:, STEP["called_ns"]], one.steps[:, STEP["returned_ns"]]
        made = np.maximum.accumulate(ready) if self.workers else ready
        late = _late_s(one)
        nothing = np.zeros(len(late))
        if not self.workers:  # what next() takes before and behind the making
            return nothing, _s(((returned - called) - (ready - start)).clip(0)), nothing
        rested = np.concatenate([[False], made[1:] < called[:-1]])  # it lay there for a whole step
        rested[: max(1, one.num_warmup)] = False
        rested &= not self.script
        taking = float(np.median(late[rested])) if rested.any() else self.take_s
        take = np.where(rested, late, np.minimum(late, taking))
        send, waits = late - take, made > called
        if waits.any():  # it is seen only where the host waits for it
            send = np.where(waits, send, np.resize(send[waits], len(send)))
        return send, take, self._hand_s(one, start, ready, returned - (take / NS).astype(np.int64))

    def _hand_s(self, one: Segment, start: Table, ready: Table, taken: Table) -> Times:
        """From when its worker was free and there was room until it began."""
        assert one.spans is not None
        worker, free, hand = one.spans[:, SPAN["worker"]], dict[int, int](), np.zeros(len(start))
        for k in range(len(start)):
            lane = int(worker[k])
            if lane in free and k >= self.depth:
                hand[k] = max(0, int(start[k]) - max(free[lane], int(taken[k - self.depth]))) * NS
            free[lane] = int(ready[k])
        if self.script and len(hand) > self.depth:  # a window of a stream that went on before it
            hand[: self.depth] = hand[self.depth :].mean()
        return hand


def fair_part(seen: Processors, threads: int) -> float:
    """Of the processors, what so many threads get beside those of others, where all want one: shares are fair. Where
    none is idle, a thread that may run does so for the part own ÷ (own + queued) of its time, as own + queued of the
    run's threads share the processors with those of others. 1 beside others that leave some idle: they give way."""
    whole, wanted = available(seen), seen.own + seen.queued
    if not seen.for_others > 0 or seen.own + seen.held < FULL * seen.cpus or seen.queued < QUEUED * seen.own:
        return 1.0
    others = whole * wanted / seen.own - wanted
    return threads / (threads + others) if others >= ANOTHER else 1.0


def _seconds(one: Segment, begin: str, end: str) -> Times:
    return _s(one.steps[:, STEP[end]] - one.steps[:, STEP[begin]])


def _s(ns: Table) -> Times:
    return np.asarray(ns * NS)


def _read_queue_s(spans: Table) -> Times:
    """The waits for a processor while reading; 0 where they were not told apart."""
    if spans.shape[1] <= SPAN["read_queue_ns"]:
        return np.zeros(len(spans))
    return _s(spans[:, SPAN["read_queue_ns"]].clip(0))


def _tail_s(one: Segment, uneven: Uneven, read: Times) -> Times:
    """What the slow files of each batch take beyond typical ones."""
    tail = np.zeros(len(read))
    if one.reads is None or not len(one.reads.slowest):
        return tail
    rows = one.reads.slowest
    begin, took = rows[:, READ["begin_ns"]], rows[:, READ["open_ns"]] + rows[:, READ["read_ns"]]
    more = took * NS - uneven.inside(begin, begin + took) - uneven.typical_s
    batch = rows[:, READ["batch"]] if rows.shape[1] > READ["batch"] else np.full(len(rows), -1)
    slow = (more > (SLOW - 1) * uneven.typical_s) & (batch >= 0) & (batch < len(read))
    np.add.at(tail, batch[slow], more[slow])
    return np.minimum(tail, read)


def _without_own_waits(real: Stages, waits: Waits) -> Stages:
    """A worker that waits for the run's own threads waits for what the replay has a clock for: the processors."""
    one = real.batches
    own = one.queue * (1 - waits.behind_others[real.window])
    reading = np.minimum(one.read_queue * (1 - waits.behind_others[real.window]), one.read)
    prep = np.minimum(own - reading, one.prep)
    reading = np.minimum(own - prep, one.read)
    return real.with_(prep=one.prep - prep, read=one.read - reading, queue=one.queue - prep - reading)


def met(stages: Stages) -> float:
    """Readers that a reader meets at the storage, itself among them: each of the others reads for this part of its
    time."""
    lanes = max(1, stages.workers)
    reading = float(stages.batches.read.mean()) / max(stages.measured_s * lanes, 1e-12)
    return 1.0 + min(1.0, reading) * (lanes - 1)


def _shared_s(real: Stages, fetch: Stages) -> float:
    """A read lasts own + shared × readers met, by two points: `real`, where a reader meets some of the others, and
    `fetch`, where it meets all. Slow files are slow beside anyone. 0 where the two do not surely differ."""
    more = max(1, real.workers) - met(real)
    longer = usual_s(fetch) - usual_s(real)
    errors = [one.batches.read - one.batches.tail for one in (real, fetch)]
    error = sum(float(one.var()) / len(one) for one in errors) ** 0.5
    if more <= ALL_MET or longer <= SURELY * error:
        return 0.0
    return float(np.clip(longer / more, 0.0, min(fetch.measured_s, real.measured_s)))


def _served_s(recording: Recording, fetch: Stages, readers: int) -> float | None:
    """Seconds that the storage works for a batch when more readers get no more from it: its bytes ÷ the rate that the
    probe found, and no more than `fetch` took, by as much less as more readers got there. None where it was not probed.
    """
    rates = sorted((one.readers, storage.rate(one)) for one in storage.stages(recording.facts.storage.ceiling))
    if len(rates) < 2:
        return None
    num, rate = np.log(np.array(rates)).T
    part = float(np.exp(np.interp(np.log(readers), num, rate) - rate.max()))
    return min(batch_bytes(recording) / max(one for _, one in rates), fetch.measured_s * part)


def batch_bytes(recording: Recording) -> float:
    """Mean bytes of the files behind a batch of `real`."""
    rows = [one.window for one in recording.of(Arm.REAL)]
    return float(np.concatenate(rows)[:, STEP["encoded_bytes"]].mean())


def usual_s(stages: Stages) -> float:
    """Mean seconds of reading a batch, without what slow files take beyond typical ones."""
    return float((stages.batches.read - stages.batches.tail).mean())
