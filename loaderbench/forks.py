"""What a forked process must not do with the garbage of its parent: tensors of CUDA may be in it. Their end calls the
driver, which refuses forked processes, and aborts them (rwth-i6/returnn issue 1494)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
    """First thing in the new process: it collects its own garbage, and nothing that it inherited."""
    gc.freeze()
    gc.enable()
