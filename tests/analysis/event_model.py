"""A pipeline of loader, host and device as a discrete-event simulation: runs whose truth is known.

Finer than simulate.py where verdicts are hard to get right: workers that share one storage or few cores, reading
and decoding in turn, batches in order, a host that issues slower while workers run beside it, other processes on the
cores, slow files, a storage that stands still, batches under way that are cancelled when the window closes. Shares no
code with the package but the names of the arms and columns, and what is kept of reads; what a run without a cause would
take is simulated, not computed from what the estimators see.
Times in ms; the tables hold ns, as the loop records them.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count, repeat
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import (
    MOST_SLOWEST,
    MOST_SLOWEST_OF_REAL,
    READ_FIELDS,
    SLOW_READ_FIELDS,
    SPAN_FIELDS,
    STEP_FIELDS,
    CpuWindow,
    ReadTimes,
    Segment,
)
from loaderbench.running.read_times import read_times
from tests.analysis.event_world import Cores, Gate, Process, Standstills, Thread, World, balanced, balanced_gaps, within

ON_DEVICE = (Arm.DEVICE, Arm.HOST, Arm.RAM, Arm.REAL)
ARMS = (*ON_DEVICE, Arm.FREE, Arm.PREP, Arm.FETCH)
OVER_STORAGE = (Arm.REAL, Arm.FREE, Arm.FETCH)
NEXT_MS = 0.005
"""What `next()` costs the host where a batch is ready."""
IN_FLIGHT = 2
CHUNKS = 3
"""Pieces in which a worker reads and decodes a batch in turn, as it does image by image."""
NUM_SAMPLES, FILE_BYTES = 64, 100_000
FILES = tuple((chunk + 1) * NUM_SAMPLES // CHUNKS - chunk * NUM_SAMPLES // CHUNKS for chunk in range(CHUNKS))
"""In each piece."""
OPEN_PART = 0.1
"""Of a file's time, what opening it takes."""
EPOCH_MS = 5_000.0
"""The host's clock does not begin at 0."""
BETWEEN_MS = 50.0
"""Windows over a storage that stands still follow each other on its clock, so far apart."""
NEVER_SHORT = 64
"""Processors of a machine on which each worker has its own."""


@dataclass(frozen=True)
class Pipeline:
    """What one batch costs each stage."""

    workers: int = 4
    """0: the loader works inside `next()`."""
    prefetch: int = 2
    in_turn: bool = True
    """Batch k is of worker k mod W, a process; False: threads, of which the first free one makes the next batch."""
    send_ms: float = 0.0
    """From a batch that is complete in its worker to its arrival in the host's process; both go on meanwhile."""
    latency_ms: float = 0.0
    """Read time that each worker waits out for itself (latency-bound storage)."""
    storage_ms: float = 0.0
    """Read time on the one storage that all workers share (bandwidth-bound storage)."""
    tail: tuple[float, float] = (0.0, 0.0)
    """(the part of the files that are slow, drawn anew for each batch; what each takes longer)."""
    stall_every_ms: float = 0.0
    stall_ms: float = 0.0
    """The storage stands still for so long, once in `stall_every_ms`: nothing is read."""
    irregular: bool = False
    """Those come after random times."""
    decode_ms: float = 0.0
    collate_ms: float = 0.0
    cores: int | None = None
    """Decode and collate share so many; None: a core for each worker."""
    neighbours: int = 0
    """Threads of others that always want a core, and share them fairly with the workers, by time slices."""
    host_on_cores: bool = False
    """The host's own work needs one of the cores, too, and gets the next that is given up; all share by time slices."""
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
    tells_more: bool = False
    """The times of single files and who had the cores, as runs of today do; always told where these tell the cause."""

    @property
    def is_uneven(self) -> bool:
        """Whether the storage has slow files or stands still."""
        return self.tail[0] > 0 or self.stall_ms > 0

    @property
    def tells_all(self) -> bool:
        return self.tells_more or self.is_uneven or self.slices

    @property
    def slices(self) -> bool:
        """Whether the cores are shared by time slices; else whoever came first has one until its piece is done."""
        return self.cores is not None and (self.neighbours > 0 or self.host_on_cores)

    @property
    def depth(self) -> int:
        return max(self.workers, 1) * self.prefetch


