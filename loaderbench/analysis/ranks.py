"""What many ranks did together: rates, who is late and why, and what that costs. Facts in, figures out.

docs/ranks.md defines every figure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.rank_steps import Steps, Times, common_steps, last_by_data, ready_step_s, steps_between
from loaderbench.analysis.statistics import t_quantile
from loaderbench.cases.arms import Arm
from loaderbench.findings.table import words
from loaderbench.plain import Json
from loaderbench.recording.ranks import (
    RANK_STEP,
    Imbalance,
    ImbalancePart,
    LateBy,
    Pattern,
    RankedCase,
    RankedFigures,
    RankFigures,
    RankRun,
    Ranks,
    RanksFacts,
    RanksVerdict,
    RankWindow,
    StripBar,
)
from loaderbench.recording.record import Bottleneck, Estimate, RunRecord

WORTH = 0.05
"""Part of the step from which on the imbalance is what limits."""
LEAST_STEPS = 8
"""Fewer common steps do not tell who is late."""
STRIP_STEPS = 24


def ranks_of(facts: RanksFacts, records: Mapping[str, RunRecord]) -> Ranks:
    """The figures of a launch. `records`: run id → record, of the ranks' runs that are in this store."""
    places = [part.place for case in facts.cases for part in case.parts]
    return Ranks(
        ranks=facts.ranks,
        nodes=tuple(dict.fromkeys(place.node for place in places)),
        launcher=facts.launcher,
        num_cases=facts.num_cases,
        cases=tuple(_case_of(case, records, facts.ranks) for case in facts.cases),
        ended=facts.ended,
    )


def offset_ns(part: RankRun) -> int:
    """What to add to the rank's stamps: the mean of its clock's readings, each weighed by its certainty."""
    if not part.clocks:
        return 0
    weights = np.array([1.0 / max(clock.uncertainty_s, 1e-9) ** 2 for clock in part.clocks])
    return round(float(np.average([clock.offset_s for clock in part.clocks], weights=weights)) * 1e9)


def _case_of(case: RankedCase, records: Mapping[str, RunRecord], ranks: int) -> RankedFigures:
    if case.watched:
        return _script_of(case, records, ranks)
    parts = case.parts
    together = [_steps_of(parts, group) for group in _groups(parts, joint=True)]
    joint = any(steps is not None for steps in together)
    known = [one for one in (together if joint else map(_alone, _groups(parts, joint=False))) if one is not None]
    pooled = _pooled(known)
    missing: dict[str, str] = {}
    imbalance = None
    if pooled is None or pooled.own.shape[1] < LEAST_STEPS:
        missing["imbalance"] = words("too_few_common_steps", {"least": LEAST_STEPS})
    else:
        imbalance = imbalance_of(known, parts, joint=joint)
    figures = tuple(_figures(part, pooled, number, records) for number, part in enumerate(parts))
    missing |= _away(parts, records)
    rates = [one.samples_per_s for one in figures]
    flows = [one.bytes_per_s for one in figures]
    return RankedFigures(
        title=case.case.title,
        case=case.case,
        ranks=figures,
        samples_per_s=_sum(rates),
        together_samples_per_s=None if imbalance is None else len(parts) * case.case.step.batch_size / imbalance.step_s,
        bytes_per_s=_sum(flows),
        imbalance=imbalance,
        verdict=_verdict(imbalance, figures),
        strip=_strip(parts, joint=joint),
        missing=missing,
    )


def _script_of(case: RankedCase, records: Mapping[str, RunRecord], ranks: int) -> RankedFigures:
    """Of a script that is not ours: how long each rank waits for its own batches."""
    parts, missing = case.parts, dict[str, str]()
    away = sorted({*range(ranks)} - {part.place.rank for part in parts})
    if away:
        missing["ranks"] = words("ranks_missing", {"ranks": [*away]})
    windows, why = common_steps(parts)
    pooled = _pooled(windows)
    imbalance = None if pooled is None else imbalance_of(windows, parts, joint=False)
    if why is not None:
        missing["imbalance"] = why
    figures = tuple(
        replace(
            _figures(part, pooled, number, records),
            own_step_s=None,
            last_fraction=None if pooled is None else last_by_data(pooled, number),
            bytes_per_s=None,
        )
        for number, part in enumerate(parts)
    )
    one_node = len({part.place.node for part in parts}) == 1  # whose processes share one clock
    if not one_node:
        missing["strips"] = "the nodes' clocks are not aligned"
    return RankedFigures(
        title=case.case.title,
        case=case.case,
        ranks=figures,
        samples_per_s=None if away else _sum([one.samples_per_s for one in figures]),
        together_samples_per_s=None,
        bytes_per_s=None,
        imbalance=imbalance,
        verdict=_verdict(imbalance, figures),
        strip=_strip(parts, joint=False) if one_node else (),
        missing={**missing, **_away(parts, records)},
        watched=True,
        ready_step_s=ready_step_s(parts),
    )


