"""The measuring process: does one job after another until the supervisor ends it.

Started by process.Process as `python -m loaderbench.running.child FOLDER AHEAD FD PARENT_PID`. Jobs come and answers
go over the inherited pipe `FD`: first any number of messages (recording/progress.py), last an Answer. `FOLDER`: for
temporary files, or empty. `AHEAD`: the module of the job to come, imported before there is one, or empty; what the
process prints goes to a file that is sent over the pipe then.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from multiprocessing import reduction
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, NoReturn

from loaderbench.errors import LoaderbenchError
from loaderbench.lacking import memory_for
from loaderbench.recording.facts import Failure
from loaderbench.recording.progress import Message, Report
from loaderbench.running.jobs.table import Answer, Job

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
END_S = 4
"""Seconds that the process gives itself to end: the supervisor would kill it, but may be dead."""


def _stop(number: int, frame: FrameType | None) -> None:
    # A killed parent with several threads sends a signal for each (Linux passes a child from thread to thread,
    # kernel/exit.c, forget_original_parent): the second must not interrupt the clean-up that the first began.
    signal.signal(number, signal.SIG_IGN)
    # SIGALRM keeps its default action, which ends the process: neither stuck code nor code that swallows
    # exceptions (a destructor) can keep it alive. Its workers die with it.
    signal.alarm(END_S)
    raise SystemExit(128 + number)


def main() -> int:
    """Do jobs until the supervisor closes the pipe or dies."""
    # First, because importing torch takes seconds. Until then SIGTERM simply ends the process.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    folder, ahead, pipe_number, parent = sys.argv[1:]
    if os.getppid() != int(parent):
        return 1  # the parent died before prctl took effect
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the supervisor too, which decides
    pipe = Connection(int(pipe_number))
    if folder:
        # The supervisor removes this folder. Each worker would make one of its own, which stays where it is killed.
        config: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
        config["tempdir"] = folder

    one_at_a_time = threading.Lock()  # a rank's signs of life come from a thread of their own

    def send(message: Message | Answer) -> None:
        try:
            with one_at_a_time:
                pipe.send(message)
        except ConnectionError:
            raise SystemExit(1) from None  # the supervisor is gone

    failed: Exception | None = None
    if ahead:
        try:
            importlib.import_module(ahead)
        except Exception as error:  # the job's answer: another attempt may fail otherwise
            failed = error
    try:
        if ahead:
            _print_into(reduction.recv_handle(pipe))
        while True:
            job, request = pipe.recv()
            send(_answer(job, request, send, failed if job.module == ahead else None))
    except (EOFError, ConnectionError):
        return 0


def _print_into(log: int) -> None:
    """Print into this open file from now on."""
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)


def _answer(job: Job[Any, Any], request: Any, report: Report, failed: Exception | None) -> Answer:
    """`failed`: by what the import of the job's module failed already."""
    try:
        if failed is not None:
            raise failed
        # Imported late: with torch it takes seconds, and a failure to import is an answer too.
        function = getattr(importlib.import_module(job.module), job.function)
        signal.signal(signal.SIGTERM, _stop)
        return Answer(function(request, report))
    except LoaderbenchError as error:
        return Answer(None, Failure(type(error).__name__, str(error)))
    except Exception as error:
        with contextlib.suppress(OSError):  # the log's storage is full
            traceback.print_exc()
        first_line = (str(error).strip().splitlines() or ["no message"])[0]
        message = f"{type(error).__name__}: {first_line}{memory_for(error)} (trace in worker.log)"
        return Answer(None, Failure(type(error).__name__, message))


def _end(status: int) -> NoReturn:
    """End the process as multiprocessing ends those that it forks: with what was registered for the end, but without
    taking modules apart, which keeps the supervisor waiting for a second where torch was imported."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):  # the log's storage is full
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _end(main())
