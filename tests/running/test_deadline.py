"""The one budget of a measuring process, on a clock that only the test moves."""

from __future__ import annotations

import pytest

from loaderbench.recording.progress import Message, Notice
from loaderbench.running.deadline import OVERTIME_S, Deadline


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
