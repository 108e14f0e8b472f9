"""What to try next on a script that was watched: arguments of its DataLoader, and what in its workers takes longest.

A prediction follows the recorded batches through the queue of a DataLoader that is set up otherwise (batch_queue.py):

    speed-up = T ÷ T'      T, T' = max(followed, CPU seconds of a step ÷ processors that the run has)

with the recorded times of each batch in its worker, without its wait for a processor, and of each step of the script.
What other workers would read at once is not known: the point is that each batch waits for its reads as long as now,
the interval reaches to where a storage gives no more. Nor is it known what a step on the processors would take beside
workers that do something else, where bursts show that it is shorter without them: the interval reaches to that, as far
as their work is gone. The point is the middle where they have less to do beside a step, and the step as it is where
more of them do the same. An epoch's start is predicted from the starts that were seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loaderbench.analysis.advice import (
    AS_FAST,
    MOST_ACTIONS,
    MOST_READERS,
    WORTH_TRYING,
    Action,
    advice_of,
)
from loaderbench.analysis.model import Model
from loaderbench.analysis.predictions import MODEL_ERROR, knee
from loaderbench.analysis.quantities import Draws
from loaderbench.analysis.statistics import interval
from loaderbench.analysis.verification import rate_ratio, segments_of, trials_of
from loaderbench.analysis.watched_places import Named, with_named
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Change as CaseChange
from loaderbench.pipeline.change import Change, changed
from loaderbench.pipeline.edits import Edited
from loaderbench.pipeline.gains import Replays, longer
from loaderbench.plain import Json
from loaderbench.recording.facts import SPAN, STEP, Run, Segment, WatchedEpoch, WatchedFacts
from loaderbench.recording.record import Advice, Cause, ContentionBy, Estimate, Verdict

NUM_DRAWS = 60
MOST_PREFETCH = 16
LARGE_PART = 0.20
"""Of a worker's time, from which on one thing in it is worth a name."""
FITS = 0.7
"""Of the memory that is free, the part that a data set may take."""
EPOCH_GAIN = 1.03
OPTIONS = "loader_options"
PERSISTENT: CaseChange = {OPTIONS: {"persistent_workers": "True"}}
PINNED: CaseChange = {OPTIONS: {"pin_memory": "True"}}


@dataclass(frozen=True)
class Batches:
    """The recorded batches in order; times in seconds."""

    making: Draws
    """[K] in their worker, without waiting for a processor."""
    reading: Draws
    """[K] of that, in which the data set's code waited for what it reads."""
    collating: Draws
    cpu: Draws
    """[K] processor time of the worker."""
    step: Draws
    """[K] the script's own work on them."""
    read_bytes: float
    """A batch; 0 where unknown."""
    pages: Draws
    """[K] of memory that the data set's code gave back and took anew."""


def batches_of(segments: Sequence[Segment]) -> Batches | None:
    """Of the windows of `real`; None where the workers' times are not known."""
    spans, steps = [], []
    for one in segments:
        if one.arm is Arm.REAL and one.spans is not None:
            spans.append(one.spans[one.num_warmup : len(one.steps)])
            steps.append(one.window)
    if not spans or sum(map(len, spans)) < 2:
        return None
    rows, stamps = np.concatenate(spans), np.concatenate(steps)

    def of(name: str) -> Draws:
        return np.asarray(rows[:, SPAN[name]] / 1e9, dtype=np.float64)

    queued = of("runqueue_ns").clip(0.0)
    wall = of("ready_ns") - of("start_ns")
    making = np.maximum(wall - queued, 1e-9)
    # Collate waits for processors as the rest of the work does; which part of the waiting was its own is not stored.
    runs = (making - of("read_ns")).clip(0.0) / np.maximum(wall - of("read_ns"), 1e-9)
    asked = rows[:, SPAN["page_bytes"]].clip(0)
    return Batches(
        making=making,
        reading=of("read_ns"),
        collating=of("collate_ns") * runs.clip(0.0, 1.0),
        cpu=of("cpu_ns").clip(0.0),
        step=np.asarray((stamps[:, STEP["done_ns"]] - stamps[:, STEP["returned_ns"]]) / 1e9),
        read_bytes=float(asked.mean()),
        pages=rows[:, SPAN["minor_faults"]].clip(0).astype(np.float64),
    )


