"""What a report holds, whatever it is written as: studies and comparisons, newest first, each with its figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loaderbench.analysis.comparison import compare
from loaderbench.analysis.study import gather, summarize
from loaderbench.errors import ConfigError
from loaderbench.recording.store import Store, load_recording
from loaderbench.reporting import format as fmt
from loaderbench.reporting.comparison import (
    configuration,
    difference_lines,
    failure_lines,
    headline,
    pair_rows,
    parity_lines,
)
from loaderbench.reporting.figures import Figure, comparison_figure, study_figures, timeline_figure
from loaderbench.reporting.format import Record
from loaderbench.reporting.study import flip_line, gap_lines, knee_line, ratio, short_run_lines, study_sentence

Cells = list[list[str]]
MOST_DRAWN = 8
"""Studies, and comparisons, that get figures, the newest; older ones keep their tables."""


@dataclass(frozen=True)
class Part:
    """A study or a comparison."""

    name: str
    """Unique; begins the names of its figures."""
    title: str
    sentence: str
    settings: list[str]
    begun_at: str
    records: list[Record]
    """A study's runs, small resolutions first, failed ones included; of a comparison the two leading ones."""
    study: Mapping[str, Any] | None = None
    comparison: Record | None = None
    figures: list[Figure] = field(default_factory=list)

    @property
    def measured(self) -> bool:
        """Whether there is anything but failures in it."""
        return self.study is None or bool(self.study["rows"])

    @property
    def tables(self) -> list[Table]:
        """Its figures as text."""
        if self.comparison is not None:
            return _comparison_tables(self.comparison)
        return _study_tables(self.study, self.records) if self.study is not None else []

    @property
    def findings(self) -> list[tuple[str, list[str]]]:
        """(heading, lines): knees and flips of a study, parity and differences of a comparison, what failed."""
        if self.comparison is not None:
            return _comparison_findings(self.comparison)
        rows = self.study["rows"] if self.study is not None else []
        failed = [one for one in self.records if one["status"] != "ok"]
        found = [
            ("Gaps between kernels, by workers", gap_lines(rows)),
            ("A run as short as its buffer", short_run_lines(rows)),
            ("Knee in workers", [knee_line(one, rows) for one in self.study["knees"]] if self.study else []),
            ("Where the bottleneck flips", [flip_line(one, rows) for one in self.study["flips"]] if self.study else []),
            ("Not measured", [
                f"{fmt.resolution(one)} {fmt.row_label(one, self.records)}, {fmt.outcome(one)}: {fmt.sentence(one)}"
                for one in failed
            ]),
        ]  # fmt: skip
        return [(heading, lines) for heading, lines in found if lines]


@dataclass(frozen=True)
class Table:
    """Text in rows and columns. A column is (heading, name of its definition in the method, or empty)."""

    title: str
    columns: tuple[tuple[str, str], ...]
    rows: Cells
    num_left: int
    """The first columns that hold names, not figures."""
    note: str = ""


@dataclass(frozen=True)
class Report:
    """All that a report says."""

    parts: list[Part]
    """Newest first; those that measured nothing last."""
    records: list[Record]
    """Every run shown, newest first."""
    num_superseded: int
    """Stored runs that a newer one of the same settings replaces."""
    caveats: list[tuple[str, str, int]]
    environment: list[tuple[str, list[str]]]

    @property
    def studies(self) -> list[Part]:
        return [part for part in self.parts if part.study is not None]

    @property
    def figures(self) -> list[Figure]:
        return [figure for part in self.parts for figure in part.figures]


def read_report(store: Store, on_done: Callable[[int, int], None] = lambda done, total: None) -> Report:
    """The report of all that the store holds. `on_done` is told how many parts are done, and of how many.

    Raises:
        ConfigError: there is nothing to report.
    """
    records = [fmt.cleaned(one.record) for one in store.runs() if one.record is not None]
    if not records:
        raise ConfigError(f"no finished run in {store.root.name}; measure one with `loaderbench run`")
    by_id = {record["run_id"]: record for record in records}
    comparisons = [with_records(fmt.cleaned(one), by_id) for one in store.comparisons()]
    compared = {
        run for one in comparisons for pair in one["pairs"] for side in ("a", "b") for run in pair[side]["runs"]
    }
    groups = gather(one for one in records if one["run_id"] not in compared)
    total = len(groups) + len(comparisons)
    parts = []
    for number, group in enumerate(groups, 1):
        parts.append(_study_part(group, f"study{number}", store, drawn=number <= MOST_DRAWN))
        on_done(len(parts), total)
    for number, one in enumerate(reversed(comparisons), 1):
        parts.append(_comparison_part(one, f"comparison{number}", drawn=number <= MOST_DRAWN))
        on_done(len(parts), total)
    shown = {record["run_id"] for group in groups for record in group} | compared
    kept = [record for record in reversed(records) if record["run_id"] in shown]
    return Report(
        parts=sorted(parts, key=lambda part: (part.measured, part.begun_at), reverse=True),
        records=kept,
        num_superseded=len(records) - len(kept),
        caveats=fmt.grouped_caveats(kept),
        environment=_environment(kept),
    )


