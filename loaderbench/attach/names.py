"""Names of functions for threads that are looked at, read from the memory of a process of the same Python binary.

The process is not stopped and runs no code of ours (samplers/stacks.py). For another Python, or without the right to
read its memory, `py-spy dump --nonblocking` is asked where it is installed, now and then; without it there are none.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress

from loaderbench import neutral
from loaderbench.recording.thread_samples import Place
from loaderbench.samplers.stacks import CannotLearn, Frame, Layout, Process, PythonThread, learn
from loaderbench.watching.places import LOADER, OF_LOADER, Spot, spot_of

PY_SPY_GAP_S = 1.0
"""Between two dumps of one process: each takes 50 to 150 ms of a processor."""
PY_SPY_LIMIT_S = 5.0
NEVER_S = -1e9
FULL_NAMES = {name.rpartition(".")[2]: name for name in reversed(OF_LOADER)}

_learned: list[Layout | CannotLearn | OSError] = []


def _layout() -> Layout:
    """Raises CannotLearn, OSError."""
    if not _learned:
        try:
            _learned.append(learn())
        except (CannotLearn, OSError) as error:
            _learned.append(error)
    if isinstance(_learned[0], Exception):
        raise _learned[0]
    return _learned[0]


class Names:
    """Of one job's processes."""

    def __init__(self, pid: int, *, enabled: bool = True) -> None:
        self.problem: str | None = None if enabled else "not asked for"
        self._enabled = enabled
        self._processes: dict[int, Process | None] = {}
        self._threads: dict[tuple[int, int], PythonThread] = {}
        self._spots: dict[tuple[int, ...], tuple[Place, tuple[Frame, ...]]] = {}
        self._py_spy: str | None = None
        self._dumped: dict[int, tuple[float, dict[int, tuple[Frame, ...]]]] = {}
        if enabled and self._process(pid) is None:
            self._py_spy = shutil.which("py-spy")
            if self._py_spy is not None:
                self.problem = None

    def of(self, pid: int, thread: int) -> Place | None:
        """The place of a thread; None: unknown."""
        if not self._enabled:
            return None
        frames = self._dumped_frames(pid, thread) if self._py_spy else self._frames(pid, thread)
        if not frames:
            return None
        key = tuple(map(id, frames))
        known = self._spots.get(key)
        if known is None:
            known = self._spots[key] = (_place(spot_of(frames)), frames)  # kept: no other frame gets its number
        return known[0]

    def waits_for_gil(self, pid: int, lock: int) -> bool:
        """Whether the futex at this address is the GIL's."""
        process = self._processes.get(pid)
        return process is not None and bool(lock) and process.waits_for_gil(lock)

    def _process(self, pid: int) -> Process | None:
        if pid not in self._processes:
            try:
                self._processes[pid] = Process(pid, _layout())
            except (CannotLearn, OSError) as error:
                self._processes[pid] = None
                self.problem = f"{error}; install py-spy for names"
        return self._processes[pid]

    def _frames(self, pid: int, thread: int) -> tuple[Frame, ...]:
        process = self._process(pid)
        if process is None:
            return ()
        known = self._threads.get((pid, thread))
        if known is None:
            for one in process.threads():
                self._threads[pid, one.number] = one
            known = self._threads.get((pid, thread))
        return () if known is None else known.frames()

    def _dumped_frames(self, pid: int, thread: int) -> tuple[Frame, ...]:
        """Of a fresh dump; none between dumps: a place is of one instant."""
        at, _ = self._dumped.get(pid, (NEVER_S, {}))
        if time.monotonic() - at < PY_SPY_GAP_S:
            return ()
        self._dumped[pid] = (time.monotonic(), found := self._dump(pid))
        return found.get(thread, ())

    def _dump(self, pid: int) -> dict[int, tuple[Frame, ...]]:
        assert self._py_spy is not None
        command = [self._py_spy, "dump", "--nonblocking", "--json", "--pid", str(pid)]
        with suppress(OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired):
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=PY_SPY_LIMIT_S, cwd=neutral.FOLDER
            )
            return {
                int(one["os_thread_id"]): tuple(
                    Frame(str(frame["filename"]), _full_name(frame), int(frame["line"] or 0), None)
                    for frame in one["frames"]
                )
                for one in json.loads(done.stdout)
                if one.get("os_thread_id")
            }
        return {}

    def close(self) -> None:
        """May be called twice."""
        for process in self._processes.values():
            if process is not None:
                process.close()
        self._processes.clear()


def _full_name(frame: Mapping[str, object]) -> str:
    """Of a loader's function with its class, which py-spy leaves out."""
    name = str(frame["name"])
    return FULL_NAMES.get(name, name) if LOADER in str(frame["filename"]) else name


def _place(spot: Spot) -> Place:
    return Place(
        spot.file, spot.line, spot.function, spot.callee, "user" if spot.owner == "user" else "library", spot.part,
        tuple(spot.callers),
    )  # fmt: skip
