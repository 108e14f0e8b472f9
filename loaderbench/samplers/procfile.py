"""A /proc or /sys file that is kept open, because opening it costs more than reading it."""

from __future__ import annotations

import os

CHUNK_BYTES = 65536


def stat_fields(text: bytes) -> list[bytes]:
    """Split /proc/PID/stat after the command's name: field n of proc(5), from the third on, is at index n - 3.

    The name may hold blanks and brackets, so fields are counted from its last bracket.
    """
    return text[text.rindex(b")") + 2 :].split()


class ProcFile:
    """One kernel text file; each `read` starts again at its beginning.

    An open /proc/PID file stays tied to that very process: after the process is gone it raises
    ProcessLookupError, even where another process got the same number.
    """

    def __init__(self, path: str) -> None:
        """Raises OSError where the file cannot be opened."""
        self.path = path
        self._fd: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """The whole content now. Raises OSError."""
        if self._fd is None:
            raise ValueError(f"{self.path} is closed")
        first = os.pread(self._fd, CHUNK_BYTES, 0)
        # The kernel hands out whole records of at most about a page a call: a short read is not the end.
        parts = [first]
        position = len(first)
        while parts[-1]:
            parts.append(os.pread(self._fd, CHUNK_BYTES, position))
            position += len(parts[-1])
        return b"".join(parts)

    def read_short(self) -> bytes:
        """The content of a file known to fit in one record (/proc/PID/stat, io, schedstat): one system call."""
        if self._fd is None:
            raise ValueError(f"{self.path} is closed")
        return os.pread(self._fd, CHUNK_BYTES, 0)

    def close(self) -> None:
        """May be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def read_text(path: str) -> str | None:
    """A small kernel file's content, stripped; None where it is absent or may not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None
