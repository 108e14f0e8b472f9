"""Draw bars, lines and marks as SVG. Drawing needs no library, and a page needs no script to show it.

A figure draws on `Axes` in the units of its data; `Drawing.svg` finds limits, ticks and places on the sheet. Lengths on
the sheet are points.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]
FONT = "system-ui, 'DejaVu Sans', sans-serif"
SIZE = 8.5
"""Of letters, unless something else is said."""
WIDTH_OF_SIZE = 0.62
"""Mean width of a letter or digit over its size: DejaVu Sans, the widest of the fonts."""
MARGIN = 0.05
"""Room between the data and the ends of an axis, as a fraction of the data's range."""
TICK_ROOM = {"x": 58.0, "y": 26.0}
"""Least distance of two ticks."""
FACTORS = (1.0, 2.0, 5.0, 10.0)
"""Ticks are this many tens, ones, tenths … apart."""
PLAIN_BELOW, PLAIN_FROM = 1e7, 1e-4
"""Ticks outside are written with an exponent."""
DASHES = {"--": "4 2.5", ":": "1 2", "-.": "4 2 1 2"}
MARKS = {
    "s": "M-1-1H1V1H-1Z",
    "^": "M0-1.1L1.1 .9H-1.1Z",
    "v": "M0 1.1L1.1-.9H-1.1Z",
    "D": "M0-1.3L1.1 0 0 1.3-1.1 0Z",
    "*": "M0-1.5L.4-.5 1.5-.5 .6 .2 .95 1.3 0 .6-.95 1.3-.6 .2-1.5-.5-.4-.5Z",
    "P": "M-.4-1.2H.4V-.4H1.2V.4H.4V1.2H-.4V.4H-1.2V-.4H-.4Z",
    "X": "M-1.2-.6L-.6-1.2 0-.6 .6-1.2 1.2-.6 .6 0 1.2 .6 .6 1.2 0 .6-.6 1.2-1.2 .6-.6 0Z",
    "o": "M-1 0A1 1 0 1 1 1 0A1 1 0 1 1-1 0Z",
}
"""Mark → its path, of radius 1."""
HATCHES = {
    "launch": "M-1 7L7-1M-1 1L1-1M5 7L7 5",
    "transfer": "M1 1h1M4 4h1",
    "prep": "M-1-1L7 7M-1 5L1 7M5-1L7 1",
    "contention": "M0 0L6 6M6 0L0 6",
    "storage": "M3 0V6M0 3H6",
    "unexplained": "M0 3H6",
}
"""Colour → the lines of a tile of 6 points that are drawn over it."""


def text_width(text: str, size: float = SIZE) -> float:
    """Estimate the width of a text's longest line."""
    return WIDTH_OF_SIZE * size * max(map(len, text.split("\n")))


def var(colour: str) -> str:
    """The CSS variable of a colour's name."""
    return f"var(--{colour})"


@dataclass
class Axis:
    """One of the two: its limits, ticks and words."""

    side: Literal["x", "y"]
    label: str = ""
    low: float | None = None
    high: float | None = None
    """Limits; None: the data's, with a margin."""
    ticks: Sequence[tuple[float, str]] | None = None
    """(place, name); None: round numbers."""
    tick_size: float = SIZE
    angle: float = 0.0
    """By which the names of ticks are turned."""
    is_log: bool = False
    is_whole: bool = False
    """Its values are whole numbers, and so are its ticks."""
    is_reversed: bool = False
    is_named: bool = True
    """Whether the ticks' names are shown: not where another drawing has the same axis."""
    has_grid: bool = False
    seen: list[float] = field(default_factory=list)
    """Values that were drawn."""

    def bounds(self) -> tuple[float, float]:
        """Return the limits, the lower one first."""
        known = [value for value in self.seen if math.isfinite(value) and (value > 0 or not self.is_log)]
        low, high = min(known, default=float(self.is_log)), max(known, default=1.0)
        room = MARGIN * (high - low)
        if self.is_log:
            low, high = low / 1.15, high * 1.15
        else:
            low, high = low - room if low else low, high + room
        low, high = low if self.low is None else self.low, high if self.high is None else self.high
        return (low, high) if high > low else (low, low + 1)

    def fraction(self, value: float) -> float:
        """Return where a value is between the limits, 0 to 1 (outside of them if it is)."""
        low, high = self.bounds()
        if self.is_log and value <= 0:
            return -1.0
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        at = (value - low) / (high - low)
        return 1 - at if self.is_reversed else at

    def named_ticks(self, length: float) -> Sequence[tuple[float, str]]:
        """Return the ticks, as many as an axis of this length has room for."""
        low, high = self.bounds()
        if self.ticks is not None:
            return [(at, name) for at, name in self.ticks if low <= at <= high]
        most = max(2.0, length / TICK_ROOM[self.side])
        tens = 10.0 ** math.floor(math.log10((high - low) / most))
        step = tens * next(factor for factor in FACTORS if (high - low) / (tens * factor) <= most)
        step = max(step, 1.0) if self.is_whole else step
        numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        plain = step >= PLAIN_FROM and max(abs(low), abs(high)) < PLAIN_BELOW
        return [(n * step, f"{n * step:,.{digits}f}" if plain else f"{n * step:g}") for n in numbers]


