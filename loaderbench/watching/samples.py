"""Starts the process that samples a watched script (sampling_process.py), and reads what it found.

It is no child of the script, which may wait for all of its own, and ends with it. What it finds goes into memory that
both share. Where the kernel allows only named processes to read a process's memory (Yama), the script names it.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from loaderbench.forks import wait_for
from loaderbench.neutral import FOLDER
from loaderbench.originals import os
from loaderbench.recording.thread_samples import Place, SampledThread, SampleRows, State, ThreadSamples
from loaderbench.samplers.thread_states import split_by_counters
from loaderbench.watching.kept import Kept

ROOT = str(Path(__file__).parents[2])
PR_SET_PTRACER, PR_GET_CHILD_SUBREAPER = 0x59616D61, 37
"""prctl(2)."""
START_S = 10.0
CHUNK_BYTES = 1 << 20
BLOCK = 40
"""Samples of a thread whose counters are taken together: a second, at first."""


def start_apart(arguments: Sequence[str], stdin: int, **options: Any) -> None:
    """Start a Python of ours that forks itself and ends, so that its child is none of the script's.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: it cannot be started, or does not end in START_S.
    """
    started = subprocess.Popen(
        [sys.executable, *arguments], stdin=stdin, stderr=subprocess.DEVNULL, cwd=FOLDER, **options
    )
    try:
        started.wait(START_S)
    except subprocess.TimeoutExpired:
        started.kill()
        started.wait()
        raise


def takes_orphans() -> bool:
    """Check if orphaned processes become this one's children, as the sampling process then does (prctl(2))."""
    value = ctypes.c_int(0)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0)
    return os.getpid() == 1 or value.value == 1


class Sampling:
    """The samples of this process and of its loaders' workers."""

    def __init__(self) -> None:
        self.problem: str | None = None
        """Why there are none (any more)."""
        self._owner = os.getpid()
        self._found: Kept | None = None
        self._asks: Kept | None = None
        self._reader = -1
        self._consumer: int | None = None
        try:
            self._start()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.problem = f"its process cannot be started ({error})"

    def _start(self) -> None:
        found = os.memfd_create("loaderbench-samples")
        asked, asks = os.pipe()
        program = (
            f"import sys; sys.path.insert(0, {ROOT!r}); from loaderbench.watching.sampling_process import main; main()"
        )
        try:
            start_apart(
                ["-I", "-S", "-c", program, str(os.getpid()), str(found)], asked, stdout=subprocess.DEVNULL,
                pass_fds=(found,),
            )  # fmt: skip
        finally:
            os.close(asked)
        self._found, self._asks = Kept(found), Kept(asks)

    def consumer(self, thread: int) -> None:
        """Which thread takes the batches, by its number in the kernel."""
        if self._consumer is None and os.getpid() == self._owner:
            self._consumer = thread
            self.allow()
            self._tell(f"consumer {thread}")

    def workers(self, pids: Sequence[int], loader: int) -> None:
        """Of the loader of this number."""
        if os.getpid() == self._owner:
            for number, pid in enumerate(pids):
                self._tell(f"worker {pid} {number} {loader}")

    def allow(self) -> None:
        """Let the sampling process read this one's memory, where the kernel asks for that."""
        if not os.path.exists("/proc/sys/kernel/yama/ptrace_scope"):
            return
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, self.pid, 0, 0, 0)

    @property
    def pid(self) -> int:
        """Of the sampling process; -1 where it is not known."""
        if self._reader < 0:
            self._reader = next((int(line[2:]) for line in self._lines() if line.startswith("i ")), -1)
        return self._reader

    def close(self) -> None:
        """The script has ended."""
        if os.getpid() == self._owner:
            self._tell("end")
            if self.pid > 0:
                wait_for(self.pid)  # of a script that all orphans go to, as the first process of a container

    def samples(self, loader: int) -> ThreadSamples | None:
        """So far: of the script's threads and of one loader's workers. None where there are none."""
        rows = _Rows(loader, self._consumer)
        for line in self._lines():
            rows.add(line)
        self.problem = self.problem or rows.problem
        return rows.end()

    @property
    def cpu_s(self) -> float:
        """Processor time of the sampling process."""
        known = [int(line[2:]) for line in self._lines() if line.startswith("c ")]
        return max(known, default=0) / 1e9

    def _tell(self, line: str) -> None:
        number = None if self._asks is None else self._asks.number
        if number is None:
            return
        with suppress(OSError):  # it has ended, and says why
            os.write(number, f"{line}\n".encode())

    def _lines(self) -> list[str]:
        number = None if self._found is None else self._found.number
        if number is None:
            self.problem = self.problem or "the script closed its file"
            return []
        found = b""
        while part := os.pread(number, CHUNK_BYTES, len(found)):
            found += part
        return found.decode().split("\n")[:-1]  # the last one may not be complete yet


