"""What several runs say together, whichever command measured them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from loaderbench import plain
from loaderbench.analysis.study import fastest, summarize, told_apart
from loaderbench.findings.row import VERDICT
from loaderbench.plain import JsonObject
from loaderbench.printable import listed
from loaderbench.recording.record import RunRecord
from loaderbench.recording.studies import Flip, Knee, Row, Sweep, SweepFacts
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import codes_line
from loaderbench.reporting.format import NOT_MEASURED
from loaderbench.reporting.price import price_sentence, price_table_of
from loaderbench.reporting.result import Column, Result, Table
from loaderbench.reporting.result import Row as TableRow
from loaderbench.reporting.shown import Shown
from loaderbench.reporting.study_figures import study_figures

RATE_COLUMNS = (
    Column("res"), Column("loader", left=True),
    Column("images/s", show=fmt.plus_minus_percent, definition="throughput"),
    Column("step", "s", rank=7, definition="step"), Column("AU", "%", rank=6, definition="utilization"),
    Column("storage", "%", rank=3, definition="storage"), Column("prep", "%", rank=1, definition="prep"),
    Column("copy", "%", rank=4, definition="transfer"), Column("launch", "%", rank=5, definition="launch"),
    Column("compute", "%", rank=2, definition="compute"), Column("verdict", left=True, definition="verdict"),
)  # fmt: skip
RATE_NOTE = (
    "AU: share of the time that the device needs for its steps. Causes are shares of a step; prep includes contention."
)
DATA_COLUMNS = (
    Column("res"), Column("loader", left=True), Column("time", "s", definition="total"),
    Column("× serial", rank=1, show=fmt.speedup, definition="over-serial"),
    Column("batch", "bytes", rank=4, definition="batch"), Column("read", "bytes/s", rank=2, definition="read"),
    Column("ceiling", "bytes/s", rank=3, definition="ceiling"),
    Column("gaps", "%", rank=5, definition="gaps"), Column("data stall", "%", rank=8, definition="gaps"),
    Column("launch gaps", "%", rank=9, definition="gaps"), Column("gaps/step", rank=10, definition="gaps"),
    Column("CPU/image", "s", rank=6, definition="cpu"), Column("memory", "bytes", rank=7, definition="memory"),
)  # fmt: skip


def sweep_result(records: Sequence[RunRecord], study: Sweep) -> Result:
    """What several runs gave, together. `study`: `analysis.study.summarize(records)`, or a stored one."""
    by_id = {record.run_id: record for record in records}
    of_rows = fmt.RowLabels(study.rows)
    ordered = [row for _, group in fmt.by_resolution(study.rows) for row in sorted(group, key=lambda one: -one.total_s)]
    begins = [(fmt.resolution(row.case), of_rows.of(row.case)) for row in ordered]
    rates = [(*begin, *_rates(row, by_id[row.run_ids[-1]])) for begin, row in zip(begins, ordered, strict=True)]
    data = [(*begin, *_data(row)) for begin, row in zip(begins, ordered, strict=True)]
    note = (
        f"time: of {study.num_steps} steps; × serial: images/s over the serial run's, 95 %; batch: encoded bytes; "
        "read: what the storage gave; gaps: share of the step without a kernel."
    )
    return Result(
        title="",
        settings=fmt.common_settings(records),
        answer=finding_lines(records) if study.rows else [fmt.sentence(records[-1])],
        tables=[Table("Rates, causes and verdicts", RATE_COLUMNS, rates, RATE_NOTE),
                Table("Data, storage, gaps and cost", DATA_COLUMNS, data, note),
                *price_table_of([by_id[row.run_ids[-1]] for row in ordered])] if ordered else [],
        sections=[
            ("Gaps between kernels, by workers", gap_lines(study.rows)),
            ("Knee in workers", [knee_line(knee, of_rows) for knee in study.knees]),
            ("A run as short as its buffer", short_run_lines(study.rows)),
            ("Where the bottleneck flips", [flip_line(flip, of_rows) for flip in study.flips]),
        ],
        draw=partial(study_figures, records, study),
    )  # fmt: skip


def _rates(row: Row, record: RunRecord) -> TableRow:
    shares = (record.share("storage"), fmt.prep_share(record), record.share("transfer"))
    step_s = None if record.step_time_s is None else record.step_time_s.mean
    last = (record.share("launch"), record.share("compute"), row.bottleneck)
    return (row.rate, step_s, row.utilization_fraction, *shares, *last)


def _data(row: Row) -> TableRow:
    by_class = row.gap_fraction_by_class or {}
    gaps = [None if (gap := by_class.get(name)) is None else gap.fraction for name in ("data_stall", "launch")]
    return (
        row.total_s, row.faster_than_serial, row.batch_bytes, row.read_bytes_per_s, row.ceiling_bytes_per_s,
        row.gap_fraction, *gaps, row.gaps_per_step, row.seconds_per_sample, row.workers_pss_bytes,
    )  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """What a study found at one resolution."""

    resolution: str
    text: str
    """The fastest setting with its rate, and what limits it."""
    todo: str = ""
    """What to do first, with what it gives; empty where nothing is advised."""
    costs: str = ""
    """What its waiting costs, where a price was given."""


def finding_lines(records: Sequence[RunRecord]) -> list[str]:
    """What a study found, a line for each resolution, small ones first: the fastest setting with its rate, what limits
    it and what to do. The terminal and the report both say it in these words.

    `512: fastest of 4 settings is threaded 2w, 1,365 ±16% images/s. CPU preparation (…) limits this run: without it
    1.47× (1.34 – 1.65) faster. Try: …`
    """
    return [
        f"{one.resolution}: {one.text}{f' Try: {one.todo}.' if one.todo else ''}{f' {one.costs}' if one.costs else ''}"
        for one in findings(records)
    ]


def findings(records: Sequence[RunRecord]) -> list[Finding]:
    """The same in parts."""
    by_id, labels = {record.run_id: record for record in records}, fmt.RowLabels(records)
    found = []
    measured = dict(fmt.by_resolution(summarize(records).rows))
    for name, _ in fmt.by_resolution(records):
        rows = fastest(measured.get(name, ()))
        found.append(_finding(name, rows, by_id, labels) if rows else Finding(name, NOT_MEASURED))
    return found


def _finding(name: str, rows: Sequence[Row], by_id: Mapping[str, RunRecord], labels: fmt.RowLabels) -> Finding:
    """`rows`: those of one resolution, the fastest first."""
    winner = rows[0]
    begin = f"fastest of {len(rows)} settings is " if len(rows) > 1 else ""
    close = [labels.of(row.case) for row in rows[1:] if not told_apart(winner, row)]
    unsure = f" (not significantly faster than {listed(close)})" if close else ""
    runs = [by_id[run] for run in winner.run_ids]
    verdicts = dict.fromkeys(fmt.outcome(record) for record in runs)
    sentence = fmt.sentence(runs[-1])
    if len(verdicts) > 1:
        sentence = f"Its {len(runs)} repeats do not agree on what limits it: {', '.join(verdicts)}."
    advice = runs[-1].verdict.advice if runs[-1].verdict is not None and len(verdicts) == 1 else ()
    rate = fmt.plus_minus_percent(winner.rate)
    text = f"{begin}{labels.of(winner.case)}, {rate} images/s{unsure}. {sentence}"
    costs = price_sentence(runs[-1]) if len(verdicts) == 1 else ""
    return Finding(name, text, fmt.advice(advice[0]) if advice else "", costs)


def gap_lines(rows: Sequence[Row]) -> list[str]:
    """`256 multiprocess: 52 % of a step with 1 worker (data stall 48 %, 12 gaps), 8 % with 2 (…)`, where traced."""
    groups: dict[str, list[Row]] = {}
    labels = fmt.RowLabels(rows)
    for resolution, group in fmt.by_resolution(rows):
        for row in sorted(group, key=lambda row: row.case.feed.workers):
            if row.gap_fraction is not None:
                groups.setdefault(f"{resolution} {labels.without_workers(row.case)}", []).append(row)
    return [
        f"{name}: " + ", ".join(_gaps_with(row, first=row is group[0]) for row in group)
        for name, group in groups.items()
        if len(group) > 1
    ]


def _gaps_with(row: Row, *, first: bool) -> str:
    stall = (row.gap_fraction_by_class or {}).get("data_stall")
    inside = [
        f"data stall {fmt.percent(stall.fraction)}" if stall else "",
        f"{fmt.number(row.gaps_per_step, 2)} gaps" if row.gaps_per_step is not None else "",
        f"95 % of them below {fmt.duration(row.gap_p95_s)}" if row.gap_p95_s is not None else "",
    ]
    text = f"{fmt.percent(row.gap_fraction)}{' of a step' if first else ''} with {row.case.feed.workers} workers"
    return f"{text} ({', '.join(part for part in inside if part)})"


def short_run_lines(rows: Sequence[Row]) -> list[str]:
    """`512 multiprocess 2w: 100 steps with 100 batches ready at the start show 1.58× of the steady rate`"""
    labels = fmt.RowLabels(rows)
    return [
        f"{resolution} {labels.of(row.case)}: {short.num_steps} steps with {short.buffer_batches} batches "
        f"ready at the start show {fmt.ratio(short.flatters)} of the steady rate"
        for resolution, group in fmt.by_resolution(rows)
        for row in sorted(group, key=lambda row: row.case.feed.buffer_ratio or 0.0)
        if (short := row.short_run) is not None
    ]


def knee_line(knee: Knee, labels: fmt.RowLabels) -> str:
    """`256 multiprocess: 4 workers (tried 1, 2, 4, 8), 2.00 ms of CPU an image, 4.00 GB of memory`"""
    more = ", or more" if knee.is_last else ""
    tried = ", ".join(map(str, knee.tried))
    cost = [
        f"{fmt.duration(knee.seconds_per_sample)} of CPU an image" if knee.seconds_per_sample is not None else "",
        f"{fmt.size(knee.workers_pss_bytes)} of memory" if knee.workers_pss_bytes is not None else "",
    ]
    where = f"{fmt.resolution(knee.case)} {labels.without_workers(knee.case)}"
    text = f"{where}: {knee.workers} workers{more} (tried {tried})"
    return ", ".join([text, *(part for part in cost if part)])


def flip_line(flip: Flip, labels: fmt.RowLabels) -> str:
    """`multiprocess 2w: compute at resolution 256, prep at 512`"""
    before, after = flip.at
    first, second = flip.bottlenecks
    if flip.along == "resolution":
        return f"{labels.of(flip.case)}: {first} at resolution {before}, {second} at {after}"
    where = f"{fmt.resolution(flip.case)} {labels.without_workers(flip.case)}"
    return f"{where}: {first} with {before} workers, {second} with {after}"


class ShownSweep(Shown[SweepFacts, Sweep]):
    """Shows a sweep. In a report its runs stand with all others of their settings."""

    is_paged = False
    is_priced = True

    def about(self, facts: SweepFacts) -> str:
        return f"{facts.num_cases} cases"

    def with_runs(self, facts: SweepFacts, found: Sweep, runs: Sequence[RunRecord]) -> Result:
        title = f"{facts.num_cases} cases"
        if not runs:
            return Result(title, [], ["Its runs are not in this store any more."])
        result = sweep_result(runs, found)
        more = [("Not measured", fmt.failure_lines(runs, fmt.RowLabels(runs))), ("Caveats", _caveats(runs))]
        return replace(result, title=title, sections=[*result.sections, *more])

    def sentence(self, facts: SweepFacts, found: Sweep) -> str:
        return f"{len(found.rows)} settings measured"

    def as_json(self, facts: SweepFacts, found: Sweep) -> JsonObject:
        return plain.to_object(found)


def _caveats(records: Sequence[RunRecord]) -> list[str]:
    """Those that change a verdict, each once; of the others a line of codes."""
    grouped = fmt.grouped_caveats(records)
    worded = [caveat for caveat in grouped if caveat.severity == VERDICT]
    lines = [f"{one.code}: {one.text} ({one.num_runs} of {len(records)} runs)" for one in worded]
    return [*lines, *codes_line([one.code for one in grouped if one not in worded])]
