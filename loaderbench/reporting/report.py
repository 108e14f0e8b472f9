"""What a report holds, in every format: studies and comparisons, newest first, each with its figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from loaderbench import plain
from loaderbench.analysis.studies import judge
from loaderbench.analysis.study import gather, summarize
from loaderbench.errors import ConfigError
from loaderbench.plain import JsonObject
from loaderbench.recording.caveats import Severity
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store, load_run
from loaderbench.recording.studies import CompareFacts, Comparison, Findings, StudyRecord, Sweep
from loaderbench.reporting import format as fmt
from loaderbench.reporting.anonymous import Anonymous
from loaderbench.reporting.comparison import (
    SIDES,
    Labels,
    configuration,
    difference_lines,
    failure_lines,
    headline,
    note_lines,
    outcome_word,
    pair_rows,
    parity_lines,
)
from loaderbench.reporting.comparison_figure import comparison_figure
from loaderbench.reporting.figures import Figure
from loaderbench.reporting.format import CaveatLine
from loaderbench.reporting.study import finding_lines, flip_line, gap_lines, knee_line, short_run_lines
from loaderbench.reporting.study_figures import study_figures
from loaderbench.reporting.timeline_figure import timeline_figure

Cells = list[list[str]]
MOST_DRAWN = 8
"""Newest studies, and newest comparisons, that get figures; older ones only have tables."""


@dataclass(frozen=True)
class Table:
    """Text in rows and columns. A column is (heading, name of its definition in the method, or empty)."""

    title: str
    columns: tuple[tuple[str, str], ...]
    rows: Cells
    num_left: int
    """Number of leading columns that hold names, not figures."""
    note: str = ""


@dataclass(frozen=True)
class Part:
    """A study or a comparison."""

    name: str
    """Unique; the prefix of the names of its figures."""
    title: str
    sentence: str
    settings: list[str]
    begun_at: str
    records: list[RunRecord]
    """A study's runs, small resolutions first, including failed ones; for a comparison the two leading runs."""
    study: Sweep | None = None
    """None for a comparison."""
    tables: list[Table] = field(default_factory=list)
    """Its figures as text."""
    findings: list[tuple[str, list[str]]] = field(default_factory=list)
    """(heading, lines): knees and flips of a study, parity and differences of a comparison, what failed."""
    figures: list[Figure] = field(default_factory=list)

    @property
    def measured(self) -> bool:
        """Whether it contains anything besides failures."""
        return self.study is None or bool(self.study.rows)


@dataclass(frozen=True)
class Report:
    """The content of a report. Its texts are clean."""

    parts: list[Part]
    """Newest first; those that measured nothing last."""
    records: list[RunRecord]
    """Every run shown, newest first."""
    num_superseded: int
    """Number of stored runs that a newer run of the same settings replaces."""
    caveats: list[tuple[Severity, list[CaveatLine]]]
    """Caveats, those that change a verdict first."""
    environment: list[tuple[str, list[str]]]

    @property
    def studies(self) -> list[Part]:
        return [part for part in self.parts if part.study is not None]

    @property
    def figures(self) -> list[Figure]:
        return [figure for part in self.parts for figure in part.figures]


def read_report(
    store: Store, on_done: Callable[[int, int], None] = lambda done, total: None, anonymous: Anonymous | None = None
) -> Report:
    """The report of everything in the store. `on_done` is called with (parts done, all parts).

    `anonymous`: leaves out paths and names of the machine.

    Raises:
        ConfigError: there is nothing to report.
    """
    cleaned = fmt.cleaned if anonymous is None else anonymous
    records = [cleaned(run.record) for run in store.runs() if run.record is not None]
    if not records:
        raise ConfigError(f"no finished run in {store.root.name}; measure one with `loaderbench run`")
    by_id = {record.run_id: record for record in records}
    studies = [cleaned(stored.study) for stored in store.studies() if stored.study is not None]
    comparisons = [study for study in studies if study.kind == "compare"]
    compared = {run for study in comparisons for run in study.runs if run in by_id}
    groups = gather(record for record in records if record.run_id not in compared)
    total = len(groups) + len(comparisons)
    parts = []
    for number, group in enumerate(groups, 1):
        parts.append(_study_part(group, f"study{number}", store, drawn=number <= MOST_DRAWN))
        on_done(len(parts), total)
    for number, study in enumerate(reversed(comparisons), 1):
        parts.append(_comparison_part(study, by_id, f"comparison{number}", drawn=number <= MOST_DRAWN))
        on_done(len(parts), total)
    shown = {record.run_id for group in groups for record in group} | compared
    kept = [record for record in reversed(records) if record.run_id in shown]
    return Report(
        parts=sorted(parts, key=lambda part: (part.measured, part.begun_at), reverse=True),
        records=kept,
        num_superseded=len(records) - len(kept),
        caveats=fmt.by_severity(fmt.grouped_caveats(kept)),
        environment=_environment(kept),
    )


