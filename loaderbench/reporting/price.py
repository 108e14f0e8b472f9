"""What a run costs at the price that was asked for, and what its waiting takes of that, in sentences and as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from loaderbench.analysis.price import priced
from loaderbench.cases.case import flags, loader_arguments
from loaderbench.cases.options import Price
from loaderbench.errors import ConfigError
from loaderbench.recording.record import Cause, Cost, NoEpoch, PriceFigures, Range, RunRecord, Saving, Verdict
from loaderbench.recording.store import load_run
from loaderbench.reporting import format as fmt
from loaderbench.reporting.result import Column, Row, Table
from loaderbench.reporting.words import NOT_SEPARATED

TITLE = "What it costs"
WAITS_FOR: dict[Cause, str] = {
    "storage": "storage",
    "prep": "CPU preparation",
    "contention": "free processors",
    "transfer": "the copy to the device",
    "launch": "kernel launches",
}
NO_EPOCH: dict[NoEpoch, str] = {
    "rate_not_measured": "no rate was measured",
    "no_facts": "the facts of this run, which hold the number of images, are not stored",
    "no_files": "it read no files",
    "no_length": "the loader does not say how many samples it has, and no epoch ended",
}
WHOLE = 100.0
"""From this amount on no cents are shown."""


def with_price(record: RunRecord, price: Price | None, folder: Path | None) -> RunRecord:
    """The record with what it costs, where a price was given. `folder`: of the run; None where it is not stored."""
    return record if price is None else priced(record, price, _num_images(record, folder))


def _num_images(record: RunRecord, folder: Path | None) -> int | None:
    """Of the run's data set, by its facts; None where they are not there, or not to be read."""
    if folder is None or record.watched is not None:
        return None
    try:
        recording = load_run(folder).recording
    except ConfigError:
        return None
    return None if recording is None else recording.facts.storage.num_images


# -- amounts ---------------------------------------------------------------------------------------------


def amount(value: float) -> str:
    """1,029 · 12.30 · 0.62 · 0.0012"""
    if not math.isfinite(value):
        return fmt.MISSING
    if value and round(abs(value), 2) < 0.1:
        return fmt.number(value, 2)
    return f"{value:,.2f}" if round(abs(value), 2) < WHOLE else f"{value:,.0f}"


def interval(value: Range) -> str:
    """` (0.50–0.70)`; empty where there is none, or none that can be seen."""
    if value.low is None or value.high is None:
        return ""
    low, high = amount(value.low), amount(value.high)
    return "" if low == high else f" ({low}–{high})"


def _plain(value: Range) -> str:
    return amount(value.value) + interval(value)


def money(value: float | str, price: PriceFigures | Price) -> str:
    """`$1.41`, `1.41 EUR`, `1.41`: with the currency as it was given."""
    text = value if isinstance(value, str) else amount(value)
    if not price.currency:
        return text
    blank = " " if len(price.currency) > 1 else ""
    return f"{price.currency}{blank}{text}" if price.currency_first else f"{text} {price.currency}"


def _with_interval(value: Range, price: PriceFigures) -> str:
    return money(value.value, price) + interval(value)


def _per_hour(price: PriceFigures) -> str:
    cents = round(price.per_hour, 2) == price.per_hour
    return money(f"{price.per_hour:,.2f}" if cents else f"{price.per_hour:g}", price)


def waits_for(verdict: Verdict) -> str:
    """What the run waits for by its verdict: `storage`, `storage and CPU preparation`."""
    causes = [cause for cause in WAITS_FOR if cause == verdict.bottleneck] or list(verdict.joint)
    either = any(reason.code in NOT_SEPARATED for reason in verdict.reasons)
    return (" or " if either else " and ").join(WAITS_FOR[cause] for cause in causes)


# -- sentences -------------------------------------------------------------------------------------------


def price_lines(record: RunRecord, *, whole: bool = True) -> list[str]:
    """What running costs, how much of it is waiting, and what advice would save; nothing without a price. Not `whole`:
    of the advice the first that is known to save something."""
    price = record.price
    if price is None:
        return []
    savings = [_saving_line(one, record, price) for one in price.savings]
    left = len(savings) - 1
    if not whole and left > 0:
        savings = [f"{savings[0]} {left} more: loaderbench show {fmt.short_name(record.run_id)} --price … --all"]
    emulated = record.device is not None and record.device.emulated
    remark = ["The device is emulated: give the price of a machine that has it."] if emulated else []
    return [_running_line(record, price), _epoch_line(record, price), *savings, *remark]


def _running_line(record: RunRecord, price: PriceFigures) -> str:
    month = f"a month of {price.month_hours:.0f} hours without pause"
    whole, waiting, verdict = money(price.running.month.value, price), price.waiting, record.verdict
    if waiting is not None and verdict is not None:
        return (
            f"At {_per_hour(price)} an hour, waiting for {waits_for(verdict)} costs "
            f"{_with_interval(waiting.hour, price)} an hour: {_with_interval(waiting.month, price)} of the {whole} "
            f"that {month} costs."
        )
    return f"At {_per_hour(price)} an hour, {month} costs {whole}. {_no_waiting(record, price)}"


