"""The one budget of a measuring process, on a clock that only the test moves."""

from __future__ import annotations

import pytest

from loaderbench.recording.progress import Message, Notice
from loaderbench.running.deadline import AFTER_ROUNDS_S, COMMAND_S, LATE_S, SLOW_START_S, Deadline

OVERTIME_S = LATE_S - COMMAND_S


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


def test_a_slow_start_leaves_less_for_the_rounds_and_more_for_what_follows_them() -> None:
    clock, told = Clock(), list[Message]()
    quick = Deadline(20.0, told.append, started_s=98.0, start_s=2.0, clock=clock)
    assert (quick.overtime_s, quick.after_rounds_s) == (OVERTIME_S, AFTER_ROUNDS_S)
    slow = Deadline(20.0, told.append, started_s=95.0, start_s=5.0, clock=clock)
    assert (slow.overtime_s, slow.after_rounds_s) == (LATE_S - 5.0, 5.0)
    assert slow.left_s() == pytest.approx(20 + LATE_S - 5 - 5)
    assert not told


def test_a_start_that_took_too_long_is_said_and_moves_it() -> None:
    clock, told = Clock(), list[Message]()
    deadline = Deadline(20.0, told.append, started_s=90.0, start_s=10.0, clock=clock)
    # what the process's start took beyond the longest, and as much of the command's own
    assert deadline.extended_s == pytest.approx(2 * (10.0 - SLOW_START_S))
    assert deadline.left_s() == pytest.approx(20 + LATE_S - SLOW_START_S + 8 - 10)
    assert told == [Notice("this process took 10 s to start: the run takes about 35 s, beyond --duration 20")]
