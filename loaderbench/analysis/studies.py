"""The findings of a stored study, whatever its kind: a pure function of its facts and its runs' records."""

from __future__ import annotations

from collections.abc import Mapping

from loaderbench.recording.kinds import KINDS, kind_of, part
from loaderbench.recording.record import RunRecord
from loaderbench.recording.studies import Findings, StudyFacts


def judge(facts: StudyFacts, records: Mapping[str, RunRecord]) -> Findings:
    """What the study says. `records`: run id → record, of its runs in their order."""
    kind = KINDS[kind_of(facts)]
    judges = part(kind.judge_at)
    return judges(facts, records) if kind.has_runs else judges(facts)


def senseless(error: Exception) -> str:
    """What to say of facts that follow the schema and cannot be judged."""
    return f"its facts contradict each other ({type(error).__name__}: {error})"[:300] + "; measure it again"
