"""What is stored, as text: a row for each run, and one for each study with the first words of its answer."""

from __future__ import annotations

import bisect
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from loaderbench.analysis.studies import judge, senseless
from loaderbench.recording.capacity import CapacityFacts
from loaderbench.recording.forecast import ForecastFacts
from loaderbench.recording.model_io import IoFacts
from loaderbench.recording.model_layers import LayersFacts
from loaderbench.recording.model_memory import ModelFitFacts, ModelMemoryFacts
from loaderbench.recording.model_size import SizeFacts
from loaderbench.recording.model_split import SplitFacts
from loaderbench.recording.offload_study import OffloadFacts
from loaderbench.recording.ranks import RanksFacts
from loaderbench.recording.store import ListedRun, StoredStudy
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
from loaderbench.reporting.console import STYLES, make_console, print_bullets, styled
from loaderbench.reporting.pages import PAGED, page_of
from loaderbench.reporting.words import flags

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

ANSWER_WIDTH = 72
"""Letters of a study's answer that are shown."""


def print_list(runs: Sequence[ListedRun], console: Console | None = None, studies: Sequence[StoredStudy] = ()) -> None:
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
    without += [f"{one.study_id}: {one.problem}" for one in studies if one.problem is not None and one.study is None]
    print_bullets(console, "Without a result", [fmt.clean(problem) for problem in without])
    doubts = [f"{run.run_id}: {run.problem}" for run in runs if run.problem is not None and run.record is not None]
    doubts += [f"{one.study_id}: {one.problem}" for one in studies if one.problem is not None and one.study is not None]
    print_bullets(console, "With a result, but not whole", [fmt.clean(doubt) for doubt in doubts])


def _print_runs(runs: Sequence[ListedRun], names: Sequence[str], console: Console) -> None:
    titles, device = _without_device([fmt.clean(run.title) for run in runs])
    tagged = any(run.record is not None and run.record.tag for run in runs)
    rows = []
    for run, name, title in zip(runs, names, titles, strict=True):
        record = run.record
        rate = fmt.plus_minus_percent(None if record is None else record.throughput)
        result = fmt.clean(run.status) if record is None else fmt.outcome(record)
        rows.append([fmt.clean(name), title, rate, result, *([fmt.clean((record and record.tag) or "")] * tagged)])
    columns = ("run", "case", "images/s", "result", *(["tag"] * tagged))
    _print_lines(columns, rows, console, cut={"case": 1.0, "tag": 0.3})
    if device:
        console.print(styled(f"device, where none is named: {device}", "dim"))


def _print_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], console: Console, cut: Mapping[str, float]
) -> None:
    """A table with one line for each row: what is too long for the terminal is cut, in the columns of `cut`, by their
    weights. The first column is the name that `show` takes and stays whole."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    kept = sum(width for width, title in zip(widths, columns, strict=True) if title not in cut)
    room = max(console.width - kept - 2 * (len(columns) - 1), 10 * len(cut))
    if sum(widths) - kept > room:
        weight = sum(cut[title] for title in columns if title in cut)
        widths = [
            min(width, int(room * cut[title] / weight)) if title in cut else width
            for width, title in zip(widths, columns, strict=True)
        ]
    console.print(
        _lines([columns, ["─" * width for width in widths], *rows], widths), no_wrap=True, overflow="ellipsis"
    )


def _lines(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Text:
    """The rows as one text, the first as the heading and the second as the line below it. rich's own table takes 0.3 ms
    a row, which is most of a list of thousands."""
    lines: list[str] = []
    styles: list[tuple[str, int, int]] = []
    offset = 0
    for number, row in enumerate(rows):
        cells = [_fitted(cell, width, rows[0][at]) for at, (cell, width) in enumerate(zip(row, widths, strict=True))]
        line = ("──" if number == 1 else "  ").join(cells)
        if number == 0:
            styles.append(("bold", offset, offset + len(line)))
        for at, cell in enumerate(row):
            if cell in STYLES:
                begin = offset + sum(map(len, cells[:at])) + 2 * at
                styles.append((STYLES[cell], begin, begin + len(cells[at])))
        lines.append(line)
        offset += len(line) + 1
    text = styled("\n".join(lines))
    for style, begin, end in styles:
        text.stylize(style, begin, end)
    return text


def _fitted(cell: str, width: int, column: str) -> str:
    """The cell, cut or filled to as many places of the terminal."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(cell) > width:
        cell = f"{set_cell_size(cell, width - 1)}…"
    room = " " * (width - cell_len(cell))
    return room + cell if column == "images/s" else cell + room


def _without_device(titles: Sequence[str]) -> tuple[list[str], str]:
    """(titles, the device that most of them end with and that is left out of those; empty where each has its own)"""
    devices = Counter(title.rpartition(" ")[2] for title in titles)
    device, count = devices.most_common(1)[0] if devices else ("", 0)
    if count < 2:
        return list(titles), ""
    return [title.removesuffix(f" {device}") for title in titles], device


def _print_studies(studies: Sequence[StudyRecord], names: Sequence[str], console: Console) -> None:
    rows = []
    for study, name in zip(studies, names, strict=True):
        what = f"{study.kind.replace('_', ' ')}: {about(study.facts)}"
        answer = textwrap.shorten(_answer(study), ANSWER_WIDTH, placeholder=" …")
        rows.append([fmt.clean(cell) for cell in (name, what, answer)])
    _print_lines(("study", "of", "answer"), rows, console, cut={"of": 1.0, "answer": 1.2})


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
        case CapacityFacts():
            return f"{facts.case.subject.dataset_name}, up to {facts.max_ranks} ranks"
        case RanksFacts():
            return f"{facts.ranks} ranks, {len(facts.cases)} of {facts.num_cases} cases"
        case IoFacts():
            return f"{facts.model}, {facts.device_name}"
        case _:
            return f"{facts.step.model}, {facts.step.mode}"


def was_interrupted(facts: StudyFacts) -> bool:
    """Whether a study without runs did not come to its end. A study of runs can be continued, and its runs tell."""
    match facts:
        case CapacityFacts() | SplitFacts() | OffloadFacts() | ModelMemoryFacts() | ModelFitFacts():
            return facts.interrupted
        case LayersFacts():
            return facts.status == "interrupted"
        case SizeFacts():
            return facts.stopped_by == "interrupted"
        case IoFacts():
            return len(facts.batches) < facts.num_batches and all(one.failure is None for one in facts.batches)
        case PrecisionFacts():
            return not facts.modes or any(mode.status == "interrupted" for mode in facts.modes)
        case _:
            return False


def _answer(study: StudyRecord) -> str:
    """How it ended, if early, and what it found."""
    return f"{'interrupted: ' if was_interrupted(study.facts) else ''}{_found(study)}"


def _found(study: StudyRecord) -> str:
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
    times = [fmt.short_name(name) for name in names]
    ordered = sorted(names)

    def is_unique(time: str) -> bool:
        after = bisect.bisect_left(ordered, time) + 1  # the first that begins so is the name itself
        return after == len(ordered) or not ordered[after].startswith(time)

    return [time if is_unique(time) else name for name, time in zip(names, times, strict=True)]
