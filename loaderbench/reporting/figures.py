"""What a figure is, the common style, what figures are drawn with, and how one is written.

Colours are names of `COLOURS`: in a page they are CSS variables, so that one drawing serves light and dark mode; a file
gets the light ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loaderbench import lacking
from loaderbench.errors import ConfigError
from loaderbench.recording.output import write_output
from loaderbench.recording.record import Estimate, Range
from loaderbench.reporting.drawing import Axes, Drawing

UNATTRIBUTED = "not attributed"
COLOURS = {
    "page": ("#ffffff", "#14171b"),
    "ink": ("#1b1f24", "#e6e9ed"),
    "soft": ("#5b6570", "#9aa5b1"),
    "line": ("#d9dee4", "#323a43"),
    "panel": ("#f5f7f9", "#1c2127"),
    "compute": ("#2f7d4f", "#37935d"),
    "launch": ("#b58a0a", "#c79a1c"),
    "transfer": ("#1f7a9c", "#2a8bb0"),
    "prep": ("#d5691e", "#dd742c"),
    "contention": ("#b3323c", "#cc4a54"),
    "storage": ("#7646b0", "#9366cf"),
    "unexplained": ("#68727d", "#76818d"),
    "rest": ("#c3cad2", "#3b444e"),
    "line0": ("#0b65a8", "#58aee8"),
    "line1": ("#c2570c", "#f0914a"),
    "line2": ("#12805c", "#3cc196"),
    "line3": ("#a63b82", "#e283c0"),
    "line4": ("#6b5b12", "#c5b04f"),
    "line5": ("#4b4fb5", "#9a9df0"),
}
"""Name → (on light, on dark). The categories differ in lightness too, and carry a hatch or a marker as well."""
MARKERS = "os^Dv*P"
"""One more than colours, so that the seventh line looks different from the first."""
POINTS = 72
"""An inch."""
WIDTH_IN = 10.2
"""Of a drawing for a wide page."""
NARROW_IN = 3.6
"""Of a drawing for a phone."""

FONTS = (Path("/usr/share/fonts"), Path("/usr/local/share/fonts"), Path("~/.fonts"), Path("~/.local/share/fonts"))
FONT_FILES = (".ttf", ".otf", ".ttc")
"""Without a font a picture would have no words."""

Cell = str | int | float | None
Row = Mapping[str, Cell]
Value = Estimate | Range | float | None
"""What is drawn at a place; an interval gets a whisker."""
Name = tuple[str, str]
"""(resolution, setting) of a row of bars or dots."""


@dataclass(frozen=True)
class Figure:
    """One figure."""

    name: str
    """Unique in a report; names its file."""
    title: str
    caption: str
    """What it shows and how to read it."""
    data: Sequence[Row]
    """What is drawn, to be downloaded: in each row the same names, which end in their units, and their values."""
    height_in: float
    draw: Callable[[Drawing], None]
    narrow_height_in: float | None = None
    """Height of the drawing for a narrow page; None: it has none of its own, and the wide one scrolls."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.data[0]) if self.data else ()

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        return [tuple(row.values()) for row in self.data]

    @property
    def description(self) -> str:
        """Text for readers who cannot see the figure."""
        return f"{self.title}. {self.caption} The same figures are in the table below it."


# -- drawing -------------------------------------------------------------------------------------------


def _drawn(figure: Figure, *, narrow: bool = False) -> Drawing:
    """The figure, drawn for a wide page or for a phone: names then stand above their bars, panels below each other."""
    height = (figure.narrow_height_in if narrow else None) or figure.height_in
    drawing = Drawing((NARROW_IN if narrow else WIDTH_IN) * POINTS, height * POINTS, is_narrow=narrow)
    figure.draw(drawing)
    return drawing


def svg(figure: Figure, *, narrow: bool = False) -> str:
    """The figure as an <svg> element for a page: colours by CSS variable, unique ids, its description inside."""
    head = {"role": "img", "aria-label": figure.description}
    return _drawn(figure, narrow=narrow).svg(head, f"{figure.name}-{'n' if narrow else 'w'}-")


