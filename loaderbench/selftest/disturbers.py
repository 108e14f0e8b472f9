"""What takes processors from a run: busy processes beside it, and a cgroup's quota. Both can be switched.

A disturber is plain values, so that the stopwatch, in the measuring process, can switch it off for one side of a
comparison and on again for the other. What it leaves behind when its owner is killed: busy processes die with the
thread that started them; a group is removed by the next process that enters a bed (selftest/base.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loaderbench import neutral
from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.interrupts import interrupts_held
from loaderbench.selftest import cgroups
from loaderbench.selftest.base import workspace

PERIOD_US = 100_000
"""Of a quota: the kernel's own default (Documentation/scheduler/sched-bwc.rst)."""
LEAST_CPUS = 0.01
"""The kernel takes no quota below 1 ms a period (same place)."""


@dataclass(frozen=True)
class Neighbours:
    """Busy processes, one processor each."""

    pids: tuple[int, ...]

    def turn(self, *, on: bool) -> None:
        """Let them work, or stop them. They begin working."""
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT if on else signal.SIGSTOP)

    def enter(self, pid: int) -> None:
        """Nothing: they work beside any process."""

    @property
    def command_prefix(self) -> list[str]:
        """Empty, as `enter`."""
        return []


@dataclass(frozen=True)
class Quota:
    """A group whose processes together get so many processors."""

    group: str
    """Its folder."""
    cpus: float
    file: str
    """In the folder: what holds the limit."""
    limit: str
    no_limit: str

    def turn(self, *, on: bool) -> None:
        """Set the limit, or lift it. It begins set."""
        Path(self.group, self.file).write_text(self.limit if on else self.no_limit)

    def enter(self, pid: int) -> None:
        """Put a process into the group, before it starts workers: later children are in it too."""
        cgroups.enter(self.group, pid)

    @property
    def command_prefix(self) -> list[str]:
        """Put before a command, this starts the command inside the group."""
        return cgroups.command_prefix(self.group)


Disturber = Neighbours | Quota


@contextlib.contextmanager
def neighbours(number: int) -> Iterator[Neighbours]:
    """So many processes that each keep a processor busy.

    Enter it in a thread that outlives them: they end with the thread that started them.

    Raises:
        ConfigError: fewer than one.
        UnavailableError: one does not start.
    """
    if number < 1:
        raise ConfigError(f"neighbours must be 1 or more, not {number}")
    script = str(Path(__file__).with_name("busy_process.py"))
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(number):
            with interrupts_held():  # an exception raised within Popen would leave a process without a handle
                started.append(
                    subprocess.Popen(
                        [sys.executable, "-I", "-S", script, str(os.getpid())],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        cwd=neutral.FOLDER,
                    )
                )
        for one in started:
            assert one.stdout is not None
            if one.stdout.readline() != b"busy\n":
                raise UnavailableError("a busy process did not start")
        yield Neighbours(tuple(one.pid for one in started))
    finally:
        with interrupts_held():
            for one in started:
                one.kill()
                one.communicate()


def check_quota() -> cgroups.Controller:
    """The hierarchy in which quotas can be set.

    Raises:
        UnavailableError: there is none.
    """
    found = cgroups.find_controller("cpu", "cpu")
    if found is None:
        raise UnavailableError("no cgroup v1 or v2 cpu controller is mounted, so no quota can be set")
    if not os.access(found.root, os.W_OK):
        raise UnavailableError(
            f"a quota needs a writable {found.root}: run as root (in a container, give it a writable cgroup)"
        )
    return found


@contextlib.contextmanager
def quota(cpus: float) -> Iterator[Quota]:
    """A cgroup of which all processes together get `cpus` processors' time.

    Raises:
        UnavailableError: what the machine lacks (see `check_quota`).
        ConfigError: fewer than LEAST_CPUS.
    """
    if cpus < LEAST_CPUS:
        raise ConfigError(f"a quota must be at least {LEAST_CPUS} CPUs, not {cpus}")
    controller = check_quota()
    with workspace("quota") as resources:
        group = cgroups.make_group(controller, resources)
        microseconds = round(cpus * PERIOD_US)
        made = Quota(group, cpus, "cpu.max", f"{microseconds} {PERIOD_US}", f"max {PERIOD_US}")
        if controller.version == 1:  # its period is PERIOD_US from the beginning
            made = Quota(group, cpus, "cpu.cfs_quota_us", str(microseconds), "-1")
        if not Path(group, made.file).exists():
            raise UnavailableError("the kernel has no CPU quotas (CONFIG_CFS_BANDWIDTH is off)")
        made.turn(on=True)
        yield made