def with_records(stored: Record, by_id: Mapping[str, Record]) -> Record:
    """A stored comparison, which names its runs, compared again from their records."""
    sides = [
        [by_id[run] for pair in stored["pairs"] for run in pair[side]["runs"] if run in by_id] for side in ("a", "b")
    ]
    return {**stored, **fmt.cleaned(compare(*sides))}


def _study_part(group: Sequence[Record], name: str, store: Store, *, drawn: bool) -> Part:
    ordered = sorted(
        group,
        key=lambda one: (one["case"].get("resolution") or 0, one["case"]["loader"], one["case"]["workers"]),
    )
    study = summarize(ordered)
    settings = fmt.common_settings(ordered)
    figures = []
    if drawn:
        figures = study_figures(ordered, study, name)
        figures += _timeline(ordered, store, name)
    return Part(
        name=name,
        title=f"{fmt.clean(ordered[0]['case']['dataset_name'])} on {fmt.device_name(_with_device(ordered))}",
        sentence=study_sentence(study) if study["rows"] else fmt.sentence(ordered[-1]),
        settings=settings,
        begun_at=max(one["started_at"] for one in ordered),
        records=ordered,
        study=study,
        figures=figures,
    )


def _with_device(records: Sequence[Record]) -> Record:
    """A run that failed knows no device name."""
    return next((one for one in records if fmt.part(one, "device", "name")), records[0])


def _timeline(records: Sequence[Record], store: Store, name: str) -> list[Figure]:
    """The strip of the run whose device waited most."""
    measured = [one for one in records if one["status"] == "ok" and one.get("throughput")]
    waited = sorted(measured, key=lambda one: fmt.part(one, "accelerator_utilization_fraction") or 1.0)
    for one in waited:
        try:
            _, recording, series = load_recording(store.root / one["run_id"])
        except ConfigError:  # a record that came without its raw facts: of another machine, or trimmed
            continue
        title = f"{fmt.resolution(one)} · {fmt.row_label(one, records)}"
        figure = timeline_figure(recording, series, title, name)
        if figure is not None:
            return [figure]
    return []


def _comparison_part(comparison: Record, name: str, *, drawn: bool) -> Part:
    labels = {side: fmt.clean(text) for side, text in comparison["labels"].items()}
    leading = [comparison[side] for side in ("a", "b") if comparison[side] is not None]
    figure = comparison_figure(comparison, name) if drawn else None
    return Part(
        name=name,
        title=f"{labels['a']} against {labels['b']}",
        sentence=headline(comparison),
        settings=fmt.common_settings(leading) if leading else [],
        begun_at=max((one["started_at"] for one in leading), default=""),
        records=leading,
        comparison=comparison,
        figures=[] if figure is None else [figure],
    )


RATE_COLUMNS = (
    ("Stored", ""), ("Setting", ""), ("Images/s", "throughput"), ("× serial", "serial"), ("Step", "step"),
    ("AU", "utilization"), ("Storage", "storage"), ("Prep", "prep"), ("Transfer", "transfer"), ("Launch", "launch"),
    ("Compute", "compute"), ("Verdict", "verdict"),
)  # fmt: skip
DATA_COLUMNS = (
    ("Stored", ""), ("Setting", ""), ("Time of N steps", "total"), ("Batch", "batch"), ("Read", "read"),
    ("Ceiling", "ceiling"), ("Gaps", "gaps"), ("Data stall", "gaps"), ("Launch gaps", "gaps"), ("Gaps a step", "gaps"),
    ("CPU an image", "cpu"), ("Memory", "memory"),
)  # fmt: skip


