"""What a figure is, the common style, what figures are drawn with, and how one is written. Matplotlib draws them; no
browser is needed.

Colours are the light ones of `COLOURS`; in a page they become CSS variables, so that one drawing serves light and dark
mode.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from loaderbench import neutral
from loaderbench.recording.output import write_output
from loaderbench.recording.record import Estimate, Range

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

Axes: TypeAlias = "matplotlib.axes.Axes"
Drawing: TypeAlias = "matplotlib.figure.Figure"
"""By these names types are told; matplotlib is imported where something is drawn."""
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
"""Name → (on light, on dark). The categories differ in lightness too, and carry a hatch or a marker besides."""
HATCHES = {
    "compute": "",
    "launch": "////",
    "transfer": "..",
    "prep": "\\\\\\\\",
    "contention": "xxxx",
    "storage": "++++",
    "unexplained": "----",
    UNATTRIBUTED: "",
}
MARKERS = "os^Dv*P"
"""One more than colours, so that the seventh line looks different from the first."""
WIDTH_IN = 10.2
"""Of a drawing for a wide page."""
NARROW_IN = 3.6
"""Of a drawing for a phone."""

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


def colour(name: str) -> str:
    """The light colour of a name, `rest` for none."""
    return COLOURS.get(name, COLOURS["rest"])[0]


LEVEL: dict[str, Any] = {"color": colour("soft"), "linewidth": 1, "linestyle": "--"}
"""Of a line across a drawing that values are held against."""


# -- drawing -------------------------------------------------------------------------------------------


def is_narrow(drawing: Drawing) -> bool:
    """Whether it is drawn for a phone: names then stand above their bars, panels below each other."""
    return float(drawing.get_figwidth()) < (NARROW_IN + WIDTH_IN) / 2


def _matplotlib() -> ModuleType:
    """The package. In the current folder it would obey a `matplotlibrc`, which may be anybody's."""
    with neutral.standing_in():
        import matplotlib as mpl
    return mpl


def _drawn(figure: Figure, *, narrow: bool = False) -> Drawing:
    """The figure drawn in the common style."""
    mpl = _matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Sheet

    style: dict[Any, Any] = {
        "font.size": 8.5,
        "font.family": "DejaVu Sans",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": colour("soft"),
        "axes.labelcolor": colour("ink"),
        "axes.titlesize": 9.0,
        "axes.titlecolor": colour("ink"),
        "axes.facecolor": "none",
        "axes.axisbelow": True,
        "text.color": colour("ink"),
        "xtick.color": colour("soft"),
        "ytick.color": colour("soft"),
        "xtick.labelcolor": colour("ink"),
        "ytick.labelcolor": colour("ink"),
        "grid.color": colour("line"),
        "legend.frameon": False,
        "hatch.linewidth": 0.6,
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": figure.name,
    }
    with mpl.rc_context(style):
        height = figure.narrow_height_in if narrow else figure.height_in
        drawing = Sheet(figsize=(NARROW_IN if narrow else WIDTH_IN, height or figure.height_in), layout="constrained")
        FigureCanvasAgg(drawing)
        figure.draw(drawing)
    return drawing


