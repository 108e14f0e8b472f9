"""Writing files so that a crash, or a second process, never leaves half of one."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.plain import JsonObject
from loaderbench.printable import clean
from loaderbench.recording.files import open_lock, read_json

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
        raise UnavailableError(f"there is no folder for cached files: {error}; set XDG_CACHE_HOME") from error


def make_own_folder(folder: Path) -> None:
    """Make a folder of the cache, and those above it, so that nobody else can write there. Raises OSError."""
    for one in reversed([folder, *folder.parents]):
        if not one.exists():
            one.mkdir(mode=0o700, exist_ok=True)


def check_own(path: Path) -> None:
    """Check that nobody else can have put there what is about to be run: the path, all that is in it, the folders above
    it, and what links among these lead to. What does not exist yet is not looked at, but what is above it is.

    Raises:
        UnavailableError: another user owns one of them, or others may write it. In a folder with the sticky bit, such
            as /tmp, others may write, but not replace what is ours.
    """
    owners = {0, os.geteuid()}
    inside = [*path.rglob("*")] if path.is_dir() else []
    for one in _passed(path, set()):
        _check_owner(one, owners if one == path else owners | _unmapped_owner(), sticky_is_safe=one != path)
    for one in inside:
        _check_owner(one, owners, sticky_is_safe=False)


def _check_owner(path: Path, owners: set[int], *, sticky_is_safe: bool) -> None:
    try:
        status = path.lstat()
    except OSError:
        return
    if status.st_uid not in owners:
        why = f"user {status.st_uid} owns {path}"
    elif stat.S_ISLNK(status.st_mode):
        return
    elif status.st_mode & 0o022 and not (sticky_is_safe and status.st_mode & stat.S_ISVTX):
        why = f"other users may write to {path} (fix it with `chmod go-w`)"
    else:
        return
    raise UnavailableError(
        f"{why}, so they could change code that loaderbench runs: set XDG_CACHE_HOME to a folder of your own"
    )


def _passed(path: Path, seen: set[Path]) -> Iterator[Path]:
    """The path, the folders above it, and what links among them lead to."""
    for one in (path, *path.parents):
        if one in seen:
            continue
        seen.add(one)
        yield one
        if one.is_symlink():
            yield from _passed(one.parent / one.readlink(), seen)


def _unmapped_owner() -> set[int]:
    """The owner that folders of the system have in a user namespace that does not know root, as in Apptainer: `nobody`.
    Empty where all users are known (user_namespaces(7)).
    """
    try:
        known = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
        return {int(Path("/proc/sys/kernel/overflowuid").read_text())} if known < 2**32 - 1 else set()
    except (OSError, ValueError):
        return set()


def read_record(record: Path) -> JsonObject | None:
    """A record that loaderbench keeps beside images; None where there is none. The folder may be somebody else's.

    Raises:
        ConfigError: it is damaged or no file, or cannot be read.
    """
    try:
        found = read_json(record)
    except NotADirectoryError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {record}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{record} is damaged; remove {record.parent}") from error
    if found is not None and not isinstance(found, dict):
        raise ConfigError(f"{record} is damaged; remove {record.parent}")
    return found


def record_of(folder: str | Path) -> JsonObject | None:
    """What a converted folder was made from; None for any other folder.

    Raises:
        ConfigError: the record is damaged.
    """
    record = Path(folder) / CONVERTED_RECORD
    content = read_record(record)
    if content is not None and not {"format", "listing"} <= set(content):
        raise ConfigError(f"{record} is damaged; remove {record.parent}")
    return content


def holds_foreign_files(folder: Path) -> bool:
    """Whether anything but loaderbench's own records is in the folder."""
    return any(not entry.name.startswith(OWN_FILES_PREFIX) for entry in folder.iterdir())


@contextmanager
def replace_file(path: str | Path) -> Iterator[BinaryIO]:
    """Write to `path.part`, which becomes `path` in one step at the end, or goes away on an error.

    Only one process may write a path at a time (`exclusive`). The partial file of a killed one is removed, and so is a
    link of that name: it may lead out of a folder that somebody else filled.
    """
    part = f"{path}{PART_SUFFIX}"
    Path(part).unlink(missing_ok=True)
    try:
        with open(part, "xb") as file:
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
    with open_lock(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting = f"waiting for another process that writes to {lock.parent} (`fuser {lock}` shows it)"
            print(clean(waiting), file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
