"""What the thread that makes batches spends: time, processor time, and what its process reads meanwhile."""

from __future__ import annotations

import resource
import threading
from typing import NamedTuple

from loaderbench.originals import os, time
from loaderbench.samplers.connections import Address, connections
from loaderbench.watching.kept import Kept

PAGE = resource.getpagesize()
PLUMBING = ("multiprocessing.", "torch.utils.data.", "loaderbench.")
"""Modules whose threads carry batches, or are ours: what they read is not the data set's."""


class _Own:
    """Of this process."""

    read_bytes = 0
    """That the stopwatches have read themselves, which the kernel counts too."""


class Moment(NamedTuple):
    """What a thread and its process have spent so far."""

    wall_ns: int
    cpu_ns: int
    """Of the process."""
    waited_ns: int
    """In which the thread was runnable but did not run; -1: unknown."""
    pages: int
    """Of memory that the process began to use, less those by which its largest size grew: between two moments, those
    that it had given back and takes anew."""


class Reads(NamedTuple):
    """Counts at one moment."""

    faults: int
    """Major page faults."""
    asked: int | None
    """Bytes of read calls (`rchar` of proc(5)) without our own; None: unknown."""
    plumbing: dict[int, int]
    """Thread → of these, the bytes of one that is plumbing."""
    received: int
    """Bytes over TCP connections."""
    by_peer: dict[Address, int]
    """The same."""


class Spent(NamedTuple):
    """Between two moments."""

    faults: int
    asked: int | None
    """The bytes of read calls, or those over TCP connections, whichever are more: OpenSSL reads the latter by read
    calls, Python's sockets do not. Where a batch is from files and connections, the truth is up to twice as much. None:
    unknown."""
    by_peer: dict[Address, int]


class Stopwatch:
    """Of one process and the thread that makes batches in it; its files are closed with it."""

    def __init__(self) -> None:
        self._schedule = _opened("/proc/thread-self/schedstat")
        self._io = _opened("/proc/self/io")
        self._plumbing: dict[int, Kept] = {}
        """Thread → its counts."""
        self.is_lost = False
        """The script closed its files."""

    def now(self) -> Moment:
        """Without what this itself takes."""
        fields = self._text(self._schedule).split()  # proc(5), schedstat: field 2
        waited, usage = int(fields[1]) if len(fields) == 3 else -1, resource.getrusage(resource.RUSAGE_SELF)
        pages = usage.ru_minflt - usage.ru_maxrss * 1024 // PAGE  # getrusage(2): KiB
        return Moment(time.perf_counter_ns(), time.process_time_ns(), waited, pages)

    def begin(self) -> Reads:
        """The counts before a batch."""
        of = connections()
        received, plumbing = of.count(), self._by_plumbing()
        return Reads(_faults(), self._asked(), plumbing, received, {**of.by_peer})

    def since(self, begun: Reads) -> Spent:
        """What was spent on the batch."""
        asked, of = self._asked(), connections()
        received, faults = of.count() - begun.received, _faults() - begun.faults
        by_peer = {} if not received else {peer: num - begun.by_peer.get(peer, 0) for peer, num in of.by_peer.items()}
        if asked is None or begun.asked is None:
            return Spent(faults, received or None, by_peer)
        more = asked - begun.asked
        if more > 0:
            plumbing = self._by_plumbing()  # read last here, and first in `begin`: never too little is taken off
            if not begun.plumbing.keys() <= plumbing.keys():
                return Spent(faults, received or None, by_peer)
            more -= sum(num - begun.plumbing.get(thread, 0) for thread, num in plumbing.items())
        return Spent(faults, max(more, received, 0), by_peer)

    def _asked(self) -> int | None:
        """Exact between two calls: a read of this file is counted behind what it gives, as are those of others."""
        own, text = _Own.read_bytes, self._text(self._io)
        return _rchar(text, own)

    def _text(self, file: Kept | None) -> bytes:
        """Empty where the kernel has no such file, or the script closed it."""
        number = None if file is None else file.number
        if number is None:
            self.is_lost |= file is not None
            return b""
        try:
            text = os.pread(number, 256, 0)
        except OSError:  # the thread has ended
            return b""
        _Own.read_bytes += len(text)
        return text

    def _by_plumbing(self) -> dict[int, int]:
        """Thread → its bytes of read calls, of those that run now."""
        found, before, self._plumbing = {}, self._plumbing, {}
        for thread in threading.enumerate():
            number = thread.native_id
            if number is None or not _is_plumbing(thread):
                continue
            file = before.pop(number, None) or _opened(f"/proc/self/task/{number}/io")
            asked = _rchar(self._text(file), 0)
            if file is not None and asked is not None:
                self._plumbing[number], found[number] = file, asked
            elif file is not None:
                file.close()
        for file in before.values():
            file.close()
        return found

    def __del__(self) -> None:
        for file in (self._schedule, self._io, *self._plumbing.values()):
            if file is not None:
                file.close()


def _rchar(text: bytes, own: int) -> int | None:
    return int(text.split(None, 2)[1]) - own if text.startswith(b"rchar: ") else None


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _is_plumbing(thread: threading.Thread) -> bool:
    return str(getattr(getattr(thread, "_target", None), "__module__", "")).startswith(PLUMBING)


class _OfThread(threading.local):
    """The stopwatch of each thread."""

    stopwatch: Stopwatch | None = None
    pid = 0


_of_thread = _OfThread()


def stopwatch() -> Stopwatch:
    """This thread's, opened once: a script may make an iterator for each step. One that was inherited by `fork` is of
    the parent's thread."""
    found = _of_thread.stopwatch
    if found is None or found.is_lost or _of_thread.pid != os.getpid():
        found = _of_thread.stopwatch = Stopwatch()
        _of_thread.pid = os.getpid()
    return found


def _opened(path: str) -> Kept | None:
    try:
        return Kept(os.open(path, os.O_RDONLY))
    except OSError:  # a kernel without it: the column says that it is unknown
        return None
