"""What in a watched script costs the time, by name and line: from samples of its threads.

Stamps say how long each part of a step takes, the replay what the run would gain without a part; samples say what the
part is. Of the script's own thread: a sampler in the main process, another thread that holds the GIL, more threads than
processors, garbage collection, a checkpoint and their like within a step. Of a worker: a lock or a sleep in the data
set's code, which are no storage, and the line that costs most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from loaderbench.analysis.advice import Action
from loaderbench.analysis.model import WORTH
from loaderbench.analysis.verdict import CLEAR, SURE
from loaderbench.analysis.watched_looks import (
    LEAST_LOOKS,
    WORKING,
    Looks,
    Rows,
    Seconds,
    WatchedLooks,
    share_error,
)
from loaderbench.cases.arms import Arm
from loaderbench.pipeline.edits import Edited
from loaderbench.pipeline.gains import NORMAL, Replays
from loaderbench.pipeline.stages import Times
from loaderbench.plain import Json
from loaderbench.recording.facts import Collections, Recording, WatchedFacts
from loaderbench.recording.record import CauseDetail, Estimate, Removable, Share, Verdict, Where
from loaderbench.recording.thread_samples import Place, Role, State

PAUSES: Mapping[str, CauseDetail] = {
    "checkpoint": "checkpoint", "validation": "validation", "logging": "logging", "compile": "compile",
}  # fmt: skip
"""Part of the script's own step → the word of the verdict. What a synchronizing call or a collective waits for has to
be done anyway: it is no time that would be saved."""
WAITING: tuple[State, ...] = ("file", "socket", "fault", "lock", "sleep", "pipe", "other", "gpu", "gil")
READING: tuple[State, ...] = ("file", "socket", "fault", "pipe", "other")
READS_LITTLE = 0.05
"""Of the time of making batches: what reads less is not slow by its storage."""
HELD_BY_LOCK = 0.25
"""Of a worker's time: from there on a lock around the data set's code is what it waits for, whatever the code within
the lock does: of two workers that take turns each waits for half of its time."""
MOST_OF = 0.5
"""Of what a worker waits for, or does, the part that names it."""
IN_MAIN_PROCESS = ("dataset", "collate", "loader")
"""Parts in which the script's thread makes a batch, of a loader without workers."""
WORTH_A_ROW, MOST_ROWS = 0.05, 4
DECODES = (
    "image.open", "imread", "imdecode", "decode", "read_image", ".convert", "imagefile", "jpeg", "read_video",
    "frombytes", "torchaudio.load", "soundfile", "librosa", "decord", "torchcodec",
)  # fmt: skip
AUGMENTS = (
    "transform", "augment", "albumentations", "kornia", "resize", "crop", "flip", "rotate", "blur", "jitter",
    "normalize", "warp", "elastic", "filter",
)  # fmt: skip
"""Parts of the names of functions, files and calls."""


@dataclass(frozen=True)
class Detail:
    """One thing with a name, and what the run would gain without it."""

    cause: Removable
    word: CauseDetail
    gain: Estimate
    where: Where | None
    seconds: float
    """Of a step."""
    figures: Mapping[str, Json] = field(default_factory=dict)
    is_counted: bool = False
    """By stamps and counts, without samples."""
    in_making: bool = False
    """It holds up the making of batches, too: without them at all the run would gain more, and it would still be why.
    """


@dataclass(frozen=True)
class Named:
    """What the samples say of a verdict."""

    details: tuple[Detail, ...]
    """Those worth it, the largest gain first."""
    worker: Detail | None
    """What costs a worker most of its time, where that is known."""
    where: tuple[Where, ...]
    step_s: float
    reads: float | None
    """Part of the time of making batches in which a file or a connection is read; None: too few samples."""
    is_function: bool = False
    """The script has no loader: a function makes its batches."""


