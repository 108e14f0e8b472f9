"""Makes every arm's loader treat freed memory alike."""

from __future__ import annotations

import ctypes
import os
from collections.abc import MutableMapping

TRIM_BYTES, MMAP_BYTES = 1 << 30, 32 << 20
"""Free memory at the end of the heap from which glibc returns it to the kernel, and sizes that it maps by themselves.
The second is the largest that glibc takes: DEFAULT_MMAP_THRESHOLD_MAX in malloc.c, mallopt(3)."""
VARIABLES = {"MALLOC_TRIM_THRESHOLD_": TRIM_BYTES, "MALLOC_MMAP_THRESHOLD_": MMAP_BYTES}
"""What sets them in a process that starts: mallopt(3)."""
TUNABLES = ("glibc.malloc.trim_threshold", "glibc.malloc.mmap_threshold")
"""Their names in GLIBC_TUNABLES (glibc manual, Memory Allocation Tunables)."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let this process, and those that it forks or starts, keep the memory that they free.

    By default it depends on chance, namely on what lies at the end of a process's heap, whether glibc returns the
    memory of each decoded image and the next one faults it in again. Workers of the same loader then differ by up to
    30 % of their CPU time, and so would two arms. Settings of the user's own are left alone: they hold for all arms.
    """
    tunables = environment.get("GLIBC_TUNABLES", "")
    if any(name in environment for name in VARIABLES) or any(name in tunables for name in TUNABLES):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return
    mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)
    mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)
    environment.update({name: str(value) for name, value in VARIABLES.items()})
