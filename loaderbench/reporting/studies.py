"""A study of any kind: as the JSON that commands write, and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from loaderbench import plain
from loaderbench.analysis.selftest import confusion
from loaderbench.plain import Json, JsonObject
from loaderbench.recording.capacity import Capacity
from loaderbench.recording.forecast import Forecast
from loaderbench.recording.model_io import ModelIo
from loaderbench.recording.model_layers import LayersResult
from loaderbench.recording.model_memory import ModelFit, ModelMemory
from loaderbench.recording.model_size import Sizing
from loaderbench.recording.model_split import ModelSplit
from loaderbench.recording.offload_study import ModelOffload
from loaderbench.recording.ranks import Ranks
from loaderbench.recording.record import RunRecord
from loaderbench.recording.studies import (
    CompareFacts,
    Comparison,
    Findings,
    PrecisionResult,
    SelfTest,
    StudyFacts,
    Sweep,
    TuneFacts,
    Tuning,
)
from loaderbench.reporting.capacity import answer_lines as capacity_lines
from loaderbench.reporting.capacity import print_capacity
from loaderbench.reporting.comparison import print_comparison
from loaderbench.reporting.forecast import figures_json, print_forecast
from loaderbench.reporting.model_io import print_io
from loaderbench.reporting.model_layers import print_layers
from loaderbench.reporting.model_memory import print_fit, print_memory
from loaderbench.reporting.model_split import answer_lines as split_lines
from loaderbench.reporting.model_split import print_split
from loaderbench.reporting.offload import answer_lines as offload_lines
from loaderbench.reporting.offload import print_offload
from loaderbench.reporting.precision import print_precision
from loaderbench.reporting.ranks import answer_lines as ranks_lines
from loaderbench.reporting.ranks import print_ranks
from loaderbench.reporting.selftest import print_selftest
from loaderbench.reporting.sizing import answer_lines, demand_lines, print_sizing
from loaderbench.reporting.snippet import snippet
from loaderbench.reporting.study import print_study, print_tuning
from loaderbench.reporting.terminal import print_table
from loaderbench.reporting.words import flags, note, worded_caveat

if TYPE_CHECKING:
    from rich.console import Console


def as_json(facts: StudyFacts, findings: Findings, study_id: str | None = None) -> JsonObject:
    """The output of `--json`, for the study's command and for `loaderbench show`."""
    if isinstance(facts, TuneFacts) and isinstance(findings, Tuning):
        return {**_named("study_id", study_id), **_tuning(facts, findings)}
    if isinstance(findings, PrecisionResult | LayersResult):
        findings = replace(findings, caveats=tuple(worded_caveat(caveat) for caveat in findings.caveats))
    found = plain.to_json(findings)
    assert isinstance(found, dict)
    if isinstance(facts, CompareFacts):
        about = plain.to_json(facts)
        assert isinstance(about, dict)
        return {**_named("comparison_id", study_id), **about, "notes": [note(one) for one in facts.notes], **found}
    if isinstance(findings, Sizing):
        found = {"answer": [*answer_lines(findings), *demand_lines(findings)], **found}
    if isinstance(findings, Forecast):
        found = {**figures_json(findings), **found}
    if isinstance(findings, Capacity):
        found = {"answer": [*capacity_lines(findings)], **found}
    if isinstance(findings, Ranks):
        found = {"answer": [*ranks_lines(findings)], **found}
    if isinstance(findings, ModelSplit):
        found = {"answer": [*split_lines(findings)], **found}
    if isinstance(findings, ModelOffload):
        found = {"answer": [*offload_lines(findings)], **found}
    return {**found, **_named("study_id", study_id)}


def _named(key: str, study_id: str | None) -> JsonObject:
    return {} if study_id is None else {key: study_id}


def _tuning(facts: TuneFacts, tuning: Tuning) -> JsonObject:
    def setting_of(found: Json) -> JsonObject:
        assert isinstance(found, dict)
        return found

    trials: list[Json] = [
        {**setting_of(plain.to_json(one.case.feed.setting)), "rates": list(one.rates), "failure": one.failure}
        for one in tuning.trials
    ]
    finalists: list[Json] = [
        {
            **setting_of(plain.to_json(one.case.feed.setting)),
            "rate": plain.to_json(one.rate),
            "run_ids": list(one.run_ids),
            "is_default": one.is_default,
            "failure": one.failure,
        }
        for one in tuning.finalists
    ]
    winner = tuning.winner
    return {
        "winner": plain.to_json(winner),
        "flags": None if winner is None else flags(winner.feed.setting),
        "rate": plain.to_json(tuning.rate),
        "over_default": plain.to_json(tuning.over_default),
        "over_second": plain.to_json(tuning.over_second),
        "pixels": plain.to_json(tuning.pixels),
        "no_pixels": tuning.no_pixels,
        "num_settings": facts.num_settings,
        "trials": trials,
        "finalists": finalists,
        "screened": [
            {**setting_of(plain.to_json(one.case.feed.setting)), "rate": one.samples_per_s, "failure": one.failure}
            for one in facts.screens
        ],
        "not_tried": [setting_of(plain.to_json(one)) for one in facts.untried],
        "num_rungs": facts.num_rungs,
        "budget_s": facts.budget_s,
        "spent_s": facts.spent_s,
        "snippet": None if winner is None else snippet(winner),
    }


def print_findings(
    facts: StudyFacts, findings: Findings, console: Console, runs: Sequence[RunRecord] = (), *, whole: bool = False
) -> None:
    """Print the study as its command printed it. `runs`: the runs of a sweep, for its table; `whole`: with all their
    caveats in words."""
    match findings:
        case Sweep():
            print_table(runs, console, whole=whole)
            print_study(findings, console)
        case Comparison():
            assert isinstance(facts, CompareFacts)
            print_comparison(facts, findings, console)
        case Tuning():
            assert isinstance(facts, TuneFacts)
            print_tuning(findings, facts, "" if findings.winner is None else snippet(findings.winner), console)
        case SelfTest():
            print_selftest(findings, confusion(findings.cases), console)
        case PrecisionResult():
            print_precision(findings, console)
        case LayersResult():
            print_layers(findings, console)
        case Sizing():
            print_sizing(findings, console)
        case ModelMemory():
            print_memory(findings, console)
        case ModelFit():
            print_fit(findings, console)
        case ModelOffload():
            print_offload(findings, console)
        case ModelSplit():
            print_split(findings, console)
        case ModelIo():
            print_io(findings, console)
        case Forecast():
            print_forecast(findings, console)
        case Capacity():
            print_capacity(findings, console)
        case Ranks():
            print_ranks(findings, console)
