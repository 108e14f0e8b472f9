"""The one budget of a measuring process, on a clock that only the test moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import STEP, STEP_FIELDS, Segment
from loaderbench.recording.progress import Message, Notice
from loaderbench.running.deadline import AFTER_ROUNDS_S, MOST_AFTER_S, OVERTIME_S, Deadline
from loaderbench.running.jobs.measure import _Measurement
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
        "Python took 10 s of slow processors to start: the run takes about 37 s, beyond --duration 20"
    )
    assert len(told) == 2


def test_long_steps_are_told_behind_the_first_windows_that_show_them() -> None:
    # given windows of 7 steps of 5 s, of an arm without a loader, and 2 workers; 15 s and 7 were asked for
    now, told, done = [0.0], list[Message](), list[Segment]()
    deadline = Deadline(15.0, told.append, 0.0, clock=lambda: now[0])
    measurement: Any = object.__new__(_Measurement)
    vars(measurement).update(
        _deadline=deadline, _case=make_case(workers=2),
        _arms=(Arm.DEVICE, Arm.HOST, Arm.REAL, Arm.FREE, Arm.FETCH),
    )  # fmt: skip

    def window(arm: Arm, num: int, wall_s: float) -> None:
        table = np.zeros((num, len(STEP_FIELDS)), dtype=np.int64)
        table[:, STEP["returned_ns"]] = table[:, STEP["done_ns"]] = np.arange(num) * 5_000_000_000
        done.append(make_segment(arm, table, num_warmup=2, wall_s=wall_s))
        now[0] += wall_s
        measurement._foresee_the_rest(done, 2.5)

    window(Arm.DEVICE, 7, 35.0)  # at least 4 of its steps, of `host`; nothing is known of the loader's
    window(Arm.HOST, 4, 20.0)
    window(Arm.REAL, 12, 60.0)  # of which `fetch` needs at least 6; `free` may be left out
    said = "steps take up to 5 s: what is left of the first round takes"
    assert [str(one.text)[: len(said) + 5] for one in told if isinstance(one, Notice)] == [
        f"{said} 20 s", f"{said} 30 s",
    ]  # fmt: skip
