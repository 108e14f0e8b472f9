"""What in a watched script costs the time, by its stamps and counts: no samples of its threads are needed.

How many objects a batch is delivered in; how an epoch begins and ends; which worker gave each batch, and how long each
takes; whether batches wait for a slow one before them; how many processors the script is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.model import WORTH
from loaderbench.analysis.predictions import MODEL_ERROR
from loaderbench.analysis.statistics import interval
from loaderbench.analysis.verdict import SURE
from loaderbench.analysis.watched_places import Detail
from loaderbench.pipeline.change import Change, changed
from loaderbench.pipeline.edits import Edited, beside_less_work
from loaderbench.pipeline.gains import NORMAL, Replays
from loaderbench.pipeline.stages import Stages, Times
from loaderbench.pipeline.unordered import unordered_step_s
from loaderbench.plain import Json
from loaderbench.recording.facts import WatchedEpoch, WatchedFacts, WatchedLoader
from loaderbench.recording.record import CauseDetail, Estimate, Removable

MANY_OBJECTS = 16
"""Of a batch: from there on joining them is worth a look."""
SLOWER, LEAST_BATCHES = 1.5, 8
"""A worker counts as slow if its batches take so many times as long as the others', each by so many batches."""
MUCH_SLOWER, STRAGGLERS = 3.0, 0.15
"""A batch is a straggler beyond so many times the median one; the part of the workers' time that is beyond."""
EVEN_PART = 0.5
"""Of an even part of the batches: a worker that gives fewer has too little to do."""
EPOCHS_STREAM, NUM_DRAWS = 41, 200


def counted_details(replays: Replays | None, seen: WatchedFacts) -> tuple[Detail, ...]:
    """Those worth it, the largest gain first."""
    found = [*_of_epochs(seen)]
    if replays is not None and not replays.fitted.real.opaque:
        found += [*_delivery(replays, seen), *_affinity(replays, seen), *_workers(replays, seen)]
    worth = [one for one in found if one.gain.value >= WORTH and (one.gain.low or 0.0) >= SURE]
    return tuple(sorted(worth, key=lambda one: -one.gain.value))


def _detail(cause: Removable, word: CauseDetail, gain: Estimate, seconds: float, figures: Mapping[str, Json]) -> Detail:
    return Detail(cause, word, gain, None, seconds, figures, is_counted=True)


def _replayed(replays: Replays, step_s: Times) -> Estimate:
    return replays.estimate(replays.now_s / np.maximum(step_s, 1e-12), own=MODEL_ERROR)


# -- delivery ----------------------------------------------------------------------------------------------------


def _delivery(replays: Replays, seen: WatchedFacts) -> Iterator[Detail]:
    """A batch in as many objects as there are fields, not as there are samples: taking it over takes as much less, and
    the threads that send and receive them no longer hold up the script's step."""
    known, stages = seen.loaders[0].delivered, replays.fitted.real
    if known is None or not stages.workers or known.objects < max(MANY_OBJECTS, 2 * known.joined):
        return
    if stages.late is None:
        return
    part, cpu = known.joined / known.objects, stages.batches.cpu
    less = stages.late * (1.0 - part)
    now = stages.with_(take=stages.late, send=0.0)
    hand = stages.batches.hand * part  # a worker serves what the script receives, and begins its next batch late for it
    then = now.with_(take=stages.late - less, hand=hand, cpu=(cpu - 2.0 * less).clip(0))
    left = float(then.batches.cpu.mean()) / max(float(cpu.mean()), 1e-12)
    eased = then.with_(issue=beside_less_work(replays.fitted, Edited(then), left).stages.batches.issue)
    figures: dict[str, Json] = {"objects": known.objects, "joined": known.joined, "seconds": float(stages.late.mean())}
    gain = _replayed(replays, replays.step_s(Edited(eased, against=now)))
    yield _detail("prep", "delivery", gain, float(less.mean()), figures)


# -- processors --------------------------------------------------------------------------------------------------


