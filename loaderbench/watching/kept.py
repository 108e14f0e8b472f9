"""Open files of ours in the script's process. The script may close them (`os.closerange`, as daemons do), or put others
under their numbers, such as the pipes of its loader: each is looked at before it is used."""

from __future__ import annotations

from loaderbench.originals import os

Identity = tuple[int, int]
"""Device and inode."""


def identity_of(number: int) -> Identity | None:
    """Which file is open under this number; None: none is."""
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def open_numbers() -> set[int]:
    """Of this process's open files."""
    return {number for number in map(int, os.listdir("/proc/self/fd")) if identity_of(number) is not None}


class Kept:
    """A file that was opened by us, for as long as it is the one under its number."""

    def __init__(self, number: int) -> None:
        self._number, self._identity = number, identity_of(number)

    @property
    def number(self) -> int | None:
        """None: the script closed it."""
        return self._number if self._identity is not None and identity_of(self._number) == self._identity else None

    def close(self) -> None:
        """Once; a file of the script's under its number stays open."""
        number, self._identity = self.number, None
        if number is not None:
            os.close(number)
