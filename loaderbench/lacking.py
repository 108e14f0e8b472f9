"""Explain what a process lacks: a package that is not installed, or memory, which can look the same."""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import re
import resource
import sys

from loaderbench.errors import MissingExtra, UnavailableError

LOAD_ERRORS = (ImportError, MemoryError, OSError)
"""What importing a package raises that is not there, or does not load. OSError: a library that it opens itself."""
USUAL_STACK = 8 << 20
"""Linux's default limit."""
LIMITS = (
    (resource.RLIMIT_AS, "ulimit -v", "address space", sys.maxsize),
    (resource.RLIMIT_DATA, "ulimit -d", "data", sys.maxsize),
    (resource.RLIMIT_STACK, "ulimit -s", "stack", USUAL_STACK),
)
"""(limit, the shell's command for it, what it limits, bytes above which it has no effect)"""
MEASURES_WITH = {"torch": "torch", "torchvision": "torchvision", "PIL": "Pillow"}
"""Module → package that every measurement needs: the extra `run` brings them."""
TORCH_TO_MEASURE, TORCH_TO_WATCH = (2, 6), (2, 1)
"""The oldest PyTorch that `run` and its like were tested with; that a watched script may use."""
RUN_EXTRA = "pip install 'loaderbench[run]'"
NO_THREAD = "can't start new thread"
"""What Python says where the kernel gives no thread, or no memory for its stack."""


def package(name: str, error: Exception, install: str) -> UnavailableError:
    """The error for a package that cannot be imported. `name`: as its users write it; `install`: what installs it."""
    if isinstance(error, ModuleNotFoundError):
        return UnavailableError(f"{name} is not installed ({error}); {install}")
    said = str(error) or type(error).__name__
    return UnavailableError(f"{name} is installed but cannot be loaded ({said}){memory()}")


def require_run(what: str) -> None:
    """Raises MissingExtra where the packages that measure a case are not installed, or are too old."""
    absent = [package for module, package in MEASURES_WITH.items() if not is_installed(module)]
    if absent:
        names = " and ".join(filter(None, [", ".join(absent[:-1]), absent[-1]]))
        are = "is" if len(absent) == 1 else "are"
        old = _older_torch(TORCH_TO_MEASURE)
        raise MissingExtra(f"`{what}` needs {names}, which {are} not installed: {RUN_EXTRA}{_apart(old)}")
    if (old := _older_torch(TORCH_TO_MEASURE)) is not None:
        raise MissingExtra(_too_old(what, TORCH_TO_MEASURE, old, f"{RUN_EXTRA}{_apart(old)}"))


def require_torch(what: str) -> None:
    """Raises MissingExtra where a script cannot be watched here, because PyTorch is lacking or too old."""
    if not is_installed("torch"):
        raise MissingExtra(
            f"`{what}` uses your script's PyTorch, and this Python has none: pip install loaderbench where PyTorch is"
        )
    if (old := _older_torch(TORCH_TO_WATCH)) is not None:
        raise MissingExtra(_too_old(what, TORCH_TO_WATCH, old, "pip install -U torch"))


def _older_torch(least: tuple[int, int]) -> str | None:
    """The version of the installed PyTorch if it is older; None if it is not, or unknown."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:  # built from source, and not installed
        return None
    found = re.match(r"(\d+)\.(\d+)", version)
    return version if found is not None and (int(found[1]), int(found[2])) < least else None


def _too_old(what: str, least: tuple[int, int], old: str, install: str) -> str:
    return f"`{what}` needs torch {least[0]}.{least[1]} or newer, and {old} is here: {install}"


def _apart(old: str | None) -> str:
    """A warning that the extra replaces the user's PyTorch, where it is `old`."""
    return "" if old is None else f" in an environment of its own, as it replaces torch {old}"


def is_installed(module: str) -> bool:
    """Whether a module can be found. It is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def extra(what: str, name: str, error: Exception) -> MissingExtra:
    """The error for `what` cannot be done without the packages of an extra. `error`: of importing one."""
    if isinstance(error, ModuleNotFoundError):
        return MissingExtra(f"`{what}` needs {error.name}, which is not installed: pip install 'loaderbench[{name}]'")
    said = str(error) or type(error).__name__
    return MissingExtra(f"`{what}` needs a package that cannot be loaded ({said}){memory()}")


def memory() -> str:
    """Describe the memory limits of this process as the end of a sentence; empty without limits."""
    told = []
    for limit, command, what, enough in LIMITS:
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY and most < enough:
            told.append(f"`{command}` allows {most / 2**20:,.0f} MiB of {what}")
    return f": {' and '.join(told)}, which may be too little: raise it" if told else ""


def memory_for(error: Exception) -> str:
    """Describe the limits as `memory` does if a lack of memory can cause the error; else return an empty text."""
    lacks = isinstance(error, MemoryError | ImportError) and not isinstance(error, ModuleNotFoundError)
    lacks = lacks or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    return memory() if lacks or (isinstance(error, RuntimeError) and NO_THREAD in str(error)) else ""