@dataclass(frozen=True)
class Note:
    """A text at a place of the data, `by` points away from it."""

    text: str
    at: Point
    by: Point
    size: float
    colour: str
    anchor: Anchor
    rise: float
    """Of the baseline, as a fraction of the size below the place: 0.35 centres the text."""
    angle: float
    has_halo: bool
    of_axes: bool
    """Its x is a fraction of the drawing's width."""


Shape = tuple[str, Sequence[Point], str, float]
"""(`area`, `line` or a mark; its points; its style; the mark's radius)."""
LegendItem = tuple[str, str, str]
"""(`bar` or a mark; colour; text)."""


class Axes:
    """One pair of axes, and what is drawn between them."""

    def __init__(self, *, is_narrow: bool) -> None:
        self.x, self.y = Axis("x"), Axis("y")
        self.title = ""
        self.is_narrow = is_narrow
        self.labels: list[LegendItem] = []
        self.shapes: list[Shape] = []
        self.notes: list[Note] = []
        self.levels: list[tuple[str, float, str]] = []
        self.hatched: set[str] = set()

    def _add(self, kind: str, points: Sequence[Point], style: str, size: float = 0.0) -> None:
        for x, y in points:
            self.x.seen.append(x)
            self.y.seen.append(y)
        self.shapes.append((kind, points, style, size))

    def area(self, points: Sequence[Point], colour: str, edge: float = 0.0) -> None:
        """Fill a polygon, with a white edge of this width."""
        self.hatched |= {colour} & set(HATCHES)
        fill = f"url(#{colour})" if colour in HATCHES else var(colour)
        self._add("area", points, f"fill:{fill};" + (f"stroke:{var('page')};stroke-width:{edge:g}" if edge else ""))

    def bar(self, left: float, right: float, bottom: float, top: float, colour: str, edge: float = 0.6) -> None:
        """Fill a rectangle."""
        self.area([(left, bottom), (right, bottom), (right, top), (left, top)], colour, edge)

    def line(self, points: Sequence[Point], colour: str, width: float = 1.3, dashes: str = "") -> None:
        """Draw a line through these points."""
        self._add("line", points, _stroke(colour, width, dashes))

    def mark(self, at: Point, mark: str, colour: str, radius: float = 2.2, *, hollow: bool = False) -> None:
        """Draw a mark of MARKS."""
        style = f"fill:none;stroke:{var(colour)};stroke-width:{1 / radius:.3g}" if hollow else f"fill:{var(colour)}"
        self._add(mark, [at], style, radius)

    def whisker(
        self, at: Point, low: float | None, high: float | None, colour: str, *, upright: bool = False, cap: float = 2.0
    ) -> None:
        """Draw an interval as a line through `at`, lengthwise or upright, with caps of so many points to each side."""
        value = at[1] if upright else at[0]
        low, high = min(value, value if low is None else low), max(value, value if high is None else high)
        if low == high:
            return
        ends = [(at[0], low), (at[0], high)] if upright else [(low, at[1]), (high, at[1])]
        self.line(ends, colour, 1.2)
        for end in ends if cap else ():
            self._add("—" if upright else "|", [end], _stroke(colour, 1.2, ""), cap)

    def level(
        self, *, x: float | None = None, y: float | None = None, dashes: str = "--", colour: str = "soft"
    ) -> None:
        """Draw a line across, at an x or at a y, that values are held against."""
        for axis, value in ((self.x, x), (self.y, y)):
            if value is not None:
                axis.seen.append(value)
                self.levels.append((axis.side, value, _stroke(colour, 1, dashes)))

    def note(
        self, text: str, at: Point, by: Point = (4, 0), *, size: float = 7, colour: str = "ink",
        anchor: Anchor = "start", rise: float = 0.35, angle: float = 0.0, has_halo: bool = False, of_axes: bool = False,
    ) -> None:  # fmt: skip
        """Write a text so many points right of and above a place."""
        if not of_axes:
            self.x.seen.append(at[0])
        self.notes.append(Note(text, at, by, size, colour, anchor, rise, angle, has_halo, of_axes))