class Follower:
    """Predicts the step of a DataLoader that is set up otherwise, by replay of its batches."""

    def __init__(self, replays: Replays, batches: Batches, cpus: int, ready_s: float | None) -> None:
        """`ready_s`: of a step with its batch ready and no worker at work; None: unknown."""
        case = replays.fitted.run.case
        self.replays, self.fitted, self.batches, self.cpus = replays, replays.fitted, batches, cpus
        self.workers, self.prefetch = case.feed.workers, case.feed.prefetch or 2
        self._roughly = Replays(self.fitted, 0)
        self._eased = 1.0 if ready_s is None else min(1.0, ready_s / max(float(batches.step.mean()), 1e-12))
        """A step where no worker works beside it ÷ one of today."""

    def gain(self, change: CaseChange, *, roughly: bool = False) -> Draws:
        """`roughly`: the value alone."""
        workers, prefetch = change.get("workers", self.workers), change.get("prefetch", self.prefetch)
        assert isinstance(workers, int) and isinstance(prefetch, int)
        # Read waits that grow with the number of readers are those of a storage that gives no more.
        slower = longer(max(1.0, workers / max(1, self.workers)))
        factors = {"read": slower}
        if workers != self.workers:  # a batch costs more workers as much as these, and as much of it is done then
            factors["issue"] = longer(self._eased)
            factors["issue"][0] = self._eased**0.5 if workers < self.workers else 1.0
        made = Change(workers=workers, prefetch=prefetch, factors=factors)
        replays = self._roughly if roughly else self.replays
        return np.asarray(replays.now_s / replays.step_s(changed(self.fitted, made)))

    def without(self, part: float) -> Estimate:
        """If a part of the workers' own work were gone."""
        made = Change(prep=max(0.0, 1.0 - part), cpu=max(0.0, 1.0 - part * self.worker_part))
        return self.estimate(self.replays.now_s / self.replays.step_s(changed(self.fitted, made)))

    @property
    def worker_part(self) -> float:
        """Of the CPU seconds of all threads, those of the workers' batches."""
        return min(1.0, float(self.batches.cpu.mean()) / max(float(self.fitted.real.batches.cpu.mean()), 1e-12))

    def in_one_thread(self) -> Estimate:
        """If one thread of each worker did the work of all, and none waited for a processor."""
        stages, batches = self.fitted.real, self.batches
        alone = np.resize(batches.cpu, len(stages.window))
        found = stages.with_(prep=alone, queue=0.0)
        return self.estimate(self.replays.now_s / self.replays.step_s(Edited(found)))

    def estimate(self, gain: Draws) -> Estimate:
        return self.replays.estimate(gain, own=MODEL_ERROR)

    def predict(self, change: CaseChange) -> Estimate:
        return self.estimate(self.gain(change))

    @property
    def reads(self) -> bool:
        """Whether its workers wait for what they read for a good part of their time."""
        return float(self.batches.reading.sum()) > 0.1 * float(self.batches.making.sum())


def advise_watched(
    run: Run, replays: Replays | None, verdict: Verdict, model: Model, seen: WatchedFacts, *, cpus: int,
    held_up_by: ContentionBy | None, known: Named | None = None,
) -> tuple[Advice, ...]:  # fmt: skip
    """At most MOST_ACTIONS, the best predicted first; then those whose gain does not follow from what was seen."""
    batches = None if run.recording is None else batches_of(run.recording.segments)
    follower = None if batches is None or replays is None else Follower(replays, batches, cpus, model.ready_step_s)
    causes = set(verdict.joint or (verdict.bottleneck,))
    actions: list[Action] = []
    if follower is not None:
        actions += _for_workers(follower, seen)
        actions += _for_what_workers_do(follower, seen)
        actions += _for_threads(follower, seen)
        actions += _for_memory(follower, seen)
        if "storage" in causes:
            actions += _for_storage(follower, seen, verdict)
    elif {"storage", "prep"} & causes and seen.loaders[0].kind == "DataLoader":
        now = run.case.feed.workers
        actions.append(Action("prep", "num_workers", None, None, {"now": now, "cpus": cpus}))
    actions += _for_epochs(seen, batches)
    rank = None if run.recording is None else run.recording.rank
    beside_ranks = rank is not None and (rank.num_local or 1) > 1
    if "contention" in causes and not (beside_ranks and held_up_by == "neighbours"):  # they are the run's own
        actions += _for_contention(verdict, model, held_up_by)
    if seen.uses_cuda and seen.settings is not None and not seen.settings.pin_memory:
        actions.append(Action("transfer", "pin_memory", PINNED))
    if seen.applied is not None and follower is not None:
        actions = _with_the_applied(actions, seen.applied.change, follower)
    actions = with_named(actions, known, verdict, seen.loaders[0].batch_size)
    return tuple(_measured(run, seen, _plain(one, verdict)) for one in _chosen(actions, seen))


