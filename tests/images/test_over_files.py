"""Work on many files: in order while it is quick, side by side where each waits, and not after its time."""

from __future__ import annotations

import threading
import time

import pytest

from loaderbench.images.over_files import JUDGED, NUM_THREADS, over_files


def test_quick_files_are_done_in_order_by_this_thread() -> None:
    threads: set[int] = set()
    told: list[int] = []

    def work(number: int) -> int:
        threads.add(threading.get_ident())
        return number * number

    assert over_files(work, range(5), on_done=told.append) == [0, 1, 4, 9, 16]
    assert threads == {threading.get_ident()} and told == [1, 2, 3, 4, 5]


def test_files_that_wait_are_waited_for_side_by_side_and_come_in_order() -> None:
    at_once = most = 0
    lock, told = threading.Lock(), []

    def work(number: int) -> int:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.01 * (1 + number % 3))
        with lock:
            at_once -= 1
        return number

    assert over_files(work, range(100), on_done=told.append) == list(range(100))
    assert 2 < most <= NUM_THREADS and told == list(range(1, 101))


def test_files_that_are_slow_behind_many_quick_ones_are_waited_for_side_by_side() -> None:
    threads: set[int] = set()

    def work(number: int) -> None:
        threads.add(threading.get_ident())
        if number >= 20_000:
            time.sleep(0.002)

    # given files that would have to take 4 s until all of them are slow on average
    over_files(work, range(20_000 + 20 * JUDGED // 10))
    assert len(threads) > 2


@pytest.mark.parametrize("wait_s", [0.0, 0.01])
def test_none_is_begun_after_its_time_but_the_fewest_are_done(wait_s: float) -> None:
    def work(number: int) -> int:
        time.sleep(wait_s)
        return number

    # given no time at all, then the fewest are done, and none that one of the threads had not begun already
    done = over_files(work, range(10_000), until=time.perf_counter(), at_least=40)
    assert done == list(range(len(done)))
    assert 40 <= len(done) <= 40 + NUM_THREADS


@pytest.mark.parametrize("wait_s", [0.0, 0.005])
def test_the_first_error_ends_it(wait_s: float) -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        time.sleep(wait_s)
        if number == 3:
            raise OSError(2, "gone")

    with pytest.raises(OSError, match="gone"):
        over_files(work, range(100_000))
    assert len(begun) < 10_000
