"""What looks at a job's threads say: what limits it, and what removing that would give at least and at most.

A job's time is its main thread's. It waits for data, or does its step; each worker waits for indices, or works on a
batch, in states whose shares are counted. A cause is a part of these shares. Without it the pipeline is replayed
(pipeline/replay.py) with the shares that are left: twice with batches that all take the same, twice with batches whose
times vary as exponential ones do, at the ends of the shares' intervals. These are the bounds of the gain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.model import WORTH
from loaderbench.analysis.price import saved
from loaderbench.analysis.watched_places import HELD_BY_LOCK
from loaderbench.attach.facts import Attach, AttachFacts, AttachVerdict, JobFacts, JobFound, Phase, Where
from loaderbench.cases.options import Price
from loaderbench.findings.table import words
from loaderbench.pipeline.replay import Order, step_s
from loaderbench.pipeline.stages import Batches, Stages
from loaderbench.plain import Json
from loaderbench.recording.estimate import Estimate
from loaderbench.recording.record import Bottleneck, CauseDetail, Cost, Removable
from loaderbench.recording.thread_samples import STATES, UNKNOWN_PLACE, Place, Role, State, share_of

UNBOUNDED = 100.0
"""A larger upper bound says nothing: almost no time is certain to be left."""
LEAST_BATCHES = 20
"""Fewer say steps/s no better than 5 %: one may be half done at either end."""
STEP_PART = 0.8
"""Of the main thread's time, from there on its own work is the step's side of the pipeline."""
OWN_PART = 1.5
"""Gain from which on processors that the job itself or its limits take away are named, though it waits for no data."""
CLEARLY = 2.0
"""How many times as much the named cause must win as the next one."""
HALF_LOST = 2.0
"""Gain from which on missing processors limit a step that waits for no data: they take more time than it does."""
UNKNOWN_MAIN = 0.5
"""Of the main thread's time, from there on what it runs may hide a larger cause than the one that is seen."""
LEAST_LOOKS = 40
"""Below, the interval of a half is wider than ± 15 points: nothing is named."""
PREFETCH = 2
"""Batches ahead of each worker: PyTorch's default. It is not to be seen from outside."""
LEAST_STEPS, ROUNDS = 160, 12
"""Steps of a replay: so many at least, and so many rounds of the workers."""
BUSY_GPU = 0.8
STUCK_CPU, STUCK_S = 0.01, 5.0
"""A job is stuck that uses less than this part of a processor, and whose main thread has not run for so long."""
STARTING_S = 120.0
TOO_MANY = 2.0
"""Processors that the main process's other threads want, as a multiple of those there are: from there on they are in
each other's way, and a step takes as long as its last thread."""
THROTTLED = 0.2
"""Of the time, from there on a quota that stops the job is what it misses, whoever else is there."""
MOST_OF_WORK = 0.8
"""Of what workers do: a cause that is more of it takes along how its times vary."""
GIL_PART = 0.25
"""Of the main thread's time, from there on waits for the GIL are what it misses."""
SMALL_CALL, LARGE_CALL = 32 << 10, 1 << 20
"""Bytes a read call: storage that is slow for calls below is slow to answer; above, its bandwidth limits."""
PAGE = 4096
SIDE: Mapping[str, str] = {
    "queue": "data", "loader": "data", "rebuild": "delivery", "pin": "delivery", "send_indices": "sampler",
    "sampler": "sampler", "sampler_start": "epoch_start", "epoch_start": "epoch_start", "process_start": "epoch_start",
    "dataset": "dataset", "collate": "collate",
}  # fmt: skip
"""Part of a training loop (watching/places.py) → whose time of the main thread it is; others are the step."""
OF_STEP: tuple[CauseDetail, ...] = ("checkpoint", "logging", "validation", "compile", "sync", "collective", "gc")
WORK: Mapping[str, CauseDetail] = {"collate": "collate", "send": "delivery"}
"""Part of a worker → detail of preparation."""

LOADER_THREAD = re.compile(r"^\[DALI\]|^tf_data")
"""Names of threads that prepare batches within the main process."""
ACTIVE: tuple[State, ...] = ("running", "runnable", "fault", "file", "gpu")
"""States of a thread that others wait for."""
LEAST_SEEN = 0.1
"""Of the time of the main thread and of the workers: in a loader's queue of limited length the main thread waits for
data or workers wait for it. Where both are less, it is not the loader that is assumed."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """A share of a role's time and its interval."""

    value: float
    low: float
    high: float


NONE = Part(0.0, 0.0, 0.0)


