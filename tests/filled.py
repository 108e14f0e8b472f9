"""Values of any type that is stored, made from its type hints alone: what a field may hold, some time a test holds."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from random import Random
from typing import Any

import numpy as np

from loaderbench.findings.advice import ADVICE_CODES
from loaderbench.findings.caveats import CAVEATS
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.record import Advice

TEXTS = ("", "a", "null", "1", "é\U0001f600", "\udcff", 'a"\\', "a.b[0]", "x" * 300)
NUMBERS = (0.0, -1.5, 3.0, 0.1, 1e-300, 1e300)
COUNTS = (0, 1, -1, 2**63 - 1, 10**30)
JSON = (None, True, 7, 0.5, "text", [], {}, [1, None, "x"], {"a": {"b": [0.25]}})


def filled(kind: Any, random: Random, *, whole: bool = False) -> Any:
    """A value of the type. `whole`: with every field set, nothing None or empty that need not be."""
    simple: dict[Any, Sequence[Any]] = {
        bool: (True, False), int: COUNTS, float: NUMBERS, str: TEXTS, type(None): (None,), Any: JSON, object: JSON,
    }  # fmt: skip
    if kind in simple:
        choices = simple[kind]
        return choices[1] if whole and len(choices) > 1 else random.choice(choices)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Caveat:  # its severity follows from its code
        details = filled(Mapping[str, Any], random, whole=whole)
        return Caveat(random.choice(CAVEATS).code, details, message=random.choice(TEXTS), hint="a hint")
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        names = [field.name for field in dataclasses.fields(kind) if field.init]
        values = {name: filled(hints[name], random, whole=whole) for name in names}
        known = {"code": random.choice(ADVICE_CODES)} if kind is Advice else {}  # a closed set
        return kind(**{**values, **known})  # type: ignore[operator]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return random.choice(list(kind))
    if origin is typing.Literal:
        return random.choice(arguments)
    if origin in (typing.Union, types.UnionType):
        others = [member for member in arguments if not (whole and member is type(None))]
        return filled(random.choice(others), random, whole=whole)
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return tuple(filled(member, random, whole=whole) for member in arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        keys, members = arguments
        names = [filled(keys, random, whole=False) for _ in range(2 if whole else random.randrange(3))]
        return {name: filled(members, random, whole=whole) for name in names}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        length = 2 if whole else random.randrange(3)
        return (tuple if origin is tuple else list)([filled(arguments[0], random, whole=whole) for _ in range(length)])
    if getattr(origin, "__name__", "") in ("ndarray", "NDArray"):  # the second since NumPy 2.5
        dtype = (typing.get_args(arguments[-1]) or arguments)[-1]
        table = np.random.default_rng(random.randrange(2**32)).normal(0, 1e9, (1 + random.randrange(3), 2))
        return table.astype(dtype)
    raise TypeError(f"nobody said how to make {kind}")


def same(first: Any, second: Any) -> bool:
    """Whether two values are equal, arrays by their content and type; NaN is NaN."""
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        if not isinstance(first, np.ndarray) or not isinstance(second, np.ndarray) or first.dtype != second.dtype:
            return False
        return bool(np.array_equal(first, second, equal_nan=first.dtype.kind == "f"))
    if type(first) is not type(second):
        return False
    if dataclasses.is_dataclass(first):
        names = [field.name for field in dataclasses.fields(first)]
        return all(same(getattr(first, name), getattr(second, name)) for name in names)
    if isinstance(first, Mapping):
        return list(first) == list(second) and all(same(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(same(*both) for both in zip(first, second, strict=True))
    return bool(first == second)