def with_records(study: StudyRecord, by_id: Mapping[str, RunRecord]) -> Findings:
    """The findings of a stored study by today's rules, from the records of the runs that it names. Missing runs are
    left out."""
    return judge(study.facts, {run: by_id[run] for run in study.runs if run in by_id})


# -- studies ---------------------------------------------------------------------------------------------


def _study_part(group: Sequence[RunRecord], name: str, store: Store, *, drawn: bool) -> Part:
    def place(record: RunRecord) -> tuple[int, str, int]:
        return record.case.subject.resolution or 0, record.case.feed.loader, record.case.feed.workers

    ordered = sorted(group, key=place)
    study = summarize(ordered)
    device = fmt.device_name(fmt.with_device(ordered))
    return Part(
        name=name,
        title=f"{ordered[0].case.subject.dataset_name} on {device}",
        sentence=" ".join(finding_lines(ordered)) if study.rows else fmt.sentence(ordered[-1]),
        settings=fmt.common_settings(ordered),
        begun_at=max(record.started_at for record in ordered),
        records=ordered,
        study=study,
        tables=_study_tables(study, ordered),
        findings=_study_findings(study, ordered),
        figures=[*study_figures(ordered, study, name), *_timeline(ordered, store, name)] if drawn else [],
    )


def _timeline(records: Sequence[RunRecord], store: Store, name: str) -> list[Figure]:
    """The timeline strip of the run whose device waited most."""
    measured = [record for record in records if record.status == "ok" and record.measured]
    labels = fmt.RowLabels(records)
    for record in sorted(measured, key=lambda record: record.accelerator_utilization_fraction or 1.0):
        try:
            run = load_run(store.root / record.run_id)
        except ConfigError:  # a record without its raw facts: copied from another machine, or trimmed
            continue
        title = f"{fmt.resolution(record.case)} · {labels.of(record.case)}"
        figure = timeline_figure(run, title, name)
        if figure is not None:
            return [figure]
    return []


RATE_COLUMNS = (
    ("Stored", ""), ("Setting", ""), ("Images/s", "throughput"), ("× serial", "over-serial"), ("Step", "step"),
    ("AU", "utilization"), ("Storage", "storage"), ("Prep", "prep"), ("Transfer", "transfer"), ("Launch", "launch"),
    ("Compute", "compute"), ("Verdict", "verdict"),
)  # fmt: skip
DATA_COLUMNS = (
    ("Stored", ""), ("Setting", ""), ("Time of N steps", "total"), ("Batch", "batch"), ("Read", "read"),
    ("Ceiling", "ceiling"), ("Gaps", "gaps"), ("Data stall", "gaps"), ("Launch gaps", "gaps"), ("Gaps a step", "gaps"),
    ("CPU an image", "cpu"), ("Memory", "memory"),
)  # fmt: skip


def _study_tables(study: Sweep, records: Sequence[RunRecord]) -> list[Table]:
    if not study.rows:
        return []
    by_id = {record.run_id: record for record in records}
    labels = fmt.RowLabels(study.rows)
    rates: Cells = []
    data: Cells = []
    for name, group in fmt.by_resolution(study.rows):
        for row in group:
            record = by_id[row.run_ids[-1]]
            begin = [name, labels.of(row.case)]
            shares = (
                record.share("storage"), fmt.prep_share(record), record.share("transfer"), record.share("launch"),
                record.share("compute"),
            )  # fmt: skip
            step_s = None if record.step_time_s is None else record.step_time_s.mean
            rates.append([
                *begin, fmt.plus_minus(row.rate), fmt.ratio(row.faster_than_serial), fmt.duration(step_s),
                fmt.percent(row.utilization_fraction), *(fmt.percent(share) for share in shares),
                row.bottleneck or fmt.MISSING,
            ])  # fmt: skip
            by_class = row.gap_fraction_by_class or {}
            gaps = (by_class.get("data_stall"), by_class.get("launch"))
            data.append([
                *begin, fmt.duration(row.total_s), fmt.size(row.batch_bytes), fmt.size(row.read_bytes_per_s, "/s"),
                fmt.size(row.ceiling_bytes_per_s, "/s"), fmt.percent(row.gap_fraction),
                *(fmt.percent(None if gap is None else gap.fraction) for gap in gaps), fmt.number(row.gaps_per_step),
                fmt.duration(row.seconds_per_sample), fmt.size(row.workers_pss_bytes),
            ])  # fmt: skip
    dash = f"{fmt.MISSING} {fmt.NOT_MEASURED}."
    note = "± is the larger side of the 95 % interval. Causes are shares of the step; prep holds contention. " + dash
    return [
        Table("Rates, causes and verdicts", RATE_COLUMNS, rates, 2, note),
        Table("Data, storage, gaps and cost", DATA_COLUMNS, data, 2, f"N is {study.num_steps}. {dash}"),
    ]


