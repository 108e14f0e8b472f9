"""What a figure is, the common style, and how a figure is written. Matplotlib draws them; no browser is needed.

A figure is drawn from its rows alone, which are also its downloadable data. Colours are the light ones of `COLOURS`; in
a page they become CSS variables, so that one drawing serves light and dark mode.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loaderbench import neutral
from loaderbench.recording.output import write_output
from loaderbench.recording.record import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

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
Row = tuple[Cell, ...]
Name = tuple[str, str]
"""(resolution, setting) of a row of bars or dots."""


@dataclass(frozen=True)
class Figure:
    """One figure. `rows` hold a value for each of `columns`, whose names end in their units."""

    name: str
    """Unique in a report; names its file."""
    title: str
    caption: str
    """What it shows and how to read it."""
    columns: tuple[str, ...]
    rows: Sequence[Row]
    height_in: float
    draw: Callable[[Drawing], None]
    narrow_height_in: float | None = None
    """Height of the drawing for a narrow page; None: it has none of its own, and the wide one scrolls."""

    @property
    def description(self) -> str:
        """Text for readers who cannot see the figure."""
        return f"{self.title}. {self.caption} The same figures are in the table below it."


def colour(name: str) -> str:
    """The light colour of a name, `rest` for none."""
    return COLOURS.get(name, COLOURS["rest"])[0]


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
    from matplotlib.figure import Figure as Drawing

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
        drawing = Drawing(figsize=(NARROW_IN if narrow else WIDTH_IN, height or figure.height_in), layout="constrained")
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
        axes.annotate(
            shown, (0, place - 0.34), (1, 1), xycoords=("axes fraction", "data"), textcoords="offset points",
            fontsize=8, va="bottom", annotation_clip=False,
        )  # fmt: skip


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


def dots(drawing: Drawing, names: Sequence[Name], estimates: Sequence[Estimate]) -> Axes:
    """Ratios with their intervals about a dashed line at 1."""
    axes = drawing.subplots()
    style: dict[str, Any] = {"color": colour("line0"), "markersize": 5, "capsize": 2, "linewidth": 1.4}
    for estimate, place in zip(estimates, name_rows(axes, names), strict=True):
        reach = errors([estimate.value], [estimate.low], [estimate.high])
        axes.errorbar(estimate.value, place, xerr=reach, fmt="o", **style)
        axes.annotate(
            f"{estimate.value:.2f}×", (estimate.value, place), (0, 5), textcoords="offset points", fontsize=6.5,
            ha="center",
        )  # fmt: skip
    axes.axvline(1.0, color=colour("soft"), linewidth=1, linestyle="--")
    axes.set_xlim(0, _reach(estimates))
    axes.grid(axis="x")
    return axes


def _reach(estimates: Sequence[Estimate]) -> float:
    """Where the axis ends: an extremely wide interval must not squeeze all others."""
    ends = [min(estimate.high or estimate.value, 1.8 * estimate.value) for estimate in estimates]
    return 1.08 * max([1.0, *ends])


def errors(values: Sequence[float], lows: Sequence[float | None], highs: Sequence[float | None]) -> NDArray[np.float64]:
    """Distances to the intervals' ends, [2, N]; nothing where there is no interval."""
    known = np.array(values, dtype=float)
    low, high = (np.array([np.nan if end is None else end for end in ends], dtype=float) for ends in (lows, highs))
    return np.asarray(np.nan_to_num(np.array([np.maximum(known - low, 0), np.maximum(high - known, 0)])))


def legend(drawing: Drawing, causes: Sequence[str], names: Sequence[str] | None = None) -> None:
    """Explain the colours above the drawing."""
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=colour(cause), hatch=HATCHES.get(cause, ""), edgecolor=colour("page"), label=name)
        for cause, name in zip(causes, names or causes, strict=True)
    ]
    ncols = 2 if is_narrow(drawing) else len(handles)
    drawing.legend(handles=handles, loc="outside upper left", ncols=ncols)