def names(recording: Recording, replays: Replays | None, seen: WatchedFacts, cpus: int | None) -> Named | None:
    """None where there are no samples, or too few."""
    if recording.samples is None or replays is None:
        return None
    looks = WatchedLooks(recording, recording.samples)
    if len(looks.consumer) < LEAST_LOOKS or not len(looks.steps):
        return None
    made = _Names(recording, replays, seen, looks, cpus)
    found = sorted(made.details(), key=lambda one: -one.gain.value)
    worth = tuple(one for one in found if one.gain.value >= WORTH and (one.gain.low or 0.0) >= SURE)
    return Named(worth, made.worker(), _rows(looks), looks.step_s, made.reads(), seen.loaders[0].kind == "function")


def _where(looks: Looks, rows: Rows, role: Role) -> Where | None:
    """The heaviest line among some looks."""
    found = looks.heaviest(rows)
    if found is None:
        return None
    place, state, part = found
    return where_of(place, role, state, part)


def where_of(place: Place, role: Role, state: State, fraction: float) -> Where:
    return Where(role, state, place.file, place.line, place.function, fraction, place.callee, place.part)


def _rows(looks: WatchedLooks) -> tuple[Where, ...]:
    """The lines that the consumer and the workers spend most in."""
    found: list[Where] = []
    roles: tuple[tuple[Role, Looks], ...] = (("consumer", looks.consumer), ("worker", looks.workers))
    for role, of in roles:
        left = np.ones(len(of.rows), dtype=bool)
        for _ in range(MOST_ROWS):
            line = _where(of, left, role)
            if line is None or line.fraction < WORTH_A_ROW:
                break
            found.append(line)
            left &= ~of.where(lambda place, line=line: (place.file, place.line, place.part) == _key(line))  # type: ignore[misc]
    return tuple(found)


def _key(line: Where) -> tuple[str, int, str]:
    return line.file, line.line, line.part


