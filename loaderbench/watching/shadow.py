"""A shadow reader: a process of its own that reads samples of a script's data set which were not read yet, and at once
again. The first time they come from the storage, the second time from memory: the difference is the storage's.

It is forked from the script where its loader is first iterated, as the loader's own workers are; so nothing of the
script runs again, and its random state, its loader and its order stay untouched. It is a child's child, whose parent
has ended, so that a script which waits for all of its children never waits for it; and it ends with the script. It has
the lowest priority, reads one sample at a time, rests for several times as long as a sample took, and evicts what its
reads brought into memory.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from loaderbench.forks import WORD, apart, end_with, pidfd_of, wait_for
from loaderbench.images.cache_state import evict, residency
from loaderbench.originals import os, time
from loaderbench.recording.facts import ShadowRead
from loaderbench.watching.kept import Kept
from loaderbench.watching.own_files import as_its_own
from loaderbench.watching.seen import reference_to
from loaderbench.watching.stopwatch import Stopwatch

MOST_READS = 200
FIRST_READS, FIRST_RESTS, RESTS = 16, 3, 9
"""Rests are so many times as long as a sample took, shorter behind the first ones; and LEAST_REST_S at least."""
LEAST_REST_S = 0.02
MOST_EVICTED_BYTES = 16 << 20
"""Of a file. A larger one holds many samples, and the script's own reads may be in memory."""
GONE = 0.01
"""A file of which more was in memory before is left there: the script read it, or may have."""
TRIES = 200


class Shadow:
    """As the script's thread sees it. Nothing here waits for the reader."""

    def __init__(self, dataset: Any, num_samples: int) -> None:
        self._data = reference_to(dataset) or (lambda: dataset)  # one that is left by its script may go
        self._num_samples = num_samples
        self.reads: list[ShadowRead] = []
        self.problem: str | None = None
        """Why it reads no more."""
        self._taken: set[int] = set()
        self._random = random.Random(0)
        self._due_ns, self._asked, self._answer = 0, False, b""
        begun, script = time.perf_counter_ns(), pidfd_of(os.getpid())
        requests, ours = os.pipe()
        theirs, answers = os.pipe()
        self._requests, self._answers = Kept(ours), Kept(theirs)

        def serve() -> NoReturn:
            self._requests.close()
            self._answers.close()
            _serve(dataset, requests, answers, script)

        self._pid = apart(serve)
        for descriptor in (requests, answers, script):
            if descriptor is not None:
                os.close(descriptor)
        reader = pidfd_of(self._pid) if self._pid else None
        self._reader = None if reader is None else Kept(reader)
        self._is_open = True
        os.set_blocking(theirs, False)
        self.start_ns = time.perf_counter_ns() - begun

    def is_over(self, dataset: object) -> bool:
        return self._data() is dataset

    def took(self, index: Any) -> None:
        """The script's loader asked its workers for these samples."""
        if self.problem is not None:
            return
        try:
            self._taken.update(index if isinstance(index, list | tuple) else (index,))
        except TypeError:
            self._stop("the loader's samples have no numbers")

    def tick(self, now: int) -> None:
        """Between two steps: take an answer, or ask for the next sample where it is time."""
        if self.problem is not None or now < self._due_ns:
            return
        requests, answers = self._requests.number, self._answers.number
        if requests is None or answers is None:
            self._stop("the script closed its pipes")
            return
        try:
            if self._asked:
                self._take(answers)
            else:
                self._ask(requests)
        except OSError as error:
            self._stop(f"the reader has ended ({error.strerror})")

    def close(self) -> None:
        """The script has ended."""
        if self._is_open:
            self._stop("the script ended")

    def _ask(self, requests: int) -> None:
        for _ in range(TRIES):
            number = self._random.randrange(self._num_samples)
            if number not in self._taken:
                break
        else:
            self._stop("the script had read nearly all samples")
            return
        self._taken.add(number)
        os.write(requests, number.to_bytes(WORD, "little"))
        self._asked = True

    def _take(self, answers: int) -> None:
        try:
            part = os.read(answers, 1 << 16)
        except BlockingIOError:
            return
        self._answer += part
        if not part:
            self._stop("the reader has ended")
        elif self._answer.endswith(b"\n"):
            answer, self._answer, self._asked = json.loads(self._answer), b"", False
            if "error" in answer:
                self._stop(answer["error"])
                return
            self.reads.append(read := ShadowRead(**answer))
            times = FIRST_RESTS if len(self.reads) < FIRST_READS else RESTS
            rest_s = max(LEAST_REST_S, times * (read.cold_ns + read.warm_ns) / 1e9)
            self._due_ns = time.perf_counter_ns() + round(rest_s * 1e9)
            if len(self.reads) >= MOST_READS:
                self._stop(None)

    def _stop(self, why: str | None) -> None:
        self.problem = why or "it has read enough"
        self._taken.clear()
        if not self._is_open:
            return
        self._is_open = False
        self._requests.close()  # without more requests it ends by itself
        self._answers.close()
        reader = None if self._reader is None else self._reader.number
        if reader is not None and is_of(reader, self._pid):
            with suppress(ProcessLookupError):  # it has ended
                signal.pidfd_send_signal(reader, signal.SIGKILL)
            os.close(reader)
            wait_for(self._pid)  # of a script that all orphans go to, as the first process of a container


