"""What a first look at the program prints, before anything large is imported: the ways in, and the help read most.

The kept help is written anew by `make screens`.
"""

from __future__ import annotations

import os
import sys

WAYS_IN = """\
loaderbench finds what limits a training or inference run, and what to change.

A job that is running:   loaderbench attach 4711       (its process id)
Your training script:    loaderbench watch train.py
A folder of images:      loaderbench run photos

Each ends with a verdict: the cause, what its removal gains, what to try first.
To see one in 30 s, on generated data:   loaderbench demo
Stored runs:                             loaderbench list
Every command and option:                loaderbench --help
"""
KEPT = {(): "loaderbench.txt", ("watch",): "watch.txt"}
"""Words of a command whose help is the same everywhere → its file in `help`, for terminals of 80 columns and more."""
FOLDER = os.path.join(os.path.dirname(__file__), "help")
COLUMNS = 80
"""Help is no wider, however wide the terminal is."""


def first_text(arguments: list[str]) -> str | None:
    """Return what to print for these arguments; None if a command must say it."""
    if not arguments:
        return WAYS_IN
    words = tuple(arguments[:-1])
    if arguments[-1] not in ("--help", "-h") or words not in KEPT or _columns() < COLUMNS:
        return None
    try:
        with open(os.path.join(FOLDER, KEPT[words]), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def print_first(text: str) -> int:
    """Print the text. Returns the exit code."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # its reader has seen enough; Python would complain again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except OSError as error:
        print(f"loaderbench: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    return 0


def _columns() -> int:
    """The terminal's, as `shutil.get_terminal_size` finds them: importing it takes longer than all of this."""
    try:
        named = int(os.environ.get("COLUMNS", ""))
    except ValueError:
        named = 0
    if named > 0:
        return named
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or COLUMNS if sys.__stdout__ else COLUMNS
    except (OSError, ValueError):
        return COLUMNS
