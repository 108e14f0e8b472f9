"""Cases measured one after the other: `run` is one of them, `sweep` is many, judged together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.analysis.study import summarize
from loaderbench.cases.case import Case
from loaderbench.recording.facts import SCHEMA
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store
from loaderbench.recording.studies import StudyRecord, Sweep, SweepFacts
from loaderbench.studies.measure import OnMessage, finished_records, measure_case
from loaderbench.studies.verify import verify_record


class SweepStudy:
    """The cases of a study as they come in. Every run is stored at once; the study behind the last one."""

    def __init__(
        self, cases: Sequence[Case], store: Store, *, loaders: Sequence[str] = (), resume: bool = False
    ) -> None:
        """`loaders`: in the order in which their runs are shown. `resume`: cases that the store holds a finished run
        of, made on this machine, are taken from there."""
        self.cases, self.store = list(cases), store
        self._loaders = list(dict.fromkeys([*loaders, *(case.feed.loader for case in cases)]))
        finished = finished_records(store, cases) if resume else {}
        self.left = [case for case in cases if case.key not in finished]
        self.num_taken = len(finished)
        self._records = [finished[case.key] for case in cases if case.key in finished]

    def measure(self, on_message: OnMessage, on_record: Callable[[RunRecord], None]) -> None:
        """Run every case that is left; a failure is kept as one. Raises what measure_case raises."""

        def keep(record: RunRecord) -> None:
            self._records.append(record)
            on_record(record)

        for case in self.left:
            measure_case(case, self.store, on_message, keep)

    def verify(self, say: Callable[[Case, str], None]) -> None:
        """Run the advice of every record. Raises what verify_record raises."""

        def telling(case: Case) -> Callable[[str], None]:
            return lambda line: say(case, line)

        for number, record in enumerate(self._records):
            self._records[number] = verify_record(record, self.store, telling(record.case))

    @property
    def records(self) -> list[RunRecord]:
        """Those so far; they were measured in an order drawn by chance, and come sorted."""

        def order(record: RunRecord) -> tuple[int, int, int, int]:
            subject, feed = record.case.subject, record.case.feed
            return subject.resolution or 0, self._loaders.index(feed.loader), feed.workers, record.case.effort.repeat

        return sorted(self._records, key=order)

    @property
    def facts(self) -> SweepFacts:
        return SweepFacts(len(self.cases))

    def findings(self) -> Sweep:
        """Of the runs so far."""
        return summarize(self.records)

    def store_study(self) -> StudyRecord:
        """Store what the runs say together. Raises CaseFailed where it cannot be written."""
        records = self.records
        folder = self.store.new_study("sweep", list(dict.fromkeys(record.case.feed.loader for record in records)))
        study = StudyRecord(
            schema=SCHEMA,
            rules_version=RULES_VERSION,
            study_id=folder.study_id,
            kind="sweep",
            started_at=min(record.started_at for record in records),
            facts=self.facts,
            findings=summarize(records),
            runs=tuple(record.run_id for record in records),
        )
        folder.write(study)
        return study
