"""What a report holds, in every format: studies and comparisons, newest first, each with its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loaderbench.analysis.ledger import collected, ledger_of
from loaderbench.analysis.studies import judge, senseless
from loaderbench.analysis.study import gather, summarize
from loaderbench.errors import ConfigError
from loaderbench.recording.caveats import Severity
from loaderbench.recording.record import RunRecord
from loaderbench.recording.selection import select
from loaderbench.recording.store import Store, StoredRun, StoredStudy, load_run
from loaderbench.recording.studies import (
    CompareFacts,
    Comparison,
    Findings,
    StudyRecord,
    Sweep,
    TuneFacts,
    Tuning,
)
from loaderbench.reporting import format as fmt
from loaderbench.reporting.anonymous import LEFT_OUT, Anonymous
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
from loaderbench.reporting.environment import environment_rows
from loaderbench.reporting.figures import Figure
from loaderbench.reporting.format import CaveatLine
from loaderbench.reporting.ledger import ledger_page
from loaderbench.reporting.shown import shown_as
from loaderbench.reporting.study import (
    Finding,
    finding_lines,
    findings,
    flip_line,
    gap_lines,
    knee_line,
    pixels_line,
    short_run_lines,
    winner_line,
)
from loaderbench.reporting.study_figures import study_figures
from loaderbench.reporting.tables import Cells, Page, Table
from loaderbench.reporting.timeline_figure import timeline_figure
from loaderbench.reporting.words import flags

MOST_DRAWN = 8
"""Newest studies, and newest comparisons, that get figures; older ones only have tables."""


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
    """A study's runs that ended well, small resolutions first; for a comparison the two leading runs."""
    study: Sweep | None = None
    """None for a comparison."""
    tables: list[Table] = field(default_factory=list)
    """Its figures as text."""
    findings: list[tuple[str, list[str]]] = field(default_factory=list)
    """(heading, lines): knees and flips of a study, parity and differences of a comparison."""
    figures: list[Figure] = field(default_factory=list)
    leads: list[Finding] = field(default_factory=list)
    """A study's sentence in parts: of each resolution the finding and what to do first."""

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
    without: Table | None = None
    """Runs and studies without a result: failed, interrupted, damaged; None where there are none."""
    predictions: Page | None = None
    """What the runs and studies shown predicted, beside what was measured; None where nothing was."""

    @property
    def title(self) -> str:
        """Of one study its own; of several what they have in common."""
        if len(self.parts) == 1:
            (part,) = self.parts
            return part.title if part.study is None else f"What limits {part.title}"
        if not self.records:
            return f"What these models cost: {len(self.parts)} studies"
        about = list(dict.fromkeys(training(record) for record in self.records))
        what = about[0] if len(about) == 1 else f"{len(about)} workloads" if len(about) else "these runs"
        return f"What limits {what}: {len(self.parts)} studies" if self.parts else "Failed and interrupted runs"

    @property
    def when(self) -> str:
        """The days of what it shows, in words."""
        begun = sorted([one.started_at for one in self.records] or [part.begun_at for part in self.parts])
        return fmt.span(begun[0], begun[-1]) if begun else ""

    @property
    def count(self) -> str:
        """How much it shows, in words."""
        number, noun = (len(self.records), "run") if self.records else (len(self.parts), "study")
        return f"{number} {noun if number == 1 else {'run': 'runs', 'study': 'studies'}[noun]}"

    @property
    def studies(self) -> list[Part]:
        return [part for part in self.parts if part.study is not None]

    @property
    def figures(self) -> list[Figure]:
        after = [] if self.predictions is None else self.predictions.figures
        return [*(figure for part in self.parts for figure in part.figures), *after]


