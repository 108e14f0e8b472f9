"""The findings of a stored study, whatever its kind: a pure function of its facts and its runs' records."""

from __future__ import annotations

from collections.abc import Mapping

from loaderbench.analysis.capacity import capacity_of
from loaderbench.analysis.comparison import compare
from loaderbench.analysis.forecast import forecast_of
from loaderbench.analysis.model_io import io_of
from loaderbench.analysis.model_layers import layers_of
from loaderbench.analysis.model_memory import fit_of, memory_of
from loaderbench.analysis.model_split import split_of
from loaderbench.analysis.offload import offload_of
from loaderbench.analysis.precision import compare_precisions
from loaderbench.analysis.ranks import ranks_of
from loaderbench.analysis.selftest import score
from loaderbench.analysis.sizing import sized
from loaderbench.analysis.study import summarize
from loaderbench.analysis.tuning import tuned
from loaderbench.recording.capacity import CapacityFacts
from loaderbench.recording.forecast import ForecastFacts
from loaderbench.recording.model_io import IoFacts
from loaderbench.recording.model_layers import LayersFacts
from loaderbench.recording.model_memory import ModelFitFacts, ModelMemoryFacts
from loaderbench.recording.model_size import SizeFacts
from loaderbench.recording.model_split import SplitFacts
from loaderbench.recording.offload_study import OffloadFacts
from loaderbench.recording.ranks import RanksFacts
from loaderbench.recording.record import RunRecord
from loaderbench.recording.studies import (
    CompareFacts,
    Findings,
    PrecisionFacts,
    SelfTestFacts,
    StudyFacts,
    TuneFacts,
)


def judge(facts: StudyFacts, records: Mapping[str, RunRecord]) -> Findings:
    """What the study says. `records`: run id → record, of its runs in their order."""
    match facts:
        case CompareFacts(labels=labels):
            sides = (
                [record for record in records.values() if record.case.subject.dataset_name == labels[side]]
                for side in ("a", "b")
            )
            return compare(*sides)
        case TuneFacts():
            return tuned(facts, records)
        case SelfTestFacts():
            return score(facts, records)
        case PrecisionFacts():
            return compare_precisions(facts)
        case SizeFacts():
            return sized(facts)
        case LayersFacts():
            return layers_of(facts)
        case ModelMemoryFacts():
            return memory_of(facts)
        case ModelFitFacts():
            return fit_of(facts)
        case OffloadFacts():
            return offload_of(facts)
        case SplitFacts():
            return split_of(facts)
        case IoFacts():
            return io_of(facts)
        case ForecastFacts():
            return forecast_of(facts)
        case CapacityFacts():
            return capacity_of(facts)
        case RanksFacts():
            return ranks_of(facts, records)
        case _:
            return summarize([*records.values()])


def senseless(error: Exception) -> str:
    """What to say of facts that follow the schema and cannot be judged."""
    return f"its facts contradict each other: {type(error).__name__}: {error}"[:300]
