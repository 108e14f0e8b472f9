"""torch's DataLoader with worker processes, which most training scripts use to load their images."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import resource
import signal
import stat
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_sharer
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.forks import collector_at_rest, leave_garbage
from loaderbench.lacking import memory
from loaderbench.loaders.base import MAX_STEPS_IN_FLIGHT, SPAN_FIELDS, Batch, LoaderContext, check_workers
from loaderbench.loaders.samples import FailureLimit
from loaderbench.loaders.torch_dataset import BatchDataset, Payload, RequestStream, to_batch
from loaderbench.plain import JsonObject

DESCRIPTORS_PER_WORKER = 6
"""Two pipe ends of the index queue, the sentinel, and descriptors that are open while a process starts."""
DESCRIPTORS_ELSE = 128
"""Files, libraries and sockets of the process itself."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Options:
    """How the workers are started and how their batches travel."""

    start_method: Literal["fork", "forkserver", "spawn"] = "fork"
    """fork is what Linux users have up to Python 3.13: workers start in
    milliseconds, where the others import torch once a worker (seconds). Safe with CUDA initialised in
    the parent, because the workers never touch it."""
    persistent_workers: bool = True
    """Keep the workers between iterators."""
    sharing: Literal["file_descriptor", "file_system"] = "file_descriptor"
    """How torch names shared memory. file_system needs no open descriptor
    for each batch."""
    samples: Literal["torchvision", "direct"] = "torchvision"
    """How a PIL image becomes a part of its batch: as with torchvision's transforms and DataLoader's collate, or
    written straight into it, which avoids their copies. Pixels of other decoders always go straight into it."""