def _away(parts: Sequence[RankRun], records: Mapping[str, RunRecord]) -> Mapping[str, str]:
    away: list[Json] = [part.place.rank for part in parts if part.run_id not in records]
    return {"shares": words("ranks_not_stored", {"ranks": away})} if away else {}


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


# -- common steps ----------------------------------------------------------------------------------------


def _groups(parts: Sequence[RankRun], *, joint: bool) -> list[list[RankWindow]]:
    """Windows of `real` of all ranks that belong together, by their rounds."""
    by_rank = [
        {window.round: window for window in part.windows if window.arm is Arm.REAL and window.joint == joint}
        for part in parts
    ]
    if not by_rank:
        return []
    rounds = [number for number in by_rank[0] if all(number in one for one in by_rank)]
    return [[one[number] for one in by_rank] for number in rounds]


def _steps_of(parts: Sequence[RankRun], group: Sequence[RankWindow]) -> Steps | None:
    """With an all-reduce: a step begins for all when the last one has arrived at the one before."""
    num = min(len(window.steps) for window in group)
    first = max(1, *(window.num_warmup for window in group))
    if num - first < 1:
        return None
    tables = np.stack([window.steps[:num] for window in group])
    offsets = np.array([offset_ns(part) for part in parts], dtype=np.int64)[:, None]
    ends = (tables[:, :, RANK_STEP["done_ns"]] + offsets).max(axis=0)
    begins = ends[None, first - 1 : -1] - offsets
    return steps_between(tables[:, first:], begins)


def _alone(group: Sequence[RankWindow]) -> Steps | None:
    """Without: a rank's step begins when its own device has done the one before. Each behind its own warm-up."""
    num = min(len(window.steps) - max(1, window.num_warmup) for window in group)
    if num < 1:
        return None
    tables, begins = [], []
    for window in group:
        first = max(1, window.num_warmup)
        tables.append(window.steps[first : first + num])
        begins.append(window.steps[first - 1 : first - 1 + num, RANK_STEP["done_ns"]])
    return steps_between(np.stack(tables), np.stack(begins))


def _pooled(windows: Sequence[Steps]) -> Steps | None:
    if not windows:
        return None
    names = ("own", "data", "read", "prep", "queued")
    return Steps(*(np.concatenate([getattr(one, name) for one in windows], axis=1) for name in names))


# -- what imbalance costs --------------------------------------------------------------------------------


def imbalance_of(windows: Sequence[Steps], parts: Sequence[RankRun], *, joint: bool) -> Imbalance:
    """E[max] − mean of the arrivals, split by who is late and by what."""
    steps = _pooled(windows)
    assert steps is not None
    largest, mean = float(steps.own.max(axis=0).mean()), float(steps.own.mean())
    each = [1 - float(one.own.mean()) / float(one.own.max(axis=0).mean()) for one in windows]
    fraction, low, high = 1 - mean / largest, None, None
    if len(each) > 1:
        half = t_quantile(len(each) - 1) * float(np.std(each, ddof=1)) / len(each) ** 0.5
        low, high = max(0.0, fraction - half), min(1.0, fraction + half)
    found = [*_lasting(steps, parts), *_rotating(steps)]
    return Imbalance(
        joint=joint,
        num_steps=steps.own.shape[1],
        step_s=largest,
        mean_s=mean,
        fraction=Estimate(fraction, low, high, "fraction", len(each), "windows, 95 %"),
        parts=tuple(sorted((part for part in found if part.seconds > 0), key=lambda part: -part.seconds)),
    )


