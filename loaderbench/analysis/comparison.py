"""Two sides measured alike: which is faster and by what factor, and where the slower one would catch up.

Everything is taken from records; ratios are images/s of `b` ÷ those of `a`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import groupby
from typing import Literal, TypeVar

import numpy as np

from loaderbench import plain
from loaderbench.analysis.statistics import t_quantile
from loaderbench.analysis.storage import SERVED_BY_CACHE, SLOW_READ
from loaderbench.cases.case import FIELDS, CacheState
from loaderbench.plain import Json
from loaderbench.recording.facts import Environment
from loaderbench.recording.record import CeilingStageFigures, ColdProof, Estimate, Range, RunRecord, StorageFigures
from loaderbench.recording.studies import (
    CompareFacts,
    Comparison,
    Difference,
    FailedRun,
    FileReads,
    Needs,
    Outcome,
    Pair,
    Parity,
    PredictedWorkers,
    ReadFrom,
    Side,
    SideStorage,
)

T = TypeVar("T")

PARITY = 0.97
"""A side has caught up when it reaches this part of the other side's best rate: the knee's 3 %."""
DATA_SET = ("dataset", "dataset_name")
"""The fields of Case that name the storage."""
Basis = Literal["measured", "undetermined", "predicted"]
UNCOMPARED_FIELDS = ("repeat",)
"""Which of several equal runs it is."""
UNCOMPARED_FACTS = ("cpu_limit_reason", "memory_limit_source", "gpus_reason")
"""Explanations, not properties, of the machine."""

ONE_RUN = "one run each: their 95 % intervals combined on a log scale (MOVER)"
ROUNDS = "the wider of Student's t over the rounds and the runs' own intervals combined, on a log scale, 95 %"


# -- rates and ratios ------------------------------------------------------------------------------------


def _log_rate(rate: Estimate) -> tuple[float, float, float]:
    """(ln rate, distance to its interval's low end, to its high end); NaN ends where there is no interval."""
    value, low, high = rate.value, rate.low, rate.high
    if rate.n < 2 or low is None or high is None or low <= 0:
        return float(np.log(value)), float("nan"), float("nan")
    return float(np.log(value)), float(np.log(value / low)), float(np.log(high / value))


def _estimate(logs: Sequence[tuple[float, float, float]], unit: str, num_blocks: int) -> Estimate:
    """exp of the logs' mean. The interval's ends are None where nothing tells how wide it is."""
    value, down, up = np.array(logs).T
    k = len(logs)
    low, high = np.sqrt((down**2).sum()) / k, np.sqrt((up**2).sum()) / k
    if k > 1:
        between = t_quantile(k - 1) * value.std(ddof=1) / np.sqrt(k)
        low, high = np.fmax(low, between), np.fmax(high, between)  # NaN gives way to what is known
    centre = value.mean()

    def end(log: float) -> float | None:
        return float(np.exp(log)) if np.isfinite(log) else None

    return Estimate(
        value=float(np.exp(centre)),
        low=end(centre - low),
        high=end(centre + high),
        unit=unit,
        n=k if k > 1 else num_blocks,
        method=ROUNDS if k > 1 else ONE_RUN,
    )


def rates(records: Iterable[RunRecord | None]) -> list[Estimate | None]:
    """The records' rates; None for a run that is missing or measured nothing."""
    return [record.throughput if record is not None and record.measured else None for record in records]


def rate_of_runs(runs: Iterable[Estimate | None]) -> Estimate | None:
    """Samples/s over equal runs, their geometric mean; None where none was measured.

    Several processes: the process is the unit (docs/method.md, `Intervals`).
    """
    known = [rate for rate in runs if rate is not None]
    return _estimate([_log_rate(rate) for rate in known], "samples/s", known[0].n) if known else None


def ratio_of(a: Sequence[Estimate | None], b: Sequence[Estimate | None]) -> Estimate | None:
    """Rate of `b` ÷ `a`, round by round, so that a disturbance in a round affects both; None without a whole round.

    A round's interval: Zou & Donner 2008, Statistics in Medicine 27, 1693 (MOVER), for a difference of logs.
    Several rounds: Student's t over their ratios, or those intervals combined, whichever is wider: two or three
    rounds may agree by chance.
    """
    logs, num_blocks = [], []
    for first, second in zip(a, b, strict=True):
        if first is None or second is None:
            continue
        before, after = _log_rate(first), _log_rate(second)
        ends = float(np.hypot(after[1], before[2])), float(np.hypot(after[2], before[1]))
        logs.append((after[0] - before[0], *ends))
        num_blocks.append(min(first.n, second.n))
    return _estimate(logs, "ratio", num_blocks[0]) if logs else None


def outcome(ratio: Estimate | None) -> Outcome | None:
    """Whether `b` is faster or slower than `a`; None where there is no ratio."""
    if ratio is None:
        return None
    if ratio.low is not None and ratio.low > 1:
        return "faster"
    if ratio.high is not None and ratio.high < 1:
        return "slower"
    return "indistinguishable"


def is_regression(ratio: Estimate, threshold: float) -> bool:
    """Whether `b` is slower than `a` by more than the fraction `threshold`, with the whole interval."""
    return ratio.high is not None and ratio.high < 1 - threshold


# -- what differs ----------------------------------------------------------------------------------------


def _flat(environment: Environment | None) -> dict[str, Json]:
    if environment is None:
        return {}
    facts: dict[str, Json] = {}
    for fact in fields(environment):
        if fact.name not in ("packages", *UNCOMPARED_FACTS):
            facts[f"environment.{fact.name}"] = plain.to_json(getattr(environment, fact.name))
    return facts | {f"environment.packages.{name}": version for name, version in environment.packages.items()}


def differing(a: RunRecord, b: RunRecord) -> list[Difference]:
    """Each field of Case in which two records differ, then each fact of their machines."""
    found = []
    for first, second in ((a.case.to_json(), b.case.to_json()), (_flat(a.environment), _flat(b.environment))):
        if not first or not second:  # a run that failed early may not know its machine
            continue
        names = [name for name in dict.fromkeys([*first, *second]) if name not in UNCOMPARED_FIELDS]
        found += [
            Difference(name, first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)
        ]
    return found


def unlike(a: RunRecord, b: RunRecord) -> list[Difference]:
    """The fields in which two runs did not do the same work: what is read, or what is done with a batch. How it is fed
    may differ (loader, workers, decoder …), and how thoroughly it was measured: that is what a comparison is for."""
    return [one for one in differing(a, b) if FIELDS.get(one.field) in ("subject", "step")]


def compared_factor(differs: Sequence[Difference]) -> list[str]:
    """The fields that two runs are compared in: the data set's if they differ, else the only field that differs."""
    names = [one.field for one in differs]
    return [name for name in names if name in DATA_SET] or (names if len(names) == 1 else [])


# -- one side --------------------------------------------------------------------------------------------


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Mean of the known values; None where none is known."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _agreed(values: Iterable[T | None]) -> T | None:
    """The value that all share; None where they differ."""
    distinct = list(dict.fromkeys(values))
    return distinct[0] if len(distinct) == 1 else None


def _probed(storage: StorageFigures, lanes: int) -> CeilingStageFigures | None:
    """The probe's stage with as many readers as the run, else with the next lower number."""
    stages = [stage for stage in (storage.ceiling.stages if storage.ceiling else ()) if stage.file_s is not None]
    fewer = [stage for stage in stages if stage.readers <= lanes]
    if fewer:
        return max(fewer, key=lambda stage: stage.readers)
    return stages[0] if stages else None


def _file_read_s(storages: Sequence[StorageFigures], lanes: int) -> FileReads | None:
    stages = [stage for storage in storages if (stage := _probed(storage, lanes)) is not None]
    readers = _agreed(stage.readers for stage in stages)
    if readers is None:
        return None
    seconds = [stage.file_s for stage in stages if stage.file_s is not None]
    return FileReads(
        readers=readers,
        p50=mean_of_known(one.p50 for one in seconds),
        p95=mean_of_known(one.p95 for one in seconds),
        p99=mean_of_known(one.p99 for one in seconds),
    )


def _storage(records: Sequence[RunRecord], lanes: int) -> SideStorage:
    storages = [record.storage for record in records if record.storage is not None]
    every = len(storages) == len(records)
    nfs = [storage.nfs for storage in storages if storage.nfs is not None]
    ceilings = [storage.ceiling for storage in storages if storage.ceiling is not None]
    moved = mean_of_known(storage.moved_fraction for storage in storages)
    operations = [
        storage.nfs.operations_per_s if storage.nfs is not None else storage.reads_per_s for storage in storages
    ]
    return SideStorage(
        source=_agreed(storage.source for storage in storages) if every else None,
        cache_state=_agreed(storage.cache_state for storage in storages) if every else None,
        cold_proven=every and all(storage.cold_proven for storage in storages),
        bytes_read=_sum(storage.bytes_read for storage in storages),
        bandwidth_bytes_per_s=mean_of_known(storage.bandwidth_bytes_per_s for storage in storages),
        operations_per_s=mean_of_known(operations),
        file_read_s=_file_read_s(storages, lanes),
        rtt_s=mean_of_known(one.rtt_s for one in nfs),
        queue_s=mean_of_known(one.queue_s for one in nfs),
        exe_s=mean_of_known(one.exe_s for one in nfs),
        in_flight=mean_of_known(one.in_flight for one in nfs),
        retransmits=_sum(one.retransmits for one in nfs),
        client_cache_hit_fraction=None if moved is None else min(1.0, max(0.0, 1.0 - moved)),
        resident_before_fraction=mean_of_known(storage.residency_fraction.before for storage in storages),
        mean_file_bytes=mean_of_known(storage.mean_file_bytes for storage in storages),
        ceiling_bytes_per_s=mean_of_known(storage.ceiling_bytes_per_s for storage in storages),
        ceiling_readers=_agreed(ceiling.readers for ceiling in ceilings) if len(ceilings) == len(records) else None,
        ceiling_still_rising=any(ceiling.still_rising for ceiling in ceilings),
        bound_by=_agreed(ceiling.bound_by for ceiling in ceilings) if len(ceilings) == len(records) else None,
        ceiling=_pooled([ceiling.bytes_per_s for ceiling in ceilings]),
        read_from=_of_all([read_from(storage) for storage in storages]) if every else "unknown",
        cold_proof=_weakest([storage.cold_proof for storage in storages]) if every else None,
    )


def read_from(storage: StorageFigures) -> ReadFrom:
    """Where a run's images came from; `memory` where a part of them did."""
    if storage.cold_proven:
        return "storage"
    moved, before = storage.moved_fraction, storage.residency_fraction.before
    if moved is not None:
        return "storage" if moved >= SERVED_BY_CACHE else "memory"
    if storage.cache_state != "cold" and before is not None and before > 1 - SERVED_BY_CACHE:
        return "memory"
    ratio = storage.cold_read_ratio
    return "memory" if ratio is not None and ratio < SLOW_READ else "unknown"


def _of_all(places: Sequence[ReadFrom]) -> ReadFrom:
    if "memory" in places:
        return "memory"
    return "storage" if set(places) == {"storage"} else "unknown"


def _weakest(proofs: Sequence[ColdProof | None]) -> ColdProof | None:
    if not proofs or None in proofs:
        return None
    return "residency" if "residency" in proofs else "bytes"


def _pooled(rates: Sequence[Estimate]) -> Range | None:
    """The runs' mean rate: its interval is the runs' own, combined, or that of their spread, whichever is wider."""
    if not rates:
        return None
    values, k = np.array([one.value for one in rates]), len(rates)
    half = float(np.sqrt(sum((one.half_width or 0.0) ** 2 for one in rates))) / k
    if k > 1:
        half = max(half, float(t_quantile(k - 1) * values.std(ddof=1) / np.sqrt(k)))
    return Range(float(values.mean()), max(0.0, float(values.mean()) - half), float(values.mean()) + half)


def _more_workers(records: Sequence[RunRecord]) -> PredictedWorkers | None:
    """What the runs' advice predicts of more workers alone, the first that has it; None: it was not advised."""
    for record in records:
        for advice in record.verdict.advice if record.verdict else ():
            gain, change, rate = advice.predicted_speedup, advice.change or {}, record.throughput
            if set(change) != {"workers"} or gain is None or rate is None:
                continue
            workers = change["workers"]
            assert isinstance(workers, int)
            low, high = (None if end is None else rate.value * end for end in (gain.low, gain.high))
            return PredictedWorkers(workers, Range(rate.value * gain.value, low, high), gain.method)
    return None


def side(records: Sequence[RunRecord]) -> Side:
    """One side's equal runs as one: rates pooled, other figures the runs' means, bytes and retransmits their sums."""
    measured = [record for record in records if record.measured]
    verdicts = [record.verdict for record in measured if record.verdict is not None]
    names = dict.fromkeys(name for record in measured for name in record.stages or ())
    lanes = records[0].case.feed.lanes if records else 1
    return Side(
        runs=tuple(record.run_id for record in records),
        failures=tuple(
            FailedRun(record.run_id, record.status, record.failure.message if record.failure else None)
            for record in records
            if not record.measured
        ),
        throughput=rate_of_runs(rates(measured)),
        accelerator_utilization_fraction=mean_of_known(record.accelerator_utilization_fraction for record in measured),
        bottleneck=" or ".join(sorted({verdict.bottleneck for verdict in verdicts})) or None,
        summary=verdicts[-1].summary if verdicts else None,
        stages={name: mean_of_known((record.stages or {}).get(name) for record in measured) for name in names} or None,
        storage=_storage(measured, lanes) if measured else None,
        more_workers=_more_workers(measured),
    )


# -- both ------------------------------------------------------------------------------------------------


def pair(a: Sequence[RunRecord | None], b: Sequence[RunRecord | None], *, of_storages: bool = False) -> Pair:
    """Two sides' runs of one configuration, round by round; None for a run that is missing.

    `of_storages`: the sides are two storages, which cannot be ranked by what came from memory.
    """
    ratio = ratio_of(rates(a), rates(b))
    first, second = (side([record for record in records if record is not None]) for records in (a, b))
    case = next(record for record in (*a, *b) if record is not None).case
    found = outcome(ratio)
    places = [one.storage.read_from for one in (first, second) if one.storage is not None]
    if of_storages and found is not None and "memory" in places:
        found = "from_memory"
    return Pair(case.subject.cache, case.feed.workers, ratio, found, first, second)


def _pairs(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> list[Pair]:
    """The records of each cache state and number of workers, paired by round, in the order of appearance."""

    def by_configuration(records: Sequence[RunRecord]) -> dict[tuple[CacheState, int], dict[int, RunRecord]]:
        found: dict[tuple[CacheState, int], dict[int, RunRecord]] = {}
        for record in records:
            case = record.case
            found.setdefault((case.subject.cache, case.feed.workers), {})[case.effort.repeat] = record
        return found

    first, second = by_configuration(a), by_configuration(b)
    pairs = []
    for key in dict.fromkeys([*first, *second]):
        left, right = first.get(key, {}), second.get(key, {})
        rounds = sorted({*left, *right})
        sides = ([known.get(number) for number in rounds] for known in (left, right))
        pairs.append(pair(*sides, of_storages=True))
    return pairs


def parity(pairs: Sequence[Pair]) -> Parity | None:
    """At how many workers `b` reaches PARITY × the best rate of `a`, and what its storage lacks; None: not measured.

    `pairs`: the pairs of one cache state. The `basis` of `workers` is `measured`; `undetermined`, where only the
    intervals reach parity; or `predicted` by the advice of b's runs. Without any, `workers` is None and `not_by` is
    the most workers that were measured or predicted.
    """
    known_a = [(one, rate) for one in pairs if (rate := one.a.throughput) is not None]
    known_b = [(one, rate) for one in pairs if (rate := one.b.throughput) is not None]
    if not known_a or not known_b:
        return None
    best_a, rate_a = max(known_a, key=lambda known: known[1].value)
    best_b, rate_b = max(known_b, key=lambda known: known[1].value)
    target, least = PARITY * rate_a.value, PARITY * (rate_a.low or 0.0)
    reached = [one.workers for one, rate in known_b if rate.value >= target]
    perhaps = [one.workers for one, rate in known_b if (rate.high or np.inf) >= least]
    most = max(one.workers for one, _ in known_b)
    predicted = _best_prediction([one for one, _ in known_b], most)
    workers, basis = _parity_workers(reached, perhaps, predicted, target)
    return Parity(
        cache=best_a.cache,
        target_samples_per_s=rate_a.value,
        target_workers=best_a.workers,
        best_samples_per_s=rate_b.value,
        best_workers=best_b.workers,
        workers=workers,
        basis=basis,
        not_by=None if basis else max(most, 0 if predicted is None else predicted.workers),
        predicted=None if reached else predicted,
        needs=None if reached or perhaps else _needs(best_a, rate_a, [one for one, _ in known_b]),
    )


def _parity_workers(
    reached: Sequence[int], perhaps: Sequence[int], predicted: PredictedWorkers | None, target: float
) -> tuple[int | None, Basis | None]:
    if reached:
        return min(reached), "measured"
    if perhaps:
        return min(perhaps), "undetermined"
    if predicted is not None and predicted.samples_per_s.value >= target:
        return predicted.workers, "predicted"
    return None, None


def _best_prediction(pairs: Sequence[Pair], most: int) -> PredictedWorkers | None:
    """The fastest of the predictions of b's runs for more workers than were measured."""
    found = [
        replace(more, from_workers=one.workers)
        for one in pairs
        if (more := one.b.more_workers) is not None and more.workers > most
    ]
    return max(found, key=lambda more: more.samples_per_s.value, default=None)


def _needs(best_a: Pair, target: Estimate, known_b: Sequence[Pair]) -> Needs:
    """What b's storage would have to give to reach a's best rate, the target, beside what it gives.

    bytes_per_s   target × the files' mean size, beside the storage's measured ceiling
    file_read_s   workers ÷ target − b's own seconds an image in decode, augment and collate, beside its seconds
                  in reading: with a's best number of workers, or the largest number that b was measured with
    """
    at = next((one for one in known_b if one.workers == best_a.workers), None)
    at = at or max(known_b, key=lambda one: one.workers)
    storage, stages = at.b.storage, at.b.stages or {}
    sizes = [one.storage.mean_file_bytes for one in (at.b, best_a.a) if one.storage is not None]
    file_bytes = next((size for size in sizes if size), None)
    others = [seconds for name, seconds in stages.items() if name != "read"]
    known = [seconds for seconds in others if seconds is not None]
    rest = sum(known) if known and len(known) == len(others) else None
    left = None if rest is None else max(1, at.workers) / target.value - rest
    return Needs(
        bytes_per_s=None if file_bytes is None else target.value * file_bytes,
        gives_bytes_per_s=None if storage is None else storage.ceiling_bytes_per_s,
        gives_still_rising=None if storage is None else storage.ceiling_still_rising,
        gives=None if storage is None else storage.ceiling,
        bound_by=None if storage is None else storage.bound_by,
        workers=at.workers,
        file_read_s=left if left is not None and left > 0 else None,
        takes_file_read_s=stages.get("read"),
    )


def judge(facts: CompareFacts, records: Mapping[str, RunRecord]) -> Comparison:
    """What a stored comparison says, from the runs of both sides."""

    def side(label: str) -> list[RunRecord]:
        return [record for record in records.values() if record.case.subject.dataset_name == label]

    return compare(side(facts.labels["a"]), side(facts.labels["b"]))


def compare(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> Comparison:
    """The study of two data sets. `a`, `b`: records of all rounds, cache states and numbers of workers.

    The leading pair is that of the first cache state, with the workers that are best for `a`.
    """
    pairs = _pairs(a, b)
    states = [list(group) for _, group in groupby(pairs, key=lambda one: one.cache)]
    found = [(one, group) for group in states if (one := parity(group)) is not None]
    leading = _leading(pairs, [one for one, _ in found])
    # Of storages that answered from memory nothing follows for the storages.
    parities = [one for one, group in found if not all(each.outcome == "from_memory" for each in group)]
    if leading is None:
        return Comparison(None, None, None, None, (), DATA_SET, None, tuple(pairs), tuple(parities))
    measured = {record.run_id: record for record in (*a, *b) if record.measured}
    first, second = (next(measured[run] for run in one.runs if run in measured) for one in (leading.a, leading.b))
    return Comparison(
        a=first,
        b=second,
        ratio=leading.ratio,
        outcome=leading.outcome,
        differs=tuple(one for one in differing(first, second) if one.field not in DATA_SET),
        factor=DATA_SET,
        parity=next(iter(parities), None),
        pairs=tuple(pairs),
        parities=tuple(parities),
    )


def _leading(pairs: Sequence[Pair], parities: Sequence[Parity]) -> Pair | None:
    best = {(one.cache, one.target_workers) for one in parities[:1]}
    chosen = [one for one in pairs if (one.cache, one.workers) in best and one.ratio is not None]
    return next(iter(chosen or [one for one in pairs if one.ratio is not None]), None)


def compare_two(a: RunRecord, b: RunRecord, factor: Sequence[str] | None = None) -> Comparison:
    """The study of two stored runs. `factor`: the fields to compare them in; None: found by `compared_factor`."""
    differs = differing(a, b)
    chosen = compared_factor(differs) if factor is None else factor
    of_storages = bool(set(chosen) & set(DATA_SET))
    found = pair([a], [b], of_storages=of_storages)
    same_setting = (a.case.feed.workers, a.case.subject.cache) == (b.case.feed.workers, b.case.subject.cache)
    parities = [parity([found])] if of_storages and same_setting and found.outcome != "from_memory" else []
    known = tuple(one for one in parities if one is not None)
    return Comparison(
        a=a,
        b=b,
        ratio=found.ratio,
        outcome=found.outcome,
        differs=tuple(one for one in differs if one.field not in chosen),
        factor=tuple(chosen),
        parity=next(iter(known), None),
        pairs=(found,),
        parities=known,
    )
