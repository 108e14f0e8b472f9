"""A measuring process: how it is started, and how it and everything in its session are ended.

Without numpy, so that a process can begin with its own imports while the command imports what it needs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from loaderbench import neutral
from loaderbench.images.cache_state import remove_leftovers
from loaderbench.interrupts import interrupts_held
from loaderbench.prefixes import with_prefix
from loaderbench.running.guard import Guard
from loaderbench.temporary import TemporaryFolder

MEASURING = "loaderbench.running.jobs.measure"
"""The module that measures a case: its imports, PyTorch among them, take seconds."""
EARLY_LOG = "early.log"
"""In a process's folder for temporary files: what it prints before it has a log."""
GRACE_S, STUCK_GRACE_S = 5.0, 0.3
"""Seconds that the child gets to end its workers before the whole session is killed; where it was killed and is still
there."""
PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


class Process:
    """A measuring process, which never outlives this object.

    A context manager. Leaving it ends the process and everything in its session.
    """

    process: subprocess.Popen[bytes]
    pipe: Connection[Any, Any]
    """Where its messages and answers come from, for who waits for several processes."""
    started_ns: int
    """By perf_counter_ns."""
    _guard: Guard

    def __init__(self, prefix: Path | None = None) -> None:
        """`prefix`: a folder of packages that come first on the path of the process and its workers
        (loaderbench.prefixes)."""
        self._prefix = prefix
        self._stuck = False
        """It was killed, and is still there."""
        self._temporary: TemporaryFolder | None = None
        """For the sockets of `multiprocessing`, which a killed process would leave behind."""

    def __enter__(self) -> Self:
        started = False
        try:
            with interrupts_held():  # an exception raised within Popen would leave a process without a handle
                self._start()
                started = True
        except (KeyboardInterrupt, SystemExit) as stop:
            if started:
                self.__exit__(type(stop), stop, stop.__traceback__)
            raise
        return self

    def _start(self) -> None:
        raise NotImplementedError

    def _begin(self, log: BinaryIO, ahead: str = "") -> None:
        """Start the process. `log`: where it prints to; `ahead`: the module that it imports before it has a job."""
        # When the child is killed its workers become our children: in a container nobody else may reap them.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.pipe, theirs = Pipe()
        if self._temporary is None:
            with suppress(OSError):  # without a temporary folder only some loaders cannot run, and say so
                self._temporary = TemporaryFolder()
        folder = "" if self._temporary is None else str(self._temporary.path)
        ours = [folder, ahead, str(theirs.fileno()), str(os.getpid())]
        self.started_ns = time.perf_counter_ns()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "loaderbench.running.child", *ours],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=with_prefix(self._prefix, neutral.environment(os.environ)),
            cwd=neutral.FOLDER,
            start_new_session=True,
        )
        theirs.close()
        self._guard = Guard(self.process.pid, None if self._temporary is None else self._temporary.path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Another Ctrl-C only kills the child at once; an exception raised here would leave processes behind.
        with interrupts_held(self.process.kill):
            self.pipe.close()  # the child ends when it next asks for a job
            if kind is None:
                wait(self.process, GRACE_S)
            end_session(self.process, STUCK_GRACE_S if self._stuck else GRACE_S)
            self._guard.end()
            if self._temporary is not None:
                self._temporary.remove()


class Ahead(Process):
    """A measuring process that is started before anything else is ready: it imports what measures a case meanwhile.

    It is given to one Child. Where that never happens it ends with the context.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_ours = False

    def _start(self) -> None:
        with suppress(OSError):  # who needs the process starts it, and says why that cannot be done
            self._temporary = TemporaryFolder()
            with (self._temporary.path / EARLY_LOG).open("ab") as log:
                self._begin(log, MEASURING)
            self._is_ours = True

    def give_to(self, other: Process, log: BinaryIO) -> bool:
        """Let `other` have the process, which prints into `log` from then on. False where there is none to give."""
        if not self._is_ours or self.process.poll() is not None:
            return False
        try:
            reduction.send_handle(self.pipe, log.fileno(), self.process.pid)
        except OSError:  # it has just ended
            return False
        other.process, other.pipe, other.started_ns = self.process, self.pipe, self.started_ns
        other._temporary, other._guard = self._temporary, self._guard
        self._is_ours, self._temporary = False, None
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_ours:
            with interrupts_held(self.process.kill):
                self.process.send_signal(signal.SIGTERM)  # nobody waits for its imports
                super().__exit__(kind, error, trace)
        elif self._temporary is not None:
            self._temporary.remove()


def wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for its end. Returns whether it ended within `seconds`."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def session_members(session: int, *, zombies: bool = False) -> list[int]:
    """Pids of the session's processes (field 6 of /proc/PID/stat, proc(5)), with or without zombies."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # A name may be cut within a letter.
            after_name = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked, or is another user's, whom the system hides (hidepid: proc(5))
        if int(after_name[3]) == session and (zombies or after_name[0] not in "ZX"):
            members.append(int(entry.name))
    return members


def end_session(process: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """End the child and everything in its session: SIGTERM and `grace_s` seconds, then SIGKILL until nothing is left.

    Orphans are reaped, and files that killed processes left in /dev/shm are removed.
    """
    members: set[int] = set()
    if process.poll() is None:
        members.update(session_members(process.pid))
        process.send_signal(signal.SIGTERM)
        wait(process, grace_s)
    deadline = time.monotonic() + grace_s
    # Zombies too: workers may have died with their parent before this search, and leave the same files behind.
    while (left := session_members(process.pid, zombies=True)) and time.monotonic() < deadline:
        members.update(left)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # another process reaps it
                if pid != process.pid:
                    os.waitpid(pid, os.WNOHANG)
        process.poll()
        time.sleep(0.02)
    wait(process, grace_s)
    remove_leftovers()
    for pid in members:  # torch creates a batch's memory file, then unlinks it: a worker killed in between leaves it
        for path in Path("/dev/shm").glob(f"torch_{pid}_*"):
            with suppress(OSError):
                path.unlink()
