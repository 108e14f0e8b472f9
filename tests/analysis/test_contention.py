"""Contention as a verdict, against a machine of fairly shared processors in closed form."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from loaderbench.analysis.model import Model
from loaderbench.analysis.processors import beside_the_same, processors_of
from loaderbench.analysis.quantities import Quantity
from loaderbench.analysis.record import analyze
from loaderbench.analysis.verdict import _Judge
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import SPAN, STEP, CpuWindow, Run, Segment, StorageKind
from loaderbench.recording.record import RunRecord
from loaderbench.reporting.words import worded
from tests.analysis import simulate
from tests.analysis.simulate import Pipeline
from tests.made import make_case, make_device, make_facts, make_loader, make_prep_probe, make_run


@dataclass(frozen=True)
class Machine:
    """`cpus` shared fairly by the run's workers and by `others`, all of them always runnable."""

    workers: int
    others: int = 0
    cpus: int = 2
    quota: float | None = None

    @property
    def each(self) -> float:
        """Processors that each thread gets."""
        mine = min(1.0, self.cpus / (self.workers + self.others))
        return mine if self.quota is None else min(mine, self.quota / self.workers)

    @property
    def own(self) -> float:
        return self.workers * self.each

    @property
    def window(self) -> CpuWindow:
        """What the kernel would count in 10 s of it."""
        busy = self.own + self.others * min(1.0, self.cpus / (self.workers + self.others))
        return CpuWindow(
            wall_s=10.0, own_s=10 * self.own, own_queued_s=10 * (self.workers - self.own), consumer_queued_s=0.0,
            machine_busy_s=10 * busy, stolen_s=0.0, cpus=self.cpus, quota_cpus=self.quota,
            num_throttled=None if self.quota is None else 100,
        )  # fmt: skip

    def slowed(self, pipeline: Pipeline) -> Pipeline:
        """The pipeline whose workers run at the pace of this machine."""
        return replace(pipeline, decode=pipeline.decode / self.each, workers=self.workers)


IDLE = CpuWindow(10.0, 0.1, 0.0, 0.0, 0.1, 0.0, 2, None, None)


def stored(machine: Machine, pipeline: Pipeline) -> Run:
    """A run of the pipeline there, its arms in turns."""
    slowed, segments = machine.slowed(pipeline), []
    for segment in simulate.run(slowed):
        works = segment.arm not in (Arm.DEVICE, Arm.HOST, Arm.FETCH)
        others = min(1.0, machine.others / machine.cpus) * machine.cpus
        idle = replace(IDLE, machine_busy_s=0.1 + 10 * others, cpus=machine.cpus, quota_cpus=machine.quota)
        segment.cpu = machine.window if works else idle
        if segment.spans is not None:
            segment.spans = segment.spans.copy()
            wall = segment.spans[:, SPAN["ready_ns"]] - segment.spans[:, SPAN["start_ns"]]
            decode = wall if works else wall * 0
            segment.spans[:, SPAN["runqueue_ns"]] = decode * (1 - machine.each)
            segment.spans[:, SPAN["cpu_ns"]] = decode * machine.each
        segments.append(segment)
    return run_of(segments, machine)


def run_of(segments: list[Segment], machine: Machine) -> Run:
    case = make_case(workers=machine.workers, cache="warm", loader="multiprocess")
    facts = make_facts(device=make_device(), loader=make_loader())
    return make_run(case, segments, facts=facts)


def judged(machine: Machine, pipeline: Pipeline) -> RunRecord:
    return worded(analyze(stored(machine, pipeline)))


def truth(machine: Machine, pipeline: Pipeline, alone: Machine) -> float:
    """The gain when the run has the processors of `alone`: the model's own step times."""
    return simulate.step_seconds(machine.slowed(pipeline)) / simulate.step_seconds(alone.slowed(pipeline))


FAST = Pipeline(device=0.010, decode=0.060)
EVEN = Pipeline(device=0.040, decode=0.060)


@pytest.mark.parametrize("pipeline", [FAST, EVEN], ids=["preparation paces", "the device would pace"])
@pytest.mark.parametrize(
    ("workers", "others"), [(2, 2), (2, 4), (4, 4), (2, 3)], ids=lambda number: str(number)
)  # fmt: skip
def test_others_on_the_processors_are_named_with_the_gain_of_their_absence(
    workers: int, others: int, pipeline: Pipeline
):
    machine = Machine(workers, others)
    expected = truth(machine, pipeline, Machine(workers))

    record = judged(machine, pipeline)

    assert record.verdict is not None and record.contention is not None
    assert record.verdict.bottleneck == "contention"
    assert record.contention.by == "neighbours"
    gain = record.verdict.speedup_if_removed["contention"]
    assert gain is not None
    assert gain.value == pytest.approx(expected, rel=0.06)
    assert next(one.code for one in record.verdict.advice) == "stop_neighbours"
    assert "other processes use" in record.verdict.summary