def _affinity(replays: Replays, seen: WatchedFacts) -> Iterator[Detail]:
    """On all processors of the machine, not only those that the script's processes are allowed."""
    known, stages = seen.affinity, replays.fitted.real
    if known is None or known.allowed >= known.machine:
        return
    part, one = known.allowed / known.machine, stages.batches
    now = replace(stages, processors=float(known.allowed))
    then = replace(stages, processors=float(known.machine)).with_(
        prep=one.prep - np.minimum(one.queue, one.prep) * (1.0 - part)
    )  # others share them, too
    figures: dict[str, Json] = {"allowed": known.allowed, "cpus": known.machine}
    gain = _replayed(replays, replays.step_s(Edited(then, against=now)))
    yield _detail("contention", "affinity", gain, 0.0, figures)


# -- workers -----------------------------------------------------------------------------------------------------


def _workers(replays: Replays, seen: WatchedFacts) -> Iterator[Detail]:
    stages, main = replays.fitted.real, seen.loaders[0]
    if main.workers < 2 or seen.settings is None:
        return
    idle = idle_workers(main)
    if idle and stages.workers < main.workers:
        made = changed(replays.fitted, Change(workers=main.workers, prefetch=max(1, main.prefetch)))
        figures: dict[str, Json] = {"idle": idle, "workers": main.workers, "slow": -1}
        yield _detail("prep", "one_worker", _replayed(replays, replays.step_s(made)), 0.0, figures)
        return
    if stages.workers != main.workers:
        return
    slow = _slow_worker(stages, main.workers)
    if slow is not None:
        worker, times, mine = slow
        one = stages.batches
        edited = Edited(stages.with_(
            prep=np.where(mine, one.prep / times, one.prep), read=np.where(mine, one.read / times, one.read),
            cpu=np.where(mine, one.cpu / times, one.cpu),
        ))  # fmt: skip
        figures = {"idle": 0, "workers": main.workers, "slow": worker, "times": times}
        yield _detail("prep", "one_worker", _replayed(replays, replays.step_s(edited)), 0.0, figures)
    elif seen.settings.in_order and _has_stragglers(work := stages.batches.read + stages.batches.prep):
        figures = {"slowest_s": float(np.percentile(work, 99)), "median_s": float(np.median(work))}
        yield _detail("prep", "order", _replayed(replays, unordered_step_s(stages, replays.order)), 0.0, figures)


def idle_workers(loader: WatchedLoader) -> int:
    """How many workers give less than EVEN_PART of an even part of the batches; 0 where that is not known."""
    return sum(one < EVEN_PART * sum(loader.by_worker) / loader.workers for one in loader.by_worker)


def _has_stragglers(work: Times) -> bool:
    """Whether a good part of the workers' time goes to a few batches that are much slower than most."""
    beyond = (work - MUCH_SLOWER * np.median(work)).clip(0)
    return float(beyond.sum()) >= STRAGGLERS * float(work.sum())


def _slow_worker(stages: Stages, workers: int) -> tuple[int, float, NDArray[np.bool_]] | None:
    """(the slow worker, how many times as long it takes, its batches); None where they are alike, or more are slow."""
    by = stages.worker
    if by is None or len(by) != len(stages.batches):
        return None
    work = stages.batches.read + stages.batches.prep
    medians = [float(np.median(work[by == one])) if (by == one).sum() >= LEAST_BATCHES else np.nan
               for one in range(workers)]  # fmt: skip
    if np.isnan(medians).any():
        return None
    worker = int(np.argmax(medians))
    rest = max(median for one, median in enumerate(medians) if one != worker)
    usual = float(np.median([median for one, median in enumerate(medians) if one != worker]))
    if medians[worker] < SLOWER * rest or not usual > 0:
        return None
    return worker, medians[worker] / usual, by == worker


# -- epochs ------------------------------------------------------------------------------------------------------