def _chosen(actions: Sequence[Action], seen: WatchedFacts) -> list[Action]:
    applied = None if seen.applied is None else dict(seen.applied.change)
    known = [
        one
        for one in actions
        if one.predicted is not None
        and (one.predicted.value >= _least(one) or (one.change is not None and dict(one.change) == applied))
    ]
    known.sort(key=lambda one: -one.predicted.value if one.predicted else 0.0)
    chosen = [*known, *(one for one in actions if one.predicted is None)][:MOST_ACTIONS]
    kept = [one for one in known if one.change is not None and dict(one.change) == applied and one not in chosen]
    return [*chosen[: MOST_ACTIONS - len(kept)], *kept]


def _least(action: Action) -> float:
    """What an action must be predicted to give. Fewer workers take less memory: they need not be faster."""
    now, workers = (action.details or {}).get("now"), (action.change or {}).get("workers")
    if action.code == "num_workers" and isinstance(now, int) and isinstance(workers, int) and workers < now:
        return AS_FAST
    return WORTH_TRYING


def _plain(action: Action, verdict: Verdict) -> Advice:
    of_its_own = action.code in ("keep_loader", "pin_memory")
    return advice_of(action, None if of_its_own else verdict.speedup_if_removed.get(action.cause))


def _with_the_applied(actions: Sequence[Action], change: CaseChange, follower: Follower) -> list[Action]:
    """What was applied stays, whatever the best would be now."""
    if any(one.change is not None and dict(one.change) == dict(change) for one in actions) or OPTIONS in change:
        return list(actions)
    code = "num_workers" if "workers" in change else "prefetch_factor"
    now = follower.workers if "workers" in change else follower.prefetch
    return [*actions, Action("prep", code, change, follower.predict(change), {"now": now, "cpus": follower.cpus})]


# -- the loader's arguments ------------------------------------------------------------------------------------


def _for_workers(follower: Follower, seen: WatchedFacts) -> list[Action]:
    now, cpus, settings = follower.workers, follower.cpus, seen.settings
    if settings is not None and settings.iterable and now == 0:
        return []  # whether its data set gives each worker a part of its own is not known
    most = max(cpus, now, min(4 * cpus, MOST_READERS) if follower.reads else 1)
    best = knee(range(1, most + 1), lambda number: float(follower.gain({"workers": number}, roughly=True)[0]))
    actions = []
    details: dict[str, Json] = {"now": now, "cpus": cpus}
    if best > now or (best < now and now > cpus):
        actions.append(_arguments("num_workers", {"workers": best}, follower, details))
    if now:
        ahead = (4, 8, MOST_PREFETCH)
        prefetch = knee(ahead, lambda number: float(follower.gain({"prefetch": number}, roughly=True)[0]))
        if prefetch > follower.prefetch:
            told: dict[str, Json] = {"now": follower.prefetch}
            actions.append(_arguments("prefetch_factor", {"prefetch": prefetch}, follower, told))
    return actions


def _arguments(code: str, change: CaseChange, follower: Follower, details: Mapping[str, Json]) -> Action:
    cause: Cause = "storage" if follower.reads else "prep"
    return Action(cause, code, change, follower.predict(change), details)


def starts_s(epochs: Sequence[WatchedEpoch]) -> list[float]:
    """From asking for an iterator to its first batch, of the epochs behind the first one, in which a data set may be
    opened for the first time."""
    return [one.opening + one.first for one in epochs[1:] if one.num_batches]


