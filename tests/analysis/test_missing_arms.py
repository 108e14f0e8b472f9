"""Runs of which some arms were not measured: what is known is said, what is not is null, and nothing is guessed.

Truth is the event model's: the pipeline simulated again without the causes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from loaderbench.analysis.record import analyze
from loaderbench.analysis.verdict import CLEAR, Attribution
from loaderbench.cases.arms import ARMS, Arm
from loaderbench.recording.facts import Segment
from loaderbench.recording.record import STAGES, Cause, Estimate, RunRecord
from loaderbench.reporting.words import worded
from tests.analysis.event_model import Pipeline, arms_of, measure, true_speedup
from tests.analysis.judging import assert_sound, join, judge, judge_arms, reasons, run_of
from tests.analysis.test_verdict_rates import case

Arms = frozenset[Arm]

DATA_BOUND = {
    "preparation": Pipeline(latency_ms=40.0, decode_ms=400.0, transfer_ms=2.0),
    "latency": Pipeline(latency_ms=400.0, decode_ms=60.0, transfer_ms=2.0),
    "bandwidth": Pipeline(storage_ms=110.0, decode_ms=60.0, transfer_ms=2.0),
    "both alike": Pipeline(workers=12, storage_ms=105.0, decode_ms=300.0, cores=3, busy_ms=50.0, transfer_ms=2.0),
    "in line": Pipeline(workers=0, latency_ms=20.0, decode_ms=90.0, issue_ms=10.0, busy_ms=35.0, transfer_ms=1.0),
    "copies beside": Pipeline(latency_ms=100.0, decode_ms=300.0, transfer_ms=10.0, overlap=True),
    "owns the copy": Pipeline(latency_ms=40.0, decode_ms=400.0, owns_transfer=True),
    "no files": Pipeline(decode_ms=400.0, transfer_ms=1.0, reads_files=False),
}
CONSUMER_BOUND = {
    "compute": Pipeline(latency_ms=20.0, decode_ms=40.0, transfer_ms=1.0),
    "gaps between kernels": Pipeline(latency_ms=20.0, decode_ms=40.0, transfer_ms=1.0, gap_ms=30.0),
    "slow issuing": Pipeline(latency_ms=20.0, decode_ms=40.0, transfer_ms=1.0, issue_ms=70.0),
    "copy": Pipeline(latency_ms=20.0, decode_ms=40.0, transfer_ms=40.0),
    "copy beside": Pipeline(latency_ms=20.0, decode_ms=40.0, transfer_ms=100.0, overlap=True),
}
PIPELINES = {**DATA_BOUND, **CONSUMER_BOUND}


@cache
def segments_of(name: str) -> tuple[Segment, ...]:
    return tuple(measure(PIPELINES[name], rounds=3, num_steps=32))


@cache
def worth(pipe: Pipeline, *causes: Cause) -> float:
    """What removing the causes truly gives."""
    return true_speedup(pipe, *causes)


def subsets(pipe: Pipeline) -> list[Arms]:
    """Every choice of arms that holds `real`, as `--arms` gives it."""
    others = [arm for arm in arms_of(pipe) if arm in ARMS and arm is not Arm.REAL]
    return [frozenset({Arm.REAL, *chosen}) for size in range(len(others) + 1) for chosen in combinations(others, size)]


def measured(segments: tuple[Segment, ...], arms: Arms) -> list[Segment]:
    """`prep` follows from `ram` and `free`."""
    with_prep = arms | {Arm.PREP} if {Arm.RAM, Arm.FREE} <= arms else arms
    return [segment for segment in segments if segment.arm in with_prep]


def unseparated(pipe: Pipeline, arms: Arms) -> tuple[Cause, ...]:
    """The causes that these arms cannot tell apart: worked out from what an arm adds to the one before."""
    feeding: tuple[Cause, ...] = ("storage", "prep") if pipe.reads_files else ("prep",)
    base = Arm.DEVICE if pipe.owns_transfer else Arm.HOST
    if base in arms:
        return () if not pipe.reads_files or {Arm.RAM, Arm.FETCH} <= arms else feeding
    # Without ready batches the copy is not told from what feeds it; without a device arm the timeline shows the wait.
    return (*feeding, "transfer") if Arm.DEVICE in arms else feeding


def told_apart_by(pipe: Pipeline, arms: Arms) -> set[Arm]:
    wanted = {Arm.DEVICE if pipe.owns_transfer else Arm.HOST}
    return (wanted | {Arm.RAM, Arm.FETCH} if pipe.reads_files else wanted) - arms


def value(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.value


def findings(name: str) -> list[tuple[Arms, Attribution]]:
    pipe = PIPELINES[name]
    return [(arms, judge(pipe, measured(segments_of(name), arms))) for arms in subsets(pipe)]


@pytest.mark.parametrize("name", DATA_BOUND)
def test_a_run_that_waits_for_data_is_judged_whatever_arms_there_are(name: str) -> None:
    pipe = DATA_BOUND[name]
    for arms, found in findings(name):
        verdict, causes = found.verdict, unseparated(pipe, arms)
        assert verdict.bottleneck != "undetermined", (sorted(arms), reasons(found))
        if not causes:
            continue
        together = worth(pipe, *causes)
        assert together >= CLEAR
        if "not_separated" not in [reason.code for reason in verdict.reasons]:
            # one of them is known, and is worth as much as all of them
            (named,) = [cause for cause in causes if cause == verdict.bottleneck]
            assert worth(pipe, named) >= together / 1.05, sorted(arms)
            assert value(verdict.speedup_if_removed[named]) == pytest.approx(worth(pipe, named), rel=0.03)
            continue
        assert verdict.bottleneck == ("mixed" if len(causes) > 1 else causes[0])
        assert verdict.joint == causes, sorted(arms)
        assert value(verdict.joint_speedup) == pytest.approx(together, rel=0.08), sorted(arms)
        (reason,) = verdict.reasons
        assert reason.details["causes"] == list(causes)
        missing = told_apart_by(pipe, arms)
        assert set(reason.details["arms"]) == missing and missing, sorted(arms)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PIPELINES)
def test_no_wrong_cause_is_named_whatever_arms_there_are(name: str) -> None:
    pipe = PIPELINES[name]
    gains = {cause: worth(pipe, cause) for cause in STAGES}
    for arms, found in findings(name):
        assert_sound(found)
        assert_not_wrong(found, gains, pipe, arms)


def assert_not_wrong(found: Attribution, gains: dict[Cause, float], pipe: Pipeline, arms: Arms) -> None:
    """A cause that is named alone is the best, or nearly; compute is where none is clear; what is joint is worth it."""
    verdict, best = found.verdict, max(gains.values())
    seen = (sorted(arms), verdict.bottleneck, verdict.joint, gains)
    if verdict.bottleneck == "compute":
        assert best < CLEAR, seen
    elif verdict.bottleneck in gains and not verdict.joint:
        assert gains[verdict.bottleneck] >= 0.9 * best, seen
    elif verdict.bottleneck != "undetermined" and verdict.joint:
        assert verdict.joint_speedup is not None and verdict.joint_speedup.low is not None
        assert worth(pipe, *verdict.joint) >= 0.97 * verdict.joint_speedup.low, seen


def test_no_wrong_cause_is_named_over_random_pipelines() -> None:
    checked = 0
    for seed in range(30):
        pipe, gains = case(seed)
        arms_of_run = join(measure(pipe, rounds=3, num_steps=32, drift=0.005, seed=seed), pipe.workers)
        for arms in subsets(pipe):
            if pipe.crowded_issue_ms and not arms & {Arm.HOST, Arm.DEVICE}:
                continue  # what crowds the host shows in no timeline of `real` alone
            known = arms | {Arm.PREP} if {Arm.RAM, Arm.FREE} <= arms else arms
            steps = {arm: arm_steps for arm, arm_steps in arms_of_run.items() if arm in known}
            found = judge_arms(steps, synchronous=pipe.workers == 0, overlap=pipe.overlap)
            assert_sound(found)
            assert_not_wrong(found, gains, pipe, arms)
            checked += 1
    assert checked > 750


def test_real_alone_is_judged_by_its_timeline() -> None:
    pipe = DATA_BOUND["preparation"]
    found = judge(pipe, measured(segments_of("preparation"), frozenset({Arm.REAL})))
    # given 110 ms a step, 42 of them on the device: it waits for 68
    assert found.verdict.joint == ("storage", "prep")
    assert value(found.verdict.joint_speedup) == pytest.approx(110 / 42, rel=0.01)
    assert found.utilization is None and found.verdict.waiting_for_data is None
    assert all(share is None for share in found.shares.values())
    # but where data are there in time the timeline tells nothing of what limits it
    calm = judge(CONSUMER_BOUND["compute"], measured(segments_of("compute"), frozenset({Arm.REAL})))
    assert calm.verdict.bottleneck == "undetermined"
    assert [reason.code for reason in calm.verdict.reasons] == ["consumer_not_separated"]
    assert "waiting for data does not limit this run" in reasons(calm)[0]


@pytest.mark.parametrize("name", PIPELINES)
def test_device_and_real_give_the_utilization(name: str) -> None:
    pipe = PIPELINES[name]
    arms = frozenset({Arm.DEVICE, Arm.REAL})
    found = judge(pipe, measured(segments_of(name), arms))
    without_feeding = worth(pipe, "storage", "prep", "transfer")
    assert value(found.utilization) == pytest.approx(1 / without_feeding, rel=0.08)
    share = found.shares["compute"]
    assert share is not None


def test_launches_that_the_arms_cannot_judge_are_not_called_compute() -> None:
    # given kernels with gaps between, 43 % of the step, and no arm that tells what the loader could deliver
    segments = measured(segments_of("gaps between kernels"), frozenset({Arm.DEVICE, Arm.REAL}))
    found = judge(CONSUMER_BOUND["gaps between kernels"], segments)
    assert value(found.shares["launch"]) == pytest.approx(30 / 71, abs=0.01)
    assert found.verdict.bottleneck == "undetermined"
    (reason,) = found.verdict.reasons
    assert (reason.code, reason.details["cause"]) == ("gain_not_measured", "launch")
    assert reason.details["most"] == pytest.approx(71 / 41, rel=0.02)


def test_a_copy_that_was_not_measured_alone_bounds_what_launches_are_worth() -> None:
    # given 60 ms of issuing that hide 40 of compute and 20 of copying, and no `host`
    pipe = Pipeline(decode_ms=40.0, transfer_ms=20.0, issue_ms=60.0)
    segments = [segment for segment in measure(pipe) if segment.arm in (Arm.DEVICE, Arm.REAL, Arm.FREE)]
    found = judge(pipe, segments)
    assert worth(pipe, "launch") == pytest.approx(1.0, abs=0.01)
    assert value(found.verdict.speedup_if_removed["launch"]) == pytest.approx(1.0, abs=0.02)


# -- in the record -----------------------------------------------------------------------------------------


NEEDS: dict[str, set[Arm]] = {
    "ingestion_rate": {Arm.DEVICE}, "loader_rate": {Arm.FREE}, "accelerator_utilization": {Arm.DEVICE},
    "accelerator_utilization_fraction": {Arm.DEVICE}, "transfer": {Arm.DEVICE, Arm.HOST},
    "capacities.storage": {Arm.FETCH}, "capacities.loader": {Arm.FREE}, "capacities.transfer": {Arm.HOST},
    "capacities.issue": {Arm.DEVICE}, "capacities.device": {Arm.DEVICE},
    "shares.compute": {Arm.DEVICE}, "shares.launch": {Arm.DEVICE}, "shares.transfer": {Arm.DEVICE, Arm.HOST},
    "shares.storage": {Arm.RAM}, "shares.prep": {Arm.RAM, Arm.HOST}, "shares.contention": {Arm.RAM, Arm.HOST},
    "shares.unexplained": {Arm.RAM, Arm.HOST},
    "verdict.speedup_if_removed.storage": {Arm.RAM},
    "verdict.speedup_if_removed.prep": {Arm.HOST, Arm.FETCH},
    "verdict.speedup_if_removed.transfer": {Arm.DEVICE, Arm.HOST, Arm.FREE},
    "verdict.speedup_if_removed.launch": {Arm.DEVICE, Arm.FREE},
    "verdict.speedup_if_removed.compute": {Arm.FREE},
    "verdict.waiting_for_data": {Arm.RAM, Arm.HOST},
}  # fmt: skip
"""Figure → the arms without which it is null. With them it is there."""


def figure(record: RunRecord, place: str) -> object:
    found: object = record
    for name in place.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    return found


def test_figures_that_need_an_arm_are_null_without_it_and_the_caveat_names_it() -> None:
    pipe = Pipeline(latency_ms=40.0, decode_ms=400.0, transfer_ms=8.0)
    segments = tuple(measure(pipe, rounds=2, num_steps=24))
    for arms in subsets(pipe):
        record = worded(analyze(run_of(pipe, measured(segments, arms))))
        known = {place for place in NEEDS if figure(record, place) is not None}
        assert known == {place for place, needed in NEEDS.items() if needed <= arms}, sorted(arms)
        assert record.throughput is not None and record.step_time_s is not None
        told = [caveat for caveat in record.caveats if caveat.code == "arms_not_measured"]
        missing = [arm.value for arm in ARMS if arm not in arms]
        assert [caveat.details["arms"] for caveat in told] == ([missing] if missing else [])
        assert all(", ".join(missing) in caveat.message for caveat in told)
        assert record.verdict is not None and record.verdict.summary


@pytest.mark.parametrize("stopped_by", ["ci_target", "duration", "max_bytes"])
def test_an_arm_that_was_spared_for_want_of_time_is_not_said_to_be_impossible(stopped_by: Any) -> None:
    pipe = DATA_BOUND["latency"]
    segments = measured(segments_of("latency"), frozenset(ARMS) - {Arm.FREE})
    run = run_of(pipe, [one for one in segments if one.arm is not Arm.PREP])
    assert run.recording is not None
    facts = run.recording.facts
    run.recording.facts = replace(facts, rounds=replace(facts.rounds, stopped_by=stopped_by))
    (told,) = [caveat for caveat in analyze(run).caveats if caveat.code == "arms_not_measured"]
    assert (told.details["arms"], told.details["why"]) == (["free"], "no_time")


def test_the_reason_names_the_arms_in_words() -> None:
    segments = tuple(measure(DATA_BOUND["preparation"], rounds=2, num_steps=24))
    record = worded(analyze(run_of(DATA_BOUND["preparation"], measured(segments, frozenset({Arm.REAL, Arm.HOST})))))
    assert record.verdict is not None
    assert record.verdict.summary.startswith(
        "Mixed: storage or CPU preparation (decode, augment, collate), or both, limit this run. Without both"
    )
    assert "it needs the arms fetch, ram" in record.verdict.summary


def test_what_few_arms_cannot_give_is_no_zero() -> None:
    pipe = DATA_BOUND["latency"]
    segments = tuple(measure(pipe, rounds=2, num_steps=24))
    record = analyze(run_of(pipe, measured(segments, frozenset({Arm.REAL}))))
    assert record.shares is not None and set(record.shares.values()) == {None}
    assert record.verdict is not None
    assert set(record.verdict.speedup_if_removed.values()) == {None}
    assert np.isfinite(value(record.throughput))