class _Names:
    """Looks for each thing that has a name."""

    def __init__(
        self, recording: Recording, replays: Replays, seen: WatchedFacts, looks: WatchedLooks, cpus: int | None
    ) -> None:
        self.recording, self.replays, self.seen, self.looks, self.cpus = recording, replays, seen, looks, cpus
        self.stages = replays.fitted.real
        self.roughly = Replays(replays.fitted, 0)

    def details(self) -> Iterator[Detail]:
        yield from self._sampler()
        yield from self._gil()
        yield from self._own_threads()
        yield from self._collections()
        yield from self._pauses()

    # -- the script's own thread -------------------------------------------------------------------------------

    def _sampler(self) -> Iterator[Detail]:
        index_s = self.seen.loaders[0].index_s
        consumer = self.looks.consumer
        rows = consumer.in_parts("sampler")
        taken, _ = self.looks.seconds(rows)
        took = taken if index_s is None else Seconds(index_s)
        where = _where(consumer, rows, "consumer")
        if took.value > 0 and where is not None:
            yield self._detail("prep", "sampler", took, Seconds(0.0), took.value, where, late_s=took.value)

    def _gil(self) -> Iterator[Detail]:
        consumer = self.looks.consumer
        waits = consumer.in_states(["gil"])
        if consumer.part(waits) < WORTH_A_ROW:
            return
        others = self.looks.of("other")
        mine = others.in_states(WORKING)
        mine &= np.array([self._is_scripts(number) for number in others.samples.thread[others.rows]], dtype=bool)
        if float(others.weight[mine].sum()) < MOST_OF * float(consumer.weight[waits].sum()):
            return  # who holds it runs, or is about to, and none that could be seen does
        users = mine & others.where(lambda place: place.owner == "user")
        where = _where(others, users if users.any() else mine, "other") if mine.any() else None
        taken, worked, both = self._kept_from_running()
        if where is None or not both.value > 0:
            return
        waited_s, step_s = self.looks.phases
        ran_s = self.looks.step_s * others.part(mine & others.in_states(["running"]))
        ran_s *= float(others.weight.sum() / self.looks.of("consumer").weight.sum())

        def without(part: float) -> Edited:
            """The threads that send requests and batches wait for the GIL, too; without workers, the loader does."""
            in_next = min(1.0, part * taken.value / max(waited_s, 1e-12))
            alone = ("take",) if self.stages.workers else ("take", "read", "prep")
            less = {name: in_next * self._mean_s(name) for name in alone}
            less |= {name: self._mean_s(name) for name in ("send", "hand")}
            in_step = min(1.0, part * worked.value / max(step_s, 1e-12))
            return self._shorter({**less, "issue": in_step * self._mean_s("issue")}, ran_s)

        gain = self._gain(without, both)
        makes = not self.stages.workers
        yield Detail("contention", "gil", gain, where, both.value, {"seconds": both.value}, in_making=makes)

    def _kept_from_running(self) -> tuple[Seconds, Seconds, Seconds]:
        """(in next(), in the step, in both): seconds of a step in which the script's thread waits for the GIL, or for a
        processor that the script's own threads have. By its looks; where its processor time was counted, all that it is
        kept from running is what is left of a step beside that and its other waits, and looks say how much is which."""
        consumer, cpu_s, seen = self.looks.consumer, self._consumer_cpu_s, self.replays.fitted.seen
        (gil_in, gil), (queued_in, queued) = (
            self.looks.seconds(consumer.in_states([one])) for one in ("gil", "runnable")
        )
        own = 1.0 if seen is None else 1.0 - seen.for_others
        taken, worked = (
            Seconds(one.value + own * other.value, float(np.hypot(one.error, own * other.error)))
            for one, other in ((gil_in, queued_in), (gil, queued))
        )
        both, whole_s = taken + worked, (gil_in + gil + queued_in + queued).value
        if cpu_s is None or not whole_s > 0:
            return taken, worked, both
        waits = [state for state in WAITING if state != "gil"]
        waited = sum(self.looks.seconds(consumer.in_states(waits)), Seconds(0.0))
        times = max(0.0, self.looks.step_s - cpu_s - waited.value) / whole_s
        behind_others = Seconds(0.0, (whole_s - both.value) / NORMAL)  # they may be late for the same threads
        error = float(np.hypot(waited.error, times * behind_others.error))
        return Seconds(times * taken.value), Seconds(times * worked.value), Seconds(times * both.value, error)

    @cached_property
    def _consumer_cpu_s(self) -> float | None:
        """Processor seconds of the script's thread a step; None where they were not counted."""
        known = [(one.consumer_cpu_s, len(one.steps) - max(1, one.num_warmup))
                 for one in self.recording.of(Arm.REAL) if one.consumer_cpu_s is not None]  # fmt: skip
        num = sum(steps for _, steps in known)
        return sum(cpu_s for cpu_s, _ in known) / num if num > 0 else None

    def _is_scripts(self, thread: int) -> bool:
        samples = self.recording.samples
        return samples is not None and samples.threads[thread].worker is None

    def _own_threads(self) -> Iterator[Detail]:
        """More threads of PyTorch than processors. What they work is known only together with what they lose to each
        other: the step is at most as long as the processors would need for all that runs now. That it is shorter than
        the script's thread runs now is possible, since threads that wait for each other spin: nothing bounds the gain.
        """
        threads, consumer = self.seen.torch_threads, self.looks.consumer
        if threads is None or self.cpus is None or threads <= self.cpus or self.seen.uses_cuda:
            return
        waits = consumer.in_states(["lock", "runnable"])
        taken, worked = self.looks.seconds(waits)
        where = _where(consumer, waits & ~consumer.in_parts("queue", "rebuild", "sampler"), "consumer")
        if where is None or not worked.value > 0:
            return

        def without(part: float) -> Edited:
            return self._shorter_step(part * taken.value, part * worked.value, self._mean_s("cpu"))

        most, now_s = self._gain(without, taken + worked), float(self.roughly.now_s[0])
        least = max(1.0, now_s / (self._mean_s("cpu") / self.stages.processors + taken.value))
        value = float(np.sqrt(least * most.value))
        method = f"{most.method}; by the processors at the low end"
        gain = replace(most, value=value, low=least, high=None, method=method)
        figures: dict[str, Json] = {"threads": threads, "cpus": self.cpus}
        makes = not self.stages.workers
        yield Detail("contention", "own_threads", gain, where, worked.value, figures, in_making=makes)

    def _collections(self) -> Iterator[Detail]:
        known = self.recording.collections
        if known is None:
            return
        taken, worked, place = _of_collections(known, self.looks)
        if not taken + worked > 0:
            return
        part = (taken + worked) / self.looks.step_s
        where = None
        if place is not None:
            where = Where("consumer", "running", *place, fraction=part, callee="gc", part="gc")
        yield self._detail("compute", "gc", Seconds(taken), Seconds(worked), taken + worked, where)

    def _pauses(self) -> Iterator[Detail]:
        consumer = self.looks.consumer
        for part, word in PAUSES.items():
            rows = consumer.in_parts(part)
            _, worked = self.looks.seconds(rows)
            where = _where(consumer, rows, "consumer")
            if worked.value > 0 and where is not None:
                ran = worked.value * consumer.part(rows & consumer.in_states(WORKING), rows)
                yield self._detail("compute", word, Seconds(0.0), worked, ran, where)

    def _detail(
        self, cause: Removable, word: CauseDetail, taken: Seconds, worked: Seconds, ran_s: float, where: Where | None,
        late_s: float = 0.0,
    ) -> Detail:  # fmt: skip
        """The gain without so many seconds in next() and in the step. `ran_s`: of these, on a processor; `late_s`: by
        which a worker is asked for its next batch later."""
        both = taken + worked

        def without(part: float) -> Edited:
            return self._shorter_step(part * taken.value, part * worked.value, part * ran_s, part * late_s)

        gain = self._gain(without, both)
        return Detail(cause, word, gain, where, both.value, {"seconds": both.value})

    def _gain(self, without: Callable[[float], Edited], seconds: Seconds) -> Estimate:
        """`without`: the pipeline without this many times the seconds that are taken out."""
        gain = self.replays.estimate(self.replays.now_s / self.replays.step_s(without(1.0)))
        if not seconds.error > 0 or gain.low is None or gain.high is None:
            return gain
        now_s = float(self.roughly.now_s[0])
        low, high = (
            now_s / float(self.roughly.step_s(without(end / seconds.value))[0]) for end in (seconds.low, seconds.high)
        )
        return _wider(gain, low, high)

    def _shorter_step(self, taken_s: float, worked_s: float, ran_s: float, late_s: float = 0.0) -> Edited:
        """The pipeline with the script's thread so many seconds a step shorter: where it takes a batch, as far as that
        is known, and where it waits for what it takes."""
        less, left_s = {"issue": worked_s, "hand": late_s}, taken_s
        for name in ("take", "send") if self.stages.workers else ("take", "read", "prep"):
            less[name] = min(left_s, self._mean_s(name))
            left_s -= less[name]
        return self._shorter(less, ran_s)

    def _shorter(self, less: Mapping[str, float], ran_s: float) -> Edited:
        """The pipeline with columns of its batches so many seconds shorter in the mean, and as much less work for the
        processors."""
        one = self.stages.batches
        columns: dict[str, Times] = {
            name: getattr(one, name) * max(0.0, 1.0 - less_s / max(self._mean_s(name), 1e-12))
            for name, less_s in less.items()
        }
        return Edited(self.stages.with_(**columns, cpu=(one.cpu - ran_s).clip(0)))

    def _mean_s(self, column: str) -> float:
        return float(getattr(self.stages.batches, column).mean())

    # -- a worker ------------------------------------------------------------------------------------------------

    def worker(self) -> Detail | None:
        """What a worker waits for, if that is a lock or a sleep, else the line that costs most."""
        looks = self._making
        if len(looks) < LEAST_LOOKS or self._waits_for_its_threads:
            return None
        role: Role = "worker" if self.stages.workers else "consumer"
        waits = looks.in_states(WAITING)
        locked, sleeps = looks.in_states(["lock"]), looks.in_states(["sleep"])
        if looks.part(locked) >= HELD_BY_LOCK:
            return self._waits(looks, "lock", locked, waits, role)
        if looks.part(waits) >= HELD_BY_LOCK and looks.part(sleeps, waits) >= MOST_OF:
            return self._waits(looks, "sleep", sleeps, waits, role)
        return self._hottest(looks, waits, role)

    def reads(self) -> float | None:
        """Of the time of making batches, the part in which a file or a connection is read."""
        looks = self._making
        if len(looks) < LEAST_LOOKS or self._waits_for_its_threads:
            return None
        return looks.part(looks.in_states(READING))

    @cached_property
    def _making(self) -> Looks:
        """The looks in which a batch is made: of the workers, or of the script's thread where there are none."""
        if self.stages.workers:
            return self.looks.workers
        consumer = self.looks.consumer
        return Looks(consumer.samples, consumer.rows[consumer.in_parts(*IN_MAIN_PROCESS)])

    @property
    def _waits_for_its_threads(self) -> bool:
        """Whether a loader that tells nothing of its work makes batches in threads of its own: the script's waits for
        these, and does not show what they do."""
        return self.stages.opaque and self._making.part(self._making.in_states(["lock", "pipe"])) >= HELD_BY_LOCK

    def _waits(self, looks: Looks, word: CauseDetail, rows: Rows, waits: Rows, role: Role) -> Detail:
        """Without these waits: their part of what the data set's code waited, by its stamps."""
        part, whole_s = looks.part(rows), self._mean_s("read") + self._mean_s("prep")
        read_s = looks.part(rows, waits) * self._mean_s("read")
        less = {"read": read_s, "prep": max(0.0, part * whole_s - read_s)}
        return self._of_worker(word, less, 0.0, _where(looks, rows, role), part, len(looks))

    def _hottest(self, looks: Looks, waits: Rows, role: Role) -> Detail | None:
        found = looks.heaviest(np.ones(len(looks.rows), dtype=bool))
        if found is None:
            return None
        place, state, part = found
        rows = looks.where(lambda other: (other.file, other.line, other.part) == (place.file, place.line, place.part))
        prep_s = looks.part(rows & ~waits, ~waits) * self._mean_s("prep")
        less = {"read": looks.part(rows & waits, waits) * self._mean_s("read"), "prep": prep_s}
        if self.stages.opaque:  # no stamp tells its waits from its work
            less = {"prep": part * self._mean_s("prep")}
        return self._of_worker(_kind(looks), less, prep_s, where_of(place, role, state, part), part, len(looks))

    def _of_worker(
        self, word: CauseDetail, less: Mapping[str, float], ran_s: float, where: Where | None, part: float, num: int
    ) -> Detail:
        """Without so many seconds of a worker's batch. It sends a batch in a thread that waits while it computes."""
        if where is not None and not self.stages.workers:  # of all that the script's thread does
            consumer = self.looks.consumer
            where = replace(where, fraction=where.fraction * consumer.part(consumer.in_parts(*IN_MAIN_PROCESS)))
        whole_s = self._mean_s("read") + self._mean_s("prep")
        eased = sum(less.values()) / max(whole_s, 1e-12)
        sends = {name: eased * self._mean_s(name) for name in ("send", "hand")} if self.stages.workers else {}

        def without(times: float) -> Edited:
            return self._shorter({name: times * one for name, one in {**less, **sends}.items()}, times * ran_s)

        seconds = Seconds(sum(less.values()), whole_s * share_error(part, num))
        return Detail("prep", word, self._gain(without, seconds), where, seconds.value, {"part": part})


