"""What a script changes of the interpreter that it shares with us, taken back for as long as our own work at its end
takes: without that, a fake clock, a replaced `open` or a shortened search path would keep what was seen from being
stored and said. What the script left as it was is not touched.
"""

from __future__ import annotations

import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from io import StringIO
from types import ModuleType
from typing import Any

import numpy as np
import numpy.ma
import numpy.random

from loaderbench.reporting.console import make_console, plain_table, print_bullets, print_rows

OF_SYS = ("path", "meta_path", "path_hooks", "stdout", "stderr", "__stdout__", "__stderr__", "modules")
"""What our work uses of `sys` that a script may change."""
LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_DATA)
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
DEPTH = 1000
"""Of calls, that our own work may need."""

_set_depth, _depth = sys.setrecursionlimit, sys.getrecursionlimit


class Interpreter:
    """The one that runs us, as it is now."""

    def __init__(self) -> None:
        _import_what_is_late()
        named = [(name, one) for name, one in sys.modules.items() if isinstance(one, ModuleType)]
        own = {*sys.stdlib_module_names, "loaderbench", "numpy", "rich"} - {"sys"}
        self._modules = dict(named)
        self._values = [(vars(one), {**vars(one)}) for name, one in named if name.partition(".")[0] in own]
        self._of_sys = {name: getattr(sys, name) for name in OF_SYS}
        self._lists = {name: [*value] for name, value in self._of_sys.items() if isinstance(value, list)}
        self._limits = {limit: resource.getrlimit(limit) for limit in LIMITS}
        self._numpy = np.geterr()

    def as_it_was(self, work: Callable[[], object]) -> None:
        """Do our own work."""
        depth = _depth()
        _set_depth(depth + DEPTH)
        try:
            self._do(work)
        finally:
            _set_depth(depth)

    def _do(self, work: Callable[[], object]) -> None:
        with ExitStack() as back:
            for values, before in self._values:
                changed = {name: values.get(name, _MISSING) for name in before if values.get(name) is not before[name]}
                if changed:
                    values.update({name: before[name] for name in changed})
                    back.callback(_put, values, changed)
            back.enter_context(_traced_no_more())
            back.enter_context(self._sys_as_it_was())
            back.enter_context(_clocks_at_rest())
            back.enter_context(self._limits_as_they_were())
            back.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            back.enter_context(np.errstate(**self._numpy))
            work()

    @contextmanager
    def _sys_as_it_was(self) -> Iterator[None]:
        before = {name: getattr(sys, name, None) for name in self._of_sys}
        gone = {name: module for name, module in self._modules.items() if sys.modules.get(name) is not module}
        theirs = {name: sys.modules[name] for name in gone if name in sys.modules}
        modules = self._of_sys["modules"]
        for name, value in self._of_sys.items():
            setattr(sys, name, self._lists.get(name, value))
        modules.update(gone)
        try:
            yield
        finally:
            for name in gone:
                modules.pop(name, None)
            modules.update(theirs)
            for name, value in before.items():
                setattr(sys, name, value)

    @contextmanager
    def _limits_as_they_were(self) -> Iterator[None]:
        now = {limit: resource.getrlimit(limit) for limit in LIMITS}
        lowered = [limit for limit, (soft, _) in self._limits.items() if now[limit][0] != soft]
        for limit in lowered:
            most = now[limit][1]
            resource.setrlimit(limit, (min(self._limits[limit][0], most, key=_size), most))
        try:
            yield
        finally:
            for limit in lowered:
                resource.setrlimit(limit, now[limit])


def _import_what_is_late() -> None:
    """rich imports much of itself when it first prints: behind the script that may be impossible."""
    with redirect_stderr(StringIO()):
        console = make_console(stderr=True)
        print_rows(console, [("×", "…")])
        print_bullets(console, "×", ["…"])
        console.print(plain_table())
        console.print(":×:")


def _size(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else limit


_MISSING: Any = object()


def _put(values: dict[str, Any], changed: dict[str, Any]) -> None:
    for name, value in changed.items():
        if value is _MISSING:
            values.pop(name, None)
        else:
            values[name] = value


@contextmanager
def _traced_no_more() -> Iterator[None]:
    tracer, profiler = sys.gettrace(), sys.getprofile()
    sys.settrace(None)
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(profiler)
        sys.settrace(tracer)


@contextmanager
def _clocks_at_rest() -> Iterator[None]:
    """The script's timers stand still, and go on with what was left of them."""
    left = {timer: signal.setitimer(timer, 0.0) for timer in TIMERS}
    try:
        yield
    finally:
        for timer, (seconds, interval) in left.items():
            if seconds:
                signal.setitimer(timer, seconds, interval)
