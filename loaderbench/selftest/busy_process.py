"""A process that keeps one processor busy. Started as a script by `disturbers`; argv[1]: its parent's pid.

It dies with its parent, however that ends and even while it is stopped: SIGKILL needs no turn on a processor.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""linux/prctl.h: the signal that a process gets when the thread that started it ends."""


def main() -> None:
    """Say `busy`, then work until killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started this one is gone")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at a terminal: who started it decides
    print("busy", flush=True)
    while True:
        pass


if __name__ == "__main__":
    main()