def _wider(gain: Estimate, low: float, high: float) -> Estimate:
    """With the error of what is taken out, in logarithms."""
    assert gain.low is not None and gain.high is not None
    below = float(np.hypot(np.log(gain.value / max(gain.low, 1e-9)), np.log(gain.value / max(low, 1e-9))))
    above = float(np.hypot(np.log(gain.high / gain.value), np.log(max(high, gain.value) / gain.value)))
    method = f"{gain.method}; share of samples"
    return replace(gain, low=gain.value * float(np.exp(-below)), high=gain.value * float(np.exp(above)), method=method)


def _of_collections(known: Collections, looks: WatchedLooks) -> tuple[float, float, tuple[str, int, str] | None]:
    """(seconds of a step in next(), in the step, the line that most of it was at)"""
    pauses, steps = known.pauses, looks.steps
    begin, end = pauses[:, 0] / 1e9, pauses[:, 1] / 1e9
    at = np.searchsorted(steps[:, 0], begin, side="right") - 1
    inside = (at >= 0) & (begin < steps[np.clip(at, 0, None), 2])
    took, taking = (end - begin)[inside], begin[inside] < steps[at[inside], 1]
    num = len(steps)
    if not len(took):
        return 0.0, 0.0, None
    by_place = np.bincount(pauses[inside, 3] + 1, weights=took)
    place = int(by_place.argmax()) - 1
    return (
        float(took[taking].sum()) / num,
        float(took[~taking].sum()) / num,
        known.places[place] if place >= 0 else None,
    )


