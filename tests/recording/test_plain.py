"""Dataclasses as plain JSON and back: round trips through JSON texts, errors by their place, the schema by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from random import Random
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from loaderbench.cases.case import Case
from loaderbench.plain import Json, JsonObject, PlainError, field_docs, from_json, schema_of, to_json
from loaderbench.recording.facts import Environment, Facts, Recording, Run, Segment
from loaderbench.recording.kinds import KINDS
from loaderbench.recording.record import RunRecord
from tests.filled import filled, same


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    number: float
    maybe: int | None = None


@dataclass(frozen=True)
class Other:
    """Has a field that Inner lacks."""

    text: str


@dataclass(frozen=True)
class Everything:
    """One field of each kind."""

    flag: bool
    count: int
    number: float
    text: str
    colour: Colour
    word: Literal["yes", "no"]
    optional: int | None
    mixed: bool | int | float | str | None
    words: float | str
    many: tuple[int, ...]
    pair: tuple[int, str]
    items: list[Inner]
    sequence: Sequence[float]
    by_name: Mapping[str, Inner]
    by_colour: Mapping[Colour, float]
    by_word: Mapping[Literal["a", "b"], Inner | None]
    anything: Any
    nested: Inner
    either: Inner | Other
    perhaps: Inner | None
    table: NDArray[np.int64]
    values: NDArray[np.float64] | None
    free: Mapping[str, Json] = field(default_factory=dict)


def through_text(value: object, kind: type[Any]) -> Any:
    """The value as it comes back from a file."""
    arrays: dict[str, Any] = {}
    text = json.dumps(to_json(value, arrays=arrays), allow_nan=False)
    return from_json(kind, json.loads(text), arrays)


@given(st.randoms(use_true_random=False), st.booleans())
def test_every_kind_comes_back(random: Random, whole: bool) -> None:
    value = filled(Everything, random, whole=whole)
    assert same(through_text(value, Everything), value)


STORED = [
    Case, RunRecord, Run, Recording, Facts, Segment, Environment,
    *(kind for types in KINDS.values() for kind in (types.facts, types.findings)),
]  # fmt: skip


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.__name__)
def test_everything_that_is_stored_comes_back(kind: type[Any]) -> None:
    for seed in range(20):
        value = filled(kind, Random(seed), whole=seed % 2 == 0)
        assert same(through_text(value, kind), value), f"seed {seed}"


# -- writing ---------------------------------------------------------------------------------------------


def test_numpy_s_scalars_paths_and_tuples_become_plain() -> None:
    value = {"a": (np.int64(3), np.bool_(True), np.float32(0.5)), "b": PurePosixPath("/x/y"), "c": Colour.RED}
    assert to_json(value) == {"a": [3, True, 0.5], "b": "/x/y", "c": "red"}
    assert type(to_json(np.float64(0.5))) is float


def test_what_is_not_finite_becomes_null_and_its_places_are_told() -> None:
    places: list[str] = []
    value = {"rate": Inner(math.nan), "all": [1.0, math.inf, {"low": -math.inf}], "array": np.array([1.0, np.nan])}
    assert to_json(value, places) == {
        "rate": {"number": None, "maybe": None}, "all": [1.0, None, {"low": None}], "array": [1.0, None],
    }  # fmt: skip
    assert places == ["rate.number", "all[1]", "all[2].low", "array[1]"]


def test_null_is_read_as_nan_where_a_number_must_be_and_as_none_where_it_may_be_missing() -> None:
    assert math.isnan(from_json(Inner, {"number": None}).number)
    assert from_json(Holder, {"inner": None}).inner is None


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "the value cannot be written as JSON: object"),
        ({"a": [1, {"b": object()}]}, r"a\[1\]\.b cannot be written as JSON: object"),
        (Inner(1j), "number cannot be written as JSON: complex"),  # type: ignore[arg-type]
    ],
)
def test_what_has_no_json_form_is_refused_by_its_place(value: object, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        to_json(value)


@dataclass
class Tables:
    parts: list[NDArray[np.int64]]
    whole: NDArray[np.float64] | None = None


def test_arrays_are_kept_beside_under_their_places() -> None:
    value = Tables([np.arange(3), np.arange(4).reshape(2, 2)], np.array([0.5, np.nan]))
    arrays: dict[str, Any] = {}
    stored = to_json(value, arrays=arrays)
    assert stored == {"parts": ["parts[0]", "parts[1]"], "whole": "whole"}
    assert [*arrays] == ["parts[0]", "parts[1]", "whole"]
    assert same(from_json(Tables, stored, arrays), value)
    assert to_json(Tables([np.arange(2)])) == {"parts": [[0, 1]], "whole": None}  # nobody keeps them elsewhere
    with pytest.raises(PlainError, match=r"parts\[1\] must be the name of an array, not 'parts\[1\]'"):
        from_json(Tables, stored, {"parts[0]": np.arange(3)})


# -- reading ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Holder:
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    colour: Colour = Colour.RED
    count: int = 5
    by_colour: Mapping[Colour, float] = field(default_factory=dict)
    pair: tuple[int, str] = (1, "x")
    word: Literal["yes", "no"] = "yes"
    either: Inner | Other = Inner(1.0)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], r"the value must be an object, not \[\]"),
        ({"inner": 3}, "inner must be an object, not 3"),
        ({"inner": {}}, "inner lacks number"),
        ({"inner": {"number": "1"}}, "inner.number must be a number, not '1'"),
        ({"inner": {"number": True}}, "inner.number must be a number, not True"),
        ({"many": [{"number": 1}, {"number": [2]}]}, r"many\[1\].number must be a number, not \[2\]"),
        ({"many": {"number": 1}}, "many must be a list, not {'number': 1}"),
        ({"colour": "green"}, "colour must be one of red, blue, not 'green'"),
        ({"colour": ["red"]}, r"colour must be one of red, blue, not \['red'\]"),
        ({"count": 1.0}, "count must be a whole number, not 1.0"),
        ({"count": True}, "count must be a whole number, not True"),
        ({"count": None}, "count must be a whole number, not None"),
        ({"by_colour": {"red": "x"}}, "by_colour.red must be a number, not 'x'"),
        ({"by_colour": []}, r"by_colour must be an object, not \[\]"),
        ({"pair": [1]}, r"pair must be a list of 2, not \[1\]"),
        ({"pair": [1, 2]}, r"pair\[1\] must be text, not 2"),
        ({"word": "maybe"}, "word must be one of yes, no, not 'maybe'"),
        ({"either": {"other": 1}}, "either lacks text"),
        ({"count": "x" * 500}, "not 'x{59}…$"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(value: Any, says: str) -> None:
    with pytest.raises(PlainError, match=says) as error:
        from_json(Holder, value)
    assert "\n" not in str(error.value)


@dataclass(frozen=True)
class WithCase:
    case: Case


def test_errors_in_a_class_that_reads_itself_name_the_place_too() -> None:
    case = filled(Case, Random(0))
    with pytest.raises(PlainError, match=r"^case: workers must be a whole number, not '2'$"):
        from_json(WithCase, {"case": {**case.to_json(), "workers": "2"}})
    with pytest.raises(PlainError, match=r"^case must be an object"):
        from_json(WithCase, {"case": "x"})


def test_unknown_fields_are_dropped_and_missing_ones_take_their_defaults() -> None:
    assert from_json(Holder, {"later": 1, "inner": {"number": 2, "later": {}}}) == Holder(Inner(2.0))
    assert from_json(Holder, {}) == Holder()
    first, second = from_json(Holder, {}), from_json(Holder, {})
    assert first.by_colour is not second.by_colour  # a default of its own


def test_a_whole_number_is_a_number_and_comes_back_as_one() -> None:
    number = from_json(Inner, {"number": 3}).number
    assert number == 3.0 and type(number) is float


def test_keys_of_an_enum_are_its_members_and_unknown_ones_are_dropped() -> None:
    found = from_json(Holder, {"by_colour": {"blue": 1, "green": 2, "red": 3}}).by_colour
    assert found == {Colour.BLUE: 1.0, Colour.RED: 3.0}
    assert [*found] == [Colour.BLUE, Colour.RED] and all(type(name) is Colour for name in found)
    assert to_json(Holder(by_colour={Colour.BLUE: 0.5}))["by_colour"] == {"blue": 0.5}  # type: ignore[index, call-overload]


def test_of_several_classes_the_one_that_fits_is_taken() -> None:
    assert from_json(Holder, {"either": {"text": "x"}}).either == Other("x")
    assert from_json(Holder, {"either": {"number": 1}}).either == Inner(1.0)


@pytest.mark.parametrize("value", [True, 3, 0.5, "3", None])
def test_of_several_simple_types_each_stays_what_it_is(value: bool | int | float | str | None) -> None:
    everything = filled(Everything, Random(1), whole=True)
    back = through_text(Everything(**{**vars(everything), "mixed": value}), Everything)
    assert back.mixed == value and type(back.mixed) is type(value)


# -- the schema ------------------------------------------------------------------------------------------


@dataclass
class Leaf:
    size: int
    """Bytes of it,
    all together."""


@dataclass
class Tree:
    """A small tree.

    What stands here is for readers of the code.
    """

    name: str
    kind: Literal["oak", "fir"] | None
    leaves: tuple[Leaf, ...] = ()
    child: Tree | None = None
    """A tree itself."""
    heights: Mapping[Literal["low", "high"], float | None] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    free: JsonObject = field(default_factory=dict)
    scale: float | str = 1.0
    place: tuple[int, str] = (0, "")
    colour: Colour | None = None
    list_or_none: list[int] | None = None
    whatever: Any = None


def test_the_schema_of_a_small_class_by_hand() -> None:
    definitions: JsonObject = {}
    described = schema_of(Tree, definitions)
    leaf = {
        "type": "object",
        "properties": {"size": {"type": "integer", "description": "Bytes of it, all together."}},
        "required": ["size"],
    }
    expected = {
        "type": "object",
        "description": "A small tree.",
        "properties": {
            "name": {"type": "string"},
            "kind": {"enum": ["oak", "fir", None]},
            "leaves": {"type": "array", "items": {"$ref": "#/$defs/Leaf"}},
            "child": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}], "description": "A tree itself."},
            "heights": {
                "type": "object",
                "properties": {"low": {"type": ["number", "null"]}, "high": {"type": ["number", "null"]}},
            },
            "notes": {"type": "object", "additionalProperties": {"type": "string"}},
            "free": {"type": "object"},
            "scale": {"type": ["number", "string"]},
            "place": {
                "type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2,
            },
            "colour": {"enum": ["red", "blue", None]},
            "list_or_none": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
            "whatever": {},
        },
        "required": ["name", "kind"],
    }  # fmt: skip
    assert described == expected
    assert {name: value for name, value in definitions.items() if name != "Tree"} == {"Leaf": leaf}
    assert definitions["Tree"] == expected


def test_docstrings_of_fields_are_taken_from_the_source() -> None:
    assert field_docs(Tree) == {"child": "A tree itself."}
    assert field_docs(Leaf) == {"size": "Bytes of it, all together."}
