"""Stored runs and studies judged by today's rules, and compared with what was stored."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from loaderbench import plain
from loaderbench.analysis.again import Again, differences, only_rounding
from loaderbench.analysis.studies import judge, senseless
from loaderbench.cases.options import RESULTS, Price, read
from loaderbench.errors import ConfigError
from loaderbench.recording.checks import LATEST
from loaderbench.recording.facts import Run
from loaderbench.recording.record import RunRecord
from loaderbench.recording.selection import find_with_folder
from loaderbench.recording.store import RUNS_FOLDER, RunFolder, Store, StoredRun, load_stored
from loaderbench.recording.store import load_run as read_run
from loaderbench.recording.studies import Comparison, Findings, StudyRecord
from loaderbench.reporting import format as fmt
from loaderbench.reporting.price import with_price
from loaderbench.reporting.result import Result
from loaderbench.reporting.shown import shown_as
from loaderbench.reporting.studies import result_of
from loaderbench.reporting.terminal import run_result
from loaderbench.studies.measure import judged


def run_again(stored: StoredRun) -> Again:
    """Judge a stored run."""
    version = None if stored.record is None else stored.record.rules_version
    try:
        record = judged(load_stored(stored))
    except ConfigError as error:
        return Again(stored.run_id, version, problem=str(error))
    except Exception as error:  # facts that follow the schema and make no sense together; the other runs go on
        return Again(stored.run_id, version, problem=senseless(error))
    if stored.record is None:
        return Again(stored.run_id, None, problem=stored.problem, record=record)
    found = tuple(differences(plain.to_json(stored.record), plain.to_json(record)))
    return Again(stored.run_id, version, found, only_rounding(found), record=record, folder=str(stored.path))


def study_again(study: StudyRecord, store: Store) -> Again:
    """Judge a stored study from its runs' facts."""
    try:
        records = {run_id: judged(read_run(path, run_id)) for run_id, path in _paths(study, store).items()}
        findings = findings_of(study, records)
    except ConfigError as error:
        return Again(study.study_id, study.rules_version, problem=str(error))
    except Exception as error:
        return Again(study.study_id, study.rules_version, problem=senseless(error))
    if study.findings is None:  # an older version stored fewer figures
        return Again(study.study_id, study.rules_version)
    found = tuple(differences(plain.to_json(study.findings), plain.to_json(as_stored(findings))))
    return Again(study.study_id, study.rules_version, found, only_rounding(found))


def save(again: Again) -> None:
    """Replace the stored record by that of today's rules. Raises CaseFailed where it cannot be written."""
    assert again.record is not None and again.folder is not None, "a study has no record to save"
    RunFolder(again.record.run_id, Path(again.folder), again.record.started_at).write_record(again.record)


def load_run(run: str | os.PathLike[str], results: str | os.PathLike[str] = RESULTS) -> Run:
    """Load a complete stored run: case, recording, samples, environment.

    Args:
        run: its folder; or its id, a unique prefix of it, or `latest`, in `results`.

    Raises:
        ConfigError: there is no such run, or its facts are missing or damaged.
    """
    return read_run(run) if run != LATEST and Path(run).is_dir() else Store(results).load_run(str(run))


def analyze(run: Run | str | os.PathLike[str], results: str | os.PathLike[str] = RESULTS) -> RunRecord:
    """Judge a stored run by today's rules: `loaderbench analyze` for Python. This neither measures nor stores.

    `run`: a run from `load_run`, or an argument for it. Raises ConfigError as `load_run` does.
    """
    return judged(run if isinstance(run, Run) else load_run(run, results))


def show(
    run: RunRecord | str, results: str | os.PathLike[str] = RESULTS, *, price: Price | str | float | None = None
) -> Result:
    """What a stored run or study gave, as a result: a notebook shows it, `print` writes it as a terminal does.

    `run`: a record, or the id of a run or study in `results`, a unique prefix or tag of it, or `latest`. `price`: what
    the machine costs an hour, such as `2.50/h`, to say what waiting costs; of a run or a sweep.

    Raises:
        ConfigError: there is none, or it has no result or one that makes no sense; or the price is none.
    """
    from loaderbench.reporting.forms import Display  # late: only here is all of a report needed

    return Display(**vars(_result(run, results, read("price", Price | None, price))))


def _result(run: RunRecord | str, results: str | os.PathLike[str], price: Price | None) -> Result:
    store = Store(results)
    if isinstance(run, RunRecord):
        stored = None if price is None else store.run(run.run_id)
        found: RunRecord | StudyRecord = with_price(run, price, None if stored is None else stored.path)
    else:
        found = at_price(*find_with_folder(store, run), price)
    if isinstance(found, RunRecord):
        return run_result(fmt.cleaned(found))
    findings, runs = judged_study(found, store, price)
    with _sensible(found):
        return result_of(found.facts, findings, runs)


def at_price(found: RunRecord | StudyRecord, folder: Path, price: Price | None) -> RunRecord | StudyRecord:
    """What was found in a store; a run with what it costs, where a price is given.

    Raises:
        ConfigError: it is a study whose runs have no price.
    """
    if isinstance(found, RunRecord):
        return with_price(found, price, folder)
    if price is not None and not shown_as(found.kind).is_priced:
        raise ConfigError(f"--price is for runs and sweeps, and {found.study_id} is neither: leave it out")
    return found


def judged_study(study: StudyRecord, store: Store, price: Price | None = None) -> tuple[Findings, list[RunRecord]]:
    """(the study's findings by today's rules, the stored records of its runs that still exist, with what they cost
    where a price is given)

    Raises:
        ConfigError: its facts and records make no sense together.
    """
    records = records_of(study, store, price)
    with _sensible(study):
        return findings_of(study, records), list(records.values())


@contextmanager
def _sensible(study: StudyRecord) -> Iterator[None]:
    """Raises ConfigError for what a record that was edited by hand can raise."""
    try:
        yield
    except Exception as error:
        raise ConfigError(f"{study.study_id} cannot be shown: {senseless(error)}") from error


def records_of(study: StudyRecord, store: Store, price: Price | None = None) -> dict[str, RunRecord]:
    """Run id → stored record, for those of the study's runs that still exist. `price`: as in judged_study."""
    own = store.open_study(study).runs
    named = [(run, store.run(run) or own.run(run)) for run in (*study.runs, *study.own_runs)]
    return {
        run: with_price(stored.record, price, stored.path)
        for run, stored in named
        if stored is not None and stored.record is not None
    }


def findings_of(study: StudyRecord, records: Mapping[str, RunRecord]) -> Findings:
    """The study's findings from these records."""
    return judge(study.facts, records)


def as_stored(findings: Findings) -> Findings:
    """A comparison is stored without its leading runs, which are stored beside it."""
    return replace(findings, a=None, b=None) if isinstance(findings, Comparison) else findings


def _paths(study: StudyRecord, store: Store) -> dict[str, str]:
    own = store.root / study.study_id / RUNS_FOLDER
    paths = {run_id: str(store.root / run_id) for run_id in study.runs}
    return {**paths, **{run_id: str(own / run_id) for run_id in study.own_runs}}
