"""The process that samples a watched script and its loader's workers at random times, from outside.

Run by the same Python as the script. It reads their memory (samplers/stacks.py) and their state from /proc: it neither
stops them nor takes their GIL, so that a C call that holds the GIL is seen like any other.

    in, on stdin:    consumer THREAD · worker PID NUMBER LOADER · end
    out, to a file:  `i` its own PID · `x` why it ends · `p` a place, each once · `s` a sample · `c` its CPU nanoseconds
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from loaderbench.samplers.stacks import CannotLearn, Frame, Process, PythonThread, learn
from loaderbench.samplers.thread_states import PRIVATE_LOCK, ThreadFiles
from loaderbench.watching.places import Spot, is_watchs, spot_of

PER_S = 40.0
"""Samples a second at first; the interval of a share of half the time is ± 5 points after 10 s."""
MOST = 600
"""After so many they come the more seldom the longer the script runs, and weigh as much more."""
WORKERS_AT_ONCE = 1
"""Of more workers these many are sampled each time, drawn at random, and weigh as much more."""
REPORT_S = 1.0


class _Sampler:
    def __init__(self, pid: int, out: int) -> None:
        self._layout = learn()
        self._script = Process(pid, self._layout)
        self._out, self._random = out, random.Random(pid)
        self._workers: dict[int, tuple[str, Process]] = {}
        self._consumer: int | None = None
        self._files: dict[tuple[int, int], ThreadFiles] = {}
        self._places: dict[tuple[int, ...], int] = {}
        self._numbers: dict[Spot, int] = {}
        self._kept: list[tuple[Frame, ...]] = []
        self._begun = time.monotonic()
        self._lines: list[str] = []

    def goes_on(self, lines: Sequence[bytes]) -> bool:
        """Whether it does, after what the script says."""
        return all(self._heeds(line.decode()) for line in lines)

    def _heeds(self, line: str) -> bool:
        word, *numbers = line.split()
        if word == "consumer":
            self._consumer, self._begun = int(numbers[0]), time.monotonic()
        elif word == "worker":
            pid = int(numbers[0])
            try:
                self._workers[pid] = " ".join(numbers[1:]), Process(pid, self._layout)
            except (OSError, CannotLearn) as error:
                self._lines.append(f"w worker {numbers[1]}: {error}")
        return word != "end"

    def gap_s(self) -> float:
        """Mean time to the next sample."""
        return max(1 / PER_S, (time.monotonic() - self._begun) / MOST)

    def sample(self, weight: float) -> None:
        now = time.perf_counter_ns()
        self._of_script(now, weight)
        some = list(self._workers.items())
        if len(some) > WORKERS_AT_ONCE:
            weight *= len(some) / WORKERS_AT_ONCE
            some = self._random.sample(some, WORKERS_AT_ONCE)
        for pid, (number, process) in some:
            if not self._of_worker(now, pid, number, process, weight):
                process.close()
                del self._workers[pid]
        self._write()

    def _of_script(self, now: int, weight: float) -> None:
        pid = self._script.pid
        consumer = self._consumer or pid
        for thread in self._script.threads():
            role = "consumer" if thread.number == consumer else f"thread {thread.number}"
            self._look(now, self._script, thread, role, weight, always=thread.number == consumer)

    def _of_worker(self, now: int, pid: int, number: str, process: Process, weight: float) -> bool:
        """Whether it still runs."""
        seen = []
        for thread in process.threads():
            is_main = thread.number == pid
            role = f"worker {number}" if is_main else f"thread {thread.number} {number}"
            seen.append(self._look(now, process, thread, role, weight, always=is_main))
        return any(seen)

    def _look(
        self, now: int, process: Process, thread: PythonThread, role: str, weight: float, *, always: bool
    ) -> bool:
        """Add what a thread does now; of one that need not be sampled `always`, where it runs. Whether it lives."""
        key = process.pid, thread.number
        try:
            files = self._files.get(key)
            if files is None:
                files = self._files[key] = ThreadFiles(*key)
            look = files.look()
        except OSError:
            self._files.pop(key, None)
            return False
        if always or look.state == "running":
            frames = thread.frames()
            if not always and is_watchs(frames):
                return True
            gil = look.detail == PRIVATE_LOCK and process.waits_for_gil(look.lock)
            state = "gil" if gil else look.state
            counters = f"{look.ran_s:.6f} {look.queued_s:.6f}"
            self._add(now, role, state, counters, frames, weight)
        return True

    def _add(self, now: int, role: str, state: str, counters: str, frames: tuple[Frame, ...], weight: float) -> None:
        key = tuple(map(id, frames))
        number = self._places.get(key)
        if number is None:
            self._kept.append(frames)  # so that no other frame gets its number
            place = spot_of(frames)
            number = self._numbers.get(place)
            if number is None:
                number = self._numbers[place] = len(self._numbers)
                self._lines.append(f"p {json.dumps(place)}")
            self._places[key] = number
        self._lines.append(f"s {now} {number} {weight:.6f} {state} {counters} {role}")

    def _write(self) -> None:
        if self._lines:
            os.write(self._out, ("\n".join(self._lines) + "\n").encode())
            self._lines.clear()

    def report(self) -> None:
        self._lines.append(f"c {time.process_time_ns()}")


def sample(pid: int, out: int) -> None:
    """Until the script ends, or says so."""
    os.write(out, f"i {os.getpid()}\n".encode())
    script = os.pidfd_open(pid)
    sampler, drawn, asked = _Sampler(pid, out), random.Random(), b""
    due, reported = time.monotonic(), 0.0
    while True:
        gap_s = sampler.gap_s()
        due = max(due, time.monotonic() - gap_s) + drawn.expovariate(1 / gap_s)
        while (left := due - time.monotonic()) > 0:
            ready, _, _ = select.select([0, script], [], [], left)
            if script in ready:
                return
            if 0 in ready:
                part = os.read(0, 4096)
                *lines, asked = (asked + part).split(b"\n")
                if not part or not sampler.goes_on(lines):
                    return
        if due - reported > REPORT_S:
            reported = due
            sampler.report()
        sampler.sample(gap_s)


def main() -> None:
    pid, out = map(int, sys.argv[1:3])
    if os.fork():  # no child of the script's, which may wait for all of its own
        os._exit(0)
    with suppress(BrokenPipeError):
        try:
            sample(pid, out)
        except (CannotLearn, OSError) as error:
            os.write(out, f"x {error}\n".encode())


if __name__ == "__main__":
    main()
