"""Dataclasses as plain JSON and back, and the JSON Schema that they follow. Standard library only.

Understood: None, bool, int, float, str, string enums, `Literal`, `X | None` and other unions, `tuple[X, ...]`,
`tuple[X, Y]`, `list[X]`, `Sequence[X]`, `Mapping[str, X]`, `Any`, nested dataclasses, and numpy arrays where the caller
keeps them elsewhere (`arrays`). For a class with its own `to_json`, `from_json` and `json_schema` these are called.

Reading is strict about what is there and lenient about the rest: a value of the wrong type is a PlainError that names
its place; a field that the class does not know is dropped; one that is missing takes its default.

JSON has no NaN and no infinity. Both become null, and their places are reported. Where a number is required, null is
read as NaN, so that everything written can be read. A number that a float cannot hold is refused, and so is what is
nested deeper than MOST_NESTED where a field takes anything.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import math
import os
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
else:
    Json = Any
"""Anything that JSON can hold. Reading does not check it."""
JsonObject = dict[str, Json]
T = TypeVar("T")

Arrays = dict[str, "NDArray[Any]"]
"""Place → numpy array, for the arrays that are stored next to the JSON."""


MOST_NESTED = 50
"""Levels of lists and objects in a field that takes anything: far more than anybody writes, few enough for code that
walks through them."""
MOST = sys.float_info.max
"""Largest magnitude of a number."""


class PlainError(ValueError):
    """A JSON value has the wrong type; the message says where and what it is."""

    def __init__(self, said: str, of: str = "", between: str = ": ") -> None:
        """The message is the value's place, `between` and `said`; without a place it is `of` and `said`."""
        super().__init__(of + said)
        self._where, self._between, self._said = "", between, said

    def add_place(self, place: str) -> None:
        """Say that the value is at this place, `.name` or `[3]`, of another. Only what fails puts its place together:
        a store holds millions of values."""
        self._where = place + self._where
        self.args = (f"{self._where.removeprefix('.')}{self._between}{self._said}",)


# -- writing ---------------------------------------------------------------------------------------------


class MissingField(PlainError):
    """A field that has no default is not there: an older version did not write it, or somebody took it out."""


