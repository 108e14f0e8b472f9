"""What can be said of a folder of results, and of a name for a run, before anything is imported that measures."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path

from loaderbench.errors import ConfigError

RUN_NAME = re.compile(r"\d{8}-\d{6}-\d{3}")
"""How the names of runs and studies begin: such a folder is listed whatever is left in it."""
LATEST = "latest"
"""The name of the newest run that has a record, for every command."""
RESERVED = frozenset({LATEST, "all"})
"""What no tag may be."""
LONGEST_TAG = 80
PROBE_BYTES, PROBE_PART = 4 << 20, 64 << 10
"""Bytes that `check_writable` writes and removes: more than a usual run, about 100 bytes a step and arm. In
parts: once a process has freed a piece of 128 KiB or more, glibc gives memory back later (mallopt(3),
M_MMAP_THRESHOLD), and this may be a watched script's process."""


def check_writable(root: Path) -> None:
    """Check, before anything is measured, that a result fits into the folder. One that is not there is made with the
    first result, for a watched script may make it itself; the folder around it is asked.

    Raises:
        ConfigError: it is read-only, full, or no folder.
    """
    root = root.absolute()
    try:
        probe = _nearest(root) / f".probe-{secrets.token_hex(4)}"
        try:
            with probe.open("xb", buffering=0) as file:
                for _ in range(PROBE_BYTES // PROBE_PART):
                    file.write(os.urandom(PROBE_PART))
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write results to {root}: {write_reason(error)}") from error


def check_tag(tag: str | None) -> None:
    """Check a name that runs shall be found by. None is none.

    Raises:
        ConfigError: it is not printable, too long, or means something else.
    """
    if tag is None:
        return
    if not (tag.strip() and tag.isprintable() and len(tag) <= LONGEST_TAG):
        raise ConfigError(f"--tag must be a name of 1 to {LONGEST_TAG} printable characters, not {tag!r}"[:200])
    if tag.lower() in RESERVED:
        raise ConfigError(f"--tag {tag} is a reserved word: give another name")
    if RUN_NAME.match(tag):
        raise ConfigError(f"--tag {tag} is the id of a run, or looks like one: give another name")


def write_reason(error: OSError) -> str:
    """Say why a folder of results took no file, and what to do."""
    return f"{error.strerror or error}; free some space, fix its permissions, or name another folder with --results"


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest one around it that is there. Raises OSError where that cannot be told."""
    for one in (folder, *folder.parents):
        with contextlib.suppress(FileNotFoundError):
            one.lstat()
            return one
    return Path(folder.anchor)
