"""Parameters that take seconds each and see much of the same: a part of them is tested by default."""

from collections.abc import Iterable
from typing import Any

import pytest


def thinned(values: Iterable[Any], every: int) -> list[Any]:
    """Of the parameters: the first and each `every`th behind it as they are, the others marked `slow`."""
    return [
        value if position % every == 0 else pytest.param(*several(value), marks=pytest.mark.slow)
        for position, value in enumerate(values)
    ]


def several(value: Any) -> tuple[Any, ...]:
    """A parameter's values: a tuple holds one for each name."""
    return value if isinstance(value, tuple) else (value,)