@pytest.mark.parametrize(("decode", "expected"), [(0.010, 1.0), (0.090, 92 / (0.7 * 92))])
def test_a_serial_loader_that_the_device_outlasts_loses_nothing_to_neighbours(decode: float, expected: float) -> None:
    # 3 of 10 s its one thread waits for a processor, whether the device still computes or not
    waits = CpuWindow(10.0, 6.0, 3.0, 3.0, 20.0, 0.0, 2, None, None)
    segments = simulate.run(replace(EVEN, decode=decode, workers=0))
    for segment in segments:
        segment.cpu = waits
    case = make_case(workers=0, cache="warm", loader="serial")
    record = analyze(make_run(case, segments, facts=make_facts(device=make_device(), loader=make_loader())))
    assert record.verdict is not None and record.verdict.bottleneck == ("compute" if expected == 1.0 else "prep")
    gain = record.verdict.speedup_if_removed["contention"]
    assert gain is not None and gain.value == pytest.approx(expected, rel=0.02)


def test_a_loader_that_tells_nothing_waits_no_longer_than_all_threads_of_the_run() -> None:
    # Its threads ran for 2 of 10 s and waited 1 s for a processor; the rest of the time they waited for something else.
    # Others can have cost it a tenth of the time, not the third that its threads waited of the time they could run.
    waits = CpuWindow(10.0, 2.0, 1.0, 0.0, 20.0, 0.0, 2, None, None)
    segments = simulate.run(replace(FAST, workers=2))
    for segment in segments:
        segment.cpu, segment.spans = waits, None
    case = make_case(workers=2, cache="warm", loader="dali")
    record = analyze(make_run(case, segments, facts=make_facts(device=make_device(), loader=make_loader())))
    assert record.verdict is not None
    gain = record.verdict.speedup_if_removed["contention"]
    assert gain is not None and gain.value == pytest.approx(1 / 0.9, rel=0.01)


@pytest.mark.parametrize("late_arms", [(Arm.RAM, Arm.REAL), (Arm.HOST, Arm.RAM, Arm.REAL)])
def test_an_issuing_thread_that_others_hold_up_makes_the_device_wait_though_its_data_are_there(
    late_arms: tuple[Arm, ...],
) -> None:
    # Two busy processes beside it; data are always there. Each step is issued 5 ms later than alone, for which the
    # thread wanted a processor, and the device begins it 4 ms after the one before has ended: 24 ms for 20. No others,
    # no such wait, whether or not they came while batches lay ready too.
    machine = Machine(2, 2)
    run = stored(machine, Pipeline(device=0.020, decode=0.010))
    assert run.recording is not None
    segments = [segment for segment in run.recording.segments if segment.arm in late_arms]
    beside = segments[-1].cpu
    assert segments[-1].arm is Arm.REAL and beside is not None
    for segment in segments:
        segment.cpu = replace(beside, consumer_queued_s=beside.wall_s * 5 / 24)
        late = np.arange(len(segment.steps)) * 4_000_000
        for name in STEP:
            if name.endswith("_ns") and name != "busy_ns":
                segment.steps[:, STEP[name]] += late
        segment.steps[:, STEP["issued_ns"]] += 5_000_000
        for name in ("copy_begin_ns", "copy_end_ns"):  # nothing is copied, whenever that is
            segment.steps[:, STEP[name]] = segment.steps[:, STEP["returned_ns"]]
    record = analyze(run)
    assert record.verdict is not None and record.contention is not None
    gain, part = record.verdict.speedup_if_removed["contention"], record.contention.others_fraction
    assert gain is not None and part is not None and part > 0.5
    assert gain.value == pytest.approx(24 / (24 - 4 * part), rel=0.02)
    assert (record.verdict.bottleneck, record.contention.by) == ("contention", "neighbours")
    # What it never waited for no other took from it: then it was late for something else.
    for segment in run.recording.segments:
        assert segment.cpu is not None
        segment.cpu = replace(segment.cpu, consumer_queued_s=0.0)
    gain = contention_gain(analyze(run))
    assert gain == pytest.approx(1.0, abs=0.01)


def contention_gain(record: RunRecord) -> float:
    assert record.verdict is not None
    gain = record.verdict.speedup_if_removed["contention"]
    assert gain is not None
    return gain.value


