"""Two real members, each with its own process: started together, timed together, and killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loaderbench.cases.case import Step
from loaderbench.running.jobs.table import MemberRequest
from loaderbench.running.members import LATE_NS, MOST_LATE, MemberFailed, Members

BATCH = 8
STEP = Step("lenet", "infer", "fp32", "cpu:1", BATCH, 28, channels=1)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    log = tmp_path_factory.mktemp("members") / "worker.log"
    with Members([MemberRequest(STEP, 0)] * 2, log, lambda number, message: None) as started:
        yield started


def test_each_has_its_own_threads_and_the_same_outputs_whoever_computes_them(members: Members) -> None:
    assert [one.details["num_threads"] for one in members.open()] == [1, 1]
    parts = members.run({0: (0, 5), 1: (5, 3)}, with_output=True).parts
    whole = members.run({1: (0, BATCH)}, with_output=True).parts[1].output
    assert whole is not None and parts[0].output is not None and parts[1].output is not None
    assert parts[0].output.shape == (5, 10)
    np.testing.assert_allclose(np.concatenate([parts[0].output, parts[1].output]), whole, rtol=1e-5, atol=1e-6)
    assert np.abs(np.diff(whole, axis=0)).max() > 1e-3  # images differ, so that an order could be wrong
    assert members.run({0: (0, 5)}).parts[0].output is None


def test_they_begin_together_and_the_last_one_ends_the_turn(members: Members) -> None:
    before = time.perf_counter_ns()
    turn = members.run({0: (0, 4), 1: (4, 4)})
    after = time.perf_counter_ns()
    begins, ends = ([getattr(part, name) for part in turn.parts.values()] for name in ("begin_ns", "end_ns"))
    assert before < turn.start_ns <= min(begins) and max(ends) < after  # one clock for all processes
    assert turn.is_late == (max(begins) - turn.start_ns > LATE_NS)
    assert turn.seconds == pytest.approx((max(ends) - turn.start_ns) / 1e9)


def test_all_are_at_work_for_the_time_that_is_asked_for(members: Members) -> None:
    begun = time.perf_counter()
    assert all(seconds > 0 for seconds in members.warm({0: (0, 2), 1: (2, 6)}, busy_s=0.1).values())
    assert time.perf_counter() - begun >= 0.1
    begun = time.perf_counter()
    turn = members.run({0: (0, 2), 1: (2, 6)}, busy_s=0.1)
    assert time.perf_counter() - begun >= 0.2  # before the common start, and after it
    assert max(turn.part_seconds(0), turn.part_seconds(1)) == turn.seconds


def test_a_turn_that_is_late_again_and_again_is_told_as_late(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()
    ask = members._ask

    def counted(wanted: Any, requests: Any) -> Any:
        asked.append(wanted.function)
        return ask(wanted, requests)

    monkeypatch.setattr(members, "_ask", counted)
    monkeypatch.setattr("loaderbench.running.members.LATE_NS", -1)  # so that no member is on time
    turn = members.run({0: (0, 4), 1: (4, 4)})
    assert turn.is_late and turn.num_late == MOST_LATE
    assert asked == ["warm_member", "run_part"] * (MOST_LATE + 1)  # a turn that is not timed before each


def test_a_member_that_is_killed_is_told_at_once_and_by_number(tmp_path: Path) -> None:
    with Members([MemberRequest(STEP, 0)] * 2, tmp_path / "log", lambda number, message: None) as started:
        started.open()
        children = [child.process.pid for child in started._children]
        os.kill(children[1], signal.SIGKILL)
        with pytest.raises(MemberFailed, match="killed by SIGKILL") as failed:
            started.run({0: (0, 4), 1: (4, 4)})
    assert failed.value.number == 1 and failed.value.died and not failed.value.lacks_memory
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_member_that_cannot_hold_the_batch_is_left_out_and_the_other_works_on(tmp_path: Path) -> None:
    too_large = replace(STEP, batch_size=10**10)  # images of 31 TB
    asked = [MemberRequest(too_large, 0), MemberRequest(STEP, 0)]
    with Members(asked, tmp_path / "log", lambda number, message: None) as started:
        children = [child.process.pid for child in started._children]
        with pytest.raises(MemberFailed, match="need more than this machine's free memory") as failed:
            started.open()
        assert failed.value.number == 0 and failed.value.cannot_hold_model and not failed.value.lacks_memory
        started.leave_out(0)
        assert [one.details["num_threads"] for one in started.open()] == [1]
        output = started.run({0: (0, 4)}, with_output=True).parts[0].output
        assert output is not None and output.shape == (4, 10)
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_what_a_device_says_of_its_start_is_raised(tmp_path: Path) -> None:
    wrong = MemberRequest(Step("nosuch", "infer", "fp32", "cpu:1", BATCH, 28), 0)
    begun = Members([wrong], tmp_path / "log", lambda number, message: None)
    with begun as started, pytest.raises(MemberFailed, match="nosuch") as failed:
        started.open()
    assert not failed.value.died and failed.value.size == 0 and not failed.value.cannot_hold_model
