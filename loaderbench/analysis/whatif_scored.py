"""A what-if beside the run that later measured it, for the ledger."""

from __future__ import annotations

from collections.abc import Sequence

from loaderbench.cases.case import Case
from loaderbench.recording.ledger import Entry
from loaderbench.recording.machines import same_hardware
from loaderbench.recording.record import LEAST, MOST, RunRecord
from loaderbench.recording.studies import StudyRecord
from loaderbench.recording.whatif import WhatifFacts


def wanted_by(study: StudyRecord) -> Case | None:
    """The case whose next run tells how good the prediction of a what-if was; None for another study, or where no run
    can tell."""
    return study.facts.wanted if isinstance(study.facts, WhatifFacts) else None


def measures(study: StudyRecord, case: Case, status: str, started_at: str) -> bool:
    """Whether a run began behind a what-if, ended well and is exactly what that predicted, however long it took."""
    wanted = wanted_by(study)
    if wanted is None or status != "ok" or started_at <= study.started_at:
        return False
    return (case.subject, case.feed, case.step) == (wanted.subject, wanted.feed, wanted.step)


def entry_of_whatif(study: StudyRecord, records: Sequence[RunRecord]) -> list[Entry]:
    """The step of a what-if beside that of the first run of it, on the same hardware, that was measured later; nothing
    without one. Later ones are no entries: who measures until it fits would improve the score."""
    facts = study.facts
    if not isinstance(facts, WhatifFacts) or facts.environment is None:
        return []
    known = [
        one
        for one in records
        if measures(study, one.case, one.status, one.started_at)
        and same_hardware(one.environment, facts.environment)
        and one.throughput is not None
    ]
    first = min(known, key=lambda one: one.started_at, default=None)
    if first is None or first.throughput is None or not LEAST <= first.throughput.value <= MOST:
        return []
    assert facts.wanted is not None
    what, predicted = f"{facts.wanted.title}: a step", facts.then_s
    measured_s = facts.samples_per_step / first.throughput.value
    return [
        Entry(
            "whatif", study.study_id, study.started_at, what, "s", predicted.value, predicted.low, predicted.high,
            measured_s, facts.environment,
        )
    ]  # fmt: skip
