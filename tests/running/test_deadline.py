"""The one budget of a measuring process, on a clock that only the test moves."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loaderbench.cases.arms import Arm
from loaderbench.machine import Quota
from loaderbench.recording.facts import STEP, STEP_FIELDS, Segment
from loaderbench.recording.progress import Message, Notice, StepsDone
from loaderbench.running import window
from loaderbench.running.deadline import AFTER_ROUNDS_S, MOST_AFTER_S, OVERTIME_S, Deadline, told_before
from loaderbench.running.foresight import foreseen
from loaderbench.running.jobs import measure as measuring
from loaderbench.running.jobs.measure import _Measurement
from loaderbench.running.window import LEAST_WINDOW, Windows, least_steps
from tests.made import make_case, make_segment


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_counts_from_the_start_of_the_process_and_never_below_zero() -> None:
    clock, told = Clock(), list[Message]()
    deadline = Deadline(15.0, told.append, started_s=97.0, clock=clock)
    assert deadline.left_s() == pytest.approx(15 + OVERTIME_S - 3)
    assert deadline.until(2.0) == pytest.approx(102.0)
    clock.now += 1000
    assert deadline.left_s() == 0 and deadline.until(2.0) == clock.now
    assert not told


def test_what_cannot_be_cut_short_is_said_before_it_is_done_and_moves_it() -> None:
    clock, told = Clock(), list[Message]()
    deadline = Deadline(15.0, told.append, clock=clock)
    deadline.extend(30.0, "evicting takes about 33 s")
    assert deadline.left_s() == pytest.approx(15 + OVERTIME_S + 30)
    assert deadline.extended_s == 30.0
    assert told == [Notice("evicting takes about 33 s: the run takes about 52 s, beyond --duration 15")]


def test_slow_processors_leave_more_for_what_follows_the_rounds() -> None:
    clock, told = Clock(), list[Message]()
    for start_s, after_s in ((None, AFTER_ROUNDS_S), (2.0, AFTER_ROUNDS_S), (4.5, 4.5)):
        deadline = Deadline(20.0, told.append, started_s=95.0, start_s=start_s, clock=clock)
        assert deadline.after_rounds_s == after_s
        assert deadline.left_s() == pytest.approx(20 + OVERTIME_S - 5)
    assert not told


def test_a_start_that_took_too_long_is_said_and_moves_it() -> None:
    clock, told = Clock(), list[Message]()
    left = []
    for start_s in (MOST_AFTER_S, 7.0, 10.0):  # what is beyond is given to the rounds, which then have time
        deadline = Deadline(20.0, told.append, started_s=100 - start_s, start_s=start_s, clock=clock)
        left.append(deadline.left_s() - deadline.after_rounds_s)
    assert left == pytest.approx([17.0, 19.0, 22.0])
    assert deadline.extended_s == 10.0
    assert told[-1] == Notice(
        "Python took 10 s to start, because the CPUs are slow: the run takes about 37 s, beyond --duration 20"
    )
    assert len(told) == 2


@pytest.mark.parametrize(
    ("bytes_per_s", "seconds"),
    [
        (None, ("50 s", "20 s")),  # `fetch` needs at least 4 steps as long as those of `real`
        (1e9, ("50 s",)),  # but files come at a known rate
        (1e6, ("74 s", "24 s")),  # 6 batches of 4 s
    ],
)
def test_long_steps_are_told_behind_the_first_windows_that_show_them(
    bytes_per_s: float | None, seconds: tuple[str, ...]
) -> None:
    copy = None if bytes_per_s is None else SimpleNamespace(bytes_per_s=bytes_per_s)
    # given windows of 7 steps of 5 s, of an arm without a loader, and 2 workers; 15 s and 7 were asked for
    now, told, done = [0.0], list[Message](), list[Segment]()
    deadline = Deadline(15.0, told.append, 0.0, clock=lambda: now[0])
    measurement: Any = object.__new__(_Measurement)
    vars(measurement).update(
        _deadline=deadline, _case=make_case(workers=2, batch_size=4), _feeds=SimpleNamespace(ram=copy),
        _arms=(Arm.DEVICE, Arm.HOST, Arm.REAL, Arm.FREE, Arm.FETCH),
        _rig=SimpleNamespace(data=SimpleNamespace(sample_page_bytes=1e6)),
    )  # fmt: skip

    def window(arm: Arm, num: int, wall_s: float) -> None:
        table = np.zeros((num, len(STEP_FIELDS)), dtype=np.int64)
        table[:, STEP["returned_ns"]] = table[:, STEP["done_ns"]] = np.arange(num) * 5_000_000_000
        done.append(make_segment(arm, table, num_warmup=2, wall_s=wall_s))
        now[0] += wall_s
        measurement._foresee_the_rest(done, 2.5)

    window(Arm.DEVICE, 7, 35.0)  # at least 4 of its steps, of `host`, and 6 of `real`
    window(Arm.HOST, 4, 20.0)
    window(Arm.REAL, 12, 60.0)  # `free` may be left out
    said = "steps take up to 5 s: the rest of the first round takes"
    assert [str(one.text)[: len(said) + 5] for one in told if isinstance(one, Notice)] == [
        f"{said} {one}" for one in seconds
    ]


def test_an_asked_warm_up_is_part_of_each_window_that_is_foreseen() -> None:
    # given 200 steps of 0.1 s before each window, whose own are 7 here, and 20 s
    now, told = [0.0], list[Message]()
    deadline = Deadline(20.0, told.append, 0.0, clock=lambda: now[0])
    measurement: Any = object.__new__(_Measurement)
    vars(measurement).update(
        _deadline=deadline, _case=make_case(workers=2, warmup=200), _arms=(Arm.DEVICE, Arm.HOST, Arm.REAL, Arm.FETCH),
        _feeds=SimpleNamespace(ram=None),
    )  # fmt: skip
    table = np.zeros((207, len(STEP_FIELDS)), dtype=np.int64)
    table[:, STEP["returned_ns"]] = table[:, STEP["done_ns"]] = np.arange(207) * 100_000_000
    done = [make_segment(Arm.DEVICE, table, num_warmup=200, wall_s=20.7)]
    now[0] = 20.7
    measurement._foresee_the_rest(done, 2.5)
    # then `host` and `real`, of 202 steps each at least; nothing is known yet of an arm without the device
    (notice,) = [str(one.text) for one in told if isinstance(one, Notice)]
    assert notice.startswith(
        "steps take up to 0.1 s, and --warmup asks for 200 in each window: the rest of the first round takes 40 s"
    )
    assert least_steps(make_case(workers=2, warmup=200), fed=True) == 202
    assert least_steps(make_case(workers=2), fed=True) == LEAST_WINDOW + 2


class SlowLoop:
    """Steps of 12 s, by a clock that it moves."""

    def __init__(self, clock: Clock) -> None:
        self.host: list[int] = []
        self._clock = clock

    def run(self, num_steps: int, deadline_ns: int) -> int:
        for number in range(num_steps):
            self.host.append(0)
            self._clock.now += 12.0
            if self._clock.now * 1e9 >= deadline_ns:
                return number + 1
        return num_steps


@pytest.mark.parametrize(("limit_s", "num"), [(None, 60), (100.0, 9)])
def test_a_long_window_gives_signs_of_life(limit_s: float | None, num: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Clock(), list[Message]()
    monkeypatch.setattr(window.time, "perf_counter_ns", lambda: int(clock.now * 1e9))
    windows: Any = object.__new__(Windows)
    windows.report = told.append
    loop: Any = SlowLoop(clock)
    windows._run(loop, 60, sys.maxsize if limit_s is None else int((clock.now + limit_s) * 1e9))
    assert len(loop.host) == num
    total = 60 if limit_s is None else None
    assert told == [StepsDone(done, total) for done in range(3, num, 3)]  # each 30 s, and what the step takes


# -- the start ---------------------------------------------------------------------------------------------


def test_a_slow_start_moves_it_and_says_what_took_how_long() -> None:
    clock, told = Clock(), list[Message]()
    deadline = Deadline(15.0, told.append, started_s=97.0, clock=clock)
    with deadline.phase("list"):
        clock.now += 0.5
    deadline.keep(13.0)  # of 22 s, 3.5 are gone
    assert not told and deadline.left_s() == pytest.approx(18.5)
    with deadline.phase("device"):
        clock.now += 9.0
    deadline.keep(13.0)
    assert deadline.left_s() == pytest.approx(13.0) and deadline.extended_s == pytest.approx(3.5)
    assert deadline.phases == pytest.approx({"imports": 3.0, "list": 0.5, "device": 9.0})
    assert told == [
        Notice(
            "opening the device took 9 s, Python and its imports took 3 s: "
            "the run takes about 26 s, beyond --duration 15"
        )
    ]


def test_the_record_says_why_a_run_took_longer_than_was_promised() -> None:
    def caveats(took_s: float, *why: str, asked: bool = True) -> list[Any]:
        clock = Clock()
        deadline = Deadline(15.0, lambda message: None, clock=clock, asked=asked)
        for one in why:
            deadline.extend(5.0, one)
        clock.now += took_s
        return [(one.code, one.details) for one in deadline.caveats()]

    assert caveats(21.0, "it is slow") == caveats(24.0) == []
    assert caveats(24.0, "it is slow", "very") == [
        ("took_longer", {"seconds": 24.0, "beyond": 9.0, "why": ["it is slow", "very"]})
    ]
    assert caveats(40.0) == [("took_longer", {"seconds": 40.0, "beyond": 25.0, "why": []})]
    assert caveats(40.0, "--steps 64 take long", asked=False) == []  # no time was promised


def test_where_no_limit_was_asked_for_only_the_steps_tell_how_long_it_takes() -> None:
    told = list[Message]()
    deadline = Deadline(60.0, told.append, clock=Clock(), asked=False)
    deadline.extend(30.0, "evicting takes about 39 s")
    deadline.extend(300.0, "--steps 64 of each arm take about 360 s", to_end=True)
    assert told == [
        Notice("evicting takes about 39 s"),
        Notice("--steps 64 of each arm take about 360 s: the run takes about 397 s"),
    ]


def rounds_of(deadline: Deadline, **fields: Any) -> Any:
    """A measurement that has come to its rounds."""
    measurement: Any = object.__new__(_Measurement)
    vars(measurement).update(
        _deadline=deadline, _told_steps=False, _segments=[], _case=make_case(**fields),
        _arms=(Arm.DEVICE, Arm.HOST, Arm.REAL, Arm.FREE, Arm.FETCH),
        _feeds=SimpleNamespace(reads_files=True, ram=None),
        _rig=SimpleNamespace(data=SimpleNamespace(sample_bytes=1e6)),
    )  # fmt: skip
    return measurement


@pytest.mark.parametrize(("cpus", "told"), [(None, None), (1.5, None), (0.3, "24 s more"), (0.5, "9 s more")])
def test_what_a_quota_costs_the_start_is_told_before_it(
    cpus: float | None, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = None if cpus is None else Quota(cpus, Path("cpu.max"), 0.1)
    monkeypatch.setattr("loaderbench.running.deadline.cpu_quota", lambda: quota)
    assert told_before([make_case(steps=8)]) == []  # whatever time that takes
    lines = told_before([make_case()])
    assert len(lines) == (told is not None) and all(str(told) in line for line in lines)


@pytest.mark.parametrize(("gpu", "rounds_s"), [(None, 10.0), (0, 20.0)])
def test_the_rounds_keep_half_of_the_time_whatever_came_before_or_all_if_a_gpu_moves_its_end_once_more(
    gpu: int | None, rounds_s: float
) -> None:
    clock, told = Clock(), list[Message]()
    deadline = Deadline(20.0, told.append, clock=clock)
    measurement = rounds_of(deadline, duration_s=20.0)
    measurement._rig.device = SimpleNamespace(gpu=gpu)
    clock.now += 14.0
    measurement._keep_for_rounds(0.0)  # 13 s are left, and 10 and what follows the rounds are kept
    assert not told
    clock.now += 4.0
    measurement._keep_for_rounds(0.0)
    assert deadline.left_s() == pytest.approx(10.0 + AFTER_ROUNDS_S) and len(told) == 1
    clock.now += 8.0
    measurement._keep_for_rounds(0.0)
    assert deadline.left_s() == pytest.approx(rounds_s + AFTER_ROUNDS_S) and len(told) == 2


@pytest.mark.parametrize(("gpu", "steps"), [(None, 0), (0, 1)])
def test_a_gpu_s_first_step_is_no_window_s(gpu: int | None, steps: int) -> None:
    done: list[Any] = []
    measurement = rounds_of(Deadline(20.0, lambda message: None), arms=(Arm.DEVICE, Arm.REAL))
    batch = SimpleNamespace(inputs="inputs", targets="targets")
    measurement._feeds, measurement._windows = SimpleNamespace(resident=batch), SimpleNamespace(report=lambda one: None)
    measurement._rig = SimpleNamespace(
        device=SimpleNamespace(gpu=gpu, synchronize=lambda: None),
        workload=SimpleNamespace(step=lambda *given: done.append(given)),
    )
    measurement._take_first_step()
    assert done == [("inputs", "targets")] * steps
    assert ("first_step" in measurement._deadline.phases) == bool(steps)


@pytest.mark.parametrize(
    ("image_s", "changes", "seconds"),
    [
        # 2 workers on 2 processors: a batch of 64 each 4 s; two rounds of three in two windows, and one for the ready
        (0.125, {}, 4 * (2 + 2 * 6)),
        (0.125, {"workers": 8, "batch_size": 32}, 2 * (8 + 2 * 16)),  # no more than the processors at once
        (0.06, {}, None),  # 1.92 s: steps as usual
        (None, {}, None),  # a broken image
        (0.125, {"steps": 20}, None),  # takes its time
        (0.125, {"cache": "cold"}, None),  # nothing is in memory to be decoded
    ],
)
def test_slow_preparation_is_told_before_the_loader_starts(
    image_s: float | None, changes: dict[str, Any], seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "image_seconds", lambda context: image_s)
    monkeypatch.setattr(measuring, "usable_cpus", lambda: 2)
    told = list[Message]()
    deadline = Deadline(15.0, told.append, clock=Clock())
    given = {"workers": 2, "batch_size": 64, "duration_s": 15.0, "decoder": "pillow", "cache": "warm"} | changes
    measurement = rounds_of(deadline, **given)
    measurement._arms = (Arm.DEVICE, Arm.HOST, Arm.REAL, Arm.RAM, Arm.FREE, Arm.FETCH)
    measurement._feeds = SimpleNamespace(ram=None, data_of=lambda arm: None, reads_files=True)
    measurement._rig = SimpleNamespace(data=SimpleNamespace(shards=None), context=lambda data, evict: None)
    measurement._foresee_preparation()
    if seconds is None:
        assert not told
        return
    (notice,) = told
    assert isinstance(notice, Notice)
    assert f"needed take {seconds:.0f} s; use a smaller --batch-size for a shorter run: the run takes" in notice.text
    assert deadline.left_s() == pytest.approx(seconds + AFTER_ROUNDS_S)


# -- what windows tell of themselves -----------------------------------------------------------------------


def after(*windows: tuple[Arm, float], strict: bool) -> list[str]:
    """What is said behind windows of 22 steps that last so many seconds, of 64 steps that were asked for."""
    now, told, done = [0.0], list[Message](), list[Segment]()
    deadline = Deadline(60.0, told.append, 0.0, clock=lambda: now[0], asked=not strict)
    measurement = rounds_of(deadline, steps=64, strict_duration=strict)
    deadline._asked = strict
    for arm, wall_s in windows:
        table = np.zeros((24, len(STEP_FIELDS)), dtype=np.int64)
        done.append(make_segment(arm, table, num_warmup=2, wall_s=wall_s))
        now[0] += wall_s
        measurement._foresee_the_rest(done, AFTER_ROUNDS_S)
    return [one.text for one in told if isinstance(one, Notice)]


def test_how_long_a_number_of_steps_takes_is_said_behind_the_first_windows() -> None:
    quick = ((Arm.DEVICE, 1.0), (Arm.HOST, 1.0))
    assert after(*quick, strict=False) == []
    # three rounds of 2 s without a loader, and of three windows of 40 s with one
    assert after(*quick, (Arm.REAL, 40.0), strict=False) == [
        "--steps 64 of each arm take about 366 s: the run takes about 368 s"
    ]
    assert after(*quick, (Arm.REAL, 20.0), (Arm.FREE, 20.0), strict=True) == [
        "--steps 64 of each arm take about 186 s: --duration 60 ends the run earlier"
    ]


def test_the_rate_of_files_is_told_once_two_looks_agree() -> None:
    begun, enough, rates = time.perf_counter(), threading.Event(), list[float]()

    def on_rate(rate: float, passed_s: float) -> bool:
        rates.append(rate)
        if len(rates) == 2:
            enough.set()
        return len(rates) == 2

    with foreseen(on_rate, lambda: int(1e6 * (time.perf_counter() - begun)), look_s=0.02):
        assert enough.wait(20.0)
    assert rates == pytest.approx([1e6, 1e6], rel=0.1)
    with foreseen(lambda rate, passed_s: pytest.fail("nothing is known"), lambda: None, look_s=0.001):
        time.sleep(0.02)


def test_what_looking_at_a_process_reads_is_no_rate_of_files() -> None:
    begun, looks = time.perf_counter(), 0

    def lists_of_the_kernel() -> int:
        nonlocal looks
        looks += 1
        return int(3000 * (time.perf_counter() - begun)) + 10**7

    with foreseen(lambda rate, passed_s: pytest.fail("no file was read"), lists_of_the_kernel, look_s=0.002):
        while looks < 20:
            time.sleep(0.005)


@pytest.mark.parametrize(("arm", "windows", "seconds"), [(Arm.REAL, "2 windows of 16", 192), (Arm.FETCH, "16", 96)])
def test_slow_storage_is_told_while_its_first_window_runs(
    arm: Arm, windows: str, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given 8 workers and batches of 6 MB: a window needs 11 batches, which come in rounds of 8
    clock, told, asked = Clock(), list[Message](), list[Any]()
    monkeypatch.setattr(measuring, "foreseen", asked.append)
    deadline = Deadline(15.0, told.append, clock=clock)
    measurement = rounds_of(deadline, workers=8, batch_size=6, duration_s=15.0)
    measurement._foreseeing(arm, 0)
    (on_rate,) = asked
    clock.now += 3.0
    # when they come at 1 GB/s, then there is time; at 1 MB/s one window takes 96 s
    assert on_rate(1e9, 3.0) is False and not told
    assert on_rate(1e6, 3.0) is True
    (notice,) = told
    assert isinstance(notice, Notice)
    assert notice.text.startswith(f"images come at 1 MB/s, the {windows} batches needed take {seconds} s: ")
    assert deadline.left_s() == pytest.approx(seconds - 3.0 + AFTER_ROUNDS_S)
    # when steps of the device take 4 s, images come no faster, whatever the storage could give
    table = np.zeros((7, len(STEP_FIELDS)), dtype=np.int64)
    table[:, STEP["returned_ns"]] = table[:, STEP["done_ns"]] = np.arange(7) * 4_000_000_000
    measurement._segments.append(make_segment(Arm.DEVICE, table))
    clock.now += seconds
    assert on_rate(1e6, 3.0) is (arm is Arm.FETCH)
    # nothing is foreseen of later rounds, of arms without the storage, and where steps take their time
    measurement._foreseeing(arm, 1)
    measurement._foreseeing(Arm.RAM, 0)
    rounds_of(deadline, steps=20)._foreseeing(arm, 0)
    assert len(asked) == 1
