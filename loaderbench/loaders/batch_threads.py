"""Worker threads that each make one whole batch at a time; results come in the order of the requests."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, Protocol, TypeVar

Job = TypeVar("Job", contravariant=True)
Result = TypeVar("Result", covariant=True)
J = TypeVar("J")
R = TypeVar("R")


class Work(Protocol[Job, Result]):
    """What one thread does with a job. Built in its thread."""

    def __call__(self, job: Job, is_cancelled: Callable[[], bool]) -> Result | None:
        """The result, or None where `is_cancelled()` became true on the way."""
        ...

    def close(self) -> None: ...


class BatchThreads(Generic[J, R]):
    """`num_threads` threads; at most `depth` jobs are submitted and not yet taken. Idle threads sleep on a queue."""

    def __init__(self, num_threads: int, depth: int, begin_work: Callable[[int], Work[J, R]]) -> None:
        self._num_threads = num_threads
        self._depth = depth
        self._begin_work = begin_work
        self._threads: list[threading.Thread] = []
        self._begun = threading.Semaphore(0)
        self._failure: BaseException | None = None
        self._jobs: queue.SimpleQueue[tuple[int, int, J] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._generation = 0
        self._num_in_flight = 0
        self._results: dict[int, R | BaseException] = {}
        self.drained: list[R] = []
        """Results that were ready but not taken when the last stream was closed."""

    def start(self) -> None:
        """Start the threads, and return when each has built its `Work`. Does nothing where they run already.

        Raises:
            RuntimeError: the system cannot start all threads; those that started have ended again.
            Whatever `begin_work` raised.
        """
        if self._threads:
            return
        atexit.register(self.close)  # else the interpreter would stop the threads at any point of their work
        try:
            for number in range(self._num_threads):
                thread = threading.Thread(target=self._run, args=(number,), name=f"batch-{number}", daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError:
            self.close()
            raise
        for _ in self._threads:
            self._begun.acquire()
        if (failure := self._failure) is not None:
            self.close()
            raise failure

    def _run(self, number: int) -> None:
        try:
            work = self._begin_work(number)
        except BaseException as error:  # handed to the consumer, who raises it
            self._failure = error
            return
        finally:
            self._begun.release()
        while (request := self._jobs.get()) is not None:
            generation, position, job = request
            result: R | BaseException | None = None
            if generation == self._generation:
                try:
                    result = work(job, lambda wanted=generation: wanted != self._generation)  # type: ignore[misc]
                except BaseException as error:  # handed to the consumer, who raises it
                    result = error
            with self._changed:
                if result is not None:
                    self._results[position] = result
                self._num_in_flight -= 1
                self._changed.notify_all()
            del request, job, result
        work.close()

    def stream(self, jobs: Iterator[J]) -> Iterator[R]:
        """Results in the order of `jobs`, which is consumed as room appears. An exception of a job is raised here.

        Closing the generator returns when no thread works any more.
        """
        self.start()
        self.drained = []
        self._results.clear()
        num_asked = 0
        try:
            for job in islice(jobs, self._depth):
                self._ask(num_asked, job)
                num_asked += 1
            position = 0
            while position < num_asked:
                result = self._take(position)
                position += 1
                for job in islice(jobs, 1):
                    self._ask(num_asked, job)
                    num_asked += 1
                yield result
        finally:
            self._quiesce()

    def _ask(self, position: int, job: J) -> None:
        with self._changed:
            self._num_in_flight += 1
        self._jobs.put((self._generation, position, job))

    def _take(self, position: int) -> R:
        with self._changed:
            while position not in self._results:
                self._changed.wait()
            result = self._results.pop(position)
        if isinstance(result, BaseException):
            raise result
        return result

    def _quiesce(self) -> None:
        with self._changed:
            self._generation += 1
            while self._num_in_flight:
                self._changed.wait()
            results = [result for _, result in sorted(self._results.items(), key=lambda item: item[0])]
            self._results.clear()
        self.drained = [result for result in results if not isinstance(result, BaseException)]

    def close(self) -> None:
        """End the threads, each after its current job."""
        atexit.unregister(self.close)
        self._generation += 1
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []
        self.drained = []
        # Drop what threads that never began have left: the next start begins afresh.
        self._jobs, self._begun = queue.SimpleQueue(), threading.Semaphore(0)
        self._failure = None
