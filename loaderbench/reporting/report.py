"""What a report holds, in every format: studies and comparisons, newest first, each with its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from loaderbench.analysis.ledger import collected, ledger_of
from loaderbench.analysis.studies import judge, senseless
from loaderbench.analysis.study import gather, summarize
from loaderbench.cases.options import Price
from loaderbench.errors import ConfigError
from loaderbench.findings.row import Severity
from loaderbench.printable import counted
from loaderbench.recording.record import RunRecord
from loaderbench.recording.selection import select
from loaderbench.recording.store import Store, StoredRun, StoredStudy, load_run
from loaderbench.recording.studies import StudyRecord, Sweep
from loaderbench.reporting import format as fmt
from loaderbench.reporting.anonymous import LEFT_OUT, Anonymous
from loaderbench.reporting.environment import environment_rows
from loaderbench.reporting.figures import Figure
from loaderbench.reporting.format import CaveatLine
from loaderbench.reporting.ledger import ledger_result
from loaderbench.reporting.price import with_price
from loaderbench.reporting.result import Column, Result, Section, Table
from loaderbench.reporting.shown import shown_as
from loaderbench.reporting.study import Finding, findings, sweep_result
from loaderbench.reporting.timeline_figure import timeline_figure

MOST_DRAWN = 8
"""Newest studies of each kind that get figures; older ones only have tables."""


@dataclass(frozen=True)
class Part:
    """What one study, or the runs of the same settings, gave."""

    name: str
    """Unique; the prefix of the names of its figures."""
    result: Result
    begun_at: str
    figures: Sequence[Figure] = ()
    study: Sweep | None = None
    """Of runs that are no study of another kind."""
    leads: list[Finding] = field(default_factory=list)
    """Its headline in parts: of each resolution the finding and what to do first."""

    @property
    def headline(self) -> str:
        """Its answer in a sentence; of runs, one for each resolution."""
        return self.result.headline if self.study is None else " ".join(self.result.answer)

    @property
    def sections(self) -> list[Section]:
        """Its remarks; the whole answer is one where it has more than the headline."""
        answer = self.result.answer
        return [*([("Answer", answer)] if self.study is None and len(answer) > 1 else []), *self.result.remarks]

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
    predictions: Result | None = None
    """What the runs and studies shown predicted, with what was measured; None where nothing was."""

    @property
    def title(self) -> str:
        """Of one study its own; of several what they have in common."""
        if len(self.parts) == 1:
            (part,) = self.parts
            return part.result.title if part.study is None else f"What limits {part.result.title}"
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
        return counted(len(self.records), "run") if self.records else counted(len(self.parts), "study", "studies")

    @property
    def studies(self) -> list[Part]:
        return [part for part in self.parts if part.study is not None]

    @property
    def figures(self) -> list[Figure]:
        return [*(figure for part in self.parts for figure in part.figures), *self.figures_of_predictions]

    @cached_property
    def figures_of_predictions(self) -> Sequence[Figure]:
        return () if self.predictions is None else self.predictions.draw()


class Content:
    """The runs and studies that a report is about.

    Raises:
        ConfigError: there is nothing to report, or a name means nothing.
    """

    def __init__(
        self,
        store: Store,
        names: Sequence[str] = (),
        anonymous: Anonymous | None = None,
        price: Price | None = None,
    ) -> None:
        """`names`: those of runs, studies and tags; none: everything in the store. `anonymous`: builds them anew
        without what is somebody's own. `price`: of a machine, to say what waiting costs."""
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
        records = [with_price(record, price, folders[record.run_id]) for record in records]
        self._every_record, self._every_study = records, known
        by_id = {record.run_id: record for record in records}
        self.own = [
            study
            for study in known
            if shown_as(study.kind).is_paged and (not study.runs or any(run in by_id for run in study.runs))
        ]
        """Studies that have a part of their own: those of a kind that has one, unless all their runs are gone."""
        if not records and not self.own:
            why = f": {without[0][-1]}" if without else "; measure one with `loaderbench run`"
            raise ConfigError(f"no finished run in {store.name}{why}")
        self.folders = folders
        self.by_id = by_id
        compared = {run for study in self.own for run in study.runs if run in by_id}
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

    def predictions(self) -> Result | None:
        """The ledger of all its runs and studies, older runs of the same settings too; None where it is empty."""
        ledger = fmt.cleaned(ledger_of(collected(self._every_record, self._every_study).entries, None))
        return ledger_result(ledger) if ledger.entries else None

    def without(self, more: Sequence[Sequence[str]]) -> Table | None:
        """What ended badly, with `more` rows; None where there is nothing."""
        rows = sorted([*self._rows_without, *map(list, more)], reverse=True)
        columns = [Column(name, left=True) for name in ("Stored as", "Case", "Ended", "Why")]
        return Table("Failed and interrupted runs", columns, fmt.cleaned(rows)) if rows else None


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
    price: Price | None = None,
) -> Report:
    """The report of everything in the store, or of some `names` of it. `on_done` is called with (parts done, all
    parts). `anonymous`, `price` and errors: as in Content."""
    content = Content(store, names, anonymous, price)
    total = len(content.groups) + len(content.own)
    parts: list[Part] = []
    senseless_ones: list[list[str]] = []
    for number, group in enumerate(content.groups, 1):
        made, wrong = _sound_parts(group, f"study{number}", content.folders, drawn=number <= MOST_DRAWN)
        parts += made
        senseless_ones += wrong
        on_done(number, total)
    seen: Counter[str] = Counter()
    for done, study in enumerate(reversed(content.own), len(content.groups) + 1):
        seen[study.kind] += 1
        try:
            parts.append(_part(study, content.by_id, seen[study.kind]))
        except Exception as error:  # a record that was edited by hand; the others are shown
            senseless_ones.append([study.study_id, "study", "unreadable", senseless(error)])
        on_done(done, total)
    return Report(
        parts=sorted(parts, key=lambda part: (part.measured, part.begun_at), reverse=True),
        records=content.records,
        num_superseded=content.num_superseded,
        caveats=fmt.by_severity(fmt.grouped_caveats(content.records)),
        environment=environment_rows(
            [
                *(record.environment for record in content.records),
                *(study.facts.environment for study in content.own if hasattr(study.facts, "environment")),
            ]
        ),
        without=content.without(senseless_ones),
        predictions=content.predictions(),
    )


