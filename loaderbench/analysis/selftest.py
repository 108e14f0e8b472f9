"""The self-test's score: verdicts on runs with a known cause, checked against a stopwatch (docs/validation.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from loaderbench.analysis.alike import ALIKE
from loaderbench.analysis.model import WORTH
from loaderbench.analysis.statistics import paired_ratio
from loaderbench.analysis.verdict import HELD_UP
from loaderbench.recording.record import Bottleneck, Estimate, RunRecord, Share
from loaderbench.recording.studies import (
    AlikeFacts,
    AlikeOutcome,
    HardClass,
    InjectedCause,
    ScenarioFacts,
    ScenarioOutcome,
    SelfTest,
    SelfTestFacts,
    ShareError,
    Stopwatch,
)

CLASSES: tuple[Bottleneck, ...] = (
    "storage", "prep", "contention", "transfer", "launch", "compute", "mixed", "undetermined",
)  # fmt: skip
"""Verdicts, as the columns of the confusion matrix."""
DETAILS: Mapping[HardClass, str] = {
    "tails": "tail", "stalls": "stalls", "opens": "latency",
    "neighbours": "neighbours", "quota": "quota", "own threads": "own threads",
}  # fmt: skip
"""The kind of storage, or the culprit, that a record should name."""
KINDS = {"throttled_loop": "bandwidth"}
"""Bed → the kind of its storage, where nothing else is built in."""
CLEAR = 1.25
"""Cases whose cause is truly worth this speed-up must be judged right."""
NOTHING = 1.05
"""On a shared machine a gain up to this cannot be told from no gain."""
ALIKE_WITHIN = 0.05
"""Arms are alike only if the interval of their ratio ends this close to 1: a wider one could hide a difference that
docs/loaders.md promises there is not (benchmarks/fidelity.py)."""
EITHER: tuple[Bottleneck, ...] = ("storage", "prep")
"""The two causes of which either may go."""
EQUAL = 1.10
"""Two gains that differ by less are taken for equal: either cause may go."""


def score(facts: SelfTestFacts, records: Mapping[str, RunRecord]) -> SelfTest:
    """All figures of the self-test, from the scenarios that have a record."""
    outcomes = [
        outcome_of(scenario, records[scenario.run_id]) for scenario in facts.scenarios if scenario.run_id in records
    ]
    clear = [one for one in outcomes if is_clear(one) and not one.is_null]
    num_clear = len(clear) + len(facts.failed)
    nulls = [one for one in outcomes if one.is_null]
    both = [(one.shares[name], true) for one in outcomes for name, true in one.shares_true.items()]
    errors = np.array([abs(measured - true) for measured, true in both if measured is not None])
    gains = [
        abs(one.predicted_speedup / one.true_speedup - 1)
        for one in clear
        if one.predicted_speedup is not None and one.truth not in ("mixed", "compute")
    ]
    detailed = [one for one in clear if one.detail_true is not None and is_right(one)]
    null_loader = records.get(facts.null_loader_run or "")
    runs = [records[one.run_id] for one in facts.scenarios if one.run_id in records]
    overheads = [one.overhead_fraction for one in (*runs, null_loader) if one is not None]
    known = [overhead for overhead in overheads if overhead is not None]
    return SelfTest(
        cases=tuple(outcomes),
        accuracy_fraction=_fraction(sum(is_right(one) for one in clear), num_clear),
        num_clear_cases=num_clear,
        undetermined_fraction=_fraction(sum(one.verdict == "undetermined" for one in outcomes), len(outcomes)),
        confident_wrong=sum(is_confidently_wrong(one) for one in outcomes),
        share_error=ShareError(
            mean=float(errors.mean()) if len(errors) else None,
            p95=float(np.percentile(errors, 95)) if len(errors) else None,
        ),
        speedup_error_median=float(np.median(gains)) if gains else None,
        null_false_positive_fraction=_fraction(sum(one.verdict != "compute" for one in nulls), len(nulls)),
        overhead_fraction=max(known) if known else None,
        null_loader_au_fraction=None if null_loader is None else null_loader.accelerator_utilization_fraction,
        skipped=facts.skipped,
        failed=facts.failed,
        detail_fraction=_fraction(sum(one.detail == one.detail_true for one in detailed), len(detailed)),
        num_others_first=sum(one.verdict == one.also for one in clear),
        alike=tuple(alike_outcome(one) for one in facts.alike),
    )


def alike_outcome(facts: AlikeFacts) -> AlikeOutcome:
    """Compare what preparing an image took from memory and from the storage, turn by turn."""
    value, low, high = paired_ratio(*facts.prep_cpu_s.T)
    from_memory, from_storage = facts.minor_faults.mean(axis=0).tolist()
    near = low <= 1 + ALIKE and high >= 1 - ALIKE
    narrow = low >= 1 - ALIKE_WITHIN and high <= 1 + ALIKE_WITHIN
    return AlikeOutcome(
        facts.name,
        Estimate(value, low, high, "ratio", len(facts.prep_cpu_s), "Student's t over the turns"),
        (from_memory, from_storage),
        near if narrow or not near else None,
    )


def _fraction(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def is_clear(outcome: ScenarioOutcome) -> bool:
    """Whether the right answer is clear beyond the stopwatch's own error: the cause (added compute is one too) is worth
    CLEAR, and two causes that limit only together are each worth next to nothing alone."""
    if outcome.truth == "mixed" and outcome.best_alone > NOTHING:
        return False
    return outcome.true_speedup >= CLEAR


def is_right(outcome: ScenarioOutcome) -> bool:
    """Whether the verdict is the truth, or gives about as much. Of `either`, both must be named."""
    if outcome.truth == "either":
        return outcome.verdict == "mixed" and {*EITHER} <= {*outcome.joint}
    return outcome.verdict in (outcome.truth, outcome.also)


def is_confidently_wrong(outcome: ScenarioOutcome) -> bool:
    """The true answer is clear, and the verdict is another one: a wrong cause, one cause where only several together
    limit the run, none where one does, or a cause where what was built in slows nothing."""
    if outcome.verdict == "undetermined":
        return False
    named = {outcome.verdict} if outcome.verdict != "mixed" else {"mixed", *outcome.joint}
    nothing = outcome.truth == "compute" and (outcome.is_null or outcome.true_speedup < NOTHING)
    true = {*EITHER} if outcome.truth == "either" else {outcome.truth, outcome.also}
    return (is_clear(outcome) or nothing) and not true & named


def outcome_of(scenario: ScenarioFacts, record: RunRecord) -> ScenarioOutcome:
    """Compare a record with the stopwatch."""
    truth, gain, best_alone, shares_true = truth_by(scenario.cause, scenario.stopwatch)
    undisturbed_s, also = scenario.stopwatch.undisturbed_s, None
    if undisturbed_s is not None:
        of_neighbours, of_the_run = scenario.stopwatch.with_s / undisturbed_s, _step_s(record) / undisturbed_s
        shares_true = {}  # they lengthen every part
        if of_neighbours >= max(WORTH, EQUAL * gain) and of_the_run >= WORTH:
            truth, gain, best_alone = "contention", of_neighbours, 1.0
        elif (most := max(of_neighbours, of_the_run)) >= WORTH and NOTHING * most >= min(gain**0.5, HELD_UP):
            also = "contention"  # either is true, and which is named first is the verdict's rule
    elif (
        scenario.hard == "neighbours" and truth == "compute" and _step_s(record) >= WORTH * scenario.stopwatch.without_s
    ):
        also = "contention"
    verdict = record.verdict
    assert verdict is not None and record.shares is not None, "a scenario's run has a verdict"
    wanted = "prep" if truth == "either" else truth  # the gain is the same without either
    alone = (gain for cause, gain in verdict.speedup_if_removed.items() if cause == wanted)
    predicted = verdict.joint_speedup if truth == "mixed" else next(alone, None)
    return ScenarioOutcome(
        name=scenario.name,
        loader=scenario.loader,
        truth=truth,
        verdict=verdict.bottleneck,
        true_speedup=gain,
        predicted_speedup=None if predicted is None else predicted.value,
        shares_true=shares_true,
        shares={name: _share(record, name) for name in shares_true},
        is_null=scenario.cause == "none" and truth == "compute" and also is None,
        joint=verdict.joint,
        reasons=verdict.summary,
        best_alone=best_alone,
        hard=scenario.hard,
        detail_true=None if truth != scenario.cause else _detail_wanted(scenario),
        detail=_detail(record, truth),
        also=also,
    )


def _step_s(record: RunRecord) -> float:
    """The run's own step. What others take of it depends on which processor each process settles on, for half a minute
    and more: they may have taken it from the run, and not from the stopwatch's turns, or the other way round."""
    assert record.throughput is not None, "a scenario's run has a rate"
    return record.case.step.batch_size / record.throughput.value


