"""What a forked process must not share with the one that it came from."""

from __future__ import annotations

import fcntl
import signal
import socket
import stat
import sys
from collections.abc import Collection

from loaderbench.originals import os


def as_its_own(keep: Collection[int]) -> None:
    """Ctrl-C is the script's, SIGTERM ends the process. Standard streams go nowhere; open files are opened anew under
    their numbers, to be read alone, since a shared position would move under the other process; what else is open and
    could be talked through is cut off."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    sys.stdout = sys.stderr = open(nowhere, "w", closefd=False)  # noqa: SIM115 - for the whole life of the process
    for number in sorted(int(name) for name in os.listdir("/proc/self/fd")):
        if number > 2 and number not in keep and number != nowhere:
            _cut(number, nowhere)


def _cut(number: int, nowhere: int) -> None:
    try:
        kind = os.fstat(number).st_mode
    except OSError:  # of the listing itself
        return
    if stat.S_ISREG(kind) and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY:
        _opened_anew(number)
    elif stat.S_ISREG(kind):  # such as a log
        os.dup2(nowhere, number)
    elif stat.S_ISSOCK(kind):
        with socket.socket(socket.AF_UNIX) as unconnected:
            os.dup2(unconnected.fileno(), number)
    elif stat.S_ISFIFO(kind):
        os.dup2(nowhere, number)


def _opened_anew(number: int) -> None:
    """A file that was removed, or may not be read, is closed for this process."""
    try:
        position = os.lseek(number, 0, os.SEEK_CUR)
        own = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        os.close(number)
        return
    os.lseek(own, position, os.SEEK_SET)
    os.dup2(own, number)
    os.close(own)