class Content:
    """The runs and studies that a report is about.

    Raises:
        ConfigError: there is nothing to report, or a name means nothing.
    """

    def __init__(self, store: Store, names: Sequence[str] = (), anonymous: Anonymous | None = None) -> None:
        """`names`: those of runs, studies and tags; none: everything in the store. `anonymous`: builds them anew
        without what is somebody's own."""
        runs, studies = _chosen(store, names)
        records = [fmt.cleaned(run.record) for run in runs if run.record is not None]
        known = [fmt.cleaned(stored.study) for stored in studies if stored.study is not None]
        folders = {run.run_id: run.path for run in runs}
        without = _without_record(runs, studies)
        if anonymous is not None:
            records = [anonymous.record(record) for record in records]
            known = [anonymous.study(study) for study in known]
            folders = {anonymous.run_id(run): path for run, path in folders.items()}
            without = [[anonymous.run_id(name), LEFT_OUT, status, LEFT_OUT] for name, _, status, _ in without]
        self._every_record, self._every_study = records, known
        self.of_models = [study for study in known if shown_as(study.kind).is_paged]
        """Studies of a model alone, which have no runs."""
        if not records and not self.of_models:
            why = f": {without[0][-1]}" if without else "; measure one with `loaderbench run`"
            raise ConfigError(f"no finished run in {store.name}{why}")
        self.folders = folders
        self.by_id = {record.run_id: record for record in records}
        self.comparisons = [study for study in known if study.kind == "compare"]
        self.tunings = [study for study in known if study.kind == "tune"]
        of_ranks = [study for study in known if study.kind == "ranks"]
        apart = (*self.comparisons, *self.tunings, *of_ranks)
        compared = {run for study in apart for run in study.runs if run in self.by_id}
        groups = gather(record for record in records if record.run_id not in compared)
        shown = {record.run_id for group in groups for record in group} | compared
        self.records = [record for record in reversed(records) if record.run_id in shown]
        """Newest first."""
        self.num_superseded = len(records) - len(self.records)
        ended_well = [[record for record in group if record.status == "ok"] for group in groups]
        self.groups = [group for group in ended_well if group]
        """The runs of each study that ended well."""
        self._rows_without = [
            *(
                [one.run_id, one.case.title, one.status, fmt.sentence(one)]
                for one in self.records
                if one.status != "ok"
            ),
            *without,
        ]

    def predictions(self) -> Page | None:
        """The ledger of all its runs and studies, older runs of the same settings too; None where it is empty."""
        return ledger_page(fmt.cleaned(ledger_of(collected(self._every_record, self._every_study).entries, None)))

    def without(self, more: Sequence[Sequence[str]]) -> Table | None:
        """What ended badly, with `more` rows; None where there is nothing."""
        rows = sorted([*self._rows_without, *map(list, more)], reverse=True)
        columns = (("Stored as", ""), ("Case", ""), ("Ended", ""), ("Why", ""))
        return fmt.cleaned(Table("Failed and interrupted runs", columns, rows, len(columns))) if rows else None


def _chosen(store: Store, names: Sequence[str]) -> tuple[Sequence[StoredRun], Sequence[StoredStudy]]:
    if not names:
        stored = store.contents()
        return stored.runs, stored.studies
    chosen = select(store, names)
    return sorted((*chosen.runs, *chosen.of_studies), key=lambda run: run.run_id), chosen.studies


def _without_record(runs: Sequence[StoredRun], studies: Sequence[StoredStudy]) -> list[list[str]]:
    """Runs and studies that cannot be read, or whose process died: (id, case, how it ended, why)."""
    rows = [
        [run.run_id, run.title, run.status, run.problem or ""]
        for run in runs
        if run.record is None and run.status != "running"
    ]
    return rows + [[one.study_id, "study", "unreadable", one.problem or ""] for one in studies if one.study is None]


def read_report(
    store: Store,
    on_done: Callable[[int, int], None] = lambda done, total: None,
    names: Sequence[str] = (),
    anonymous: Anonymous | None = None,
) -> Report:
    """The report of everything in the store, or of some `names` of it. `on_done` is called with (parts done, all
    parts). `anonymous`, and errors: as in Content."""
    content = Content(store, names, anonymous)
    total = len(content.groups) + len(content.comparisons) + len(content.tunings) + len(content.of_models)
    parts: list[Part] = []
    senseless_ones: list[list[str]] = []
    for number, group in enumerate(content.groups, 1):
        made, wrong = _sound_parts(group, f"study{number}", content.folders, drawn=number <= MOST_DRAWN)
        parts += made
        senseless_ones += wrong
        on_done(number, total)
    by_id, done = content.by_id, len(content.groups)
    of_studies: tuple[tuple[Sequence[StudyRecord], Callable[[StudyRecord, int], Sequence[Part]]], ...] = (
        (content.comparisons, lambda study, number: [_comparison_part(study, by_id, number)]),
        (content.tunings, lambda study, number: _tuning_part(study, by_id, number)),
        (content.of_models, lambda study, number: [_page_part(study, by_id, number)]),
    )
    for studies, make in of_studies:
        for number, study in enumerate(reversed(studies), 1):
            try:
                parts += make(study, number)
            except Exception as error:  # a record that was edited by hand; the others are shown
                senseless_ones.append([study.study_id, "study", "unreadable", senseless(error)])
            done += 1
            on_done(done, total)
    return Report(
        parts=sorted(parts, key=lambda part: (part.measured, part.begun_at), reverse=True),
        records=content.records,
        num_superseded=content.num_superseded,
        caveats=fmt.by_severity(fmt.grouped_caveats(content.records)),
        environment=environment_rows(
            [
                *(record.environment for record in content.records),
                *(study.facts.environment for study in content.of_models),
            ]
        ),
        without=content.without(senseless_ones),
        predictions=content.predictions(),
    )


