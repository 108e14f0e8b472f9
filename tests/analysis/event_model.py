"""A pipeline of loader, host and device as a discrete-event simulation: runs whose truth is known.

Finer than simulate.py where verdicts are hard to get right: workers that share one storage or few cores, reading
and decoding in turn, batches in order, a host that issues slower while workers run beside it, batches under way
that are cancelled when the window closes. Shares no code with the package but the names of the arms and columns; what a
run without a cause would take is simulated, not computed from what the estimators see.
Times in ms; the tables hold ns, as the loop records them.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import SPAN_FIELDS, STEP_FIELDS, Segment

ON_DEVICE = (Arm.DEVICE, Arm.HOST, Arm.RAM, Arm.REAL)
ARMS = (*ON_DEVICE, Arm.FREE, Arm.PREP, Arm.FETCH)
NEXT_MS = 0.005
"""What `next()` costs the host where a batch is ready."""
IN_FLIGHT = 2
CHUNKS = 3
"""Pieces in which a worker reads and decodes a batch in turn, as it does image by image."""
NUM_SAMPLES, FILE_BYTES = 64, 100_000
EPOCH_MS = 5_000.0
"""The host's clock does not begin at 0."""


@dataclass(frozen=True)
class Pipeline:
    """What one batch costs each stage."""

    workers: int = 4
    """0: the loader works inside `next()`."""
    prefetch: int = 2
    latency_ms: float = 0.0
    """Read time that each worker waits out for itself (latency-bound storage)."""
    storage_ms: float = 0.0
    """Read time on the one storage that all workers share (bandwidth-bound storage)."""
    decode_ms: float = 0.0
    collate_ms: float = 0.0
    cores: int | None = None
    """Decode and collate share so many; None: a core for each worker."""
    transfer_ms: float = 0.0
    overlap: bool = False
    """Copies have a queue of their own, beside the compute of earlier steps."""
    busy_ms: float = 40.0
    gap_ms: float = 0.0
    """Device time between kernels, whatever the host does."""
    issue_ms: float = 1.0
    crowded_issue_ms: float = 0.0
    """What issuing takes longer while the workers decode beside it."""
    crowded_next_ms: float = 0.0
    """What taking over a ready batch takes longer then."""
    jitter: float = 0.0
    """Sigma of the lognormal factor (mean 1) on read and decode of each piece."""
    reads_files: bool = True
    owns_transfer: bool = False
    tells_busy: bool = True
    tells_spans: bool = True

    @property
    def depth(self) -> int:
        return max(self.workers, 1) * self.prefetch


REMOVED: dict[str, dict[str, Any]] = {
    "storage": {"latency_ms": 0.0, "storage_ms": 0.0},
    "prep": {"decode_ms": 0.0, "collate_ms": 0.0, "crowded_issue_ms": 0.0, "crowded_next_ms": 0.0},
    "transfer": {"transfer_ms": 0.0},
    "launch": {"gap_ms": 0.0, "issue_ms": 0.0, "crowded_issue_ms": 0.0},
    "compute": {"busy_ms": 0.0, "gap_ms": 0.0},
}
"""The pipeline without a cause. Contention goes with preparation, and with launches as well."""


class Gate:
    """Where processes wait until something has happened."""

    def __init__(self) -> None:
        self.waiting: list[Process] = []


Process = Generator[float | Gate, None, None]
"""Yields the time at which to go on, or the gate to wait at."""


class World:
    """The clock, and what is due."""

    def __init__(self) -> None:
        self.now = EPOCH_MS
        self._due: list[tuple[float, int, Process]] = []
        self._count = 0

    def add(self, process: Process, at: float | None = None) -> None:
        self._count += 1
        heapq.heappush(self._due, (self.now if at is None else at, self._count, process))

    def open(self, gate: Gate) -> None:
        waiting, gate.waiting = gate.waiting, []
        for process in waiting:
            self.add(process)

    def run(self, last: Process) -> None:
        """Until `last` has ended."""
        self.add(last)
        while True:
            self.now, _, process = heapq.heappop(self._due)
            try:
                wanted = next(process)
            except StopIteration:
                if process is last:
                    return
                continue
            if isinstance(wanted, Gate):
                wanted.waiting.append(process)
            else:
                self.add(process, wanted)


def factors(sigma: float, random: np.random.Generator) -> Iterator[float]:
    """Lognormal factors of mean 1."""
    while True:
        yield from random.lognormal(-sigma * sigma / 2, sigma, 256).tolist() if sigma else repeat(1.0)


