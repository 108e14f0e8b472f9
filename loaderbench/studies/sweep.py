"""Cases measured one after the other: `run` is one of them, `sweep` is many, judged together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from loaderbench import plugins
from loaderbench.analysis.study import summarize
from loaderbench.cases.case import Case
from loaderbench.cases.options import RESULTS, Price
from loaderbench.cases.study import read_options
from loaderbench.errors import ConfigError
from loaderbench.lacking import require_run
from loaderbench.recording.kinds import with_facts
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store
from loaderbench.recording.studies import StudyRecord, Sweep, SweepFacts
from loaderbench.reporting.price import with_price
from loaderbench.running.process import Ahead
from loaderbench.studies.kept import record_in
from loaderbench.studies.measure import OnMessage, finished_records, measure_case, shown, unwatched
from loaderbench.studies.refusals import planned
from loaderbench.studies.request import (
    DEFAULT_RESOLUTIONS,
    ONE_OF_EACH,
    Folder,
    Say,
    find_data_sets,
    no_note,
)
from loaderbench.studies.verify import verify_record


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep."""

    records: tuple[RunRecord, ...]
    """Sorted by resolution, loader, workers."""
    findings: Sweep
    study_id: str
    """Id under which it is stored."""


def run(
    dataset: Folder | None = None,
    *,
    results: Folder = RESULTS,
    verify: bool = False,
    tag: str | None = None,
    say: Say = no_note,
    on_message: OnMessage = unwatched,
    **options: Any,
) -> RunRecord:
    """Measure one case and say what limits it: `loaderbench run` for Python.

    Args:
        dataset: folder of images or a data set's name; None: a generated set, made once and kept.
        results: the folder in which the run is stored.
        verify: also run the advice, and record its predicted and measured gains.
        tag: name to find the run by.
        say: called with a line for each default that loaderbench chose.
        on_message: called with progress messages of the case.
        options: those of the command line, with underscores: `res=512, workers=8, cache="warm"` (docs/python.md).

    Returns:
        The stored record. Its `status` and `failure` show if the case failed or was skipped.

    Raises:
        ConfigError: an option is unknown or wrong, or the data set does not exist.
        MissingExtra: the packages that measure are not installed.
        KeyboardInterrupt: the user interrupts the run; the part measured so far is stored.
    """
    require_run("loaderbench.run")
    asked = read_options(options)
    asked.require_single("run", *ONE_OF_EACH)
    asked.require_one_process()
    cases = planned(asked, find_data_sets(dataset, asked), on_note=say)
    if len(cases) > 1:
        raise ConfigError(f"these options give {len(cases)} runs, and run() returns one: use sweep()")
    study = SweepStudy(cases, Store(results), tag=tag)
    with shown(on_message, len(cases)) as calls:
        study.measure(*calls)
    if verify:
        study.verify(lambda case, line: say(line))
    return study.records[0]


def sweep(
    dataset: Folder | Sequence[Folder] | None = None,
    *,
    results: Folder = RESULTS,
    resume: bool = False,
    tag: str | None = None,
    say: Say = no_note,
    on_message: OnMessage = unwatched,
    **options: Any,
) -> SweepResult:
    """Measure all combinations of the options' lists and judge them together: `loaderbench sweep` for Python.

    Arguments and errors are those of `run`; options may be lists: `loader=["serial", "threaded"], workers=[1, 2, 4]`.

    Args:
        dataset: one data set, or several.
        resume: measure only the cases that the results folder lacks.
        tag: name to find the runs by; runs that `resume` reuses keep theirs.
    """
    require_run("loaderbench.sweep")
    asked = read_options({"loader": [*plugins.predictable_loaders()], **options})
    asked.require_one_process()
    subjects = find_data_sets(dataset, asked, generated=DEFAULT_RESOLUTIONS)
    cases = planned(asked, subjects, on_note=say)
    study = SweepStudy(cases, Store(results), loaders=asked.loader or (), resume=resume, tag=tag)
    with shown(on_message, len(cases)) as calls:
        study.measure(*calls)
    stored = study.store_study()
    return SweepResult(tuple(study.records), with_facts(study.findings(), stored.facts), stored.study_id)


class SweepStudy:
    """The cases of a study as they come in. Every run is stored at once; the study after the last one."""

    def __init__(
        self,
        cases: Sequence[Case],
        store: Store,
        *,
        loaders: Sequence[str] = (),
        resume: bool = False,
        tag: str | None = None,
    ) -> None:
        """`loaders`: in the order in which their runs are shown. `resume`: take cases from the store that have a
        finished run made on this machine. `tag`: a name for the runs.

        Raises:
            ConfigError: the tag is none.
        """
        store.check_tag(tag)
        self.cases, self.store, self._tag = list(cases), store, tag
        self._loaders = list(dict.fromkeys([*loaders, *(case.feed.loader for case in cases)]))
        finished = finished_records(store, cases) if resume else {}
        self.left = [case for case in cases if case.key not in finished]
        self.num_taken = len(finished)
        self.failed_turns: list[str] = []
        """Why turns of `verify` failed."""
        self._records = [finished[case.key] for case in cases if case.key in finished]

    def measure(
        self, on_message: OnMessage, on_record: Callable[[RunRecord], None], ahead: Ahead | None = None
    ) -> None:
        """Run every case that is left; a failure is stored like a result. Raises what measure_case raises.

        `ahead`: a process for the first of them. Where there is one case only, what it said until it was interrupted is
        among the records.
        """

        def keep(record: RunRecord) -> None:
            self._records.append(record)
            on_record(record)

        def keep_part(record: RunRecord) -> None:
            if len(self.cases) == 1 and record.throughput is not None:
                self._records.append(record)

        for case in self.left:
            measure_case(case, self.store, on_message, keep, on_interrupted=keep_part, tag=self._tag, ahead=ahead)

    def verify(self, say: Callable[[Case, str], None]) -> None:
        """Run the advice of every record. Raises what verify_record raises."""

        def telling(case: Case) -> Callable[[str], None]:
            return lambda line: say(case, line)

        for number, record in enumerate(self._records):
            on_record, on_failure = partial(self._records.__setitem__, number), self.failed_turns.append
            verify_record(record, self.store, telling(record.case), on_record, on_failure)

    @property
    def records(self) -> list[RunRecord]:
        """The records so far, sorted (they were measured in random order)."""

        def order(record: RunRecord) -> tuple[int, int, int, int]:
            subject, feed = record.case.subject, record.case.feed
            return subject.resolution or 0, self._loaders.index(feed.loader), feed.workers, record.case.effort.repeat

        return sorted(self._records, key=order)

    def at_price(self, price: Price | None) -> list[RunRecord]:
        """The records so far, with what they cost where a price is given; what is stored has none."""
        if price is None:
            return self.records
        stored = {record.run_id: self.store.run(record.run_id) for record in self.records}
        folders = {run_id: None if one is None else one.path for run_id, one in stored.items()}
        return [with_price(record, price, folders[record.run_id]) for record in self.records]

    @property
    def facts(self) -> SweepFacts:
        return SweepFacts(len(self.cases))

    def findings(self) -> Sweep:
        """Findings from the runs so far."""
        return summarize(self.records)

    def store_study(self) -> StudyRecord:
        """Store the study's findings. Raises CaseFailed where they cannot be written."""
        records = self.records
        folder = self.store.new_study("sweep", list(dict.fromkeys(record.case.feed.loader for record in records)))
        study = record_in(folder, self.facts, summarize(records), [record.run_id for record in records])
        study = replace(study, started_at=min(record.started_at for record in records))
        folder.write(study)
        return study
