"""What is kept of a window's reads: totals that nothing is lost from, the slowest, and the pauses by a plain search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderbench.cases.arms import Arm
from loaderbench.images.index import index_images
from loaderbench.recording.facts import (
    MOST_SLOWEST,
    PAUSE,
    READ,
    READ_BIN,
    READ_BIN_EDGES_NS,
    RELEASE_PART,
    SPAN_FIELDS,
    STEP_FIELDS,
)
from loaderbench.running.read_times import pauses, read_times, slow_files
from tests.made import make_segment

MS = 10**6


def reads(*rows: tuple[int, float, float, float]) -> np.ndarray:
    """(image, begin, open, read), in ms."""
    return np.array([(row[0], *(round(one * MS) for one in row[1:]), 1000) for row in rows], dtype=np.int64)


def test_the_histogram_holds_every_read_in_its_bin_and_all_its_time() -> None:
    rows = reads((1, 0, 0.5, 2.0), (2, 3, 0.5, 2.0), (3, 6, 0.0001, 400.0))
    found = read_times(rows)
    assert found is not None
    table = found.histogram
    assert (
        table[:, READ_BIN["opens"]].sum() == table[:, READ_BIN["reads"]].sum() == table[:, READ_BIN["files"]].sum() == 3
    )
    assert table[:, READ_BIN["open_ns"]].sum() == 1_000_100
    assert table[:, READ_BIN["file_ns"]].sum() == 405_000_100
    assert table[0, READ_BIN["opens"]] == 1  # below 1 µs
    for ns, column in ((2 * MS, "reads"), (400 * MS, "reads"), (400 * MS + 100, "files")):
        (number,) = np.flatnonzero(
            (table[:, READ_BIN[column]] > 0) & (table[:, READ_BIN[column.rstrip("s") + "_ns"]] >= ns)
        )[:1]
        assert READ_BIN_EDGES_NS[number - 1] <= ns
    assert found.slowest[:, 0].tolist() == [3, 1, 2]
    assert (found.begin_ns, found.end_ns) == (0, 406 * MS + 100)


def test_bins_grow_by_a_quarter_of_a_doubling_from_1_us_to_100_s() -> None:
    edges = np.array(READ_BIN_EDGES_NS)
    assert edges[0] == 1000 and edges[-1] > 100e9
    assert edges[4:] / edges[:-4] == pytest.approx(2.0, rel=1e-3)


def test_a_window_without_reads_has_no_times() -> None:
    assert read_times(np.empty((0, 5), dtype=np.int64)) is None


def test_a_stall_is_a_pause_of_all_that_wait_and_go_on_together() -> None:
    # given three readers that a stall from 10 to 210 ms holds up, and one that is slow for itself later
    rows = reads((0, 8, 1, 1), (1, 9, 1, 200), (2, 9.5, 1, 200), (3, 10, 1, 200.5), (4, 212, 0, 100))
    found = read_times(rows)
    assert found is not None
    first, second = found.pauses[:2]
    assert first.tolist() == [10 * MS, 210 * MS, 3, 3]
    assert second[PAUSE["waiting"]] == second[PAUSE["released"]] == 1


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 300)), min_size=1, max_size=25, unique_by=lambda r: sum(r))
)
def test_pauses_are_those_of_a_plain_search(spans: list[tuple[int, int]]) -> None:
    begins, ends = np.array([(begin, begin + length) for begin, length in spans], dtype=np.int64).T
    expected = []
    for end in ends:
        earlier = [other for other in ends if other < end]
        waiting = [(b, e) for b, e in zip(begins, ends, strict=True) if b < end <= e]
        since = max(max(earlier, default=0), min(b for b, _ in waiting))
        released = sum(e <= end + RELEASE_PART * (end - since) for _, e in waiting)
        expected.append((int(since), int(end), len(waiting), int(released)))
    found = [tuple(row) for row in pauses(begins, ends, np.arange(0)).tolist()]
    assert sorted(found, key=lambda row: row[1]) == sorted(expected, key=lambda row: row[1])


def made(images: list[int] | None, start_ms: float, ready_ms: float) -> tuple[np.ndarray | None, np.ndarray]:
    span = np.zeros(len(SPAN_FIELDS), dtype=np.int64)
    span[SPAN_FIELDS.index("start_ns")], span[SPAN_FIELDS.index("ready_ns")] = start_ms * MS, ready_ms * MS
    return None if images is None else np.array(images), span


def test_a_read_belongs_to_the_batch_that_was_made_of_it_meanwhile() -> None:
    # given two workers that make the batches 0 and 1 side by side, 2 behind 0; image 7 comes again in batch 2
    batches = [made([7, 3], 0, 10), made([5, 6], 1, 12), made([7, 8], 10, 20)]
    rows = reads((7, 1, 1, 1), (3, 4, 1, 2), (5, 2, 0, 9), (6, 11, 0, 1), (7, 11, 0, 2), (8, 14, 1, 1), (9, 15, 0, 1))
    found = read_times(rows, batches)
    assert found is not None
    of = {(int(row[0]), int(row[1]) // MS): int(row[READ["batch"]]) for row in found.slowest}
    # then image 9, of a batch that nobody took, belongs to none
    assert of == {(7, 1): 0, (3, 4): 0, (5, 2): 1, (6, 11): 1, (7, 11): 2, (8, 14): 2, (9, 15): -1}


def test_a_file_that_was_read_ahead_belongs_to_the_first_batch_behind_it() -> None:
    batches = [made([1], 10, 12), made([2], 20, 22), made([1], 30, 32), (None, None)]
    found = read_times(reads((1, 3, 1, 1), (2, 4, 1, 9), (1, 15, 0, 3)), batches)
    assert found is not None
    assert sorted(found.slowest[:, [READ["begin_ns"], READ["batch"]]].tolist()) == [
        [3 * MS, 0],
        [4 * MS, 1],
        [15 * MS, 2],
    ]


def test_what_is_judged_is_the_same_however_many_reads_are_kept() -> None:
    rows = reads(*((number, number, 0, 1 + number % 7) for number in range(500)))
    few, many = read_times(rows), read_times(rows, most=400)
    assert few is not None and many is not None
    assert len(few.slowest) == MOST_SLOWEST and len(many.slowest) == 400
    assert (few.judged == many.judged).all() and (few.pauses == many.pauses).all()


def test_slow_files_are_named_below_the_root_with_the_size_of_their_class(tmp_path: Path) -> None:
    for name in ("a/1.jpg", "a/2.jpg", "b/c/3.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    images = index_images(str(tmp_path))
    table = np.zeros((2, len(STEP_FIELDS)), dtype=np.int64)
    segments = [
        make_segment(Arm.REAL, table, reads=read_times(reads((2, 0, 1, 1)))),
        make_segment(Arm.FETCH, table, reads=read_times(reads((0, 0, 1, 1)))),
        make_segment(Arm.RAM, table, reads=read_times(reads((1, 0, 1, 1)))),  # of the copy in memory
        make_segment(Arm.FREE, table),
    ]
    assert slow_files(segments, images) == ({"0": "a/1.jpg", "2": "b/c/3.jpg"}, {"a": 2, "b": 1, "b/c": 1})


def test_the_folders_of_classes_below_another_are_counted(tmp_path: Path) -> None:
    for name in ("train/a/1.jpg", "train/a/2.jpg", "train/ab/3.jpg", "train/ab/d/4.jpg", "val/a/5.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    images = index_images(str(tmp_path))
    slowest = read_times(reads(*((number, number, 1, 1) for number in range(5))))
    _, folders = slow_files([make_segment(Arm.REAL, np.zeros((2, len(STEP_FIELDS)), np.int64), reads=slowest)], images)
    assert folders == {"train": 4, "val": 1, "train/a": 2, "train/ab": 2, "train/ab/d": 1, "val/a": 1}
