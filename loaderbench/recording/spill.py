"""Where results go that their store has no room for: a folder of this process, in the first place that takes them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from loaderbench.errors import CaseFailed

PREFIX = "loaderbench-spilled-"
PLACES = (tempfile.gettempdir, lambda: "/var/tmp", lambda: "/dev/shm", Path.home, Path.cwd)
"""Where a folder may be made, the likeliest first."""
NOTE = "elsewhere"
"""In the folder of a run or study: a link to the store that took what did not fit. A full disk has room for a link."""
_opened: list[Path] = []


def spill(name: str, write: Callable[[Path], object]) -> Path | None:
    """Let `write` write a run or study into a folder of this name. Returns the store that it is in now; None where
    there is room nowhere."""
    for root in _roots():
        folder = root / name
        try:
            folder.mkdir(exist_ok=True)
            write(folder)
        except (OSError, CaseFailed):
            shutil.rmtree(folder, ignore_errors=True)
            if root not in _opened:
                shutil.rmtree(root, ignore_errors=True)
            continue
        if root not in _opened:
            _opened.append(root)
        return root
    return None


def _roots() -> Iterator[Path]:
    """The folders that this process spilled to, then new ones."""
    yield from [*_opened]
    for place in PLACES:
        try:
            yield Path(tempfile.mkdtemp(prefix=PREFIX, dir=place()))
        except (OSError, RuntimeError):  # RuntimeError: no home
            continue


def kept(root: Path | None) -> str:
    """The end of a message: where it is."""
    if root is None:
        return "and no other folder has room: the result is only on the screen"
    return f"what was measured is kept in {root} (`loaderbench list --results {root}`)"


def leave_note(folder: Path, root: Path) -> None:
    """Note in a folder that what it should hold is in the store `root`. Does nothing where that is impossible."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / NOTE).unlink(missing_ok=True)
        (folder / NOTE).symlink_to(root)


def noted(folder: Path) -> Path | None:
    """The store that holds what this folder should; None where nothing is noted."""
    try:
        return (folder / NOTE).readlink()
    except OSError:
        return None