def _part(study: StudyRecord, by_id: Mapping[str, RunRecord], number: int) -> Part:
    findings = judge(study.facts, {run: by_id[run] for run in study.runs if run in by_id})
    result = shown_as(study.kind).result(study.facts, findings)
    name = f"{study.kind}{number}"
    return Part(name, result, study.started_at, _named(result, name, drawn=number <= MOST_DRAWN))


def _named(result: Result, name: str, *, drawn: bool) -> list[Figure]:
    """Its figures, by names that no other part has."""
    return [replace(figure, name=f"{name}-{figure.name}") for figure in result.draw()] if drawn else []


def _in_brief(device: str) -> str:
    """`NVIDIA H200 (emulated)` of `emulated NVIDIA H200 (profile …)`"""
    name = device.partition(" (")[0]
    return f"{name.removeprefix('emulated ')} (emulated)" if name.startswith("emulated ") else name


def training(record: RunRecord) -> str:
    """`resnet50 training`, `resnet50 inference`"""
    return fmt.workload(record.case) if record.watched is None else f"{record.case.step.model}, watched"


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
    found = sweep_result(ordered, study)
    result = replace(
        found,
        title=_title(ordered[0], fmt.device_name(fmt.with_device(ordered))),
        settings=[*found.settings, *_tags(ordered)],
        draw=lambda: [*found.draw(), *_timeline(ordered, folders)],
    )
    begun_at = max(record.started_at for record in ordered)
    leads = findings(ordered) if study.rows else []
    return Part(name, result, begun_at, _named(result, name, drawn=drawn), study, leads)


def _tags(records: Sequence[RunRecord]) -> list[str]:
    """The names that the user gave the runs, and to how many where not to all."""
    counts = Counter(record.tag for record in records if record.tag)
    return [f"tag {tag}" + (f" ({number} runs)" if number < len(records) else "") for tag, number in counts.items()]


def _timeline(records: Sequence[RunRecord], folders: Mapping[str, Path]) -> list[Figure]:
    """The timeline strip of the run whose device waited most."""
    measured = [record for record in records if record.status == "ok" and record.measured]
    labels = fmt.RowLabels(records)
    for record in sorted(measured, key=lambda record: record.accelerator_utilization_fraction or 1.0):
        try:
            run = load_run(folders[record.run_id], record.run_id)
        except ConfigError:  # a record without its raw facts: copied from another machine, or trimmed
            continue
        title = f"{fmt.resolution(record.case)} · {labels.of(record.case)}"
        figure = timeline_figure(run, title)
        if figure is not None:
            return [figure]
    return []
