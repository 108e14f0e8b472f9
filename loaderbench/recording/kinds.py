"""The registry: every kind of stored study in one row, and where its parts are. No other module names all kinds.

Parts are named and loaded when they are asked for, so that a list of results imports what these results need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

F = TypeVar("F")


@dataclass(frozen=True)
class Kind:
    """One kind of study. A place is `module:name`, below `loaderbench`."""

    facts_at: str
    """A dataclass: what the study stores."""
    findings_at: str
    """A dataclass: what is concluded from the facts."""
    judge_at: str
    """(facts, records of its runs by their ids) → findings; a pure function. Without runs: (facts) → findings."""
    shown_at: str
    """A `reporting.shown.Shown`: how it is printed, listed, reported."""
    command: tuple[str, str] | None = None
    """(words that call its command, the place of its function); None: it is no command of its own."""
    has_runs: bool = False
    """Whether it is judged by records of runs."""

    @property
    def facts(self) -> type[Any]:
        return part(self.facts_at)  # type: ignore[no-any-return]

    @property
    def findings(self) -> type[Any]:
        return part(self.findings_at)  # type: ignore[no-any-return]


KINDS: Mapping[str, Kind] = {
    "sweep": Kind(
        "recording.studies:SweepFacts", "recording.studies:Sweep", "analysis.study:judge",
        "reporting.study:ShownSweep", ("sweep", "commands.sweep:sweep"), has_runs=True,
    ),
    "compare": Kind(
        "recording.studies:CompareFacts", "recording.studies:Comparison", "analysis.comparison:judge",
        "reporting.comparison:ShownComparison", ("compare", "commands.compare:compare"), has_runs=True,
    ),
    "tune": Kind(
        "recording.studies:TuneFacts", "recording.studies:Tuning", "analysis.tuning:tuned",
        "reporting.tuning:ShownTuning", ("tune", "commands.tune:tune"), has_runs=True,
    ),
    "selftest": Kind(
        "recording.studies:SelfTestFacts", "recording.studies:SelfTest", "analysis.selftest:score",
        "reporting.selftest:ShownSelfTest", ("selftest", "commands.selftest:selftest"), has_runs=True,
    ),
    "precision": Kind(
        "recording.studies:PrecisionFacts", "recording.studies:PrecisionResult",
        "analysis.precision:compare_precisions", "reporting.precision:ShownPrecision",
        ("precision", "commands.precision:precision"),
    ),
    "model_layers": Kind(
        "recording.model_layers:LayersFacts", "recording.model_layers:LayersResult", "analysis.model_layers:layers_of",
        "reporting.model_layers:ShownLayers",
        ("model layers", "commands.model_layers:layers"),
    ),
    "model_memory": Kind(
        "recording.model_memory:ModelMemoryFacts", "recording.model_memory:ModelMemory",
        "analysis.model_memory:memory_of", "reporting.model_memory:ShownMemory",
        ("model memory", "commands.model_memory:memory"),
    ),
    "model_fit": Kind(
        "recording.model_memory:ModelFitFacts", "recording.model_memory:ModelFit", "analysis.model_memory:fit_of",
        "reporting.model_memory:ShownFit",
        ("model fit", "commands.model_fit:fit"),
    ),
    "model_size": Kind(
        "recording.model_size:SizeFacts", "recording.model_size:Sizing", "analysis.sizing:sized",
        "reporting.sizing:ShownSizing",
        ("model size", "commands.model_size:size"),
    ),
    "model_offload": Kind(
        "recording.offload_study:OffloadFacts", "recording.offload_study:ModelOffload", "analysis.offload:offload_of",
        "reporting.offload:ShownOffload",
        ("model offload", "commands.model_offload:offload"),
    ),
    "model_split": Kind(
        "recording.model_split:SplitFacts", "recording.model_split:ModelSplit", "analysis.model_split:split_of",
        "reporting.model_split:ShownSplit",
        ("model split", "commands.model_split:split"),
    ),
    "model_io": Kind(
        "recording.model_io:IoFacts", "recording.model_io:ModelIo", "analysis.model_io:io_of",
        "reporting.model_io:ShownIo",
        ("model io", "commands.model_io:io"),
    ),
    "forecast": Kind(
        "recording.forecast:ForecastFacts", "recording.forecast:Forecast", "analysis.forecast:forecast_of",
        "reporting.forecast:ShownForecast",
        ("forecast", "commands.forecast:forecast"),
    ),
    "whatif": Kind(
        "recording.whatif:WhatifFacts", "recording.whatif:Whatif", "analysis.whatif:whatif_of",
        "reporting.whatif:ShownWhatif",
        ("whatif", "commands.whatif:whatif"),
    ),
    "attach": Kind(
        "attach.facts:AttachFacts", "attach.facts:Attach", "attach.judge:judge", "attach.shown:ShownAttach",
        ("attach", "attach.command:attach"),
    ),
    "capacity": Kind(
        "recording.capacity:CapacityFacts", "recording.capacity:Capacity", "analysis.capacity:capacity_of",
        "reporting.capacity:ShownCapacity",
        ("capacity", "commands.capacity:capacity"),
    ),
    "ranks": Kind(
        "recording.ranks:RanksFacts", "recording.ranks:Ranks", "analysis.ranks:ranks_of", "reporting.ranks:ShownRanks",
        has_runs=True,
    ),
}  # fmt: skip


_FACTS = "_facts"
"""Attribute that findings returned by a function keep their study's facts in; it is no field, and not stored."""


def with_facts(findings: F, facts: object) -> F:
    """Note what the findings were concluded from, and return them: a notebook shows both."""
    object.__setattr__(findings, _FACTS, facts)
    return findings


def facts_of(findings: object) -> Any:
    """Return what `with_facts` noted; None if nothing was."""
    return vars(findings).get(_FACTS)


def part(place: str) -> Any:
    """What a place names."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"loaderbench.{module}"), name)


def kind_of(value: object) -> str:
    """The kind of study that these facts or findings belong to.

    Raises:
        KeyError: none.
    """
    place = f"{type(value).__module__.removeprefix('loaderbench.')}:{type(value).__qualname__}"
    for name, kind in KINDS.items():
        if place in (kind.facts_at, kind.findings_at):
            return name
    raise KeyError(f"no kind of study has {place}")