def _detail_wanted(scenario: ScenarioFacts) -> str | None:
    return KINDS.get(scenario.bed or "") if scenario.hard is None else DETAILS.get(scenario.hard)


def _detail(record: RunRecord, truth: str) -> str | None:
    """Of which kind the storage's slowness is, or who holds the run up, by the record. None: not told."""
    if truth == "contention":
        return None if record.contention is None else record.contention.by
    return getattr(record.storage, "kind", None) if truth == "storage" else None


def truth_by(cause: InjectedCause, watch: Stopwatch) -> tuple[str, float, float, dict[Share, float]]:
    """The truth by the stopwatch: (class, what removing it gives, the better of two alone, shares). The class is a
    verdict, or `either` of EITHER."""
    gain, part = watch.with_s / watch.without_s, max(0.0, 1 - watch.without_s / watch.with_s)
    if cause == "mixed":
        assert watch.without_prep_s is not None and watch.without_transfer_s is not None
        alone = {"prep": watch.with_s / watch.without_prep_s, "transfer": watch.with_s / watch.without_transfer_s}
        best = max(alone, key=lambda name: alone[name])
        shares: dict[Share, float] = {"compute": watch.without_s / watch.with_s}
        if alone[best] < WORTH <= gain:
            return "mixed", gain, alone[best], shares
        return (best, alone[best], alone[best], shares) if gain >= WORTH else ("compute", gain, alone[best], shares)
    if cause == "either":
        assert watch.without_prep_s is not None and watch.without_storage_s is not None
        prep, storage = watch.with_s / watch.without_prep_s, watch.with_s / watch.without_storage_s
        best = "prep" if prep > storage else "storage"
        shares = {"compute": watch.without_s / watch.with_s}
        if max(prep, storage) < WORTH:
            return ("mixed" if gain >= WORTH else "compute"), gain, max(prep, storage), shares
        if max(prep, storage) < EQUAL * min(prep, storage):
            return "either", max(prep, storage), max(prep, storage), shares
        return best, max(prep, storage), max(prep, storage), shares
    if cause == "contention":
        return ("contention" if gain >= WORTH else "compute"), gain, 1.0, {"contention": part}
    shares = {"storage": 0.0, "prep": 0.0, "transfer": 0.0, "launch": 0.0, "compute": 1.0}
    if cause not in ("none", "compute"):
        shares[cause] = part  # type: ignore[index]
        shares["compute"] = 1 - part
    return cause if gain >= WORTH and cause != "none" else "compute", gain, 1.0, shares


def _share(record: RunRecord, name: Share) -> float | None:
    """A measured share as truth counts it: contention goes with prep, as in the verdict. None: not measured."""
    value = record.share(name)
    if name != "prep" or value is None:
        return value
    return value + (record.share("contention") or 0.0)


def confusion(outcomes: Sequence[ScenarioOutcome]) -> dict[str, dict[str, int]]:
    """truth → verdict → how many; the hard classes have rows of their own, behind the others."""
    table: dict[str, dict[str, int]] = {}
    for outcome in sorted(outcomes, key=lambda one: one.hard is not None):
        row = table.setdefault(truth_of(outcome), dict.fromkeys(CLASSES, 0))
        row[outcome.verdict] += 1
    return table


def truth_of(outcome: ScenarioOutcome) -> str:
    """The truth's name in the matrix."""
    return outcome.truth if outcome.hard is None else f"{outcome.truth}: {outcome.hard}"
