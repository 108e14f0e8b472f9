"""What workers write of their batches, and in which order it is read."""

import numpy as np
import pytest

from loaderbench.recording.facts import SPAN
from loaderbench.watching.spans import SLOTS, Lane, SpanRing


def row(start: int, fetch: int, collate: int, *, cpu: int, waited: int) -> tuple[int, ...]:
    """Of a batch whose data set took `fetch`, of that `cpu` on a processor and `waited` for one."""
    return (start, start + fetch, start + fetch + collate, cpu, cpu + collate, waited, waited, 0, 4096, 0)


def test_batches_come_from_each_worker_in_turn_and_the_rest_of_the_time_was_waiting() -> None:
    ring = SpanRing(2)
    ring.add(0, row(100, 50, 5, cpu=20, waited=10))  # 20 of 50 neither ran nor wanted to
    ring.add(1, row(110, 60, 7, cpu=60, waited=0))
    ring.add(0, row(200, 30, 5, cpu=40, waited=0))  # two threads: more CPU time than wall time
    table = ring.table([0, 0], 0, 3)
    assert table is not None
    columns = ("worker", "start_ns", "read_ns", "decode_ns", "collate_ns", "runqueue_ns", "page_bytes")
    assert [[int(line[SPAN[name]]) for name in columns] for line in table] == [
        [0, 100, 20, 30, 5, 10, 4096], [1, 110, 0, 60, 7, 0, 4096], [0, 200, 0, 30, 5, 0, 4096],
    ]  # fmt: skip


def test_a_later_epoch_of_workers_that_stay_begins_with_the_first_worker_again() -> None:
    ring = SpanRing(2)
    for number in range(3):  # an epoch of three batches
        ring.add(number % 2, row(number, 1, 0, cpu=1, waited=0))
    made = ring.made()
    for number in range(4):
        ring.add(number % 2, row(100 + number, 1, 0, cpu=1, waited=0))
    table = ring.table(made, 0, 4)
    assert made == [2, 1] and table is not None
    assert table[:, SPAN["start_ns"]].tolist() == [100, 101, 102, 103]
    assert table[:, SPAN["worker"]].tolist() == [0, 1, 0, 1]


def test_batches_that_nobody_wrote_or_that_are_overwritten_are_unknown() -> None:
    ring = SpanRing(1)
    for number in range(SLOTS + 3):
        ring.add(0, row(number, 1, 0, cpu=1, waited=0))
    assert ring.table([0], 0, 4) is None  # the first three are gone
    assert ring.table([0], SLOTS + 2, 2) is None  # the last one was not made
    kept = ring.table([0], 3, SLOTS)
    assert kept is not None and np.array_equal(kept[:, SPAN["start_ns"]], np.arange(3, SLOTS + 3))


def test_a_failed_batch_leaves_no_span() -> None:
    ring = SpanRing(1)
    lane = Lane(ring, 0)

    def fail() -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        lane.fetch(fail)
    assert ring.table([0], 0, 1) is None


def test_the_work_before_collating_is_the_data_set_s() -> None:
    ring = SpanRing(1)
    lane = Lane(ring, 0)
    collate = lane.collating(lambda samples: sum(range(20_000)) and samples)
    assert lane.fetch(lambda: collate([1, 2])) == [1, 2]
    table = ring.table([0], 0, 1)
    assert table is not None
    span = {name: int(table[0, SPAN[name]]) for name in ("start_ns", "ready_ns", "decode_ns", "read_ns", "collate_ns")}
    assert span["decode_ns"] + span["read_ns"] + span["collate_ns"] == span["ready_ns"] - span["start_ns"]
    assert span["collate_ns"] > span["decode_ns"]
