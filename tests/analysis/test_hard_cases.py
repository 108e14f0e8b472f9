"""Where a verdict goes wrong easily: pipelines of the event model with answers that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loaderbench.analysis.quantities import Quantity
from loaderbench.analysis.statistics import is_steady
from loaderbench.analysis.steps import arm_steps, drain_correction, queue_fall, window_quantities, workers_pace
from loaderbench.analysis.verdict import _surely_larger
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import SPAN_FIELDS, STEP_FIELDS
from loaderbench.recording.record import Removable, Share
from tests.analysis.event_model import ARMS, Pipeline, measure, segment, true_speedup, true_step_ms
from tests.analysis.judging import assert_sound, gain, judge, reasons, share, waits

DONE, RETURNED = STEP_FIELDS.index("done_ns"), STEP_FIELDS.index("returned_ns")
READY = SPAN_FIELDS.index("ready_ns")


# The model itself: what it says where a closed form says it too.


def test_the_model_agrees_with_the_closed_forms() -> None:
    # given stages that overlap: the slowest bounds
    assert true_step_ms(Pipeline(workers=4, decode_ms=400.0)) == pytest.approx(100.0)
    assert true_step_ms(Pipeline(workers=4, latency_ms=200.0, decode_ms=200.0)) == pytest.approx(100.0)
    assert true_step_ms(Pipeline(workers=8, storage_ms=90.0, decode_ms=40.0)) == pytest.approx(90.0)
    assert true_step_ms(Pipeline(workers=8, decode_ms=200.0, cores=2)) == pytest.approx(100.0, rel=0.01)
    assert true_step_ms(Pipeline(decode_ms=10.0, transfer_ms=30.0)) == pytest.approx(70.0)
    assert true_step_ms(Pipeline(decode_ms=10.0, issue_ms=60.0)) == pytest.approx(60.0, rel=0.001)
    # and stages that do not: they add up
    assert true_step_ms(Pipeline(workers=0, latency_ms=30.0, decode_ms=50.0, issue_ms=10.0)) == pytest.approx(90, 0.001)


# What the timeline shows.


def test_perfect_overlap_is_no_stall() -> None:
    # given a loader at 80 % of the device's time
    found = judge(Pipeline(decode_ms=4 * 32.0, busy_ms=40.0))
    # then the device never waits
    assert found.verdict.bottleneck == "compute"
    assert found.utilization is not None and found.utilization.value == pytest.approx(1.0, abs=1e-3)
    assert waits(found)[1] == pytest.approx(0.0, abs=1e-3)


def test_a_wait_hidden_under_compute_costs_nothing() -> None:
    # given a synchronous loader whose 30 ms the host spends inside next() while the device computes 40
    found = judge(Pipeline(workers=0, decode_ms=30.0, busy_ms=40.0))
    arms = measure(Pipeline(workers=0, decode_ms=30.0, busy_ms=40.0))
    real = arm_steps(arms, Arm.REAL)
    # then the host waits and the device does not
    assert real is not None and real.mean("wait") == pytest.approx(0.030, rel=0.01)
    assert real.mean("stall") == 0.0
    assert share(found, "prep") == pytest.approx(0.0, abs=1e-3)
    assert gain(found, "prep") == pytest.approx(1.0, abs=1e-3)
    assert found.verdict.bottleneck == "compute"


@pytest.mark.parametrize("num_steps", [24, 60])
@pytest.mark.parametrize(("workers", "prefetch"), [(1, 4), (4, 2), (8, 2)])
@pytest.mark.parametrize("slower", [1.1, 1.25, 2.0, 4.0])
def test_draining_the_prefetch_buffer_does_not_flatter(
    slower: float, workers: int, prefetch: int, num_steps: int
) -> None:
    # given a loader slower than the device, and a window that opens on its full queue
    pipe = Pipeline(workers=workers, prefetch=prefetch, decode_ms=slower * 40 * workers)
    opened_full = segment(pipe, Arm.REAL, num_steps=num_steps, pause_ms=pipe.decode_ms * (prefetch + 1))
    truth_ms = 40.0 * slower
    raw_ms = float(np.diff(opened_full.steps[-1 - num_steps :, DONE]).mean()) / 1e6
    assert raw_ms < 0.96 * truth_ms
    # then the workers' stamps give the steady rate, and what is added is data stall
    steps = arm_steps([opened_full], Arm.REAL)
    assert steps is not None
    assert steps.mean("duration") * 1e3 == pytest.approx(truth_ms, rel=0.02)
    assert steps.mean("stall") * 1e3 == pytest.approx(truth_ms - 40.0, abs=0.02 * truth_ms)


@pytest.mark.parametrize("faster", [0.3, 0.8, 0.9])
def test_a_full_queue_that_the_device_paces_needs_no_correction(faster: float) -> None:
    pipe = Pipeline(workers=8, prefetch=2, decode_ms=faster * 40 * 8, jitter=0.2)
    for number in range(10):
        one = segment(pipe, Arm.REAL, number, num_steps=37, pause_ms=2000.0)
        values = window_quantities(one)
        assert values is not None
        assert drain_correction(one, values) == 1.0


def test_without_stamps_of_the_workers_nothing_is_corrected() -> None:
    silent = segment(Pipeline(decode_ms=640.0, tells_spans=False), Arm.REAL, pause_ms=3000.0)
    values = window_quantities(silent)
    assert values is not None
    assert (queue_fall(silent), workers_pace(silent), drain_correction(silent, values)) == (None, None, 1.0)


def test_the_workers_pace_is_their_capacity() -> None:
    pace = workers_pace(segment(Pipeline(workers=4, decode_ms=400.0), Arm.REAL))
    assert pace is not None
    batches_per_s, worked, num_workers = pace
    assert (round(batches_per_s, 2), round(worked, 3), num_workers) == (10.0, 1.0, 4)


# Factors and traps.


@pytest.mark.parametrize("jitter", [0.0, 0.2])
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("slower", [1.1, 1.25, 2.0, 4.0])
def test_workers_slower_than_the_device_by_a_known_factor(slower: float, workers: int, jitter: float) -> None:
    pipe = Pipeline(workers=workers, decode_ms=slower * 40 * workers, jitter=jitter)
    truth = true_speedup(pipe, "prep")
    found = judge(pipe)
    assert gain(found, "prep") == pytest.approx(truth, rel=0.02 if not jitter else 0.05)
    assert share(found, "prep") + share(found, "unexplained") == pytest.approx(1 - 1 / truth, abs=0.04)
    if slower > 1.1:
        assert found.verdict.bottleneck == "prep"


@pytest.mark.parametrize("bound", ["latency", "bandwidth"])
@pytest.mark.parametrize("workers", [0, 4])
def test_storage_slower_than_decoding(workers: int, bound: str) -> None:
    crew = max(workers, 1)
    read = {"latency_ms": 110.0 * crew} if bound == "latency" else {"storage_ms": 110.0}
    found = judge(Pipeline(workers=workers, decode_ms=15.0 * crew, **read))
    assert found.verdict.bottleneck == "storage"
    truth = true_speedup(Pipeline(workers=workers, decode_ms=15.0 * crew, **read), "storage")
    assert gain(found, "storage") == pytest.approx(truth, rel=0.02)
    assert share(found, "storage") == pytest.approx(1 - 1 / truth, abs=0.02)


def test_trap_storage_and_prep_of_equal_capacity() -> None:
    # given prep alone 100 ms, storage alone 105, overlapping, device 50
    pipe = Pipeline(workers=12, storage_ms=105.0, decode_ms=100.0 * 3, cores=3, busy_ms=50.0)
    assert true_speedup(pipe, "storage") < 1.10
    assert true_speedup(pipe, "prep") < 1.10
    # then neither alone gains anything, both together 2.1×
    found = judge(pipe)
    assert found.verdict.bottleneck == "mixed"
    assert found.verdict.joint == ("storage", "prep")
    assert found.verdict.joint_speedup is not None
    assert found.verdict.joint_speedup.value == pytest.approx(true_speedup(pipe, "storage", "prep"), rel=0.03)


@pytest.mark.parametrize("busy_ms", [37.0, 40.0, 41.3])
def test_either_of_two_that_each_free_the_device_may_go(busy_ms: float) -> None:
    # given two workers that read for 60 ms and decode for 60: without either they need 30 ms a batch, less than the
    # device, so that the run is as fast as the device without either
    pipe = Pipeline(workers=2, latency_ms=60.0, decode_ms=60.0, busy_ms=busy_ms)
    assert true_speedup(pipe, "storage") == pytest.approx(true_speedup(pipe, "prep"))
    found = judge(pipe, drift=0.01)
    # then both are named, and no more is said of both together
    assert (found.verdict.bottleneck, set(found.verdict.joint)) == ("mixed", {"storage", "prep"})
    assert found.verdict.joint_speedup is not None
    assert found.verdict.joint_speedup.value == pytest.approx(true_speedup(pipe, "prep"), rel=0.02)


@pytest.mark.parametrize(("latency_ms", "named"), [(119.5, "mixed"), (110.0, "prep")])
def test_gains_that_differ_by_less_than_a_hundredth_are_the_same(latency_ms: float, named: str) -> None:
    # given two workers that decode for 120 ms and read for a bit less: without either the other one sets the pace
    found = judge(Pipeline(workers=2, latency_ms=latency_ms, decode_ms=120.0), drift=0.001)
    assert gain(found, "prep") / gain(found, "storage") == pytest.approx(120.0 / latency_ms, abs=0.003)
    assert found.verdict.bottleneck == named


def test_no_gain_is_larger_by_the_last_digit_of_a_float() -> None:
    one = Quantity(1.5, np.linspace(1.4, 1.6, 500), 9)
    assert not _surely_larger(Quantity(np.nextafter(1.5, 2), np.nextafter(one.draws, 2), 9), one)
    assert _surely_larger(Quantity(1.53, 1.02 * one.draws, 9), one)


def test_trap_loader_100_against_device_80() -> None:
    found = judge(Pipeline(workers=4, decode_ms=400.0, busy_ms=80.0))
    assert found.verdict.bottleneck == "prep"
    assert gain(found, "prep") == pytest.approx(1.25, rel=0.01)


@pytest.mark.parametrize(("transfer_ms", "step_ms"), [(30.0, 40.0), (100.0, 100.0)])
def test_a_copy_beside_the_compute_shows_only_where_it_is_the_longer(transfer_ms: float, step_ms: float) -> None:
    pipe = Pipeline(decode_ms=10.0, transfer_ms=transfer_ms, overlap=True)
    assert true_step_ms(pipe) == pytest.approx(step_ms)
    found = judge(pipe)
    assert found.verdict.bottleneck == ("compute" if step_ms == 40 else "transfer")
    assert gain(found, "transfer") == pytest.approx(step_ms / 40, rel=0.01)
    assert share(found, "transfer") == pytest.approx(1 - 40 / step_ms, abs=0.01)


@pytest.mark.parametrize("workers", [0, 4])
def test_a_hidden_copy_that_a_late_batch_exposes_is_a_wait_for_data(workers: int) -> None:
    # given a loader at 100 ms, and a copy of 30 ms that compute would hide if the batch were there
    pipe = Pipeline(workers=workers, decode_ms=100.0 * max(workers, 1), transfer_ms=30.0, overlap=True)
    found = judge(pipe)
    assert found.verdict.bottleneck == "prep"
    assert gain(found, "prep") == pytest.approx(true_speedup(pipe, "prep"), rel=0.02)
    assert share(found, "transfer") == pytest.approx(0, abs=0.01)
    assert share(found, "unexplained") == pytest.approx(0, abs=0.02)
    arms, timeline = waits(found)
    assert arms == pytest.approx(timeline, abs=0.02)


def test_a_copy_beside_the_compute_and_preparation_of_equal_size_are_mixed() -> None:
    pipe = Pipeline(decode_ms=400.0, transfer_ms=100.0, overlap=True)
    found = judge(pipe)
    assert found.verdict.bottleneck == "mixed" and found.verdict.joint == ("prep", "transfer")
    assert found.verdict.joint_speedup is not None
    assert found.verdict.joint_speedup.value == pytest.approx(true_speedup(pipe, "prep", "transfer"), rel=0.03)


@pytest.mark.parametrize(("decode_ms", "named"), [(450.0, "mixed"), (500.0, "prep")])
def test_a_cause_that_may_not_be_worth_it_alone_is_none_where_two_give_far_more(decode_ms: float, named: str) -> None:
    # given 1.13 and 1.25 without preparation, on a machine whose speed varies by 2 %
    pipe = Pipeline(decode_ms=decode_ms, transfer_ms=100.0, overlap=True)
    found = judge(pipe, drift=0.02, rounds=6)
    alone, together = found.verdict.speedup_if_removed["prep"], found.verdict.joint_speedup
    assert alone is not None and alone.low is not None and (alone.low < 1.1) == (named == "mixed")
    assert alone.value == pytest.approx(true_speedup(pipe, "prep"), abs=0.02)
    assert found.verdict.bottleneck == named
    if together is not None:
        assert together.value == pytest.approx(true_speedup(pipe, "prep", "transfer"), rel=0.03)


def test_transfer_bound() -> None:
    found = judge(Pipeline(decode_ms=40.0, transfer_ms=40.0))
    assert found.verdict.bottleneck == "transfer"
    assert gain(found, "transfer") == pytest.approx(2.0, rel=0.01)
    assert share(found, "transfer") == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("how", [{"gap_ms": 30.0}, {"issue_ms": 70.0}])
def test_launch_bound(how: dict[str, float]) -> None:
    found = judge(Pipeline(decode_ms=40.0, **how))
    assert found.verdict.bottleneck == "launch"
    assert gain(found, "launch") == pytest.approx(1.75, rel=0.01)
    assert share(found, "launch") == pytest.approx(3 / 7, abs=0.01)
    assert share(found, "compute") == pytest.approx(4 / 7, abs=0.01)


def test_a_copy_hidden_behind_issuing_is_left_when_issuing_is_gone() -> None:
    # given 60 ms of issuing that hide 40 of compute and 20 of copying
    pipe = Pipeline(decode_ms=40.0, transfer_ms=20.0, issue_ms=60.0)
    assert true_speedup(pipe, "launch") == pytest.approx(1.0, abs=0.01)
    # then faster launches are worth nothing alone, and launch is no verdict
    found = judge(pipe)
    assert gain(found, "launch") == pytest.approx(1.0, abs=0.01)
    assert found.verdict.bottleneck == "compute"


def test_without_a_device_that_tells_its_busy_time_launch_is_unknown() -> None:
    found = judge(Pipeline(decode_ms=40.0, issue_ms=70.0, tells_busy=False))
    assert found.shares["launch"] is None
    assert found.verdict.speedup_if_removed["launch"] is None
    assert_sound(found)


# A loader in line with issuing.

IN_LINE = Pipeline(workers=0, latency_ms=20.0, decode_ms=60.0, issue_ms=30.0, busy_ms=35.0)
"""20 + 60 + 30 = 110 ms a step, whatever the device does."""


@pytest.mark.parametrize(
    ("cause", "left_ms"), [("storage", 90.0), ("prep", 50.0), ("transfer", 110.0), ("launch", 80.0), ("compute", 110.0)]
)
def test_a_synchronous_loader_and_issuing_add_up(cause: Removable, left_ms: float) -> None:
    found = judge(IN_LINE)
    assert true_speedup(IN_LINE, cause) == pytest.approx(110 / left_ms, rel=0.01)
    assert gain(found, cause) == pytest.approx(110 / left_ms, rel=0.02)


def test_a_faster_copy_does_not_help_a_host_that_is_busy() -> None:
    # given a host that needs 60 ms in line and a device that needs 30 + 35
    pipe = Pipeline(workers=0, decode_ms=40.0, issue_ms=20.0, busy_ms=30.0, transfer_ms=35.0)
    found = judge(pipe)
    assert gain(found, "transfer") == pytest.approx(65 / 60, rel=0.01)
    assert found.verdict.bottleneck == "mixed"


# Contention.


def test_issuing_slowed_by_the_workers_is_contention() -> None:
    # given issuing that takes 25 ms alone and 60 beside the workers, 40 of compute
    pipe = Pipeline(workers=4, decode_ms=40.0, issue_ms=25.0, crowded_issue_ms=35.0)
    found = judge(pipe)
    # then a third of the step is contention, no data stall, and nothing is unexplained
    assert share(found, "contention") == pytest.approx(1 / 3, abs=0.01)
    assert share(found, "prep") == pytest.approx(0.0, abs=0.01)
    assert share(found, "unexplained") == pytest.approx(0.0, abs=0.01)
    # and it counts with preparation
    assert found.verdict.bottleneck == "prep"
    assert gain(found, "prep") == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize(("busy_ms", "left_ms"), [(20.0, 20.0), (3.0, 6.0)])
def test_without_slow_launches_batches_are_taken_while_the_device_works(busy_ms: float, left_ms: float) -> None:
    # given 34 ms of issuing that take 49 beside the workers, which also make taking a batch over last 6 ms
    slow = {"issue_ms": 34.0, "crowded_issue_ms": 15.0, "crowded_next_ms": 6.0}
    pipe = Pipeline(workers=4, decode_ms=4.0, busy_ms=busy_ms, **slow)
    found = judge(pipe)
    # then without launches nothing but the device's time, or the taking, is left of the 55 ms
    assert true_speedup(pipe, "launch") == pytest.approx(55 / left_ms, rel=0.01)
    assert gain(found, "launch") == pytest.approx(55 / left_ms, rel=0.03)
    assert found.verdict.bottleneck == "launch"


def test_contention_under_the_shade_of_compute_costs_nothing() -> None:
    found = judge(Pipeline(workers=4, decode_ms=40.0, issue_ms=5.0, crowded_issue_ms=25.0))
    assert found.verdict.bottleneck == "compute"
    assert share(found, "contention") == pytest.approx(0.0, abs=0.005)


# What does not fit together, or is not there.


def test_witnesses_that_disagree_are_both_shown() -> None:
    # given completions of `real` that come 30 ms later each step without wait or issue time
    pipe = Pipeline(decode_ms=40.0)
    segments = measure(pipe)
    for one in segments:
        if one.arm == Arm.REAL:
            one.steps[:, DONE] += np.arange(len(one.steps)) * 30_000_000
    found = judge(pipe, segments)
    assert found.verdict.bottleneck == "undetermined"
    arms, timeline = waits(found)
    assert (round(arms, 2), round(timeline, 2)) == (0.43, 0.0)
    assert "43%" in reasons(found)[0] and "0%" in reasons(found)[0]
    assert [reason.code for reason in found.verdict.reasons] == ["witnesses_disagree"]


def test_arms_out_of_order_beyond_their_interval() -> None:
    pipe, slow = Pipeline(decode_ms=40.0), Pipeline(decode_ms=40.0, busy_ms=60.0)
    segments = [one for one in measure(slow) if one.arm == Arm.HOST] + [o for o in measure(pipe) if o.arm != Arm.HOST]
    found = judge(pipe, segments)
    assert found.verdict.bottleneck == "undetermined"
    assert "`ram`" in reasons(found)[0] and "`host`" in reasons(found)[0]


@pytest.mark.parametrize(
    ("rounds", "num_steps", "real_once", "code"),
    [
        (1, 24, True, "too_few_steps"), (1, 64, True, "arms_out_of_order"), (2, 24, False, "arms_out_of_order"),
        (3, 24, True, "arms_out_of_order"),
    ],
)  # fmt: skip
def test_arms_of_one_short_window_each_that_are_out_of_order_are_too_short(
    rounds: int, num_steps: int, real_once: bool, code: str
) -> None:
    pipe, slow = Pipeline(decode_ms=40.0), Pipeline(decode_ms=40.0, busy_ms=60.0)
    host, others = (measure(one, rounds=rounds, num_steps=num_steps) for one in (slow, pipe))
    segments = [one for one in host if one.arm is Arm.HOST] + [one for one in others if one.arm is not Arm.HOST]
    if real_once:  # files as they are can be measured once; more steps of `real` would not put others in order
        segments = [one for one in segments if one.arm is not Arm.REAL or one.round == 0]
    assert [reason.code for reason in judge(pipe, segments).verdict.reasons] == [code]


def test_two_windows_of_a_round_each_do_not_contradict_each_other() -> None:
    # given one round of eight workers in each arm, of which `ram` took 8 % longer
    pipe, longer = (Pipeline(workers=8, decode_ms=8 * one) for one in (100.0, 108.0))
    ram, others = (measure(one, rounds=1, num_steps=8) for one in (longer, pipe))
    segments = [one for one in ram if one.arm is Arm.RAM] + [one for one in others if one.arm is not Arm.RAM]
    found = judge(pipe, segments)
    assert found.verdict.bottleneck == "undetermined"
    assert [reason.code for reason in found.verdict.reasons] == ["too_few_steps"]


def test_the_timeline_is_judged_by_the_step_that_was_measured() -> None:
    # given two workers that take 1 s a step, and 1.12 s in the windows of `ram`, beside a device of 40 ms
    pipe, longer = (Pipeline(workers=2, decode_ms=2 * one) for one in (1000.0, 1120.0))
    ram, others = (measure(one, rounds=1, num_steps=8) for one in (longer, pipe))
    found = judge(pipe, [one for one in ram if one.arm is Arm.RAM] + [one for one in others if one.arm is not Arm.RAM])
    # then the order of the arms makes both 1.06 s, and the wait on the timeline is still 0.96 of 1 s
    assert waits(found) == pytest.approx((1 - 0.04 / 1.06, 0.96), abs=0.005)
    assert "witnesses_disagree" not in [reason.code for reason in found.verdict.reasons]


def test_a_machine_that_moves_by_two_percent_is_not_out_of_order() -> None:
    verdicts = [
        judge(Pipeline(decode_ms=40.0), rounds=3, drift=0.02, seed=seed).verdict.bottleneck for seed in range(40)
    ]
    assert verdicts.count("compute") >= 39


def test_a_loader_that_owns_the_transfer() -> None:
    found = judge(Pipeline(decode_ms=400.0, owns_transfer=True))
    assert found.shares["transfer"] is None
    assert found.verdict.speedup_if_removed["transfer"] is None
    assert found.verdict.bottleneck == "prep"
    assert gain(found, "prep") == pytest.approx(2.5, rel=0.01)


def test_a_loader_without_files() -> None:
    found = judge(Pipeline(decode_ms=400.0, reads_files=False))
    assert share(found, "storage") == 0.0
    assert gain(found, "storage") == 1.0
    assert found.verdict.bottleneck == "prep"


MISSING: dict[Arm, tuple[set[Share], set[Removable], str]] = {
    Arm.DEVICE: ({"compute", "transfer"}, {"transfer", "launch"}, "prep"),
    Arm.HOST: ({"transfer", "prep", "contention", "unexplained"}, {"prep", "transfer"}, "mixed"),
    Arm.RAM: ({"storage", "prep", "contention", "unexplained"}, {"storage"}, "prep"),
    Arm.FREE: (set(), {"transfer", "launch", "compute"}, "prep"),
    Arm.FETCH: (set(), {"prep"}, "mixed"),
}
"""Missing arm → the shares and the gains that need it, and the verdict. Preparation is named where its gain is known,
and is as large as that of all causes together."""


@pytest.mark.parametrize("missing", MISSING)
def test_a_missing_arm_leaves_nulls_and_no_verdict_that_needs_it(missing: Arm) -> None:
    # given a run bound by preparation
    pipe = Pipeline(latency_ms=40.0, decode_ms=400.0, transfer_ms=8.0)
    found = judge(pipe, [one for one in measure(pipe) if one.arm != missing])
    shares, speedups, bottleneck = MISSING[missing]
    assert {name for name, one in found.shares.items() if one is None} >= shares
    assert {name for name, one in found.verdict.speedup_if_removed.items() if one is None} == {*speedups, "contention"}
    assert_sound(found)
    assert found.verdict.bottleneck == bottleneck
    if bottleneck == "mixed":
        (reason,) = found.verdict.reasons
        assert (reason.code, reason.details["arms"]) == ("not_separated", [missing])
        assert found.verdict.joint_speedup is not None
        truth = true_speedup(pipe, *found.verdict.joint)
        assert found.verdict.joint_speedup.value == pytest.approx(truth, rel=0.03)


def test_what_was_not_measured_is_not_taken_for_nothing() -> None:
    # given a run that preparation slows by half, and no `fetch`, as with --cache as-is
    pipe = Pipeline(decode_ms=240.0)
    segments = [one for one in measure(pipe) if one.arm not in (Arm.FETCH, Arm.FREE)]
    # then its worth is unknown and may be all of what it and the storage are worth together
    found = judge(pipe, segments)
    assert found.verdict.speedup_if_removed["prep"] is None
    assert found.verdict.bottleneck == "mixed" and found.verdict.joint == ("storage", "prep")
    assert found.verdict.joint_speedup is not None
    assert found.verdict.joint_speedup.value == pytest.approx(1.50, rel=0.01)
    assert "fetch" in reasons(found)[0]
    # but where nothing can be gained from it, what is known is enough
    calm = Pipeline(decode_ms=40.0)
    found = judge(calm, [one for one in measure(calm) if one.arm not in (Arm.FETCH, Arm.FREE)])
    assert found.verdict.bottleneck == "compute"


def test_a_gain_that_cannot_be_excluded_is_no_compute_verdict() -> None:
    # given three segments of `real` at 40, 40 and 60 ms against 42 elsewhere
    pipe, slow = Pipeline(decode_ms=40.0, busy_ms=42.0), Pipeline(decode_ms=40.0, busy_ms=52.0)
    segments = [one for one in measure(pipe, rounds=3) if (one.arm, one.round) != (Arm.REAL, 1)]
    segments.append(segment(slow, Arm.REAL, 1))
    assert judge(pipe, segments).verdict.bottleneck == "undetermined"


def test_one_round_of_five_steps_still_gives_sound_figures() -> None:
    for arms in (ARMS, (Arm.REAL,), (Arm.REAL, Arm.DEVICE), (Arm.REAL, Arm.RAM, Arm.HOST)):
        pipe = Pipeline(decode_ms=400.0)
        assert_sound(judge(pipe, [one for one in measure(pipe, rounds=1, num_steps=5) if one.arm in arms]))


# When the window may open.


def _steady(pipe: Pipeline, num_rows: int, *, pause_ms: float = 0.0, from_row: int = 0) -> bool:
    one = segment(pipe, Arm.REAL, num_warmup=60, num_steps=120, pause_ms=pause_ms)
    rows = slice(from_row, from_row + num_rows)
    ready = one.spans[:180, READY][rows] if one.spans is not None else None
    return is_steady(one.steps[rows, 0], one.steps[rows, RETURNED], ready, pipe.depth, pipe.workers)


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 2), (2, 5), (8, 2), (8, 3)])
def test_a_queue_is_steady_when_full_when_empty_and_in_bursts(workers: int, prefetch: int) -> None:
    rows = 4 * workers * prefetch + 8
    for slower in (0.3, 1.5, 4.0):
        pipe = Pipeline(workers=workers, prefetch=prefetch, decode_ms=slower * 40 * workers)
        assert _steady(pipe, rows, from_row=50), slower
        assert _steady(replace(pipe, tells_spans=False), rows, from_row=50), slower


def test_a_draining_queue_and_a_filling_one_are_not_steady() -> None:
    draining = Pipeline(workers=8, prefetch=4, decode_ms=1.3 * 40 * 8)
    assert not _steady(draining, 40, pause_ms=3000.0, from_row=60)
    filling = Pipeline(workers=8, prefetch=4, decode_ms=0.3 * 40 * 8)
    assert not _steady(filling, 40)


def test_too_few_steps_are_not_steady() -> None:
    assert not _steady(Pipeline(workers=4, prefetch=2, decode_ms=400.0), 7, from_row=60)


def test_a_storage_that_moved_nothing_is_no_cause() -> None:
    """A warm run whose `real` arm met a disturbance that `ram` did not: nothing may be said of the storage."""
    pipe = Pipeline(workers=2, storage_ms=60.0, decode_ms=5.0, busy_ms=10.0)
    assert judge(pipe).verdict.bottleneck == "storage"
    found = judge(pipe, storage_idle=True)
    assert found.verdict.bottleneck == "undetermined"
    assert "the storage transferred no data" in reasons(found)[-1]
    prep = Pipeline(workers=2, decode_ms=60.0, busy_ms=10.0)
    assert judge(prep, storage_idle=True).verdict.bottleneck == judge(prep).verdict.bottleneck == "prep"


# Runs that are too short.


def test_a_run_of_six_steps_names_no_causes_by_gains_that_it_does_not_know() -> None:
    # given six steps of a loader whose times vary by a factor, its storage too
    pipe = Pipeline(workers=2, latency_ms=300.0, decode_ms=300.0, busy_ms=20.0, jitter=1.2)
    for seed in range(20):
        found = judge(pipe, rounds=1, num_steps=6, num_warmup=2, seed=seed)
        verdict = found.verdict
        # then whatever is named or printed is known at least within a factor of three
        told = [gain for gain in verdict.speedup_if_removed.values() if gain is not None]
        if verdict.bottleneck == "undetermined":
            assert [reason.code for reason in verdict.reasons] == ["too_few_steps"], reasons(found)
            assert "only 6 steps" in reasons(found)[0] and "--steps 30" in reasons(found)[0]
        else:
            told = [verdict.joint_speedup] if verdict.joint_speedup else [max(told, key=lambda gain: gain.value)]
        assert all(gain.high <= 3 * gain.low for gain in told if gain.low and gain.high), (verdict, seed)


def test_six_steps_are_enough_where_they_agree() -> None:
    found = judge(Pipeline(workers=2, decode_ms=600.0, busy_ms=20.0), rounds=1, num_steps=6)
    assert found.verdict.bottleneck == "prep"


def test_a_gain_that_is_large_for_sure_is_told_however_much_larger_it_may_be() -> None:
    # given a step 30 times as long as the device's, of which few steps tell only that it is many times as long
    pipe = Pipeline(workers=2, decode_ms=600.0, busy_ms=20.0, jitter=1.5)
    found = [judge(pipe, rounds=2, num_steps=4, num_warmup=2, seed=seed).verdict for seed in range(20)]
    assert {one.bottleneck for one in found} <= {"prep", "undetermined"}
    gains = [one.speedup_if_removed["prep"] for one in found if one.bottleneck == "prep"]
    wide = [gain for gain in gains if gain is not None and gain.high and gain.low and gain.high > 3 * gain.low]
    assert wide and all(gain.low is not None and gain.low >= 3 for gain in wide)


def test_how_long_to_measure_follows_from_the_steps_of_all_arms() -> None:
    pipe = Pipeline(workers=8, latency_ms=300.0, decode_ms=900.0, busy_ms=20.0, jitter=1.5)
    short = [judge(pipe, rounds=1, num_steps=5, num_warmup=2, seed=seed).verdict for seed in range(10)]
    reason = next(reason for one in short for reason in one.reasons if reason.code == "too_few_steps")
    # six rounds of eight workers; each arm takes as many steps
    assert reason.details["wanted"] == 48
    # the seconds are those of the few steps that were measured: what five of them say of 48 is known to a factor
    arms_ms = sum(true_step_ms(pipe, arm) for arm in ARMS)
    estimates = [
        float(reason.details["seconds"])  # type: ignore[arg-type]
        for one in short for reason in one.reasons if reason.code == "too_few_steps"
    ]  # fmt: skip
    assert np.median(estimates) == pytest.approx(48 * arms_ms / 1e3, rel=0.6)