def _lasting(steps: Steps, parts: Sequence[RankRun]) -> list[ImbalancePart]:
    """What the latest rank's mean exceeds the mean by; the part of it that its whole node shares is the node's."""
    means = steps.own.mean(axis=1)
    latest = int(means.argmax())
    nodes = [part.place.node for part in parts]
    mates = np.array([node == nodes[latest] for node in nodes])
    whole = float(means[latest] - means.mean())
    of_node = 0.0
    if 1 < mates.sum() < len(nodes):
        # The node is late by what its most punctual rank still is.
        of_node = min(whole, max(0.0, float(means[mates].min() - means[~mates].mean()) * float((~mates).mean())))
    others = np.arange(len(nodes)) != latest
    rank, node = parts[latest].place.rank, nodes[latest]
    return [
        *_by_cause("node", of_node, steps, mates, ~mates, rank, node),
        *_by_cause("rank", whole - of_node, steps, ~others, others, rank, node),
    ]


def _by_cause(
    pattern: Pattern, seconds: float, steps: Steps, late: NDArray[np.bool_], others: NDArray[np.bool_], rank: int,
    node: str,
) -> list[ImbalancePart]:  # fmt: skip
    """Seconds split as the late ones' means exceed the others'."""
    if seconds <= 0 or not others.any():
        return []

    def excess(times: Times) -> float:
        return float(times[late].mean() - times[others].mean())

    split = _split(steps, excess)
    return [ImbalancePart(pattern, cause, part * seconds, rank, node) for cause, part in split.items()]


def _rotating(steps: Steps) -> list[ImbalancePart]:
    """What the latest of each step exceeds the latest rank's mean by: whoever it is, it was later than usual."""
    seconds = float(steps.own.max(axis=0).mean() - steps.own.mean(axis=1).max())
    if seconds <= 0:
        return []
    last, every = steps.own.argmax(axis=0), np.arange(steps.own.shape[1])

    def excess(times: Times) -> float:
        return float((times - times.mean(axis=1, keepdims=True))[last, every].mean())

    split = _split(steps, excess)
    return [ImbalancePart("rotating", cause, part * seconds, None, None) for cause, part in split.items()]


def _split(steps: Steps, excess: Callable[[Times], float]) -> Mapping[LateBy, float]:
    """Parts, that sum to 1, as the late ones exceed what is usual. What is shorter than usual is nobody's excuse."""
    data, work = max(excess(steps.data), 0.0), max(excess(steps.work), 0.0)
    if data + work <= 0:
        return {"device": 1.0}
    by_data = data / (data + work)
    found: dict[LateBy, float] = {"device": 1 - by_data}
    read, prep, queued = (excess(times) for times in (steps.read, steps.prep, steps.queued))
    if np.isnan(read) or np.isnan(prep) or max(read, prep) <= 0:
        found["data"] = by_data
        return found
    read, prep = max(read, 0.0), max(prep, 0.0)
    whole = read + prep
    queued = 0.0 if np.isnan(queued) else min(max(queued, 0.0), whole)
    of_prep = min(queued, prep)  # which wants a processor all the time, and reading hardly
    found |= {
        "reading": by_data * (read - (queued - of_prep)) / whole,
        "preparing": by_data * (prep - of_prep) / whole,
        "processors": by_data * queued / whole,
    }
    return found


def _verdict(imbalance: Imbalance | None, figures: Sequence[RankFigures]) -> RanksVerdict:
    if imbalance is not None and imbalance.fraction.value >= WORTH and imbalance.parts:
        sums = Counter[Pattern]()
        for part in imbalance.parts:
            sums[part.pattern] += part.seconds  # type: ignore[assignment]
        pattern = max(sums, key=lambda one: sums[one])
        part = next(part for part in imbalance.parts if part.pattern == pattern)
        return RanksVerdict("imbalance", part, sum(one.bottleneck is not None for one in figures))
    own = Counter[Bottleneck](one.bottleneck for one in figures if one.bottleneck is not None)
    if not own:
        return RanksVerdict(None, None, 0)
    name, agree = own.most_common(1)[0]
    return RanksVerdict(name, None, agree)


# -- single ranks ----------------------------------------------------------------------------------------