def to_json(value: object, not_finite: list[str] | None = None, arrays: Arrays | None = None, where: str = "") -> Json:
    """`value` in plain JSON types: dataclasses, numpy scalars, tuples, enums and paths converted.

    NaN and infinity become null, and their places (`throughput.low`) are added to `not_finite`. With `arrays`, a numpy
    array is stored there under its place, and the JSON holds that place; without, the array becomes nested lists.

    Raises:
        TypeError: something has no JSON form.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return cast("Json", value.value)
    if isinstance(value, int):
        return int(value)  # of a subclass too, as it is read again
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        if not_finite is not None:
            not_finite.append(where)
        return None

    def inner(name: str, item: object) -> Json:
        return to_json(item, not_finite, arrays, f"{where}.{name}" if where else name)

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own: Any = getattr(value, "to_json", None)
        if own is not None:
            return to_json(own(), not_finite, arrays, where)
        return {field.name: inner(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): inner(str(key), item) for key, item in value.items()}
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, list | tuple):
        return [to_json(item, not_finite, arrays, f"{where}[{number}]") for number, item in enumerate(value)]
    numpys: Any = value
    if hasattr(value, "dtype"):  # a scalar, or an array
        if arrays is not None and numpys.ndim:
            arrays[where] = numpys
            return where
        return to_json(numpys.tolist(), not_finite, arrays, where)
    raise TypeError(f"{where or 'the value'} cannot be written as JSON: {type(value).__name__}")


def to_object(value: object, not_finite: list[str] | None = None, arrays: Arrays | None = None) -> JsonObject:
    """`to_json` of a dataclass or a mapping."""
    found = to_json(value, not_finite, arrays)
    assert isinstance(found, dict)
    return found


# -- reading ---------------------------------------------------------------------------------------------

_Reader = Callable[[Any, Mapping[str, Any]], Any]


def from_json(kind: type[T], value: Json, arrays: Mapping[str, Any] | None = None) -> T:
    """The inverse of `to_json`: an object of type `kind`, with its arrays from `arrays`.

    Raises:
        PlainError: a value is missing or of another type.
    """
    wanted: Any = kind
    return cast(T, _reader(wanted)(value, arrays or {}))


def _wrong(wanted: str, value: object) -> PlainError:
    shown = repr(value)
    return PlainError(f"must be {wanted}, not {shown if len(shown) <= 60 else shown[:60] + '…'}", "the value ", " ")


def _exactly(wanted: str, kind: type) -> _Reader:
    def read(value: Any, arrays: Mapping[str, Any]) -> Any:
        if type(value) is not kind:
            raise _wrong(wanted, value)
        return value

    return read


def _float(value: Any, arrays: Mapping[str, Any]) -> float:
    if type(value) is float:
        return value if -MOST <= value <= MOST else _too_large(value)
    if value is None:
        return math.nan
    if type(value) is int:
        return float(value if -MOST <= value <= MOST else _too_large(value))
    raise _wrong("a number", value)


def _int(value: Any, arrays: Mapping[str, Any]) -> int:
    if type(value) is not int:
        raise _wrong("a whole number", value)
    return value if -MOST <= value <= MOST else _too_large(value)


def _too_large(value: float) -> NoReturn:
    """Raises PlainError for what a float cannot hold: arithmetic with it would fail."""
    shown = f"{value}" if isinstance(value, float) else f"a number of {value.bit_length()} bits"
    raise PlainError(f"must be a finite number, not {shown}", "the value ", " ")


def _anything(value: Any, arrays: Mapping[str, Any], levels: int = MOST_NESTED) -> Any:
    kind = type(value)
    if kind is dict or kind is list:
        if not levels:
            raise PlainError(f"is nested deeper than {MOST_NESTED} levels", "the value ", " ")
        for item in value.values() if kind is dict else value:
            _anything(item, arrays, levels - 1)
    elif (kind is float or kind is int) and not -MOST <= value <= MOST:
        _too_large(value)
    return value


@functools.cache
def _reader(kind: Any) -> _Reader:
    """A function that turns a JSON value into `kind`. Built once for each type: a store holds thousands of records."""
    simple: dict[Any, _Reader] = {
        bool: _exactly("true or false", bool),
        int: _int,
        float: _float,
        str: _exactly("text", str),
        type(None): _exactly("null", type(None)),
        Any: _anything,
        object: _anything,
    }
    if kind in simple:
        return simple[kind]
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _dataclass_reader(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _choice_reader({member.value: member for member in kind})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return _choice_reader({choice: choice for choice in arguments})
    if origin in (typing.Union, types.UnionType):
        return _union_reader(arguments, _taken_as_is(kind))
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return _pair_reader(arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_reader(*arguments)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _sequence_reader(tuple if origin is tuple else list, arguments[0])
    if _is_array(kind):
        return _read_array
    raise TypeError(f"{kind} cannot be read from JSON")


def _taken_as_is(kind: Any) -> frozenset[type]:
    """The types whose values are `kind` without a look at them: most of what is stored."""
    as_is = (bool, str, type(None))
    if kind in as_is:
        return frozenset({kind})
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return frozenset()
    members = typing.get_args(kind)
    # "red" may be a colour before it is a text.
    is_plain = all(member in (*as_is, int, float) for member in members)
    return frozenset(member for member in members if member in (as_is if is_plain else as_is[-1:]))


def _is_array(kind: Any) -> bool:
    """`NDArray[…]` is `ndarray[…]` before NumPy 2.5, and since then an alias that Python does not look into."""
    return getattr(typing.get_origin(kind) or kind, "__name__", "") in ("ndarray", "NDArray")


def _read_array(value: Any, arrays: Mapping[str, Any]) -> Any:
    if not isinstance(value, str) or value not in arrays:
        raise _wrong("the name of an array", value)
    return arrays[value]


def _choice_reader(choices: Mapping[Any, Any]) -> _Reader:
    kinds = (str, int, bool)

    def read(value: Any, arrays: Mapping[str, Any]) -> Any:
        if isinstance(value, kinds) and value in choices:
            return choices[value]
        raise _wrong(f"one of {', '.join(map(str, choices))}", value)

    return read


def _union_reader(members: Sequence[Any], as_is: frozenset[type]) -> _Reader:
    readers = [_reader(member) for member in members if member is not type(None)]
    # The more specific type comes first: 1 is a whole number rather than a number.
    readers.sort(key=lambda reader: reader is _float)
    *first, last = readers

    def read(value: Any, arrays: Mapping[str, Any]) -> Any:
        if type(value) in as_is:
            return value
        for reader in first:
            try:
                return reader(value, arrays)
            except PlainError:
                continue
        return last(value, arrays)

    return read


def _pair_reader(members: Sequence[Any]) -> _Reader:
    readers = [_reader(member) for member in members]

    def read(value: Any, arrays: Mapping[str, Any]) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise _wrong(f"a list of {len(readers)}", value)
        return tuple(_read_each(zip(readers, value, strict=True), arrays))

    return read


def _sequence_reader(make: Callable[[list[Any]], Any], member: Any) -> _Reader:
    reader = _reader(member)

    def read(value: Any, arrays: Mapping[str, Any]) -> Any:
        if not isinstance(value, list):
            raise _wrong("a list", value)
        return make(_read_each(zip(itertools.repeat(reader), value), arrays))

    return read


def _read_each(items: Iterable[tuple[_Reader, Any]], arrays: Mapping[str, Any]) -> list[Any]:
    found: list[Any] = []
    try:
        for reader, item in items:
            found.append(reader(item, arrays))
    except PlainError as error:
        error.add_place(f"[{len(found)}]")
        raise
    return found


def _mapping_reader(key: Any, member: Any) -> _Reader:
    read_key, reader = _reader(key), _reader(member)

    def read(value: Any, arrays: Mapping[str, Any]) -> Any:
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        found = {}
        for name, item in value.items():
            try:
                known = read_key(name, arrays)
            except PlainError:  # a name that this version does not know
                continue
            try:
                found[known] = reader(item, arrays)
            except PlainError as error:
                error.add_place(f".{name}")
                raise
        return found

    return read


def _dataclass_reader(kind: Any) -> _Reader:
    own = getattr(kind, "from_json", None)
    if own is not None:

        def read_own(value: Any, arrays: Mapping[str, Any]) -> Any:
            if not isinstance(value, dict):
                raise _wrong("an object", value)
            try:
                return own(value)
            except PlainError as error:
                raise PlainError(str(error)) from None

        return read_own
    fields: list[tuple[str, frozenset[type], _Reader, bool]] = []

    def fill() -> None:
        for field in dataclasses.fields(kind):
            if field.init:
                member = type_hints(kind)[field.name]
                fields.append((field.name, _taken_as_is(member), _reader(member), _has_default(field)))

    def read(value: Any, arrays: Mapping[str, Any]) -> Any:
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        if not fields:  # filled late: a class may contain itself
            fill()
        given = {}
        for name, as_is, reader, has_default in fields:
            item = value.get(name, dataclasses.MISSING)
            if type(item) in as_is:
                given[name] = item
            elif item is not dataclasses.MISSING:
                try:
                    given[name] = reader(item, arrays)
                except PlainError as error:
                    error.add_place(f".{name}")
                    raise
            elif not has_default:
                raise MissingField(f"lacks {name}", "it ", " ")
        return kind(**given)

    return read


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def type_hints(kind: type[Any]) -> Mapping[str, Any]:
    """The types of a dataclass's fields."""
    known: Any = kind
    return _type_hints(known)


