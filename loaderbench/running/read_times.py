"""What is kept of the reads of a window: a histogram, the slowest ones, and the pauses in which none ended."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from loaderbench.images.index import ImageIndex
from loaderbench.recording.facts import (
    MOST_SLOWEST,
    PAUSE,
    PAUSE_FIELDS,
    READ,
    READ_BIN,
    READ_BIN_EDGES_NS,
    READ_BIN_FIELDS,
    RELEASE_PART,
    SLOW_READ_FIELDS,
    SPAN,
    ReadTimes,
    Segment,
    Table,
)

MOST_PAUSES = 32
"""The pauses that one of the slowest reads waited through are kept, too: a rate that is capped in slices of 10 ms has a
hundred of them in a window."""

MOST_FOLDERS = 20

Made = tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]
"""A batch: positions of its images, and its span; None where the loader does not tell."""


def read_times(rows: Table, made: Sequence[Made] = (), most: int = MOST_SLOWEST) -> ReadTimes | None:
    """Of rows of READ_FIELDS in any order; None where there are none. `made`: the window's batches, by their steps;
    `most`: how many of the slowest reads are kept."""
    if not len(rows):
        return None
    whole = rows[:, READ["open_ns"]] + rows[:, READ["read_ns"]]
    order = np.argsort(-whole, kind="stable")
    slowest = order[:MOST_SLOWEST]
    begins = rows[:, READ["begin_ns"]]
    ends = begins + whole
    kept = rows[order[:most]]
    return ReadTimes(
        histogram=_histogram(rows, whole),
        slowest=np.column_stack((kept, batch_of(kept, made))).reshape(-1, len(SLOW_READ_FIELDS)),
        pauses=pauses(begins, ends, slowest),
        begin_ns=int(begins.min()),
        end_ns=int(ends.max()),
    )


def batch_of(rows: Table, made: Sequence[Made]) -> NDArray[np.int64]:
    """For which of the batches each file was read, [R]: the one with this image that was being made meanwhile. Where
    files are read ahead of whoever makes the batch: the first one that was complete after that. -1: none, as of a batch
    that nobody took; or its loader does not tell."""
    batch = np.full(len(rows), -1, dtype=np.int64)
    by_image: dict[int, list[tuple[int, int, int]]] = {}
    for number, (images, span) in enumerate(made):
        if images is not None and span is not None:
            for image in np.unique(images).tolist():
                by_image.setdefault(image, []).append((span[SPAN["start_ns"]], span[SPAN["ready_ns"]], number))
    for row, (image, begin, opening, reading) in enumerate(rows[:, : READ["bytes"]].tolist()):
        of = [one for one in by_image.get(image, ()) if begin + opening + reading <= one[1]]
        during = [one for one in of if one[0] <= begin]
        if during or of:
            batch[row] = min(during or of, key=lambda one: one[1])[2]
    return batch


def _histogram(rows: Table, whole: NDArray[np.int64]) -> Table:
    table = np.zeros((len(READ_BIN_EDGES_NS) + 1, len(READ_BIN_FIELDS)), dtype=np.int64)
    parts = (("opens", "open_ns", rows[:, READ["open_ns"]]), ("reads", "read_ns", rows[:, READ["read_ns"]]))
    for counts, sums, times in (*parts, ("files", "file_ns", whole)):
        bins = np.searchsorted(READ_BIN_EDGES_NS, times, side="right")
        np.add.at(table[:, READ_BIN[counts]], bins, 1)
        np.add.at(table[:, READ_BIN[sums]], bins, times)
    return table


def pauses(begins: NDArray[np.int64], ends: NDArray[np.int64], slowest: NDArray[np.int64]) -> Table:
    """Times in which no read ended though some were under way, the longest first: [n, len(PAUSE_FIELDS)]. Those are
    the longest of all, and the longest that each of the `slowest` reads waited through."""
    order = np.argsort(ends, kind="stable")
    ended, began = ends[order], np.sort(begins)
    # Before the read that ends at position k, k have ended: those that had begun by then and had not ended waited.
    waiting = np.searchsorted(began, ended, side="left") - np.arange(len(ended))
    # The k-th to end is under way, so its begin bounds the pause before it; those behind it may have begun earlier.
    earliest = np.minimum.accumulate(begins[order][::-1])[::-1]
    since = np.maximum(np.concatenate([[began[0]], ended[:-1]]), earliest)
    length = ended - since
    first, last = (np.searchsorted(ended, one[slowest], side="right").tolist() for one in (begins, ends))
    met = [one + int(np.argmax(length[one:end])) for one, end in zip(first, last, strict=True) if one < end]
    longest = np.union1d(np.argsort(-length, kind="stable")[:MOST_PAUSES], np.array(met, dtype=np.int64))
    longest = longest[np.argsort(-length[longest], kind="stable")]
    table = np.zeros((len(longest), len(PAUSE_FIELDS)), dtype=np.int64)
    table[:, PAUSE["begin_ns"]], table[:, PAUSE["end_ns"]] = since[longest], ended[longest]
    table[:, PAUSE["waiting"]] = waiting[longest]
    for row, position in zip(table, longest.tolist(), strict=True):
        end = ended[position]
        soon = slice(position, np.searchsorted(ended, end + RELEASE_PART * length[position], side="right"))
        row[PAUSE["released"]] = (begins[order[soon]] < end).sum()
    return table


def slow_files(segments: Sequence[Segment], files: ImageIndex) -> tuple[Mapping[str, str], Mapping[str, int]]:
    """(number → path below the root of the files that verdicts go by, their classes → files in each).
    With the classes are the folders below them that hold most of these files (DIR/train/class)."""
    told = [segment.reads for segment in segments if segment.arm.touches_storage]
    tables = [reads.judged[:, READ["image"]] for reads in told if reads is not None]
    numbers = sorted({int(one) for table in tables for one in table})
    sizes = np.bincount(files.labels, minlength=len(files.classes))
    labels = sorted({int(files.labels[number]) for number in numbers})
    names = {str(number): os.path.relpath(files.path(number), files.root) for number in numbers}
    folders = {files.classes[label]: int(sizes[label]) for label in labels if label < len(files.classes)}
    inner = Counter(os.path.dirname(name) for name in names.values() if name.count(os.sep) > 1)
    return names, {**folders, **{folder: _num_below(folder, files) for folder, _ in inner.most_common(MOST_FOLDERS)}}


def _num_below(folder: str, files: ImageIndex) -> int:
    """Files in a folder, given below the root, and in those within it."""
    prefix = np.frombuffer(os.fsencode(folder + os.sep), dtype=np.uint8)
    names = np.frombuffer(files.names, dtype=np.uint8)
    begins = files.offsets[:-1][np.diff(files.offsets) > len(prefix)]
    for place, letter in enumerate(prefix):
        begins = begins[names[begins + place] == letter]
    return len(begins)
