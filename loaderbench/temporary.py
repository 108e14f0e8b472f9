"""Folders for temporary files, which go with what made them, or with the next one where that was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "pymp-lb-"
"""A short name, since it begins those of sockets."""
HIDDEN_PREFIX = ".loaderbench-tmp-"
"""In a folder that holds other things."""


class TemporaryFolder:
    """A folder of its own. Locked while its process lives, so that others can see if it is in use."""

    def __init__(self, parent: Path | None = None) -> None:
        """`parent`: where it is to be; None: where temporary files go. Raises OSError where there is no place."""
        where, prefix = (Path(tempfile.gettempdir()), PREFIX) if parent is None else (parent, HIDDEN_PREFIX)
        _remove_leftovers(where, prefix)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
            with contextlib.suppress(FileNotFoundError):  # another process took it for a leftover before the lock
                self._folder = _opened(self.path)
                with contextlib.suppress(OSError):  # NFS has no locks for folders: nobody removes it then
                    fcntl.flock(self._folder, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self._folder)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._folder)


@contextlib.contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """A TemporaryFolder within this context. Raises OSError."""
    folder = TemporaryFolder(parent)
    try:
        yield folder.path
    finally:
        folder.remove()


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _remove_leftovers(where: Path, prefix: str) -> None:
    """Remove this user's folders whose process is gone."""
    for left in where.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # in use, another user's, or removed meanwhile
            folder = _opened(left)
            try:
                if os.fstat(folder).st_uid == os.geteuid():
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(folder)
