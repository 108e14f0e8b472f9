"""Start our own processes next to a script, and protect a forked process from its parent's garbage: tensors
of CUDA may be in it. Their end calls the driver, which refuses forked processes, and aborts them (rwth-i6/returnn issue
1494)."""

from __future__ import annotations

import gc
import select
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from loaderbench.originals import os

WORD = 8
"""Bytes of a number in a pipe."""


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Around the fork: no garbage is collected until the new process calls `leave_garbage`."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def leave_garbage() -> None:
    """Call this first in the new process: it then collects only its own garbage."""
    gc.freeze()
    gc.enable()


def apart(serve: Callable[[], NoReturn]) -> int:
    """Fork a child's child, whose parent has ended: a script that waits for all of its children never waits for it.
    What `serve` raises does not return into the script's code. Its process number; 0 where there is none."""
    told, tell = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child runs nothing of the other threads'
        with collector_at_rest():
            child = os.fork()
            if not child:
                leave_garbage()
    if not child:
        try:
            own = os.fork()
            if own:
                os.write(tell, own.to_bytes(WORD, "little"))
            else:
                os.close(told)
                os.close(tell)
                serve()
        finally:
            os._exit(0)
    os.close(tell)
    wait_for(child)
    number = int.from_bytes(os.read(told, WORD), "little")
    os.close(told)
    return number


def wait_for(pid: int) -> None:
    """Until a child has ended; at once where it is none, or where the script waited for all of its children."""
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def pidfd_of(pid: int) -> int | None:
    """None where it has ended, or the kernel knows none (before Linux 5.3)."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def end_with(pidfd: int) -> NoReturn:
    """End this process as soon as that one ends, whatever its other threads do."""
    select.select([pidfd], [], [])
    os._exit(0)