def svg_file(figure: Figure) -> str:
    """The figure as an SVG file, on a light page."""
    drawing = _drawn(figure)
    size = {"width": f"{drawing.width:g}", "height": f"{drawing.height:g}"}
    head = {"xmlns": "http://www.w3.org/2000/svg", **size, "role": "img", "aria-label": figure.description}
    page = '<rect width="100%" height="100%" style="fill:var(--page)"/>'
    text = drawing.svg(head, f"{figure.name}-", page)
    return re.sub(r"var\(--([\w-]+)\)", lambda found: COLOURS.get(found[1], COLOURS["rest"])[0], text)


def png_file(figure: Figure) -> bytes:
    """The figure as a PNG file, twice as large as on a screen. Raises MissingExtra where its library is lacking."""
    try:
        import resvg_py
    except lacking.LOAD_ERRORS as error:
        raise lacking.extra("report --format png", "png", error) from error
    if not any(path.suffix.lower() in FONT_FILES for folder in FONTS for path in folder.expanduser().rglob("*")):
        raise ConfigError("--format png needs a font, and none is installed: install fonts-dejavu-core, or use svg")
    return bytes(resvg_py.svg_to_bytes(svg_string=svg_file(figure), zoom=2))


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the suffix of `path`: .png or .svg. Raises ConfigError where it cannot be
    written."""
    data = png_file(figure) if path.suffix == ".png" else svg_file(figure).encode()
    write_output(path, data, follow=False)


# -- parts of drawings ---------------------------------------------------------------------------------


def _places(groups: Sequence[str]) -> list[float]:
    """Heights of bars from the top, with room between groups."""
    places: list[float] = []
    for number, group in enumerate(groups):
        apart = 0.0 if not number else (1.0 if group == groups[number - 1] else 1.5)
        places.append((places[-1] if places else 0.0) + apart)
    return places


def name_bars(axes: Axes, names: Sequence[str], places: Sequence[float]) -> None:
    """Write the names next to the bars at these heights; above them where the drawing is narrow."""
    axes.y.is_reversed = True
    if not axes.is_narrow:
        axes.y.ticks = [
            (at, name if len(name) <= 48 else f"{name[:47]}…") for name, at in zip(names, places, strict=True)
        ]
        axes.y.low, axes.y.high = min(places) - 0.6, max(places) + 0.6
        return
    axes.y.ticks = ()
    axes.y.low, axes.y.high = min(places) - 0.9, max(places) + 0.5
    for name, place in zip(names, places, strict=True):
        shown = name if len(name) <= 40 else f"{name[:39]}…"
        axes.note(shown, (0, place - 0.34), (1, 1), size=8, rise=0, of_axes=True)


def name_rows(axes: Axes, names: Sequence[Name]) -> list[float]:
    """Name the rows, with space between resolutions. Returns their heights."""
    places = _places([resolution for resolution, _ in names])
    name_bars(axes, [f"{resolution} · {setting}" for resolution, setting in names], places)
    return places


def height_in(names: Sequence[Name], around: float, each: float) -> float:
    """Height of a figure: `each` for a row, room between resolutions, and `around` for axis and legend."""
    return around + each * len(names) + 0.12 * len({resolution for resolution, _ in names})


def narrow_height_in(names: Sequence[Name], around: float) -> float:
    """Height of a figure of rows for a narrow page: each row has its name above it."""
    return height_in(names, around, 0.44)


def ends(one: Value, scale: float = 1.0) -> tuple[float | None, float | None, float | None]:
    """(value, low, high), scaled; None where they are unknown."""
    found = (one.value, one.low, one.high) if isinstance(one, Estimate | Range) else (one, None, None)
    value, low, high = (None if end is None else end * scale for end in found)
    return value, low, high


def cells(one: Value, *names: str, scale: float = 1.0) -> dict[str, Cell]:
    """Its value and the ends of its interval, by these names: a part of a figure's row."""
    return dict(zip(names, ends(one, scale), strict=True))


def whisker(axes: Axes, at: tuple[float, float], value: Value, name: str = "ink", scale: float = 1.0) -> None:
    """Draw the value's interval through the end of a bar."""
    _, low, high = ends(value, scale)
    axes.whisker(at, low, high, name)