def _kind(looks: Looks) -> CauseDetail:
    """What most of a worker's work is, by the names of what runs."""
    kinds: Mapping[CauseDetail, Rows] = {
        "collate": looks.in_parts("collate"), "decode": looks.where(lambda one: _is(one, DECODES)),
        "augment": looks.where(lambda one: _is(one, AUGMENTS) and not _is(one, DECODES)),
    }  # fmt: skip
    kind = max(kinds, key=lambda one: looks.part(kinds[one]))
    return kind if looks.part(kinds[kind]) >= MOST_OF else "dataset_code"


def _is(place: Place, words: tuple[str, ...]) -> bool:
    name = f"{place.callee} {place.function}".lower()
    return place.part != "collate" and any(word in name for word in words)


# -- the verdict -------------------------------------------------------------------------------------------------

EXPLAINS = 0.5
"""Of the logarithm of what a run gains without the cause named before, the part that a thing gains that explains it."""
CONTENTION: Mapping[str, CauseDetail] = {
    "own threads": "own_threads", "workers": "workers", "neighbours": "neighbours", "quota": "quota", "steal": "steal",
}  # fmt: skip
WORK_OF_CPUS = ("prep", "contention")
"""Verdicts whose time is shorter with more processors."""
OF_OTHERS = ("neighbours", "steal")
"""Who takes processors from outside of the script. What the script does itself is named before them if it gains CLEAR
or more: it stays when they are gone."""


