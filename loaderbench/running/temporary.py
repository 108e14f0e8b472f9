"""A run's folder for temporary files, which goes with the run, or with the next one where everything was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "pymp-lb-"
"""A short name, since it begins those of sockets."""


class TemporaryFolder:
    """Locked as long as the process that made it lives, so that others can tell whether it is in use."""

    def __init__(self) -> None:
        """Raises OSError where there is no place for temporary files."""
        _remove_leftovers()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._folder = _opened(self.path)
        with contextlib.suppress(OSError):  # NFS has no locks for folders: nobody removes it then
            fcntl.flock(self._folder, fcntl.LOCK_EX)
        self.path.mkdir(mode=0o700, exist_ok=True)  # another process may have taken it for a leftover before the lock

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._folder)


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _remove_leftovers() -> None:
    """Remove this user's folders whose process is gone."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, another user's, or removed meanwhile
            folder = _opened(left)
            try:
                if os.fstat(folder).st_uid == os.geteuid():
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(folder)
