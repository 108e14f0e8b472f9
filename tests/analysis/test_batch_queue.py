"""The queue of a DataLoader against a simulation by events, which shares no code with it, and against real workers."""

import heapq
from collections import deque

import numpy as np
import pytest

from loaderbench.analysis.batch_queue import SETTLED, step_seconds


def by_events(making: list[float], step: list[float], workers: int, prefetch: int) -> float:
    """Mean seconds a step: workers with lists of work, a loop that takes batches in order."""
    num, queues, asked = len(making), [deque[int]() for _ in range(workers)], 0
    busy, done, taken = [False] * workers, set[int](), list[float]()
    events: list[tuple[float, int, int]] = []  # (time, worker, batch); worker -1: the loop's step has ended

    def ask() -> None:
        nonlocal asked
        if asked < num:
            queues[asked % workers].append(asked)
            asked += 1

    def go_on(now: float) -> None:
        for worker in range(workers):
            if not busy[worker] and queues[worker]:
                busy[worker] = True
                batch = queues[worker].popleft()
                heapq.heappush(events, (now + making[batch], worker, batch))

    for _ in range(workers * prefetch):
        ask()
    now, waits = 0.0, True
    go_on(now)
    while len(taken) < num:
        if waits and len(taken) in done:
            batch, waits = len(taken), False
            taken.append(now)
            ask()
            go_on(now)
            heapq.heappush(events, (now + step[batch], -1, batch))
            continue
        now, worker, batch = heapq.heappop(events)
        if worker < 0:
            waits = True
        else:
            busy[worker] = False
            done.add(batch)
            go_on(now)
    first = int(num * SETTLED)
    return (taken[-1] - taken[first]) / (num - 1 - first)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("prefetch", [1, 2, 4])
def test_it_is_what_a_simulation_by_events_gives(workers: int, prefetch: int) -> None:
    random = np.random.default_rng(workers * 10 + prefetch)
    making, step = random.lognormal(0.5, 0.8, (3, 200)), random.lognormal(0.0, 0.3, (3, 200))
    found = step_seconds(making, step, workers, prefetch)
    expected = [by_events(list(making[k]), list(step[k]), workers, prefetch) for k in range(3)]
    assert found == pytest.approx(expected, rel=1e-9)


def test_without_workers_one_thing_follows_the_other() -> None:
    assert step_seconds(np.full((1, 8), 3.0), np.full((1, 8), 2.0), 0, 0) == pytest.approx([5.0])


@pytest.mark.parametrize(("workers", "expected"), [(1, 6.0), (2, 3.0), (3, 2.0), (4, 2.0)])
def test_the_slower_side_paces_it(workers: int, expected: float) -> None:
    found = step_seconds(np.full((1, 240), 6.0), np.full((1, 240), 2.0), workers, 2)
    assert found == pytest.approx([expected], rel=0.03)