@pytest.mark.parametrize(
    ("contention", "prep", "half", "named"),
    [
        pytest.param(1.20, 1.05, 0.02, True, id="it is worth it by itself"),
        pytest.param(1.07, 1.12, 0.02, True, id="a stage is surely worth it, but most of its gain is contention's"),
        pytest.param(1.07, 1.12, 0.20, False, id="a stage may be worth nothing"),
        pytest.param(1.07, 1.09, 0.01, False, id="nothing is worth it"),
        pytest.param(1.07, 1.40, 0.02, False, id="a stage gives more beyond it"),
    ],
)
@pytest.mark.parametrize("stage", ["prep", "launch"])
def test_when_contention_is_named_beside_a_stage(
    *, contention: float, prep: float, half: float, named: bool, stage: str
) -> None:
    def gain(value: float, half: float) -> Quantity:
        return Quantity(value, np.random.default_rng(1).normal(value, half / 1.96, 500), 9)

    model = SimpleNamespace(
        contention_gain=gain(contention, 0.02), gains={"prep": gain(1.0, 0.01), stage: gain(prep, half)},
        held_up_by_others=False, has_storage=False, base=gain(1.0, 0.01), times=None,
    )  # fmt: skip
    assert _Judge(cast("Model", model), None).is_held_up is named
    # a storage or a copy waits for no processor: what gives more without it gives that without contention too
    gains = {"prep": gain(1.0, 0.01), "storage": gain(prep, half)}
    beside = SimpleNamespace(**{**vars(model), "gains": gains, "has_storage": True})
    assert _Judge(cast("Model", beside), None).is_held_up is (named and contention > prep)


@pytest.mark.parametrize(
    ("contention", "prep", "named"),
    [
        pytest.param((0.95, 1.6, 2.2), (1.05, 1.66, 2.3), True, id="it is nothing beyond contention"),
        pytest.param((0.95, 1.6, 2.2), (0.9, 1.66, 2.3), False, id="it may be nothing"),
        pytest.param((0.95, 1.25, 1.5), (1.3, 1.5, 1.7), False, id="it is more than contention"),
        pytest.param((0.95, 1.08, 1.2), (1.05, 1.12, 1.2), False, id="contention is not worth it"),
    ],
)
def test_a_stage_that_is_sure_by_its_contention_alone_is_no_other_name_for_it(
    *, contention: tuple[float, ...], prep: tuple[float, ...], named: bool
) -> None:
    def gain(low: float, value: float, high: float) -> Quantity:
        return Quantity(value, np.linspace(low, high, 500), 9)

    model = SimpleNamespace(
        contention_gain=gain(*contention), gains={"prep": gain(*prep)}, held_up_by_others=False, has_storage=False,
        base=gain(0.9, 1.0, 1.1), times=None,
    )  # fmt: skip
    assert _Judge(cast("Model", model), None).is_held_up is named


@pytest.mark.parametrize(
    ("contention", "low", "high", "hidden"),
    [
        pytest.param(1.6, 1.7, 22.0, True, id="it may be no more than contention"),
        pytest.param(1.2, 1.7, 22.0, False, id="it is more, however much"),
        pytest.param(1.6, 1.7, 3.0, False, id="it is known"),
        pytest.param(1.05, 1.04, 22.0, False, id="contention is not worth it"),
    ],
)
def test_a_stage_that_is_badly_known_does_not_hide_contention(
    *, contention: float, low: float, high: float, hidden: bool
) -> None:
    def gain(low: float, high: float) -> Quantity:
        return Quantity((low * high) ** 0.5, np.linspace(low, high, 500), 9)

    model = SimpleNamespace(contention_gain=gain(contention - 0.01, contention + 0.01), gains={"prep": gain(low, high)})
    assert _Judge(cast("Model", model), None).hides_contention is hidden


@pytest.mark.parametrize("quota", [0.5, 0.7, 1.0])
def test_a_quota_is_named_with_the_gain_of_its_end(quota: float):
    machine = Machine(2, quota=quota)

    record = judged(machine, FAST)

    assert record.verdict is not None and record.contention is not None
    assert record.verdict.bottleneck == "contention"
    assert record.contention.by == "quota"
    gain = record.verdict.speedup_if_removed["contention"]
    assert gain is not None
    assert gain.value == pytest.approx(truth(machine, FAST, Machine(2)), rel=0.06)


@pytest.mark.parametrize(
    ("machine", "alone"),
    [(Machine(2, 2), Machine(2)), (Machine(2, 4), Machine(2)), (Machine(2), Machine(2)), (Machine(2, quota=0.7), None)],
    ids=["two others", "four others", "none", "a quota"],
)
def test_a_rate_beside_others_may_be_another_one_in_the_next_run(machine: Machine, alone: Machine | None) -> None:
    # The windows of this pipeline do not vary. What others take of a step varies between runs by 15 % of itself, and
    # what else moves the loader's threads by 30 % of the part of the processors that they hold, ÷ √2 on two of them; a
    # quota takes the same from every run.
    taken = 0.0 if alone is None else 1 - 1 / truth(machine, FAST, alone)
    held = machine.others / (machine.workers + machine.others)

    record = analyze(stored(machine, FAST))
    rate = record.throughput

    assert rate is not None and rate.low is not None and rate.high is not None
    for end, sign in ((rate.low, -1), (rate.high, 1)):
        assert np.log(end / rate.value) == pytest.approx(
            sign * 1.96 * np.hypot(0.15 * taken, 0.30 / np.sqrt(2) * held), rel=0.06, abs=0.005
        )
    # so does the gain without them, which is never below 1
    gain = None if record.verdict is None else record.verdict.speedup_if_removed["contention"]
    assert gain is not None and gain.low is not None and gain.high is not None
    assert np.log(gain.high / gain.value) >= 0.99 * 1.96 * 0.15 * taken - 0.005
    assert gain.low == pytest.approx(max(1.0, gain.value**2 / gain.high), rel=0.06)