class Loader:
    """Workers that make batches k, k + W, k + 2W … each, at most `depth` asked for and not yet taken, in order."""

    def __init__(self, world: World, pipe: Pipeline, random: np.random.Generator) -> None:
        self.world, self.pipe = world, pipe
        self._factors = factors(pipe.jitter, random)
        self.num_taken = 0
        self.spans: dict[int, list[float]] = {}
        """Of finished batches: worker, start, ready, read, decode, collate."""
        self._room, self._made = Gate(), Gate()
        self._storage_free = world.now
        self._core_free = [world.now] * (pipe.cores or 0)
        for worker in range(pipe.workers):
            world.add(self._work(worker))

    def _on_core(self, cost: float) -> float:
        """When a core will have done the work, first come first served."""
        begin = max(self.world.now, heapq.heappop(self._core_free))
        heapq.heappush(self._core_free, begin + cost)
        return begin + cost

    def _make(self, worker: int, number: int) -> Process:
        """One batch: read and decode in turn, then collate. Yields only where others have a say in what comes next."""
        pipe, world = self.pipe, self.world
        start = at = world.now
        read = decode = 0.0
        for _ in range(CHUNKS):
            begun = at
            if pipe.storage_ms:
                if at > world.now:
                    yield at
                at = self._storage_free = max(at, self._storage_free) + pipe.storage_ms / CHUNKS * next(self._factors)
            if pipe.latency_ms:
                at += pipe.latency_ms / CHUNKS * next(self._factors)
            read += at - begun
            begun = at
            if pipe.decode_ms:
                cost = pipe.decode_ms / CHUNKS * next(self._factors)
                if pipe.cores is not None and at > world.now:
                    yield at
                at = at + cost if pipe.cores is None else self._on_core(cost)
            decode += at - begun
        begun = at
        if pipe.collate_ms:
            if pipe.cores is not None and at > world.now:
                yield at
            at = at + pipe.collate_ms if pipe.cores is None else self._on_core(pipe.collate_ms)
        if at > world.now:
            yield at
        self.spans[number] = [worker, start, at, read, decode, at - begun]

    def _work(self, worker: int) -> Process:
        number = worker
        while True:
            while number >= self.num_taken + self.pipe.depth:
                yield self._room
            yield from self._make(worker, number)
            self.world.open(self._made)
            number += self.pipe.workers

    def take(self) -> Process:
        """What `next()` waits for."""
        number = self.num_taken
        if self.pipe.workers == 0:
            yield from self._make(0, number)
        while number not in self.spans:
            yield self._made
        self.num_taken += 1
        self.world.open(self._room)


def _as_arm(pipe: Pipeline, arm: Arm) -> Pipeline:
    """What the arm changes of the loader."""
    if arm in (Arm.RAM, Arm.PREP):
        return replace(pipe, **REMOVED["storage"])
    if arm == Arm.FETCH:  # as many readers that do nothing else, one where the loader works inside next()
        return replace(pipe, **REMOVED["prep"], workers=max(pipe.workers, 1))
    return pipe


def segment(
    pipe: Pipeline,
    arm: Arm,
    number: int = 0,
    *,
    num_steps: int = 48,
    num_warmup: int | None = None,
    pause_ms: float = 0.0,
    seed: int = 0,
) -> Segment:
    """One window of one arm, recorded as the step loop does.

    `pause_ms`: the host's pause before the last step of the warm-up, in which the loader can fill its queue.
    """
    made = _as_arm(pipe, arm)
    with_loader = arm not in (Arm.DEVICE, Arm.HOST)
    warmup = (2 * made.depth + 8 if with_loader else 4) if num_warmup is None else num_warmup
    world = World()
    loader = Loader(world, made, np.random.default_rng([seed, number, ARMS.index(arm)])) if with_loader else None
    rows: list[list[float]] = []
    world.run(_consume(world, made, arm, loader, warmup, num_steps, pause_ms, rows))
    return Segment(
        arm=arm,
        round=number,
        num_warmup=warmup,
        steady=True,
        steps=_step_table(rows),
        spans=None if loader is None or not made.tells_spans else _span_table(loader),
        opened_ns=round(EPOCH_MS * 1e6),
        closed_ns=round(world.now * 1e6),
        wall_s=(world.now - EPOCH_MS) / 1e3,
        first_batch_s=(rows[0][1] - EPOCH_MS) / 1e3,
        num_drained=None if loader is None or not made.tells_spans else len(loader.spans) - len(rows),
    )


def _consume(
    world: World,
    pipe: Pipeline,
    arm: Arm,
    loader: Loader | None,
    warmup: int,
    num_steps: int,
    pause_ms: float,
    rows: list[list[float]],
) -> Process:
    """The host's loop, and the device's queue as it fills it."""
    free = copies_free = world.now
    in_flight = deque[float]()
    transfer_ms = 0.0 if arm == Arm.DEVICE or pipe.owns_transfer else pipe.transfer_ms
    issue_ms = pipe.issue_ms + (pipe.crowded_issue_ms if arm in (Arm.RAM, Arm.REAL) and pipe.workers else 0.0)
    for step in range(warmup + num_steps):
        if step == warmup - 1 and pause_ms:
            yield world.now + pause_ms
        called = world.now
        if loader is not None:
            yield from loader.take()
        yield world.now + NEXT_MS + (pipe.crowded_next_ms if loader is not None and pipe.workers else 0.0)
        returned = world.now
        if arm not in ON_DEVICE:
            rows.append([called, returned, returned, returned, -1, -1, -1, -1])
            continue
        begin = max(returned, copies_free if pipe.overlap else free)
        copied = copies_free = begin + transfer_ms
        yield world.now + issue_ms
        issued = world.now
        # Kernels start with the first one issued and cannot end before the last one is.
        free = max(max(copied, free) + pipe.busy_ms + pipe.gap_ms, issued)
        in_flight.append(free)
        if len(in_flight) > IN_FLIGHT:
            yield max(world.now, in_flight.popleft())
        rows.append([called, returned, issued, world.now, begin, copied, free, pipe.busy_ms if pipe.tells_busy else -1])
    # What is under way when the window closes is cancelled, so nothing is drained beyond this moment.


