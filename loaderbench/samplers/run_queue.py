"""How long one thread has waited for a processor."""

from __future__ import annotations

import os

UNKNOWN_NS = -1


class RunQueue:
    """Of the thread that makes it, which may be read from any thread of its process while it lives.

    `/proc/thread-self/schedstat`: time on the CPU, time waiting on a run queue (both ns), time slices (kernel
    Documentation/scheduler/sched-stats.rst). Reading takes about 1 µs, most of it the system call.
    """

    def __init__(self) -> None:
        try:
            # The descriptor stays bound to the thread that opened it.
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def text(self) -> bytes:
        """What the kernel tells now, for `ns_of`; empty where it tells nothing."""
        return os.pread(self._fd, 96, 0) if self._fd >= 0 else b""

    def ns(self) -> int:
        """Nanoseconds so far; -1: unknown."""
        return ns_of(self.text())

    def close(self) -> None:
        """May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()  # needed where another library ended the thread


def ns_of(text: bytes) -> int:
    """The nanoseconds in a `RunQueue.text`; -1: unknown."""
    return int(text.split()[1]) if text else UNKNOWN_NS
