"""Work on many files, one after the other while they come fast, and on many at once where each waits for a server."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

NUM_THREADS = 32
"""Files that are waited for at once: open, fadvise, copy_file_range and read release the GIL. Servers of files answer
tens of requests side by side; a FUSE daemon by libfuse 10, unless it asks for more."""
SLOW_FILE_S = 0.0002
"""A file that takes longer waits for storage. In a warm cache (7 to 25 µs) threads only share the GIL."""
HICCUP_S = 0.002
"""What a preemption may add before the files count as slow."""
JUDGED = 256
"""Files after which those before are forgotten: the first may have been in memory, and the others not."""


def over_files(
    work: Callable[[T], R],
    files: Iterable[T],
    *,
    until: float = math.inf,
    at_least: int = 0,
    on_done: Callable[[int], None] = lambda num_done: None,
) -> list[R]:
    """What `work` returns of each file, in order.

    No file is begun after `until` (seconds of perf_counter) beyond the first `at_least`: the results are then those of
    the first files. `on_done` is called with the number of files done, by one thread at a time. Raises what `work`
    raises.
    """
    found: list[R] = []
    left, begun, num_before = iter(files), time.perf_counter(), 0
    for one in left:
        found.append(work(one))
        num = len(found)
        on_done(num)
        now = time.perf_counter()
        if now > until and num >= at_least:
            break
        if num - num_before >= JUDGED:
            begun, num_before = now, num
        if now - begun > SLOW_FILE_S * (num - num_before) + HICCUP_S:
            found += _many_at_once(work, left, until, at_least - num, on_done, num)
            break
    return found


def _many_at_once(
    work: Callable[[T], R],
    files: Iterable[T],
    until: float,
    at_least: int,
    on_done: Callable[[int], None],
    num_before: int,
) -> list[R]:
    numbered, lock, stop = enumerate(files), threading.Lock(), threading.Event()
    found: dict[int, R] = {}

    def work_on() -> None:
        while not stop.is_set():
            with lock:
                number, one = next(numbered, (None, None))
                if number is None or (number >= at_least and time.perf_counter() > until):
                    return
            try:
                result = work(one)  # type: ignore[arg-type]
            except BaseException:
                stop.set()  # the other threads finish the file that they are at
                raise
            with lock:
                found[number] = result
                on_done(num_before + len(found))

    with ThreadPoolExecutor(NUM_THREADS, "files") as pool:
        try:
            for future in [pool.submit(work_on) for _ in range(NUM_THREADS)]:
                future.result()
        finally:
            stop.set()  # a signal
    return [found[number] for number in sorted(found)]
