"""Threads that make batches: what their consumer learns of a failure."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from loaderbench.loaders.batch_threads import BatchThreads


class Doubling:
    def __call__(self, job: int, is_cancelled: Any) -> int:
        return 2 * job

    def close(self) -> None: ...


def test_a_thread_that_cannot_begin_is_no_wait_without_end() -> None:
    def begin(number: int) -> Doubling:
        if number == 1:
            raise OSError("no memory for its tables")
        return Doubling()

    before = threading.active_count()
    threads: BatchThreads[int, int] = BatchThreads(3, 4, begin)
    for _ in range(2):
        with pytest.raises(OSError, match="tables"):
            next(threads.stream(iter(range(9))))
        assert threading.active_count() == before


def test_threads_begin_afresh_after_one_could_not() -> None:
    failing = [True]

    def begin(number: int) -> Doubling:
        if failing[0]:
            raise OSError("no memory")
        return Doubling()

    threads: BatchThreads[int, int] = BatchThreads(2, 4, begin)
    with pytest.raises(OSError, match="memory"):
        threads.start()
    failing[0] = False
    assert list(threads.stream(iter(range(9)))) == [2 * n for n in range(9)]
    threads.close()


def test_results_come_in_the_order_of_the_jobs() -> None:
    threads: BatchThreads[int, int] = BatchThreads(3, 4, lambda number: Doubling())
    assert list(threads.stream(iter(range(50)))) == [2 * n for n in range(50)]
    threads.close()
