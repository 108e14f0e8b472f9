"""The ledger as text: how good the predictions were, by kind, and each beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from loaderbench.plain import JsonObject, to_json
from loaderbench.printable import memory_size
from loaderbench.recording.ledger import Entry, Ledger, LedgerKind, LedgerScore, Unit
from loaderbench.recording.machines import HARDWARE
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import make_console, plain_table, print_bullets, styled
from loaderbench.reporting.ledger_figure import ledger_figure
from loaderbench.reporting.tables import Cells, Page, Table

if TYPE_CHECKING:
    from rich.console import Console

MEANS: Mapping[LedgerKind, str] = {
    "epoch": "time of a training epoch",
    "validation": "time of a validation epoch",
    "training": "time from the start of the process to the end of the last epoch",
    "gain": "gain of a piece of advice",
    "memory": "peak of live memory of a step",
    "fit": "largest batch that fits",
    "split": "finish of a batch over several devices",
}
FILLED_BY: Mapping[LedgerKind, str] = {
    "epoch": "forecast --check",
    "validation": "forecast --check",
    "training": "forecast --check",
    "gain": "run --verify",
    "memory": "model memory",
    "fit": "model fit",
    "split": "model split",
}
SCORE_COLUMNS = ("kind", "of", "number", "median error", "90 %", "bias", "held")
ENTRY_COLUMNS = ("when", "kind", "what", "predicted (low – high)", "measured", "error", "held")
DAY_WIDTH, WIDE = 10, 100
"""Letters of a date, behind which its time goes on a line of its own where the terminal has fewer than so many."""
NOTE = (
    "Error: measured ÷ predicted − 1. Median and 90 % ignore its sign; bias is the median with the sign. Held: the "
    "measured value lies within the predicted interval; – if the prediction has no interval."
)


def print_ledger(ledger: Ledger, console: Console | None = None, *, last: int, kinds: Sequence[LedgerKind]) -> None:
    """Print the scores and the `last` entries. `kinds`: those that were asked for; none: all."""
    console, ledger = console or make_console(), fmt.cleaned(ledger)
    if ledger.entries:
        _print_table(console, SCORE_COLUMNS, score_rows(ledger), num_left=2)
        console.print()
        shown = ledger.entries[-last:]
        _print_table(console, ENTRY_COLUMNS, [entry_row(entry) for entry in reversed(shown)], num_left=3)
        console.print()
        console.print(styled(NOTE, "dim"))
    else:
        console.print(styled(empty_sentence(kinds, is_elsewhere=ledger.num_elsewhere > 0)))
    print_bullets(console, "Not shown", left_out(ledger, last))


def _print_table(console: Console, columns: Sequence[str], rows: Cells, num_left: int) -> None:
    table = plain_table()
    for number, title in enumerate(columns):
        most = DAY_WIDTH if title == ENTRY_COLUMNS[0] and console.width < WIDE else None
        table.add_column(title, justify="left" if number < num_left else "right", overflow="fold", max_width=most)
    for row in rows:
        table.add_row(*map(styled, row))
    console.print(table)


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
        lines.append(
            f"{older:,} older {_entries(older)}; the scores count them; --last {len(ledger.entries)} shows all"
        )
    if elsewhere:
        lines.append(f"{elsewhere:,} {_entries(elsewhere)} of other machines; --all counts them")
    if damaged:
        noun = "run or study that cannot be read" if damaged == 1 else "runs and studies that cannot be read"
        lines.append(f"{damaged:,} {noun}; `loaderbench list` says why")
    return lines


def _entries(number: int) -> str:
    return "entry" if number == 1 else "entries"


# -- cells -----------------------------------------------------------------------------------------------


def score_rows(ledger: Ledger) -> Cells:
    """A row a kind."""
    return [[kind, MEANS[kind], *_figures(score)] for kind, score in ledger.scores.items()]


def _figures(score: LedgerScore) -> list[str]:
    held = fmt.MISSING if not score.num_intervals else f"{score.num_held} of {score.num_intervals}"
    return [
        f"{score.num:,}", error_text(score.median_error_fraction), error_text(score.p90_error_fraction),
        error_text(score.bias_fraction, signed=True), held,
    ]  # fmt: skip


def entry_row(entry: Entry) -> list[str]:
    """One prediction and its measurement."""
    held = fmt.MISSING if entry.held is None else "yes" if entry.held else "no"
    return [
        entry.at[:16].replace("T", " "), entry.kind, entry.what, predicted_text(entry),
        value_text(entry.measured, entry.unit), error_text(entry.error_fraction, signed=True), held,
    ]  # fmt: skip


def predicted_text(entry: Entry) -> str:
    """`1.60× (1.44× – 1.76×)`; the value alone where there is no interval."""
    value = value_text(entry.predicted, entry.unit)
    if entry.low is None or entry.high is None:
        return value
    return f"{value} ({value_text(entry.low, entry.unit)} – {value_text(entry.high, entry.unit)})"


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
    value = to_json(entry)
    assert isinstance(value, dict)
    there = value.pop("environment")
    machine = {key: there[key] for key in ("cpu_model", "cpus_usable", "gpus")} if isinstance(there, dict) else None
    return {**value, "error_fraction": entry.error_fraction, "held": entry.held, "machine": machine}


def ledger_page(ledger: Ledger) -> Page | None:
    """The ledger in a report; None where it has no entries."""
    if not ledger.entries:
        return None
    machines = {None if entry.environment is None else repr(HARDWARE(entry.environment)) for entry in ledger.entries}
    of = "" if len(machines) == 1 else f" The entries are of {len(machines)} machines."
    columns = tuple((title.capitalize() if title != "90 %" else title, "") for title in SCORE_COLUMNS)
    return Page(
        title="Predictions",
        sentence=ledger_sentence(ledger),
        settings=["What was predicted, and then measured"],
        tables=[Table("Predicted against measured, by kind", columns, score_rows(ledger), 2, NOTE + of)],
        figures=[ledger_figure(ledger.entries)],
    )


def ledger_sentence(ledger: Ledger) -> str:
    """3 predictions were measured; median error: gain 6.2 %, memory 0.1 %; 2 of 2 intervals held."""
    number, scores = len(ledger.entries), ledger.scores.values()
    errors = ", ".join(f"{one.kind} {error_text(one.median_error_fraction)}" for one in scores)
    known, held = sum(one.num_intervals for one in scores), sum(one.num_held for one in scores)
    intervals = f"; {held} of {known} interval{'s' * (known != 1)} held" if known else ""
    return f"{number:,} prediction{'s were' if number != 1 else ' was'} measured; median error: {errors}{intervals}."
