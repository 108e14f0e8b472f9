"""Bursts beside a watched script's timeline, by facts made by hand: what they stand for, where both cannot be true."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from loaderbench.analysis.record import analyze, judged_run
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import SCRIPT_LANE, SPAN, STEP, STEP_FIELDS, CpuWindow, RankRecording, Run, Segment
from loaderbench.recording.rank_place import RankPlace
from loaderbench.recording.record import RunRecord
from tests.watched_facts import MS, run_of, segment

Times = NDArray[np.float64]


def burst(step_ms: float, number: int, begun_ms: float) -> Segment:
    """The pause, which is no step, and one step with its batch there."""
    steps = np.full((2, len(STEP_FIELDS)), -1, dtype=np.int64)
    for row, done in enumerate((begun_ms, begun_ms + step_ms)):
        for name in ("called_ns", "returned_ns", "copy_begin_ns", "copy_end_ns"):
            steps[row, STEP[name]] = begun_ms * MS
        for name in ("issued_ns", "waited_ns", "done_ns"):
            steps[row, STEP[name]] = done * MS
        steps[row, STEP["num_samples"]] = 8 * row
    begun, ended = round(begun_ms * MS), round((begun_ms + step_ms) * MS)
    return Segment(Arm.DEVICE, number, 1, True, steps, None, begun, ended, lane=SCRIPT_LANE)


def run_with(making_ms: float, step_ms: Times, bursts_ms: Sequence[float], *, workers: int = 2) -> Run:
    """A run whose batches take their worker so long, nearly all of it reading."""
    random, num = np.random.default_rng(1), len(step_ms)
    real = [
        segment(making_ms * random.normal(1.0, 0.02, num), step_ms, workers, 2, read_part=0.9, cpu_part=0.1)
        for _ in range(3)
    ]
    run = run_of(real[0], workers, num_bursts=len(bursts_ms))
    assert run.recording is not None
    bursts = [burst(ms, number, 9000.0 + 100 * number) for number, ms in enumerate(bursts_ms)]
    run.recording.segments[:] = [*real, *bursts]
    return run


def judged(making_ms: float, step_ms: Times, bursts_ms: Sequence[float], *, workers: int = 2) -> RunRecord:
    record = analyze(run_with(making_ms, step_ms, bursts_ms, workers=workers))
    assert record.verdict is not None and record.verdict.waiting_for_data is not None
    return record


def test_an_accumulation_whose_batches_are_taken_first_is_no_loader_s_fault() -> None:
    # Hugging Face: four batches are taken, then worked on for 40 ms. The queue of four holds them: nobody waits.
    steps = np.tile([0.1, 0.1, 0.1, 40.0], 20)
    record = judged(4.0, steps, [0.10, 0.11, 0.10, 0.12, 0.10, 0.11])
    verdict = record.verdict
    assert verdict is not None and verdict.waiting_for_data is not None
    assert verdict.waiting_for_data.by_timeline.value < 0.05
    assert verdict.bottleneck == "compute"
    storage = (record.shares or {})["storage"]
    assert storage is not None and storage.value < 0.05


def test_bursts_longer_than_the_run_s_own_steps_are_none_with_data_ready() -> None:
    # One worker gives a batch each 17 ms, and a step takes 4. Its worker rested while the burst's batch was waited for.
    record = judged(17.0, np.full(80, 4.0), [40.0, 54.0, 47.0, 50.0, 61.0, 44.0], workers=1)
    verdict = record.verdict
    assert verdict is not None and verdict.waiting_for_data is not None
    assert verdict.waiting_for_data.by_timeline.value == pytest.approx(13 / 17, abs=0.03)
    assert verdict.waiting_for_data.by_arms is None or verdict.waiting_for_data.by_arms.value > 0.7
    assert verdict.bottleneck == "storage"  # its workers read
    gain = verdict.speedup_if_removed["storage"]
    assert gain is not None and gain.value == pytest.approx(17 / 4, rel=0.1)
    assert step_s(record) == pytest.approx(17e-3, rel=0.02)


def test_an_accumulation_that_waits_is_told_by_its_timeline() -> None:
    # One worker of 30 ms a batch; four batches are worked on for 40 ms: 120 ms for every 40 of work.
    steps = np.tile([0.1, 0.1, 0.1, 40.0], 20)
    record = judged(30.0, steps, [0.10, 0.11, 0.10, 0.12, 40.0, 0.11], workers=1)
    verdict = record.verdict
    assert verdict is not None and verdict.waiting_for_data is not None
    assert verdict.waiting_for_data.by_timeline.value == pytest.approx(2 / 3, abs=0.05)
    assert verdict.bottleneck == "storage"
    gain = verdict.speedup_if_removed["storage"]
    assert gain is not None and gain.value == pytest.approx(3.0, rel=0.1)


def test_a_few_empty_steps_that_are_a_little_shorter_than_any_other_are_still_a_chance() -> None:
    # Of four bursts of one step all are of the three in four that are empty (32 %). Beside the loader those take 0.15
    # ms, behind a pause 0.1: no step of the run is as short, and yet they are of that kind.
    steps = np.tile([0.15, 0.15, 0.15, 40.0], 20)
    record = judged(15.0, steps, [0.10, 0.10, 0.11, 0.10], workers=1)
    compute = (record.shares or {})["compute"]
    assert compute is not None and compute.value * step_s(record) == pytest.approx(40.45e-3 / 4, rel=0.1)


def test_whether_steps_are_unlike_is_asked_once_before_the_first_step_behind_a_burst_counts() -> None:
    # Two batches are taken, and worked on for 12 ms behind the second, 8 of 12 ms being its own. Eight steps behind
    # bursts are too few to tell the mean of 6 ms; with the first ones sixteen would do, and be 2 ms.
    steps = np.tile([4.0, 8.0], 40) + np.random.default_rng(1).normal(0.0, 0.1, 80)
    run = run_with(15.0, steps, [], workers=1)
    assert run.recording is not None
    run.recording.segments += [pair((4.0, 4.0), number) for number in range(8)]
    record = analyze(run)
    compute = (record.shares or {})["compute"]
    assert compute is not None and compute.value * step_s(record) == pytest.approx(6.0e-3, rel=0.1)


@pytest.mark.parametrize(("bursts", "ready"), [(8, True), (5, False)])
def test_steps_that_workers_make_unlike_are_told_by_bursts(bursts: int, ready: bool) -> None:
    # A network on the processors: alone a step takes it 2 ms, beside its worker half of them take 60 ms. Eight bursts
    # of 2 ms are no chance (0.5⁸ = 0.4 %), but five may be (0.5⁵ = 3 %): then the timeline counts.
    steps = np.random.default_rng(4).permutation(np.repeat([60.0, 2.0], 40))
    record = judged(60.0, steps, [2.0 + 0.01 * number for number in range(bursts)], workers=1)
    compute = (record.shares or {})["compute"]
    assert compute is not None
    assert compute.value == pytest.approx((2.0 if ready else float(steps.mean())) / 1e3 / step_s(record), rel=0.15)


def test_an_accumulation_of_two_is_there_as_a_whole_in_two_steps_behind_a_burst() -> None:
    # Two batches are taken, then worked on: 8 ms alone, 8 or 60 beside the worker. Behind a burst two steps have their
    # batches; the second of them alone would be 0 or 8 ms.
    work = np.random.default_rng(4).permutation(np.repeat([60.0, 8.0], 20))
    steps = np.column_stack((np.full(40, 0.1), work)).ravel()
    run = run_with(35.0, steps, [], workers=1)
    assert run.recording is not None
    run.recording.segments += [pair((0.1, 8.0)[:: 1 if number % 3 else -1], number) for number in range(12)]
    record = analyze(run)
    compute = (record.shares or {})["compute"]
    assert compute is not None
    assert compute.value == pytest.approx(8.1e-3 / 2 / step_s(record), rel=0.05)


def pair(step_ms: Sequence[float], number: int) -> Segment:
    """The pause, and two steps with their batches there, of which the second counts."""
    one = burst(step_ms[0], number, 9000.0 + 100 * number)
    last = one.steps[-1:] + round(step_ms[0] * MS)
    for name in ("issued_ns", "waited_ns", "done_ns"):
        last[0, STEP[name]] = one.steps[-1, STEP["done_ns"]] + round(step_ms[1] * MS)
    last[0, STEP["num_samples"]] = 8
    return replace(one, steps=np.vstack((one.steps, last)), num_warmup=2)


def test_a_training_that_shares_its_processors_with_its_worker_is_held_up_by_itself() -> None:
    # Two processors, two threads of the script and a worker, all at work: the worker takes 54 ms for a batch and waits
    # for a processor in 20 of them; a step takes 48 ms beside it, and 24 alone. Apart: the longer of 34 and 24 ms.
    random = np.random.default_rng(5)
    run = run_with(54.0, random.normal(48.0, 0.5, 80), [24.0 + 0.05 * number for number in range(6)], workers=1)
    record = analyze(with_processors(run, 34 / 54, CpuWindow(4.0, 7.6, 3.4, 0.9, 7.6, 0.0, 2, None, None)))
    verdict, contention = record.verdict, record.contention
    assert verdict is not None and verdict.bottleneck == "contention"
    assert contention is not None and contention.by == "own threads"
    gain = verdict.speedup_if_removed["contention"]
    assert gain is not None and gain.value == pytest.approx(54.0 / 34.0, rel=0.05)


@pytest.mark.parametrize("told", [True, False])
def test_neighbours_hold_up_the_bursts_too(told: bool) -> None:
    # Two workers take 50 ms each for a batch, and have a processor in 17.5 of them; 93 % of the rest they wait behind
    # others, who hold 1.3 of 2 processors. Alone they make a batch each 25 × (1 − 0.65 × 0.934) = 9.8 ms. With its
    # batch there a step takes 17 ms, 22 % of which its thread waits behind others: 13.3 ms alone, which then paces.
    steps = np.random.default_rng(5).normal(12.0, 0.1, 160)
    run = run_with(50.0, steps, [17.0 + 0.01 * number for number in range(6)])
    run = with_processors(run, 0.35, CpuWindow(3.0, 2.1, 4.8, 0.7, 6.0, 0.0, 2, None, None))
    assert run.recording is not None
    for one in run.recording.of(Arm.DEVICE):
        # others hold 1.8 of 2 processors: nothing of its own stands in its way
        one.cpu = CpuWindow(0.1, 0.02, 0.04, 0.022, 0.2, 0.0, 2, None, None) if told else None
    record = analyze(run)
    verdict, contention = record.verdict, record.contention
    assert verdict is not None and contention is not None and contention.by == "neighbours"
    assert verdict.bottleneck == "contention" and "stop_neighbours" in {one.code for one in verdict.advice}
    run.recording.rank = RankRecording(RankPlace(0, 2, 0, "a", "a test"), (), num_local=2)
    of_ranks = analyze(run).verdict  # they may be its own other ranks
    assert of_ranks is not None and "stop_neighbours" not in {one.code for one in of_ranks.advice}
    gain = verdict.speedup_if_removed["contention"]
    assert gain is not None and gain.value == pytest.approx(25.0 / (13.3 if told else 17.0), rel=0.05)


@pytest.mark.parametrize("workers", [2, 8])
def test_more_workers_than_processors_make_no_contention_of_their_work(workers: int) -> None:
    # A batch takes 40 ms of a processor. Eight workers on two processors wait for three quarters of their time, for
    # each other: with processors of their own, and no script beside them, they would make a batch each 20 ms as well.
    making_ms, steps_ms = 20.0 * workers, np.random.default_rng(5).normal(4.0, 0.1, 160)
    run = run_with(making_ms, steps_ms, [4.0 + 0.01 * number for number in range(6)], workers=workers)
    window = CpuWindow(3.2, 6.4, 3.2 * (workers - 2.0), 0.0, 6.4, 0.0, 2, None, None)
    record = analyze(with_processors(run, 40 / making_ms, window))
    verdict = record.verdict
    assert verdict is not None and verdict.bottleneck == "prep"
    gain = verdict.speedup_if_removed["contention"]
    assert gain is not None and gain.value == pytest.approx(1.0, abs=0.06)
    prep = verdict.speedup_if_removed["prep"]
    assert prep is not None and prep.value == pytest.approx(20.0 / 4.0, rel=0.1)


def test_what_a_step_is_longer_beside_its_loader_is_no_storage_s() -> None:
    # The loader reads for 1 ms of the 30 that a batch takes it. The step waits in part, and takes 36 ms beside it, 20
    # with data ready. Without storage a step can be shorter by that 1 ms at most, not by all that is beyond the 29.
    random = np.random.default_rng(5)
    run = run_with(30.0, random.normal(36.0, 0.5, 80), [20.0 + 0.05 * number for number in range(6)], workers=1)
    window = CpuWindow(3.0, 5.8, 2.0, 0.9, 5.8, 0.0, 2, None, None)
    record = analyze(with_processors(run, 25 / 30, window, read_part=1 / 30))
    storage = (record.shares or {})["storage"]
    assert storage is not None and storage.value * step_s(record) == pytest.approx(1e-3, rel=0.1)


@pytest.mark.parametrize("bursts", [6, 3])
def test_what_steps_take_beside_another_worker_is_not_known_where_they_are_shorter_without(bursts: int) -> None:
    # One worker makes a batch in 50 ms and paces; a step takes 40 ms beside it, 20 alone. Two workers make one each 25
    # ms: the step paces then, with 40 ms if it stays as it is, and not at all if it takes as long as alone.
    steps = np.random.default_rng(2).normal(40.0, 0.1, 80)
    record = judged(50.0, steps, [20.0 + 0.05 * number for number in range(bursts)], workers=1)
    assert record.verdict is not None
    (found,) = [one for one in record.verdict.advice if one.code == "num_workers" and one.change == {"workers": 2}]
    predicted = found.predicted_speedup
    assert predicted is not None and predicted.low is not None and predicted.high is not None
    assert predicted.value == pytest.approx(50 / 40, rel=0.03)  # a batch is as much work for both
    assert predicted.low < 1.25 and (predicted.high > 1.9) == (bursts == 6)


def test_no_more_workers_where_nothing_waits_though_steps_are_shorter_alone() -> None:
    # Two workers make a batch each 15 ms, a step takes 20 beside them and 10 alone: a third one has nothing to add.
    steps = np.random.default_rng(2).normal(20.0, 0.1, 80)
    record = judged(30.0, steps, [10.0 + 0.05 * number for number in range(6)], workers=2)
    assert record.verdict is not None
    assert not [one for one in record.verdict.advice if one.code == "num_workers"]


def with_processors(run: Run, cpu_part: float, window: CpuWindow, *, read_part: float = 0.0) -> Run:
    """The run whose workers run for that part of a batch's time, read for that part, and else wait for a processor."""
    assert run.recording is not None
    for one in run.recording.segments:
        if one.spans is not None:
            wall = one.spans[:, SPAN["ready_ns"]] - one.spans[:, SPAN["start_ns"]]
            for name, part in (
                ("cpu_ns", cpu_part), ("read_ns", read_part), ("runqueue_ns", 1 - cpu_part - read_part),
                ("decode_ns", 1 - read_part),
            ):  # fmt: skip
                one.spans[:, SPAN[name]] = np.round(wall * part).astype(np.int64)
            one.cpu = window
    return run