@pytest.mark.parametrize(
    ("workers", "others", "device", "half_width"),
    [
        (0, 4.0, 0.010, 0.294),
        (0, 0.0, 0.010, 0.0),
        (2, 4.0, 0.010, 0.208),
        (4, 4.0, 0.010, 0.147),
        (2, 4.0, 0.060, 0.0),
    ],
    ids=["in line", "in line, alone", "two workers pace", "four workers pace", "the device paces"],
)
def test_the_rate_of_a_loader_beside_others_is_not_known_by_its_own_windows(
    workers: int, others: float, device: float, half_width: float
) -> None:
    """It waits for no processor here, and its windows do not vary. Others hold half of eight processors."""
    segments = simulate.run(replace(FAST, workers=workers, device=device))
    own = 10.0 * max(1, workers)
    for one in segments:
        one.cpu = CpuWindow(10.0, own, 0.0, 0.0, own + 10 * others, 0.0, 8, None, None)
    case = make_case(workers=workers, cache="warm", loader="multiprocess" if workers else "serial")
    rate = analyze(make_run(case, segments, facts=make_facts(device=make_device(), loader=make_loader()))).throughput
    assert rate is not None and rate.low is not None and rate.high is not None
    for end, sign in ((rate.low, -1), (rate.high, 1)):
        assert np.log(end / rate.value) == pytest.approx(sign * half_width, abs=0.003)


@pytest.mark.parametrize("part", [0.2, 0.5])
@pytest.mark.parametrize("workers", [0, 2])
def test_processors_that_other_guests_have_are_waited_for_though_no_thread_is_queued(part: float, workers: int) -> None:
    # given two processors of which the hypervisor gives `part` to others. A thread that is on one then is neither
    # running nor in a run queue.
    slow = 1 - part
    busy = max(1, workers)
    window = CpuWindow(10.0, 10 * busy * slow, 0.0, 0.0, 10 * busy * slow, 10 * busy * part, 2, None, None)
    segments = simulate.run(replace(FAST, decode=0.060 / slow, device=0.001, workers=workers))
    for one in segments:
        one.cpu = window if one.arm not in (Arm.DEVICE, Arm.HOST, Arm.FETCH) else IDLE
        if one.spans is not None and one.cpu is window:
            one.spans = one.spans.copy()
            wall = one.spans[:, SPAN["ready_ns"]] - one.spans[:, SPAN["start_ns"]]
            one.spans[:, SPAN["cpu_ns"]] = wall * slow
            one.spans[:, SPAN["runqueue_ns"]] = 0
    case = make_case(workers=workers, cache="warm", loader="multiprocess" if workers else "serial")
    record = analyze(make_run(case, segments, facts=make_facts(device=make_device(), loader=make_loader())))
    assert record.verdict is not None and record.contention is not None
    gain = record.verdict.speedup_if_removed["contention"]
    assert gain is not None and gain.value == pytest.approx(1 / slow, rel=0.04)
    assert record.contention.by == "steal"


def test_a_neighbour_that_came_late_is_none_of_a_storage_that_did_nothing() -> None:
    steps = simulate.run(EVEN)
    beside = CpuWindow(10.0, 10.0, 5.0, 0.0, 20.0, 0.0, 2, None, None)
    for one in steps:
        one.cpu = beside if one.arm is Arm.REAL else IDLE
    recording = run_of(steps, Machine(2)).recording
    assert recording is not None
    # what only the arms that read saw may be the work of a FUSE daemon
    at_work, idle = (processors_of(recording, storage_works=works)[Arm.REAL] for works in (True, False))
    assert at_work.neighbours == pytest.approx(0.0, abs=0.01) and idle.neighbours == pytest.approx(1.0)


def test_a_quota_beyond_the_processors_that_may_be_used_withholds_none() -> None:
    steps = simulate.run(EVEN)
    for one in steps:
        one.cpu = CpuWindow(10.0, 15.0, 5.0, 0.0, 15.0, 0.0, 2, 3.0, 100)
    recording = run_of(steps, Machine(2)).recording
    assert recording is not None
    assert processors_of(recording)[Arm.REAL].quota_room == 0.0