def _study_tables(study: Mapping[str, Any], records: Sequence[Record]) -> list[Table]:
    by_id = {record["run_id"]: record for record in records}
    rates: Cells = []
    data: Cells = []
    for name, group in fmt.by_resolution(study["rows"]):
        for row in group:
            record = by_id[row["run_ids"][-1]]
            begin = [name, fmt.row_label(row, study["rows"])]
            shares = record.get("shares") or {}
            percents = [fmt.percent(fmt.value_of(shares.get(cause))) for cause in ("storage", "transfer")]
            rest = [fmt.percent(fmt.value_of(shares.get(cause))) for cause in ("launch", "compute")]
            rates.append([
                *begin, fmt.plus_minus(row["rate"]), ratio(row["faster_than_serial"]),
                fmt.duration(fmt.part(record, "step_time_s", "mean")), fmt.percent(row["utilization_fraction"]),
                percents[0], fmt.percent(fmt.prep_share(record)), percents[1], *rest,
                fmt.clean(row["bottleneck"] or fmt.MISSING),
            ])  # fmt: skip
            by_class = row["gap_fraction_by_class"] or {}
            stalls = [
                fmt.percent(by_class[kind]["fraction"] if kind in by_class else None)
                for kind in ("data_stall", "launch")
            ]
            data.append([
                *begin, fmt.duration(row["total_s"]), fmt.size(row["batch_bytes"]),
                fmt.size(row["read_bytes_per_s"], "/s"), fmt.size(row["ceiling_bytes_per_s"], "/s"),
                fmt.percent(row["gap_fraction"]), *stalls, fmt.number(row["gaps_per_step"]),
                fmt.duration(row["seconds_per_sample"]), fmt.size(row["workers_rss_bytes"]),
            ])  # fmt: skip
    if not rates:
        return []
    dash = f"{fmt.MISSING} {fmt.NOT_MEASURED}."
    note = "± is the larger side of the 95 % interval. Causes are shares of the step; prep holds contention. " + dash
    return [
        Table("Rates, causes and verdicts", RATE_COLUMNS, rates, 2, note),
        Table("Data, storage, gaps and cost", DATA_COLUMNS, data, 2, f"N is {study['num_steps']}. {dash}"),
    ]


def _comparison_tables(comparison: Record) -> list[Table]:
    a, b = (fmt.clean(comparison["labels"][side]) for side in ("a", "b"))
    rates = [
        [
            fmt.clean(pair["cache"]), str(pair["workers"]), fmt.plus_minus(pair["a"]["throughput"]),
            fmt.plus_minus(pair["b"]["throughput"]), ratio(pair["ratio"]), pair["outcome"] or fmt.NOT_MEASURED,
        ]
        for pair in comparison["pairs"]
    ]  # fmt: skip
    columns = (("Cache", "cache"), ("Workers", ""), (f"{a}, images/s", "throughput"), (f"{b}, images/s", "throughput"),
               ("Ratio", "ratio"), ("Outcome", "ratio"))  # fmt: skip
    tables = [Table("Rates", columns, rates, 1, f"Ratio: images/s of {b} ÷ {a}, with its 95 % interval.")]
    for pair in comparison["pairs"]:
        if all(pair[side]["throughput"] is None for side in ("a", "b")):
            continue
        rows = [list(row) for row in pair_rows(pair)]
        tables.append(Table(configuration(pair), (("", ""), (a, ""), (b, "")), rows, 1))
    return tables


def _comparison_findings(comparison: Record) -> list[tuple[str, list[str]]]:
    labels = {side: fmt.clean(text) for side, text in comparison["labels"].items()}
    verdicts = [
        f"{configuration(pair)}, {labels[side]}: {fmt.clean(pair[side]['summary'])}"
        for pair in comparison["pairs"]
        for side in ("a", "b")
        if pair[side]["summary"]
    ]
    found = [
        ("Verdicts", verdicts),
        ("Parity", [line for one in comparison["parities"] for line in parity_lines(one, labels)]),
        ("They differ in", difference_lines(comparison, labels)),
        ("Not measured", [line for pair in comparison["pairs"] for line in failure_lines(pair, labels)]),
        ("Notes", [fmt.clean(note) for note in comparison.get("notes") or []]),
    ]
    return [(heading, lines) for heading, lines in found if lines]


def _environment(records: Sequence[Record]) -> list[tuple[str, list[str]]]:
    """Every environment entry with its values, several where the runs differ."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        for key, value in (record.get("environment") or {}).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            found.setdefault(key, {})[text] = None
    return [(key, list(values)) for key, values in found.items()]
