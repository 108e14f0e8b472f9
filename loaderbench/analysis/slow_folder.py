"""A folder whose files are all slower than the others': too many to be a tail (docs/method.md, `Tails and stalls`)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loaderbench.analysis.latency import Reads, held_by_folders, slowest_part
from loaderbench.recording.facts import READ, READ_BIN, StorageFacts, Table
from loaderbench.recording.record import SlowFolder

LARGEST = 0.5
"""Part of all files: of a folder with more, the others would be called fast."""
HOLDS = 0.8
"""Part that it must have of as many of the slowest reads as would be its own, if it has the slowest files."""
LEAST_READS, LEAST_KEPT = 20, 0.5
"""So many of those, and such a part of them, must have been kept: else its slowest files alone are known."""
TIMES, MATTERS = 2.0, 0.1
"""How many times as long its files take, by their bytes, and the part of the time that this adds."""


def slow_folder(reads: Reads, storage: StorageFacts) -> SlowFolder | None:
    """The smallest such folder; None where none is known."""
    return next(_slow_folders(reads, storage), None)


def _slow_folders(reads: Reads, storage: StorageFacts) -> Iterator[SlowFolder]:
    for folder, size in sorted(storage.slow_folders.items(), key=lambda item: item[1]):
        of_files = size / max(storage.num_files, 1)
        rows = _slowest(reads, of_files)
        if of_files > LARGEST or len(rows) < max(LEAST_READS, LEAST_KEPT * of_files * reads.num):
            continue
        part = held_by_folders(rows, storage)[folder] / len(rows)
        of_time, mean_s = slowest_part(reads.histogram, of_files)
        others_s = (
            float(reads.histogram[:, READ_BIN["file_ns"]].sum()) * (1 - of_time) / (1 - of_files) / reads.num / 1e9
        )
        times = mean_s / others_s
        if (
            part >= HOLDS
            and times >= TIMES * max(1.0, _larger(rows, of_files, storage))
            and of_time - of_files >= MATTERS
        ):
            yield SlowFolder(folder, of_files, part, times)


def _slowest(reads: Reads, of_files: float) -> Table:
    """Of each window the slowest reads that were kept, no more than the folder has of them on average."""
    nums = [round(of_files * float(one.histogram[:, READ_BIN["files"]].sum())) for one in reads.windows]
    return np.concatenate([one.judged[:num] for one, num in zip(reads.windows, nums, strict=True)])


def _larger(rows: Table, of_files: float, storage: StorageFacts) -> float:
    """How many times as many bytes its files have as the others; 1 where that is not known."""
    if not storage.image_bytes or not storage.num_files:
        return 1.0
    own = float(rows[:, READ["bytes"]].mean())
    others = (storage.image_bytes / storage.num_files - of_files * own) / (1 - of_files)
    return own / others if others > 0 else 1.0