def named(verdict: Verdict, known: Named | None, held_up_by: str | None) -> Verdict:
    """The verdict with the name of its cause, or with the cause that the samples show instead."""
    if known is None:
        return _unnamed(verdict, held_up_by)
    sampled, counted = ([one for one in known.details if one.is_counted is side] for side in (False, True))
    best = sampled[0] if sampled else None
    verdict = _by_samples(verdict, known, best, held_up_by)
    limit = next((one for one in counted if one.word == "affinity"), None)
    if limit is not None and limit.gain.value >= CLEAR and verdict.bottleneck in WORK_OF_CPUS:
        return _with(verdict, limit)  # one setting undoes it; doing less work would gain more, and does not replace it
    best = counted[0] if counted else None
    least = max(CLEAR if verdict.bottleneck == "compute" else 1.0, _gain_of(verdict) ** EXPLAINS)
    if best is not None and best.gain.value >= least:
        return _with(verdict, best)
    return verdict


def _gain_of(verdict: Verdict) -> float:
    """Without what the verdict names; 1 where that is the step itself."""
    if verdict.bottleneck == "mixed" and verdict.joint_speedup is not None:
        return verdict.joint_speedup.value
    is_step = verdict.bottleneck == "compute" and verdict.cause_detail in (None, "step")
    return 1.0 if verdict.gain is None or is_step else verdict.gain.value


