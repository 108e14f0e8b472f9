"""How long DALI's operators take: the NVTX ranges that it emits for Nsight, summed by nvtx_times.c in this process."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import NamedTuple

from loaderbench import native
from loaderbench.errors import UnavailableError

VARIABLE = "NVTX_INJECTION64_PATH"
SOURCE = Path(__file__).with_name("nvtx_times.c")
MOST_NAMES = 1024


class _Row(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 96),
        ("count", ctypes.c_uint64),
        ("ns", ctypes.c_uint64),
    )


class LostRanges(Exception):
    """The sums are incomplete."""


class RangeTime(NamedTuple):
    """All ranges of one name that have ended."""

    num_ranges: int
    ns: int
    """Wall time from their begin to their end, ranges within them included."""


def inject() -> str | None:
    """Make libraries report their NVTX ranges to nvtx_times.c, if they emit their first range after this call.

    Returns None, or why that fails: there is no C compiler, or another tool receives the ranges.
    """
    try:
        library = str(native.build(SOURCE))
    except UnavailableError as error:
        return str(error)
    if os.environ.setdefault(VARIABLE, library) != library:
        return f"another tool receives the NVTX ranges: {VARIABLE} is set"
    return None


def read() -> dict[str, RangeTime]:
    """Range name → its time so far in this process. Names come without the range number after ` #`.

    Call it only where `inject` has returned None. Takes about 10 µs.

    Raises:
        LostRanges: the table was full for some ranges, so that sums are too small.
    """
    library = ctypes.CDLL(os.environ[VARIABLE])  # the copy that NVTX has loaded: one table a process
    library.nvtx_times_lost.restype = ctypes.c_uint64
    if num_lost := library.nvtx_times_lost():
        raise LostRanges(f"{num_lost} of DALI's ranges did not fit in the table of their times")
    rows = (_Row * MOST_NAMES)()
    num_rows = library.nvtx_times_read(rows, MOST_NAMES)
    return {row.name.decode(): RangeTime(row.count, row.ns) for row in rows[:num_rows]}
