"""What is drawn stands where its values are, for a reader who holds a ruler against the axes' ticks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loaderbench.reporting.drawing import HATCHES, MARKS, Axes, Axis, Drawing

SVG = "{http://www.w3.org/2000/svg}"


def sheet(**changed: object) -> tuple[Drawing, Axes]:
    drawing = Drawing(400, 200, is_narrow=False)
    (axes,) = drawing.axes()
    for name, value in changed.items():
        setattr(getattr(axes, name[0]), name[2:], value)
    return drawing, axes


def shown(drawing: Drawing) -> ElementTree.Element:
    return ElementTree.fromstring(drawing.svg({"xmlns": SVG.strip("{}")}, "a-"))


def points(root: ElementTree.Element, tag: str) -> list[np.ndarray]:
    """The points of each shape of this tag."""
    return [
        np.array([[float(one) for one in pair.split(",")] for pair in found.get("points", "").split()])
        for found in root.iter(f"{SVG}{tag}")
    ]


def ruler(root: ElementTree.Element, ticks: Sequence[str]) -> tuple[float, float]:
    """(where 0 would be, points per unit) along x, as a straight line through the ticks of these names."""
    at = {text.text: float(text.get("x", "")) for text in root.iter(f"{SVG}text")}
    slope, begin = np.polyfit([float(name.replace(",", "")) for name in ticks], [at[name] for name in ticks], 1)
    return float(begin), float(slope)


@given(st.floats(0.5, 90), st.floats(0.5, 90))
def test_a_bar_is_as_long_as_its_value(first: float, second: float) -> None:
    drawing, axes = sheet(x_low=0, x_high=200)
    axes.bar(0, first, 0, 1, "prep")
    axes.bar(first, first + second, 0, 1, "storage")

    root = shown(drawing)

    begin, unit = ruler(root, ["0", "50", "100", "150", "200"])
    one, two = points(root, "polygon")
    assert np.ptp(one[:, 0]) == pytest.approx(first * unit, abs=0.15)
    assert (two[:, 0].min() - begin) / unit == pytest.approx(first, abs=0.15)
    assert (two[:, 0].max() - begin) / unit == pytest.approx(first + second, abs=0.15)


def test_a_line_goes_up_with_its_values_and_down_where_the_axis_is_reversed() -> None:
    for is_reversed in (False, True):
        drawing, axes = sheet(y_is_reversed=is_reversed)
        axes.line([(0, 0), (1, 10), (2, 30)], "line0")
        (line,) = points(shown(drawing), "polyline")
        rises = -np.diff(line[:, 1]) * (-1 if is_reversed else 1)
        assert rises[1] == pytest.approx(2 * rises[0], rel=0.02) and rises[0] > 0
        assert np.diff(line[:, 0])[0] == pytest.approx(np.diff(line[:, 0])[1], abs=0.11)


def test_doublings_are_as_far_apart_everywhere() -> None:
    drawing, axes = sheet(x_is_log=True, x_ticks=[(1, "1"), (2, "2"), (8, "8")])
    axes.line([(1, 1), (2, 1), (8, 1)], "line0")
    axes.line([(0, 1), (8, 2)], "line1")  # no place for 0
    root = shown(drawing)
    at = {text.text: float(text.get("x", "")) for text in root.iter(f"{SVG}text")}
    assert at["8"] - at["2"] == pytest.approx(2 * (at["2"] - at["1"]), abs=0.2)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.booleans())
def test_ticks_are_round_within_the_limits_and_not_too_many(low: float, reach: float, is_whole: bool) -> None:
    axis = Axis("x", low=low, high=low + reach, is_whole=is_whole)
    ticks = axis.named_ticks(300)
    assert len(ticks) <= 300 / 58 + 1
    assert len(ticks) >= 1 or reach < 2 or is_whole
    assert all(low - 1e-6 * reach <= at <= low + reach * (1 + 1e-6) for at, _ in ticks)
    steps = np.diff([at for at, _ in ticks])
    if len(steps):
        assert np.allclose(steps, steps[0], rtol=1e-6, atol=1e-9)
        assert f"{steps[0]:.0e}"[0] in "125"
    names = [name for _, name in ticks]
    assert len(set(names)) == len(names)
    assert all(float(name.replace(",", "")) == pytest.approx(at, rel=1e-4, abs=1e-9) for at, name in ticks)


def test_an_interval_has_a_cap_at_each_end_and_one_that_is_a_point_none() -> None:
    drawing, axes = sheet(x_low=0, x_high=100)
    axes.whisker((50, 1), 20, 90, "ink")
    axes.whisker((50, 2), 50, None, "ink")
    root = shown(drawing)
    begin, unit = ruler(root, ["0", "20", "40"])
    (line,) = points(root, "polyline")
    assert ((line[:, 0] - begin) / unit).tolist() == pytest.approx([20, 90], abs=0.1)
    caps = [one.get("d", "") for one in root.iter(f"{SVG}path") if re.search(r"v4$", one.get("d", ""))]
    assert len(caps) == 2


def test_marks_outside_the_limits_are_left_out_and_lines_are_cut() -> None:
    drawing, axes = sheet(x_low=0, x_high=10, y_low=0, y_high=10)
    axes.line([(0, 5), (40, 5)], "line0")
    axes.mark((5, 5), "o", "line0")
    axes.mark((40, 5), "o", "line0")
    root = shown(drawing)
    assert sum("scale" in one.get("transform", "") for one in root.iter(f"{SVG}path")) == 1
    (group,) = root.iter(f"{SVG}g")
    assert group.get("clip-path", "").startswith("url(#a-")
    assert len(list(group.iter(f"{SVG}polyline"))) == 1


def test_texts_stay_texts_and_names_of_two_sheets_differ() -> None:
    drawing, axes = sheet(x_label='<b>&"')
    axes.note("</text><script>", (0, 0))
    drawing.legend([("bar", "prep", "<i>"), *((mark, "line0", mark) for mark in MARKS)], 4)
    root = shown(drawing)
    texts = {text.text for text in root.iter(f"{SVG}text")}
    assert {"</text><script>", '<b>&"', "<i>", *MARKS} <= texts
    ids = {one.get("id") for one in root.iter() if one.get("id")}
    assert ids and all(str(name).startswith("a-") for name in ids)
    used = set(re.findall(r"url\(#([^)]*)\)", ElementTree.tostring(root, "unicode")))
    assert used == ids


def test_each_hatch_is_drawn_for_those_who_tell_colours_apart_badly() -> None:
    drawing, axes = sheet()
    for place, name in enumerate(HATCHES):
        axes.bar(0, 1, place, place + 0.5, name)
    tiles = {one.get("id"): list(one)[1].get("d") for one in shown(drawing).iter(f"{SVG}pattern")}
    assert tiles == {f"a-{name}": lines for name, lines in HATCHES.items()} and len(set(tiles.values())) == len(tiles)


@pytest.mark.parametrize("values", [[], [(3.0, 0.0)], [(0.0, 0.0), (0.0, 0.0)]])
def test_a_drawing_without_values_or_with_one_value_is_drawn(values: list[tuple[float, float]]) -> None:
    for is_log in (False, True):
        drawing, axes = sheet(x_is_log=is_log)
        axes.line(values, "line0")
        text = drawing.svg({}, "")
        assert "nan" not in text and "inf" not in text
