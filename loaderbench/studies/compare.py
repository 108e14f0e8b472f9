"""Two data sets that hold the same files on two storages, measured in turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from loaderbench.analysis.comparison import compare
from loaderbench.cases.options import COMPARE_ROUNDS, RESULTS
from loaderbench.cases.study import read_options
from loaderbench.lacking import require_run
from loaderbench.recording.kinds import with_facts
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store
from loaderbench.recording.studies import CompareFacts, Comparison, SideName, StudyRecord
from loaderbench.studies.compare_plan import ONE_OF_EACH, ComparisonPlan, plan_data_sets
from loaderbench.studies.kept import record_in
from loaderbench.studies.measure import OnMessage, measure_case, shown, unwatched
from loaderbench.studies.request import Folder, Say, no_note, no_progress


def compare_data_sets(
    targets: Mapping[str, Folder],
    *,
    results: Folder = RESULTS,
    rounds: int = COMPARE_ROUNDS,
    say: Say = no_note,
    on_message: OnMessage = unwatched,
    **options: Any,
) -> Comparison:
    """Measure in turn two data sets that hold the same files: `loaderbench compare` for Python.

    Args:
        targets: two labels with their folder or name: `{"nvme": "/data/set", "nfs": "/mnt/nfs/set"}`.
        rounds: number of rounds; each measures both.
        results, say, on_message, options: as in `loaderbench.run`.

    Raises:
        ConfigError: an option is unknown or wrong, a data set does not exist, or the two hold different files.
        KeyboardInterrupt: the user interrupts it; the runs measured so far are stored.
    """
    require_run("loaderbench.compare")
    asked = read_options(options, of="compare")
    asked.require_single("compare", *ONE_OF_EACH)
    named = [(label, os.fspath(folder)) for label, folder in targets.items()]
    planned = plan_data_sets(named, asked, rounds, on_note=say, progress=no_progress)
    for note in planned.notes:
        say(note.text())
    study = ComparisonStudy(planned, Store(results))
    with shown(on_message, len(planned.cases)) as calls:
        study.measure(*calls)
    return with_facts(study.findings(), study.facts)


class ComparisonStudy:
    """The runs of a comparison as they come in. After each of them the study so far is stored."""

    def __init__(self, plan: ComparisonPlan, store: Store) -> None:
        self.labels, self.cases, self.store = plan.labels, plan.cases, store
        labels: dict[SideName, str] = {"a": plan.labels[0], "b": plan.labels[1]}
        self.facts = CompareFacts(labels, len(plan.cases), plan.same_files, plan.notes)
        self.records: list[RunRecord] = []
        self._folder = store.new_study("compare", plan.labels)

    @property
    def study_id(self) -> str:
        return self._folder.study_id

    def measure(self, on_message: OnMessage, on_record: Callable[[RunRecord], None]) -> None:
        """Run every case; a failure is stored like a result. Raises what measure_case raises."""

        def keep(record: RunRecord) -> None:
            self.records.append(record)
            on_record(record)
            self._folder.write(self.study())

        for case in self.cases:
            measure_case(case, self.store, on_message, keep)

    def findings(self) -> Comparison:
        """Findings from the runs so far."""
        sides = (
            [record for record in self.records if record.case.subject.dataset_name == label] for label in self.labels
        )
        return compare(*sides)

    def study(self) -> StudyRecord:
        """The study as it is stored, with the leading runs beside it."""
        findings = replace(self.findings(), a=None, b=None)
        return record_in(self._folder, self.facts, findings, [record.run_id for record in self.records])
