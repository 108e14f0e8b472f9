"""What `--input-shape` and `--input-dtype` say, and how a step keeps it."""

from __future__ import annotations

import pytest

from loaderbench.cases.inputs import Input, Shapes, inputs_asked, read_inputs, text_of, words_of
from loaderbench.errors import ConfigError


@pytest.mark.parametrize(
    ("shapes", "dtypes", "inputs"),
    [
        ("512", ("int64",), (Input((512,), "int64"),)),
        ("3,240,320", (), (Input((3, 240, 320)),)),
        ("3,64,64+16", ("float32", "int64"), (Input((3, 64, 64)), Input((16,), "int64"))),
        ("a=8+b=scalar", ("int64",), (Input((8,), "int64", "a"), Input((), "int64", "b"))),
    ],
)
def test_a_step_keeps_inputs_as_a_text(shapes: str, dtypes: tuple[str, ...], inputs: tuple[Input, ...]) -> None:
    found = inputs_asked(Shapes.parse(shapes), dtypes)
    assert found == inputs and read_inputs(text_of(found)) == inputs


@pytest.mark.parametrize("text", ["", "a", "512", "3,x:float32", "512:int64+", "1=2:int64", "é\U0001f600", "x" * 300])
def test_a_stored_text_that_names_no_inputs_is_shown_as_it_is(text: str) -> None:
    assert words_of(text) == text


def test_a_shape_may_be_numbers() -> None:
    assert Shapes.parse([3, 64, 64]) == Shapes.parse("3,64,64") and Shapes.parse(512) == Shapes.parse("512")


@pytest.mark.parametrize("text", ["", "3,,4", "a", "-1", "3.5", "1=3", "3x4", "٣"])
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Shapes.parse(text)


@pytest.mark.parametrize(
    ("shapes", "dtypes", "says"),
    [
        ("0", (), "1 or more"),
        ("99999999,99999999", (), "fit in memory"),
        ("8", ("float16",), "--input-dtype float16"),
        ("8+8+8", ("int64", "int64"), "2 types for 3 inputs"),
        ("a=8+8", (), "name all inputs"),
        ("a=8+a=8", (), "the same name"),
    ],
)
def test_inputs_that_cannot_be_are_refused(shapes: str, dtypes: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        inputs_asked(Shapes.parse(shapes), dtypes)
