"""Stored values with a poison in every text that is not loaderbench's own, made by their type hints."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from loaderbench import plain

Poison = Callable[[str, str | None], str | None]
"""(`Class.field`, its text) → the text instead."""


def poisoned(value: Any, kind: Any, poison: Poison, place: str = "") -> Any:
    """The value, which is of this type, with another text wherever its type allows any text."""
    if isinstance(value, Enum):
        return value
    members = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    free = bool({str, Any, object} & {*members})
    if isinstance(value, str) or (value is None and str in members):
        return poison(place, value) if free else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = plain.type_hints(type(value))
        given = {
            field.name: poisoned(
                getattr(value, field.name), hints[field.name], poison, f"{type(value).__name__}.{field.name}"
            )
            for field in dataclasses.fields(value)
            if field.init
        }
        return dataclasses.replace(value, **given)
    if isinstance(value, Mapping):
        arguments = next((typing.get_args(one) for one in members if typing.get_args(one)), (str, Any))
        return {name: poisoned(item, arguments[-1], poison, place) for name, item in value.items()}
    if isinstance(value, list | tuple):
        arguments = next((typing.get_args(one) for one in members if typing.get_args(one)), (Any,))
        whole = [*arguments] if len(arguments) == len(value) and Ellipsis not in arguments else None
        return type(value)(
            poisoned(item, arguments[0] if whole is None else whole[number], poison, place)
            for number, item in enumerate(value)
        )
    return value


def texts_of(value: object, place: str = "") -> Iterator[tuple[str, str]]:
    """(`Class.field`, text) of every text in a value, names in mappings too."""
    if isinstance(value, str) and not isinstance(value, Enum):
        yield place, value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from texts_of(getattr(value, field.name), f"{type(value).__name__}.{field.name}")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from texts_of(name, place)
            yield from texts_of(item, place)
    elif isinstance(value, Sequence):
        for item in value:
            yield from texts_of(item, place)


def text_fields(*kinds: Any) -> set[str]:
    """`Class.field` of every field that may hold any text, in these types and all that they hold."""
    found: set[str] = set()
    pending, seen = [*kinds], set()
    while pending:
        kind = pending.pop()
        if dataclasses.is_dataclass(kind) and kind not in seen:
            seen.add(kind)
            for name, hint in plain.type_hints(kind).items():  # type: ignore[arg-type]
                found |= {f"{kind.__name__}.{name}"} if _holds_text(hint) else set()  # type: ignore[union-attr]
                pending.append(hint)
        pending += [one for one in typing.get_args(kind) if not isinstance(one, str | int)]
    return found


def _holds_text(hint: Any) -> bool:
    if hint in (str, Any, object):
        return True
    if getattr(typing.get_origin(hint), "__name__", "") in ("ndarray", "NDArray", "Literal"):
        return False
    return typing.get_origin(hint) is not typing.Literal and any(_holds_text(one) for one in typing.get_args(hint))
