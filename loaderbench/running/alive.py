"""A rank's signs of life, told while it measures."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loaderbench.recording.progress import Alive, Report
from loaderbench.running.cache import OnDone
from loaderbench.running.loop import StepLoop

EVERY_S = 0.5


class Pulse:
    """Watches what must come to an end: the steps of the loop that runs now, its first batches, and what is done with
    the files between windows."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._loop: StepLoop | None = None
        self._doing, self._since_ns = "", 0
        self._longest_ns: dict[str, int] = {}
        """By what was done. What was done for the first time may have taken long."""

    def begins(self, loop: StepLoop, arm: str) -> None:
        """A window of the arm, and its first batches."""
        self._doing, self._since_ns, self._loop = arm, self._clock(), loop

    def ends(self) -> None:
        """The window."""
        loop, self._loop = self._loop, None
        if loop is not None and len(loop.host) > 1:
            self._took(self._doing, loop.host[1][3] - self._since_ns)
        self._doing = ""

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Something between windows that takes about as long each time."""
        self._doing, self._since_ns = what, self._clock()
        try:
            yield
        finally:
            self._took(what, self._clock() - self._since_ns)
            self._doing = ""

    def seen_in(self, progress: Callable[[str], OnDone]) -> Callable[[str], OnDone]:
        """The same progress of work on files, each of which is a sign of life: how long all of them take is not known
        from the time before, where few were to be done."""

        def of(what: str) -> OnDone:
            told = progress(what)

            def on_done(done: int, total: int) -> None:
                self._since_ns = self._clock()
                told(done, total)

            return on_done

        return of

    def _took(self, what: str, duration_ns: int) -> None:
        self._longest_ns[what] = max(self._longest_ns.get(what, 0), duration_ns)

    @property
    def running(self) -> tuple[StepLoop, str] | None:
        """The loop that runs now, and its arm."""
        loop, doing = self._loop, self._doing
        return None if loop is None else (loop, doing)

    def look(self) -> Alive:
        loop, doing, now = self._loop, self._doing, self._clock()
        host = [] if loop is None else loop.host
        num = len(host)
        if loop is not None and loop.collective is not None and loop.collective.waits:
            return Alive(None, 0.0)  # for another rank, whose fault it is
        if num < 2:
            longest_ns = self._longest_ns.get(doing)
            if longest_ns is None:
                return Alive(None, 0.0)
            since_ns = host[-1][3] if num else self._since_ns
            return Alive((now - since_ns) / 1e9, longest_ns / 1e9)
        ended = [row[3] for row in host[max(0, num - 64) : num]]
        longest = max((after - before for before, after in itertools.pairwise(ended)), default=0)
        return Alive((now - ended[-1]) / 1e9, longest / 1e9)


@contextmanager
def told(report: Report) -> Iterator[Pulse]:
    """Tells every EVERY_S that the process lives, from a thread of its own."""
    pulse, over = Pulse(), threading.Event()

    def tell() -> None:
        while not over.wait(EVERY_S):
            try:
                report(pulse.look())
            except (OSError, SystemExit):  # the supervisor is gone, which the main thread finds out too
                return

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield pulse
    finally:
        over.set()
        thread.join()