class _Row(NamedTuple):
    time_s: float
    state: State
    weight_s: float
    place: Place


class _Block:
    """Consecutive samples of a thread. The kernel counts a wait for a processor when it ends: so what a thread that is
    ready to run does is known from the counters over many samples, not over one."""

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self._ran_s = self._queued_s = 0.0

    def add(self, row: _Row, ran_s: float, queued_s: float) -> None:
        self.rows.append(row)
        self._ran_s += ran_s
        self._queued_s += queued_s

    def parts(self, state: State) -> tuple[tuple[State, float], ...]:
        return split_by_counters(state, self._ran_s, self._queued_s)


class _Rows:
    """What the lines say."""

    def __init__(self, loader: int, consumer: int | None) -> None:
        self.rows, self._loader = SampleRows(), loader
        self._places: list[Place] = []
        self._threads: dict[str, int | None] = {}
        self._blocks: dict[int, _Block] = {}
        self.problem: str | None = None

    def add(self, line: str) -> None:
        kind, _, rest = line.partition(" ")
        if kind == "p":
            file, at, function, callee, owner, part, callers = json.loads(rest)
            self._places.append(Place(file, at, function, callee, owner, part, tuple(callers)))
        elif kind == "s":
            time_ns, place, weight_s, state, ran_s, queued_s, *role = rest.split()
            thread = self._thread(" ".join(role))
            if thread is not None:
                row = _Row(int(time_ns) / 1e9, state, float(weight_s), self._places[int(place)])  # type: ignore[arg-type]
                self._blocks.setdefault(thread, _Block()).add(row, float(ran_s), float(queued_s))
                if len(self._blocks[thread].rows) == BLOCK:
                    self._end(thread)
        elif kind in ("x", "w"):
            self.problem = rest

    def end(self) -> ThreadSamples | None:
        """All of them; None where there are none."""
        for thread in list(self._blocks):
            self._end(thread)
        return self.rows.samples() if self.rows.threads else None

    def _end(self, thread: int) -> None:
        block = self._blocks.pop(thread)
        for row in block.rows:
            for state, part in block.parts(row.state):
                if part > 0:
                    self.rows.add(row.time_s, thread, state, row.weight_s * part, row.place)

    def _thread(self, role: str) -> int | None:
        """Its number among the threads; None where it is another loader's worker."""
        if role not in self._threads:
            kind, first, *more = (*role.split(), "")
            thread: SampledThread | None
            if kind == "consumer":
                thread = SampledThread("consumer")
            elif kind == "worker":
                thread = SampledThread("worker", int(first)) if int(more[0]) == self._loader else None
            elif len(more) > 1:
                thread = SampledThread("other", int(more[0])) if int(more[1]) == self._loader else None
            else:
                thread = SampledThread("other", None, first)
            self._threads[role] = None if thread is None else self.rows.add_thread(thread)
        return self._threads[role]
