"""When Python's collector of cycles held up a watched script: from the callbacks that Python calls around it."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Mapping
from types import FrameType

import numpy as np

from loaderbench.originals import os, time
from loaderbench.recording.facts import Collections
from loaderbench.watching.places import is_users

LEAST_NS = 200_000
"""A shorter one is no pause: of the youngest objects there are thousands a second."""
MOST = 20_000
"""Pauses that are kept."""


class Collector:
    """The pauses of one process, those of the thread that began it."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int]] = []
        self._places: dict[tuple[str, int, str], int] = {}
        self._begun_ns, self._owner, self._thread = 0, os.getpid(), threading.get_ident()
        gc.callbacks.append(self._called)

    def _called(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._begun_ns = time.perf_counter_ns()
            return
        now = time.perf_counter_ns()
        if now - self._begun_ns >= LEAST_NS and len(self._rows) < MOST and os.getpid() == self._owner:
            self._rows.append((self._begun_ns, now, info["generation"], self._place(sys._getframe().f_back)))

    def _place(self, frame: FrameType | None) -> int:
        """Where the script was, the innermost line of its own."""
        while frame is not None and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return -1
        at = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname
        return self._places.setdefault(at, len(self._places))

    def collections(self) -> Collections | None:
        """So far; None where there was none."""
        if not self._rows:
            return None
        return Collections(np.array(self._rows, dtype=np.int64), tuple(self._places))

    def close(self) -> None:
        """Python calls it no more."""
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)
