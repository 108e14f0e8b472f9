"""Whether a session of processes waits for a file system that does not answer: a thread stays in one system call.

/proc/PID/task/TID/syscall names the call that a thread is in (proc(5)), and the number of its context switches tells
that it is still the same one. Both are told by the kernel, whatever the thread holds.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from loaderbench.running.process import session_members

CALLS = {
    "x86_64": {
        0: "read", 2: "open", 4: "stat", 6: "lstat", 17: "pread64", 19: "readv", 217: "getdents64", 221: "fadvise64",
        257: "openat", 262: "newfstatat", 295: "preadv", 327: "preadv2", 332: "statx", 451: "cachestat",
    },
    "aarch64": {
        56: "openat", 61: "getdents64", 63: "read", 65: "readv", 67: "pread64", 69: "preadv", 79: "newfstatat",
        223: "fadvise64", 286: "preadv2", 291: "statx", 451: "cachestat",
    },
}  # fmt: skip
"""System calls on files, by machine (unistd.h)."""
BY_PATH = ("open", "stat", "lstat", "openat", "newfstatat", "statx")
"""Those whose first argument is no open file."""
FAULT = "a page of a file"


@dataclass(frozen=True)
class FileWait:
    """The longest of a session."""

    seconds: float
    call: str


class FileWaits:
    """Looks at a session again and again. Each look costs a walk over /proc."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls = CALLS.get(platform.machine(), {})
        self._since: dict[tuple[int, str], float] = {}

    def look(self, session: int) -> FileWait | None:
        """None where no thread waits for a file."""
        now, before = self._clock(), self._since
        found: dict[tuple[int, str], float] = {}
        longest: FileWait | None = None
        for pid in session_members(session):
            for thread, call, key in self._waiting(pid):
                since = found[thread, key] = before.get((thread, key), now)
                if longest is None or now - since > longest.seconds:
                    longest = FileWait(now - since, call)
        self._since = found
        return longest

    def _waiting(self, pid: int) -> list[tuple[int, str, str]]:
        """(thread, call, what changes with the next call) of those that are in a call on a file."""
        waiting = []
        try:
            threads = sorted(Path(f"/proc/{pid}/task").iterdir())
        except OSError:  # it ended meanwhile
            return []
        for folder in threads:
            try:
                said = (folder / "syscall").read_text().split()
                call = self._call_of(pid, folder, said)
                if call is not None:
                    switches = [line for line in (folder / "status").read_text().splitlines() if "ctxt" in line]
                    waiting.append((int(folder.name), call, " ".join([*said, *switches])))
            except OSError:  # the thread ended, or the kernel does not tell
                continue
        return waiting

    def _call_of(self, pid: int, folder: Path, said: list[str]) -> str | None:
        if not said or said[0] == "running":
            return None
        if said[0] == "-1":  # in no call: a page fault, if it waits in the kernel
            return FAULT if (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "D" else None
        call = self._calls.get(int(said[0]))
        if call is None or call in BY_PATH:
            return call
        where = Path(f"/proc/{pid}/fd/{int(said[1], 16)}").readlink()  # a name: the file system is not asked
        return call if where.is_absolute() and where.parts[1:2] != ("dev",) else None