def _study_findings(study: Sweep, records: Sequence[RunRecord]) -> list[tuple[str, list[str]]]:
    of_records, of_rows = fmt.RowLabels(records), fmt.RowLabels(study.rows)
    found = [
        ("Gaps between kernels, by workers", gap_lines(study.rows)),
        ("A run as short as its buffer", short_run_lines(study.rows)),
        ("Knee in workers", [knee_line(knee, of_rows) for knee in study.knees]),
        ("Where the bottleneck flips", [flip_line(flip, of_rows) for flip in study.flips]),
        ("Not measured", [fmt.failure_line(record, of_records) for record in records if record.status != "ok"]),
    ]
    return [(heading, lines) for heading, lines in found if lines]


# -- comparisons -----------------------------------------------------------------------------------------


def _comparison_part(study: StudyRecord, by_id: Mapping[str, RunRecord], name: str, *, drawn: bool) -> Part:
    facts, comparison = study.facts, with_records(study, by_id)
    assert isinstance(facts, CompareFacts) and isinstance(comparison, Comparison)
    labels = facts.labels
    leading = [record for side in SIDES if (record := comparison.record(side)) is not None]
    figure = comparison_figure(comparison, labels, name) if drawn else None
    return Part(
        name=name,
        title=f"{labels['a']} against {labels['b']}",
        sentence=headline(comparison, labels),
        settings=fmt.common_settings(leading) if leading else [],
        begun_at=max((record.started_at for record in leading), default=""),
        records=leading,
        tables=_comparison_tables(comparison, labels),
        findings=_comparison_findings(facts, comparison),
        figures=[] if figure is None else [figure],
    )


def _comparison_tables(comparison: Comparison, labels: Labels) -> list[Table]:
    a, b = labels["a"], labels["b"]
    rates = [
        [
            pair.cache, str(pair.workers), fmt.plus_minus(pair.a.throughput), fmt.plus_minus(pair.b.throughput),
            fmt.ratio(pair.ratio), outcome_word(pair),
        ]
        for pair in comparison.pairs
    ]  # fmt: skip
    columns = (("Cache", "cache"), ("Workers", ""), (f"{a}, images/s", "throughput"), (f"{b}, images/s", "throughput"),
               ("Ratio", "ratio"), ("Outcome", "ratio"))  # fmt: skip
    tables = [Table("Rates", columns, rates, 1, f"Ratio: images/s of {b} ÷ {a}, with its 95 % interval.")]
    for pair in comparison.pairs:
        if pair.a.throughput is not None or pair.b.throughput is not None:
            rows = [list(row) for row in pair_rows(pair)]
            tables.append(Table(configuration(pair.cache, pair.workers), (("", ""), (a, ""), (b, "")), rows, 1))
    return tables


def _comparison_findings(facts: CompareFacts, comparison: Comparison) -> list[tuple[str, list[str]]]:
    labels, pairs = facts.labels, comparison.pairs
    verdicts = [
        f"{configuration(pair.cache, pair.workers)}, {labels[side]}: {summary}"
        for pair in pairs
        for side in SIDES
        if (summary := pair.side(side).summary)
    ]
    found = [
        ("Verdicts", verdicts),
        ("Parity", [line for parity in comparison.parities for line in parity_lines(parity, labels)]),
        ("They differ in", difference_lines(comparison, labels)),
        ("Not measured", [line for pair in pairs for line in failure_lines(pair, labels)]),
        ("Notes", note_lines(facts)),
    ]
    return [(heading, lines) for heading, lines in found if lines]


# -- environment -----------------------------------------------------------------------------------------


def _environment(records: Sequence[RunRecord]) -> list[tuple[str, list[str]]]:
    """Each environment entry with its value, or its values where the runs differ."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        if record.environment is None:
            continue
        for key, value in cast(JsonObject, plain.to_json(record.environment)).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            found.setdefault(key, {})[text] = None
    return [(key, list(values)) for key, values in found.items()]
