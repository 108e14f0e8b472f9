"""Writing files so that a crash, or a second process, never leaves half of one."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from loaderbench.errors import UnavailableError

PART_SUFFIX = ".part"
"""Not an image suffix, so a file that is being written is never taken for an image."""

OWN_FILES_PREFIX = ".loaderbench-"
"""Records, locks and converted copies that loaderbench keeps beside images."""
CONVERTED_RECORD = f"{OWN_FILES_PREFIX}converted.json"
"""The record in a folder that `dataset convert` made."""


def user_cache_folder() -> Path:
    """loaderbench's part of the user's cache folder: $XDG_CACHE_HOME, else ~/.cache (XDG Base Directory Specification).

    Raises:
        UnavailableError: the user has no home.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "loaderbench"  # noqa: PTH117
    except RuntimeError as error:
        raise UnavailableError(f"there is no place to keep files: {error}; set XDG_CACHE_HOME") from error


def holds_foreign_files(folder: Path) -> bool:
    """Whether anything but loaderbench's own records is in the folder."""
    return any(not entry.name.startswith(OWN_FILES_PREFIX) for entry in folder.iterdir())


@contextmanager
def replace_file(path: str | Path) -> Iterator[BinaryIO]:
    """Write to `path.part`, which becomes `path` in one step at the end, or goes away on an error.

    Only one process may write a path at a time (`exclusive`). The partial file of a killed one is overwritten.
    """
    part = f"{path}{PART_SUFFIX}"
    try:
        with open(part, "wb") as file:
            yield file
        os.replace(part, path)  # noqa: PTH105
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


@contextmanager
def exclusive(lock: Path) -> Iterator[None]:
    """Hold an advisory lock on the file `lock` (fcntl), waiting for it if need be. The lock ends with the process.

    Says on stderr that it waits: the process that holds the lock may hang.
    """
    with open(lock, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that writes to {lock.parent} (fuser {lock} names it)", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
