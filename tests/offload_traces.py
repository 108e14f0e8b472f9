"""A step's trace of saved storages, written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from loaderbench.cases.case import Mode
from loaderbench.recording.model_offload import SAVED_EVENTS, SavedTrace


def trace_of(
    sizes: Sequence[int], *rows: tuple[Any, int], mode: Mode = "train", clean: Sequence[int] = ()
) -> SavedTrace:
    """`rows`: (name in SAVED_EVENTS, value). `clean`: saved storages of which the host has a copy."""
    saved = np.array([[size, int(number in clean), 0] for number, size in enumerate(sizes)], dtype=np.int64)
    table = np.array([[SAVED_EVENTS.index(what), value, 0, 0, 0] for what, value in rows], dtype=np.int64)
    return SavedTrace(mode, 1, saved.reshape(-1, 3), table, ("",), ("",), seconds=None)


def chain(sizes: Sequence[int], flops: Sequence[int]) -> SavedTrace:
    """A chain of layers: each makes one tensor, which is saved and let go of, and whose backward pass uses it once, in
    the other order. `flops`: of each layer's forward; its backward has twice as many."""
    rows: list[tuple[Any, int]] = []
    for number, work in enumerate(flops):
        rows += [("hold", number), ("operator", work), ("pack", number), ("let_go", number)]
    for number, work in reversed([*enumerate(flops)]):
        rows += [("unpack", number), ("operator", 2 * work), ("forget", number), ("let_go", number)]
    return trace_of(sizes, *rows)
