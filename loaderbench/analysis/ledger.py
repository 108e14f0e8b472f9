"""The ledger: predictions beside what was measured, read off stored records, and how good they were.

An entry is made only where both figures are there, above 0 and finite. Nothing is filled in: a batch that a search did
not confirm, an epoch that tells nothing of its forecast and a largest batch that was never tried are no entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from loaderbench.analysis.studies import judge
from loaderbench.analysis.whatif_scored import entry_of_whatif
from loaderbench.cases.case import Step, flags, loader_arguments
from loaderbench.cases.inputs import words_of
from loaderbench.printable import counted, memory_size
from loaderbench.recording.facts import Environment
from loaderbench.recording.forecast import CheckedEpoch, Forecast, ForecastFacts
from loaderbench.recording.ledger import LEDGER_KINDS, Collected, Entry, Ledger, LedgerKind, LedgerScore, Unit
from loaderbench.recording.machines import same_hardware
from loaderbench.recording.model_memory import ModelFit, ModelFitFacts, ModelMemory, ModelMemoryFacts
from loaderbench.recording.model_split import ModelSplit, SplitFacts
from loaderbench.recording.record import LEAST, MOST, Estimate, Range, RunRecord
from loaderbench.recording.studies import StudyRecord

LEAST_FOR_P90 = 10
"""Entries from which on a 90 % value is given."""
PredictingFacts = ForecastFacts | ModelMemoryFacts | ModelFitFacts | SplitFacts
"""Of the studies that predict and measure."""


# -- entries ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """The run or study that entries are from."""

    source_id: str
    at: str
    environment: Environment | None

    def entry(
        self,
        kind: LedgerKind,
        what: str,
        unit: Unit,
        predicted: float | None,
        measured: float | None,
        interval: Range | Estimate | None = None,
        score: float | None = None,
    ) -> list[Entry]:
        """One, or none where a figure is missing, or none that can be measured."""
        if not _is_figure(predicted) or not _is_figure(measured):
            return []
        assert predicted is not None and measured is not None
        low, high = (None, None) if interval is None else (_end(interval.low), _end(interval.high))
        return [
            Entry(
                kind, self.source_id, self.at, what, unit, predicted, low, high, measured, self.environment, score
            )
        ]  # fmt: skip


def _is_figure(value: float | None) -> bool:
    return value is not None and LEAST <= value <= MOST


def _end(value: float | None) -> float | None:
    return value if value is not None and abs(value) <= MOST else None


def entries_of_run(record: RunRecord) -> list[Entry]:
    """The gains of the run's advice that `run --verify` or `watch --apply` measured."""
    source = _Source(record.run_id, record.started_at, record.environment)
    found: list[Entry] = []
    for advice in () if record.verdict is None else record.verdict.advice:
        predicted, measured = advice.predicted_speedup, advice.measured_speedup
        if predicted is None or measured is None:
            continue
        told = flags if record.watched is None else loader_arguments
        change = told(advice.change or {}) or advice.code or advice.cause
        what = f"{record.case.title}: {change}"
        found += source.entry("gain", what, "ratio", predicted.value, measured.value, predicted)
    return found


def entries_of_study(study: StudyRecord) -> list[Entry]:
    """What the study predicted and measured, by its findings; nothing without findings."""
    facts, findings = study.facts, study.findings
    if not isinstance(facts, get_args(PredictingFacts)):
        return []
    source = _Source(study.study_id, study.started_at, facts.environment)
    match facts, findings:
        case ForecastFacts(), Forecast():
            return _of_forecast(findings, source)
        case ModelMemoryFacts(), ModelMemory():
            return _of_memory(facts, findings, source)
        case ModelFitFacts(), ModelFit():
            return _of_fit(facts, findings, source)
        case SplitFacts(), ModelSplit():
            return _of_split(findings, source)
        case _:
            return []


def _of_forecast(found: Forecast, source: _Source) -> list[Entry]:
    """Epochs that say something about the forecast, and the whole check."""
    entries = [entry for epoch in found.checked for entry in _of_epoch(epoch, found, source)]
    if found.checked_training is not None:
        predicted, measured = found.checked_training
        number = sum(epoch.kind == "train" for epoch in found.checked)
        what = f"{found.setting}: {counted(number, 'epoch')} from the start of the process"
        entries += source.entry("training", what, "s", predicted.value, measured, predicted)
    return entries


def _of_epoch(epoch: CheckedEpoch, found: Forecast, source: _Source) -> list[Entry]:
    if epoch.not_scored is not None or epoch.predicted is None:
        return []
    kind: LedgerKind = "epoch" if epoch.kind == "train" else "validation"
    word = "epoch" if epoch.kind == "train" else "validation"
    what = f"{found.setting}: {epoch.state} {word} of {epoch.num_images:,} images"
    predicted = epoch.predicted.s
    entries = source.entry(kind, what, "s", predicted.value, epoch.measured_s, predicted, epoch.score)
    return [replace(entry, emulated=found.emulated) for entry in entries]


