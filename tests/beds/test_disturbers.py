"""What takes processors from others takes them, lets go when it is switched off, and does not outlive its owner."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from loaderbench.errors import ConfigError
from loaderbench.selftest.base import clean_leftovers, start_time_ticks
from loaderbench.selftest.disturbers import check_quota, neighbours, quota

HOLD = """
import sys, time
from loaderbench.selftest.disturbers import neighbours, quota
with neighbours(2) as busy:
    busy.turn(on=sys.argv[1] == "on")
    print(*busy.pids, flush=True)
    time.sleep(60)
"""
HOLD_QUOTA = """
import os, time
from loaderbench.selftest.disturbers import quota
with quota(0.5) as limit:
    limit.enter(os.getpid())
    print(limit.group, flush=True)
    time.sleep(60)
"""
WORK = """
import time
begun, cpu = time.monotonic(), time.process_time()
while time.monotonic() < begun + 1.5:
    pass
print((time.process_time() - cpu) / (time.monotonic() - begun))
"""


def cpu_s(pids):
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def wait_until_gone(pids):
    deadline = time.monotonic() + 5
    while any(start_time_ticks(pid) is not None for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [pid for pid in pids if start_time_ticks(pid) is not None] == []
    for pid in pids:  # they are ours to reap where an earlier test made this process the reaper of orphans
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def test_neighbours_work_until_they_are_switched_off_and_again():
    with neighbours(2) as busy:
        used = []
        for on in (True, False, True):
            busy.turn(on=on)
            time.sleep(0.05)
            before = cpu_s(busy.pids)
            time.sleep(0.5)
            used.append(cpu_s(busy.pids) - before)
        assert used[1] == 0 and min(used[0], used[2]) > 0.05  # a share of a machine that others use too
    wait_until_gone(busy.pids)


def test_an_exception_ends_them():
    with pytest.raises(ZeroDivisionError), neighbours(2) as busy:
        raise ZeroDivisionError
    wait_until_gone(busy.pids)


@pytest.mark.parametrize("state", ["on", "off"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_they_end_with_their_owner_even_while_stopped(start_owner, number, state):
    owner, words = start_owner(HOLD, state)
    pids = [int(word) for word in words]
    assert len(pids) == 2 and all(start_time_ticks(pid) is not None for pid in pids)
    owner.send_signal(number)
    owner.wait()
    wait_until_gone(pids)


def test_one_that_comes_too_late_does_not_stay():
    # given a parent that is gone before the process could ask for its own end
    script = Path(neighbours.__wrapped__.__code__.co_filename).with_name("busy_process.py")
    done = subprocess.run([sys.executable, str(script), "1"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and "is gone" in done.stderr


@pytest.mark.parametrize(("make", "amount"), [(neighbours, 0), (quota, 0.0)])
def test_nothing_is_no_disturber(make, amount):
    with pytest.raises(ConfigError), make(amount):
        pass


@pytest.fixture
def _can_limit(require_bed):
    require_bed(check_quota)


@pytest.mark.bed
@pytest.mark.alone
@pytest.mark.usefixtures("_can_limit")
def test_a_quota_holds_for_a_command_and_its_children_and_is_lifted():
    with quota(0.25) as limit:
        command = [*limit.command_prefix, "sh", "-c", f'"{sys.executable}" -c "$0"', WORK]
        limited = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        limit.turn(on=False)
        free = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        limit.turn(on=True)
        again = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert limited == pytest.approx(0.25, abs=0.08) and again == pytest.approx(0.25, abs=0.08)
    assert free > 1.5 * limited
    assert not Path(limit.group).exists()


@pytest.mark.bed
@pytest.mark.usefixtures("_can_limit")
def test_the_group_of_a_killed_owner_is_removed_by_the_next(start_owner):
    owner, (group,) = start_owner(HOLD_QUOTA)
    assert Path(group, "cgroup.procs").read_text().split() == [str(owner.pid)]
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    assert f"removed quota, which process {owner.pid} left" in clean_leftovers()
    assert not Path(group).exists()


@pytest.mark.bed
@pytest.mark.usefixtures("_can_limit")
def test_a_process_in_the_group_is_given_back():
    child = subprocess.Popen(["sleep", "60"])
    try:
        with quota(0.5) as limit:
            limit.enter(child.pid)
            assert str(child.pid) in Path(limit.group, "cgroup.procs").read_text().split()
        assert child.poll() is None and not Path(limit.group).exists()
    finally:
        child.kill()
        child.wait()
