"""Counts what a batch consists of as a worker delivers it, and whether it fits into shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loaderbench.findings.table import words
from loaderbench.originals import os
from loaderbench.recording.facts import WatchedDelivery, room_needed

MOST_PARTS, MOST_LEVELS = 20_000, 8
"""Of a batch that are looked at."""
FEWER, MANY = 2, 16
"""Joining by field is worth it from so many times fewer objects on; else like shapes are joined, of so many objects."""


def delivery_of(batch: Any) -> WatchedDelivery:
    """Count the tensors and arrays of a batch, which are passed one by one."""
    fields, shapes = set[tuple[object, ...]](), set[tuple[object, ...]]()
    num = shared = 0
    for field, part in _parts(batch, (), [MOST_PARTS]):
        num += 1
        fields.add(field)
        shapes.add((str(part.dtype), tuple(part.shape[1:])))
        if hasattr(part, "element_size"):
            shared += int(part.element_size()) * int(part.nelement())
    by_field = len(fields) * FEWER <= num or num < MANY
    joined = len(fields) if by_field else min(len(fields), len(shapes))
    return WatchedDelivery(num, max(1, joined), shared)


def _parts(part: Any, field: tuple[object, ...], left: list[int]) -> Iterator[tuple[tuple[object, ...], Any]]:
    """(field, array) of each array; a field is the keys that lead to it, without the numbers of lists."""
    left[0] -= 1
    if left[0] < 0 or len(field) > MOST_LEVELS:
        return
    if isinstance(part, dict):
        for key, one in part.items():
            yield from _parts(one, (*field, str(key)), left)
    elif isinstance(part, tuple) and hasattr(part, "_fields"):
        for key, one in zip(part._fields, part, strict=False):
            yield from _parts(one, (*field, str(key)), left)
    elif isinstance(part, list | tuple):
        of_samples = len({type(one) for one in part}) == 1 and len(part) > FEWER
        for number, one in enumerate(part):
            yield from _parts(one, (*field, "" if of_samples else number), left)
    elif hasattr(part, "dtype") and hasattr(part, "shape"):
        yield field, part
    elif hasattr(part, "__dict__"):
        for key, one in vars(part).items():
            yield from _parts(one, (*field, key), left)


def warn_of_shared_memory(shared_bytes: int, depth: int, room: tuple[int, int] | None) -> None:
    """Say on stderr that the batches will not fit into /dev/shm, before a worker is killed for it (SIGBUS).

    Args:
        room: its (size, free) before the first batch.
    """
    if room is None or room_needed(shared_bytes, depth) <= room[1]:
        return
    text = words("shared_memory_small", {"needed": room_needed(shared_bytes, depth), "left": room[1], "size": room[0]})
    os.write(2, f"loaderbench: {text}\n".encode())