def _no_waiting(record: RunRecord, price: PriceFigures) -> str:
    if price.no_waiting == "compute":
        return "Feeding the device faster would save almost none of it: compute limits this run."
    unknown = "How much of that goes to waiting is not known: "
    if price.no_waiting == "undetermined":
        return f"{unknown}the verdict is undetermined."
    if price.no_waiting == "no_verdict" or record.verdict is None:
        return f"{unknown}there is no verdict."
    what = waits_for(record.verdict)
    without = f"waiting for {what}" if what else "what limits it"
    return f"{unknown}how fast the run would be without {without} was not measured."


def _epoch_line(record: RunRecord, price: PriceFigures) -> str:
    epoch, what = price.running.epoch, "images" if record.watched is None else "samples"
    if epoch is None or price.epoch_samples is None:
        return f"What an epoch costs is not known: {NO_EPOCH[price.no_epoch or 'no_facts']}."
    text = f"An epoch of {price.epoch_samples:,} {what} at the measured rate costs {_with_interval(epoch, price)}"
    if price.waiting is None or price.waiting.epoch is None:
        return f"{text}."
    return f"{text}, of which waiting takes {_with_interval(price.waiting.epoch, price)}."


def _saving_line(one: Saving, record: RunRecord, price: PriceFigures) -> str:
    """`Advice 1 (--workers 8) would save 0.62 (0.50–0.70) an hour, …`"""
    saves = one.saves
    epoch = "" if saves.epoch is None else f" or {_with_interval(saves.epoch, price)} an epoch"
    by = ", as measured" if one.measured else ""
    return (
        f"Advice {_name(one, record)} would save {_with_interval(saves.hour, price)} an hour, which is "
        f"{_with_interval(saves.month, price)} a month{epoch}{by}."
    )


def _name(one: Saving, record: RunRecord) -> str:
    """`1 (--workers 8)`"""
    assert record.verdict is not None
    change = record.verdict.advice[one.number - 1].change
    if not change:
        return f"{one.number}"
    words = flags(change) if record.watched is None else loader_arguments(change)
    return f"{one.number} ({fmt.clean(words)})" if words else f"{one.number}"


def price_sentence(record: RunRecord) -> str:
    """What waiting costs and what the first advice would save, for a line among others; empty where it is not known."""
    price = record.price
    if price is not None and price.no_waiting == "compute":
        return f"At {_per_hour(price)} an hour, feeding the device faster would save almost none of it."
    if price is None or price.waiting is None:
        return ""
    text = (
        f"At {_per_hour(price)} an hour, waiting costs {_with_interval(price.waiting.hour, price)} an hour, "
        f"{money(price.waiting.month.value, price)} a month"
    )
    first = next((one.saves for one in price.savings if one.number == 1), None)
    if first is None:
        return f"{text}."
    saved = f"{_with_interval(first.hour, price)} an hour, {money(first.month.value, price)} a month"
    return f"{text}; this would save {saved}."


# -- tables ----------------------------------------------------------------------------------------------


def _columns(price: PriceFigures) -> list[Column]:
    unit = f", {price.currency}" if price.currency else ""
    return [Column(f"{name}{unit}", show=_plain) for name in ("an hour", "an epoch", "a month")]


def _cells(cost: Cost) -> Row:
    return (cost.hour, cost.epoch, cost.month)


def price_tables(record: RunRecord) -> list[Table]:
    """Running, waiting and each saving, an hour, an epoch and a month; none without a price."""
    price, verdict = record.price, record.verdict
    if price is None:
        return []
    rows: list[Row] = [("running", *_cells(price.running))]
    if price.waiting is not None and verdict is not None:
        rows.append((f"waiting for {waits_for(verdict)}", *_cells(price.waiting)))
    rows += [(f"saved by advice {_name(one, record)}", *_cells(one.saves)) for one in price.savings]
    return [Table(TITLE, (Column("", left=True), *_columns(price)), rows)]


def price_table_of(records: Sequence[RunRecord]) -> list[Table]:
    """Of several runs, in this order: what an epoch costs, and what waiting takes; none without a price. Columns of
    epochs only where one is known."""
    found = [(record, record.price) for record in records if record.price is not None]
    if not found:
        return []
    labels, price = fmt.RowLabels([record for record, _ in found]), found[0][1]
    unit = f", {price.currency}" if price.currency else ""
    names = {"epoch": 1, "waiting, epoch": 2, "waiting, hour": 0, "waiting, month": 3}
    kept = [name for name in names if not name.endswith("epoch") or any(one.epoch_s is not None for _, one in found)]
    columns = (
        Column("res"), Column("loader", left=True),
        *(Column(f"{name}{unit}", show=_plain, rank=names[name]) for name in kept), Column("verdict", left=True),
    )  # fmt: skip
    rows = []
    for record, one in found:
        waits, cells = one.waiting, {"epoch": one.running.epoch}
        if waits is not None:
            cells |= {"waiting, epoch": waits.epoch, "waiting, hour": waits.hour, "waiting, month": waits.month}
        place = (fmt.resolution(record.case), labels.of(record.case))
        rows.append((*place, *(cells.get(name) for name in kept), fmt.outcome(record)))
    note = (
        f"At {_per_hour(price)} an hour of the machine; a month is {price.month_hours:.0f} hours without pause; "
        f"{fmt.MISSING}: not known, or nothing to save where compute limits the run."
    )
    return [Table(TITLE, columns, rows, note)]