def svg(figure: Figure, *, narrow: bool = False) -> str:
    """The figure as an <svg> element for a page: colours by CSS variable, unique ids, its description inside."""
    buffer = io.StringIO()
    with _matplotlib().rc_context({"svg.fonttype": "none", "svg.hashsalt": figure.name}):
        _drawn(figure, narrow=narrow).savefig(
            buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator"))
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for name, (light, _) in COLOURS.items():
        text = text.replace(light, f"var(--{name})")
    prefix = f"{figure.name}-{'n' if narrow else 'w'}-"
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", text)
    label = html.escape(figure.description, quote=True)
    text = re.sub(
        r'<svg [^>]*?(viewBox="[^"]*")[^>]*>',
        lambda found: f'<svg {found[1]} role="img" aria-label="{label}">',
        text,
        count=1,
        flags=re.DOTALL,
    )
    return re.sub(r">\s+<", "><", text)


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format of the suffix of `path`: .png or .svg. Raises ConfigError where it cannot be
    written."""
    buffer = io.BytesIO()
    kind = path.suffix.removeprefix(".")
    _drawn(figure).savefig(buffer, format=kind, dpi=160, facecolor=colour("page"))
    write_output(path, buffer.getvalue(), follow=False)


# -- parts of drawings ---------------------------------------------------------------------------------


def _places(groups: Sequence[str]) -> list[float]:
    """Heights of bars from the top, with room between groups."""
    places: list[float] = []
    for number, group in enumerate(groups):
        apart = 0.0 if not number else (1.0 if group == groups[number - 1] else 1.5)
        places.append((places[-1] if places else 0.0) + apart)
    return places


def name_bars(axes: Axes, names: Sequence[str], places: Sequence[float]) -> None:
    """Write the names beside the bars at these heights; above them where the drawing is narrow."""
    axes.tick_params(axis="y", length=0)
    drawing = axes.get_figure(root=True)
    if drawing is None or not is_narrow(drawing):
        axes.set_yticks(places, [name if len(name) <= 48 else f"{name[:47]}…" for name in names])
        axes.set_ylim(max(places) + 0.6, min(places) - 0.6)
        return
    axes.set_yticks([])
    axes.set_ylim(max(places) + 0.5, min(places) - 0.9)
    for name, place in zip(names, places, strict=True):
        shown = name if len(name) <= 40 else f"{name[:39]}…"
        note(axes, shown, (0, place - 0.34), (1, 1), xycoords=("axes fraction", "data"), fontsize=8, va="bottom")


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


def whiskers(values: Sequence[Value], scale: float = 1.0) -> Any:
    """Distances to the intervals' ends, [2, N]; 0 without one, None where no value has one."""
    known = np.array([ends(one, scale) for one in values], dtype=float).reshape(-1, 3)
    distances = np.nan_to_num(np.maximum([known[:, 0] - known[:, 1], known[:, 2] - known[:, 0]], 0.0))
    return distances if distances.any() else None


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
    known = [(place, one) for place, one in zip(at, values, strict=True) if one is not None]
    heights: Any = [ends(one, scale)[0] for _, one in known]
    style: dict[str, Any] = {"color": colour(name), "markersize": 4, "linewidth": 1.3, "capsize": 2}
    reach = whiskers([one for _, one in known], scale)
    axes.errorbar([place for place, _ in known], heights, reach, fmt=f"{marker}-", label=label or None, **style)


def stack(
    axes: Axes,
    place: float,
    parts: Iterable[tuple[str, float]],
    *,
    left: float = 0.0,
    height: float = 0.7,
    edge: float = 0.6,
) -> float:
    """Bars of these (colours, lengths), one behind the other. Returns where they end."""
    for name, length in parts:
        if length:
            axes.barh(
                place, length, left=left, height=height, color=colour(name), hatch=HATCHES.get(name, ""),
                edgecolor=colour("page"), linewidth=edge,
            )  # fmt: skip
        left += length
    return left


def spans(axes: Axes, lanes: Sequence[str], bars: Iterable[tuple[int, str, float, float]]) -> None:
    """Bars over time in their lanes, the first on top: (number of the lane, colour, begin, end)."""
    for lane, name, begin, end in bars:
        stack(axes, lane, [(name, end - begin)], left=begin, height=0.8, edge=0.3)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.invert_yaxis()


def note(axes: Axes, text: str, at: tuple[float, float], by: tuple[float, float] = (4, 0), **style: Any) -> None:
    """Write a small text beside a place, so many points away."""
    look = {"fontsize": 7, "va": "center", "annotation_clip": False, **style}
    axes.annotate(text, at, by, textcoords="offset points", **look)


def name_axes(axes: Axes, x: str, y: str = "", *, from_zero: str = "") -> None:
    """What the axes show, with a grid for the values: those of x where y has no name. `from_zero`: `x`, `y` or both."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="y" if y else "x")
    if "x" in from_zero:
        axes.set_xlim(left=0)
    if "y" in from_zero:
        axes.set_ylim(bottom=0)


def doublings(axes: Axes, values: Iterable[int]) -> None:
    """An axis of x in which twice as much is as far everywhere, with these values."""
    shown = sorted(set(values))
    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    axes.set_xticks(shown, [str(value) for value in shown])


def panels(drawing: Drawing, num: int, columns: int) -> list[Axes]:
    """So many axes, in rows of `columns`."""
    grid = list(drawing.subplots(-(-num // columns), columns, squeeze=False).flat)
    for unused in grid[num:]:
        unused.remove()
    return grid[:num]


def dots(drawing: Drawing, names: Sequence[Name], estimates: Sequence[Estimate], label: str) -> None:
    """Ratios with their intervals about a dashed line at 1."""
    axes = drawing.subplots()
    style: dict[str, Any] = {"color": colour("line0"), "markersize": 5, "capsize": 2, "linewidth": 1.4}
    for estimate, place in zip(estimates, name_rows(axes, names), strict=True):
        axes.errorbar(estimate.value, place, xerr=whiskers([estimate]), fmt="o", **style)
        note(axes, f"{estimate.value:.2f}×", (estimate.value, place), (0, 5), fontsize=6.5, ha="center", va="baseline")
    axes.axvline(1.0, **LEVEL)
    # an extremely wide interval must not squeeze all others
    furthest = [min(estimate.high or estimate.value, 1.8 * estimate.value) for estimate in estimates]
    axes.set_xlim(0, 1.08 * max([1.0, *furthest]))
    name_axes(axes, label)


def legend(drawing: Drawing, causes: Sequence[str], names: Sequence[str] | None = None) -> None:
    """Explain the colours above the drawing."""
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=colour(cause), hatch=HATCHES.get(cause, ""), edgecolor=colour("page"), label=name)
        for cause, name in zip(causes, names or causes, strict=True)
    ]
    ncols = 2 if is_narrow(drawing) else len(handles)
    drawing.legend(handles=handles, loc="outside upper left", ncols=ncols)
