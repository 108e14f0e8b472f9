"""Replays a pipeline batch by batch: the seconds of a step, of many resamplings of its batches at once.

    start    = max(free[worker], taken[k − depth]) + hand       worker: k mod W, or the first that is free
    store    = max(store, start) + shared                       the storage's own clock
    cores    = max(cores, start) + cpu ÷ processors             the processors' own clock
    ready    = max(A⁻¹(A(start) + read + prep), store + prep, cores)       A: time without standstills
    taken    = max(host, max(ready[≤ k]) + send);   returned = taken + take;   issued = returned + issue
    copied   = max(returned, copied or done of k − 1) + copy                 own stream or not
    done     = max(max(copied, done of k − 1) + device, issued);   host = max(issued, done[k − in_flight])
    W = 0:     returned = A⁻¹(A(host) + read + prep) + take

Where reads are service times, not spans that hold waits for other readers, the storage serves `shared` of each batch
first, one batch after the other as they come:  ready = max(A⁻¹(A(served) + read + prep), cores).


Only delivery is in order: a slow batch holds up no other one at the storage or at the processors, which have clocks of
their own. PyTorch 2.15 deals its batches so (`_MultiProcessingDataLoaderIter`, `_try_put_index` and `_next_data`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from loaderbench.pipeline.stages import Batches, Stages, Standstill, Times

STEPS, MOST_STEPS = 480, 2000
"""Steps of a replay: 480 hold 10 rounds of 48 workers; of a longer recording one and a half times its own."""
STANDSTILL_STREAM = 7
"""Of the random numbers that say when standstills begin."""
SETTLED = 0.25
"""Of the steps, the first part is left out: the queue fills."""
BLOCKS_A_WINDOW = 4
"""Whole rounds of the workers are drawn together, in at most so many blocks a window."""
QUEUES = 4
"""A replay is at least so many times as long as the queue is deep, so that the first part holds its filling."""
STANDSTILLS, MOST_WITH_STANDSTILLS = 10, 6000
"""A replay meets ten standstills at least, if these many steps are enough for that."""
_Clock = Callable[[Times, Times | float], Times]
"""(begin, seconds of work) → end."""
_NONE: Mapping[str, Times] = MappingProxyType({})


@dataclass(frozen=True)
class Order:
    """Which batches follow each other in each replay. The first is of the run itself; the next D of its blocks of
    batches drawn anew, the last D of its windows."""

    rows: NDArray[np.int64]
    """[1 + 2 D, K]"""
    counted: NDArray[np.int64]
    """[1 + 2 D] of the last steps, so many: whole passes through the batches."""
    num_blocks: int
    num_windows: int

    def part(self, begin: int, end: int) -> Order:
        """Some of the replays."""
        return Order(self.rows[begin:end], self.counted[begin:end], self.num_blocks, self.num_windows)

    def first(self) -> Order:
        """The run itself alone."""
        return self.part(0, 1)


def orders(stages: Stages, draws: int, seed: int = 5, *, by_batch: bool = False) -> Order:
    """Draw `draws` times blocks, and as many times windows. Blocks are laid behind each other in another order in each
    pass: repeated as they were, a worker that was slow by chance would be slow for ever. `by_batch`: each batch is a
    block, for there are too few whole rounds."""
    random = np.random.default_rng(seed)
    windows = [np.flatnonzero(stages.window == number) for number in np.unique(stages.window)]
    by_window = [_blocks(rows, 1 if by_batch else max(1, stages.workers)) for rows in windows]
    blocks = [block for several in by_window for block in several]
    total = int(min(max(STEPS, 1.5 * len(stages.window)), MOST_STEPS))
    most = int(total * (1 - SETTLED))

    def laid(some: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], int]:
        num = sum(len(block) for block in some)
        passes = -(-total // num)
        rows = np.concatenate([some[at] for _ in range(passes) for at in random.permutation(len(some))])
        return rows[:total], min(max(1, most // num) * num, most)

    def drawn(some: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
        return [some[at] for at in random.integers(len(some), size=len(some))]

    found = [laid(blocks), *(laid(drawn(blocks)) for _ in range(draws))]
    for _ in range(draws):
        chosen = random.integers(len(windows), size=len(windows))
        found.append(laid([block for at in chosen for block in by_window[at]]))
    rows, counted = np.array([one for one, _ in found]), np.array([num for _, num in found])
    return Order(rows, counted, len(blocks), len(windows))


def _blocks(rows: NDArray[np.int64], lanes: int) -> list[NDArray[np.int64]]:
    size = lanes * max(1, -(-len(rows) // (BLOCKS_A_WINDOW * lanes)))
    return [rows[begin : begin + size] for begin in range(0, len(rows), size)]


def of_ranks(order: Order, ranks: int, random: np.random.Generator) -> Order:
    """Each replay as often as there are ranks, begun anywhere: so in no step do two ranks have the same batch but by
    chance."""
    num = order.rows.shape[1]
    begins = random.integers(num, size=(len(order.rows), ranks, 1))
    rows = np.take_along_axis(order.rows[:, None], (begins + np.arange(num)) % num, axis=2)
    return Order(rows.reshape(-1, num), np.repeat(order.counted, ranks), order.num_blocks, order.num_windows)


def step_s(stages: Stages, order: Order, factors: Mapping[str, Times] = _NONE, *, ranks: int = 1) -> Times:
    """[D] mean seconds a step in each replay.

    Args:
        factors: column of the batches → [D], by which it is multiplied in each replay.
        ranks: so many replays in a row are ranks that wait for each other in every step.
    """
    draws, num = order.rows.shape
    steps, counted = num, order.counted
    running: _Clock = _never
    if QUEUES * stages.depth > num and np.isfinite(stages.measured_s):  # infinite: a window as it was, once
        steps = QUEUES * stages.depth
    if stages.standstill is not None and stages.standstill.length_s > 0:
        wanted = STANDSTILLS * stages.standstill.period_s / max(stages.measured_s, 1e-9)
        steps = max(steps, int(min(wanted, MOST_WITH_STANDSTILLS)))
        running = _between(stages.standstill, draws, np.random.default_rng(STANDSTILL_STREAM))
    if steps > num:
        counted = np.full(draws, int(steps * (1 - SETTLED)))
    columns = _Columns(stages.batches, order.rows.T, factors)
    done = _replay(stages, columns, steps, running, ranks)
    return np.asarray((done[-1] - done[steps - 1 - counted, np.arange(draws)]) / counted)


class _Columns:
    """What batches cost, [K, D] each: those of step k in each replay."""

    def __init__(self, batches: Batches, at: NDArray[np.int64], factors: Mapping[str, Times]) -> None:
        def of(name: str) -> Times:
            column = getattr(batches, name)[at]
            return np.asarray(column * factors[name] if name in factors else column)

        self.num, self.draws = at.shape
        self.read, self.prep, self.hand, self.send = of("read"), of("prep"), of("hand"), of("send")
        self.take, self.issue, self.copy, self.device = of("take"), of("issue"), of("copy"), of("device")
        self.cpu = of("cpu")


class _Storage:
    """Works `shared_s` for each batch, first come first served. Batches are dealt with in their own order, so that one
    may have begun before the last one: then it is served in the gap before that one, where there is room."""

    def __init__(self, shared_s: float, running: _Clock, draws: int) -> None:
        self._shared_s, self._running = shared_s, running
        self._free = self._gap_begin = self._gap_end = np.zeros(draws)

    def serve(self, asked: Times) -> Times:
        """When batches that are asked for now are served."""
        if not self._shared_s:
            return asked
        idle, begin = asked >= self._free, np.maximum(self._gap_begin, asked)
        served = self._running(np.maximum(self._free, asked), self._shared_s)
        before = self._running(begin, self._shared_s)
        fits = ~idle & (before <= self._gap_end)
        self._gap_begin = np.where(idle, self._free, np.where(fits, before, self._gap_begin))
        self._gap_end = np.where(idle, asked, self._gap_end)
        self._free = np.where(fits, self._free, served)
        return np.where(fits, before, served)


def _replay(stages: Stages, one: _Columns, steps: int, running: _Clock, ranks: int) -> Times:
    """[steps, D] when each step is done."""
    draws, num = one.draws, one.num
    work, prep, after, cores_s = one.read + one.prep, one.prep, one.take + one.issue, one.cpu / stages.processors
    take, copy, device, hand, send = one.take, one.copy, one.device, one.hand, one.send
    workers, depth, in_flight, lanes = stages.workers, stages.depth, stages.in_flight, np.arange(draws)
    free = np.zeros((max(1, workers), draws))
    taken, done = np.zeros((steps, draws)), np.zeros((steps, draws))
    nothing = host = store = cores = made = copied = last = np.zeros(draws)
    storage = _Storage(stages.shared_s, running, draws)
    for k in range(steps):
        row = k % num
        if workers:
            lane = k % workers if stages.in_turn else free.argmin(axis=0)
            asked = taken[k - depth] if k >= depth else nothing
            start = np.maximum(free[lane] if stages.in_turn else free[lane, lanes], asked) + hand[row]
            cores = np.maximum(cores, start) + cores_s[row]
            if stages.in_line:
                ready = np.maximum(running(storage.serve(start), work[row]), cores)
            else:
                store = running(np.maximum(store, start), stages.shared_s)
                ready = np.maximum(np.maximum(running(start, work[row]), store + prep[row]), cores)
            if stages.in_turn:
                free[lane] = ready
            else:
                free[lane, lanes] = ready
            made = np.maximum(made, ready)
            taken[k] = np.maximum(host, made + send[row])
            begun = taken[k]
        else:
            begun = running(host, work[row] + (stages.shared_s if stages.in_line else 0.0))
        returned = begun + take[row]
        issued = begun + after[row]
        copied = np.maximum(returned, copied if stages.overlap else last) + copy[row]
        last = np.maximum(np.maximum(copied, last) + device[row], issued)
        if ranks > 1:
            last = np.repeat(last.reshape(-1, ranks).max(axis=1), ranks)
        done[k] = last
        host = np.maximum(issued, done[k - in_flight]) if k >= in_flight else issued
    return done


def _never(begin: Times, work: Times | float) -> Times:
    """Of a storage that never stands still."""
    return begin + work


def _between(stood: Standstill, draws: int, random: np.random.Generator) -> _Clock:
    """Work goes on but for the last `length_s` of each period, which begins anywhere in each replay."""
    often = np.exp(np.clip(random.standard_normal(draws) * stood.spread, -1, 1))
    often[0] = 1.0
    period = np.maximum(stood.period_s * often, stood.length_s * 1.05)
    phase, open_s = random.uniform(0, 1, draws) * period, period - stood.length_s

    def end(begin: Times, work: Times | float) -> Times:
        number, within = np.divmod(begin + phase, period)
        more, rest = np.divmod(np.minimum(within, open_s) + work, open_s)
        return np.asarray((number + more) * period + rest - phase)

    return end