def _of_epochs(seen: WatchedFacts) -> Iterator[Detail]:
    """What an epoch's start costs this run: workers that are made anew, and the sampler's own start. The first epoch
    has its start in any case."""
    settings, main = seen.settings, seen.loaders[0]
    epochs = [one for one in seen.epochs if one.num_batches]
    if settings is None or len(epochs) < 2 or any(one.sampler is None for one in epochs):
        return
    later = epochs[1:]
    starts = [one.opening + one.first + (one.stop or 0.0) + (one.first_round or 0.0) for one in later]
    figures: dict[str, Json] = {
        "start_s": float(np.mean(starts)), "epoch_s": float(np.mean([one.seconds for one in later])),
        "sampler_s": float(np.mean([one.sampler or 0.0 for one in later])), "sampler": settings.sampler,
    }  # fmt: skip
    if main.workers and not settings.persistent:
        gain = epochs_gain(epochs, [0.0, *workers_start_s(later, seen)])
        yield _detail("prep", "epoch_start", gain, 0.0, {**figures, "of": "workers"})
    gain = epochs_gain(epochs, [0.0, *(one.sampler or 0.0 for one in later)])
    yield _detail("prep", "epoch_start", gain, 0.0, {**figures, "of": "sampler"})
    if settings.iterable and main.workers:
        filled = [first_batch_s(one, main.workers) for one in later]
        gain = epochs_gain(epochs, [0.0, *filled])
        yield _detail("prep", "epoch_start", gain, 0.0, {**figures, "of": "first", "first_s": float(np.mean(filled))})


def first_batch_s(epoch: WatchedEpoch, workers: int) -> float:
    """Seconds that the first batches of an epoch take longer to make than others: a shuffle buffer is filled, a list of
    shards read. 0 where that is not known."""
    if epoch.first_made is None:
        return 0.0
    usual = max(0.0, epoch.wait - (epoch.stop or 0.0) - (epoch.first_round or 0.0)) + epoch.step
    longer = epoch.first_made - usual / max(1, epoch.num_batches) * workers
    return max(0.0, min(longer, epoch.first)) + max(0.0, epoch.first_round or 0.0) * (longer > 0)


def workers_start_s(epochs: Sequence[WatchedEpoch], seen: WatchedFacts) -> list[float]:
    """Seconds of each epoch that workers which stay would spare: to make and stop processes, and what the first batch
    takes longer than others. An iterable data set begins anew in each epoch in any case, and its first batch takes as
    long."""
    settings, main = seen.settings, seen.loaders[0]
    again = settings is not None and settings.iterable
    found = []
    for one in epochs:
        stop, others = one.stop or 0.0, one.first_round or 0.0
        num_later = max(1, one.num_batches - main.workers)
        usual_wait = max(0.0, one.wait - stop - others) / num_later
        usual = (max(0.0, one.wait - stop - others) + one.step) / max(1, one.num_batches)
        made = one.first_made if again and one.first_made is not None else min(usual * max(1, main.workers), one.first)
        first = max(0.0, one.first - made)
        if not again:  # the first batches of the other workers come late, too
            first += max(0.0, others - (main.workers - 1) * usual_wait)
        found.append(max(0.0, one.opening - (one.sampler or 0.0)) + stop + first)
    return found


def epochs_gain(epochs: Sequence[WatchedEpoch], saved: Sequence[float]) -> Estimate:
    """All epochs ÷ all without what is saved. The high end holds the gain of the later epochs alone: a longer run has
    more of them."""
    whole, less = np.asarray([one.seconds for one in epochs]), np.asarray(saved)
    value = float(whole.sum() / max(float((whole - less).sum()), 1e-9))
    random = np.random.default_rng(EPOCHS_STREAM)
    picks = 1 + random.integers(len(whole) - 1, size=(NUM_DRAWS, len(whole) - 1))
    noise = np.exp(random.normal(0.0, np.log1p(MODEL_ERROR) / NORMAL, NUM_DRAWS))
    sums = whole[0] + whole[picks].sum(axis=1)
    left = np.maximum(sums - less[picks].sum(axis=1) * np.minimum(noise, whole.sum() / max(less.sum(), 1e-9)), 1e-9)
    gain = interval(value, sums / left, "ratio", len(whole), "epochs with their starts; bootstrap, 95 %")
    of_later = float(whole[1:].sum() / max(float((whole - less)[1:].sum()), 1e-9))
    return gain if gain.high is None else replace(gain, high=max(gain.high, of_later))
