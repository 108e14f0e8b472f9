"""What to try next, each action with what it is predicted to give (analysis/predictions.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loaderbench import plain
from loaderbench.analysis import storage
from loaderbench.analysis.model import Model
from loaderbench.analysis.pixels import pixel_difference
from loaderbench.analysis.predictions import IO_THREADS, MEMORY, WAITED, Predictions
from loaderbench.analysis.processors import Processors
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import DIRECT, SAMPLES, SCALED, Change, FieldValue
from loaderbench.plain import Json
from loaderbench.recording.facts import ScaleProbe
from loaderbench.recording.record import Advice, ContentionBy, Estimate, Removable, StorageFigures, Verdict

WORTH_TRYING = 1.03
AS_FAST = 0.95
"""A prediction from here on is no loss: the model itself is less exact."""
MOST_ACTIONS = 5
MOST_READERS = 32
"""Most readers that advice proposes to hide storage latency, however many processors there are."""
MUCH_HELD = 0.25
"""Processors that other processes use, from which on a run of fewer threads may get a smaller part of all."""
MOST_PREFETCH = 16
"""Most batches that advice proposes to prepare ahead in each worker: they take memory."""

NOW_AND_THEN = ("tail", "stalls")
"""Kinds of storage that is slow at times."""
STANDS = ("bandwidth", "stalls")
"""Kinds of storage that serves many readers no faster than one."""


@dataclass(frozen=True)
class Measured:
    """What advice uses besides the verdict."""

    predictions: Predictions
    model: Model
    contention: bool
    """The workers wait for a processor."""
    held_up_by: ContentionBy | None = None
    """Who keeps the processors from them; None where nobody does, or where it is not known."""
    storage: StorageFigures | None = None

    @property
    def seen(self) -> Processors | None:
        """Who had the processors."""
        return self.model.processors.get(Arm.REAL)

    @property
    def is_shared(self) -> bool:
        """Whether others use so much of the processors that fewer threads would lose to them what this run has now: a
        fair scheduler gives to each thread alike, unless it deals with whole groups of them."""
        return self.seen is not None and (self.seen.neighbours or 0.0) >= MUCH_HELD

    @property
    def most_workers(self) -> int:
        """More workers than processors help only while some of them wait for the storage, and none for a processor."""
        predictions = self.predictions
        in_memory = predictions.case.subject.cache == "warm" and not self.model.storage_costs
        if in_memory or self.contention:
            return predictions.cpus
        readers = storage.readers_needed(predictions.facts.storage.ceiling) or 0
        return max(2 * predictions.cpus, min(readers, MOST_READERS))


@dataclass(frozen=True)
class Action:
    """One thing to try."""

    cause: Removable
    code: str
    change: Change | None = None
    """None: loaderbench cannot run this action."""
    predicted: Estimate | None = None
    details: Mapping[str, Json] | None = None


def advise(verdict: Verdict, measured: Measured) -> tuple[Advice, ...]:
    """At most MOST_ACTIONS, the best predicted first.

    `predicted_speedup` is None where the outcome does not follow from what was measured; such actions come last.
    Predictions below WORTH_TRYING are dropped.
    """
    causes = verdict.joint or (verdict.bottleneck,)
    actions: list[Action] = []
    if "storage" in causes:
        actions += _for_storage(measured)
        actions += [] if "prep" in causes else _ahead(measured, actions)
    if "contention" in causes:
        actions += _for_contention(measured, verdict)
    if {"prep", "contention"} & set(causes):
        actions += _for_prep(measured)
        actions += _fewer_workers(measured)
    if "transfer" in causes:
        actions += _for_transfer(measured.predictions)
    if "launch" in causes:
        actions += _for_launch(measured.predictions)
    if {"storage", "prep"} <= set(causes):
        actions += _together(measured.predictions, actions)
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


def _for_storage(measured: Measured) -> list[Action]:
    predictor, model = measured.predictions, measured.model
    real, ram, probe = model.arms[Arm.REAL], model.times.ram, predictor.facts.storage.ceiling
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
    actions += _more_readers(measured) if late else []
    actions += _more_prefetch(predictor) if kind in NOW_AND_THEN else []
    if found is not None and found.kind == "latency" and found.latency_of == "open":
        actions.append(Action("storage", "fewer_opens"))
    if found is not None and found.tail is not None and (found.tail.same_files or found.tail.folder is not None):
        where: dict[str, Json] = {"folder": found.tail.folder, "files": [one.path for one in found.tail.files]}
        actions.append(Action("storage", "slow_files_elsewhere", details=where))
    if found is not None and found.slow_folder is not None:
        actions.append(Action("storage", "slow_files_elsewhere", details={"folder": found.slow_folder.folder}))
    return actions


def _more_prefetch(predictor: Predictions) -> list[Action]:
    """Against slow files and stalls: a deeper queue bridges them."""
    now = predictor.case.feed.prefetch
    if not now or not predictor.case.feed.workers:
        return []
    numbers = [now, *(now * factor for factor in (2, 4, 8) if now * factor <= MOST_PREFETCH)]
    number = predictor.knee_of({number: {"prefetch": number} for number in numbers})
    if number is None or number == now:
        return []
    change: Change = {"prefetch": number}
    return [Action("storage", "more_prefetch", change, predictor.predict(change), {"now": now})]


def _ahead(measured: Measured, actions: Sequence[Action]) -> list[Action]:
    """Against slow files and stalls, for a loader that has no queue: one that reads ahead, where none of the `actions`
    is another loader. What that gives is not predicted: its workers would share processors that this loader left
    alone."""
    predictor, found = measured.predictions, measured.storage
    parallel = predictor.loader_with("processes")
    if parallel is None or predictor.case.feed.workers or found is None or found.kind not in NOW_AND_THEN:
        return []
    if any("loader" in (one.change or {}) for one in actions):
        return []
    return [Action("storage", "parallel_loader", details={"loader": parallel, "workers": predictor.cpus})]


def _more_readers(measured: Measured) -> list[Action]:
    """Against latency: read more files at once."""
    predictor = measured.predictions
    case, lanes = predictor.case, predictor.case.feed.lanes
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
    most = max(lanes, measured.most_workers)
    number = predictor.knee(change, range(lanes, most + 1))
    if number is None or predictor.facts.storage.ceiling is None:  # how many readers it serves at once is not known
        return [Action("storage", "more_files_at_once", {**change, "workers": most})] if most > lanes else []
    if number <= case.feed.workers:
        return []
    change = {**change, "workers": number}
    return [Action("storage", "more_files_at_once", change, predictor.predict(change))]


def _more_io_threads(predictor: Predictions) -> list[Action]:
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


def _for_contention(measured: Measured, verdict: Verdict) -> list[Action]:
    """Free the processors: what that gives is what the arms say of contention as a whole."""
    gain, seen = verdict.speedup_if_removed.get("contention"), measured.seen
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


def _fewer_workers(measured: Measured) -> list[Action]:
    """As many workers as the processors can feed, where more of them only wait for each other."""
    predictor = measured.predictions
    workers, cpus = predictor.case.feed.workers, predictor.cpus
    if not measured.contention or workers <= cpus or measured.is_shared:
        return []
    number = predictor.knee({}, range(1, workers + 1))
    if number is None or number >= workers:
        return []
    change: Change = {"workers": number}
    details: dict[str, Json] = {"now": workers, "cpus": cpus}
    return [Action("contention", "fewer_workers", change, predictor.predict(change), details)]


def _for_prep(measured: Measured) -> list[Action]:
    predictor = measured.predictions
    subject, feed, size = predictor.case.subject, predictor.case.feed, predictor.case.step.input_size
    actions = [*_more_workers(measured), *_other_decoders(predictor), *_scaled_decode(predictor)]
    actions += _direct_samples(predictor)
    if predictor.traits.handover == "shared" and feed.output == "float32":
        change: Change = {"output": "uint8"}
        actions.append(Action("prep", "uint8_for_prep", change, predictor.predict(change)))
    if subject.resolution and size and subject.resolution >= 2 * size:
        actions.append(Action("prep", "smaller_images", details={"resolution": subject.resolution // 2}))
    waited = (measured.model.starved or 0.0) > WAITED
    if measured.contention and measured.seen is None and waited:  # an older version did not store who had them
        actions.append(Action("prep", "free_processors"))
    return [one for one in actions if one.change is None or one.predicted is not None]


def _more_workers(measured: Measured) -> list[Action]:
    """More workers, or a loader that has them; with the knee."""
    predictor = measured.predictions
    feed, limit = predictor.case.feed, measured.most_workers
    actions: list[Action] = []
    if feed.workers == 0:
        actions += _in_parallel(predictor, limit)
    elif feed.workers < limit:
        number = predictor.knee({}, range(feed.workers, limit + 1))
        if number is None and feed.workers < predictor.cpus and not measured.contention:
            details: dict[str, Json] = {"workers": predictor.cpus, "now": feed.workers}
            actions.append(Action("prep", "more_workers", details=details))
        elif number is not None and number > feed.workers and not predictor.in_threads:
            change: Change = {"workers": number}
            actions.append(Action("prep", "more_workers", change, predictor.predict(change), {"now": feed.workers}))
    return [*actions, *_threads(measured)]


def _in_parallel(predictor: Predictions, limit: int) -> list[Action]:
    parallel = predictor.loader_with("processes")
    if parallel is None:
        return []
    number = predictor.knee(predictor.with_loader(parallel), range(1, limit + 1))
    if number is None:
        return [Action("prep", "parallel_loader", details={"loader": parallel, "workers": predictor.cpus})]
    change: Change = {**predictor.with_loader(parallel), "workers": number}
    return [Action("prep", "parallel_loader", change, predictor.predict(change))]


def _threads(measured: Measured) -> list[Action]:
    """Threads instead of processes, with the fastest decoder, or more of them."""
    predictor = measured.predictions
    feed, threads = predictor.case.feed, predictor.loader_with("threads")
    if predictor.traits.handover is None or threads is None:
        return []
    change: dict[str, FieldValue] = {}
    fastest = predictor.costs.fastest_decoder()
    if not predictor.in_threads:
        change = predictor.with_loader(threads) | (predictor.with_decoder(fastest) if fastest else {})
        change |= {"output": "uint8"}
    most = max(measured.most_workers, feed.workers)
    # Workers that wait for each other would do so as threads too.
    fewer = change and measured.contention and measured.seen is not None and not measured.is_shared
    least = 1 if fewer else max(feed.workers, 1)
    number = predictor.knee(change, range(least, most + 1))
    if number is None or (not change and number <= feed.workers):
        return []
    change["workers"] = number
    code = "more_threads" if predictor.in_threads else "decode_in_threads"
    return [Action("prep", code, change, predictor.predict(change))]


def _other_decoders(predictor: Predictions) -> list[Action]:
    feed, fastest = predictor.case.feed, predictor.costs.fastest_decoder()
    if fastest is None or fastest == feed.decoder:
        return []
    change = predictor.with_decoder(fastest)
    return [Action("prep", "other_decoder", change, predictor.predict(change))]


def _scaled_decode(predictor: Predictions) -> list[Action]:
    """Large crops decoded at 1/2, 1/4 or 1/8, where that gives something beyond what its decoder gives. It changes the
    pixels: `details` say by how much."""
    feed = predictor.case.feed
    decoder = feed.decoder if predictor.costs.scales(feed.decoder) else predictor.costs.fastest_decoder(scaling=True)
    if decoder is None or feed.decode_scale == SCALED:
        return []
    unscaled = {} if decoder == feed.decoder else predictor.with_decoder(decoder)
    change: Change = {**unscaled, "decode_scale": SCALED}
    gain, without = predictor.gain(change), predictor.gain(unscaled)
    if gain is None or without is None or gain[0] < WORTH_TRYING * without[0]:
        return []
    details = _pixels(predictor.costs.probe.scales[decoder])
    return [Action("prep", "scaled_decode", change, predictor.predict(change), details)]


def _pixels(probe: ScaleProbe) -> dict[str, Json]:
    return plain.to_object(pixel_difference(probe))


def _direct_samples(predictor: Predictions) -> list[Action]:
    """Samples straight into their batch, instead of the copies of torchvision's transforms and the collate."""
    if not predictor.costs.as_torchvision(predictor.case):
        return []
    change: Change = {"loader_options": {**predictor.case.feed.loader_options, SAMPLES: DIRECT}}
    return [Action("prep", "direct_samples", change, predictor.predict(change))]


def _for_transfer(predictor: Predictions) -> list[Action]:
    actions = []
    if predictor.case.feed.output == "float32":
        change: Change = {"output": "uint8"}
        actions.append(Action("transfer", "uint8_for_transfer", change, predictor.predict(change)))
    if predictor.facts.copy.pinned is False:
        actions.append(Action("transfer", "pinned_memory"))
    return actions


def _for_launch(predictor: Predictions) -> list[Action]:
    now = predictor.case.step.batch_size
    change: Change = {"batch_size": 2 * now}
    return [
        Action("launch", "larger_batch", change, predictor.predict(change), {"now": now}),
        Action("launch", "fewer_launches"),
    ]


def _together(predictor: Predictions, actions: Sequence[Action]) -> list[Action]:
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