EVEN: dict[str, Any] = {"tail": (0.0, 0.0), "stall_ms": 0.0}
REMOVED: dict[str, dict[str, Any]] = {
    "storage": {"latency_ms": 0.0, "storage_ms": 0.0, **EVEN},
    "prep": {"decode_ms": 0.0, "collate_ms": 0.0, "send_ms": 0.0, "crowded_issue_ms": 0.0, "crowded_next_ms": 0.0},
    "transfer": {"transfer_ms": 0.0},
    "launch": {"gap_ms": 0.0, "issue_ms": 0.0, "crowded_issue_ms": 0.0},
    "compute": {"busy_ms": 0.0, "gap_ms": 0.0},
    "tail": {"tail": (0.0, 0.0)},
    "stalls": {"stall_ms": 0.0},
    "others": {"neighbours": 0},
}
"""The pipeline without a cause. Contention goes with preparation, and with launches as well."""


def factors(sigma: float, random: np.random.Generator) -> Iterator[float]:
    """Lognormal factors of mean 1."""
    while True:
        yield from random.lognormal(-sigma * sigma / 2, sigma, 256).tolist() if sigma else repeat(1.0)


@cache
def _lognormal(sigma: float) -> NDArray[np.float64]:
    """The middles of equally likely parts, of mean 1."""
    normal = NormalDist()
    values = np.exp(sigma * np.array([normal.inv_cdf((number + 0.5) / 720) for number in range(720)]))
    return np.asarray(values / values.mean())


def even_factors(sigma: float, random: np.random.Generator) -> Iterator[float]:
    """As many large ones and small ones as there should be, in each 720."""
    return balanced(_lognormal(sigma), random) if sigma else repeat(1.0)


def _gaps(part: float, random: np.random.Generator, *, even: bool) -> Iterator[int]:
    """From a slow file to the next one."""
    if not part:
        return repeat(1)
    if even:
        return balanced_gaps(part, random, EVEN_BATCHES * NUM_SAMPLES)
    return (int(random.geometric(part)) for _ in count())


EVEN_BATCHES = 480
"""At least so many have exactly their part of slow files, where luck is to be left out."""


@dataclass
class Made:
    """What is told of a batch."""

    worker: int
    start: float
    ready: float = 0.0
    read: float = 0.0
    decode: float = 0.0
    collate: float = 0.0
    cpu: float = 0.0
    queued: float = 0.0
    """Waiting for a core."""
    arrived: float | None = None
    """In the host's process."""
    pieces: list[tuple[float, float, tuple[int, ...]]] = field(default_factory=list)
    """Reading of each began and ended, and which of its files are slow."""