def _figures(part: RankRun, steps: Steps | None, number: int, records: Mapping[str, RunRecord]) -> RankFigures:
    windows = [one for one in part.windows if one.arm is Arm.REAL and not one.joint]
    seconds = samples = num_bytes = 0.0
    for window in windows:
        first = max(1, window.num_warmup)
        rows = window.steps[first:]
        if len(rows):
            seconds += float(rows[-1, RANK_STEP["done_ns"]] - window.steps[first - 1, RANK_STEP["done_ns"]]) / 1e9
            samples += float(rows[:, RANK_STEP["num_samples"]].sum())
            num_bytes += float(rows[:, RANK_STEP["encoded_bytes"]].sum())
    clock = min(part.clocks, key=lambda one: one.uncertainty_s, default=None)
    record = records.get(part.run_id)
    shares = None if record is None else record.shares

    def mean(times: Times | None) -> float | None:
        value = None if times is None else float(times[number].mean())
        return None if value is None or np.isnan(value) else value

    own = mean(None if steps is None else steps.own)
    return RankFigures(
        place=part.place,
        run_id=part.run_id,
        samples_per_s=samples / seconds if seconds else None,
        bytes_per_s=num_bytes / seconds if seconds else None,
        own_step_s=own,
        data_s=mean(None if steps is None else steps.data),
        read_s=mean(None if steps is None else steps.read),
        prep_s=mean(None if steps is None else steps.prep),
        lateness_s=None if steps is None or own is None else own - float(steps.own.mean()),
        last_fraction=None if steps is None else float((steps.own.argmax(axis=0) == number).mean()),
        clock_offset_s=None if clock is None else clock.offset_s,
        clock_uncertainty_s=None if clock is None else clock.uncertainty_s,
        utilization_fraction=None if record is None else record.accelerator_utilization_fraction,
        bottleneck=None if record is None or record.verdict is None else record.verdict.bottleneck,
        shares=None
        if shares is None
        else {name: estimate.value for name, estimate in shares.items() if estimate is not None},
    )


# -- over time -------------------------------------------------------------------------------------------


def bars_of(parts: Sequence[RankRun], group: Sequence[RankWindow], *, joint: bool, most: int) -> list[StripBar]:
    """What the ranks did in the first `most` steps behind the warm-up, in ms on rank 0's clock."""
    first = max(1, *(window.num_warmup for window in group))
    num = min(first + most, *(len(window.steps) for window in group))
    if num <= first:
        return []
    offsets = np.array([offset_ns(part) for part in parts], dtype=np.int64)[:, None]
    tables = np.stack([window.steps[:num] for window in group])
    called, returned, done = (
        tables[:, :, RANK_STEP[name]] + offsets for name in ("called_ns", "returned_ns", "done_ns")
    )
    ends = np.broadcast_to(done.max(axis=0), done.shape) if joint else done
    bars = []
    for number, part in enumerate(parts):
        for step in range(first, num):
            begin, end = int(ends[number, step - 1]), int(done[number, step])
            waited_from = max(int(called[number, step]), begin)
            ready = min(max(int(returned[number, step]), begin), end)
            pieces = (
                ("data", waited_from, ready),
                ("step", ready, end),
                ("others", end, int(ends[number, step])),
            )
            bars += [
                StripBar(part.place.rank, what, step, since / 1e6, until / 1e6)  # type: ignore[arg-type]
                for what, since, until in pieces
                if until > since
            ]
    return bars


def _strip(parts: Sequence[RankRun], *, joint: bool) -> tuple[StripBar, ...]:
    groups = _groups(parts, joint=joint)
    bars = bars_of(parts, groups[-1], joint=joint, most=STRIP_STEPS) if groups else []
    if not bars:
        return ()
    begin = min(bar.begin_ms for bar in bars)
    return tuple(
        StripBar(bar.rank, bar.what, bar.step, round(bar.begin_ms - begin, 4), round(bar.end_ms - begin, 4))
        for bar in bars
    )


def groups_of(case: RankedCase) -> list[tuple[bool, list[RankWindow]]]:
    """All windows of `real`, those of all ranks together: (whether with an all-reduce, a window a rank)."""
    return [(joint, group) for joint in (False, True) for group in _groups(case.parts, joint=joint)]
