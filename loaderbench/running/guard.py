"""A shell that waits for a command, and ends what a killed one leaves: its measuring process, even if it is stopped."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from loaderbench import neutral

SCRIPT = """
read -r ended && exit 0
for turn in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
    kill -s CONT -- "-$1" 2>/dev/null || break
    sleep 0.2
done
kill -s KILL -- "-$1" 2>/dev/null
rm -rf -- "$2"
"""
"""The measuring process has asked the kernel for SIGTERM at its parent's death. A stopped process takes none until it
is continued, and no worker either. What does not end in 6 s is killed."""


END_S = 1.0


class Guard:
    """Watches over one process group. `end` before the group's number may be another's."""

    def __init__(self, group: int, folder: Path | None) -> None:
        """`folder`: removed once the command was killed and the group is gone."""
        self._shell: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):  # no shell, or no more processes: a killed command may leave some
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", SCRIPT, "loaderbench-guard", str(group), str(folder or "")],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=neutral.FOLDER,
                start_new_session=True,
            )

    def end(self) -> None:
        """The group is gone."""
        if self._shell is None:
            return
        try:
            self._shell.communicate(b"ended\n", timeout=END_S)
        except (OSError, subprocess.TimeoutExpired):  # it was killed, or stopped
            self._shell.kill()
            self._shell.wait()