class Loader:
    """Workers that make batches k, k + W, k + 2W … each, at most `depth` asked for and not yet taken, in order."""

    def __init__(
        self, world: World, pipe: Pipeline, still: Standstills, random: np.random.Generator, *, even: bool = False
    ) -> None:
        self.world, self.pipe, self.still = world, pipe, still
        one = factors(pipe.jitter, random)
        self._storage, self._latency, self._decode = (
            (even_factors(pipe.jitter, random) if even else one) for _ in range(3)
        )
        self._slow = np.random.default_rng(random.bit_generator.seed_seq.spawn(1)[0])  # type: ignore[attr-defined]
        self._gaps = _gaps(pipe.tail[0], self._slow, even=even)
        self._until_slow = next(self._gaps) - 1
        self.num_taken = self._num_begun = 0
        self.made: dict[int, Made] = {}
        """Finished batches."""
        self.host = Thread()
        """The one that takes batches and issues."""
        self.crew = [Thread() for _ in range(pipe.workers)]
        self._room, self._arrived = Gate(), Gate()
        self._storage_free = world.now
        self._core_free = [world.now] * (pipe.cores or 0)
        self.cores = Cores(world, pipe.cores or 0, pipe.neighbours, self._slow) if pipe.slices else None
        for worker in range(pipe.workers):
            world.add(self._work(worker))

    def _on_core(self, made: Made, at: float, cost: float) -> Generator[float | Gate, None, float]:
        """When it has been done. Yields only where others have a say in what comes next."""
        pipe, world = self.pipe, self.world
        thread = self.crew[made.worker] if pipe.workers else self.host
        made.cpu += cost
        if pipe.cores is None:
            thread.ran.append((at, at + cost))
            return at + cost
        if at > world.now:
            yield at
        if self.cores is not None:
            made.queued += yield from self.cores.work(cost, thread)
            return world.now
        begin = max(world.now, heapq.heappop(self._core_free))  # first come, first served
        heapq.heappush(self._core_free, begin + cost)
        made.queued += begin - at
        thread.waited.append((at, begin))
        thread.ran.append((begin, begin + cost))
        return begin + cost

    def _slow_of(self, files: int) -> tuple[int, ...]:
        """Which of the next files are slow."""
        slow = []
        while self._until_slow < files:
            slow.append(self._until_slow)
            self._until_slow += next(self._gaps)
        self._until_slow -= files
        return tuple(slow)

    def _read(self, made: Made, at: float, files: int) -> Generator[float | Gate, None, float]:
        """When a piece's files have been read."""
        pipe, begun = self.pipe, at
        slow = self._slow_of(files) if pipe.tail[0] else ()
        if pipe.storage_ms:
            if at > self.world.now:
                yield at
            cost = pipe.storage_ms / CHUNKS * next(self._storage)
            at = self._storage_free = self.still.end(max(at, self._storage_free), cost)
        own = pipe.latency_ms / CHUNKS * next(self._latency) if pipe.latency_ms else 0.0
        at = self.still.end(at, own + len(slow) * pipe.tail[1])
        made.read += at - begun
        made.pieces.append((begun, at, slow))
        return at

    def _make(self, worker: int, number: int) -> Process:
        """One batch: read and decode in turn, then collate."""
        pipe, world = self.pipe, self.world
        made = Made(worker, world.now)
        at = made.start
        for files in FILES:
            begun = at = yield from self._read(made, at, files)
            if pipe.decode_ms:
                at = yield from self._on_core(made, at, pipe.decode_ms / CHUNKS * next(self._decode))
            made.decode += at - begun
        begun = at
        if pipe.collate_ms:
            at = yield from self._on_core(made, at, pipe.collate_ms)
        made.collate = at - begun
        if at > world.now:
            yield at
        made.ready = at
        self.made[number] = made
        if pipe.send_ms and pipe.workers:
            world.add(self._send(made), at + pipe.send_ms)
        else:
            made.arrived = at
            world.open(self._arrived)

    def _send(self, made: Made) -> Process:
        made.arrived = self.world.now
        self.world.open(self._arrived)
        yield from ()

    def _work(self, worker: int) -> Process:
        number = worker
        while True:
            if not self.pipe.in_turn:
                number = self._num_begun
            if number >= self.num_taken + self.pipe.depth:
                yield self._room
                continue
            self._num_begun += 1
            yield from self._make(worker, number)
            number += self.pipe.workers

    def take(self) -> Generator[float | Gate, None, Made]:
        """What `next()` waits for."""
        number = self.num_taken
        if self.pipe.workers == 0:
            yield from self._make(0, number)
        while (made := self.made.get(number)) is None or made.arrived is None:
            yield self._arrived
        self.num_taken += 1
        self.world.open(self._room)
        return made


def _as_arm(pipe: Pipeline, arm: Arm) -> Pipeline:
    """What the arm changes of the loader."""
    if arm in (Arm.RAM, Arm.PREP):
        return replace(pipe, **REMOVED["storage"])
    if arm == Arm.FETCH:  # as many readers that do nothing else, one where the loader works inside next()
        return replace(pipe, **REMOVED["prep"], workers=max(pipe.workers, 1))
    return pipe