def is_of(pidfd: int, pid: int) -> bool:
    """Whether this is a pidfd of that process: before Linux 6.9 the inode does not tell."""
    try:
        told = Path(f"/proc/self/fdinfo/{pidfd}").read_text().split()
    except OSError:
        return False
    return "Pid:" in told and told[told.index("Pid:") + 1] in (str(pid), "-1")  # -1: it has ended


# -- the reader -----------------------------------------------------------------------------------------------


def _serve(dataset: Any, requests: int, answers: int, script: int | None) -> NoReturn:
    """The reader's whole life; nothing of it returns to the script. `script`: pidfd of the script."""
    try:
        if script is not None:
            threading.Thread(target=end_with, args=(script,), daemon=True).start()
        os.nice(19)
        as_its_own(keep=(requests, answers) if script is None else (requests, answers, script))
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)
        reader = _Reader(dataset)
        while number := os.read(requests, WORD):
            os.write(answers, _answer(reader, int.from_bytes(number, "little")) + b"\n")
    except BaseException:  # nothing may come back into the script; its end tells the other side
        os._exit(1)
    os._exit(0)


def _answer(reader: _Reader, number: int) -> bytes:
    try:
        return json.dumps(reader.read(number)).encode()
    except Exception as error:  # a data set may raise anything
        return json.dumps({"error": f"sample {number}: {type(error).__name__}: {error}"[:300]}).encode()


class _Reader:
    """Reads samples, and sees which files that opens."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._watch = dataset, Stopwatch()
        self._opened: dict[str, float | None] | None = None
        """Path → the part of it that was in memory before; None: nothing is watched now."""
        self._looking_ns = 0
        sys.addaudithook(self._audit)

    def read(self, number: int) -> dict[str, Any]:
        states = _random_states()
        opened: dict[str, float | None] = {}
        self._looking_ns = 0
        cold_ns, _, read_bytes = self._timed(number, opened)
        cold_ns -= self._looking_ns
        for restore in states:
            restore()
        warm_ns, warm_cpu_ns, _ = self._timed(number, None)
        known = [part for part in opened.values() if part is not None]
        return {
            "cold_ns": max(0, cold_ns),
            "warm_ns": warm_ns,
            "warm_cpu_ns": warm_cpu_ns,
            "read_bytes": read_bytes,
            "num_files": len(opened),
            "num_evicted": sum(_evicted(path, part) for path, part in opened.items()),
            "in_memory_before": sum(known) / len(known) if known else None,
        }

    def _timed(self, number: int, opened: dict[str, float | None] | None) -> tuple[int, int, int]:
        """(ns in which it ran or waited for anything but a processor, processor ns, bytes that it asked for)

        `opened`: gets the files that the sample opens; those of the stopwatch are none of these.
        """
        counts = self._watch.begin()
        begun = self._watch.now()
        self._opened = opened
        try:
            self._dataset[number]
        finally:
            self._opened = None
        ended = self._watch.now()
        read_bytes, queued_ns = self._watch.since(counts).asked or 0, max(0, ended.waited_ns - begun.waited_ns)
        return ended.wall_ns - begun.wall_ns - queued_ns, ended.cpu_ns - begun.cpu_ns, read_bytes

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or self._opened is None:
            return
        path, _, flags = arguments
        if not isinstance(path, str) or path in self._opened or not isinstance(flags, int) or flags & os.O_ACCMODE:
            return
        begun, opened = time.perf_counter_ns(), self._opened
        self._opened = None  # looking opens it too
        if Path(path).is_file():
            opened[path] = residency([path]).fraction
        self._opened = opened
        self._looking_ns += time.perf_counter_ns() - begun


def _evicted(path: str, in_memory_before: float | None) -> bool:
    """Drop what the read brought into memory. Whether it was dropped."""
    if in_memory_before is None or in_memory_before > GONE or Path(path).stat().st_size > MOST_EVICTED_BYTES:
        return False
    evict(path)
    return True


def _random_states() -> list[Callable[[], object]]:
    """What brings each generator back to where it is now, so that a sample is augmented alike twice."""
    state = random.getstate()
    found: list[Callable[[], object]] = [lambda: random.setstate(state)]
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        of_numpy = numpy.random.get_state()
        found.append(lambda: numpy.random.set_state(of_numpy))
    if torch is not None:
        of_torch = torch.get_rng_state()
        found.append(lambda: torch.set_rng_state(of_torch))
    return found
