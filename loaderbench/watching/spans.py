"""What a DataLoader's workers do on each batch, written by them into memory that they share with the watcher.

Forked workers inherit the memory. Those that are spawned, or come from a fork server, know nothing of it: then there
are no spans.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.machine import shm_bytes
from loaderbench.originals import time
from loaderbench.recording.facts import SPAN, SPAN_FIELDS, Table, WatchedDelivery
from loaderbench.samplers.connections import Address, stores_of
from loaderbench.watching.delivered import delivery_of, warn_of_shared_memory
from loaderbench.watching.random_marks import LOOK_AFTER, RandomMarks
from loaderbench.watching.sample_marks import SampleMarks
from loaderbench.watching.stopwatch import Moment, stopwatch

SLOTS = 4096
"""Spans kept of each worker; the oldest are overwritten."""
NEXT = 8
"""int64 between the workers' counts: a cache line."""
MADE, ASKED, OBJECTS, JOINED, SHARED = 0, 1, 2, 3, 4
"""Of these: batches that were made, bytes that they asked for; of a delivered batch its objects, how many there would
be if those of a kind were joined, and its tensors' bytes, at most."""
LOOK_EVERY = 64
"""Batches from one whose objects are counted to the next."""
PEERS, PEER = 4, 4
"""Peers of each worker that are kept, those that sent most; int64 of each: address, port, bytes."""
ROW = (
    "start_ns", "fetched_ns", "ready_ns", "cpu_fetch_ns", "cpu_ns", "runqueue_fetch_ns", "runqueue_ns",
    "faults", "read_bytes", "pages",
)  # fmt: skip
AT = {name: number for number, name in enumerate(ROW)}
REST_POLL_S = 0.001


class SpanRing:
    """The last spans of each worker of one iterator."""

    def __init__(self, workers: int, depth: int = 0, *, iterable: bool = False) -> None:
        """`depth`: batches that are asked for at once. `iterable`: its data set has an order of its own."""
        self.workers, self.depth = max(1, workers), depth
        self.room = shm_bytes() if depth else None
        """(size, free) of /dev/shm before the first batch."""
        self.samples = SampleMarks(workers) if workers > 1 and iterable else None
        self.random = RandomMarks(workers) if workers > 1 and not iterable else None
        size = NEXT + self.workers * (NEXT + PEERS * PEER + SLOTS * len(ROW))
        memory = np.frombuffer(mmap.mmap(-1, size * 8), dtype=np.int64)
        counts = NEXT + self.workers * NEXT
        peers = counts + self.workers * PEERS * PEER
        self._rest_until: NDArray[np.int64] = memory[:1]
        counted = memory[NEXT:counts].reshape(self.workers, NEXT)
        self._counts: NDArray[np.int64] = counted[:, MADE]
        self._asked: NDArray[np.int64] = counted[:, ASKED]
        self._counted: NDArray[np.int64] = counted
        self._peers: NDArray[np.int64] = memory[counts:peers].reshape(self.workers, PEERS, PEER)
        self._rows: NDArray[np.int64] = memory[peers:].reshape(self.workers, SLOTS, len(ROW))

    def add(self, worker: int, row: tuple[int, ...]) -> None:
        """Called by the worker alone."""
        number = int(self._counts[worker])
        self._rows[worker, number % SLOTS] = row
        self._counts[worker] = number + 1
        self._asked[worker] += max(0, row[AT["read_bytes"]])

    def note_peers(self, worker: int, by_peer: Mapping[Address, int]) -> None:
        """Called by the worker alone: the bytes that it received so far."""
        most = sorted(by_peer.items(), key=lambda item: -item[1])[:PEERS]
        for row, ((address, port), num) in zip(self._peers[worker], most, strict=False):
            row[:] = (*struct.unpack("qq", address), port, num)

    def stores(self) -> list[str]:
        """Peers of all workers; see `stores_of`."""
        by_peer: dict[Address, int] = {}
        for first, second, port, num in self._peers.reshape(-1, PEER).tolist():
            if num:
                address = struct.pack("qq", first, second), port
                by_peer[address] = by_peer.get(address, 0) + num
        return stores_of(by_peer, int(self._asked.sum()))

    def rest_until(self, ns: int) -> None:
        """No worker begins a batch before this time of `perf_counter_ns`; 0: each goes on at once."""
        self._rest_until[0] = ns

    def rest(self) -> None:
        """Called by a worker before a batch: it waits as long as it is told to."""
        while time.perf_counter_ns() < self._rest_until[0]:
            time.sleep(REST_POLL_S)

    def note_delivery(self, worker: int, objects: int, joined: int, shared_bytes: int) -> None:
        """Called by the worker alone."""
        row = self._counted[worker]
        row[OBJECTS], row[JOINED], row[SHARED] = objects, joined, max(int(row[SHARED]), shared_bytes)

    def delivery(self) -> WatchedDelivery | None:
        """What a batch consists of, of the worker that gives the most; None before the first one."""
        row = self._counted[int(self._counted[:, OBJECTS].argmax())]
        objects, joined = int(row[OBJECTS]), int(row[JOINED])
        return WatchedDelivery(objects, joined, int(self._counted[:, SHARED].max())) if objects else None

    def first_s(self, worker: int, before: int) -> float | None:
        """Seconds that a worker's first batch after so many took; None where it is overwritten, or not made."""
        written = int(self._counts[worker])
        if not before < written <= before + SLOTS:
            return None
        row = self._rows[worker, before % SLOTS]
        return float(row[AT["ready_ns"]] - row[AT["start_ns"]]) / 1e9

    def made(self) -> list[int]:
        """Batches of each worker so far."""
        return [int(count) for count in self._counts]

    def table(self, before: Sequence[int], first: int, num: int, by: Sequence[int] | None = None) -> Table | None:
        """[num, len(SPAN_FIELDS)] of an epoch's batches from `first` on, in the order in which a DataLoader hands them
        over. `before`: what each worker had made before that epoch; `by`: the worker of each batch of the epoch; None:
        each worker in turn. None where a worker wrote none, or they are overwritten.

        `read_ns` is the time in the data set's own code in which the worker's threads neither ran nor wanted to run:
        they waited for what they read. `decode_ns` is the rest of that code.
        """
        batch = np.arange(first, first + num)
        if by is None:
            worker, nth = batch % self.workers, batch // self.workers
        else:
            worker, nth = _numbered(np.asarray(by[: first + num], dtype=np.int64), first)
        number = np.asarray(before, dtype=np.int64)[worker] + nth
        written = self._counts[worker]
        if (number < written - SLOTS).any() or (number >= written).any():
            return None
        return _spans(np.column_stack((worker, self._rows[worker, number % SLOTS])))