def _stroke(colour: str, width: float, dashes: str) -> str:
    dashed = f";stroke-dasharray:{DASHES[dashes]}" if dashes in DASHES else ""
    return f"fill:none;stroke:{var(colour)};stroke-width:{width:g}{dashed}"


def text_tag(
    text: str, at: Point, size: float = SIZE, colour: str = "ink", anchor: Anchor = "start", more: str = ""
) -> str:
    """A text, in lines from top to bottom."""
    x, y = at
    style = f"font-size:{size:g}px;fill:{var(colour)};text-anchor:{anchor}"
    lines = [
        f'<tspan x="{x:.1f}" y="{y + 1.15 * size * number:.1f}">{html.escape(line)}</tspan>'
        for number, line in enumerate(text.split("\n"))
    ]
    inner = html.escape(text) if len(lines) == 1 else "".join(lines)
    return f'<text x="{x:.1f}" y="{y:.1f}" style="{style}"{more}>{inner}</text>'


@dataclass(frozen=True)
class Box:
    """The rectangle between the axes, from the sheet's top left."""

    left: float
    top: float
    width: float
    height: float


class Drawing:
    """A sheet of so many points, with axes in a grid and a legend above them."""

    def __init__(self, width: float, height: float, *, is_narrow: bool) -> None:
        self.width, self.height, self.is_narrow = width, height, is_narrow
        self._grid: list[list[Axes]] = []
        self._heights: Sequence[float] = ()
        self._legend: Sequence[LegendItem] = ()
        self._columns = 1

    def axes(self, num: int = 1, columns: int = 1, heights: Sequence[float] = ()) -> list[Axes]:
        """Make so many axes in rows of `columns`. `heights`: of the rows, relative to each other."""
        made = [Axes(is_narrow=self.is_narrow) for _ in range(num)]
        self._grid = [made[first : first + columns] for first in range(0, num, columns)]
        self._heights = heights or [1.0] * len(self._grid)
        self._num_columns = columns
        return made

    def legend(self, items: Sequence[LegendItem], columns: int) -> None:
        """Explain colours and marks above the drawing."""
        self._legend, self._columns = items, columns

    def svg(self, head: Mapping[str, str], prefix: str, background: str = "") -> str:
        """Return the sheet as an <svg> element. `head`: its attributes; `prefix`: makes its ids unique in a page."""
        body, top = self._legend_tags()
        hatched: set[str] = set()
        for left, right, row, begin, height in self._rows(top):
            for axes, box in self._boxes(row, left, right, begin, height):
                body += _axes_tags(axes, box, prefix)
                hatched |= axes.hatched
        hatched |= {colour for kind, colour, _ in self._legend if kind == "bar" and colour in HATCHES}
        patterns = (
            f'<pattern id="{colour}" width="6" height="6" patternUnits="userSpaceOnUse">'
            f'<path d="M0 0H6V6H0Z" style="fill:{var(colour)}"/>'
            f'<path d="{HATCHES[colour]}" style="fill:none;stroke:{var("page")};stroke-width:.6"/></pattern>'
            for colour in sorted(hatched)
        )
        attributes = " ".join(f'{name}="{html.escape(value)}"' for name, value in head.items())
        text = "".join([background, "<defs>", *patterns, "</defs>", *body])
        text = text.replace('id="', f'id="{prefix}').replace("url(#", f"url(#{prefix}")
        size = f"{self.width:.1f} {self.height:.1f}"
        return f'<svg viewBox="0 0 {size}" {attributes} style="font-family:{FONT}">{text}</svg>'

    def _legend_tags(self) -> tuple[list[str], float]:
        """(the legend, its lower end): columns as wide as their texts, as many as there is room for."""
        rows: list[list[LegendItem]] = []
        for columns in range(min(self._columns, len(self._legend)), 0, -1):
            rows = [list(self._legend[first : first + columns]) for first in range(0, len(self._legend), columns)]
            widths = [24 + max(text_width(row[at][2]) for row in rows if at < len(row)) for at in range(columns)]
            if sum(widths) <= self.width:
                break
        tags = []
        for number, row in enumerate(rows):
            left, y = 4.0, 7.0 + 12.5 * number
            for (kind, colour, text), width in zip(row, widths, strict=False):
                if kind == "bar":
                    fill = f"url(#{colour})" if colour in HATCHES else var(colour)
                    tags.append(f'<rect x="{left:.1f}" y="{y - 3:.1f}" width="14" height="6" style="fill:{fill}"/>')
                else:
                    tags.append(_mark_tag(kind, (left + 7, y), f"fill:{var(colour)}", 2.2))
                tags.append(text_tag(text, (left + 18, y + 3)))
                left += width
        return tags, 12.5 * len(rows) + 4 if rows else 0.0

    def _rows(self, top: float) -> Iterable[tuple[list[float], list[float], list[Axes], float, float]]:
        """(left and right margins of the columns, its axes, top, height) of each row of the grid."""
        wide = self.width / self._num_columns
        room = [(self.height - top) * one / sum(self._heights) for one in self._heights]
        columns = [[row[at] for row in self._grid if at < len(row)] for at in range(self._num_columns)]
        left = [max(_left_margin(axes, min(room)) for axes in column) for column in columns]
        right = [max(_right_margin(axes, wide) for axes in column) for column in columns]
        for row, height in zip(self._grid, room, strict=True):
            yield left, right, row, top, height
            top += height

    def _boxes(
        self, row: Sequence[Axes], left: Sequence[float], right: Sequence[float], top: float, height: float
    ) -> Iterable[tuple[Axes, Box]]:
        wide = self.width / self._num_columns
        above = max(16.0 if axes.title else 6.0 for axes in row)
        below = max(_bottom_margin(axes) for axes in row)
        for number, axes in enumerate(row):
            margins = left[number] + right[number]
            yield axes, Box(number * wide + left[number], top + above, wide - margins, height - above - below)


