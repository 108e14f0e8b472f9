"""What the event model records of uneven storages, shared cores and other hand-overs, against closed forms; and that
today's rules see in it what was built in."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loaderbench.analysis.record import analyze, slowness_of
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import READ, READ_FIELDS, SPAN, STEP, Segment
from loaderbench.running.read_times import batch_of
from tests.analysis.event_model import NUM_SAMPLES, Pipeline, even_factors, measure, segment, true_speedup, true_step_ms
from tests.analysis.event_world import Standstills, balanced_gaps, within
from tests.analysis.judging import run_of

TAIL = Pipeline(latency_ms=30.0, storage_ms=5.0, decode_ms=40.0, tail=(0.005, 300.0), jitter=0.1)
STALLS = Pipeline(latency_ms=30.0, decode_ms=40.0, stall_every_ms=2700.0, stall_ms=900.0, jitter=0.1)
OTHERS = Pipeline(decode_ms=100.0, collate_ms=5.0, cores=4, neighbours=4, host_on_cores=True, jitter=0.1)
CROWD = Pipeline(workers=8, decode_ms=150.0, cores=2, host_on_cores=True, jitter=0.1)
THREADS = Pipeline(latency_ms=60.0, decode_ms=60.0, in_turn=False, tail=(0.005, 300.0), busy_ms=20.0)
SENT = Pipeline(latency_ms=30.0, decode_ms=90.0, send_ms=30.0, busy_ms=20.0, tells_more=True)
ALL = {"tail": TAIL, "stalls": STALLS, "others": OTHERS, "crowd": CROWD, "threads": THREADS, "sent": SENT}


def spans_of(one: Segment, *names: str) -> list[NDArray[np.int64]]:
    assert one.spans is not None
    return [one.spans[:, SPAN[name]] for name in names]


@pytest.mark.parametrize("kind", ALL)
def test_the_parts_of_a_span_add_up(kind: str) -> None:
    one = segment(ALL[kind], Arm.REAL)
    start, ready, read, decode, collate = spans_of(one, "start_ns", "ready_ns", "read_ns", "decode_ns", "collate_ns")
    cpu, queued, read_cpu, read_queue = spans_of(one, "cpu_ns", "runqueue_ns", "read_cpu_ns", "read_queue_ns")
    assert np.abs(ready - start - read - decode - collate).max() <= 5  # rounded
    assert np.abs(decode + collate - cpu - queued).max() <= 5
    assert not read_cpu.any() and not read_queue.any()
    assert bool(queued.any()) is ALL[kind].slices


@pytest.mark.parametrize("kind", ALL)
def test_steps_tell_arrival_waiting_and_whether_the_host_was_ahead(kind: str) -> None:
    pipe, one = ALL[kind], segment(ALL[kind], Arm.REAL)
    steps, ready = one.steps, spans_of(one, "ready_ns")[0][: len(one.steps)]
    arrived, queued, ahead = (steps[:, STEP[name]] for name in ("arrived_ns", "queued_ns", "ahead"))
    if pipe.in_turn:
        assert np.abs(arrived - ready - pipe.send_ms * 1e6).max() <= 2
        assert (steps[:, STEP["returned_ns"]] >= arrived).all()
    else:
        assert (arrived == -1).all()
    assert one.cpu is not None and one.cpu.consumer_queued_s == pytest.approx(queued[one.num_warmup :].sum() / 1e9)
    assert bool(queued.any()) is pipe.host_on_cores
    was_ahead = steps[:-1, STEP["done_ns"]] > steps[1:, STEP["issued_ns"]]
    assert ahead[0] == -1 and (ahead[1:] == was_ahead).all()


# -- cores -------------------------------------------------------------------------------------------------


def test_others_that_never_rest_have_their_share_of_the_cores() -> None:
    # given four workers and four threads of others on two cores: each thread runs for a quarter of the time
    pipe = Pipeline(decode_ms=100.0, cores=2, neighbours=4)
    one = segment(pipe, Arm.REAL, num_steps=96)
    assert true_step_ms(pipe) == pytest.approx(100.0, rel=0.04)  # the last slice of a piece is not used up
    assert true_speedup(pipe, "others") == pytest.approx(2.0, rel=0.04)
    assert one.cpu is not None and one.cpu.own_queued_s is not None and one.cpu.machine_busy_s is not None
    assert one.cpu.own_s / one.cpu.wall_s == pytest.approx(1.0, rel=0.04)
    assert one.cpu.own_queued_s / one.cpu.own_s == pytest.approx(3.0, rel=0.05)
    assert one.cpu.machine_busy_s / one.cpu.wall_s == pytest.approx(2.0, rel=1e-3)
    assert one.cpu.busiest_s is not None and one.cpu.busiest_queued_s is not None
    assert one.cpu.busiest_s == pytest.approx(one.cpu.own_s / 4, rel=0.04)
    assert one.cpu.busiest_queued_s == pytest.approx(one.cpu.own_queued_s / 4, rel=0.04)
    assert (one.cpu.cpus, one.cpu.stolen_s, one.cpu.quota_cpus) == (2, 0.0, None)
    cpu, queued = spans_of(one, "cpu_ns", "runqueue_ns")
    assert queued.sum() / cpu.sum() == pytest.approx(3.0, rel=0.05)


def test_cores_that_are_never_short_are_told() -> None:
    one = segment(SENT, Arm.REAL)
    assert one.cpu is not None and one.cpu.own_queued_s == 0.0 and one.cpu.cpus == 64
    # four workers decode for 90 ms a batch, and the host issues for 1 ms: 91 ms of processors a step
    step_s = one.cpu.wall_s / len(one.window)
    assert one.cpu.own_s / one.cpu.wall_s == pytest.approx(0.091 / step_s, rel=0.05)
    assert one.cpu.machine_busy_s == one.cpu.own_s and one.cpu.python_threads_s == 0.0
    threads = segment(THREADS, Arm.REAL).cpu
    assert threads is not None and threads.python_threads_s == pytest.approx(threads.own_s, rel=0.05)


def test_more_workers_than_cores_gain_nothing_and_a_step_is_their_processors_time() -> None:
    for workers in (2, 4, 8):
        pipe = Pipeline(workers=workers, decode_ms=150.0, cores=2, host_on_cores=True)
        assert true_step_ms(pipe) == pytest.approx((150.0 + 1.0) / 2, rel=0.02)


# -- hand-over ---------------------------------------------------------------------------------------------


def test_a_delivery_takes_time_from_neither_side() -> None:
    free: dict[str, Any] = {"busy_ms": 1.0, "issue_ms": 0.1}
    assert true_step_ms(Pipeline(workers=2, decode_ms=100.0, send_ms=30.0, **free)) == pytest.approx(50.0, rel=0.01)
    # but with one batch under way it is on the way of each
    alone = Pipeline(workers=1, prefetch=1, decode_ms=100.0, send_ms=30.0, **free)
    assert true_step_ms(alone) == pytest.approx(130.0, rel=0.01)
    assert true_step_ms(alone, send_ms=0.0) == pytest.approx(100.0, rel=0.01)


def test_threads_take_the_next_batch_when_they_are_free() -> None:
    one = segment(THREADS, Arm.REAL, num_steps=96)
    workers, starts = spans_of(one, "worker", "start_ns")
    assert (np.diff(starts) >= 0).all()
    assert set(workers.tolist()) == {0, 1, 2, 3} and (np.diff(workers) % 4 != 1).any()
    in_turn = segment(Pipeline(**{**vars(THREADS), "in_turn": True}), Arm.REAL, num_steps=96)
    delivered = spans_of(in_turn, "worker")[0][: len(in_turn.steps)]
    assert (np.diff(delivered) % 4 == 1).all()
    # nobody waits behind who met a slow file
    assert true_step_ms(THREADS, num_steps=2400) < true_step_ms(THREADS, num_steps=2400, in_turn=True)


# -- uneven storages ---------------------------------------------------------------------------------------


def test_standstills_stop_the_clock_of_reading() -> None:
    still = Standstills(10.0, 2.0, irregular=False, seed=0)  # from 8 to 10, 18 to 20, …
    assert [still.end(*one) for one in ((1.0, 3.0), (7.0, 1.0), (7.0, 2.0), (9.0, 1.0), (0.0, 20.0))] == [
        4.0, 8.0, 11.0, 11.0, 24.0,
    ]  # fmt: skip
    assert still.open_time(np.array([4.0, 9.0, 10.0, 25.0])).tolist() == [4.0, 8.0, 8.0, 21.0]
    assert still.clock(np.array([4.0, 8.0, 8.5, 16.5]), 30.0).tolist() == [4.0, 8.0, 10.5, 20.5]
    random = Standstills(10.0, 2.0, irregular=True, seed=3)
    begins = np.random.default_rng(0).uniform(0, 1e4, 50)
    ends = np.array([random.end(begin, 7.0) for begin in begins])
    assert random.open_time(ends) == pytest.approx(random.open_time(begins) + 7.0)
    assert random.clock(random.open_time(begins) + 7.0, 2e4) == pytest.approx(ends)
    assert random.open_time(np.array([1e5]))[0] == pytest.approx(0.8e5, rel=0.03)


def test_slow_files_and_standstills_take_what_they_should() -> None:
    alone: dict[str, Any] = {"workers": 0, "issue_ms": 0.0, "busy_ms": 0.0}
    assert true_step_ms(Pipeline(latency_ms=60.0, stall_every_ms=500.0, stall_ms=100.0, **alone)) == pytest.approx(
        75.0, rel=0.01
    )
    few = Pipeline(latency_ms=60.0, tail=(0.01, 50.0), **alone)
    assert true_step_ms(few, num_steps=4800) == pytest.approx(60.0 + 64 * 0.01 * 50.0, rel=0.05)
    assert true_speedup(few, "tail", num_steps=4800) == pytest.approx(92.0 / 60.0, rel=0.05)
    assert true_step_ms(few, latency_ms=0.0, tail=(0.0, 0.0)) == pytest.approx(0.005)


@pytest.mark.parametrize("kind", ["tail", "stalls", "threads", "sent"])
def test_the_reads_are_those_of_the_spans(kind: str) -> None:
    one = segment(ALL[kind], Arm.REAL)
    assert one.reads is not None
    num, seconds = one.reads.histogram[:, 4].sum(), one.reads.histogram[:, 5].sum()
    (read,) = spans_of(one, "read_ns")
    assert num == NUM_SAMPLES * len(read)
    assert seconds == pytest.approx(read.sum(), rel=1e-5)
    # a slow read tells its batch, as the run's own bookkeeping finds it
    slow = one.reads.slowest
    assert one.spans is not None
    made = [
        (np.arange(number * NUM_SAMPLES, (number + 1) * NUM_SAMPLES), span)
        for number, span in enumerate(one.spans[: len(one.steps)])
    ]
    shorter = slow[:, : len(READ_FIELDS)].copy()
    shorter[:, READ["read_ns"]] -= 2  # each column is rounded for itself
    assert (batch_of(shorter, made) == slow[:, READ["batch"]]).mean() > 0.999


def test_windows_over_standstills_follow_each_other_on_one_clock() -> None:
    segments = measure(STALLS, rounds=2)
    assert all(one.closed_ns < other.opened_ns for one, other in itertools.pairwise(segments))
    ends = np.concatenate([one.reads.pauses[:, :2] for one in segments if one.reads is not None])
    long = ends[ends[:, 1] - ends[:, 0] > 800e6]
    assert len(long) and np.abs(long[:, 1] / 1e6 % 2700.0 - 1350.0).min() > 1340.0


def test_drift_moves_all_that_is_told() -> None:
    steady, drifted = (measure(OTHERS, rounds=1, drift=sigma) for sigma in (0.0, 0.2))
    for one, other in zip(steady, drifted, strict=True):
        assert other.cpu is not None and one.cpu is not None
        if one.arm is not Arm.FETCH:  # which has nothing to do here
            assert other.cpu.wall_s != one.cpu.wall_s and other.cpu.own_s != one.cpu.own_s


def test_times_within_a_window() -> None:
    assert within([(0.0, 2.0), (3.0, 9.0)], 1.0, 4.0) == 2.0 and within([], 0.0, 1.0) == 0.0


def test_luck_can_be_left_out_of_a_long_window() -> None:
    random = np.random.default_rng(1)
    places = np.cumsum(list(itertools.islice(balanced_gaps(0.01, random, 30_720), 3 * 307))) - 1
    assert (places[306] < 30_700) and (places[307] >= 30_700) and len(set(places.tolist())) == 3 * 307
    drawn = list(itertools.islice(even_factors(0.3, random), 1440))
    assert np.mean(drawn[:720]) == pytest.approx(1.0) and sorted(drawn[:720]) == sorted(drawn[720:])
    assert np.std(np.log(drawn)) == pytest.approx(0.3, rel=0.01)
    varied = Pipeline(latency_ms=280.0, decode_ms=40.0, jitter=0.3)
    true_ms = true_step_ms(varied, num_steps=9600)
    assert true_step_ms(varied, num_steps=960, even=True) == pytest.approx(true_ms, rel=0.01)
    few = Pipeline(workers=0, latency_ms=60.0, tail=(0.01, 50.0), issue_ms=0.0, busy_ms=0.0)
    assert true_step_ms(few, num_steps=4800, even=True) == pytest.approx(60.0 + 64 * 0.01 * 50.0, rel=0.005)
    stalls = Standstills(100.0, 40.0, irregular=True, seed=5, even=True)
    assert stalls.open_time(np.array([15_000.0]))[0] == pytest.approx(9_000.0, rel=0.01)


# -- what the rules say of it --------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "bound"), [("tail", "tail"), ("stalls", "stalls"), ("threads", "tail")])
def test_the_rules_see_why_the_storage_is_slow(kind: str, bound: str) -> None:
    run = run_of(ALL[kind], rounds=3, num_steps=96)
    assert run.recording is not None
    found = slowness_of(run.case, run.recording)
    assert found.kind == bound
    if found.stalls is not None:
        assert found.stalls.period_s == pytest.approx(2.7, rel=0.01)
        assert found.stalls.length_s == pytest.approx(0.9, rel=0.01)
    if found.tail is not None:
        assert found.tail.slow_s == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "bottleneck", "cause"),
    [("tail", "storage", "storage"), ("stalls", "storage", "storage"), ("others", "contention", "others"),
     ("crowd", "prep", "prep"), ("threads", "storage", "storage"), ("sent", "prep", "prep")],
)  # fmt: skip
def test_the_rules_name_what_was_built_in(kind: str, bottleneck: str, cause: str) -> None:
    record = analyze(run_of(ALL[kind], rounds=3, num_steps=96))
    assert record.verdict is not None and record.verdict.bottleneck == bottleneck
    gain = record.verdict.speedup_if_removed[bottleneck]  # type: ignore[index]
    assert gain is not None
    assert gain.value == pytest.approx(true_speedup(ALL[kind], cause, num_steps=2400), rel=0.15)
    if kind == "others":
        assert record.contention is not None and record.contention.by == "neighbours"
        assert record.contention.neighbours == pytest.approx(2.0, abs=0.1)
    if kind == "crowd":
        assert record.contention is not None and record.contention.by == "workers"
