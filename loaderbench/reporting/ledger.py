"""The ledger: how good the predictions were, by kind, and each beside what was measured, as text and as a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from loaderbench.plain import JsonObject, to_json, to_object
from loaderbench.printable import counted, memory_size
from loaderbench.recording.ledger import LEDGER_KINDS, Entry, Ledger, LedgerKind, LedgerScore, Unit
from loaderbench.recording.machines import HARDWARE
from loaderbench.recording.record import Range
from loaderbench.reporting import format as fmt
from loaderbench.reporting.figures import LEVEL, Axes, Drawing, Figure, colour, name_axes, panels
from loaderbench.reporting.result import Column, Result, Row, Table

MEANS: Mapping[LedgerKind, str] = {
    "epoch": "time of a training epoch",
    "validation": "time of a validation epoch",
    "training": "time from the start of the process to the end of the last epoch",
    "gain": "gain of a piece of advice",
    "whatif": "step of a run that was changed",
    "memory": "peak of live memory of a step",
    "fit": "largest batch that fits",
    "split": "finish of a batch over several devices",
}
FILLED_BY: Mapping[LedgerKind, str] = {
    "epoch": "forecast --check",
    "validation": "forecast --check",
    "training": "forecast --check",
    "gain": "run --verify",
    "whatif": "whatif",
    "memory": "model memory",
    "fit": "model fit",
    "split": "model split",
}
SCORE_COLUMNS = (
    Column("kind", left=True), Column("of", left=True, rank=4), Column("number", rank=2), Column("median error"),
    Column("90 %", rank=1), Column("bias", rank=3), Column("held"),
)  # fmt: skip
ENTRY_COLUMNS = (
    Column("when", left=True, rank=3), Column("kind", left=True, rank=2), Column("what", left=True),
    Column("predicted (low – high)"), Column("measured"), Column("error"), Column("held", rank=1),
)  # fmt: skip
NOTE = (
    "Error: predicted ÷ measured − 1. Median and 90 % ignore its sign; bias is the median with the sign. Held: the "
    "measured value lies within the predicted interval; – if the prediction has no interval."
)


def ledger_result(ledger: Ledger, *, last: int = 0, kinds: Sequence[LedgerKind] = ()) -> Result:
    """The scores, and the `last` entries; in a report there are none. `kinds`: those that were asked for; none: all."""
    tables, shown = [], list(reversed(ledger.entries[-last:])) if last else []
    if ledger.entries:
        machines = {None if one.environment is None else repr(HARDWARE(one.environment)) for one in ledger.entries}
        of = "" if len(machines) == 1 else f" The entries are of {len(machines)} machines."
        rows = [(kind, MEANS[kind], *_figures(score)) for kind, score in ledger.scores.items()]
        tables.append(Table("Predicted against measured, by kind", SCORE_COLUMNS, rows, NOTE + of))
    if shown:
        tables.append(Table("Entries, newest first", ENTRY_COLUMNS, [entry_row(entry) for entry in shown]))
    empty = empty_sentence(kinds, is_elsewhere=ledger.num_elsewhere > 0)
    return Result(
        title="Predictions",
        settings=["What was predicted, and then measured"] if ledger.entries else [],
        answer=[ledger_sentence(ledger) if ledger.entries else empty],
        tables=tables,
        sections=[("Not shown", left_out(ledger, last))] if last else [],
        draw=lambda: [ledger_figure(ledger.entries)] if ledger.entries else [],
    )


def empty_sentence(kinds: Sequence[LedgerKind], *, is_elsewhere: bool) -> str:
    """What fills the ledger. `kinds`: those asked for; none: all. `is_elsewhere`: other machines have entries."""
    makers: dict[str, list[str]] = {}
    for kind in kinds or FILLED_BY:
        makers.setdefault(FILLED_BY[kind], []).append(MEANS[kind])
    lines = [f"`loaderbench {maker}` ({', '.join(what)})" for maker, what in makers.items()]
    of = f" of the kind {' or '.join(kinds)}" if kinds else ""
    where = " for this machine" if is_elsewhere else ""
    return f"No measured prediction{of} is stored{where}. To predict and measure: {'; '.join(lines)}."


def left_out(ledger: Ledger, last: int) -> list[str]:
    """What the tables lack, and how to see it."""
    older, elsewhere, damaged = max(len(ledger.entries) - last, 0), ledger.num_elsewhere, ledger.num_unreadable
    lines = []
    if older:
        what = counted(older, "older entry", "older entries")
        lines.append(f"{what}; the scores count them; --last {len(ledger.entries)} shows all")
    if elsewhere:
        lines.append(f"{counted(elsewhere, 'entry', 'entries')} of other machines; --all counts them")
    if damaged:
        what = counted(damaged, "run or study that cannot be read", "runs and studies that cannot be read")
        lines.append(f"{what}; `loaderbench list` says why")
    return lines


# -- cells -----------------------------------------------------------------------------------------------


def _figures(score: LedgerScore) -> Row:
    held = None if not score.num_intervals else f"{score.num_held} of {score.num_intervals}"
    return (
        score.num, error_text(score.median_error_fraction), error_text(score.p90_error_fraction),
        error_text(score.bias_fraction, signed=True), held,
    )  # fmt: skip


def entry_row(entry: Entry) -> Row:
    """One prediction and its measurement."""
    held = None if entry.held is None else "yes" if entry.held else "no"
    return (
        entry.at[:16].replace("T", " "), entry.kind, entry.what, predicted_text(entry),
        value_text(entry.measured, entry.unit), error_text(entry.error_fraction, signed=True), held,
    )  # fmt: skip


def predicted_text(entry: Entry) -> str:
    """`1.60× (1.44× – 1.76×)`; the value alone where there is no interval."""
    return fmt.with_interval(Range(entry.predicted, entry.low, entry.high), _TEXTS[entry.unit], " – ")


_TEXTS: Mapping[Unit, Callable[[float], str]] = {
    "s": fmt.duration,
    "ratio": lambda value: f"{fmt.number(value)}×",
    "bytes": memory_size,
    "images": lambda value: f"{value:,.0f}",
}


def value_text(value: float, unit: Unit) -> str:
    """1.84 s · 1.60× · 97.5 MiB · 24"""
    return _TEXTS[unit](value)


def error_text(fraction: float | None, *, signed: bool = False) -> str:
    """`6.2 %`, `+6.2 %`, `0.03 %`"""
    if fraction is None:
        return fmt.MISSING
    size = abs(fraction)
    text = fmt.percent(fraction, decimals=0 if size >= 1 or not size else 1 if size >= 0.001 else 2)
    return f"+{text}" if signed and fraction > 0 and any(digit in text for digit in "123456789") else text


# -- the figure ------------------------------------------------------------------------------------------

PANEL_IN, AROUND_IN = 1.75, 0.45
"""Height of a row of panels, and of the legend above."""
LEAST_REACH = 0.02
"""By how much the axis goes beyond 1 at least: errors of 0.01 % shall look small."""
WIDE = 4.0
"""From which ratio of the largest to the smallest value on the axis has doublings."""
MANY = 40
"""Entries from which on their dots are small."""


def ledger_figure(entries: Sequence[Entry]) -> Figure:
    """Measured ÷ predicted of each, with the prediction's interval, a panel a kind. `entries`: one at least, oldest
    first."""
    kinds = {kind: [one for one in entries if one.kind == kind] for kind in LEDGER_KINDS}
    kinds = {kind: of_kind for kind, of_kind in kinds.items() if of_kind}
    return Figure(
        "ledger-predictions",
        "Measured ÷ predicted",
        "A mark an entry, oldest first. The line at 1 is a prediction that came true; the bar is the prediction's own "
        "interval, in which the mark should lie.",
        [
            {
                "kind": one.kind,
                "begun_at": one.at,
                "what": one.what,
                "unit": one.unit,
                "predicted": one.predicted,
                "low": one.low,
                "high": one.high,
                "measured": one.measured,
                "measured_over_predicted": one.measured / one.predicted,
                "held": HELD[one.held],
            }
            for one in entries
        ],
        AROUND_IN + PANEL_IN * -(-len(kinds) // 2),
        partial(_draw, kinds=kinds),
    )


HELD = {True: "yes", False: "no", None: "no interval"}
STYLES: Mapping[bool | None, dict[str, Any]] = {
    True: {"marker": "o", "color": colour("line0"), "label": "within its interval"},
    False: {"marker": "X", "color": colour("line1"), "label": "outside it"},
    None: {"marker": "D", "color": colour("line4"), "label": "predicted without an interval"},
}
BAR: dict[str, Any] = {"color": colour("rest"), "label": "predicted interval"}


def _draw(drawing: Drawing, kinds: Mapping[LedgerKind, Sequence[Entry]]) -> None:
    columns = min(len(kinds), 2)
    grid = panels(drawing, len(kinds), columns)
    for number, (axes, (kind, entries)) in enumerate(zip(grid, kinds.items(), strict=True)):
        _panel(axes, entries)
        axes.set_title(f"{kind}: {counted(len(entries), 'prediction')}", loc="left")
        name_axes(axes, "entry, oldest first" if number + columns >= len(kinds) else "", "measured ÷ predicted")
        if number % columns:
            axes.set_ylabel("")
    _legend(drawing, {one.held for entries in kinds.values() for one in entries})


def _panel(axes: Axes, entries: Sequence[Entry]) -> None:
    from matplotlib.ticker import MaxNLocator

    numbered = list(enumerate(entries, 1))
    bars = [
        (place, one.low / one.predicted, one.high / one.predicted)
        for place, one in numbered
        if one.low is not None and one.high is not None
    ]
    width = min(4.0, 110 / len(entries))  # half of the room that an entry has in a narrow panel, in points
    if bars:
        axes.vlines(*zip(*bars, strict=True), color=BAR["color"], linewidth=width, zorder=1.5)
    axes.axhline(1.0, **LEVEL, zorder=1.6)
    for held, style in STYLES.items():
        mine = [(place, one.measured / one.predicted) for place, one in numbered if one.held is held]
        size = 3.0 if len(entries) > MANY else 4.5
        axes.plot([place for place, _ in mine], [ratio for _, ratio in mine], linestyle="", markersize=size, **style)
    axes.set_xlim(0.4, len(entries) + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    _ratios(axes, [*(one.measured / one.predicted for one in entries), *(end for bar in bars for end in bar[1:])])


def _ratios(axes: Axes, values: Sequence[float]) -> None:
    """The axis of ratios: even steps about 1, or doublings where values are far from it."""
    from matplotlib.ticker import FixedLocator, NullLocator

    known = [value for value in values if value > 0]
    low, high = min(1 - LEAST_REACH, *known), max(1 + LEAST_REACH, *known)
    if high / low < WIDE:
        room = 0.06 * (high - low)
        axes.set_ylim(low - room, high + room)
        return
    axes.set_yscale("log", base=2)
    axes.set_ylim(low / 1.2, high * 1.2)
    first, last = (round(math.log2(end)) for end in (low, high))
    every = max(1, -(-(last - first) // 5))
    ticks = [exponent for exponent in range(first, last + 1) if exponent % every == 0]
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(FixedLocator([2.0**exponent for exponent in ticks]))
    axes.set_yticklabels([f"{2.0**exponent:.4g}" for exponent in ticks])


def _legend(drawing: Drawing, held: Collection[bool | None]) -> None:
    """The marks that occur."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linestyle="", markersize=4.5, **style) for one, style in STYLES.items() if one in held]
    if {True, False} & set(held):
        handles.append(Line2D([], [], linewidth=4, **BAR))
    drawing.legend(handles=handles, loc="outside upper left", ncols=2 if len(handles) > 3 else len(handles))


