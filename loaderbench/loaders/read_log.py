"""When each file was read: what the reading threads of a loader tell, kept until a window takes it.

A row is packed into 40 bytes: bytes objects are none of the garbage collector's business, unlike a tuple for each of
100,000 reads. Appending to a deque is atomic, so all threads of a process share one log; a worker process has its own
and sends it with its batches. Costs: benchmarks/loader_rates.py --read-log.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.recording.facts import READ_FIELDS

MOST_KEPT = 1 << 18
"""Rows that are kept where nobody takes them; the oldest go first. 26,000 reads a second for 10 s, 20 MB."""
_PACK = struct.Struct(f"{len(READ_FIELDS)}q").pack
_ROW_BYTES = 8 * len(READ_FIELDS)


class ReadLog:
    """Rows of READ_FIELDS, in the order in which the reads ended. Sent to another process it is empty there."""

    def __init__(self) -> None:
        self._rows: deque[bytes] = deque(maxlen=MOST_KEPT)

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadLog, ()

    def add(self, image: int, begin_ns: int, opened_ns: int, ended_ns: int, num_bytes: int) -> None:
        """One file that was read."""
        self._rows.append(_PACK(image, begin_ns, opened_ns - begin_ns, ended_ns - opened_ns, num_bytes))

    def add_packed(self, rows: bytes) -> None:
        """What another process's `take_packed` gave, or an int64 table's bytes."""
        self._rows.extend(rows[begin : begin + _ROW_BYTES] for begin in range(0, len(rows), _ROW_BYTES))

    def take_packed(self) -> bytes:
        """All rows, as bytes; the log is empty then. Rows that other threads add meanwhile stay for the next call."""
        rows = self._rows
        return b"".join([rows.popleft() for _ in range(len(rows))])

    def take(self) -> NDArray[np.int64]:
        """All rows, [R, len(READ_FIELDS)]; the log is empty then."""
        return np.frombuffer(self.take_packed(), dtype=np.int64).reshape(-1, len(READ_FIELDS))