@pytest.mark.parametrize(
    ("period_s", "num_throttled", "stopped_s", "room"),
    [
        # 0.5 of 2 processors with two busy threads: each second they have 0.25 s, and two processors rest for 0.75
        (1.0, 1, 1.8, 1.5),
        (1.0, 1, None, 1.5),  # where the kernel does not tell the time, a stop in each period
        (0.1, 12, None, 1.5),
        (None, 12, None, 1.5),  # of an older version, when the usual period was taken for it
        (0.1, 1, None, 0.0),  # one of twelve periods
        (1.0, 1, 0.6, 0.5),  # one processor, for half of the time
        (1.0, 1, 0.012, 0.0),
        (0.1, 0, 0.0, 0.0),
    ],
)
def test_a_quota_keeps_from_a_run_what_it_was_stopped_for(
    period_s: float | None, num_throttled: int, stopped_s: float | None, room: float
) -> None:
    segments = simulate.run(EVEN)
    for one in segments:
        one.cpu = CpuWindow(1.2, 0.6, 1.8, 0.0, 0.6, 0.0, 2, 0.5, num_throttled, None, None, None, stopped_s, period_s)
    recording = run_of(segments, Machine(2)).recording
    assert recording is not None
    assert processors_of(recording)[Arm.REAL].quota_room == pytest.approx(room)


@pytest.mark.parametrize(("own", "by"), [(0.6, "quota"), (0.3, "neighbours")])
def test_a_quota_that_is_used_up_is_named_though_others_use_more_than_it_withheld(own: float, by: str) -> None:
    # A quota of 0.6 of 2 processors with a busy process on the other one. Stopped for 4 of 10 s: 0.4 processors
    # withheld, 1.0 in the neighbour's hands, but it could have no more of these.
    segments = simulate.run(EVEN)
    for one in segments:
        one.cpu = CpuWindow(10.0, 10 * own, 24.0, 6.0, 10 * (1 + own), 0.0, 2, 0.6, 100, None, None, None, 4.0, 0.1)
    recording = run_of(segments, Machine(2)).recording
    assert recording is not None
    seen = processors_of(recording)[Arm.REAL]
    assert (seen.neighbours, seen.quota_room) == (pytest.approx(1.0), pytest.approx(0.4))
    assert seen.largest == by


def test_more_workers_than_processors_gain_nothing_by_waiting_less():
    record = judged(Machine(8), FAST)

    assert record.verdict is not None and record.contention is not None
    assert record.verdict.bottleneck == "prep"
    assert record.contention.by == "workers"
    gain = record.verdict.speedup_if_removed["contention"]
    assert gain is not None
    assert gain.value == pytest.approx(1.0, abs=0.05)
    fewer = [one for one in record.verdict.advice if one.code == "fewer_workers"]
    assert [dict(one.change or {}) for one in fewer] == [{"workers": 2}]
    assert fewer[0].predicted_speedup is not None
    assert fewer[0].predicted_speedup.value == pytest.approx(1.0, abs=0.05)


def test_one_neighbour_beside_slow_preparation_leaves_preparation_the_cause():
    """The gain without the neighbour is 1.5; preparation beyond it gives more."""
    record = judged(Machine(2, 1), FAST)

    assert record.verdict is not None
    assert record.verdict.bottleneck == "prep"
    gain = record.verdict.speedup_if_removed["contention"]
    assert gain is not None
    assert gain.value == pytest.approx(1.5, rel=0.06)


def test_of_a_loader_that_tells_no_times_the_busiest_thread_says_how_long_a_batch_waits_behind_others():
    """One of its threads works on every batch, for 80 ms of 100; others have little to do, and wait for 0.45 processors
    more, for which nobody waits. On processors of its own a batch takes 80 ms."""
    window = CpuWindow(10.0, 9.5, 6.5, 0.0, 20.0, 0.0, 2, None, None, busiest_s=8.0, busiest_queued_s=2.0)
    gains = {}
    for known in (window, replace(window, busiest_s=None, busiest_queued_s=None)):
        segments = simulate.run(Pipeline(device=0.030, decode=0.200, workers=2))
        for one in segments:
            one.spans = None
            one.cpu = known if one.arm not in (Arm.DEVICE, Arm.HOST, Arm.FETCH) else replace(IDLE, machine_busy_s=10.1)
        gains[known.busiest_s] = contention_gain(worded(analyze(run_of(segments, Machine(2)))))
    assert gains[8.0] == pytest.approx(1 / 0.8, rel=0.03)
    assert gains[None] == pytest.approx((9.5 + 6.5) / 9.5, rel=0.03)  # of a run of an older version: all threads alike


def test_preparation_that_was_not_measured_may_give_more_than_the_absence_of_others():
    """Without `fetch`, storage and preparation are not told apart: together they give 4.5, the neighbour takes 1.5."""
    run = stored(Machine(2, 1), FAST)
    assert run.recording is not None
    run.recording.segments[:] = [one for one in run.recording.segments if one.arm is not Arm.FETCH]

    verdict = analyze(run).verdict

    assert verdict is not None and verdict.bottleneck in ("prep", "mixed")
    assert verdict.joint_speedup is not None and verdict.joint_speedup.value == pytest.approx(4.5, rel=0.06)


