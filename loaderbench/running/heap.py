"""Makes every arm's loader treat freed memory alike."""

from __future__ import annotations

import ctypes
import mmap
import statistics
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from loaderbench.originals import os, time

TRIM_BYTES, MMAP_BYTES = 1 << 30, 32 << 20
"""Free memory at the end of the heap from which glibc returns it to the kernel, and sizes that it maps by themselves.
The second is the largest that glibc takes: DEFAULT_MMAP_THRESHOLD_MAX in malloc.c, mallopt(3)."""
VARIABLES = {"MALLOC_TRIM_THRESHOLD_": TRIM_BYTES, "MALLOC_MMAP_THRESHOLD_": MMAP_BYTES}
"""What sets them in a process that starts: mallopt(3)."""
TUNABLES = ("glibc.malloc.trim_threshold", "glibc.malloc.mmap_threshold")
"""Their names in GLIBC_TUNABLES (glibc manual, Memory Allocation Tunables)."""
PROBED_BYTES, ROUNDS = 4 << 20, 9
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let this process, and those that it forks or starts, keep the memory that they free.

    By default it depends on chance, namely on what lies at the end of a process's heap, whether glibc returns the
    memory of each decoded image and the next one faults it in again. Workers of the same loader then differ by up to
    30 % of their CPU time, and so would two arms. Settings of the user's own are left alone: they hold for all arms.
    """
    if _is_set(environment):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return
    mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)
    mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)
    environment.update({name: str(value) for name, value in VARIABLES.items()})


def page_seconds() -> float | None:
    """CPU seconds that a page of memory takes to be given by the kernel, filled with zeros, and given back: what
    returning freed memory costs for each page that is used anew. None where `VARIABLES` change nothing: malloc is not
    glibc's, or this process was started with settings of the user's own."""
    started_with = Path("/proc/self/environ").read_bytes().decode(errors="replace").split("\0")
    if not _is_glibc() or _is_set(dict(one.partition("=")[::2] for one in started_with)):
        return None
    return statistics.median(_once_around() for _ in range(ROUNDS)) / (PROBED_BYTES // mmap.PAGESIZE)


def _is_set(environment: Mapping[str, str]) -> bool:
    tunables = environment.get("GLIBC_TUNABLES", "")
    return any(name in environment for name in VARIABLES) or any(name in tunables for name in TUNABLES)


def _is_glibc() -> bool:
    """Another allocator that was loaded first (LD_PRELOAD) has the name `malloc`."""
    try:
        first, of_glibc = ctypes.CDLL(None).malloc, ctypes.CDLL("libc.so.6").malloc
    except (OSError, AttributeError):
        return False
    return ctypes.cast(first, ctypes.c_void_p).value == ctypes.cast(of_glibc, ctypes.c_void_p).value


def _once_around() -> float:
    """Writing into memory for the first time, less for the second, and giving it back."""
    memory = mmap.mmap(-1, PROBED_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    of_it = (ctypes.c_char * PROBED_BYTES).from_buffer(memory)
    begun = time.thread_time()
    ctypes.memset(of_it, 1, PROBED_BYTES)
    first = time.thread_time()
    ctypes.memset(of_it, 2, PROBED_BYTES)
    second = time.thread_time()
    del of_it
    memory.close()
    return first - begun - (second - first) + time.thread_time() - second
