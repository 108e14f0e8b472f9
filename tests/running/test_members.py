"""Two real members, each with its own process: started together, timed together, and killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loaderbench.cases.case import Step
from loaderbench.running.jobs.table import MemberRequest
from loaderbench.running.members import LATE_NS, MemberFailed, Members

BATCH = 8
STEP = Step("lenet", "infer", "fp32", "cpu:1", BATCH, 28, channels=1)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    log = tmp_path_factory.mktemp("members") / "worker.log"
    with Members([MemberRequest(STEP, 0)] * 2, log, lambda number, message: None) as started:
        yield started


def test_each_has_its_own_threads_and_the_same_outputs_whoever_computes_them(members: Members) -> None:
    assert [one.details["num_threads"] for one in members.open()] == [1, 1]
    members.warm({0: 5, 1: BATCH})
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
    assert turn.num_late > 0 or max(begins) - turn.start_ns <= LATE_NS
    assert turn.seconds == pytest.approx((max(ends) - turn.start_ns) / 1e9)


def test_turns_are_repeated_for_a_time_with_all_at_work(members: Members) -> None:
    begun = time.perf_counter()
    found = members.repeat({0: 2, 1: BATCH}, 0.3)
    assert time.perf_counter() - begun >= 0.3
    for seconds in found.values():
        assert len(seconds) > 3 and (seconds > 0).all() and seconds.sum() <= 0.3


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