def _simulated(
    pipe: Pipeline, arm: Arm, number: int, *, num_steps: int, num_warmup: int | None, pause_ms: float = 0.0,
    begin_ms: float = EPOCH_MS, seed: int, even: bool = False,
) -> tuple[World, Loader, Host]:  # fmt: skip
    """All that happened until the window closed. `even`: luck is left out, as far as a window's means go."""
    made = _as_arm(pipe, arm)
    warmup = (2 * made.depth + 8 if arm.is_fed else 4) if num_warmup is None else num_warmup
    world = World(begin_ms)
    still = Standstills(made.stall_every_ms, made.stall_ms, irregular=made.irregular, seed=seed, even=even)
    random = np.random.default_rng([seed, number, ARMS.index(arm)])
    loader = Loader(world, made if arm.is_fed else replace(made, workers=0), still, random, even=even)
    host = Host(world, made, arm, loader, warmup)
    world.run(host.steps(num_steps, pause_ms))
    return world, loader, host


def segment(
    pipe: Pipeline,
    arm: Arm,
    number: int = 0,
    *,
    num_steps: int = 48,
    num_warmup: int | None = None,
    pause_ms: float = 0.0,
    begin_ms: float = EPOCH_MS,
    seed: int = 0,
) -> Segment:
    """One window of one arm, recorded as the step loop does.

    `pause_ms`: the host's pause before the last step of the warm-up, in which the loader can fill its queue.
    `begin_ms`: when it begins, on the clock of a storage that stands still.
    """
    world, loader, host = _simulated(
        pipe, arm, number, num_steps=num_steps, num_warmup=num_warmup, pause_ms=pause_ms, begin_ms=begin_ms, seed=seed
    )
    rows, tells_spans = host.rows, arm.is_fed and pipe.tells_spans
    return Segment(
        arm=arm,
        round=number,
        num_warmup=host.num_warmup,
        steady=True,
        steps=_step_table(rows),
        spans=_span_table(loader) if tells_spans else None,
        opened_ns=round(begin_ms * 1e6),
        closed_ns=round(world.now * 1e6),
        wall_s=(world.now - begin_ms) / 1e3,
        first_batch_s=(rows[0][1] - begin_ms) / 1e3,
        num_drained=len(loader.made) - len(rows) if tells_spans else None,
        consumer_cpu_s=within(loader.host.ran, host.window_begin, world.now) / 1e3,
        cpu=_cpu_window(pipe, loader, host.window_begin, world.now),
        reads=_read_times(pipe, arm, loader, len(rows)),
    )


