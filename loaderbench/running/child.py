"""The measuring process: tied to the life of its supervisor, doing jobs until it is told to end.

Started by supervisor.Child as `python -m loaderbench.running.child FD PARENT_PID`. Jobs come and answers go
over the inherited pipe `FD`, answers as (kind, payload): `phase` (text), `segment` (progress figures), and last
`result` or `failure` (class of the error, message).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from loaderbench.cases.case import Case
from loaderbench.errors import LoaderbenchError

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
PRECISION_JOBS = ("examine_device", "time_steps", "follow_steps")
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

    def send(kind: str, payload: Any) -> None:
        try:
            pipe.send((kind, payload))
        except ConnectionError:
            raise SystemExit(1) from None  # nobody is there to hear it

    while True:
        try:
            job, case, options = pipe.recv()
        except (EOFError, ConnectionError):
            return 0
        send(*_answer(job, Case.from_json(case), options, send))


def _answer(job: str, case: Case, options: dict[str, Any], report: Callable[[str, Any], None]) -> tuple[str, Any]:
    try:
        # Imported late: with torch it takes seconds, and a failure to import is an answer too.
        worker = importlib.import_module("loaderbench.running.worker")
        signal.signal(signal.SIGTERM, _stop)
        if job == "measure":
            return "result", worker.measure(case, report, **options)
        # A study's own jobs, by their module: the precision study's, else the self-test's.
        room = "running.precision" if job in PRECISION_JOBS else "testbeds.truth"
        return "result", getattr(importlib.import_module(f"loaderbench.{room}"), job)(case, report, **options)
    except LoaderbenchError as error:
        return "failure", (type(error).__name__, str(error))
    except Exception as error:
        traceback.print_exc()
        first_line = (str(error).strip().splitlines() or ["no message"])[0]
        return "failure", (type(error).__name__, f"{type(error).__name__}: {first_line} (trace in worker.log)")


if __name__ == "__main__":
    sys.exit(main())