def test_without_the_loader_s_time_alone_a_queue_behind_its_own_threads_leaves_it_open():
    """The workers of four wait for half of their time; `free`, which would tell what that costs, is missing."""
    run = stored(Machine(4), Pipeline(device=0.030, decode=0.060))
    assert run.recording is not None
    run.recording.segments[:] = [one for one in run.recording.segments if one.arm is not Arm.FREE]

    record = worded(analyze(run))

    assert record.verdict is not None and record.contention is not None
    assert record.verdict.speedup_if_removed["contention"] is None
    assert record.contention.by == "workers"
    # the same run with nothing that waits is judged without it
    run = stored(Machine(2), Pipeline(device=0.030, decode=0.120))
    assert run.recording is not None
    run.recording.segments[:] = [one for one in run.recording.segments if one.arm is not Arm.FREE]
    record = analyze(run)
    assert record.verdict is not None and record.verdict.bottleneck == "prep"


@pytest.mark.parametrize("free", [True, False], ids=["free", "no free"])
def test_a_model_on_the_run_s_own_processors(free: bool):
    """A model of two threads and two workers on two processors: beside each other all run at half their pace.

    Alone the step takes 40 ms on either side, together 80: without contention it is twice as fast.
    """
    machine = Machine(2)
    window = CpuWindow(10.0, 20.0, 20.0, 5.0, 20.0, 0.0, 2, None, None)
    alone = Pipeline(device=0.0401, issue=0.040, decode=0.080)
    together = Pipeline(device=0.0801, issue=0.080, decode=0.160)
    segments = []
    for segment in simulate.run(alone):
        if segment.arm in (Arm.RAM, Arm.REAL):
            continue
        segment.cpu = replace(window, own_queued_s=0.0)
        segments.append(segment)
    for segment in simulate.run(together):
        if segment.arm not in (Arm.RAM, Arm.REAL):
            continue
        segment.cpu = window
        if segment.spans is not None:
            wall = segment.spans[:, SPAN["ready_ns"]] - segment.spans[:, SPAN["start_ns"]]
            segment.spans[:, SPAN["runqueue_ns"]], segment.spans[:, SPAN["cpu_ns"]] = wall // 2, wall // 2
        segments.append(segment)
    run = run_of([one for one in segments if free or one.arm is not Arm.FREE], machine)
    assert run.recording is not None
    facts = run.recording.facts
    run.recording.facts = replace(facts, device=replace(facts.device, on_host_cpus=True))

    record = worded(analyze(run))

    assert record.verdict is not None and record.contention is not None
    assert record.contention.by == "own threads"
    gain = record.verdict.speedup_if_removed["contention"]
    if free:
        assert record.verdict.bottleneck == "contention"
        assert gain is not None and gain.value == pytest.approx(2.0, rel=0.06)
    else:
        assert record.verdict.bottleneck != "prep" and gain is None


def test_issuing_that_comes_late_though_no_thread_waits_for_a_processor_is_no_contention():
    """Steps are issued in 14 ms instead of 10, for a lock or for the caches: eight processors are idle."""
    segments = simulate.run(Pipeline(device=0.0101, issue=0.010, decode=0.010))
    fed, verdicts = (Arm.RAM, Arm.REAL), []
    busy = [one for one in simulate.run(Pipeline(device=0.0101, issue=0.014, decode=0.010)) if one.arm in fed]
    segments = [one for one in segments if one.arm not in fed] + busy
    for queued_s in (0.0, 5.0):
        for one in segments:
            window = CpuWindow(10.0, 12.0, 0.0, 0.0, 12.0, 0.0, 8, None, None)
            one.cpu = replace(window, own_queued_s=queued_s) if one.arm in fed else window
        record = analyze(run_of(segments, Machine(2, cpus=8)))
        assert record.verdict is not None
        verdicts.append((record.verdict.bottleneck, contention_gain(record), record.share("contention")))
    assert verdicts[0][0] != "contention" and verdicts[0][1:] == (pytest.approx(1.0), pytest.approx(0.0))
    assert verdicts[1] == ("contention", pytest.approx(1.4, rel=0.05), pytest.approx(0.29, abs=0.02))


def test_fewer_workers_are_not_advised_beside_others_who_would_take_their_part():
    for others, advised in ((0, True), (2, False)):
        record = judged(Machine(8, others), FAST)
        assert record.verdict is not None
        assert any(one.code == "fewer_workers" for one in record.verdict.advice) is advised


