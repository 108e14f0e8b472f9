"""What the list says of a study: what it is about, and the first words of its answer."""

from __future__ import annotations

import textwrap

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
from loaderbench.reporting.pages import PAGED, page_of
from loaderbench.reporting.words import flags

ANSWER_WIDTH = 72
"""Letters of a study's answer that are shown."""


def cells(study: StudyRecord) -> tuple[str, str]:
    """(its kind and what it is about, its answer)"""
    what = f"{study.kind.replace('_', ' ')}: {about(study.facts)}"
    return what, textwrap.shorten(_answer(study), ANSWER_WIDTH, placeholder=" …")


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
