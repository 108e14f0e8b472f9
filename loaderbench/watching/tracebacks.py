"""An error of the script passes through our code without a trace: what it shows is what it would without the watch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

PACKAGE = Path(__file__).parents[1]
OWN = (
    f"{PACKAGE / 'watching'}{os.sep}", f"{PACKAGE / 'integrations'}{os.sep}",
    *(str(PACKAGE / name) for name in ("studies/watch.py", "studies/script_ends.py", "samplers/connections.py")),
)  # fmt: skip
"""Files whose functions stand between functions of the script, or of libraries."""


def unseen(call: Callable[P, T]) -> Callable[P, T]:
    """The function that does as `call`, and is not seen in the traceback of an error that it hands on."""

    @wraps(call)
    def handed_on(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return call(*arguments, **named)
        except BaseException as error:
            error.with_traceback(without_us(error.__traceback__))
            raise  # which adds nothing to it

    return handed_on


def without_us(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without our functions; but those at its end, which raised the error."""
    kept: TracebackType | None = None
    is_end = True
    for one in reversed([*_of(trace)]):
        is_own = one.tb_frame.f_code.co_filename.startswith(OWN)
        is_end = is_end and is_own
        if is_end or not is_own:
            one.tb_next, kept = kept, one
    return kept


def _of(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