@pytest.mark.parametrize("waits", [0.0, 0.3, 0.5])
def test_a_serial_loader_with_another_decoder_waits_for_processors_as_before(waits: float):
    # given 90 ms of preparation, of which it waits for a processor, and a decoder of two thirds of the cost
    segments = simulate.run(replace(EVEN, device=0.020, decode=0.090, workers=0))
    for one in segments:
        one.cpu = CpuWindow(10.0, 10 * (1 - waits), 10 * waits, 10 * waits, 20.0, 0.0, 2, None, None)
        if one.spans is not None:
            wall = one.spans[:, SPAN["ready_ns"]] - one.spans[:, SPAN["start_ns"]]
            one.spans[:, SPAN["runqueue_ns"]], one.spans[:, SPAN["cpu_ns"]] = wall * waits, wall * (1 - waits)
    probe = make_prep_probe(pillow=0.090 * (1 - waits) / 64, turbojpeg=0.060 * (1 - waits) / 64)
    facts = make_facts(device=make_device(), loader=make_loader(), prep_probe=probe)
    record = analyze(make_run(make_case(workers=0, cache="warm", loader="serial"), segments, facts=facts))
    assert record.verdict is not None
    (other,) = [one for one in record.verdict.advice if one.code == "other_decoder"]
    assert other.predicted_speedup is not None
    assert other.predicted_speedup.value == pytest.approx(0.092 / 0.062, rel=0.05)


def test_a_run_that_waits_for_no_processor_has_no_contention():
    record = judged(Machine(2), FAST)

    assert record.verdict is not None and record.contention is not None
    assert record.verdict.bottleneck == "prep"
    assert record.contention.by is None
    gain = record.verdict.speedup_if_removed["contention"]
    assert gain is not None
    assert gain.value == pytest.approx(1.0, abs=0.02)


def test_runs_of_older_versions_leave_contention_unknown():
    run = stored(Machine(2, 2), FAST)
    assert run.recording is not None
    for segment in run.recording.segments:
        segment.cpu = None

    record = analyze(run)

    assert record.contention is None
    assert record.verdict is not None
    assert record.verdict.speedup_if_removed["contention"] is None