class Host:
    """The thread that takes batches and issues, and the device's queue as it fills it."""

    def __init__(self, world: World, pipe: Pipeline, arm: Arm, loader: Loader, num_warmup: int) -> None:
        self.world, self.pipe, self.arm, self.loader, self.num_warmup = world, pipe, arm, loader, num_warmup
        self._cores = loader.cores if pipe.host_on_cores else None
        self.rows: list[list[float]] = []
        self.window_begin = world.now
        self._free = self._copies_free = world.now
        self._in_flight = deque[float]()
        self._num_waits, self._queued = 0, 0.0

    def steps(self, num_steps: int, pause_ms: float = 0.0) -> Process:
        pipe, world, fed, warmup = self.pipe, self.world, self.arm.is_fed, self.num_warmup
        tells_arrival = pipe.workers > 0 and pipe.in_turn and pipe.tells_spans
        for step in range(warmup + num_steps):
            if step == warmup - 1 and pause_ms:
                yield world.now + pause_ms
            if step == warmup:
                self.window_begin = world.now
            called, arrived = world.now, -1.0
            if fed:
                made = yield from self.loader.take()
                arrived = made.arrived if tells_arrival and made.arrived is not None else -1.0
            yield from self._work(NEXT_MS + (pipe.crowded_next_ms if fed and pipe.workers else 0.0))
            returned = world.now
            issue = self._issue(returned) if self.arm in ON_DEVICE else None
            told = [returned, returned, -1, -1, -1, -1, -1] if issue is None else (yield from issue)
            self.rows.append([called, returned, *told[:-1], arrived, self._waited(), told[-1]])
        # What is under way when the window closes is cancelled, so nothing is drained beyond this moment.

    def _issue(self, returned: float) -> Generator[float | Gate, None, list[float]]:
        """The columns from `issued` to `busy`, and `ahead`."""
        pipe, world = self.pipe, self.world
        transfer_ms = 0.0 if self.arm == Arm.DEVICE or pipe.owns_transfer else pipe.transfer_ms
        is_crowded = self.arm in (Arm.RAM, Arm.REAL) and pipe.workers
        begin = max(returned, self._copies_free if pipe.overlap else self._free)
        copied = self._copies_free = begin + transfer_ms
        yield from self._work(pipe.issue_ms + (pipe.crowded_issue_ms if is_crowded else 0.0))
        issued = world.now
        ahead = float(self._free > issued) if self._in_flight else -1.0
        # Kernels start with the first one issued and cannot end before the last one is.
        self._free = max(max(copied, self._free) + pipe.busy_ms + pipe.gap_ms, issued)
        self._in_flight.append(done := self._free)
        if len(self._in_flight) > IN_FLIGHT:
            yield max(world.now, self._in_flight.popleft())
        return [issued, world.now, begin, copied, done, pipe.busy_ms if pipe.tells_busy else -1, ahead]

    def _work(self, cost: float) -> Process:
        """On a core of its own, or on one that it waits for."""
        if self._cores is not None:
            yield from self._cores.work(cost, self.loader.host, first=True)
            return
        self.loader.host.ran.append((self.world.now, self.world.now + cost))
        yield self.world.now + cost

    def _waited(self) -> float:
        """For a core, since this was asked last."""
        waits = self.loader.host.waited
        new, self._num_waits = waits[self._num_waits :], len(waits)
        return sum(end - begin for begin, end in new)


NUM_TIMES = STEP_FIELDS.index("num_samples")


def _step_table(rows: list[list[float]]) -> NDArray[np.int64]:
    table = np.full((len(rows), len(STEP_FIELDS)), -1, dtype=np.int64)
    told = np.array(rows)
    in_ns = np.where(told < 0, -1, np.rint(told * 1e6))
    table[:, :NUM_TIMES] = in_ns[:, :NUM_TIMES]
    table[:, NUM_TIMES : NUM_TIMES + 2] = NUM_SAMPLES, NUM_SAMPLES * FILE_BYTES
    table[:, STEP_FIELDS.index("arrived_ns")] = in_ns[:, NUM_TIMES]
    table[:, STEP_FIELDS.index("queued_ns")] = in_ns[:, NUM_TIMES + 1]
    table[:, STEP_FIELDS.index("ahead")] = told[:, NUM_TIMES + 2]
    return table


