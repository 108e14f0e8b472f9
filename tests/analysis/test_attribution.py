"""Scripted timelines with closed-form answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loaderbench.analysis.model import Model
from loaderbench.analysis.steps import arm_steps
from loaderbench.analysis.verdict import Attribution, attribute
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import STEP
from tests.analysis.judging import gain, join, judge_arms, reasons, share, waits
from tests.analysis.simulate import Pipeline, run, segment, step_seconds


def judge(pipeline: Pipeline) -> Attribution:
    arms = join(run(pipeline), pipeline.workers)
    return judge_arms(arms, synchronous=pipeline.workers == 0, starved_fraction=0.0)


def test_a_loader_hidden_under_compute_costs_nothing() -> None:
    # given a loader that needs 20 ms a batch beside a device of 30 ms
    found = judge(Pipeline(device=0.030, decode=0.040, workers=2))
    # then the run is bound by compute
    assert found.verdict.bottleneck == "compute"
    assert found.utilization is not None
    assert found.utilization.value == pytest.approx(1.0, abs=0.01)
    assert share(found, "prep") == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("factor", [1.15, 1.25, 2.0, 4.0])
def test_workers_slower_than_the_device_by_a_known_factor(factor: float) -> None:
    pipeline = Pipeline(device=0.030, decode=2 * factor * 0.030, workers=2)
    found = judge(pipeline)
    assert found.verdict.bottleneck == "prep"
    assert gain(found, "prep") == pytest.approx(factor, rel=0.02)
    assert share(found, "prep") == pytest.approx(1 - 1 / factor, abs=0.02)


def test_storage_in_front_of_a_fast_decoder() -> None:
    found = judge(Pipeline(device=0.030, read=0.120, decode=0.020, workers=2))
    assert found.verdict.bottleneck == "storage"
    assert gain(found, "storage") == pytest.approx(70 / 30, rel=0.02)
    assert share(found, "storage") == pytest.approx(1 - 30 / 70, abs=0.02)


def test_loader_100_against_device_80_is_prep() -> None:
    found = judge(Pipeline(device=1 / 100, decode=2 / 80, workers=2))
    assert found.verdict.bottleneck == "prep"
    assert gain(found, "prep") == pytest.approx(1.25, rel=0.02)


def test_two_stages_of_equal_capacity_are_mixed() -> None:
    # given a copy and a loader that both need 60 ms, and a device that needs 30
    found = judge(Pipeline(device=0.030, copy=0.030, decode=0.120, workers=2))
    # then neither alone is worth anything, both together 2×
    assert gain(found, "prep") == pytest.approx(1.0, abs=0.02)
    assert gain(found, "transfer") == pytest.approx(1.0, abs=0.02)
    assert found.verdict.bottleneck == "mixed"
    assert set(found.verdict.joint) == {"prep", "transfer"}
    assert found.verdict.joint_speedup is not None
    assert found.verdict.joint_speedup.value == pytest.approx(2.0, rel=0.02)


def test_transfer_and_launch() -> None:
    slow_copy = judge(Pipeline(device=0.030, copy=0.030, decode=0.010))
    assert (slow_copy.verdict.bottleneck, round(gain(slow_copy, "transfer"), 1)) == ("transfer", 2.0)
    slow_issue = judge(Pipeline(device=0.015, busy=0.015, issue=0.045, decode=0.010))
    assert slow_issue.verdict.bottleneck == "launch"
    assert gain(slow_issue, "launch") == pytest.approx(3.0, rel=0.03)


def test_a_serial_loader_stands_in_line_with_issuing() -> None:
    found = judge(Pipeline(device=0.030, decode=0.080, issue=0.010, workers=0))
    assert found.verdict.bottleneck == "prep"
    assert gain(found, "prep") == pytest.approx(90 / 30, rel=0.02)
    assert gain(found, "launch") == pytest.approx(90 / 80, rel=0.02)


def test_a_full_queue_at_the_start_does_not_flatter_a_slow_loader() -> None:
    # given a loader at half the device's speed and a window opened on 16 ready batches
    pipeline = Pipeline(device=0.030, decode=0.480, workers=8)
    drained = segment(Arm.REAL, pipeline, steps=24, warmup=1, prefilled=16)
    truth = step_seconds(pipeline)
    measured = np.diff(drained.steps[:, STEP["done_ns"]]).mean() / 1e9
    assert measured < 0.8 * truth
    # when the workers' stamps are looked at
    corrected = arm_steps([drained], Arm.REAL)
    # then the steady rate is found
    assert corrected is not None
    assert corrected.mean("duration") == pytest.approx(truth, rel=0.02)


def test_contention_on_the_issuing_side_is_neither_data_stall_nor_unexplained() -> None:
    quiet, starved = (
        Pipeline(device=0.030, issue=0.020, decode=0.010),
        Pipeline(device=0.030, issue=0.050, decode=0.010),
    )
    segments = [one for one in run(quiet) if one.arm not in (Arm.RAM, Arm.REAL)]
    segments += [one for one in run(starved) if one.arm in (Arm.RAM, Arm.REAL)]
    found = judge_arms(join(segments))
    assert share(found, "contention") == pytest.approx(0.4, abs=0.02)
    assert share(found, "unexplained") == pytest.approx(0.0, abs=0.01)
    assert found.verdict.bottleneck == "prep"


def test_witnesses_that_disagree_leave_it_undetermined_with_both_shown() -> None:
    # given a real arm whose completions are late without any wait for data or longer issuing
    segments = run(Pipeline(device=0.030, decode=0.010))
    for one in segments:
        if one.arm in (Arm.RAM, Arm.REAL):
            one.steps[:, STEP["done_ns"]] += np.arange(len(one.steps)) * 20_000_000
    found = judge_arms(join(segments))
    assert found.verdict.bottleneck == "undetermined"
    arms, timeline = waits(found)
    assert (round(arms, 1), round(timeline, 1)) == (0.4, 0.0)


def test_arms_out_of_order_leave_it_undetermined() -> None:
    slow, fast = Pipeline(device=0.060), Pipeline(device=0.030, decode=0.010)
    segments = [one for one in run(slow) if one.arm in (Arm.DEVICE, Arm.HOST)]
    segments += [one for one in run(fast) if one.arm not in (Arm.DEVICE, Arm.HOST)]
    found = judge_arms(join(segments))
    assert found.verdict.bottleneck == "undetermined"
    assert "ran faster than" in " ".join(reasons(found))


def test_arms_that_were_not_measured_leave_nulls() -> None:
    pipeline = Pipeline(decode=0.100)
    segments = [one for one in run(pipeline) if one.arm == Arm.REAL]
    found = judge_arms(join(segments))
    # what the timeline shows of the wait for data is known all the same, though not whose fault it is
    assert found.verdict.bottleneck == "mixed" and found.verdict.joint == ("storage", "prep")
    assert [reason.code for reason in found.verdict.reasons] == ["not_separated"]
    assert found.verdict.joint_speedup is not None
    truth = step_seconds(pipeline) / step_seconds(replace(pipeline, decode=0.0))
    assert found.verdict.joint_speedup.value == pytest.approx(truth, rel=0.03)
    assert found.utilization is None and found.verdict.waiting_for_data is None
    assert all(one is None for one in found.shares.values())
    assert all(one is None for one in found.verdict.speedup_if_removed.values())


def test_a_loader_without_files_has_no_storage() -> None:
    segments = [one for one in run(Pipeline(device=0.030)) if one.arm in (Arm.DEVICE, Arm.HOST, Arm.REAL, Arm.FREE)]
    found = judge_arms(join(segments), reads_files=False)
    assert found.verdict.bottleneck == "compute"
    assert share(found, "storage") == 0.0


def test_a_loader_that_owns_the_transfer_has_no_host_arm() -> None:
    segments = [one for one in run(Pipeline(device=0.030, decode=0.120)) if one.arm != Arm.HOST]
    found = judge_arms(join(segments), owns_transfer=True)
    assert found.shares["transfer"] is None
    assert found.verdict.bottleneck == "prep"
    assert gain(found, "prep") == pytest.approx(2.0, rel=0.02)


seconds = st.floats(0.001, 0.2)
pipelines = st.builds(
    Pipeline, device=seconds, issue=st.floats(0.0005, 0.05), copy=st.floats(0, 0.1), read=st.floats(0, 0.2),
    decode=seconds, workers=st.integers(0, 4), jitter=st.floats(0, 0.3),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(pipelines)
def test_shares_sum_to_one_and_intervals_hold_their_values(pipeline: Pipeline) -> None:
    found = judge(replace(pipeline, busy=0.8 * pipeline.device))
    assert all(one is not None for one in found.shares.values())
    assert sum(one.value for one in found.shares.values() if one is not None) == pytest.approx(1.0, abs=1e-9)
    gains = [gain for cause, gain in found.verdict.speedup_if_removed.items() if cause != "contention"]
    for one in [*found.shares.values(), *gains, found.utilization]:
        assert one is not None
        assert np.isfinite([one.value, one.low, one.high]).all()
        assert one.low <= one.value <= one.high
    assert all(one.value >= 1.0 for one in found.verdict.speedup_if_removed.values() if one is not None)


def _without(pipeline: Pipeline, cause: str) -> Pipeline:
    return replace(pipeline, **{"storage": {"read": 0.0}, "prep": {"decode": 0.0}, "transfer": {"copy": 0.0}}[cause])


def test_verdicts_over_random_runs() -> None:
    """Truth is the model run again without the cause; nothing of attribution.py is asked."""
    rng = np.random.default_rng(7)
    right = undetermined = wrong = clear = nulls = false_alarms = 0
    for _ in range(150):
        device = rng.uniform(0.01, 0.06)
        workers = int(rng.integers(1, 5))
        cause = str(rng.choice(["none", "storage", "prep", "transfer"]))
        size = device * rng.uniform(1.3, 4)
        pipeline = Pipeline(device=device, decode=0.4 * device * workers, read=0.05 * device * workers,
                            copy=0.02 * device, workers=workers, jitter=rng.uniform(0, 0.2))  # fmt: skip
        changed = {"none": {}, "storage": {"read": size * workers}, "prep": {"decode": size * workers},
                   "transfer": {"copy": size}}[cause]  # fmt: skip
        pipeline = replace(pipeline, **changed)
        found = judge(pipeline)
        if cause == "none":
            nulls += 1
            false_alarms += found.verdict.bottleneck != "compute"
            continue
        if step_seconds(pipeline) / step_seconds(_without(pipeline, cause)) < 1.25:
            continue
        clear += 1
        right += found.verdict.bottleneck == cause
        undetermined += found.verdict.bottleneck == "undetermined"
        wrong += found.verdict.bottleneck not in (cause, "undetermined", "mixed")
    print(
        f"clear {clear}, right {right}, undetermined {undetermined}, wrong {wrong}; nulls {nulls}, false {false_alarms}"
    )
    assert clear > 80
    assert right >= 0.95 * clear
    assert undetermined <= 0.05 * clear
    assert wrong == 0
    assert false_alarms <= 0.03 * nulls


def test_a_loader_that_is_slower_beside_the_device_than_alone() -> None:
    # given workers that need 40 ms a batch beside the device, as long as copy and compute take, and 32 ms alone
    beside = Pipeline(device=0.020, copy=0.020, decode=0.080, workers=2)
    segments = [one for one in run(beside) if one.arm != Arm.FREE]
    segments += [one for one in run(replace(beside, decode=0.064)) if one.arm == Arm.FREE]
    found = judge_arms(join(segments, 2))
    # then without the copy nothing is gained, and the two are named together
    assert gain(found, "transfer") == pytest.approx(1.0, abs=0.03)
    assert found.verdict.bottleneck == "mixed" and set(found.verdict.joint) == {"prep", "transfer"}


@pytest.mark.parametrize("part", [0.25, 0.5, 0.8])
def test_workers_at_rest_are_seen(part: float) -> None:
    found = arm_steps(run(Pipeline(device=0.040, decode=2 * part * 0.040, workers=2)), Arm.REAL, 2)
    assert found is not None
    assert found.worked == pytest.approx(part, abs=0.03)


def test_workers_that_pace_the_run_never_rest() -> None:
    found = arm_steps(run(Pipeline(device=0.020, decode=0.080, workers=2)), Arm.REAL, 2)
    assert found is not None
    assert found.worked == pytest.approx(1.0, abs=0.01)


def test_a_stage_that_is_worth_it_is_no_verdict_where_the_storage_stood_still_beside_the_windows() -> None:
    # given preparation of 1.2 times the device's step, and a storage that stood still for a part of the time, but in
    # none of the windows of `real`
    arms = join(run(Pipeline(device=0.1, decode=0.24, workers=2)), 2)
    model = Model(arms, reads_files=True, owns_transfer=False, synchronous=False, overlap=False, starved=0.0)
    assert attribute(model, storage_idle=False).verdict.bottleneck == "prep"
    for part, bottleneck in ((0.4, "undetermined"), (0.1, "prep")):
        found = attribute(replace(model, stalls_missed=(part, 0.0)), storage_idle=False).verdict
        assert found.bottleneck == bottleneck
        assert ("stalls_missed" in [one.code for one in found.reasons]) is (bottleneck == "undetermined")
