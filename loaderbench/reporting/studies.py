"""A study of any kind: as the JSON that commands write, as text, and as its line in the list."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace

from loaderbench import plain
from loaderbench.analysis.studies import judge, senseless
from loaderbench.plain import JsonObject
from loaderbench.recording.facts import DeviceFacts
from loaderbench.recording.kinds import kind_of
from loaderbench.recording.others import TimedFacts, sentence
from loaderbench.recording.record import RunRecord
from loaderbench.recording.studies import Findings, StudyFacts, StudyRecord
from loaderbench.reporting import format as fmt
from loaderbench.reporting.console import Console, print_result
from loaderbench.reporting.result import Result
from loaderbench.reporting.screen import print_on_a_screen
from loaderbench.reporting.shown import shown_as

ANSWER_WIDTH = 72
"""Letters of a study's answer that the list shows."""


def as_json(facts: StudyFacts, findings: Findings, study_id: str | None = None) -> JsonObject:
    """The output of `--json`, for the study's command and for `loaderbench show`."""
    shown = shown_as(kind_of(facts))
    named: JsonObject = {} if study_id is None else {shown.id_key: study_id}
    value = shown.as_json(facts, findings)
    if isinstance(facts, TimedFacts) and facts.others is not None and "others" not in value:
        value = {**value, "others": plain.to_json(facts.others)}
    return {**named, **value} if shown.id_leads else {**value, **named}


def print_findings(
    facts: StudyFacts,
    findings: Findings,
    console: Console,
    runs: Sequence[RunRecord] = (),
    *,
    whole: bool = False,
    study_id: str | None = None,
) -> None:
    """Print the study as its command printed it.

    Args:
        runs: records of its runs.
        whole: print every row of its tables.
        study_id: by which `show` finds it again: a terminal then gets one screen of it.
    """
    result = result_of(facts, findings, runs)
    if console.is_terminal and study_id is not None and not whole:
        print_on_a_screen(result, console, f"loaderbench show {study_id} --all")
    else:
        print_result(result, console, whole=whole)


def result_of(facts: StudyFacts, findings: Findings, runs: Sequence[RunRecord] = ()) -> Result:
    """What a study found. `runs`: records of its runs."""
    result = shown_as(kind_of(findings)).with_runs(fmt.cleaned(facts), fmt.cleaned(findings), fmt.cleaned(list(runs)))
    others = facts.others if isinstance(facts, TimedFacts) else None
    lines = [None if others is None else sentence(others), slow_bf16(facts)]
    return replace(result, answer=[*result.answer, *(line for line in lines if line is not None)])


def slow_bf16(facts: StudyFacts) -> str | None:
    """Why steps in bf16 took long on a processor without instructions for it; None where it has them, or none ran."""
    device = getattr(facts, "device", None)
    if not isinstance(device, DeviceFacts) or device.details.get("bf16_instructions") is not False:
        return None
    step = getattr(facts, "step", facts)
    precisions = [getattr(step, "precision", "")] + [one.precision for one in getattr(facts, "modes", ())]
    if not any("bf16" in str(one) for one in precisions):
        return None
    return (
        "This processor has no bf16 instructions (avx512_bf16, amx_bf16): PyTorch converts values to fp32 and back, "
        "so bf16 can be tens of times slower than fp32 here."
    )


def cells(study: StudyRecord) -> tuple[str, str]:
    """(its kind and what it is about, its answer)"""
    what = f"{study.kind.replace('_', ' ')}: {shown_as(study.kind).about(study.facts)}"
    return what, textwrap.shorten(_answer(study), ANSWER_WIDTH, placeholder=" …")


def _answer(study: StudyRecord) -> str:
    """How it ended, if early, and what it found."""
    interrupted = shown_as(study.kind).interrupted(study.facts)
    return f"{'interrupted: ' if interrupted else ''}{_found(study)}"


def _found(study: StudyRecord) -> str:
    """What it found, by its stored findings; those of a study without runs are found again."""
    findings, shown = study.findings, shown_as(study.kind)
    try:
        if findings is None and not study.runs:
            findings = judge(study.facts, {})
        return "" if findings is None else shown.sentence(study.facts, findings)
    except Exception as error:  # a record that was edited by hand
        return senseless(error)