class Seen:
    """The shares of one job."""

    def __init__(self, job: JobFacts) -> None:
        self.job = job
        self.samples = job.samples
        self.main = job.samples.threads_of("consumer")
        self.workers = job.samples.threads_of("worker")
        self.num_looks = len(np.unique(job.samples.time_s[np.isin(job.samples.thread, self.main)]))
        self.has_names = bool(len(job.samples.place)) and bool(
            (job.samples.place[np.isin(job.samples.thread, self.main)] != UNKNOWN_PLACE).mean() > 0.5
        )
        details = np.array([*job.details, ""], dtype=object)
        self.detail = details[job.detail] if len(job.detail) else np.zeros(0, dtype=object)
        parts = np.array([*(_part(place) for place in job.samples.places), ""], dtype=object)
        self.part = parts[job.samples.place] if len(parts) > 1 else np.full(len(job.detail), "", dtype=object)
        self.state = np.array(STATES, dtype=object)[job.samples.state] if len(job.detail) else self.detail
        self.is_main = np.isin(job.samples.thread, self.main)
        self.is_worker = np.isin(job.samples.thread, self.workers)
        self._forget_steps()
        self._resolve_locks()
        self.storage_sockets = self._are_storage()
        self.side = self._sides()

    def _forget_steps(self) -> None:
        """Drop what `step` says where it says nothing: it is the part that no loader's function claims. So it is of a
        worker, of a wait for a queue, and where no function of a known loader is seen at all."""
        is_step = self.part == "step"
        known = np.isin(self.part.astype(str), [*SIDE, "indices"]).any()
        waits = np.isin(self.state.astype(str), ("pipe", "other")) & bool(self.workers)
        self.part = np.where(is_step & (~self.is_main | waits | ~known), "", self.part)

    def _resolve_locks(self) -> None:
        """A main thread that waits for a lock of its own process does what its other threads do meanwhile."""
        self.state = self.state.copy()
        self.waits_for_threads = 0.0  # of the main thread's rows: for a lock, while others of its process do something
        waits = np.flatnonzero((self.is_main | self.is_worker) & (self.state == "lock") & (self.detail != "shared"))
        if not len(waits):
            return
        worker = np.array([-1 if one.worker is None else one.worker for one in self.samples.threads])
        own = worker[self.samples.thread]
        others = ~(self.is_main | self.is_worker)
        roles = np.array([one.role for one in self.samples.threads], dtype=object)[self.samples.thread]
        comm = np.array([one.name for one in self.samples.threads], dtype=object)[self.samples.thread]
        for row in waits:
            same = others & (self.samples.time_s == self.samples.time_s[row]) & (own == own[row])
            if self.is_main[row] and (roles[same] == "pin").any():
                state = self.state[same & (roles == "pin")][0]
                self.state[row] = "pipe" if state in ("pipe", "other") else state if state != "lock" else "pipe"
                self.detail[row] = "pinned"
                continue
            there = set(self.state[same])
            active = np.isin(self.state[same].astype(str), ACTIVE)
            if active.any() and all(LOADER_THREAD.search(name) for name in comm[same][active]):
                self.detail[row] = "loader"
            self.waits_for_threads += float(self.is_main[row]) / max(1, int(self.is_main.sum()))
            for state in (*ACTIVE, "sleep") if self.part[row] == "loader" else ACTIVE:
                if state in there:
                    self.state[row] = state
                    break
            else:
                if "tcp" in set(self.detail[same]):
                    self.state[row], self.detail[row] = "socket", "tcp"

    def _are_storage(self) -> bool:
        """Whether connections deliver what is read: most of the bytes that were asked for, a page a batch at least."""
        job = self.job
        io = job.workers_io if job.workers else job.consumer_io
        received = job.received_bytes or 0
        return received > (io.asked_bytes if io else 0) and received >= PAGE * max(1, job.batches or 1)

    def _sides(self) -> NDArray[np.object_]:
        """Of each row of the main thread: `data`, `delivery`, `sampler`, `dataset` …, `step`."""
        side = np.array([SIDE.get(part, "step") for part in self.part], dtype=object)
        side[(self.part == "queue") & self.is_state("running", "runnable")] = "delivery"  # it takes a batch apart
        if self.workers:
            waits = (self.part == "") & (
                (self.state == "pipe")
                | ((self.state == "other") & ((self.detail == "poll") | (self.detail == "index")))
            )
            side[waits] = "data"
            side[(self.part == "") & (self.state == "socket") & (self.detail == "unix")] = "delivery"
            side[(self.state == "pipe") & (self.detail == "pinned")] = "data"
        side[(self.detail == "loader") & np.isin(self.part.astype(str), ("", "loader"))] = "data"
        if not self.workers:  # there is no queue to wait for: the thread reads and prepares, or others do it meanwhile
            side[side == "data"] = "dataset"
        return side

    def share(self, threads: Sequence[int], mask: Mask) -> Part:
        found = share_of(self.samples, threads, mask)
        if found is None:
            return NONE
        return Part(found.value, found.low or 0.0, found.high if found.high is not None else 1.0)

    def of_main(self, mask: Mask) -> Part:
        """Share of the main thread's time."""
        return self.share(self.main, mask)

    def of_workers(self, mask: Mask) -> Part:
        """Share of the workers' time."""
        return self.share(self.workers, mask)

    def is_state(self, *states: str) -> Mask:
        return np.isin(self.state.astype(str), states)

    @property
    def is_idle(self) -> Mask:
        """Of a worker's row: it waits for indices."""
        by_name = self.part == "indices"
        waits = (self.state == "pipe") | ((self.state == "other") & (self.detail == "index"))
        is_own = (self.state == "pipe") & (self.detail != "index") & self.job.rights.calls & self.job.rights.counters
        return np.asarray((by_name & ~self.is_state("running", "runnable")) | ((self.part == "") & waits & ~is_own))

    @property
    def is_late(self) -> Mask:
        """Of a main thread's row: it waits for a worker to pass the memory of a batch."""
        return np.asarray(self.is_main & (self.side == "delivery") & self.is_state("socket", "pipe", "other"))

    @property
    def is_unknown(self) -> Mask:
        """Of a main thread's row with workers: it runs, and no name says whether that is the step."""
        if not self.workers or _others_compute(self):
            return np.zeros(len(self.state), np.bool_)
        return np.asarray(self.is_main & (self.part == "") & self.is_state("running", "runnable", "gil"))

    @property
    def is_storage(self) -> Mask:
        found = self.is_state("file", "fault")
        return found | (self.is_state("socket") & (self.detail == "tcp")) if self.storage_sockets else found

    @property
    def in_loader(self) -> Mask:
        """Of a main thread's row: it reads or prepares, as without workers."""
        in_place = np.isin(self.side.astype(str), ("dataset", "collate"))
        if self.workers:
            return np.asarray(in_place)
        return np.asarray(
            in_place | (self.is_storage & (self.side == "step") & ~np.isin(self.part.astype(str), OF_STEP))
        )

    def in_kernel(self, role: Role) -> float:
        """Share of its processor time that a role spends within the kernel."""
        uses = [use for use in self.job.uses if use.role == role]
        ran = sum(use.ran_s for use in uses)
        return min(1.0, sum(use.system_s for use in uses) / ran) if ran > 0 else 0.0

    @property
    def by_worker(self) -> dict[int, list[int]]:
        """Number of a worker → its main threads."""
        found: dict[int, list[int]] = {}
        for number in self.workers:
            worker = self.samples.threads[number].worker
            found.setdefault(-1 if worker is None else worker, []).append(number)
        return found


