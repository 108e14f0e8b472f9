"""What is stored, as text: a row for each run, and one for each study with the first words of its answer."""

from __future__ import annotations

import bisect
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from loaderbench.analysis.studies import judge, senseless
from loaderbench.recording.forecast import ForecastFacts
from loaderbench.recording.model_io import IoFacts
from loaderbench.recording.model_size import SizeFacts
from loaderbench.recording.model_split import SplitFacts
from loaderbench.recording.store import StoredRun, StoredStudy
from loaderbench.recording.studies import (
    CompareFacts,
    Comparison,
    Findings,
    PrecisionFacts,
    PrecisionResult,
    SelfTest,
    SelfTestFacts,
    StudyFacts,
    StudyRecord,
    Sweep,
    SweepFacts,
    TuneFacts,
    Tuning,
)
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import STYLES, make_console, plain_table, print_bullets, styled
from loaderbench.reporting.pages import PAGED, page_of
from loaderbench.reporting.words import flags

if TYPE_CHECKING:
    from rich.console import Console

ANSWER_WIDTH = 72
"""Letters of a study's answer that are shown."""


def print_list(runs: Sequence[StoredRun], console: Console | None = None, studies: Sequence[StoredStudy] = ()) -> None:
    """The stored runs and studies, a row each, oldest first. The names shown are enough for `loaderbench show`."""
    console = console or make_console()
    if not runs and not studies:
        console.print(styled("no runs stored; measure one with `loaderbench run`"))
        return
    readable = [study.study for study in studies if study.study is not None]
    names = short_names([*(run.run_id for run in runs), *(study.study_id for study in readable)])
    if runs:
        _print_runs(runs, names[: len(runs)], console)
    if readable:
        _print_studies(readable, names[len(runs) :], console)
    without = [f"{run.run_id}: {run.problem}" for run in runs if run.problem is not None and run.record is None]
    without += [f"{study.study_id}: {study.problem}" for study in studies if study.problem is not None]
    print_bullets(console, "Without a result", [fmt.clean(problem) for problem in without])
    doubts = [f"{run.run_id}: {run.problem}" for run in runs if run.problem is not None and run.record is not None]
    print_bullets(console, "With a result, but not whole", [fmt.clean(doubt) for doubt in doubts])


def _print_runs(runs: Sequence[StoredRun], names: Sequence[str], console: Console) -> None:
    table = plain_table()
    table.add_column("run", no_wrap=True)
    table.add_column("case")
    table.add_column("images/s", justify="right", no_wrap=True)
    table.add_column("result", no_wrap=True)
    tagged = any(run.record is not None and run.record.tag for run in runs)
    if tagged:
        table.add_column("tag", overflow="fold")
    for run, name in zip(runs, names, strict=True):
        record = run.record
        result = fmt.clean(run.status) if record is None else fmt.outcome(record)
        table.add_row(
            styled(fmt.clean(name)),
            styled(fmt.clean(run.title)),
            styled(fmt.plus_minus_percent(None if record is None else record.throughput)),
            styled(result, STYLES.get(result, "")),
            *([styled(fmt.clean((record.tag if record else None) or ""))] * tagged),
        )
    console.print(table)


def _print_studies(studies: Sequence[StudyRecord], names: Sequence[str], console: Console) -> None:
    table = plain_table()
    table.add_column("study", no_wrap=True)
    table.add_column("of", overflow="fold")
    table.add_column("begun", no_wrap=True)
    table.add_column("answer", overflow="fold")
    for study, name in zip(studies, names, strict=True):
        what = f"{study.kind.replace('_', ' ')}: {about(study.facts)}"
        day, answer = study.started_at[:10], textwrap.shorten(_answer(study), ANSWER_WIDTH, placeholder=" …")
        table.add_row(*(styled(fmt.clean(cell)) for cell in (name, what, day, answer)))
    console.print(table)


def about(facts: StudyFacts) -> str:
    """What a study is about, in a few words."""
    match facts:
        case SweepFacts():
            return f"{facts.num_cases} cases"
        case CompareFacts():
            return f"{facts.labels['a']} against {facts.labels['b']}"
        case TuneFacts():
            return facts.default.subject.dataset_name
        case SelfTestFacts():
            return facts.device
        case PrecisionFacts() | SizeFacts():
            return f"{facts.model}, {facts.mode}"
        case SplitFacts():
            return f"{facts.model}, batch {facts.batch_size} over {', '.join(one.device for one in facts.members)}"
        case ForecastFacts():
            return f"{facts.source.model}, {facts.asked.epochs} epochs of {facts.asked.images:,} images"
        case IoFacts():
            return f"{facts.model}, {facts.device_name}"
        case _:
            return f"{facts.step.model}, {facts.step.mode}"


def _answer(study: StudyRecord) -> str:
    """What it found, by its stored findings; those of a model alone need no runs to be found again."""
    findings, is_paged = study.findings, study.kind in PAGED
    try:
        if is_paged:
            findings = judge(study.facts, {}) if findings is None else findings
            return page_of(findings, "", drawn=False).sentence
        return "" if findings is None else _sentence(findings)
    except Exception as error:  # a record that was edited by hand
        return senseless(error)


def _sentence(findings: Findings) -> str:
    match findings:
        case Sweep():
            return f"{len(findings.rows)} settings measured"
        case Comparison():
            ratio, outcome = findings.ratio, (findings.outcome or "").replace("_", " ")
            return "nothing to compare" if ratio is None else f"{outcome}: {fmt.speedup(ratio)} images/s"
        case Tuning():
            return "nothing was measured" if findings.winner is None else flags(findings.winner.feed.setting)
        case SelfTest():
            return f"{fmt.percent(findings.accuracy_fraction)} of {findings.num_clear_cases} verdicts right"
        case PrecisionResult():
            gains = [f"{one.precision} {fmt.speedup(one.speedup)}" for one in findings.modes if one.speedup is not None]
            return ", ".join(gains) or "no mode was measured"
        case _:
            raise AssertionError(f"{type(findings).__name__} has a page")


def short_names(names: Sequence[str]) -> list[str]:
    """For each run or study the start of its name up to its time, if no other begins so, else the whole name."""
    times = ["-".join(name.split("-")[:3]) for name in names]
    ordered = sorted(names)

    def is_unique(time: str) -> bool:
        after = bisect.bisect_left(ordered, time) + 1  # the first that begins so is the name itself
        return after == len(ordered) or not ordered[after].startswith(time)

    return [time if is_unique(time) else name for name, time in zip(names, times, strict=True)]
