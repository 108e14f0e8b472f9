"""The folder in which our processes start, and large libraries are imported, instead of the user's current one.

A library may look for others in the current folder, which may be a data set's. NVIDIA's libcusparseLt.so.0, which torch
loads, has the RUNPATH `$ORIGIN:`, and its empty part means that folder (ld.so(8)).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

FOLDER = "/"
"""Always there, and root's."""
STARTED_IN = "LOADERBENCH_STARTED_IN"
"""The variable that passes the user's current folder to our processes."""
SAFE_PATH = "PYTHONSAFEPATH"
"""With any value, Python does not import from the current folder (`-P`)."""
PACKAGES = Path(__file__).resolve().parents[1]
"""The folder that holds the package."""
OF_FOLDERS = re.compile(
    r"(?!PYTHONSAFEPATH|PYTHONPLATLIBDIR)(\w*(PATH|HOME|DIR)|TE?MP|PYTHONUSERBASE|SSL_CERT_FILE|LD_(PRELOAD|AUDIT)"
    r"|HF_\w+_CACHE)"
)
"""Names of variables that hold folders or files: TMPDIR, TORCH_HOME …"""
LISTS = re.compile(r"\w*PATH|LD_(PRELOAD|AUDIT)")
"""Those that hold several, separated by colons; LD_PRELOAD by blanks, too (ld.so(8))."""


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for a process that starts in FOLDER: relative names of folders are made absolute, and empty parts of
    paths, which mean the current folder, are left out."""
    try:
        here = str(Path.cwd())
    except FileNotFoundError:  # it was removed: nothing can be relative to it
        return dict(environ)
    told = {name: _absolute(name, value, here) for name, value in environ.items()}
    told[STARTED_IN] = here
    if Path(here) == PACKAGES:  # loaderbench may be found only because one stands there
        told["PYTHONPATH"] = os.pathsep.join(filter(None, [told.get("PYTHONPATH"), here]))
    return told


def _absolute(name: str, value: str, here: str) -> str:
    if OF_FOLDERS.fullmatch(name) is None or "://" in value:
        return value
    if name == "LD_PRELOAD":
        value = os.pathsep.join(value.split())
    parts = [part for part in value.split(os.pathsep) if part] if LISTS.fullmatch(name) else [value]
    return os.pathsep.join(_part(name, part, here) for part in parts)


def _part(name: str, part: str, here: str) -> str:
    is_name = name in ("LD_PRELOAD", "LD_AUDIT") and os.sep not in part  # the linker looks for it
    if not part or part.startswith(("~", "$")) or is_name:
        return part
    return os.path.join(here, part)


def users_folder() -> Path:
    """The folder that the user stands in, also in a process that started in FOLDER."""
    return Path(os.environ.get(STARTED_IN) or Path.cwd())


@contextmanager
def standing_in(folder: str | Path = FOLDER) -> Iterator[None]:
    """Make it the current folder within this context. For all threads: the kernel knows one per process."""
    here = os.open(".", os.O_PATH)  # its name may be gone
    try:
        os.chdir(folder)
        yield
    finally:
        os.fchdir(here)
        os.close(here)
