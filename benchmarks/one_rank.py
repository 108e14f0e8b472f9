"""One rank of benchmarks/ranks.py: `loaderbench` with what is this rank's alone. torchrun starts it.

    torchrun --nproc-per-node 2 benchmarks/one_rank.py SETUP.json

SETUP.json: {"arguments": [...] of all ranks, "ranks": [{"arguments": [...], "cpu": 0, "offset_s": 0.05}, ...]}. `cpu`:
the processor that the rank may use. `offset_s`: how much further its clocks are, in a time namespace of its own
(time_namespaces(7); needs root): CLOCK_MONOTONIC, on which everything here is stamped.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

CLONE_NEWTIME = 0x80  # linux/sched.h


def offsets_line(offset_s: float) -> str:
    """What /proc/PID/timens_offsets takes: whole seconds, which may be negative, and nanoseconds."""
    seconds = math.floor(offset_s)
    return f"monotonic {seconds} {round((offset_s - seconds) * 1e9)}\n"


def shift_clock(offset_s: float) -> None:
    """Return in a child whose clock is shifted. The parent waits for it, hands signals on and ends as it did."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWTIME):
        raise OSError(ctypes.get_errno(), "no time namespace of its own")
    Path("/proc/self/timens_offsets").write_text(offsets_line(offset_s))
    child = os.fork()
    if not child:
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: os.kill(child, number))
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def main() -> None:
    setup: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    mine = setup["ranks"][int(os.environ["RANK"])]
    if mine.get("cpu") is not None:
        os.sched_setaffinity(0, {mine["cpu"]})
    if mine.get("offset_s"):
        shift_clock(mine["offset_s"])
    arguments = [*setup["arguments"], *mine["arguments"]]
    os.execv(sys.executable, [sys.executable, "-m", "loaderbench", *arguments])


if __name__ == "__main__":
    main()
