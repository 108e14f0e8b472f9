"""Threads that read files ahead of the threads that decode them, to hide storage latency.

Reading waits, decoding computes: the right number of files in flight depends on the latency, that of files decoded at
once on the processors. So reading and decoding have their own threads here.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque

from loaderbench.loaders.base import LoaderContext
from loaderbench.loaders.order import BatchPlan
from loaderbench.loaders.samples import PAGE_BYTES, read_image


class BatchReads:
    """The files of one batch: reader threads put them in, one worker takes them in the order of the plan."""

    def __init__(self, owner: ReadAhead, plan: BatchPlan) -> None:
        self._owner = owner
        self.indices: list[int] = plan.indices.tolist()
        self.arrived = threading.Condition(owner.lock)
        self.num_begun = 0
        self.num_taken = 0
        self.ready: dict[int, bytes | BaseException] = {}
        self.cancelled = False

    def take(self, most_bytes: int, most: int) -> list[bytes] | None:
        """The next files: at least one, more of those that are ready, up to a size and a number. None: cancelled.

        Raises:
            CaseFailed: the next one could not be read.
        """
        taken: list[bytes] = []
        with self._owner.lock:
            while self.num_taken not in self.ready and not self.cancelled:
                self.arrived.wait()
            if self.cancelled:
                return None
            num_bytes = 0
            while len(taken) < most and num_bytes < most_bytes and self.num_taken in self.ready:
                if isinstance(self.ready[self.num_taken], BaseException) and taken:
                    break  # those before it are made first
                encoded = self.ready.pop(self.num_taken)
                self.num_taken += 1
                if isinstance(encoded, BaseException):
                    raise encoded
                taken.append(encoded)
                num_bytes += len(encoded)
            self._owner.room.notify(max(1, len(taken)))
        return taken


class ReadAhead:
    """`num_threads` readers. At most `window` files of each requested batch are read and not yet taken.

    Memory: batches in flight × `window` files. Files of the batch requested first are read first; later batches never
    starve one that is being decoded, since each has its own window. Order and content of what is taken depend on the
    plans alone.
    """

    def __init__(self, context: LoaderContext, num_threads: int, window: int) -> None:
        self._context, self._num_threads, self._window = context, num_threads, window
        self.lock = threading.Lock()
        self.room = threading.Condition(self.lock)
        self._idle = threading.Condition(self.lock)
        self._batches: deque[BatchReads] = deque()
        self._num_reading = 0
        self._ending = False
        self._threads: list[threading.Thread] = []
        self.most_held = 0
        """The maximum over time of the files that were read, or being read, and not yet taken."""

    def start(self) -> None:
        """Start the readers. Does nothing where they run already.

        Raises:
            RuntimeError: the system cannot start all threads; those that started have ended again.
        """
        if self._threads:
            return
        self._ending = False
        atexit.register(self.close)  # else the interpreter would stop the threads at any point of their work
        try:
            for number in range(self._num_threads):
                thread = threading.Thread(target=self._run, name=f"read-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError:
            self.close()
            raise

    def ask(self, plan: BatchPlan) -> BatchReads:
        """Request the files of a batch; they are read after those of batches requested before."""
        reads = BatchReads(self, plan)
        with self.lock:
            while self._batches and self._batches[0].num_taken == len(self._batches[0].indices):
                self._batches.popleft()
            self._batches.append(reads)
            self.room.notify_all()
        return reads

    def _next(self) -> BatchReads | None:
        """The first batch with a file to read and room for it. The lock is held."""
        for reads in self._batches:
            if reads.num_begun < len(reads.indices) and reads.num_begun - reads.num_taken < self._window:
                return reads
        return None

    def _run(self) -> None:
        while True:
            with self.lock:
                while (reads := self._next()) is None and not self._ending:
                    self.room.wait()
                if reads is None:
                    return
                position = reads.num_begun
                reads.num_begun += 1
                self._num_reading += 1
                self.most_held = max(self.most_held, sum(one.num_begun - one.num_taken for one in self._batches))
            result: bytes | BaseException
            try:
                result = read_image(self._context, reads.indices[position])
            except BaseException as error:  # handed to the worker, who raises it
                result = error
            with self.lock:
                reads.ready[position] = result
                self._num_reading -= 1
                if position == reads.num_taken:
                    reads.arrived.notify()
                if not self._num_reading:
                    self._idle.notify_all()

    def cancel(self) -> int:
        """Drop all requests and wake the threads that wait for them; returns when nothing is being read any more.

        Returns the bytes that were read in vain, each file rounded up to whole pages.
        """
        with self.lock:
            dropped, self._batches = self._batches, deque()
            for reads in dropped:
                reads.cancelled = True
                reads.arrived.notify_all()
            while self._num_reading:
                self._idle.wait()
            left = [one for reads in dropped for one in reads.ready.values() if isinstance(one, bytes)]
        return sum(-(-len(one) // PAGE_BYTES) * PAGE_BYTES for one in left)

    def close(self) -> None:
        """End the threads."""
        atexit.unregister(self.close)
        self.cancel()
        with self.lock:
            self._ending = True
            self.room.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads = []
