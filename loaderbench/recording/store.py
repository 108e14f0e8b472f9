"""The result store: one folder a run, written so that a crash at any moment leaves it readable.

::

    ROOT/<run_id>/case.json      what was asked for
                  running.json   who measures it; gone once run.json is there
                  worker.log     what the measuring process printed
                  facts.json     the run: all that was measured …
                  arrays.npz     … and its tables
                  run.json       the record (run.schema.json), written last
    ROOT/<study_id>/study.json   facts and findings of several runs, stored beside it
                    arrays.npz   tables of the facts, where there are any
                    runs/        a store of the runs that only this study needs

Several processes may write into one store: every run has a folder of its own, which appears under its
final name only when it holds case.json and running.json.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from loaderbench import plain
from loaderbench.cases.case import Case
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.plain import JsonObject
from loaderbench.recording import schema1
from loaderbench.recording.facts import SCHEMA, Run
from loaderbench.recording.files import (
    FACTS_FILE,
    json_bytes,
    load_arrays,
    load_facts,
    not_finite_caveat,
    read_json,
    reading_facts,
    save_facts,
    write_arrays,
    write_atomic,
)
from loaderbench.recording.record import RunRecord, finite
from loaderbench.recording.studies import KINDS, StudyKind, StudyRecord

CASE_FILE = "case.json"
MARKER_FILE = "running.json"
LOG_FILE = "worker.log"
RECORD_FILE = "run.json"
STUDY_FILE = "study.json"
RUNS_FOLDER = "runs"
SCHEMA_FILE = Path(__file__).with_name("run.schema.json")
"""The record's JSON Schema (draft 2020-12), made by recording/schema.py."""

STUDY_SLUGS: Mapping[str, str] = {"sweep": "study"}
"""Kind of study → the word in the study's name, where it differs."""
PROBE_BYTES = 4 << 20
"""Bytes that `check_writable` writes and removes: more than a usual run, about 100 bytes a step and arm."""


@dataclass(frozen=True)
class StoredRun:
    """One run as the listing sees it."""

    run_id: str
    path: Path
    status: str
    """ok | failed | skipped | interrupted as recorded; running | crashed | unreadable where there is no record."""
    problem: str | None
    """Why there is no record, in one line; None where there is one."""
    record: RunRecord | None
    """run.json; None where it is missing, damaged or of a newer schema."""
    title: str
    """`Case.title`, or the run_id where the case cannot be read."""


@dataclass(frozen=True)
class StoredStudy:
    """One study as the listing sees it."""

    study_id: str
    path: Path
    study: StudyRecord | None
    problem: str | None
    """Why it cannot be read; None where it can."""


def _write_reason(error: OSError) -> str:
    return f"{error.strerror or error}; free some space, fix its permissions, or name another folder with --results"


def _process_start_ticks(pid: int) -> int | None:
    """When `pid` started, in clock ticks since boot; None where it is gone or a zombie.

    Field 22 of /proc/PID/stat (proc_pid_stat(5)). The name in field 2 may hold spaces and brackets:
    `1234 (a) b) S 1 …`, so the fields are counted from the last bracket.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _marker(started_at: str) -> JsonObject:
    """Identifies this process, so that no later process with the same pid is mistaken for it."""
    return {
        "schema": SCHEMA,
        "pid": os.getpid(),
        "process_start_ticks": _process_start_ticks(os.getpid()),
        "boot_id": _boot_id(),
        "host": socket.gethostname(),
        "started_at": started_at,
    }


def _unfinished(marker: Mapping[str, Any] | None) -> tuple[str, str]:
    """(status, problem) of a run without a record."""
    if marker is None:
        return "crashed", "it ended before its result was written"
    pid, host = marker.get("pid"), marker.get("host")
    if host != socket.gethostname():
        return "running", f"measured by process {pid} on {host}; from here it cannot be seen whether it is still alive"
    started = _process_start_ticks(pid) if isinstance(pid, int) else None
    if marker.get("boot_id") == _boot_id() and started is not None and started == marker.get("process_start_ticks"):
        return "running", f"being measured by process {pid}"
    return "crashed", f"process {pid} ended before the result was written; see {LOG_FILE} in its folder"


def _newer(name: str, schema: Any) -> str:
    return f"{name} was written with schema {schema}, this loaderbench reads up to {SCHEMA}: upgrade loaderbench"


def read_record(value: Any) -> RunRecord:
    """The record that a `run.json` holds, whatever its schema.

    Raises:
        ValueError, KeyError, TypeError: it is damaged.
    """
    if value["schema"] == schema1.SCHEMA:
        return schema1.record_from(value)
    return plain.from_json(RunRecord, value)


def record_json(record: RunRecord) -> tuple[JsonObject, RunRecord]:
    """(the record's JSON, the record as it is read again): figures that are not finite become null with a caveat."""
    record = finite(record)
    return cast(JsonObject, plain.to_json(record)), record


def load_run(folder: str | os.PathLike[str]) -> Run:
    """The complete run in a folder, whatever its schema.

    Raises:
        ConfigError: it has no facts, they are damaged, or a newer version wrote them.
    """
    path = Path(folder)
    with reading_facts(path):
        if (path / FACTS_FILE).exists():
            schema = json.loads((path / FACTS_FILE).read_bytes())["schema"]
            if schema > SCHEMA:
                raise ConfigError(_newer(path.name, schema))
            return load_facts(path, Run)
        if not (path / schema1.RECORDING_FILE).exists():  # runs of schema 1 that failed recorded nothing
            if not (path / RECORD_FILE).exists():
                raise ConfigError(f"{path} holds no raw facts to analyse: it ended before they were written")
            if json.loads((path / RECORD_FILE).read_bytes())["schema"] != schema1.SCHEMA:
                raise ConfigError(f"{path} holds no raw facts to analyse: {FACTS_FILE} is missing")
        return schema1.load_run(path)


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run that is being measured."""

    run_id: str
    path: Path
    started_at: str
    """UTC, ISO 8601."""

    @property
    def log_path(self) -> Path:
        """Where the measuring process's output goes."""
        return self.path / LOG_FILE

    def write_run(self, run: Run) -> Run:
        """Store the complete run.

        Returns the run as stored, which is what must be judged: with a caveat `not_finite` where a NaN became null.
        Raises CaseFailed where it cannot be written.
        """
        try:
            not_finite = save_facts(self.path, run, SCHEMA)
            if not_finite:
                said = [caveat for caveat in not_finite_caveat(not_finite) if not any(map(caveat.same_as, run.caveats))]
                run = replace(run, caveats=[*run.caveats, *said])
                save_facts(self.path, run, SCHEMA)
                run = load_facts(self.path, Run)
            return run
        except OSError as error:
            raise CaseFailed(f"cannot store the raw facts in {self.path}: {_write_reason(error)}") from error

    def write_record(self, record: RunRecord) -> RunRecord:
        """Store the record, after everything else: from then on the run counts as finished.

        Returns it as stored: with a caveat `not_finite` where a NaN became null.
        Raises CaseFailed where it cannot be written.
        """
        value, stored = record_json(record)
        try:
            write_atomic(self.path / RECORD_FILE, json_bytes(value))
            (self.path / MARKER_FILE).unlink(missing_ok=True)
        except OSError as error:
            raise CaseFailed(f"cannot store the result in {self.path}: {_write_reason(error)}") from error
        return stored


@dataclass(frozen=True)
class StudyFolder:
    """The folder of a study."""

    study_id: str
    path: Path
    started_at: str

    @property
    def runs(self) -> Store:
        """The runs that only this study needs."""
        return Store(self.path / RUNS_FOLDER)

    def write(self, study: StudyRecord) -> None:
        """Store the study in place of its earlier version. Raises CaseFailed where it cannot be written."""
        arrays: dict[str, Any] = {}
        value = plain.to_json(study, None, arrays)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_arrays(self.path, arrays)
            write_atomic(self.path / STUDY_FILE, json_bytes(value))
        except OSError as error:
            raise CaseFailed(f"cannot store the result in {self.path}: {_write_reason(error)}") from error


def read_study(folder: Path) -> StudyRecord:
    """The study in a folder.

    Raises:
        ConfigError: there is none, it is damaged, or a newer version wrote it.
    """
    with reading_facts(folder):
        if (folder / schema1.COMPARISON_FILE).exists():
            return schema1.comparison_from(json.loads((folder / schema1.COMPARISON_FILE).read_bytes()))
        value = json.loads((folder / STUDY_FILE).read_bytes())
        if value["schema"] == schema1.SCHEMA:
            return schema1.study_from(value)
        if value["schema"] > SCHEMA:
            raise ConfigError(_newer(folder.name, value["schema"]))
        types, arrays = KINDS[value["kind"]], load_arrays(folder)
        facts = plain.from_json(types.facts, value["facts"], arrays)
        return StudyRecord(
            schema=value["schema"],
            rules_version=value["rules_version"],
            study_id=value["study_id"],
            kind=value["kind"],
            started_at=value["started_at"],
            facts=facts,
            findings=None if value["findings"] is None else plain.from_json(types.findings, value["findings"]),
            runs=tuple(value["runs"]),
            own_runs=tuple(value["own_runs"]),
        )


def _slug(parts: Sequence[str]) -> str:
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")[:40].rstrip("-")


def _time_stamp(now: datetime) -> str:
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03d}"


def _title(folder: Path) -> str:
    """`Case.title` of a run without a record, its name where the case cannot be read. Raises OSError, ValueError."""
    value = read_json(folder / CASE_FILE)
    try:
        return schema1.case_from(cast(JsonObject, value)).title
    except (ValueError, TypeError):
        return folder.name


def _read_run(folder: Path) -> StoredRun:
    """Read one run's folder, whatever its state."""
    run_id = folder.name

    def without_record(status: str, problem: str, title: str = run_id) -> StoredRun:
        return StoredRun(run_id, folder, status, problem, None, title)

    try:
        value = read_json(folder / RECORD_FILE)
        if value is None:
            marker = read_json(folder / MARKER_FILE)
            # The run may have finished between the two checks.
            value = read_json(folder / RECORD_FILE)
            if value is None:
                return without_record(*_unfinished(cast(JsonObject | None, marker)), _title(folder))
        if value["schema"] > SCHEMA:  # type: ignore[call-overload, index, operator]
            return without_record("unreadable", _newer(run_id, value["schema"]), _title(folder))  # type: ignore[call-overload, index]
        record = read_record(value)
        return StoredRun(run_id, folder, record.status, None, record, record.case.title)
    except OSError as error:
        return without_record("unreadable", f"cannot read {error.filename}: {error.strerror}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return without_record("unreadable", f"damaged: {type(error).__name__}: {error}")


class Store:
    """All runs below one folder."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()

    def check_writable(self) -> None:
        """Create the folder and check, before anything is measured, that a result fits into it.

        Raises:
            ConfigError: it is read-only, full, or no folder.
        """
        probe = self.root / f".probe-{secrets.token_hex(4)}"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            try:
                write_atomic(probe, os.urandom(PROBE_BYTES))
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot write results to {self.root}: {_write_reason(error)}") from error

    def open_run(self, case: Case) -> RunFolder:
        """Make the folder of a new run, marked as being measured by this process.

        Raises:
            ConfigError: the store cannot be written.
        """
        now = datetime.now(UTC)
        what = str(case.subject.resolution or case.subject.dataset_name)
        slug = _slug([what, case.feed.loader, f"w{case.feed.workers}"])
        run_id = f"{_time_stamp(now)}-{slug}-{case.key[:8]}-{secrets.token_hex(3)}"
        started_at = now.isoformat(timespec="milliseconds")
        staging = self.root / f".new-{run_id}"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            staging.mkdir()
            write_atomic(staging / CASE_FILE, json_bytes(case.to_json()))
            write_atomic(staging / MARKER_FILE, json_bytes(_marker(started_at)))
            staging.rename(self.root / run_id)  # fails where a run of this name exists: it is never empty
        except BaseException as error:
            shutil.rmtree(staging, ignore_errors=True)
            if isinstance(error, OSError):
                raise ConfigError(f"cannot write results to {self.root}: {_write_reason(error)}") from error
            raise
        return RunFolder(run_id, self.root / run_id, started_at)

    def new_study(self, kind: StudyKind, names: Sequence[str]) -> StudyFolder:
        """A folder with a unique name for a study; it is made when the study is first written."""
        now = datetime.now(UTC)
        study_id = f"{_time_stamp(now)}-{_slug([STUDY_SLUGS.get(kind, kind), *names])}-{secrets.token_hex(3)}"
        return StudyFolder(study_id, self.root / study_id, now.isoformat(timespec="milliseconds"))

    def studies(self) -> list[StoredStudy]:
        """Every study and comparison, oldest first; damaged and newer ones with their problem."""
        paths = [*self.root.glob(f"[!.]*/{STUDY_FILE}"), *self.root.glob(f"[!.]*/{schema1.COMPARISON_FILE}")]
        stored = []
        for path in sorted(paths):
            folder = path.parent
            try:
                stored.append(StoredStudy(folder.name, folder, read_study(folder), None))
            except ConfigError as error:
                stored.append(StoredStudy(folder.name, folder, None, str(error)))
        return stored

    def find_study(self, text: str) -> StoredStudy | None:
        """The study whose id begins with `text`, or whose folder is `text`; None where none or several match."""
        matching = [study for study in self.studies() if study.study_id.startswith(text) or str(study.path) == text]
        return matching[0] if len(matching) == 1 else None

    def open_study(self, study: StudyRecord) -> StudyFolder:
        """The folder of a stored study."""
        return StudyFolder(study.study_id, self.root / study.study_id, study.started_at)

    def load_run(self, text: str) -> Run:
        """The complete run that `text` names (`find`).

        Raises:
            ConfigError: none or several match, or its facts are missing, damaged or of a newer version.
        """
        return load_run(self.find(text).path)

    def runs(self) -> list[StoredRun]:
        """Every run, oldest first. Broken, unfinished and newer ones are listed with their problem.

        Raises:
            ConfigError: the store's folder cannot be read. A missing one is an empty store.
        """
        try:
            folders = sorted(self.root.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"cannot read the results folder {self.root}: {error.strerror}") from error
        shown = [folder for folder in folders if not folder.name.startswith(".")]
        return [_read_run(folder) for folder in shown if (folder / CASE_FILE).exists()]

    def find(self, text: str) -> StoredRun:
        """The run that `text` names: `latest` (the newest with a record), a unique start of a run_id,
        or the path of a run's folder.

        Raises:
            ConfigError: none or several match.
        """
        if os.sep in text and (Path(text) / CASE_FILE).exists():
            return _read_run(Path(text).absolute())
        runs = self.runs()
        if text == "latest":
            with_record = [run for run in runs if run.record is not None]
            if not with_record:
                raise ConfigError(f"no finished run in {self.root}; measure one with `loaderbench run`")
            return with_record[-1]
        matching = [run for run in runs if run.run_id.startswith(text)]
        if not matching:
            raise ConfigError(f"no run in {self.root} begins with '{text}'; `loaderbench list` shows them")
        if len(matching) > 1:
            shown = ", ".join(run.run_id for run in matching[:5])
            more = f" and {len(matching) - 5} more" if len(matching) > 5 else ""
            raise ConfigError(f"'{text}' begins {len(matching)} runs, give more of its name: {shown}{more}")
        return matching[0]