def _part(place: Place) -> str:
    """A collate function of the user's is called from where samples are fetched."""
    names = (place.function, *place.callers)
    return "collate" if place.part == "dataset" and any("collate" in name.lower() for name in names) else place.part


# -- the pipeline that is left -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Edit:
    """What is taken away: rows of the main thread and of the workers; `evenly`: workers share what is left."""

    main: Mask
    workers: Mask
    evenly: bool = False
    frees_processors: bool = False
    """Who holds processors is gone too: a quota, an affinity mask, other programs."""
    delivery: bool = False
    """Delivery's own waits go too."""
    with_unknown: bool = False
    """At best, what the main thread runs without a known name goes too."""
    with_calls: bool = False
    """At best, time within the kernel and queueing after each wait go too: they belong to calls."""


def removed_by(seen: Seen) -> dict[Removable, Edit]:
    """Cause → what goes with it."""
    none = np.zeros(len(seen.state), np.bool_)
    waits = np.isin(seen.side.astype(str), ("data",))
    runnable = seen.is_state("runnable")
    of_loader = np.isin(seen.side.astype(str), ("delivery", "sampler", "epoch_start")) & ~seen.is_late
    in_loader = seen.in_loader
    return {
        "storage": Edit(in_loader & seen.is_storage, ~seen.is_idle & seen.is_storage, with_calls=True),
        "prep": Edit(
            of_loader | (in_loader & ~seen.is_storage),
            ~seen.is_idle & ~seen.is_storage,
            evenly=True,
            delivery=True,
            with_unknown=True,
        ),
        "contention": Edit(runnable | (seen.is_main & seen.is_state("gil")), runnable, frees_processors=True),
        "compute": Edit(~waits & ~of_loader & ~in_loader & ~seen.is_late, none),
    }