def _step_table(rows: list[list[float]]) -> NDArray[np.int64]:
    table = np.full((len(rows), len(STEP_FIELDS)), -1, dtype=np.int64)
    times = np.array(rows)
    table[:, :8] = np.where(times < 0, -1, np.rint(times * 1e6))
    table[:, 8:10] = NUM_SAMPLES, NUM_SAMPLES * FILE_BYTES
    return table


def _span_table(loader: Loader) -> NDArray[np.int64]:
    """Spans of the batches delivered, then of those left in the queue."""
    finished = [loader.spans[number] for number in sorted(loader.spans)]
    table = np.zeros((len(finished), len(SPAN_FIELDS)), dtype=np.int64)
    column = {name: position for position, name in enumerate(SPAN_FIELDS)}
    table[:, column["worker"]] = [span[0] for span in finished]
    for position, name in enumerate(("start_ns", "ready_ns", "read_ns", "decode_ns", "collate_ns"), start=1):
        table[:, column[name]] = [round(span[position] * 1e6) for span in finished]
    table[:, column["cpu_ns"]] = table[:, column["decode_ns"]] + table[:, column["collate_ns"]]
    table[:, column["page_bytes"]] = NUM_SAMPLES * (-(-FILE_BYTES // 4096) * 4096)
    return table


def arms_of(pipe: Pipeline) -> Iterator[Arm]:
    """The arms that are measured of it."""
    for arm in ARMS:
        reads = arm in (Arm.RAM, Arm.PREP, Arm.FETCH)
        if not (arm == Arm.HOST and pipe.owns_transfer) and (pipe.reads_files or not reads):
            yield arm


def measure(
    pipe: Pipeline, *, rounds: int = 4, num_steps: int = 48, drift: float = 0.0, seed: int = 0, **given: Any
) -> list[Segment]:
    """All arms, in turns. `drift`: sigma of a factor on all times of a segment, as a machine's speed moves."""
    random = np.random.default_rng([seed, 7])
    segments = []
    for number in range(rounds):
        for arm in arms_of(pipe):
            even = _segment_of(pipe, arm, number, num_steps=num_steps, seed=seed, **given)
            segments.append(_slower(even, float(random.lognormal(0, drift)) if drift else 1.0))
    return segments


_segment_of = cache(segment)
"""Tests of other drifts, and of fewer arms, ask for the same ones."""


def _slower(segment: Segment, factor: float) -> Segment:
    """The segment on a machine on which everything takes `factor` as long. The arrays are copies."""
    begin = segment.opened_ns

    def later(times: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(times < 0, times, begin + np.rint((times - begin) * factor).astype(np.int64))

    steps = segment.steps.copy()
    busy = STEP_FIELDS.index("busy_ns")
    steps[:, :busy] = later(steps[:, :busy])
    steps[:, busy] = np.where(steps[:, busy] < 0, -1, np.rint(steps[:, busy] * factor))
    spans = None
    if segment.spans is not None:
        spans = segment.spans.copy()
        for position, name in enumerate(SPAN_FIELDS):
            if name in ("start_ns", "ready_ns"):
                spans[:, position] = later(spans[:, position])
            elif name.endswith("_ns"):
                spans[:, position] = np.rint(spans[:, position] * factor)
    return replace(
        segment, steps=steps, spans=spans, closed_ns=begin + round((segment.closed_ns - begin) * factor),
        wall_s=segment.wall_s * factor, first_batch_s=segment.first_batch_s * factor,
    )  # fmt: skip


def true_step_ms(pipe: Pipeline, arm: Arm = Arm.REAL, *, num_steps: int = 240, **changes: Any) -> float:
    """Steady step time: a long window, the start left out. 240 is a multiple of every crew used here."""
    return _true_step_ms(replace(pipe, **changes), arm, num_steps)


@cache
def _true_step_ms(made: Pipeline, arm: Arm, num_steps: int) -> float:
    steps = segment(made, arm, num_steps=num_steps, num_warmup=4 * made.depth + 24, seed=99).steps
    column = STEP_FIELDS.index("done_ns" if arm in ON_DEVICE else "returned_ns")
    return float(steps[-1, column] - steps[-1 - num_steps, column]) / num_steps / 1e6


def true_speedup(pipe: Pipeline, *causes: str) -> float:
    """Step time as it is ÷ step time without the causes, both simulated."""
    without: dict[str, Any] = {}
    for cause in causes:
        without |= REMOVED[cause]
    return true_step_ms(pipe) / true_step_ms(pipe, **without)