def with_records(study: StudyRecord, by_id: Mapping[str, RunRecord]) -> Findings:
    """The findings of a stored study by today's rules, from the records of the runs that it names. Missing runs are
    left out."""
    return judge(study.facts, {run: by_id[run] for run in study.runs if run in by_id})


def _page_part(study: StudyRecord, by_id: Mapping[str, RunRecord], number: int) -> Part:
    name = f"model{number}"
    page = shown_as(study.kind).page(with_records(study, by_id), name, drawn=number <= MOST_DRAWN)
    return Part(
        name=name,
        title=page.title,
        sentence=page.sentence,
        settings=page.settings,
        begun_at=study.started_at,
        records=[],
        tables=page.tables,
        findings=page.findings,
        figures=page.figures,
    )


def _in_brief(device: str) -> str:
    """`NVIDIA H200 (emulated)` of `emulated NVIDIA H200 (profile …)`"""
    name = device.partition(" (")[0]
    return f"{name.removeprefix('emulated ')} (emulated)" if name.startswith("emulated ") else name


def training(record: RunRecord) -> str:
    """`resnet50 training`, `resnet50 inference`"""
    step = record.case.step
    if record.watched is not None:
        return f"{step.model}, watched"
    return f"{step.model} {'training' if step.mode == 'train' else 'inference'}"


def _title(record: RunRecord, device: str) -> str:
    if record.watched is not None:
        return training(record)
    return f"{training(record)} from “{record.case.subject.dataset_name}” on {_in_brief(device)}"


# -- studies ---------------------------------------------------------------------------------------------


def _sound_parts(
    group: Sequence[RunRecord], name: str, folders: Mapping[str, Path], *, drawn: bool
) -> tuple[list[Part], list[list[str]]]:
    """The part of these runs, and a row for each that makes no sense, as one that was edited by hand: the others are
    shown."""
    try:
        return [_study_part(group, name, folders, drawn=drawn)], []
    except Exception as error:
        if len(group) == 1:
            return [], [[group[0].run_id, group[0].case.title, "unreadable", senseless(error)]]
    alone = [_sound_parts([record], f"{name}-{number}", folders, drawn=drawn) for number, record in enumerate(group, 1)]
    wrong = [row for _, rows in alone for row in rows]
    sound = [record for record, (made, _) in zip(group, alone, strict=True) if made]
    if not wrong or not sound:
        return [part for made, _ in alone for part in made], wrong
    parts, more = _sound_parts(sound, name, folders, drawn=drawn)
    return parts, [*wrong, *more]


def _study_part(group: Sequence[RunRecord], name: str, folders: Mapping[str, Path], *, drawn: bool) -> Part:
    def place(record: RunRecord) -> tuple[int, str, int]:
        return record.case.subject.resolution or 0, record.case.feed.loader, record.case.feed.workers

    ordered = sorted(group, key=place)
    study = summarize(ordered)
    device = fmt.device_name(fmt.with_device(ordered))
    return Part(
        name=name,
        title=_title(ordered[0], device),
        sentence=" ".join(finding_lines(ordered)) if study.rows else fmt.sentence(ordered[-1]),
        leads=findings(ordered) if study.rows else [],
        settings=[*fmt.common_settings(ordered), *_tags(ordered)],
        begun_at=max(record.started_at for record in ordered),
        records=ordered,
        study=study,
        tables=_study_tables(study, ordered),
        findings=_study_findings(study),
        figures=[*study_figures(ordered, study, name), *_timeline(ordered, folders, name)] if drawn else [],
    )