def _left_margin(axes: Axes, height: float) -> float:
    names = [name for _, name in axes.y.named_ticks(height)] if axes.y.is_named else []
    label = 12.0 * (1 + axes.y.label.count("\n")) if axes.y.label else 0.0
    return 6 + label + max((text_width(name, axes.y.tick_size) for name in names), default=0.0)


def _right_margin(axes: Axes, width: float) -> float:
    """Half of the last tick's name, which hangs over."""
    names = axes.x.named_ticks(width) if axes.x.is_named else []
    return max(8.0, text_width(names[-1][1], axes.x.tick_size) / 2) if names else 8.0


def _bottom_margin(axes: Axes) -> float:
    x, named = axes.x, axes.x.is_named
    names = [name for _, name in x.ticks or ()]
    lines = 1 + max((name.count("\n") for name in names), default=0)
    longest = max((text_width(name, x.tick_size) for name in names), default=0.0)
    high = longest * math.sin(math.radians(x.angle)) + x.tick_size if x.angle else 1.2 * x.tick_size * lines
    return (5 + high if named else 4) + (12 if x.label else 0)


def _mark_tag(mark: str, at: Point, style: str, radius: float) -> str:
    x, y = at
    if mark in ("|", "—"):
        reach = (
            f"M{x:.1f} {y - radius:.1f}v{2 * radius:g}" if mark == "|" else f"M{x - radius:.1f} {y:.1f}h{2 * radius:g}"
        )
        return f'<path d="{reach}" style="{style}"/>'
    scaled = f"translate({x:.1f} {y:.1f}) scale({radius:g})"
    return f'<path d="{MARKS[mark]}" transform="{scaled}" style="{style}"/>'