def _for_epochs(seen: WatchedFacts, batches: Batches | None) -> list[Action]:
    """Workers that stay from one epoch to the next. They still make the first batch."""
    settings, main, starts = seen.settings, seen.loaders[0], starts_s(seen.epochs)
    if settings is None or settings.persistent or not main.workers or not starts:
        return []
    making = 0.0 if batches is None else float(batches.making.mean())
    whole = [one.seconds for one in seen.epochs[1:] if one.num_batches]
    saved = np.maximum(np.asarray(starts) - making, 0.0)
    random = np.random.default_rng(31)
    picks = random.integers(len(whole), size=(NUM_DRAWS, len(whole)))
    noise = np.exp(random.normal(0.0, np.log1p(MODEL_ERROR) / 1.96, NUM_DRAWS))
    of = np.asarray(whole)
    left = np.maximum(of[picks].sum(axis=1) - saved[picks].sum(axis=1) * noise, 1e-9)
    value = float(of.sum() / max(float((of - saved).sum()), 1e-9))
    method = "start of each later epoch, minus one batch's time; bootstrap, 95 %"
    predicted = interval(value, of[picks].sum(axis=1) / left, "ratio", max(2, len(whole)), method)
    if predicted.value < EPOCH_GAIN:
        return []
    kept = settings.num_made < main.num_iterators
    code = "persistent_workers" if kept else "keep_loader"
    details: dict[str, Json] = {"start_s": float(np.mean(starts)), "epoch_s": float(np.mean(whole))}
    return [Action("prep", code, PERSISTENT if kept else None, predicted, details)]


# -- what workers do -------------------------------------------------------------------------------------------


def _for_what_workers_do(follower: Follower, seen: WatchedFacts) -> list[Action]:
    batches, settings = follower.batches, seen.settings
    making = float(batches.making.sum())
    working = max(1e-12, making - float(batches.reading.sum()))
    actions = []
    part = float(batches.collating.sum()) / making
    if part >= LARGE_PART and settings is not None:
        details: dict[str, Json] = {"name": settings.collate, "part": part}
        predicted = follower.without(part * making / working)
        actions.append(Action("prep", "cheaper_collate", None, predicted, details))
    slowest, part = slowest_transform(seen)
    if slowest is not None and part >= LARGE_PART:
        predicted = follower.without(part * making / working)
        actions.append(Action("prep", "cheaper_transform", None, predicted, {"name": slowest, "part": part}))
    own = np.maximum(batches.making - batches.reading - batches.collating, 0.0)
    part = float(own.sum()) / making
    named = any(one.code == "cheaper_transform" for one in actions)
    if part >= LARGE_PART and not named:
        predicted = follower.without(part * making / working)
        method = "__iter__" if settings is not None and settings.iterable else "__getitem__"
        data: dict[str, Json] = {"name": f"{seen.loaders[0].data}.{method}", "part": part}
        actions.append(Action("prep", "cheaper_samples", None, predicted, data))
    return actions


def slowest_transform(seen: WatchedFacts) -> tuple[str | None, float]:
    """(its name, its part of the time that the timed batches took their workers)"""
    settings = seen.settings
    if settings is None or not settings.transforms or not settings.timed_s > 0:
        return None, 0.0
    slowest = max(settings.transforms, key=lambda one: one.seconds)
    return slowest.name, min(1.0, slowest.seconds / settings.timed_s)


def _for_threads(follower: Follower, seen: WatchedFacts) -> list[Action]:
    """Threads within the workers, where all of them together are more than the processors."""
    settings, workers = seen.settings, follower.workers
    threads = None if settings is None else settings.worker_torch_threads
    if threads is None or threads < 2 or workers * threads <= follower.cpus:
        return []
    details: dict[str, Json] = {"threads": threads, "workers": workers, "cpus": follower.cpus}
    return [Action("contention", "worker_threads", None, follower.in_one_thread(), details)]


