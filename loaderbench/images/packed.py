"""Arrays in one file that any number of processes map: all of them use one copy of its pages."""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from loaderbench.plain import JsonObject

ALIGNMENT = 64
"""Each array begins at a multiple of this many bytes in the file, so that items of every type are aligned."""
CRC_BYTES = 4


def _padding(num_bytes: int) -> int:
    return -num_bytes % ALIGNMENT


def write_packed(file: BinaryIO, facts: Mapping[str, object], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write `facts` (what JSON can hold) and flat `arrays` to the start of an empty file.

    One line of JSON padded with spaces, each array's bytes (this machine's byte order) padded with zeros, and
    the CRC-32 of all that comes before it.
    """
    kinds = {name: [array.dtype.str, len(array)] for name, array in arrays.items()}
    head = json.dumps({"facts": facts, "arrays": kinds}).encode()
    crc = 0
    for part in (head, b" " * _padding(len(head) + 1) + b"\n"):
        crc = zlib.crc32(part, crc)
        file.write(part)
    for array in arrays.values():
        for content in (array.data, bytes(_padding(array.nbytes))):
            crc = zlib.crc32(content, crc)
            file.write(content)
    file.write(crc.to_bytes(CRC_BYTES, "little"))
    file.flush()


def map_packed(descriptor: int, *, check: bool) -> tuple[JsonObject, dict[str, NDArray[Any]], mmap.mmap]:
    """(facts, read-only arrays, the mapping) of an open file that `write_packed` wrote.

    The arrays keep the mapping alive. `check` reads the whole file (65 MB: 30 ms).

    Raises:
        ValueError: the file is damaged or cut short.
        OSError: it cannot be mapped.
    """
    size = os.fstat(descriptor).st_size
    mapping = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)  # an empty file is a ValueError, too
    with memoryview(mapping) as content:
        if check and zlib.crc32(content[:-CRC_BYTES]) != int.from_bytes(content[-CRC_BYTES:], "little"):
            raise ValueError("the checksum does not match")
    begin = mapping.find(b"\n") + 1
    head = json.loads(mapping[:begin])
    lengths = [np.dtype(kind).itemsize * length for kind, length in head["arrays"].values()]
    starts = accumulate((length + _padding(length) for length in lengths), initial=begin)
    arrays = {
        name: np.frombuffer(mapping, dtype=kind, count=length, offset=start)
        for (name, (kind, length)), start in zip(head["arrays"].items(), starts, strict=False)
    }
    return head["facts"], arrays, mapping