class Pipeline:
    """One job's pipeline in units of its time: what the main thread and each worker do of it."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.waits = seen.side == "data"
        self.workers = max(1, len(seen.by_worker)) if seen.workers else 0
        job = seen.job
        self.cores = sum(use.ran_s for use in job.uses) / max(job.window_s, 1e-9)
        quota = job.processors.quota or float(job.processors.usable)
        self.most_cores = min(float(job.processors.usable), quota)
        ran = sum(use.ran_s for use in job.uses)
        wanted = ran + sum(use.queued_s for use in job.uses)
        share = ran / wanted if wanted > 0 else 1.0  # of a processor, that a thread gets while it wants one
        self.least_cores = min(self.most_cores, max(self.cores, share * (self.workers + 1)))
        self.held_by = contention_by(seen, self)
        """What takes the processors that the job needs; None if unknown."""
        cpus = job.processors
        self.free_cores = float(
            cpus.machine if self.held_by == "affinity" else cpus.usable if self.held_by == "quota" else self.most_cores
        )
        self.uneven = self._uneven()

    def _uneven(self) -> dict[int, Part] | None:
        """Busy shares of each worker, where one differs from the rest by more than chance and 15 points."""
        seen = self.seen
        busy = {number: seen.share(threads, ~seen.is_idle) for number, threads in seen.by_worker.items()}
        if len(busy) < 2 or len(busy) != seen.job.workers:
            return None
        first, *rest = sorted(busy.values(), key=lambda part: -part.value)
        return busy if first.low > max(part.high for part in rest) and first.value - rest[0].value > 0.15 else None

    def left(self, edit: Edit | None, end: str) -> tuple[float, list[float], float]:
        """(the main thread's share, each worker's, processors used) after an edit, at the `low` or `high` end."""
        seen = self.seen
        none = np.zeros(len(seen.state), np.bool_)
        gone_main, gone_workers = (none, none) if edit is None else (edit.main, edit.workers)
        if edit is not None and edit.with_unknown and end == "low":
            gone_main = gone_main | seen.is_unknown
        main = getattr(seen.of_main(~self.waits & ~gone_main), end)
        if edit is not None:
            main = max(0.0, main - self._late(edit, end))
        keeps = ~seen.is_idle & ~gone_workers
        if edit is not None and edit.with_calls and end == "low":
            keeps = keeps & ~seen.is_state("runnable")
            if not self.workers:
                runs = seen.of_main(~seen.is_state("runnable") & ~gone_main).low
                main = max(0.0, runs - seen.in_kernel("consumer") * seen.of_main(seen.is_state("running")).low)
        if self.uneven is not None and not (edit is not None and edit.evenly):
            each = [getattr(seen.share(threads, keeps), end) for threads in seen.by_worker.values()]
        else:
            each = [getattr(seen.of_workers(keeps), end)] * self.workers
        if edit is not None and edit.with_calls and end == "low":
            kernel = seen.in_kernel("worker") * seen.of_workers(seen.is_state("running")).low
            each = [max(0.0, share - kernel) for share in each]
        running = seen.is_state("running")
        freed = seen.of_workers(running & gone_workers).value * self.workers + seen.of_main(running & gone_main).value
        return main, each, max(0.0, self.cores - freed)

    def _late(self, edit: Edit, end: str) -> float:
        """Share of the main thread's waits for a worker to pass a batch's memory that goes too. A worker answers late
        while it works: such waits go with what it works on, and in the rest of its time they are delivery's own."""
        seen = self.seen
        other = {"low": "high", "high": "low"}.get(end, end)
        late, goes = seen.of_main(seen.is_late), seen.of_workers(edit.workers)
        part = getattr(goes, other)
        if edit.delivery:
            part = 1.0 - getattr(seen.of_workers(~seen.is_idle & ~edit.workers), end)
        elif end == "low" and edit.workers.any():
            part = 1.0
        return float(getattr(late, other) * part)

    def step(self, edit: Edit | None, end: str, *, spread: bool) -> float:
        """Of a step today, the part that one takes after an edit. `spread`: batches take exponential times."""
        main, each, cores = self.left(edit, end)
        if not self.workers:
            return max(main, 1e-3)
        processors = self.most_cores if end == "low" else self.least_cores
        if edit is not None and edit.frees_processors:
            processors = self.free_cores
        stages = _stages(main, each, cores, processors, spread)
        num = len(stages.batches)
        order = Order(np.arange(num)[None], np.array([num * 3 // 4]), 1, 1)
        return max(float(step_s(stages, order)[0]), 1e-3)

    def _ends_irregularity(self, edit: Edit) -> bool:
        """Whether waits that even batches would not explain go too: with the order that makes them, or with most of the
        work whose times vary. Then a step today is what it takes, not what even batches would."""
        busy = self.seen.of_workers(~self.seen.is_idle).value
        gone = self.seen.of_workers(~self.seen.is_idle & edit.workers).value
        return edit.evenly or (busy > 0 and gone > MOST_OF_WORK * busy)

    def gain(self, edit: Edit) -> Estimate:
        """How many times as fast without what goes."""
        most = 1.0 / self.step(edit, "low", spread=False)
        least = 1.0 if self._ends_irregularity(edit) else 0.0
        now = {spread: max(least, self.step(None, "value", spread=spread)) for spread in (False, True)}
        pairs = [
            now[spread] / self.step(edit, "high", spread=spread)
            for spread in ((False, True) if self.workers else (False,))
        ]
        usual = now[False] / self.step(edit, "value", spread=False)
        low = max(1.0, min(pairs)) if edit.main.any() or edit.workers.any() or edit.evenly else 1.0
        most = max(most, low)
        value = float(np.clip(usual, low, most))
        return Estimate(
            value, low, most if most < UNBOUNDED else None, "times", self.seen.num_looks, "bounds by replay"
        )


def _stages(main: float, each: Sequence[float], cores: float, processors: float, spread: bool) -> Stages:
    draws, num = np.random.default_rng(7), max(LEAST_STEPS, ROUNDS * len(each))
    times = np.array([each[number % len(each)] for number in range(num)]) * len(each)
    steps = np.full(num, main)
    if spread:
        times, steps = times * draws.exponential(1.0, num), steps * draws.exponential(1.0, num)
    return Stages(
        workers=len(each), depth=PREFETCH * len(each), in_turn=True, in_flight=0, overlap=False,
        batches=Batches.of(num, prep=times, issue=steps, cpu=np.full(num, cores)),
        window=np.zeros(num, np.int64), inside=np.ones(num, np.bool_), window_s=np.ones(1), measured_s=1.0,
        processors=max(processors, 1e-3),
    )  # fmt: skip


# -- the verdict -------------------------------------------------------------------------------------------


def judge(facts: AttachFacts) -> Attach:
    """Judge each job. Pure."""
    jobs = tuple(judge_job(job, facts.price) for job in facts.jobs)
    cores = facts.own_cpu_s / facts.looked_s if facts.looked_s > 0 else None
    return Attach(jobs, jobs[0].verdict if len(jobs) == 1 else None, facts.refused, cores, facts.price)


def judge_job(job: JobFacts, price: Price | None = None) -> JobFound:
    """What one job's looks say."""
    seen = Seen(job)
    phase, note = _phase(seen)
    waits = share_of(job.samples, seen.main, seen.side == "data") if seen.workers else None
    rate, no_rate = _rate(job)
    verdict = _verdict(seen, phase, note)
    busy = [gpu.busy_fraction for gpu in job.gpus if gpu.busy_fraction is not None]
    gain = verdict.gain
    cost: Cost | None = None
    if price is not None and gain is not None and verdict.bottleneck != "compute":
        cost = saved(price.per_hour, gain)
    return JobFound(
        job.pid, job.command, job.age_s, job.workers, phase, note, rate, no_rate, waits, verdict,
        sum(busy) / len(busy) if busy else None, job.rank, cost, job.rights,
    )  # fmt: skip


def _rate(job: JobFacts) -> tuple[Estimate | None, str | None]:
    """Steps a second by the indices that were sent: one message a batch."""
    if not job.workers:
        return None, words("attach_no_rate_workers", {})
    if job.batches is None or job.batches < LEAST_BATCHES:
        return None, words("attach_no_rate_rhythm", {})
    unsure = 2.0 + job.workers_started  # batches at either end, and what a worker that ended took along
    rate = job.batches / job.window_s
    ends = (max(0.0, job.batches - 2.0) / job.window_s, (job.batches + unsure) / job.window_s)
    return Estimate(rate, *ends, "steps/s", job.batches, "count of messages"), None


def _phase(seen: Seen) -> tuple[Phase, str]:
    job = seen.job
    cores = sum(use.ran_s for use in job.uses) / max(job.window_s, 1e-9)
    states = seen.state[seen.is_main]
    if not len(states):
        return "training", ""
    usual = max(set(states), key=list(states).count)
    share = float((states == usual).mean())
    waited = job.consumer_waited_s
    if cores < STUCK_CPU and share > 0.95 and (waited is None or waited > STUCK_S) and job.window_s >= STUCK_S:
        of = str(seen.detail[seen.is_main][-1])
        seconds = waited if waited is not None else job.window_s
        return "stuck", words("attach_stuck", {"state": usual, "of": of, "seconds": seconds})
    if job.age_s < STARTING_S and not job.batches and not job.workers and _reads_libraries(seen):
        return "start-up", words("attach_starting", {"age_s": job.age_s})
    return "training", ""


def _reads_libraries(seen: Seen) -> bool:
    """Whether most of the main thread's rows are within imports."""
    return bool((seen.part[seen.is_main] == "import").mean() > 0.5)


def _verdict(seen: Seen, phase: Phase, note: str) -> AttachVerdict:
    where = tuple(_where(seen))
    if seen.num_looks < LEAST_LOOKS or phase != "training":
        why = note or words("attach_few_looks", {"num": seen.num_looks})
        return AttachVerdict("undetermined", None, why, {}, (), (), where)
    pipe = Pipeline(seen)
    edits = removed_by(seen)
    gains = {cause: pipe.gain(edit) for cause, edit in edits.items()}
    bottleneck, detail, why = _named(seen, pipe, edits, gains)
    if detail is not None and (bottleneck in ("storage", "prep") or detail in OF_STEP):
        cause: Removable = bottleneck  # type: ignore[assignment]  # neither mixed nor undetermined has a detail
        alone = pipe.gain(_of_detail(seen, edits[cause], detail))
        if (alone.low or 1.0) < WORTH:  # its removal alone may not be worth it: it is not what to name
            detail = None
        else:
            gains[cause] = _widened(gains[cause], alone)
    if detail == "own_threads":  # what threads lose that spin while they wait for each other is within their CPU time
        gains["contention"] = replace(gains["contention"], high=None)
    evidence = tuple(_evidence(seen, pipe))
    advice = tuple(_advice(seen, bottleneck, detail))
    summary = why or words("attach_limits", {"cause": bottleneck, "detail": detail})
    return AttachVerdict(bottleneck, detail, summary, gains, evidence, advice, where)


def _of_detail(seen: Seen, edit: Edit, detail: str) -> Edit:
    """What goes with the named detail alone: the code that waits, not all of preparation."""
    none = np.zeros(len(seen.state), np.bool_)
    if detail in ("sampler", "delivery", "epoch_start"):
        return Edit((seen.side == detail) & ~seen.is_late, none, delivery=detail == "delivery")
    if detail in ("one_worker", "order"):
        return Edit(none, none, evenly=True)
    if detail in OF_STEP:
        return Edit(seen.is_main & (seen.part == detail), none)
    states = {"lock": ("lock",), "sleep": ("sleep",), "network": ("socket",)}.get(detail)
    if states is not None:
        return replace(edit, main=edit.main & seen.is_state(*states), workers=edit.workers & seen.is_state(*states))
    part = next((part for part, word in WORK.items() if word == detail), None)
    if part is not None:
        return replace(edit, main=edit.main & (seen.part == part), workers=edit.workers & (seen.part == part))
    return edit


def _widened(whole: Estimate, detail: Estimate) -> Estimate:
    """At least what the detail gives, at most what all of the cause does."""
    low = min(whole.low or 1.0, detail.low or 1.0)
    return replace(whole, value=max(low, min(whole.value, detail.value)), low=low)


def _named(
    seen: Seen, pipe: Pipeline, edits: Mapping[Removable, Edit], gains: Mapping[Removable, Estimate]
) -> tuple[Bottleneck, CauseDetail | None, str]:
    """(bottleneck, detail, why it is undetermined)"""
    stages: list[Removable] = sorted(("storage", "prep"), key=lambda cause: -gains[cause].value)
    best, second = stages
    contention = gains["contention"]
    if contention.value >= WORTH:
        with_it = {cause: pipe.gain(_both(edits["contention"], edits[cause])).value for cause in stages}
        beyond = max(with_it.values()) / contention.value
        by = pipe.held_by
        is_known = seen.of_main(seen.is_unknown).value < UNKNOWN_MAIN
        least = HALF_LOST if by in ("neighbours", "steal") else OWN_PART
        limits = seen.of_main(pipe.waits).value > 1.0 - 1.0 / WORTH or contention.value > least
        if by is not None and is_known and limits and (contention.low or 0.0) >= WORTH:
            # One setting undoes these: less work would gain more, and does not replace it.
            is_set = by in ("affinity", "quota") and contention.value >= OWN_PART
            if is_set or (contention.value - 1.0 >= CLEARLY * (beyond - 1.0) and beyond < OWN_PART):
                return "contention", by, ""
            if beyond - 1.0 < CLEARLY * (contention.value - 1.0):
                stage = max(with_it, key=lambda cause: with_it[cause])
                return "mixed", None, words("attach_mixed", {"one": "contention", "other": stage})
    if gains[best].value >= WORTH:
        low, other = gains[best].low or 0.0, gains[second]
        is_clear = low > (np.inf if other.high is None else other.high) or gains[best].value - 1.0 > CLEARLY * (
            other.value - 1.0
        )
        if low >= WORTH and is_clear:
            return best, detail_of(seen, pipe, best), ""
        if low < WORTH and seen.of_main(~pipe.waits).value > STEP_PART and gains[best].value < OWN_PART:
            return _of_step(seen, pipe, gains)
        if low < WORTH:
            return "undetermined", None, words("attach_wide", {"cause": best, "low": low, "high": gains[best].high})
        return "mixed", None, words("attach_mixed", {"one": best, "other": second})
    return _of_step(seen, pipe, gains)


def _both(one: Edit, other: Edit) -> Edit:
    return replace(other, main=one.main | other.main, workers=one.workers | other.workers, frees_processors=True)


def _of_step(
    seen: Seen, pipe: Pipeline, gains: Mapping[Removable, Estimate]
) -> tuple[Bottleneck, CauseDetail | None, str]:
    """No preparation and no storage is worth its removal: is it the step, and what of it?"""
    step = ~pipe.waits
    share = seen.of_main(step)
    if _wanted_by_threads(seen) > TOO_MANY * pipe.most_cores:
        return "contention", "own_threads", ""
    if seen.workers and seen.of_main(~step).value + seen.of_workers(seen.is_idle).value < LEAST_SEEN:
        return "undetermined", None, words("attach_unknown_loader", {})
    if seen.workers and share.value < STEP_PART:
        return "undetermined", None, words("attach_balanced", {})
    unseen = seen.of_main(step & seen.is_state("other") & (seen.part == "") & ~np.isin(seen.detail, DETAILS))
    if unseen.value > 0.5 * share.value:
        return "undetermined", None, words("attach_unseen", {"share": unseen.value})
    runs = seen.of_main(seen.is_state("running", "runnable", "gil") & step)
    known = seen.of_main(step & (seen.part != ""))
    is_known = seen.has_names and known.value > 0.8 * share.value and (bool(seen.workers) or _has_loader(seen))
    on_device = seen.of_main(seen.is_state("gpu") & step).value > 0.5 * share.value
    is_open = runs.value > 0.5 * share.value or not seen.workers  # nothing says that it is not preparation
    if is_open and not (is_known or on_device or _others_compute(seen)):
        return "undetermined", None, words("attach_one_thread", {"busy": share.value})
    return "compute", _detail_of_step(seen), ""


def _wanted_by_threads(seen: Seen) -> float:
    """Processors that the main process's other threads run on, or are queued for."""
    threads = [use for use in seen.job.uses if use.role in ("other", "autograd") and use.worker is None]
    return sum(use.ran_s + use.queued_s for use in threads) / max(seen.job.window_s, 1e-9)


def _has_loader(seen: Seen) -> bool:
    return bool(np.isin(seen.side[seen.is_main].astype(str), ("dataset", "collate", "data", "sampler")).any())


def _others_compute(seen: Seen) -> bool:
    """Whether other threads of the main process compute with it, or a GPU is busy: that is no preparation."""
    busy = [gpu.busy_fraction or 0.0 for gpu in seen.job.gpus]
    main = sum(use.ran_s for use in seen.job.uses if use.role == "consumer")
    own = [use for use in seen.job.uses if use.worker is None and not LOADER_THREAD.search(use.name)]
    others = sum(use.ran_s for use in own if use.role == "autograd")
    team = [use.ran_s for use in own if use.role == "other"]
    if team and main >= 0.5 * max(team):  # threads of one operation, among them the main one; others may prepare
        others += sum(team)
    may_be_gil = not seen.has_names and seen.waits_for_threads > GIL_PART
    return max(busy, default=0.0) >= BUSY_GPU or (others > 0.3 * max(main, 1e-9) and not may_be_gil)


def _detail_of_step(seen: Seen) -> CauseDetail | None:
    for part in OF_STEP:
        if seen.of_main(seen.part == part).value > 0.3:
            return part
    return "step"


def detail_of(seen: Seen, pipe: Pipeline, cause: Removable) -> CauseDetail | None:
    """The kind of a cause; None where looks do not say."""
    return _storage_detail(seen) if cause == "storage" else _prep_detail(seen, pipe)


def _storage_detail(seen: Seen) -> CauseDetail | None:
    rows = seen.is_storage & (seen.is_worker if seen.workers else seen.is_main)
    if seen.is_state("socket")[rows].mean() > 0.5:
        return "connections"
    io = seen.job.workers_io if seen.workers else seen.job.consumer_io
    if seen.is_state("fault")[rows].mean() > 0.5:
        return "latency"  # each fault waits for its own page
    if io is None or not io.read_calls:
        return None
    size = io.asked_bytes / io.read_calls
    return "latency" if size <= SMALL_CALL else "bandwidth" if size >= LARGE_CALL else None


def _prep_detail(seen: Seen, pipe: Pipeline) -> CauseDetail | None:
    """By the largest part of what preparation takes: in the main process, or in the workers."""
    late, idle_part = seen.of_main(seen.is_late).value, seen.of_workers(seen.is_idle).value
    main: dict[CauseDetail, float] = {
        "sampler": seen.of_main(seen.side == "sampler").value,
        "delivery": seen.of_main((seen.side == "delivery") & ~seen.is_late).value + late * idle_part,
        "epoch_start": seen.of_main(seen.side == "epoch_start").value,
    }
    waits = seen.of_main(pipe.waits).value + late * (1.0 - idle_part)
    if seen.workers and max(main.values()) > waits:
        return max(main, key=lambda name: main[name])
    rows = (~seen.is_idle & seen.is_worker) if seen.workers else (seen.in_loader & seen.is_main)
    rows = rows & ~seen.is_storage
    if not rows.any():
        return None
    if seen.job.workers_started >= max(1, seen.job.workers):
        return None  # epochs began meanwhile: what starts of workers take is within what they do
    if pipe.uneven is not None:
        return "one_worker"
    weights = seen.samples.weight_s[rows]
    whole = float(weights.sum())

    def part(mask: Mask) -> float:
        return float(weights[mask[rows]].sum()) / whole

    idle = seen.of_workers(seen.is_idle) if seen.workers else NONE
    if seen.workers and len(seen.by_worker) > 1 and idle.low > 0.25 and waits > 0.25:
        return "order"
    if seen.workers and part(seen.is_state("lock")) > HELD_BY_LOCK:
        return "lock"
    by_state: dict[CauseDetail, float] = {"sleep": part(seen.is_state("sleep")),
                "network": part(seen.is_state("socket"))}  # fmt: skip
    best = max(by_state, key=lambda name: by_state[name])
    if by_state[best] > 0.5:
        return best
    named = seen.part[rows] != ""
    if not named.any():
        return None
    rows = rows & (seen.part != "")
    weights = seen.samples.weight_s[rows]
    whole = float(weights.sum())
    by_part = {detail: part(seen.part == name) for name, detail in WORK.items()}
    best = max(by_part, key=lambda name: by_part[name])
    if by_part[best] > 0.5:
        return best
    decodes = part(np.isin(seen.samples.place, [number for number, place in enumerate(seen.samples.places)
                                                if _decodes(place.callee, place.file, place.function)]))  # fmt: skip
    if decodes > 0.5:
        return "decode"
    return "dataset_code" if part(seen.part == "dataset") > 0.5 else None


def _decodes(*names: str) -> bool:
    text = " ".join(names).lower()
    return any(word in text for word in ("decode", "image.open", "imread", "imdecode", "convert(", ".load", "jpeg"))


def contention_by(seen: Seen, pipe: Pipeline) -> CauseDetail | None:
    """Name what takes the processors that the job needs; None if unknown."""
    job, window = seen.job, max(seen.job.window_s, 1e-9)
    cpus = job.processors
    queued = sum(use.queued_s for use in job.uses)
    gil = seen.of_main(seen.is_state("gil")).value
    if gil > GIL_PART and gil > seen.of_main(seen.is_state("runnable")).value:
        return "gil"
    if cpus.throttled_s is not None and cpus.throttled_s > min(0.25 * queued, THROTTLED * window):
        return "quota"
    if cpus.stolen_s is not None and cpus.stolen_s > 0.25 * queued:
        return "steal"
    busy = (cpus.busy_s or 0.0) / window
    others = max(0.0, busy - pipe.cores)
    if others > max(0.25 * cpus.usable, 0.5 * pipe.cores):
        return "neighbours"
    if pipe.cores + others < 0.8 * pipe.most_cores:
        return None
    if cpus.usable < cpus.machine:
        return "affinity"
    extra = sum(use.ran_s for use in job.uses if use.role in ("other", "autograd")) / window
    if extra > 0.3 * pipe.cores:
        return "own_threads"
    return "workers" if job.workers > cpus.usable else None


# -- words ---------------------------------------------------------------------------------------------------


def _evidence(seen: Seen, pipe: Pipeline) -> list[str]:
    found = []
    job = seen.job
    if seen.workers:
        waits, idle = seen.of_main(pipe.waits), seen.of_workers(seen.is_idle)
        found.append(words("attach_waits", {"share": waits.value, "low": waits.low, "high": waits.high}))
        found.append(words("attach_idle", {"share": idle.value, "low": idle.low, "high": idle.high}))
    wanted = _wanted_by_threads(seen)
    if wanted > TOO_MANY * pipe.most_cores:
        found.append(words("attach_threads", {"wanted": wanted, "cpus": pipe.most_cores}))
    roles: list[tuple[Role, Mask]] = [("worker", ~seen.is_idle), ("consumer", ~pipe.waits)]
    for role, busy in roles:
        threads = seen.workers if role == "worker" else seen.main
        whole = seen.share(threads, busy).value
        if not threads or whole <= 0.02:
            continue
        states = {state: seen.share(threads, busy & seen.is_state(state)).value / whole for state in STATES}
        ranked = sorted(((share, state) for state, share in states.items() if share >= 0.05), reverse=True)
        shares: dict[str, Json] = {state: share for share, state in ranked}
        found.append(words("attach_states", {"role": role, "shares": shares}))
    if pipe.most_cores and seen.of_workers(seen.is_state("runnable")).value > 0.1:
        machine_s = job.processors.busy_s
        found.append(
            words(
                "attach_processors",
                {
                    "own": pipe.cores, "cpus": pipe.most_cores,
                    "others": None if machine_s is None else max(0.0, machine_s / job.window_s - pipe.cores),
                },
            )
        )  # fmt: skip
    if job.workers_started:
        found.append(words("attach_restarts", {"num": job.workers_started}))
    return found


def _advice(seen: Seen, bottleneck: Bottleneck, detail: str | None) -> list[str]:
    found = []
    if bottleneck in ("storage", "prep", "contention", "compute"):
        found.append(words("attach_try", {"cause": bottleneck, "detail": detail}))
    if bottleneck == "undetermined" or not seen.has_names:
        found.append(words("attach_try_watch", {}))
    if not seen.job.rights.calls:
        found.append(words("attach_rights", {}))
    return found


MOST_PLACES, LEAST_SHARE = 4, 0.05


def _where(seen: Seen) -> list[Where]:
    """The largest states and places of each role."""
    found = []
    samples = seen.samples
    for role, threads in (("consumer", seen.main), ("worker", seen.workers)):
        rows = np.isin(samples.thread, threads)
        if (rows & (samples.place != UNKNOWN_PLACE)).any():  # of workers, one drawn at random is named at each look
            rows = rows & (samples.place != UNKNOWN_PLACE)
        whole = float(samples.weight_s[rows].sum())
        sums: dict[tuple[str, int, int, str], float] = {}
        for row in np.flatnonzero(rows):
            key = (str(seen.state[row]), int(samples.place[row]), int(seen.job.file[row]), str(seen.detail[row]))
            sums[key] = sums.get(key, 0.0) + float(samples.weight_s[row])
        ranked = sorted(sums.items(), key=lambda item: -item[1])[:MOST_PLACES]
        for (state, place, file, detail), weight in ranked:
            if weight < LEAST_SHARE * whole:
                continue
            at = samples.places[place] if place != UNKNOWN_PLACE else None
            system = seen.job.files[file] if file >= 0 else None
            what = f"{system.mount_point} ({system.type})" if system else detail if detail in DETAILS else ""
            which: Role = "consumer" if role == "consumer" else "worker"
            of: State = state  # type: ignore[assignment]
            found.append(
                Where(which, of, weight / whole, *((at.file, at.line, at.function) if at else ("", 0, "")), what)
            )
    return found


DETAILS = ("private", "shared", "tcp", "unix", "index", "poll", "stopped")
