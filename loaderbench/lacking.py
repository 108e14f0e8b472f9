"""What a process lacks: a package that is not installed, or memory, for which it may only look so."""

from __future__ import annotations

import errno
import resource
import sys

from loaderbench.errors import UnavailableError

LOAD_ERRORS = (ImportError, MemoryError, OSError)
"""What importing a package raises that is not there, or does not load. OSError: a library that it opens itself."""
USUAL_STACK = 8 << 20
"""Linux's limit where nobody sets another."""
LIMITS = (
    (resource.RLIMIT_AS, "ulimit -v", "address space", sys.maxsize),
    (resource.RLIMIT_DATA, "ulimit -d", "data", sys.maxsize),
    (resource.RLIMIT_STACK, "ulimit -s", "stack", USUAL_STACK),
)
"""(limit, the shell's command for it, what it limits, bytes from which on it limits nothing)"""
NO_THREAD = "can't start new thread"
"""What Python says where the kernel gives no thread, or no memory for its stack."""


def package(name: str, error: Exception, install: str) -> UnavailableError:
    """The error for a package that cannot be imported. `name`: as its users write it; `install`: what installs it."""
    if isinstance(error, ModuleNotFoundError):
        return UnavailableError(f"{name} is not installed ({error}); {install}")
    said = str(error) or type(error).__name__
    return UnavailableError(f"{name} is installed but cannot be loaded ({said}){memory()}")


def memory() -> str:
    """Of this process's memory, what is limited, as the end of a sentence; empty where nothing is."""
    told = []
    for limit, command, what, enough in LIMITS:
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY and most < enough:
            told.append(f"`{command}` allows {most / 2**20:,.0f} MiB of {what}")
    return f": {' and '.join(told)}, which may be too little: raise it" if told else ""


def memory_for(error: Exception) -> str:
    """As `memory`, where the error is one that a lack of memory gives."""
    lacks = isinstance(error, MemoryError | ImportError) and not isinstance(error, ModuleNotFoundError)
    lacks = lacks or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    return memory() if lacks or (isinstance(error, RuntimeError) and NO_THREAD in str(error)) else ""