class MultiprocessLoader:
    """DataLoader with `workers` processes, `prefetch` batches ahead in each.

    A batch is made by one worker, in shared memory (/dev/shm). Batches come in the order of the requests.
    DataLoader's own thread pins them where CUDA is available.
    """

    decodes = True
    owns_transfer = False
    evicts_own_reads = True

    def __init__(self, options: Options, context: LoaderContext, dataset: Any = None) -> None:
        """`dataset`: a BatchDataset, or an iterable one that yields Payloads and knows its `generation`."""
        self._options = options
        self._context = context
        self._dataset: Any = BatchDataset(context, "pillow", options.samples) if dataset is None else dataset
        self._dataset.generation.share_memory_()
        self._requests = RequestStream(context)
        self._pin = context.pin_memory and torch.cuda.is_available()
        self._iterator: Any = None
        self._drained: list[NDArray[np.int64]] = []
        self._waiting = False
        self._worker_died = False
        self._failed = False
        self._stderr_bytes = _stderr_bytes()
        _check_shared_memory(context, self._dataset.bytes_per_batch())
        _raise_descriptor_limit(options, context)
        torch.multiprocessing.set_sharing_strategy(options.sharing)  # type: ignore[no-untyped-call]
        in_main_thread = threading.current_thread() is threading.main_thread()
        with _quiet_dataloader():
            makes_batches = isinstance(self._dataset, IterableDataset)
            self._loader: Any = DataLoader(
                self._dataset,  # type: ignore[arg-type]
                batch_size=None if makes_batches else 1,
                batch_sampler=None if makes_batches else self._requests,  # type: ignore[arg-type]
                collate_fn=_as_it_is,
                num_workers=context.workers,
                prefetch_factor=context.prefetch,
                pin_memory=self._pin,
                persistent_workers=options.persistent_workers,
                multiprocessing_context=options.start_method,
                worker_init_fn=partial(
                    _begin_worker, os.getpid() if in_main_thread else None, options.start_method, options.sharing
                ),
            )

    def batches(self, first_epoch: int = 0, num_epochs: int | None = None) -> Iterator[Batch]:
        limit = FailureLimit(self._context)
        self._drained = []
        self._dataset.generation += 1 + int(self._dataset.generation) % 2  # odd: open, even: closed
        self._requests.open(int(self._dataset.generation), first_epoch, num_epochs)
        previous_handler = signal.getsignal(signal.SIGCHLD)
        try:
            try:
                self._open_iterator()
            except RuntimeError as error:  # torch's own handler of SIGCHLD, in force until ours is set
                self._fail_by(error)
            while (payload := self._next_payload()) is not None:
                batch = to_batch(payload)
                limit.add(batch.num_samples, batch.failures)
                yield batch
        finally:
            try:
                self._quiesce()
            finally:
                in_main_thread = threading.current_thread() is threading.main_thread()
                # Another loader's stream may have been opened, and may still be open, since this one was.
                if in_main_thread and signal.getsignal(signal.SIGCHLD) == self._on_child_signal:
                    signal.signal(signal.SIGCHLD, previous_handler)

    def _open_iterator(self) -> None:
        """Start the workers, or wake them for a new stream."""
        if self._iterator is None:
            self._start_workers()
        else:
            self._raise_if_worker_died()
            self._iterator._reset(self._loader)  # what iter() does with persistent workers
        if threading.current_thread() is threading.main_thread():
            # torch's own handler would raise anywhere in the main thread; ours raises only inside next().
            signal.signal(signal.SIGCHLD, self._on_child_signal)

    def _start_workers(self) -> None:
        others = set(multiprocessing.active_children())
        # iter(DataLoader) in two steps, so that a half-made iterator can be marked as ended.
        iterator: Any = object.__new__(_MultiProcessingDataLoaderIter)
        try:
            with _quiet_dataloader(), collector_at_rest():
                iterator.__init__(self._loader)
        except (OSError, RuntimeError) as error:
            iterator._shutdown = True
            for child in set(multiprocessing.active_children()) - others:
                child.kill()
                child.join()
            if isinstance(error, RuntimeError):
                raise
            raise CaseFailed(
                f"could not start {self._context.workers} worker processes: {error.strerror}; use fewer --workers"
            ) from error
        self._iterator = iterator

    def _on_child_signal(self, number: int, frame: FrameType | None) -> None:
        self._worker_died = True
        if self._waiting:
            self._raise_if_worker_died()

    def _raise_if_worker_died(self) -> None:
        """
        Raises:
            CaseFailed: a worker is gone; the line says which one and how it ended.
        """
        self._worker_died = False
        self._failed = True
        for number, worker in enumerate(self._iterator._workers):
            code = worker.exitcode
            if not code:  # None: it lives; 0: it was told to end
                continue
            if code > 0:
                said = _last_words(self._stderr_bytes)
                raise CaseFailed(f"worker {number} (pid {worker.pid}) ended with exit code {code}{said}")
            hint = {signal.SIGKILL: " (out of memory?)", signal.SIGBUS: " (/dev/shm full?)"}.get(-code, memory())
            if -code == signal.SIGABRT:
                hint = _last_words(self._stderr_bytes) + memory()
            raise CaseFailed(f"worker {number} (pid {worker.pid}) was killed by signal {-code}{hint}")
        self._failed = False

    def _fail_by(self, error: RuntimeError) -> NoReturn:
        """Raise CaseFailed for what DataLoader raised, naming the worker where one died."""
        if self._iterator is not None:
            self._raise_if_worker_died()
        self._failed = True
        said = str(error).strip().splitlines()[-1]
        died = re.search(r"worker \(pid (\d+)\) is killed by signal: (\w+)", said)
        if died:
            number = next((int(one) for one in signal.Signals if signal.strsignal(one) == died[2]), died[2])
            raise CaseFailed(f"a worker (pid {died[1]}) was killed by signal {number}") from error
        raise CaseFailed(f"torch's DataLoader failed: {said}") from error

    def _next_payload(self) -> Payload | None:
        if self._worker_died:
            self._raise_if_worker_died()
        self._waiting = True
        try:
            payload: Payload | None = next(self._iterator, None)
        except RuntimeError as error:  # DataLoader's own watch, where there is no signal handler (every 5 s)
            self._fail_by(error)
        finally:
            self._waiting = False
        if payload is not None and payload.reads:
            self._context.reads.add_packed(payload.reads)
        return payload

    def _quiesce(self) -> None:
        """Cancel requests not yet begun and take finished batches, until workers are idle and the queue is empty."""
        self._requests.stop()
        if self._iterator is None:
            return
        if self._failed:
            self._kill_workers()
            return
        self._dataset.generation += 1
        try:
            while (payload := self._next_payload()) is not None:
                if payload.spans is not None:
                    self._drained.append(payload.spans)
        except BaseException:
            self._kill_workers()
            raise
        if not self._options.persistent_workers:
            self._iterator = None

    def drained_spans(self) -> NDArray[np.int64]:
        """Spans [M, F] of batches that were finished or begun but not delivered when the last iterator was closed."""
        return np.stack(self._drained) if self._drained else np.empty((0, len(SPAN_FIELDS)), dtype=np.int64)

    def worker_pids(self) -> list[int]:
        """Process ids of the live workers."""
        return [] if self._iterator is None else [worker.pid for worker in self._iterator._workers]

    def describe(self) -> JsonObject:
        """Facts for the record."""
        return {
            "loader": "torch DataLoader",
            "num_workers": self._context.workers,
            "prefetch_factor": self._context.prefetch,
            "start_method": self._options.start_method,
            "persistent_workers": self._options.persistent_workers,
            "sharing": self._options.sharing,
            "pin_memory": self._pin,
            "samples": self._dataset.samples,
            "decoder": self._dataset.decoder.describe(),
        }

    def close(self) -> None:
        if self._iterator is not None and any(worker.exitcode for worker in self._iterator._workers):
            self._kill_workers()
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            iterator._shutdown_workers()
            for worker in iterator._workers:
                if worker.is_alive():
                    worker.kill()
                worker.join()
        self._loader = None

    def _kill_workers(self) -> None:
        """Shut down after a failure: torch's orderly shutdown could wait for locks that a dead worker holds."""
        iterator, self._iterator = self._iterator, None
        self._failed = False
        signal_handling._remove_worker_pids(id(iterator))  # type: ignore[attr-defined]
        iterator._worker_pids_set = False
        iterator._shutdown = True
        if self._pin:
            iterator._pin_memory_thread_done_event.set()
        for worker in iterator._workers:
            worker.kill()
        for worker in iterator._workers:
            worker.join()
        for queue in [*iterator._index_queues, iterator._worker_result_queue]:
            queue.cancel_join_thread()
            queue.close()
        _remove_shared_memory([worker.pid for worker in iterator._workers])


