"""Keeps Ctrl-C and other signals from interrupting a block of code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interrupts_held(
    on_interrupt: Callable[[], None] | None = None, *, drop: bool = False, others: bool = False
) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP take effect at the end of the block; `on_interrupt` is called when they come.

    `others`: and so do all other signals. `drop`: they have no effect at all, for cleaning up while the exception of an
    earlier one propagates.

    A signal without a Python handler keeps its effect. Outside the main thread, where no signal
    arrives, the block just runs. (A signal mask would not help: another thread, such as a BLAS library's,
    would take the signal, and Python would still run the handler in the main thread.)
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if on_interrupt is not None and number in INTERRUPTS:
            on_interrupt()

    held = {*signal.valid_signals()} if others else INTERRUPTS
    previous = {number: handler for number in held if callable(handler := signal.getsignal(number))}
    for number in previous:
        signal.signal(number, remember)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for one in dict.fromkeys(came) if not drop else ():
            signal.raise_signal(one)
