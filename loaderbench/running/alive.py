"""A rank's signs of life, told while it measures."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from loaderbench.recording.progress import Alive, Report
from loaderbench.running.loop import StepLoop

EVERY_S = 0.5


class Pulse:
    """Watches the loop that runs now."""

    def __init__(self) -> None:
        self.loop: StepLoop | None = None
        """None between windows."""

    def look(self) -> Alive:
        host = [] if self.loop is None else self.loop.host
        num = len(host)
        if num < 2:  # the first batches of a loader may take long
            return Alive(None, 0.0)
        ended = [row[3] for row in host[max(0, num - 64) : num]]
        longest = max((after - before for before, after in itertools.pairwise(ended)), default=0)
        return Alive((time.perf_counter_ns() - ended[-1]) / 1e9, longest / 1e9)


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
