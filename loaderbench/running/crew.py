"""Several measuring processes side by side: asked together, and all ended together."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from loaderbench.recording.progress import Message
from loaderbench.running.jobs.table import Answer, Job, Request
from loaderbench.running.process import GRACE_S
from loaderbench.running.supervisor import HANG_S, Child, JobFailed, ProcessDied, no_sign_of_life

A = TypeVar("A")
Q = TypeVar("Q", bound=Request)
OnMessage = Callable[[int, Message], None]
"""Called with (number of the process, its message)."""
PEER_GONE = "PeerGone"
"""Kind of the failure of a process that waited for another one, which is gone: not the cause."""


class OneFailed(Exception):
    """One of the processes could not do its job."""

    def __init__(self, number: int, cause: JobFailed) -> None:
        super().__init__(str(cause))
        self.number, self.cause = number, cause
        self.died = isinstance(cause, ProcessDied)
        """Its process is gone."""

    @property
    def is_consequence(self) -> bool:
        """Another process's failure is the cause."""
        return self.cause.failure.kind == PEER_GONE


class Crew:
    """Processes that are called by their numbers, from 0. A context manager; leaving it ends all of them."""

    def __init__(
        self, log: Path, on_message: OnMessage, *, prefix: Path | None = None, patience_s: float = math.inf
    ) -> None:
        """`prefix`: as Child; `patience_s`: how long the others' answers are waited for once one has failed."""
        self._log, self._on_message, self._prefix, self._patience_s = log, on_message, prefix, patience_s
        self._children: list[Child] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """All at once: each may be in the middle of a long step, and each has its own seconds of grace."""
        for child in self._children:
            if kind is not None:
                child.process.send_signal(signal.SIGTERM)
            child.pipe.close()
        until = time.monotonic() + GRACE_S
        while any(child.process.poll() is None for child in self._children) and time.monotonic() < until:
            time.sleep(0.02)
        for child in self._children:
            if child.process.poll() is None:
                child.process.kill()
        self._stack.__exit__(kind, error, trace)

    def grow(self, number: int) -> None:
        """Start processes until there are `number`."""
        while len(self._children) < number:
            self._children.append(self._stack.enter_context(Child(self._log, self._prefix)))

    def ask(self, job: Job[Q, A], requests: Mapping[int, Q]) -> dict[int, A]:
        """Give each of these processes its request, and wait for all. The answers of the others are taken before a
        failure is raised, so that all are ready for the next job; but a death is told at once.

        Raises:
            OneFailed: the first that failed by itself.
        """
        waiting = {}
        for number, request in requests.items():
            try:
                self._children[number].begin(job, request)
            except ProcessDied as error:
                raise OneFailed(number, error) from error
            waiting[self._children[number].pipe] = number
        answers: dict[int, A] = {}
        failed: OneFailed | None = None
        until = math.inf
        while waiting:
            ready = wait([*waiting], min(HANG_S, max(until - time.monotonic(), 0.0)))
            if not ready:
                if failed is not None:
                    raise failed
                number = next(iter(waiting.values()))
                raise OneFailed(number, JobFailed(no_sign_of_life(requests[number])))
            for pipe in [pipe for pipe in waiting if pipe in ready]:
                number = waiting[pipe]
                try:
                    told = self._children[number].receive()
                except JobFailed as error:
                    this = OneFailed(number, error)
                    if this.died:
                        raise this from error
                    failed = this if failed is None or failed.is_consequence else failed
                    until = min(until, time.monotonic() + self._patience_s)
                    del waiting[pipe]
                    continue
                if isinstance(told, Answer):
                    answers[number] = told.result
                    del waiting[pipe]
                else:
                    self._on_message(number, told)
        if failed is not None:
            raise failed
        return answers
