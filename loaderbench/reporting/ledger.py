"""The ledger as text: how good the predictions were, by kind, and each beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from loaderbench.plain import JsonObject, to_json
from loaderbench.printable import memory_size
from loaderbench.recording.ledger import Entry, Ledger, LedgerKind, LedgerScore, Unit
from loaderbench.recording.machines import HARDWARE
from loaderbench.reporting import format as fmt
from loaderbench.reporting.ledger_figure import ledger_figure
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
    "Error: measured ÷ predicted − 1. Median and 90 % ignore its sign; bias is the median with the sign. Held: the "
    "measured value lies within the predicted interval; – if the prediction has no interval."
)


def ledger_result(ledger: Ledger, *, last: int = 0, kinds: Sequence[LedgerKind] = ()) -> Result:
    """The scores, and the `last` entries; in a report there are none. `kinds`: those that were asked for; none: all."""
    tables, shown = [], list(reversed(ledger.entries[-last:])) if last else []
    if ledger.entries:
        machines = {None if one.environment is None else repr(HARDWARE(one.environment)) for one in ledger.entries}
        of = "" if len(machines) == 1 else f" The entries are of {len(machines)} machines."
        tables.append(Table("Predicted against measured, by kind", SCORE_COLUMNS, score_rows(ledger), NOTE + of))
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


def score_rows(ledger: Ledger) -> list[Row]:
    """A row a kind."""
    return [(kind, MEANS[kind], *_figures(score)) for kind, score in ledger.scores.items()]


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


def ledger_sentence(ledger: Ledger) -> str:
    """3 predictions were measured; median error: gain 6.2 %, memory 0.1 %; 2 of 2 intervals held."""
    number, scores = len(ledger.entries), ledger.scores.values()
    errors = ", ".join(f"{one.kind} {error_text(one.median_error_fraction)}" for one in scores)
    known, held = sum(one.num_intervals for one in scores), sum(one.num_held for one in scores)
    intervals = f"; {held} of {known} interval{'s' * (known != 1)} held" if known else ""
    return f"{number:,} prediction{'s were' if number != 1 else ' was'} measured; median error: {errors}{intervals}."