def _by_samples(verdict: Verdict, known: Named, best: Detail | None, held_up_by: str | None) -> Verdict:
    now = _gain_of(verdict)
    verdict = _separated(replace(verdict, where=known.where), known)
    if verdict.bottleneck == "contention" and held_up_by in OF_OTHERS:
        now = min(now, CLEAR)
        if worker_waits(known) and known.worker is not None and known.worker.gain.value > now:
            return _with(verdict, known.worker)
    if best is not None and best.gain.value > (now**EXPLAINS if best.in_making else now):
        return _with(verdict, best)
    worker = known.worker
    if known.is_function and worker is not None and verdict.bottleneck in ("storage", "prep", "mixed"):
        return replace(verdict, cause_detail="no_loader", where=_first(worker.where, known.where))
    if worker is not None and verdict.bottleneck in ("storage", "prep", "mixed") and worker_waits(known):
        return _with(verdict, worker)
    if verdict.bottleneck == "prep" and worker is not None:
        return replace(verdict, cause_detail=worker.word, where=_first(worker.where, known.where))
    return _unnamed(verdict, held_up_by)


def worker_waits(known: Named) -> bool:
    """Whether a lock or a sleep is what costs a worker most."""
    return known.worker is not None and known.worker.word in ("lock", "sleep")


def _separated(verdict: Verdict, known: Named) -> Verdict:
    """Storage or preparation, where stamps do not tell them apart: by whether anything is read."""
    if set(verdict.joint) != {"storage", "prep"} or known.reads is None or known.reads > READS_LITTLE:
        return verdict
    gains = {**verdict.speedup_if_removed, "storage": None, "prep": verdict.joint_speedup}
    return replace(
        verdict, bottleneck="prep", joint=(), joint_speedup=None, reasons=(), speedup_if_removed=gains
    )  # fmt: skip


def _unnamed(verdict: Verdict, held_up_by: str | None) -> Verdict:
    if verdict.bottleneck == "compute":
        return replace(verdict, cause_detail="step")
    if verdict.bottleneck == "contention" and held_up_by is not None:
        return replace(verdict, cause_detail=CONTENTION[held_up_by])
    return verdict


def _with(verdict: Verdict, detail: Detail) -> Verdict:
    gains = {**verdict.speedup_if_removed, detail.cause: detail.gain}
    if detail.word in ("lock", "sleep"):
        gains["storage"] = None
    return replace(
        verdict, bottleneck=detail.cause, cause_detail=detail.word, where=_first(detail.where, verdict.where),
        joint=(), joint_speedup=None, reasons=(), speedup_if_removed=gains,
    )  # fmt: skip


def moved(
    shares: Mapping[Share, Estimate | None], verdict: Verdict, known: Named | None
) -> Mapping[Share, Estimate | None]:
    """The shares of a step with the part of what the samples name at its own cause."""
    best = None if known is None else next((one for one in known.details if one.word == verdict.cause_detail), None)
    compute = shares.get("compute")
    if best is None or known is None or best.cause == "compute" or compute is None:
        return shares
    part = min(compute.value, best.seconds / known.step_s)
    to: Share = "prep" if best.cause == "prep" else "contention"
    before = shares.get(to)
    whole = part + (0.0 if before is None else before.value)
    added = Estimate(whole, None, None, compute.unit, compute.n, "share of samples")
    return {**shares, "compute": _less(compute, part), to: added}


