"""Explain what a process lacks: a package that is not installed, or memory, which can look the same."""

from __future__ import annotations

import errno
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
NO_THREAD = "can't start new thread"
"""What Python says where the kernel gives no thread, or no memory for its stack."""


def package(name: str, error: Exception, install: str) -> UnavailableError:
    """The error for a package that cannot be imported. `name`: as its users write it; `install`: what installs it."""
    if isinstance(error, ModuleNotFoundError):
        return UnavailableError(f"{name} is not installed ({error}); {install}")
    said = str(error) or type(error).__name__
    return UnavailableError(f"{name} is installed but cannot be loaded ({said}){memory()}")


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