@contextmanager
def _quiet_dataloader() -> Iterator[None]:
    """Suppresses warnings that are of no use to users of loaderbench."""
    with warnings.catch_warnings():
        # More workers than CPUs: the planner deals with that.
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        # Python 3.12 warns of fork in a process with threads; the workers use none of the parent's locks.
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork.*", category=DeprecationWarning)
        yield


def _as_it_is(payload: Any) -> Any:
    return payload


def _begin_worker(parent_pid: int | None, start_method: str, sharing: str, number: int) -> None:
    """Runs in each worker before its first batch. torch has set its own threads to 1 by then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends Ctrl-C to all; the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    leave_garbage()
    torch.multiprocessing.set_sharing_strategy(sharing)  # type: ignore[no-untyped-call]
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(0)
    if sharing == "file_descriptor":
        _start_sharing()
    if parent_pid is not None:
        # The signal comes when the thread that forked ends, so only the main thread asks for it.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # Whoever asked to adopt orphans may be the parent by now. Workers of a fork server are the server's children.
        now = os.getppid()
        orphaned = now == 1 if start_method == "forkserver" else now != parent_pid
        if orphaned:
            os._exit(1)


def _start_sharing() -> None:
    """Start the thread that hands over the descriptors of this worker's batches. Raises RuntimeError where it may not.

    It starts with the first batch otherwise. Where it cannot, that batch is lost, and whoever takes the next one waits
    for ever: the thread's socket is there, and nobody answers (`_ResourceSharer._start` of Python).
    """
    with open(os.devnull) as nothing:
        os.close(resource_sharer.DupFd(nothing.fileno()).detach())


def _stderr_bytes() -> int:
    """Bytes in the file that stderr goes to, a measuring process's log; 0 where it is no file."""
    try:
        found = os.fstat(2)
    except OSError:  # it is closed
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _last_words(since: int) -> str:
    """`: ` and why a process aborted: of stderr behind its first `since` bytes the last line of a C++ exception's own
    words (`what():`), else the last line. "" where nothing was said, or stderr is no file."""
    if _stderr_bytes() <= since:
        return ""
    try:
        said = Path("/proc/self/fd/2").read_bytes()[since:].decode(errors="replace")
    except OSError:  # another user's
        return ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    of_exceptions = [line.removeprefix("what():").strip() for line in lines if line.startswith("what():")]
    told = [*lines[-1:], *of_exceptions[-1:]]
    return f": {told[-1]}" if told else ""


def _remove_shared_memory(pids: list[int]) -> None:
    """Remove what dead workers left in /dev/shm: torch unlinks a batch's file only once it has its full size.

    The names begin with the creator's pid (ATen/MapAllocator.cpp, NewProcessWideShmHandle).
    """
    for pid in pids:
        for path in Path("/dev/shm").glob(f"torch_{pid}_*"):
            path.unlink(missing_ok=True)


def free_shared_memory_bytes() -> int:
    """Free bytes of /dev/shm: statvfs(3)."""
    shm = os.statvfs("/dev/shm")
    return shm.f_bavail * shm.f_frsize


def _check_shared_memory(context: LoaderContext, bytes_per_batch: int) -> None:
    """Raises ConfigError where /dev/shm cannot hold the batches that will be in flight."""
    in_flight = context.workers * context.prefetch + MAX_STEPS_IN_FLIGHT + 1
    needed = in_flight * bytes_per_batch
    free = free_shared_memory_bytes()
    if needed > free:
        raise ConfigError(
            f"{in_flight} batches in flight need {needed / 2**20:.0f} MiB of shared memory, but /dev/shm has "
            f"{free / 2**20:.0f} MiB free; enlarge it (docker: --shm-size={needed // 2**30 + 1}g), or use fewer "
            f"--workers, a smaller --prefetch or --batch-size, or --loader threaded"
        )


def _raise_descriptor_limit(options: Options, context: LoaderContext) -> None:
    """Raise the soft limit of open files to what the workers need.

    Raises:
        ConfigError: the hard limit is lower than that.
    """
    per_batch = 2 if options.sharing == "file_descriptor" else 0  # inputs and targets
    in_flight = context.workers * context.prefetch + MAX_STEPS_IN_FLIGHT + 1
    needed = DESCRIPTORS_ELSE + context.workers * DESCRIPTORS_PER_WORKER + in_flight * per_batch
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ConfigError(
            f"{context.workers} workers need about {needed} open files, but the limit is {hard}; raise it "
            f"(`ulimit -Hn`), use fewer --workers, or --loader-option sharing=file_system"
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def build(options: Options, context: LoaderContext) -> MultiprocessLoader:
    """
    Raises:
        ConfigError: no worker, too little shared memory or too few open files.
    """
    check_workers("multiprocess", context)
    return MultiprocessLoader(options, context)
