"""How fast files come while the first windows over a storage run: what takes minutes is said within seconds."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loaderbench.samplers.process_io import tree_io

LOOK_S = 1.5
"""Between two looks. Windows of usual length are over before the second, and modules are loaded before the first."""
ALIKE = 1.5
"""Two rates that differ by no more agree: the loader has started, and reads."""
LEAST_READ, LEAST_RATE = 100_000, 20_000.0
"""Bytes, and bytes a second, of files: modules are read too, and lists of the kernel with each look at a process, of
which there are 3 kB a second at most."""


def bytes_asked_for() -> int | None:
    """What read calls of this process and its workers returned until now; None where the kernel does not tell."""
    return tree_io(os.getpid(), "rchar")


@contextmanager
def foreseen(
    on_rate: Callable[[float, float], bool],
    asked_for: Callable[[], int | None] = bytes_asked_for,
    look_s: float = LOOK_S,
) -> Iterator[None]:
    """While the block runs, tell at which rate files come since the first look, from a thread that sleeps between them.

    `on_rate(bytes a second, seconds since the begin)` is called behind each look whose rate agrees with that of the
    look before, until it returns True.
    """
    over, begun_s = threading.Event(), time.perf_counter()

    def watch() -> None:
        first: tuple[float, int] | None = None
        before = 0.0
        while not over.wait(look_s):
            now_s, now = time.perf_counter(), asked_for()
            if now is None:
                return
            if first is None:
                first = now_s, now
                continue
            rate = (now - first[1]) / (now_s - first[0])
            if now - first[1] < LEAST_READ or rate < LEAST_RATE:
                rate = 0.0
            if rate and before and max(rate, before) <= ALIKE * min(rate, before) and on_rate(rate, now_s - begun_s):
                return
            before = rate

    thread = threading.Thread(target=watch, name="loaderbench-foresight", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
