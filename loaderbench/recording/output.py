"""Files that the user names on the command line: the one way of checking and writing them.

A regular file is replaced whole or stays as it was, with its mode, and through a symbolic link. A device, a pipe or one
of this process's own descriptors (/dev/stdout, /dev/fd/63 of a process substitution) is written into.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from loaderbench.errors import ConfigError
from loaderbench.recording.files import write_atomic

STANDARD_OUTPUT = "-"
MOST_LINKS = 40
"""Links in a row that Linux follows (path_resolution(7))."""
NO_NEW_FILE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
"""Errors of a folder that takes no new file, or of a file that is a mount point: then a file in it is overwritten."""


@dataclass(frozen=True)
class _Place:
    """Where the bytes of an output go."""

    path: str
    """Of what is written, behind the links that lead there."""
    found: os.stat_result | None
    """What is there; None where nothing is."""
    descriptor: int | None = None
    """Of this process, where the name stands for one."""

    @property
    def is_file(self) -> bool:
        return self.descriptor is None and (self.found is None or stat.S_ISREG(self.found.st_mode))


def is_standard_output(target: str | Path | None) -> bool:
    """Whether `target` is standard output, as `-` or by a name such as /dev/stdout."""
    return target is not None and (str(target) == STANDARD_OUTPUT or _descriptor_of(str(target)) == 1)


def check_output(target: str | Path | None) -> None:
    """Raises ConfigError if `target` cannot be written; None and `-` can. Called before anything is measured."""
    if target is not None and str(target) != STANDARD_OUTPUT:
        _place_of(str(target))


def write_output(target: str | Path, data: bytes, *, follow: bool = True) -> bool:
    """Write `data` to the file, device or pipe `target`. Returns whether that is a file.

    Args:
        follow: whether `target` is the user's own choice. False for a name that loaderbench made up: what is there, a
            link too, may be another user's, and is replaced.

    Raises:
        ConfigError: it cannot be written. A file that was there is as it was, if its folder takes new files.
    """
    try:
        if not follow:
            _check_folder(str(target), None)
            write_atomic(Path(target), data)
            return True
        place = _place_of(str(target))
        if place.is_file:
            _replace(place, data)
        else:
            _write_into(place, data)
        return place.is_file
    except OSError as error:
        raise _refusal(target, error.strerror or str(error)) from error


def _refusal(target: str | Path, why: str) -> ConfigError:
    return ConfigError(f"cannot write {target or repr(target)}: {why}; name another file")


def _place_of(target: str) -> _Place:
    """Raises ConfigError if nothing can be written there."""
    descriptor = _descriptor_of(target)
    try:
        # Before the link is read: the kernel refuses another user's link in a folder such as /tmp (proc_sys_fs(5),
        # protected_symlinks).
        found = Path(target).stat()
    except FileNotFoundError:
        found = None
    except OSError as error:
        raise _refusal(target, error.strerror or str(error)) from error
    if descriptor is not None:
        return _Place(target, found, descriptor)
    path = os.path.realpath(target) if Path(target).is_symlink() else target
    _check_folder(path, found)
    if not os.access(path if found else _folder_of(path), os.W_OK):
        raise _refusal(target, "it or its folder is read-only")
    return _Place(path, found)


def _check_folder(path: str, found: os.stat_result | None) -> None:
    """Raises ConfigError if `path` is a folder, or lies in none."""
    if not path or Path(path).is_dir():
        raise _refusal(path, "it is a folder")
    if found is not None and stat.S_ISSOCK(found.st_mode):
        raise _refusal(path, "it is a socket")
    if found is None and not Path(_folder_of(path)).is_dir():
        raise _refusal(path, f"there is no folder {_folder_of(path)}")
    if found is None and os.path.realpath(_folder_of(path)).startswith("/proc/"):
        raise _refusal(path, "no file is open under that number")


def _folder_of(path: str) -> str:
    return os.path.dirname(path) or "."


def _descriptor_of(path: str) -> int | None:
    """The number of this process's open file that the name leads to; None for any other name."""
    own = f"/proc/{os.getpid()}/fd"
    for _ in range(MOST_LINKS):
        folder, name = os.path.realpath(_folder_of(path)), os.path.basename(path)
        if not os.path.lexists(os.path.join(folder, name)):
            return None
        if folder == own:
            return int(name)
        try:
            path = str(Path(folder) / Path(folder, name).readlink())
        except OSError:
            return None
    return None


def _replace(place: _Place, data: bytes) -> None:
    """Write a file whole or not at all. Raises OSError."""
    try:
        write_atomic(Path(place.path), data, place.found)
    except OSError as error:
        if place.found is None or error.errno not in NO_NEW_FILE:
            raise
        _overwrite(place.path, place.found.st_size, data)


def _overwrite(path: str, size: int, data: bytes) -> None:
    """Write over a file of `size` bytes in its place: whole or not at all if the disk is full, not if this process is
    killed meanwhile. Raises OSError."""
    with open(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, max(len(data), 1))
        except OSError:
            file.truncate(size)
            raise
        file.write(data)
        file.truncate()
        os.fsync(file.fileno())


def _write_into(place: _Place, data: bytes) -> None:
    """Write to a device, a pipe or a descriptor; opening a pipe waits for its reader. Raises OSError."""
    if place.descriptor is None:
        opened = os.open(place.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
    else:
        sys.stdout.flush()
        sys.stderr.flush()
        opened = os.dup(place.descriptor)  # opened anew, a file would be written from its begin
    with open(opened, "wb") as file:
        file.write(data)
