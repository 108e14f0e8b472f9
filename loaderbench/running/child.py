"""The measuring process: does one job after another until it is told to end.

Started by supervisor.Child as `python -m loaderbench.running.child FD PARENT_PID`. Jobs come and answers go over the
inherited pipe `FD`: first any number of messages (recording/progress.py), last an Answer.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from loaderbench.errors import LoaderbenchError
from loaderbench.recording.facts import Failure
from loaderbench.recording.progress import Message, Report
from loaderbench.running.jobs.table import Answer, Job

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
END_S = 4
"""What the process gives itself to end once told to; the supervisor would kill it, but it may be dead."""


def _stop(number: int, frame: FrameType | None) -> None:
    # A parent of several threads that is killed sends one for each (Linux hands a child from thread to thread,
    # kernel/exit.c, forget_original_parent): the second must not interrupt the tidying that the first began.
    signal.signal(number, signal.SIG_IGN)
    # SIGALRM is left to its default, which ends the process: code that is stuck, or a place where Python
    # drops exceptions (a destructor), cannot keep it alive. Its workers die with it.
    signal.alarm(END_S)
    raise SystemExit(128 + number)


def main() -> int:
    """Do jobs until the supervisor closes the pipe or dies."""
    # First of all, because importing torch takes seconds. Until that is done SIGTERM simply ends the process.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[2]):
        return 1  # the parent died before we could ask to be told
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the supervisor, which decides
    pipe = Connection(int(sys.argv[1]))

    def send(message: Message | Answer) -> None:
        try:
            pipe.send(message)
        except ConnectionError:
            raise SystemExit(1) from None  # nobody is there to hear it

    while True:
        try:
            job, request = pipe.recv()
        except (EOFError, ConnectionError):
            return 0
        send(_answer(job, request, send))


def _answer(job: Job[Any, Any], request: Any, report: Report) -> Answer:
    try:
        # Imported late: with torch it takes seconds, and a failure to import is an answer too.
        function = getattr(importlib.import_module(job.module), job.function)
        signal.signal(signal.SIGTERM, _stop)
        return Answer(function(request, report))
    except LoaderbenchError as error:
        return Answer(None, Failure(type(error).__name__, str(error)))
    except Exception as error:
        traceback.print_exc()
        first_line = (str(error).strip().splitlines() or ["no message"])[0]
        message = f"{type(error).__name__}: {first_line} (trace in worker.log)"
        return Answer(None, Failure(type(error).__name__, message))


if __name__ == "__main__":
    sys.exit(main())