def _tags(records: Sequence[RunRecord]) -> list[str]:
    """The names that the user gave the runs, and to how many where not to all."""
    counts = Counter(record.tag for record in records if record.tag)
    return [f"tag {tag}" + (f" ({number} runs)" if number < len(records) else "") for tag, number in counts.items()]


def _timeline(records: Sequence[RunRecord], folders: Mapping[str, Path], name: str) -> list[Figure]:
    """The timeline strip of the run whose device waited most."""
    measured = [record for record in records if record.status == "ok" and record.measured]
    labels = fmt.RowLabels(records)
    for record in sorted(measured, key=lambda record: record.accelerator_utilization_fraction or 1.0):
        try:
            run = load_run(folders[record.run_id], record.run_id)
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
    ("Ceiling", "ceiling"), ("Gaps", "gaps"), ("Data stall", "gaps"), ("Launch gaps", "gaps"),
    ("Gaps per step", "gaps"), ("CPU per image", "cpu"), ("Memory", "memory"),
)  # fmt: skip


def _study_tables(study: Sweep, records: Sequence[RunRecord]) -> list[Table]:
    if not study.rows:
        return []
    by_id = {record.run_id: record for record in records}
    labels = fmt.RowLabels(study.rows)
    rates: Cells = []
    data: Cells = []
    for name, group in fmt.by_resolution(study.rows):
        for row in sorted(group, key=lambda row: -row.rate.value):
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
    note = "± is the larger side of the 95 % interval. Causes are shares of the step; prep includes contention. " + dash
    return [
        Table("Rates, causes and verdicts", RATE_COLUMNS, rates, 2, note),
        Table("Data, storage, gaps and cost", DATA_COLUMNS, data, 2, f"N is {study.num_steps}. {dash}"),
    ]


def _study_findings(study: Sweep) -> list[tuple[str, list[str]]]:
    of_rows = fmt.RowLabels(study.rows)
    found = [
        ("Gaps between kernels, by workers", gap_lines(study.rows)),
        ("A run that is as short as its buffer", short_run_lines(study.rows)),
        ("Knee in workers", [knee_line(knee, of_rows) for knee in study.knees]),
        ("Where the bottleneck flips", [flip_line(flip, of_rows) for flip in study.flips]),
    ]
    return [(heading, lines) for heading, lines in found if lines]


# -- comparisons -----------------------------------------------------------------------------------------


def _comparison_part(study: StudyRecord, by_id: Mapping[str, RunRecord], number: int) -> Part:
    name = f"comparison{number}"
    facts, comparison = study.facts, with_records(study, by_id)
    assert isinstance(facts, CompareFacts) and isinstance(comparison, Comparison)
    labels = facts.labels
    leading = [record for side in SIDES if (record := comparison.record(side)) is not None]
    figure = comparison_figure(comparison, labels, name) if number <= MOST_DRAWN else None
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


# -- tuning ----------------------------------------------------------------------------------------------


def _tuning_part(study: StudyRecord, by_id: Mapping[str, RunRecord], number: int) -> list[Part]:
    """What a search found: its finals are runs of this part alone, its short looks of no study. Empty where no final is
    left."""
    facts, finals = study.facts, [by_id[run] for run in study.runs if run in by_id]
    if not isinstance(facts, TuneFacts) or not any(record.measured for record in finals):
        return []
    tuning = study.findings if isinstance(study.findings, Tuning) else with_records(study, by_id)
    assert isinstance(tuning, Tuning)
    columns = tuple((title, "") for title in ("Setting", "Images/s", ""))
    ranked = sorted(tuning.finalists, key=lambda one: -(one.rate.value if one.rate is not None else 0.0))
    rows = [
        [flags(one.case.feed.setting), fmt.plus_minus(one.rate), "the default" if one.is_default else ""]
        for one in ranked
    ]
    gain = "" if tuning.over_default is None else f" It is {fmt.speedup(tuning.over_default)} the default's rate."
    gain += f" {pixels_line(tuning)}." if pixels_line(tuning) else ""
    return [
        Part(
            name=f"tuning{number}",
            title=f"The fastest loading for {training(finals[0])} from “{facts.default.subject.dataset_name}”",
            sentence=f"{winner_line(tuning, facts)}.{gain}"
            if tuning.winner is not None
            else "No finalist was measured.",
            settings=fmt.common_settings(finals),
            begun_at=study.started_at,
            records=finals,
            tables=[Table("Finals", columns, rows, 1, "± is the larger side of the 95 % interval.")],
        )
    ]