def test_a_window_beside_another_machine_is_not_compared_with_real() -> None:
    """A neighbour that left before the last window of `free` would make the loader's own speed anything between."""
    run = stored(Machine(workers=2, others=2), EVEN)
    assert run.recording is not None
    segments = run.recording.segments
    last = max(number for number, one in enumerate(segments) if one.arm is Arm.FREE)
    alone, rows = segments[last], segments[last].steps.copy()
    ends = [STEP[name] for name in ("called_ns", "returned_ns", "issued_ns")]
    rows[:, ends] = np.where(rows[:, ends] > 0, rows[0, 0] + (rows[:, ends] - rows[0, 0]) // 3, rows[:, ends])
    assert alone.cpu is not None
    quiet = replace(alone.cpu, machine_busy_s=alone.cpu.own_s)
    changed = [*segments[:last], replace(alone, steps=rows, cpu=quiet), *segments[last + 1 :]]
    assert [one.arm for one in beside_the_same(changed)].count(Arm.FREE) == len(
        [one for one in segments if one.arm is Arm.FREE]) - 1  # fmt: skip
    found = analyze(replace(run, recording=replace(run.recording, segments=changed)))
    expected = analyze(run)
    assert found.loader_rate is not None and expected.loader_rate is not None
    assert found.loader_rate.value == pytest.approx(expected.loader_rate.value, rel=0.02)
    assert found.verdict is not None and found.verdict.bottleneck == "contention"


@pytest.mark.parametrize(
    ("own", "busy", "kept"),
    [(1.7, 2.0, True), (0.1, 2.0, True), (1.7, 1.7, False), (0.9, 0.9, False), (0.9, 1.6, True)],
    ids=["the run took it from them", "it left it to them", "they left, it took less", "they left", "a little less"],
)
def test_others_have_less_where_the_run_takes_more_of_full_processors(own: float, busy: float, *, kept: bool) -> None:
    """Beside `real`, paced by its device, the run uses 0.9 of 2 processors and others 1.1; the loader alone wants more
    of them. Only where it does, and the processors are full, do others use less and want as much."""
    segments, of_free = simulate.run(EVEN, rounds=4), 0
    for one in segments:
        of_free += one.arm is Arm.FREE
        one.cpu = CpuWindow(10.0, 9.0, 5.0, 0.0, 20.0, 0.0, 2, None, None)
        if one.arm is Arm.FREE and of_free <= 2:
            one.cpu = replace(one.cpu, own_s=10 * own, machine_busy_s=10 * busy)
    left = Counter(one.arm for one in beside_the_same(segments))
    assert left[Arm.FREE] == (4 if kept else 2)
    assert sum(left.values()) == len(segments) - (0 if kept else 2)


def beside_a_daemon(disturbed: int, *, uses: float = 0.7) -> list[Segment]:
    """Windows of 10 s over a FUSE daemon that uses so many processors while files are read from it; a neighbour uses
    one more in the first windows of `ram`."""
    segments, of_ram = [], 0
    for one in simulate.run(EVEN, rounds=4):
        of_ram += one.arm is Arm.RAM
        beside = (uses if one.arm.touches_storage else 0.0) + (one.arm is Arm.RAM and of_ram <= disturbed)
        one.cpu = CpuWindow(10.0, 5.0, 0.5, 0.0, 5.0 + 10 * beside, 0.0, 4, None, None)
        segments.append(one)
    return segments


def test_the_storage_s_own_daemon_makes_no_window_another_machine_s() -> None:
    segments = beside_a_daemon(disturbed=2)
    num = Counter(one.arm for one in segments)
    assert num[Arm.RAM] == 4
    left = Counter(one.arm for one in beside_the_same(segments, storage_works=True))
    # only the disturbed ones go
    assert left == {**num, Arm.RAM: num[Arm.RAM] - 2}
    # were it no storage's, `real` would be the one that others disturb, and so the two would stay alone
    assert Counter(one.arm for one in beside_the_same(segments))[Arm.RAM] == 2
    # a run's own storage is asked for what it is
    for kind, loads in {"fuse": num[Arm.RAM] - 2, "local": 2, "nfs": num[Arm.RAM] - 2}.items():
        facts = make_facts(storage=replace(make_facts().storage, kind=kind))
        found = analyze(make_run(make_case(workers=2, cache="warm"), segments, facts=facts))
        assert found.arms is not None
        assert found.arms[Arm.RAM].num_steps == loads * len(segments[0].window), kind


@pytest.mark.parametrize("kind", ["fuse", "nfs", "unknown", "local", "memory", None])
def test_without_an_arm_that_leaves_the_storage_alone_its_daemon_is_no_neighbour(kind: StorageKind | None) -> None:
    """`--arms real` where others use 0.9 of 2 processors, and the run's threads wait for 0.9 more."""
    segments = [one for one in simulate.run(EVEN) if one.arm is Arm.REAL]
    for one in segments:
        one.cpu = CpuWindow(10.0, 11.0, 9.0, 0.0, 20.0, 0.0, 2, None, None)
    facts = make_facts(loader=make_loader(), storage=replace(make_facts().storage, kind=kind))
    record = worded(analyze(make_run(make_case(workers=2), segments, facts=facts)))

    seen, verdict = record.contention, record.verdict
    assert seen is not None and verdict is not None
    told = " ".join([verdict.summary, *verdict.evidence, *(one.action for one in verdict.advice)])
    if kind in ("fuse", "nfs", "unknown"):
        assert (seen.neighbours, seen.neighbours_or_storage) == (None, pytest.approx(0.9))
        assert seen.by != "neighbours" and verdict.bottleneck != "contention"
        assert "stop the other processes" not in told
        assert "other processes or the storage's own (not separable) use 0.90" in told
    else:
        assert (seen.neighbours, seen.neighbours_or_storage) == (pytest.approx(0.9), None)
        assert seen.by == "neighbours"


def test_windows_stay_where_the_neighbours_of_real_come_and_go_or_too_few_would_be_left() -> None:
    run = stored(Machine(workers=2, others=2), EVEN)
    assert run.recording is not None
    segments = run.recording.segments

    def without_others(*numbers: int, arm: Arm) -> list[Segment]:
        changed, of_arm = [], 0
        for one in segments:
            assert one.cpu is not None
            if one.arm is arm:
                of_arm += 1
                one = replace(one, cpu=replace(one.cpu, machine_busy_s=one.cpu.own_s)) if of_arm in numbers else one
            changed.append(one)
        return changed

    for changed in (without_others(1, arm=Arm.REAL), without_others(1, 2, arm=Arm.FREE)):
        assert len(beside_the_same(changed)) == len(segments)


def test_a_device_that_copies_nothing_is_not_limited_by_the_copy() -> None:
    """`host` does then what `device` does; a neighbour beside it alone made it slower."""
    segments = simulate.run(replace(EVEN, copy=0.030, device=0.010, overlap=False))
    case = make_case(workers=2, cache="warm", loader="multiprocess", device="cpu")

    def named(*, copies: bool) -> RunRecord:
        device = make_device(kind="cpu", name="CPU", emulated=False, copies=copies, on_host_cpus=not copies)
        return analyze(make_run(case, segments, facts=make_facts(device=device, loader=make_loader())))

    with_copies, without = named(copies=True).verdict, named(copies=False).verdict
    assert with_copies is not None and without is not None
    assert "transfer" in (with_copies.bottleneck, *with_copies.joint)
    assert "transfer" not in (without.bottleneck, *without.joint)
    gain = without.speedup_if_removed["transfer"]
    assert gain is not None and gain.value == gain.high == 1.0


def test_without_the_arm_of_ready_batches_a_device_that_copies_nothing_has_no_copy_either() -> None:
    segments = [one for one in simulate.run(Pipeline(device=0.010, decode=0.080)) if one.arm in (Arm.DEVICE, Arm.REAL)]
    case = make_case(workers=2, cache="warm", loader="multiprocess", device="cpu")
    device = make_device(kind="cpu", name="CPU", emulated=False, copies=False, on_host_cpus=True)
    verdict = analyze(make_run(case, segments, facts=make_facts(device=device, loader=make_loader()))).verdict
    assert verdict is not None and (verdict.bottleneck, verdict.joint) == ("mixed", ("storage", "prep"))