def _numbered(by: NDArray[np.int64], first: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(worker, how many of this worker's batches came before) of each batch from `first` on."""
    nth = np.zeros(len(by), dtype=np.int64)
    for worker in np.unique(by):
        mine = by == worker
        nth[mine] = np.arange(mine.sum())
    return by[first:], nth[first:]


def _spans(rows: Table) -> Table:
    worker, of = rows[:, 0], {name: rows[:, 1 + at] for name, at in AT.items()}
    fetch_ns = of["fetched_ns"] - of["start_ns"]
    known = (of["runqueue_ns"] >= 0) & (of["runqueue_fetch_ns"] >= 0)
    waited = (fetch_ns - of["cpu_fetch_ns"] - of["runqueue_fetch_ns"]).clip(0)
    table = np.zeros((len(rows), len(SPAN_FIELDS)), dtype=np.int64)
    for name, values in (
        ("worker", worker),
        ("start_ns", of["start_ns"]),
        ("ready_ns", of["ready_ns"]),
        ("read_ns", np.where(known, waited, 0)),
        ("decode_ns", fetch_ns - np.where(known, waited, 0)),
        ("collate_ns", of["ready_ns"] - of["fetched_ns"]),
        ("cpu_ns", of["cpu_ns"]),
        ("runqueue_ns", of["runqueue_ns"]),
        ("major_faults", of["faults"]),
        ("page_bytes", of["read_bytes"]),
        ("minor_faults", of["pages"]),
        ("read_cpu_ns", np.full_like(worker, -1)),
        ("read_queue_ns", np.where(known, 0, -1)),
    ):
        table[:, SPAN[name]] = values
    return table


class Lane:
    """The one place of a fetcher: which ring its spans go to, and as which worker's."""

    def __init__(self, ring: SpanRing, worker: int, data: object = None) -> None:
        """`data`: the data set that it fetches from."""
        self._ring, self._worker, self._data = ring, worker, data
        self._fetched: Moment | None = None
        self._by_peer: dict[Address, int] = {}
        self._num = 0
        self._samples: Any = None
        if ring.samples is not None:
            ring.samples.begin(worker)

    def collating(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`collate` that leaves a mark where it begins."""

        def marked(samples: Any) -> Any:
            self._fetched = stopwatch().now()
            self._samples = samples
            return collate(samples)

        return marked

    def fetch(self, make: Callable[[], Any]) -> Any:
        """What `make` gives; its span goes into the ring."""
        self._ring.rest()
        if self._ring.random is not None and not self._num:
            self._ring.random.before(self._worker, self._data)
        watch = stopwatch()
        begun = watch.begin()
        start = watch.now()
        self._fetched = None
        batch = make()
        ready = watch.now()
        fetched = self._fetched or ready
        spent = watch.since(begun)
        known = min(start.waited_ns, fetched.waited_ns, ready.waited_ns) >= 0
        self._ring.add(
            self._worker,
            (
                start.wall_ns, fetched.wall_ns, ready.wall_ns,
                fetched.cpu_ns - start.cpu_ns, ready.cpu_ns - start.cpu_ns,
                fetched.waited_ns - start.waited_ns if known else -1,
                ready.waited_ns - start.waited_ns if known else -1,
                spent.faults, -1 if spent.asked is None else spent.asked, max(0, fetched.pages - start.pages),
            ),
        )  # fmt: skip
        if spent.by_peer:
            for peer, num in spent.by_peer.items():
                self._by_peer[peer] = self._by_peer.get(peer, 0) + num
            self._ring.note_peers(self._worker, self._by_peer)
        self._look(batch, ready.wall_ns - start.wall_ns)
        return batch

    def _look(self, batch: Any, made_ns: int) -> None:
        """Count what is delivered, and mark samples, in a part of the time that making the batch took."""
        ring, samples, self._samples = self._ring, self._samples, None
        if self._num % LOOK_EVERY == 0 and ring.depth:
            found = delivery_of(batch)
            ring.note_delivery(self._worker, found.objects, found.joined, found.shared_bytes)
            if self._num == 0 and self._worker == 0:
                warn_of_shared_memory(found.shared_bytes, ring.depth, ring.room)
        self._num += 1
        if ring.samples is not None:
            ring.samples.add(self._worker, samples, made_ns)
        if ring.random is not None and self._num == LOOK_AFTER:
            ring.random.after(self._worker, self._data)