def _span_table(loader: Loader) -> NDArray[np.int64]:
    """Spans of the batches delivered, then of those left in the queue."""
    finished = [loader.made[number] for number in sorted(loader.made)]
    table = np.zeros((len(finished), len(SPAN_FIELDS)), dtype=np.int64)
    column = {name: position for position, name in enumerate(SPAN_FIELDS)}
    table[:, column["worker"]] = [made.worker for made in finished]
    told = {"start_ns": "start", "ready_ns": "ready", "read_ns": "read", "decode_ns": "decode",
            "collate_ns": "collate", "cpu_ns": "cpu", "runqueue_ns": "queued"}  # fmt: skip
    for name, of in told.items():
        table[:, column[name]] = [round(getattr(made, of) * 1e6) for made in finished]
    table[:, column["page_bytes"]] = NUM_SAMPLES * (-(-FILE_BYTES // 4096) * 4096)
    return table


def _cpu_window(pipe: Pipeline, loader: Loader, begin: float, end: float) -> CpuWindow | None:
    """Who had the cores. Where the host needs none of them, what it takes of another one is not told."""
    if not pipe.tells_all:
        return None
    host, cores = loader.host, loader.cores

    def used_s(thread: Thread) -> tuple[float, float]:
        """(it ran, it waited for a core)."""
        return within(thread.ran, begin, end) / 1e3, within(thread.waited, begin, end) / 1e3

    crew_s = [used_s(one) for one in loader.crew]
    is_told = pipe.cores is None or pipe.host_on_cores or not pipe.workers
    all_s = [*crew_s, used_s(host)] if is_told else crew_s
    own_s = sum((ran for ran, _ in all_s), 0.0)
    others_s = 0.0 if cores is None else used_s(cores.others)[0]
    busiest = max(crew_s, key=sum, default=(0.0, 0.0))
    return CpuWindow(
        wall_s=(end - begin) / 1e3,
        own_s=own_s,
        own_queued_s=sum((waited for _, waited in all_s), 0.0),
        consumer_queued_s=used_s(host)[1],
        machine_busy_s=own_s + others_s,
        stolen_s=0.0,
        cpus=pipe.cores or NEVER_SHORT,
        quota_cpus=None,
        num_throttled=None,
        python_threads_s=0.0 if pipe.in_turn else sum((ran for ran, _ in crew_s), 0.0),
        busiest_s=busiest[0],
        busiest_queued_s=busiest[1],
    )


def _read_table(pipe: Pipeline, loader: Loader, num_steps: int) -> NDArray[np.int64]:
    """A row of SLOW_READ_FIELDS for each file; what a piece waited for other readers is spread over its files."""
    batches, still = sorted(loader.made), loader.still
    pieces = [piece for number in batches for piece in loader.made[number].pieces]
    begun, ended = (np.array([piece[end] for piece in pieces]) for end in (0, 1))
    files, num_slow = np.tile(FILES, len(batches)), np.array([len(piece[2]) for piece in pieces])
    first = np.cumsum(files) - files
    opened = still.open_time(begun)
    each = (still.open_time(ended) - opened - num_slow * pipe.tail[1]) / files
    took = np.repeat(each, files)
    slow = [at + file for at, piece in zip(first.tolist(), pieces, strict=True) for file in piece[2]]
    took[slow] += pipe.tail[1]
    after = np.cumsum(took)
    after += np.repeat(opened - after[first] + took[first], files)
    last = float(ended.max())
    begins = np.maximum(np.repeat(begun, files), still.clock(after - took, last))
    lasted = still.clock(after, last) - begins
    table = np.zeros((len(took), len(SLOW_READ_FIELDS)), dtype=np.int64)
    number = np.repeat(batches, NUM_SAMPLES)
    table[:, 0] = number * NUM_SAMPLES + np.tile(np.arange(NUM_SAMPLES), len(batches))
    for column, times in enumerate((begins, lasted * OPEN_PART, lasted * (1 - OPEN_PART)), start=1):
        table[:, column] = np.rint(times * 1e6)
    table[:, 4], table[:, 5] = FILE_BYTES, np.where(number < num_steps, number, -1)
    return table


def _read_times(pipe: Pipeline, arm: Arm, loader: Loader, num_steps: int) -> ReadTimes | None:
    """Of the files of all finished batches, each read behind the one before; None where reading takes no time."""
    if not (pipe.tells_all and arm in OVER_STORAGE and (pipe.latency_ms or pipe.storage_ms or pipe.tail[0])):
        return None
    table = _read_table(pipe, loader, num_steps)
    found = read_times(table[:, : len(READ_FIELDS)], most=MOST_SLOWEST_OF_REAL if arm is Arm.REAL else MOST_SLOWEST)
    if found is None:
        return None
    kept = found.slowest.copy()  # an image is read once
    batch_of = dict(zip(table[:, 0].tolist(), table[:, 5].tolist(), strict=True))
    kept[:, -1] = [batch_of[image] for image in kept[:, 0].tolist()]
    return replace(found, slowest=kept)


def arms_of(pipe: Pipeline) -> Iterator[Arm]:
    """The arms that are measured of it."""
    for arm in ARMS:
        reads = arm in (Arm.RAM, Arm.PREP, Arm.FETCH)
        if not (arm == Arm.HOST and pipe.owns_transfer) and (pipe.reads_files or not reads):
            yield arm


def measure(
    pipe: Pipeline,
    *,
    rounds: int = 4,
    num_steps: int = 48,
    drift: float = 0.0,
    seed: int = 0,
    arms: Sequence[Arm] = ARMS,
    **given: Any,
) -> list[Segment]:
    """All arms, in turns, or those asked for. `drift`: sigma of a factor on all times of a segment, as a machine's
    speed moves; standstills of a storage, and what takes turns with others, stay as they are."""
    random = np.random.default_rng([seed, 7])
    segments: list[Segment] = []
    given |= {"num_steps": num_steps, "seed": seed}
    for number in range(rounds):
        for arm in (arm for arm in arms_of(pipe) if arm in arms):
            factor = float(random.lognormal(0, drift)) if drift else 1.0
            if pipe.stall_ms and segments:
                given["begin_ms"] = segments[-1].closed_ns / 1e6 + BETWEEN_MS
            if pipe.tells_all:
                segments.append(_segment_of(slower(pipe, factor), arm, number, **given))
            else:
                segments.append(_slower(_segment_of(pipe, arm, number, **given), factor))
    return segments


TIMES = (
    "send_ms", "latency_ms", "storage_ms", "decode_ms", "collate_ms", "transfer_ms", "busy_ms", "gap_ms", "issue_ms",
    "crowded_issue_ms", "crowded_next_ms",
)  # fmt: skip


def slower(pipe: Pipeline, factor: float) -> Pipeline:
    """All work of it takes `factor` as long."""
    part, extra_ms = pipe.tail
    return replace(pipe, tail=(part, extra_ms * factor), **{name: getattr(pipe, name) * factor for name in TIMES})


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
        wall_s=(segment.wall_s or 0.0) * factor, first_batch_s=(segment.first_batch_s or 0.0) * factor,
    )  # fmt: skip


def steps_ms(
    pipe: Pipeline, arm: Arm, *, num_steps: int, num_warmup: int, seed: int, even: bool = False
) -> list[float]:
    """When the steps of a window ended, its warm-up first."""
    _, _, host = _simulated(pipe, arm, 0, num_steps=num_steps, num_warmup=num_warmup, seed=seed, even=even)
    return [row[ENDED if arm in ON_DEVICE else 1] for row in host.rows]


ENDED = STEP_FIELDS.index("done_ns")
LEAST_STANDSTILLS, MOST_STEPS = {False: 40, True: 300}, 14_400
"""That a window must hold to tell the truth, by whether they are irregular; steps of the longest."""


def true_step_ms(
    pipe: Pipeline, arm: Arm = Arm.REAL, *, num_steps: int = 240, even: bool = False, **changes: Any
) -> float:
    """Steady step time: a long window, the start left out. 240 is a multiple of every crew used here. `even`: of times
    that vary it has as many long ones as there should be."""
    return _true_step_ms(replace(pipe, **changes), arm, num_steps, even)


@cache
def _true_step_ms(made: Pipeline, arm: Arm, num_steps: int, even: bool) -> float:
    made = replace(made, tells_more=False)
    if made.stall_ms and arm in OVER_STORAGE:
        unstalled_ms = _true_step_ms(replace(made, stall_ms=0.0), arm, num_steps, even)
        wanted = LEAST_STANDSTILLS[made.irregular] * made.stall_every_ms / unstalled_ms
        num_steps = max(num_steps, min(MOST_STEPS, 240 * -int(-wanted // 240)))
    times = steps_ms(made, arm, num_steps=num_steps, num_warmup=4 * made.depth + 24, seed=99, even=even)
    return float(times[-1] - times[-1 - num_steps]) / num_steps


def true_speedup(pipe: Pipeline, *causes: str, **given: Any) -> float:
    """Step time as it is ÷ step time without the causes, both simulated."""
    without: dict[str, Any] = {}
    for cause in causes:
        without |= REMOVED[cause]
    return true_step_ms(pipe, **given) / true_step_ms(pipe, **given, **without)
