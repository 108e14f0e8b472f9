"""Made-up runs and studies that predicted and measured: figures in round numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.analysis.whatif import whatif_of
from loaderbench.cases.case import Case, Step
from loaderbench.recording.facts import SCHEMA, Environment
from loaderbench.recording.forecast import (
    Asked,
    CheckedEpoch,
    EpochForecast,
    EpochState,
    Forecast,
    ForecastFacts,
    Memory,
    Past,
    PastFigures,
    SourceFacts,
    TrainingForecast,
)
from loaderbench.recording.ledger import Entry, LedgerKind, Unit
from loaderbench.recording.model_memory import (
    BatchMemory,
    MeasuredMemory,
    ModelFit,
    ModelFitFacts,
    ModelMemory,
    ModelMemoryFacts,
    PredictedMemory,
)
from loaderbench.recording.record import Advice, Estimate, Range, RunRecord, Verdict
from loaderbench.recording.store import Store
from loaderbench.recording.studies import Findings, StudyFacts, StudyKind, StudyRecord
from loaderbench.recording.whatif import Limit, WhatifAsked, WhatifFacts
from tests.made import CASE, STARTED_AT, make_environment, make_record

STEP = Step(model="resnet18", mode="train", precision="fp32", device="cpu", batch_size=1, input_size=64)
MIB = 2**20


def make_entry(kind: LedgerKind, predicted: float, measured: float, unit: Unit = "s", **changes: Any) -> Entry:
    """An entry without an interval."""
    entry = Entry(kind, "study", STARTED_AT, "what", unit, predicted, None, None, measured, make_environment())
    return replace(entry, **changes)


def gain(predicted: float, low: float | None, high: float | None, measured: float | None, **fields: Any) -> Advice:
    """Advice to take more workers, and what `--verify` measured."""
    known: dict[str, Any] = {
        "change": {"workers": 4},
        "predicted_speedup": Estimate(predicted, low, high, "ratio", 12, "made up"),
        "measured_speedup": None if measured is None else Estimate(measured, 0.5, 9.0, "ratio", 4, "made up"),
    }
    return Advice(code="more_workers", cause="prep", **{**known, **fields})


def verified_run(*advice: Advice, case: Case = CASE, **fields: Any) -> RunRecord:
    """A run with this advice."""
    return make_record(case, verdict=Verdict("prep", advice=advice), **fields)


def study_of(kind: StudyKind, facts: StudyFacts, findings: Findings | None, **fields: Any) -> StudyRecord:
    return replace(StudyRecord(SCHEMA, RULES_VERSION, "study", kind, STARTED_AT, facts, findings), **fields)


def keep_run(store: Store, record: RunRecord) -> str:
    """The id under which the store has it."""
    folder = store.open_run(record.case)
    folder.write_record(replace(record, run_id=folder.run_id))
    return folder.run_id


def keep_study(store: Store, study: StudyRecord) -> str:
    """The id under which the store has it."""
    folder = store.new_study(study.kind, ["made-up"])
    folder.write(replace(study, study_id=folder.study_id))
    return folder.study_id


# -- model memory and model fit --------------------------------------------------------------------------


def batch_memory(batch_size: int, predicted: int | None, measured: int | None) -> BatchMemory:
    """Peaks of live memory in bytes; what the process takes is another figure."""
    return BatchMemory(
        batch_size=batch_size,
        mode="train",
        predicted=None if predicted is None else PredictedMemory(predicted, 0, 0, 0, 0, 0),
        measured=MeasuredMemory(measured, None, 900 * MIB, 3),
        error_fraction=None, peak=None, outputs_bytes=None, layers=(), trace_s=None, trace_failure=None, status="ok",
        failure=None,
    )  # fmt: skip


def memory_study(*batches: BatchMemory, environment: Environment | None = None) -> StudyRecord:
    facts = ModelMemoryFacts(STEP, 0, False, environment or make_environment(), None, None)
    findings = ModelMemory("resnet18", "train", "fp32", "sgd", 64, 3, "cpu", None, batches)
    return study_of("model_memory", facts, findings)


def fit_study(predicted: int | None, found: int | None, *, most: int = 4096, **findings: Any) -> StudyRecord:
    """Largest batches in 2 GiB: the predicted one, and the one that the search confirmed."""
    facts = ModelFitFacts(
        STEP, 0, False, make_environment(), None, 2 * 2**30, "asked for", 2 * 2**30, "ledger", (), None, None, most
    )
    result = ModelFit(
        model="resnet18", mode="train", precision="fp32", optimizer="sgd", input_size=64, channels=3, device_name="cpu",
        memory_bytes=2 * 2**30, memory_source="asked for", how="ledger", largest_batch=found, confirmed=True,
        at_most=found == most, unchecked_on=None, predicted_batch=predicted, needs_bytes=None, predicted=(),
        line_holds=True, num_search_trials=0, not_monotone=False, trials=(), not_measured=None, trace_failure=None,
        interrupted=False,
    )  # fmt: skip
    return study_of("model_fit", facts, replace(result, **findings))


# -- whatif ----------------------------------------------------------------------------------------------

MORE_WORKERS = CASE.changed(workers=8)


def whatif_study(then_s: float, low: float | None, high: float | None, **facts: Any) -> StudyRecord:
    """Eight workers in place of CASE's, predicted a day before the runs of this file began."""
    now, then = (
        Estimate(value, *ends, "s", 12, "made up") for value, *ends in ((0.08, 0.07, 0.09), (then_s, low, high))
    )
    gain = Estimate(0.08 / then_s, None, None, "ratio", 12, "made up")
    predicted = WhatifFacts(
        "run", CASE, make_environment(), WhatifAsked(workers=8), 64.0, now, then, gain, Limit("prep", (), {}), 0.01,
        held_out=True, wanted=MORE_WORKERS,
    )  # fmt: skip
    predicted = replace(predicted, **facts)
    return study_of("whatif", predicted, whatif_of(predicted), started_at="2025-12-31T00:00:00+00:00")


def measured_run(step_s: float, case: Case = MORE_WORKERS, **fields: Any) -> RunRecord:
    """A run of that."""
    return make_record(case, throughput=Estimate(64 / step_s, None, None, "samples/s", 12, "made up"), **fields)


# -- forecast --------------------------------------------------------------------------------------------


def checked(predicted: Range | None, measured_s: float, state: EpochState = "cold", **fields: Any) -> CheckedEpoch:
    """A training epoch of 1,000 images."""
    nothing = Range(0.0, None, None)
    epoch = None if predicted is None else EpochForecast(predicted, nothing, {}, 15, 80.0, nothing, "measured", "run")
    return replace(CheckedEpoch("train", state, 1000, epoch, measured_s, None, None, score=0.5), **fields)


def forecast_study(
    epochs: Sequence[CheckedEpoch], training: tuple[Range, float] | None = None, setting: str = "photos serial"
) -> StudyRecord:
    """A forecast by a run of another machine, checked on this one."""
    there = make_environment(cpu_model="where the run was made")
    source = SourceFacts("run", "run", CASE, "resnet50", "train", 64, "cpu", False, there, None, None)
    asked = Asked(1000, 3)
    facts = ForecastFacts(asked, source, make_environment(), Memory(None, "unknown"), Past((), (), ()))
    found = Forecast(
        asked, "run", setting, False, TrainingForecast(None, {}, {}, None, None, {}, False), None, None, None, {},
        "assumed", None, PastFigures(0, None, None), tuple(epochs), training,
    )  # fmt: skip
    return study_of("forecast", facts, found)