def _axes_tags(axes: Axes, box: Box, prefix: str) -> list[str]:
    """The axes, and what is drawn between them."""

    def place(at: Point) -> Point:
        x, y = axes.x.fraction(at[0]), axes.y.fraction(at[1])
        return box.left + x * box.width, box.top + (1 - y) * box.height

    name = f"c{box.left:.0f}-{box.top:.0f}"
    rect = f'x="{box.left:.1f}" y="{box.top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    tags = _frame_tags(axes, box)
    tags += [f'<clipPath id="{name}"><rect {rect}/></clipPath><g clip-path="url(#{name})">']
    marks = []
    for kind, points, style, size in axes.shapes:
        placed = [place(at) for at in points]
        if kind in ("area", "line"):
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
            tag = "polygon" if kind == "area" else "polyline"
            tags.append(f'<{tag} points="{path}" style="{style}"/>')
        elif -1e-9 <= axes.x.fraction(points[0][0]) <= 1 + 1e-9 and -1e-9 <= axes.y.fraction(points[0][1]) <= 1 + 1e-9:
            marks.append(_mark_tag(kind, placed[0], style, size))
    for side, value, style in axes.levels:
        x, y = place((value, value))
        across = (
            f"M{x:.1f} {box.top:.1f}v{box.height:.1f}" if side == "x" else f"M{box.left:.1f} {y:.1f}h{box.width:.1f}"
        )
        tags.append(f'<path d="{across}" style="{style}"/>')
    tags += ["</g>", *marks]
    for note in axes.notes:
        x, y = place(note.at)
        x = box.left + note.at[0] * box.width if note.of_axes else x
        at = x + note.by[0], y - note.by[1] + note.rise * note.size
        more = f' transform="rotate({-note.angle:g} {at[0]:.1f} {at[1]:.1f})"' if note.angle else ""
        if note.has_halo:
            more += f' stroke="{var("page")}" stroke-width="2.5" stroke-linejoin="round" paint-order="stroke"'
        tags.append(text_tag(note.text, at, note.size, note.colour, note.anchor, more))
    return tags


def _frame_tags(axes: Axes, box: Box) -> list[str]:
    """Grid, axes, ticks and their names, labels, title."""
    right, bottom = box.left + box.width, box.top + box.height
    tags, soft = [], _stroke("soft", 0.8, "")
    for at, name in axes.x.named_ticks(box.width):
        x = box.left + axes.x.fraction(at) * box.width
        if axes.x.has_grid:
            tags.append(f'<path d="M{x:.1f} {box.top:.1f}V{bottom:.1f}" style="{_stroke("line", 0.8, "")}"/>')
        tags.append(f'<path d="M{x:.1f} {bottom:.1f}v3" style="{soft}"/>')
        if axes.x.is_named:
            size, y = axes.x.tick_size, bottom + 4 + axes.x.tick_size
            turned = f' transform="rotate({-axes.x.angle:g} {x:.1f} {y:.1f})"' if axes.x.angle else ""
            tags.append(text_tag(name, (x, y), size, anchor="end" if turned else "middle", more=turned))
    for at, name in axes.y.named_ticks(box.height):
        y = bottom - axes.y.fraction(at) * box.height
        if axes.y.has_grid:
            tags.append(f'<path d="M{box.left:.1f} {y:.1f}H{right:.1f}" style="{_stroke("line", 0.8, "")}"/>')
        if axes.y.is_named:
            tags.append(text_tag(name, (box.left - 4, y + 0.35 * axes.y.tick_size), axes.y.tick_size, anchor="end"))
    tags.append(f'<path d="M{box.left:.1f} {box.top:.1f}V{bottom:.1f}H{right:.1f}" style="{soft}"/>')
    middle = box.left + box.width / 2, box.top + box.height / 2
    if axes.x.label:
        tags.append(text_tag(axes.x.label, (middle[0], bottom + _bottom_margin(axes) - 3), anchor="middle"))
    if axes.y.label:
        beside = box.left - _left_margin(axes, box.height) + 12, middle[1]
        turned = f' transform="rotate(-90 {beside[0]:.1f} {beside[1]:.1f})"'
        tags.append(text_tag(axes.y.label, beside, anchor="middle", more=turned))
    if axes.title:
        tags.append(text_tag(axes.title, (middle[0], box.top - 5), 9, anchor="middle"))
    return tags