# -- other forms -----------------------------------------------------------------------------------------


def ledger_json(ledger: Ledger) -> JsonObject:
    """The output of `loaderbench ledger --json`: scores by kind, and entries with their errors and machines."""
    return {
        "scores": {kind: to_json(score) for kind, score in ledger.scores.items()},
        "entries": [_entry_json(entry) for entry in ledger.entries],
        "num_elsewhere": ledger.num_elsewhere,
        "num_unreadable": ledger.num_unreadable,
    }


def _entry_json(entry: Entry) -> JsonObject:
    value = to_object(entry)
    there = value.pop("environment")
    machine = {key: there[key] for key in ("cpu_model", "cpus_usable", "gpus")} if isinstance(there, dict) else None
    return {**value, "error_fraction": entry.error_fraction, "held": entry.held, "machine": machine}


def ledger_sentence(ledger: Ledger) -> str:
    """3 predictions were measured; median error: gain 6.2 %, memory 0.1 %; 2 of 2 intervals held."""
    number, scores = len(ledger.entries), ledger.scores.values()
    errors = ", ".join(f"{one.kind} {error_text(one.median_error_fraction)}" for one in scores)
    known, held = sum(one.num_intervals for one in scores), sum(one.num_held for one in scores)
    intervals = f"; {held} of {counted(known, 'interval')} held" if known else ""
    return f"{number:,} prediction{'s were' if number != 1 else ' was'} measured; median error: {errors}{intervals}."
