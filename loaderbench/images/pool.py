"""A process pool for work on many files: started fresh (spawn), ended with its parent, whatever ends that."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import ModuleType
from typing import TypeVar

from loaderbench.errors import CaseFailed
from loaderbench.interrupts import interrupts_held
from loaderbench.neutral import SAFE_PATH

Item = TypeVar("Item")
Result = TypeVar("Result")


def num_usable_cpus() -> int:
    """CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _begin_worker() -> None:
    # The parent decides when work stops, although Ctrl-C reaches the whole terminal group. A killed parent
    # cannot tell the worker to stop, so the worker watches for that itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="watch-parent", daemon=True).start()


def _do_chunk(function: Callable[[Item], Result], chunk: Sequence[Item]) -> list[Result]:
    return [function(item) for item in chunk]


@contextmanager
def _for_work_alone() -> Iterator[None]:
    """Processes that are started meanwhile do not run the user's script again, as multiprocessing has it (spawn.py,
    `get_preparation_data`): without a guard in it, it would wait there for the very work that they are started for.
    They import nothing from the current folder, which may be one of images."""
    script, safe_path = sys.modules["__main__"], os.environ.get(SAFE_PATH)
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        del os.environ[SAFE_PATH]
        if safe_path is not None:
            os.environ[SAFE_PATH] = safe_path


def run_parallel(
    function: Callable[[Item], Result], items: Sequence[Item], *, processes: int | None = None, chunk: int = 8
) -> Iterator[list[Result]]:
    """Apply a picklable `function` to every item; yields the results of `chunk` items at a time, in any order.

    With one process (or one chunk) the work is done here. Leaving the iterator early (also by
    KeyboardInterrupt) waits for the chunks already begun and leaves no process behind.

    Raises:
        CaseFailed: a worker process died.
    """
    chunks = [items[begin : begin + chunk] for begin in range(0, len(items), chunk)]
    processes = min(processes or num_usable_cpus(), len(chunks))
    if processes <= 1:
        for part in chunks:
            yield _do_chunk(function, part)
        return
    with _for_work_alone():  # its queues start a process that keeps watch over them
        executor = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin_worker)
    try:
        with interrupts_held():  # a process that is half started would never end
            # The workers inherit the mask: until they ignore Ctrl-C themselves it would print a trace for each.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            with _for_work_alone():
                futures = [executor.submit(_do_chunk, function, part) for part in chunks]
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        raise CaseFailed("a worker process died while working on the images (out of memory?)") from error
    finally:
        with interrupts_held(drop=True):
            executor.shutdown(wait=True, cancel_futures=True)