def _for_memory(follower: Follower, seen: WatchedFacts) -> list[Action]:
    """Freed memory that is given back to the kernel and taken anew, for sample after sample."""
    if seen.page_s is None:
        return []
    batches = follower.batches
    spent = np.minimum(batches.pages * seen.page_s, batches.cpu)
    part = float(spent.sum()) / max(float(batches.cpu.sum()), 1e-9)
    predicted = follower.without(part)
    if predicted.low is not None and predicted.low > 1.0:
        # Memory that is no malloc's, and arrays that it maps by themselves whatever its settings, are not told apart.
        predicted = replace(
            predicted, low=1.0, method=f"{predicted.method}; 1 at the low end, if the memory is not malloc's"
        )
    return [Action("prep", "keep_memory", None, predicted, {"part": part})]


def _for_storage(follower: Follower, seen: WatchedFacts, verdict: Verdict) -> list[Action]:
    main, batches = seen.loaders[0], follower.batches
    gain = verdict.speedup_if_removed.get("storage") or verdict.joint_speedup
    if not batches.read_bytes or not main.batch_size:
        return [Action("storage", "fewer_reads")]
    whole = None if main.num_samples is None else batches.read_bytes / main.batch_size * main.num_samples
    room, actions = seen.available_memory_bytes, []
    if whole is not None and room is not None and whole <= FITS * room:
        details: dict[str, Json] = {"bytes": whole, "available": room}
        actions.append(Action("storage", "cache_in_memory", None, gain, details))
    a_sample = batches.read_bytes / main.batch_size
    actions.append(Action("storage", "fewer_reads", None, None, {"bytes": a_sample}))
    return actions


def _for_contention(verdict: Verdict, model: Model, held_up_by: ContentionBy | None) -> list[Action]:
    seen, gain = model.processors.get(Arm.REAL), verdict.speedup_if_removed.get("contention")
    if seen is None:
        return []
    told: dict[ContentionBy, tuple[str, dict[str, Json]]] = {
        "neighbours": ("stop_neighbours", {"cores": seen.neighbours, "cpus": seen.cpus}),
        "quota": ("raise_quota", {"quota": seen.quota_cpus, "cpus": seen.cpus}),
        "steal": ("less_steal", {"cores": seen.stolen, "cpus": seen.cpus}),
        "own threads": ("fewer_threads", {"cpus": seen.cpus}),
    }
    if held_up_by is None or held_up_by not in told:
        return []
    code, details = told[held_up_by]
    return [Action("contention", code, None, gain, details)]


# -- what was applied ------------------------------------------------------------------------------------------


def _measured(run: Run, seen: WatchedFacts, advice: Advice) -> Advice:
    """With what `--apply` measured of it."""
    applied = seen.applied
    if applied is None or advice.change is None or dict(advice.change) != dict(applied.change):
        return advice
    tried = trials_of(run.trials, applied.change)
    failure = next((one.failure for one in tried if one.failure is not None), None)
    if failure is not None or not tried or run.recording is None:
        return replace(advice, verified=True, not_verified=failure.message if failure else "no_step_in_turn")
    if OPTIONS in applied.change:
        gain = _epochs_ratio(seen.epochs, applied.epochs)
    else:
        feeds = run.case.feed, tried[0].case.feed
        gain = rate_ratio(run.recording.segments, segments_of(tried), feeds[0].lanes, feeds[1].lanes, 1)
    gain = None if gain is None else replace(gain, method="before and after the change; block bootstrap, 95 %")
    return replace(
        advice, verified=True, measured_speedup=gain, not_verified=None if gain is not None else "no_step_in_turn"
    )


def _epochs_ratio(before: Sequence[WatchedEpoch], after: Sequence[WatchedEpoch]) -> Estimate | None:
    """Seconds a batch of whole epochs, before ÷ behind. Of those behind, the first still starts the workers."""
    first = [one for one in before if one.num_batches]
    second = [one for one in after[1:] if one.num_batches]
    if not first or not second:
        return None
    rates = [np.asarray([one.seconds / one.num_batches for one in side]) for side in (first, second)]
    random = np.random.default_rng(37)
    drawn = [side[random.integers(len(side), size=(NUM_DRAWS, len(side)))].mean(axis=1) for side in rates]
    value = float(rates[0].mean() / rates[1].mean())
    return interval(value, drawn[0] / drawn[1], "ratio", min(map(len, rates)), "epochs")
