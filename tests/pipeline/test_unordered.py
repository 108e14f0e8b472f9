"""The replay of batches that are taken as they become ready, against a simulation of events, one by one."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

from loaderbench.pipeline.replay import Order, step_s
from loaderbench.pipeline.stages import Batches, Stages
from loaderbench.pipeline.unordered import unordered_step_s


def stages_of(work: np.ndarray, issue_s: float, workers: int, ahead: int, cpu: float = 0.0) -> Stages:
    num = len(work)
    return Stages(
        workers, workers * ahead, True, 0, True,
        Batches.of(num, prep=work, issue=np.full(num, issue_s), cpu=np.full(num, cpu)),
        np.zeros(num, dtype=np.int64), np.ones(num, dtype=bool), np.array([1.0]), 1.0, 2.0,
    )  # fmt: skip


def simulated(work: np.ndarray, issue_s: float, workers: int, ahead: int) -> list[float]:
    """When each step is done: workers with queues of their own, the host takes what is ready first."""
    queues: list[list[float]] = [[] for _ in range(workers)]  # when each was asked
    busy, given = [False] * workers, 0
    events: list[tuple[float, int]] = []  # (when, worker) of what workers work on
    stock: list[tuple[float, int]] = []  # and have made
    done, now = [], 0.0

    def begin(worker: int, at: float) -> None:
        if queues[worker] and not busy[worker]:
            queues[worker].pop(0)
            busy[worker] = True
            heapq.heappush(events, (at + work[order[worker].pop(0)], worker))

    order: list[list[int]] = [[] for _ in range(workers)]

    def ask(worker: int, at: float) -> None:
        nonlocal given
        order[worker].append(given % len(work))
        given += 1
        queues[worker].append(at)
        begin(worker, at)

    for number in range(workers * ahead):
        ask(number % workers, 0.0)
    while len(done) < len(work):
        while events and (not stock or events[0][0] <= now):
            at, worker = heapq.heappop(events)
            heapq.heappush(stock, (at, worker))
            busy[worker] = False
            begin(worker, at)
        at, worker = heapq.heappop(stock)
        now = max(now, at)
        ask(worker, now)
        now += issue_s
        done.append(now)
    return done


@pytest.mark.parametrize(("workers", "ahead"), [(2, 2), (3, 1), (4, 2)])
@pytest.mark.parametrize("issue_s", [0.002, 0.012])
def test_it_is_what_a_simulation_of_events_gives(workers: int, ahead: int, issue_s: float) -> None:
    random = np.random.default_rng(workers)
    work = np.where(random.random(600) < 0.04, 0.4, 0.008) * random.uniform(0.9, 1.1, 600)
    order = Order(np.arange(600)[None], np.array([450]), 1, 1)
    found = float(unordered_step_s(stages_of(work, issue_s, workers, ahead), order)[0])
    done = simulated(work, issue_s, workers, ahead)
    assert found == pytest.approx((done[-1] - done[149]) / 450, rel=0.05)


def test_alike_batches_come_as_fast_in_order() -> None:
    work, order = np.full(400, 0.02), Order(np.arange(400)[None], np.array([300]), 1, 1)
    stages = stages_of(work, 0.004, 2, 2)
    assert float(unordered_step_s(stages, order)[0]) == pytest.approx(float(step_s(stages, order)[0]), rel=0.02)


def test_processors_limit_it_too() -> None:
    work, order = np.full(400, 0.001), Order(np.arange(400)[None], np.array([300]), 1, 1)
    assert float(unordered_step_s(stages_of(work, 0.001, 2, 2, cpu=0.03), order)[0]) == pytest.approx(0.015)