@functools.cache
def _type_hints(kind: Any) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


# -- the schema ------------------------------------------------------------------------------------------


def schema_of(kind: type, definitions: JsonObject) -> JsonObject:
    """JSON Schema (draft 2020-12) of a dataclass; descriptions are the docstrings of its fields.

    Nested classes are added to `definitions` under their names and referred to there.
    """
    own = getattr(kind, "json_schema", None)
    if own is not None:
        return cast(JsonObject, own(definitions))
    descriptions = field_docs(kind)
    properties: JsonObject = {}
    for name, member in type_hints(kind).items():
        described = _schema(member, definitions)
        if name in descriptions:
            described = {**described, "description": descriptions[name]}
        properties[name] = described
    required: list[Json] = [field.name for field in dataclasses.fields(kind) if not _has_default(field)]
    summary = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
    if summary.startswith(f"{kind.__name__}("):  # without a docstring dataclasses makes one from the signature
        summary = ""
    return {
        "type": "object",
        **({"description": summary} if summary else {}),
        "properties": properties,
        **({"required": required} if required else {}),
    }


def _schema(kind: Any, definitions: JsonObject) -> JsonObject:
    simple = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    if kind in simple:
        return {"type": simple[kind]}
    if kind in (Any, object):
        return {}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # a class may contain itself
            definitions[kind.__name__] = schema_of(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return _union_schema(arguments, definitions)
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        items: list[Json] = [_schema(member, definitions) for member in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        described, names = _schema(arguments[1], definitions), _schema(arguments[0], definitions).get("enum")
        if isinstance(names, list):  # a closed set of names: the values are its properties
            return {"type": "object", "properties": {str(name): described for name in names}}
        return {"type": "object", **({"additionalProperties": described} if described else {})}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    raise TypeError(f"{kind} has no JSON Schema")


def _union_schema(members: Sequence[Any], definitions: JsonObject) -> JsonObject:
    described = [_schema(member, definitions) for member in members]
    if all(set(one) == {"type"} for one in described):
        return {"type": [one["type"] for one in described]}
    if any(not one for one in described):
        return {}
    choices: list[Json] = []
    for one in described:  # a Literal and null are one choice
        if set(one) == {"enum"}:
            choices += cast(list[Json], one["enum"])
        elif one == {"type": "null"}:
            choices.append(None)
        else:
            return {"anyOf": cast(list[Json], described)}
    return {"enum": choices}


def field_docs(kind: type) -> Mapping[str, str]:
    """Field → the docstring after it in the source, in one line."""
    found: dict[str, str] = {}
    for part in reversed(kind.__mro__[:-1]):
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        assert isinstance(node, ast.ClassDef)
        for before, after in zip(node.body, node.body[1:], strict=False):
            documented = (
                isinstance(before, ast.AnnAssign)
                and isinstance(before.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            )
            if documented:
                name = cast(ast.Name, cast(ast.AnnAssign, before).target).id
                text = cast(str, cast(ast.Constant, cast(ast.Expr, after).value).value)
                found[name] = " ".join(text.split())
    return found