def step_s(record: RunRecord) -> float:
    assert record.step_time_s is not None
    return record.step_time_s.mean


def test_bursts_that_contradict_the_timeline_leave_the_verdict_open_with_that_reason() -> None:
    # The batches are always there; yet in bursts a step takes 8 of its 26 ms.
    steps = np.random.default_rng(2).normal(26.0, 0.2, 80)
    verdict = judged(1.0, steps, [8.0, 8.1, 8.0, 7.9, 8.1, 8.0]).verdict
    assert verdict is not None
    assert verdict.bottleneck == "undetermined"
    (reason,) = verdict.reasons
    assert reason.code == "witnesses_disagree"
    assert reason.details["by_timeline"] == pytest.approx(0.0, abs=0.01)


def test_a_step_that_workers_slow_down_a_little_is_no_contradiction() -> None:
    steps = np.random.default_rng(2).normal(10.0, 0.1, 80)
    verdict = judged(1.0, steps, [8.6, 8.5, 8.7, 8.5, 8.6, 8.5]).verdict
    assert verdict is not None and verdict.bottleneck != "undetermined"


def test_a_loader_that_paces_even_steps_is_told_as_before() -> None:
    steps = np.random.default_rng(2).normal(5.0, 0.1, 80)
    verdict = judged(20.0, steps, [5.0, 5.1, 4.9, 5.0, 5.0, 5.1]).verdict
    assert verdict is not None and verdict.bottleneck == "storage"
    gain = verdict.speedup_if_removed["storage"]
    assert gain is not None and gain.value == pytest.approx(2.0, rel=0.1)


def test_on_a_device_the_first_step_behind_a_burst_never_counts() -> None:
    # It had run dry: launches show in that step which others hide.
    for on_host, counted in ((True, 2), (False, 1)):
        run = run_with(15.0, np.tile([0.1, 0.1, 0.1, 40.0], 20), [], workers=1)
        assert run.recording is not None
        facts = run.recording.facts
        run.recording.facts = replace(facts, device=replace(facts.device, on_host_cpus=on_host))
        run.recording.segments += [pair((0.1, 0.1), number) for number in range(6)]
        judged = judged_run(run, run.recording)
        assert judged is not None and judged.arms[Arm.DEVICE].num_steps == 6 * counted
