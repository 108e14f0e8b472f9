"""Run records as a table for spreadsheets and data frames: a row a run, an empty cell for what was not measured."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence

from loaderbench.recording.record import SHARES, RunRecord, Share
from loaderbench.reporting.format import value_of

Value = str | int | float | None


def _share(name: Share) -> Callable[[RunRecord], Value]:
    return lambda record: record.share(name)


COLUMNS: Mapping[str, Callable[[RunRecord], Value]] = {
    "run_id": lambda record: record.run_id,
    "status": lambda record: record.status,
    "dataset_name": lambda record: record.case.subject.dataset_name,
    "resolution": lambda record: record.case.subject.resolution,
    "loader": lambda record: record.case.feed.loader,
    "decoder": lambda record: record.case.feed.decoder,
    "workers": lambda record: record.case.feed.workers,
    "prefetch": lambda record: record.case.feed.prefetch,
    "batch_size": lambda record: record.case.step.batch_size,
    "model": lambda record: record.case.step.model,
    "mode": lambda record: record.case.step.mode,
    "precision": lambda record: record.case.step.precision,
    "device": lambda record: record.case.step.device,
    "input_size": lambda record: record.case.step.input_size,
    "cache": lambda record: record.case.subject.cache,
    "seed": lambda record: record.case.effort.seed,
    "repeat": lambda record: record.case.effort.repeat,
    "throughput_samples_per_s": lambda record: value_of(record.throughput),
    "throughput_low_samples_per_s": lambda record: record.throughput.low if record.throughput else None,
    "throughput_high_samples_per_s": lambda record: record.throughput.high if record.throughput else None,
    "step_mean_s": lambda record: record.step_time_s.mean if record.step_time_s else None,
    "step_p50_s": lambda record: record.step_time_s.p50 if record.step_time_s else None,
    "step_p95_s": lambda record: record.step_time_s.p95 if record.step_time_s else None,
    "step_p99_s": lambda record: record.step_time_s.p99 if record.step_time_s else None,
    "time_to_first_batch_s": lambda record: record.time_to_first_batch_s,
    "loader_rate_samples_per_s": lambda record: value_of(record.loader_rate),
    "ingestion_rate_samples_per_s": lambda record: value_of(record.ingestion_rate),
    "accelerator_utilization_fraction": lambda record: record.accelerator_utilization_fraction,
    **{f"share_{name}_fraction": _share(name) for name in SHARES},
    "bottleneck": lambda record: record.verdict.bottleneck if record.verdict else None,
    "failure": lambda record: record.failure.message if record.failure else None,
    "tag": lambda record: record.tag,
}
"""Heading, with its unit → the value."""


def _cost(name: str, kind: str, end: str) -> Callable[[RunRecord], Value]:
    """An end of what running, or waiting, costs."""

    def value(record: RunRecord) -> Value:
        cost = None if record.price is None else getattr(record.price, name)
        amount = None if cost is None else getattr(cost, kind)
        return None if amount is None else getattr(amount, end)

    return value


PRICE_COLUMNS: Mapping[str, Callable[[RunRecord], Value]] = {
    "price_per_hour": lambda record: record.price.per_hour if record.price else None,
    "currency": lambda record: record.price.currency or None if record.price else None,
    **{
        f"{name}_cost_{'' if end == 'value' else f'{end}_'}per_{kind}": _cost(name, kind, end)
        for name in ("running", "waiting")
        for kind in ("hour", "epoch", "month")
        for end in ("value", "low", "high")
        if (name, kind) != ("running", "hour")
    },
}
"""The same of what a run costs, where a price was given."""


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""How a text begins that a spreadsheet takes for a formula, which may start programs and fetch addresses."""


def csv_text(records: Sequence[RunRecord]) -> str:
    """One row per record, units in the column names."""
    columns = {**COLUMNS, **(PRICE_COLUMNS if any(record.price for record in records) else {})}
    return csv_rows(columns, ([value(record) for value in columns.values()] for record in records))


def csv_rows(columns: Iterable[str], rows: Iterable[Iterable[Value]]) -> str:
    """CSV with a heading. A text that a spreadsheet would take for a formula gets an apostrophe before it."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    for row in (columns, *rows):
        writer.writerow([f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell for cell in row])
    return buffer.getvalue()