def line(
    axes: Axes,
    at: Sequence[float],
    values: Sequence[Value],
    name: str,
    marker: str = "o",
    *,
    scale: float = 1.0,
    label: str = "",
) -> None:
    """A line of this colour through the known values, with their intervals."""
    known = [(place, *ends(one, scale)) for place, one in zip(at, values, strict=True) if one is not None]
    axes.line([(place, value) for place, value, _, _ in known if value is not None], name)
    for place, value, low, high in known:
        if value is not None:
            axes.whisker((place, value), low, high, name, upright=True)
            axes.mark((place, value), marker, name)
    if label:
        axes.labels.append((marker, name, label))


def stack(
    axes: Axes,
    place: float,
    parts: Iterable[tuple[str, float]],
    *,
    left: float = 0.0,
    height: float = 0.7,
    edge: float = 0.6,
) -> float:
    """Bars of these (colours, lengths), one after the other. Returns where they end."""
    for name, length in parts:
        if length:
            axes.bar(left, left + length, place - height / 2, place + height / 2, _of(name), edge)
        left += length
    return left


def _of(name: str) -> str:
    """The colour of a name, `rest` for none."""
    return name if name in COLOURS else "rest"


def steps_of(at: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """The points of a line that keeps each value until the next place."""
    points = []
    for number, (place, value) in enumerate(zip(at, values, strict=True)):
        points += [(place, values[number - 1])] * (number > 0) + [(place, value)]
    return points


def spans(axes: Axes, lanes: Sequence[str], bars: Iterable[tuple[int, str, float, float]]) -> None:
    """Bars over time in their lanes, the first on top: (number of the lane, colour, begin, end)."""
    for lane, name, begin, end in bars:
        stack(axes, lane, [(name, end - begin)], left=begin, height=0.8, edge=0.3)
    axes.y.ticks, axes.y.is_reversed = list(enumerate(lanes)), True


def name_axes(axes: Axes, x: str, y: str = "", *, from_zero: str = "") -> None:
    """What the axes show, with a grid for the values: those of x where y has no name. `from_zero`: `x`, `y` or both."""
    axes.x.label, axes.y.label = x, y
    (axes.y if y else axes.x).has_grid = True
    if "x" in from_zero:
        axes.x.low = 0
    if "y" in from_zero:
        axes.y.low = 0


def doublings(axes: Axes, values: Iterable[int]) -> None:
    """An axis of x in which twice as much is as far everywhere, with these values."""
    axes.x.is_log = True
    axes.x.ticks = [(value, str(value)) for value in sorted(set(values))]


def dots(drawing: Drawing, names: Sequence[Name], estimates: Sequence[Estimate], label: str) -> None:
    """Ratios with their intervals about a dashed line at 1."""
    (axes,) = drawing.axes()
    for estimate, place in zip(estimates, name_rows(axes, names), strict=True):
        at = estimate.value, place
        whisker(axes, at, estimate, "line0")
        axes.mark(at, "o", "line0", 2.5)
        axes.note(f"{estimate.value:.2f}×", at, (0, 5), size=6.5, anchor="middle", rise=0)
    axes.level(x=1.0)
    # an extremely wide interval must not squeeze all others
    furthest = [min(estimate.high or estimate.value, 1.8 * estimate.value) for estimate in estimates]
    axes.x.low, axes.x.high = 0, 1.08 * max([1.0, *furthest])
    name_axes(axes, label)


def legend(drawing: Drawing, causes: Sequence[str], names: Sequence[str] | None = None) -> None:
    """Explain the colours above the drawing."""
    items = [("bar", _of(cause), name) for cause, name in zip(causes, names or causes, strict=True)]
    drawing.legend(items, 2 if drawing.is_narrow else len(items))


def line_legend(drawing: Drawing, *axes: Axes) -> None:
    """Explain the lines of these axes above the drawing, each once."""
    items = list(dict.fromkeys(item for one in axes for item in one.labels))
    drawing.legend(items, 1 if drawing.is_narrow else 4)