def _less(share: Estimate, part: float) -> Estimate:
    ends = (None if end is None else max(0.0, end - part) for end in (share.low, share.high))
    low, high = ends
    return replace(share, value=share.value - part, low=low, high=high)


def _first(line: Where | None, lines: tuple[Where, ...]) -> tuple[Where, ...]:
    """The lines with this one first, if there is one."""
    if line is None:
        return lines
    return line, *(one for one in lines if (one.role, _key(one)) != (line.role, _key(line)))


# -- advice ------------------------------------------------------------------------------------------------------

ADVICE: Mapping[str, str] = {
    "sampler": "faster_sampler", "gil": "release_gil", "own_threads": "fewer_torch_threads", "gc": "less_collecting",
    "delivery": "join_objects", "affinity": "all_processors", "order": "not_in_order",
    "lock": "shorter_lock", "sleep": "no_sleep", **dict.fromkeys(PAUSES, "shorter_pause"),
}  # fmt: skip
AGAINST: Mapping[str, frozenset[str]] = {
    "lock": frozenset({"num_workers", "prefetch_factor", "cache_in_memory", "fewer_reads", "cheaper_samples"}),
    "sleep": frozenset({"cache_in_memory", "fewer_reads", "cheaper_samples"}),
    "own_threads": frozenset({"fewer_threads"}),
    "affinity": frozenset({"fewer_threads", "fewer_workers", "stop_neighbours"}),
    "gil": frozenset({"fewer_threads", "stop_neighbours"}),
}  # fmt: skip
"""Word of a cause → advice that does not help against it, or says less."""
QUICK_SAMPLE_S, MANY = 50e-6, 128
"""A sample that takes a worker less, in a batch of this many and more, is mostly Python's own work for it."""


def line_of(where: Where) -> str:
    """`transforms.py:41 ElasticTransform`."""
    return f"{where.file.rpartition('/')[2]}:{where.line} {where.callee or where.function}"


def with_named(
    actions: Sequence[Action], known: Named | None, verdict: Verdict, batch_size: int | None
) -> list[Action]:
    """The advice with that for what has a name, and without what does not help against it."""
    if known is None:
        return list(actions)
    found = list(actions)
    details = [*known.details, *([known.worker] if known.worker is not None else [])]
    if known.is_function and known.worker is not None and known.worker.where is not None:
        found.append(Action("prep", "use_a_loader", None, None, {"line": line_of(known.worker.where)}))
    for one in details:
        code = ADVICE.get(one.word)
        if one.word == "one_worker":
            code = "even_shards" if one.figures["idle"] else "slow_worker"
        if one.word == "epoch_start":
            code = {"sampler": "quick_sampler", "first": "quick_first_batch"}.get(str(one.figures["of"]))
        if code is None or (one.where is None and not one.is_counted) or one.gain.value < WORTH:
            continue
        line = {} if one.where is None else {"line": line_of(one.where), "what": one.word}
        figures = {**line, **one.figures}
        found.append(Action(one.cause, code, None, one.gain, figures))
    if known.worker is not None and known.worker.where is not None:
        found = [_of_line(one, known.worker, batch_size) for one in found]
    against = AGAINST.get(verdict.cause_detail or "", frozenset())
    if known.is_function:
        against |= {"num_workers", "prefetch_factor"}  # it has neither
    return [one for one in found if one.code not in against]


def _of_line(action: Action, worker: Detail, batch_size: int | None) -> Action:
    """Advice about samples names the line that costs most of them, and what that line gains."""
    if action.code != "cheaper_samples" or worker.where is None or worker.where.part != "dataset":
        return action
    sample_s = worker.seconds / max(1, batch_size or 1)
    line = line_of(worker.where)
    if sample_s < QUICK_SAMPLE_S and (batch_size or 1) >= MANY:
        return Action("prep", "batched_fetch", None, worker.gain, {"line": line, "sample_s": sample_s})
    return Action("prep", "cheaper_line", None, worker.gain, {"line": line, **worker.figures})