def _of_memory(facts: ModelMemoryFacts, found: ModelMemory, source: _Source) -> list[Entry]:
    """The peak of live memory of each batch. Other peaks that are measured mean something else."""
    return [
        entry
        for one in found.batches
        if one.predicted is not None and one.measured is not None
        for entry in source.entry(
            "memory", f"{_of_step(facts.step)}, batch {one.batch_size} on {facts.step.device}", "bytes",
            one.predicted.peak_live_bytes, one.measured.peak_live_bytes,
        )
    ]  # fmt: skip


def _of_fit(facts: ModelFitFacts, found: ModelFit, source: _Source) -> list[Entry]:
    """The largest batch where it was confirmed; one that is the prediction itself, or only the largest so far, is not.

    Where both are the most that is tried, each says "at least": nothing was compared.
    """
    predicted, largest = found.predicted_batch, found.largest_batch
    if not found.confirmed or found.not_measured is not None or predicted == largest == facts.most:
        return []
    more = ", larger batches were not tried" if facts.most in (predicted, largest) else ""
    what = f"{_of_step(facts.step)}, {memory_size(facts.memory_bytes)} on {facts.step.device}{more}"
    return source.entry("fit", what, "images", predicted, largest)


def _of_split(found: ModelSplit, source: _Source) -> list[Entry]:
    """The finish of what was run, be it one device alone."""
    parts = [f"{one.device} ({one.batch_size})" for one in found.members if one.batch_size]
    size = f"{found.input_size} px" if found.inputs is None else words_of(found.inputs)
    what = f"{found.model} infer {found.precision} {size}, batch {found.batch_size} over {', '.join(parts)}"
    measured = None if found.measured_s is None else found.measured_s.value
    return source.entry("split", what, "s", found.predicted_s, measured)


def _of_step(step: Step) -> str:
    optimizer = f" {step.optimizer}" if step.mode == "train" else ""
    size = f" {step.input_size} px" if step.input_size else ""
    size = size if step.inputs is None else f" {words_of(step.inputs)}"
    return f"{step.model} {step.mode}{optimizer} {step.precision}{size}"


# -- the whole -------------------------------------------------------------------------------------------


def collected(records: Iterable[RunRecord], studies: Iterable[StudyRecord], num_unreadable: int = 0) -> Collected:
    """Every entry of these, oldest first. Stored findings count; where a study has none, its facts are judged.

    `num_unreadable`: runs and studies that could not be read; studies whose facts cannot be judged are added.
    """
    runs = list(records)
    found = [entry for record in runs for entry in entries_of_run(record)]
    for study in studies:
        try:
            found += entries_of_study(_with_findings(study)) + entry_of_whatif(study, runs)
        except Exception:  # facts that follow the schema and make no sense together; the others count
            num_unreadable += 1
    return Collected(tuple(sorted(found, key=lambda entry: entry.at)), num_unreadable)


def _with_findings(study: StudyRecord) -> StudyRecord:
    if study.findings is not None or not isinstance(study.facts, get_args(PredictingFacts)):
        return study
    return replace(study, findings=judge(study.facts, {}))


def ledger_of(entries: Iterable[Entry], here: Environment | None) -> Ledger:
    """The ledger of entries in their order. `here`: only those of this hardware, whatever packages they were measured
    with (`same_hardware`), the others counted; None: those of every machine."""
    every = tuple(entries)
    kept = every if here is None else tuple(entry for entry in every if same_hardware(entry.environment, here))
    return Ledger(kept, score(kept), len(every) - len(kept))


def score(entries: Sequence[Entry]) -> dict[LedgerKind, LedgerScore]:
    """How good the predictions of each kind that has entries were, in the order of LEDGER_KINDS."""
    groups = ((kind, [entry for entry in entries if entry.kind == kind]) for kind in LEDGER_KINDS)
    return {kind: _score(kind, group) for kind, group in groups if group}


def _score(kind: LedgerKind, entries: Sequence[Entry]) -> LedgerScore:
    """Medians, and the 90 % value on the line between the two nearest order statistics (NumPy's `linear`: Hyndman and
    Fan, Sample quantiles in statistical packages, 1996, definition 7)."""
    signed = np.array([entry.error_fraction for entry in entries])
    sizes, held = np.abs(signed), [entry.held for entry in entries if entry.held is not None]
    return LedgerScore(
        kind=kind,
        num=len(entries),
        median_error_fraction=float(np.median(sizes)),
        p90_error_fraction=float(np.quantile(sizes, 0.9)) if len(entries) >= LEAST_FOR_P90 else None,
        bias_fraction=float(np.median(signed)),
        num_intervals=len(held),
        num_held=sum(held),
        coverage_fraction=sum(held) / len(held) if held else None,
    )
