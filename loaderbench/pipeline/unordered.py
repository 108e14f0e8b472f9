"""Replays a pipeline whose batches are taken as they become ready, not in order (`in_order=False` of a DataLoader).

Each worker has its share of the batches that are asked for; the host takes the one that is ready first, and its worker
is asked for the next one.

    taken  = max(host, ready of the first of all workers + send)
    start  = max(free[worker], taken) + hand;   ready = start + read + prep

A step takes no less than its CPU seconds ÷ the processors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from loaderbench.pipeline.replay import Order
from loaderbench.pipeline.stages import Stages, Times


def unordered_step_s(stages: Stages, order: Order) -> Times:
    """[D] mean seconds a step in each replay. For a pipeline with workers whose device keeps up with the host."""
    draws, num = order.rows.shape
    one, at = stages.batches, order.rows.T
    work, cpu = (one.read + one.prep)[at], one.cpu[at] / stages.processors
    send, hand, take, after = one.send[at], one.hand[at], one.take[at], (one.take + one.issue)[at]
    copy, device, in_flight = one.copy[at], one.device[at], stages.in_flight
    workers, ahead = stages.workers, max(1, stages.depth // max(1, stages.workers))
    lanes = np.arange(draws)
    ready = np.full((draws, workers, ahead), np.inf)  # of each worker, as a ring: those that are asked for
    head, arrives = np.zeros((draws, workers), dtype=np.int64), np.full((draws, workers), np.inf)
    free, host, last = np.zeros((draws, workers)), np.zeros(draws), np.zeros(draws)
    done = np.zeros((num, draws))

    def ask(row: int, worker: NDArray[np.int64], slot: NDArray[np.int64], now: Times) -> None:
        made = np.maximum(free[lanes, worker], now) + hand[row] + work[row]
        free[lanes, worker] = made
        ready[lanes, worker, slot] = made + send[row]

    for number in range(workers * ahead):
        ask(number % num, np.full(draws, number % workers), np.full(draws, number // workers), np.zeros(draws))
    arrives[:] = ready[:, :, 0]
    for step in range(num):
        worker = arrives.argmin(axis=1)
        taken = np.maximum(host, arrives[lanes, worker])
        slot = head[lanes, worker]
        ask((step + workers * ahead) % num, worker, slot, taken)
        head[lanes, worker] = (slot + 1) % ahead
        arrives[lanes, worker] = ready[lanes, worker, (slot + 1) % ahead]
        issued = taken + after[step]
        last = np.maximum(np.maximum(taken + take[step] + copy[step], last) + device[step], issued)
        done[step] = last
        host = np.maximum(issued, done[step - in_flight]) if step >= in_flight else issued
    counted = order.counted
    paced_s = (done[-1] - done[num - 1 - counted, lanes]) / counted
    return np.asarray(np.maximum(paced_s, cpu.mean(axis=0)))
