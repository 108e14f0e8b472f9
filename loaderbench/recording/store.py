"""The result store: one folder a run, written so that a crash at any moment leaves it readable.

::

    ROOT/<run_id>/case.json      what was asked for
                  running.json   who measures it; gone once run.json is there
                  worker.log     what the measuring process printed
                  facts.json     the run: all that was measured …
                  arrays.npz     … and its tables
                  run.json       the record (docs/run.schema.json), written last
    ROOT/<study_id>/study.json   facts and findings of several runs, stored beside it
                    arrays.npz   tables of the facts, where there are any
                    runs/        a store of the runs that only this study needs

In a store the folder's name is the id, and the files in it hold the same one. Where they differ, because somebody
renamed or copied the folder, it is unreadable: so no two have the same id, and none counts twice. A run's folder
outside a store, named by its path, may be called anything.

Several processes may write into one store: every run has a folder of its own, which appears under its
final name only when it holds case.json and running.json.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, cast

from loaderbench import plain
from loaderbench.cases.case import Case
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.plain import JsonObject
from loaderbench.recording.checks import LATEST, RUN_NAME, check_tag, check_writable, write_reason
from loaderbench.recording.facts import SCHEMA, Run
from loaderbench.recording.files import (
    ARRAYS_FILE,
    DIGEST,
    FACTS_FILE,
    json_bytes,
    load_facts,
    not_finite_caveat,
    open_lock,
    parsed,
    read_bytes,
    read_json,
    reading_facts,
    save_facts,
    what_is_wrong,
    with_arrays,
    write_arrays,
    write_atomic,
)
from loaderbench.recording.kinds import KINDS
from loaderbench.recording.lines import RunLine, line_of, read_line
from loaderbench.recording.record import RunRecord, check_figures, finite
from loaderbench.recording.spill import NOTE, kept, leave_note, noted, spill
from loaderbench.recording.studies import SIDE_NAMES, CompareFacts, Findings, StudyKind, StudyRecord

CASE_FILE = "case.json"
MARKER_FILE = "running.json"
LOG_FILE = "worker.log"
RECORD_FILE = "run.json"
STUDY_FILE = "study.json"
RUNS_FOLDER = "runs"

STUDY_SLUGS: Mapping[str, str] = {"sweep": "study"}
"""Kind of study → the word in the study's name, where it differs."""


L = TypeVar("L", bound=RunLine)
R = TypeVar("R", bound=RunRecord | RunLine)


@dataclass(frozen=True)
class Listed(Generic[R]):
    """One run as the listing sees it."""

    run_id: str
    path: Path
    status: str
    """ok | failed | skipped | interrupted as recorded; running | crashed | unreadable where there is no record."""
    problem: str | None
    """Why there is no record, or what else is wrong with the run, in one line; None where it is whole."""
    record: R | None
    """run.json; None where it is missing, damaged, of a newer schema or of another run."""
    title: str
    """`Case.title`, or the run_id where the case cannot be read."""


StoredRun = Listed[RunRecord]
ListedRun = Listed[RunLine]
"""With the part of the record that a line of the list shows."""


@dataclass(frozen=True)
class StoredStudy:
    """One study as the listing sees it."""

    study_id: str
    path: Path
    study: StudyRecord | None
    problem: str | None
    """Why it cannot be read, or what else is wrong with it; None where it is whole."""


@dataclass(frozen=True)
class Contents(Generic[R]):
    """All that is in a store, oldest first."""

    runs: list[Listed[R]]
    """Broken, unfinished and newer ones with their problem."""
    studies: list[StoredStudy]
    """Damaged and newer ones with their problem."""


class NotStored(CaseFailed):
    """The store took no more."""


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
        return "crashed", "the run ended before its result was written"
    if "spilled" in marker:
        return "crashed", f"its result could not be written here: {marker['spilled']}"
    pid, host = marker.get("pid"), marker.get("host")
    if host != socket.gethostname():
        return "running", f"measured by process {pid} on {host}; this machine cannot see whether it still runs"
    started = _process_start_ticks(pid) if isinstance(pid, int) else None
    if marker.get("boot_id") == _boot_id() and started is not None and started == marker.get("process_start_ticks"):
        return "running", f"being measured by process {pid}"
    return "crashed", f"process {pid} ended before the result was written; see {LOG_FILE} in its folder"


def _check_schema(name: str, schema: Any) -> None:
    """Of what is stored in the folder `name`. Raises ConfigError where another version wrote it."""
    if schema > SCHEMA:
        raise ConfigError(f"{name} has schema {schema}, and this loaderbench reads up to {SCHEMA}: upgrade loaderbench")
    if schema == 1:
        raise ConfigError(
            f"{name} has schema 1: convert it once, in loaderbench's sources, with "
            "`python -m tests.convert_schema1 RESULTS NEW_FOLDER`"
        )


def _older(name: str, error: plain.MissingField) -> str:
    return f"{name} was made by an older version of loaderbench: {error}; measure it again"


def _of_another(name: str, file: str, other: str) -> str:
    return f"{name}/{file} belongs to {other[:100]}: rename the folder to that, or remove it if it is a copy"


def _unknown_kind(name: str, kind: Any) -> str:
    return (
        f"{name} is a study of the kind {str(kind)[:40]!r}, which this loaderbench does not know: upgrade loaderbench"
    )


def read_record(value: Any) -> RunRecord:
    """The record that a `run.json` holds.

    Raises:
        ValueError, KeyError, TypeError: it is damaged.
    """
    if value["schema"] != SCHEMA:
        raise ValueError(f"schema {value['schema']!r} does not exist"[:80])
    record = plain.from_json(RunRecord, value)
    check_figures(record.case, record.throughput, record.step_time_s, value)
    return record


def record_json(record: RunRecord) -> tuple[JsonObject, RunRecord]:
    """(the record's JSON, the record as it is read again): figures that are not finite become null with a caveat."""
    record = finite(record)
    return cast(JsonObject, plain.to_json(record)), record


def load_run(folder: str | os.PathLike[str], run_id: str | None = None) -> Run:
    """The complete run in a folder. `run_id`: the one that it must be; None for any.

    Raises:
        ConfigError: it has no facts, they are damaged or of another run, or another version wrote them.
    """
    path = Path(folder)
    with reading_facts(path):
        if (path / FACTS_FILE).exists():
            _check_schema(path.name, parsed(read_bytes(path / FACTS_FILE), FACTS_FILE)["schema"])
            run = load_facts(path, Run)
            if run_id not in (None, run.run_id):
                raise ConfigError(_of_another(path.name, FACTS_FILE, run.run_id))
            return run
        if not (path / RECORD_FILE).exists():
            raise ConfigError(f"{path.name} has no raw facts to analyse: the run ended before they were written")
        _check_schema(path.name, parsed(read_bytes(path / RECORD_FILE), RECORD_FILE)["schema"])
        raise ConfigError(f"{path.name} has no raw facts to analyse: {FACTS_FILE} is missing")


def load_stored(stored: StoredRun) -> Run:
    """The complete run of a record. Raises ConfigError as `load_run` does."""
    return load_run(stored.path, None if stored.record is None else stored.record.run_id)


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

    def write_run(self, run: Run, tables: str = ARRAYS_FILE) -> Run:
        """Store the complete run, in place of what was stored of it before; its tables as the file `tables`.

        Returns the run as stored, which is what must be judged: with a caveat `not_finite` where a NaN became null.
        Raises NotStored where it cannot be written.
        """
        try:
            not_finite = save_facts(self.path, run, SCHEMA, tables)
            if not_finite:
                said = [caveat for caveat in not_finite_caveat(not_finite) if not any(map(caveat.same_as, run.caveats))]
                run = replace(run, caveats=[*run.caveats, *said])
                save_facts(self.path, run, SCHEMA, tables)
                run = load_facts(self.path, Run)
            for older in self.path.glob("arrays*.npz"):
                if older.name != tables:
                    older.unlink()
            return run
        except OSError as error:
            raise NotStored(f"cannot store the raw facts in {self.path}: {write_reason(error)}") from error

    def write_case(self, case: Case) -> None:
        """Store the case anew, of a run that only tells in the end what it is. Raises NotStored."""
        try:
            write_atomic(self.path / CASE_FILE, json_bytes(case.to_json()))
        except OSError as error:
            raise NotStored(f"cannot store the case in {self.path}: {write_reason(error)}") from error

    def write_record(self, record: RunRecord, *, goes_on: bool = False) -> RunRecord:
        """Store the record, after everything else: from then on the run counts as finished, unless it `goes_on`.

        Returns it as stored: with a caveat `not_finite` where a NaN became null.
        Raises NotStored where it cannot be written.
        """
        value, stored = record_json(record)
        try:
            write_atomic(self.path / RECORD_FILE, json_bytes(value))
            if not goes_on:
                (self.path / MARKER_FILE).unlink(missing_ok=True)
        except OSError as error:
            raise NotStored(f"cannot store the result in {self.path}: {write_reason(error)}") from error
        return stored

    def spill(self, run: Run, write: Callable[[RunFolder], object]) -> str:
        """Let `write` store the run, which does not go into this folder, in another place. Says where it is."""

        def write_all(path: Path) -> None:
            write_atomic(path / CASE_FILE, json_bytes(run.case.to_json()))
            write(replace(self, path=path))
            with contextlib.suppress(OSError):  # of use only where the run failed
                write_atomic(path / LOG_FILE, self.log_path.read_bytes())

        root = spill(self.run_id, write_all)
        if root is not None:
            with contextlib.suppress(OSError):  # the run is over, and its marker makes room for the note
                (self.path / MARKER_FILE).unlink(missing_ok=True)
            leave_note(self.path, root)
        return kept(root)


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

    def begin(self) -> None:
        """Make the folder, marked as being worked on by this process until the study is first written.

        Raises:
            NotStored: it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path / MARKER_FILE, json_bytes(_marker(self.started_at)))
        except OSError as error:
            raise NotStored(f"cannot store the result in {self.path}: {write_reason(error)}") from error

    def discard(self) -> None:
        """Remove the folder, unless the study was written."""
        if not (self.path / STUDY_FILE).exists():
            shutil.rmtree(self.path, ignore_errors=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let no other process work on the study within this context. The hold ends with the process.

        Raises:
            ConfigError: another process holds it.
            NotStored: the folder cannot be made.
        """
        log = self.path / LOG_FILE
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = open_lock(log)
        except OSError as error:
            raise NotStored(f"cannot store the result in {self.path}: {write_reason(error)}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"{self.study_id} is in use by another process (`fuser {log}` shows it): "
                    "wait until it ends, or end it"
                ) from None
            except OSError:  # a file system without locks: nothing can be told
                pass
            yield

    def write(self, study: StudyRecord) -> None:
        """Store the study in place of its earlier version. Raises NotStored where it cannot be written: it is kept in
        another place then."""
        arrays: dict[str, Any] = {}
        value = cast(JsonObject, plain.to_json(study, None, arrays))

        def write_all(path: Path) -> None:
            path.mkdir(parents=True, exist_ok=True)
            write_atomic(path / STUDY_FILE, json_bytes({**write_arrays(path, arrays), **value}))

        try:
            write_all(self.path)
            (self.path / MARKER_FILE).unlink(missing_ok=True)
        except OSError as error:
            root = spill(self.study_id, write_all)
            if root is not None:
                leave_note(self.path, root)
            raise NotStored(f"cannot store the result in {self.path}: {write_reason(error)}; {kept(root)}") from error


def read_study(folder: Path) -> StudyRecord:
    """The study in a folder.

    Raises:
        ConfigError: there is none, it is damaged, or another version wrote it.
    """
    with reading_facts(folder):
        if os.path.lexists(folder / COMPARISON_FILE):
            _check_schema(folder.name, 1)
        value = parsed(read_bytes(folder / STUDY_FILE), STUDY_FILE)
        _check_schema(folder.name, value["schema"])
        if value["kind"] not in KINDS:
            raise ConfigError(_unknown_kind(folder.name, value["kind"]))
        types = KINDS[value["kind"]]
        head = plain.from_json(_StudyHead, value)
        try:
            facts = with_arrays(types.facts, value["facts"], folder, value.get(DIGEST))
        except plain.MissingField as error:
            raise ConfigError(_older(folder.name, error)) from error
        if isinstance(facts, CompareFacts) and {*facts.labels} != {*SIDE_NAMES}:
            raise ValueError(f"a comparison needs the sides {' and '.join(SIDE_NAMES)}")
        study = StudyRecord(
            **vars(head),
            kind=value["kind"],
            facts=facts,
            findings=_stored_findings(types.findings, value["findings"]),
        )
        return _checked_names(study, folder, STUDY_FILE)


def _checked_names(study: StudyRecord, folder: Path, file: str) -> StudyRecord:
    """The study. Raises ConfigError where it is another folder's, ValueError where it names what no run is called."""
    if study.study_id != folder.name:
        raise ConfigError(_of_another(folder.name, file, study.study_id))
    wrong = [run for run in (*study.runs, *study.own_runs) if not _is_name(run)]
    if wrong:
        raise ValueError(f"no run can be called {wrong[0][:80]!r}")
    return study


def _stored_findings(kind: type[Findings], value: Any) -> Findings | None:
    """None where an older version stored fewer figures: they follow from the facts, and are computed again."""
    try:
        return None if value is None else plain.from_json(kind, value)
    except plain.MissingField:
        return None


@dataclass(frozen=True)
class _StudyHead:
    """What every kind of study holds."""

    schema: int
    rules_version: int
    study_id: str
    started_at: str
    runs: tuple[str, ...]
    own_runs: tuple[str, ...]


def _slug(parts: Sequence[str]) -> str:
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")[:40].rstrip("-")


def _time_stamp(now: datetime) -> str:
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03d}"


def _title(folder: Path) -> str:
    """`Case.title` of a run without a record, its name where the case cannot be read."""
    try:
        return Case.from_json(cast(JsonObject, read_json(folder / CASE_FILE))).title
    except (OSError, ValueError, TypeError):
        return folder.name


RUN_FILES = frozenset({CASE_FILE, MARKER_FILE, FACTS_FILE, RECORD_FILE})
"""A folder with any of these is that of a run."""
COMPARISON_FILE = "compare.json"
"""What schema 1 called a comparison's STUDY_FILE."""
STUDY_FILES = frozenset({STUDY_FILE, COMPARISON_FILE})
Kind = Literal["run", "study"]


def _is_name(text: str) -> bool:
    """Whether a run or study may be called so: it is a visible folder right in the store."""
    return text != "" and not text.startswith(".") and os.sep not in text and "\0" not in text


@dataclass(frozen=True)
class _Folder:
    """A folder of the store, before its files are read."""

    path: Path
    kind: Kind | None
    """None where it holds neither, or is no folder."""
    names: Set[str] = frozenset()
    """What is in it."""
    problem: str | None = None
    """Why it cannot be looked into."""
    is_in_store: bool = True
    """Whether its name is an id."""


def _looked_into(path: Path) -> _Folder:
    try:
        names = set(os.listdir(path))  # noqa: PTH208 - a store has thousands
    except (NotADirectoryError, FileNotFoundError):  # a file; a link to nowhere; or it was removed meanwhile
        return _Folder(path, None)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return _Folder(path, None)
        return _Folder(path, "run", problem=f"cannot read {path}: {error.strerror}")
    if names & STUDY_FILES:
        return _Folder(path, "study", names)
    is_run = bool(names & RUN_FILES) or RUN_NAME.match(path.name) is not None
    return _Folder(path, "run" if is_run else None, names)


def _whole_record(content: bytes, name: str) -> RunRecord:
    """Raises ConfigError where another version wrote it; else as `read_record`."""
    value = parsed(content, RECORD_FILE)
    _check_schema(name, value["schema"])
    return read_record(value)


def _line(kind: type[L]) -> Callable[[bytes, str], L]:
    """Reads lines of this kind. It raises as `_whole_record` does, where what the line holds is damaged."""

    def read(content: bytes, name: str) -> L:
        return read_line(content, kind) or line_of(_whole_record(content, name), kind)

    return read


def _content(folder: Path, name: str) -> bytes | None:
    """None where there is no such file. Raises as `read_bytes`."""
    try:
        return read_bytes(f"{folder}{os.sep}{name}")  # a Path would take four times as long
    except FileNotFoundError:
        return None


def _read_run(found: _Folder, read: Callable[[bytes, str], R]) -> Listed[R]:
    """Read one run's folder, whatever its state: nothing that is in it can hide the others."""
    folder = found.path

    def without_record(status: str, problem: str) -> Listed[R]:
        return Listed(folder.name, folder, status, problem, None, _title(folder))

    if found.problem is not None:
        return without_record("unreadable", found.problem)
    try:
        content = _content(folder, RECORD_FILE)
        if content is None:
            marker = read_json(folder / MARKER_FILE)
            # The run may have finished between the two checks.
            content = _content(folder, RECORD_FILE)
            if content is None and (root := noted(folder)) is not None:
                where = kept(root) if (root / folder.name).is_dir() else f"it was kept in {root}, which does not exist"
                return without_record("crashed", f"its result could not be written here: {where}")
            if content is None and marker is None and not (folder / CASE_FILE).exists():
                return without_record("unreadable", f"the folder has neither {CASE_FILE} nor {RECORD_FILE}")
            if content is None:
                return without_record(*_unfinished(cast(JsonObject | None, marker)))
        record = read(content, folder.name)
        if found.is_in_store and record.run_id != folder.name:
            return without_record("unreadable", _of_another(folder.name, RECORD_FILE, record.run_id))
        if record.so_far_s is None:
            doubt = _doubt(found, record.case, content)
        else:
            doubt = _still_going_on(found, record.so_far_s)
        return Listed(folder.name, folder, record.status, doubt, record, record.case.title)
    except OSError as error:
        return without_record("unreadable", f"cannot read {error.filename}: {error.strerror}")
    except ConfigError as error:
        return without_record("unreadable", str(error))
    except Exception as error:  # it may hold anything, and the other runs must be listed
        return without_record("unreadable", f"damaged: {what_is_wrong(error)[:300]}; measure it again")


def _read_study(found: _Folder) -> StoredStudy:
    folder = found.path
    try:
        return StoredStudy(folder.name, folder, read_study(folder), _newer_elsewhere(found))
    except ConfigError as error:
        return StoredStudy(folder.name, folder, None, str(error))


@contextlib.contextmanager
def _reading_many() -> Iterator[None]:
    """Without looks for garbage in between: records hold no cycles, and each look walks through all that was read."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _still_going_on(found: _Folder, so_far_s: float) -> str:
    """Of a run whose record was written while it went on."""
    problem = _newer_elsewhere(found)
    if problem is None:
        _, problem = _unfinished(cast(JsonObject | None, read_json(found.path / MARKER_FILE)))
    return f"written after {so_far_s:.0f} s, before the run ended: {problem}"


def _newer_elsewhere(found: _Folder) -> str | None:
    """What is said of a result that is stored, where a newer one of the same name had to go elsewhere."""
    root = noted(found.path) if NOTE in found.names else None
    if root is None or not (root / found.path.name).is_dir():  # it was brought back
        return None
    return f"a newer result could not be written here: {kept(root)}"


def _doubt(found: _Folder, case: Case, record: bytes) -> str | None:
    """What is wrong with a run that has its `record`, which holds the `case` too."""
    if CASE_FILE not in found.names:
        return f"{CASE_FILE} is missing; {RECORD_FILE} holds the case too"
    try:
        content = _content(found.path, CASE_FILE)
        same = content is None or b'\n "case": ' + content.rstrip().replace(b"\n", b"\n ") + b",\n" in record
        if content is not None and not same and Case.from_json(parsed(content)) != case:
            return f"{CASE_FILE} belongs to another run: it differs from the case in {RECORD_FILE}"
    except (OSError, ValueError, TypeError) as error:
        return f"{CASE_FILE} cannot be read ({error}); {RECORD_FILE} holds the case too"[:300]
    return _newer_elsewhere(found)


class Store:
    """All runs below one folder."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        self.name = str(root)
        """The folder as the caller named it, for messages."""

    def check_writable(self) -> None:
        """Check as `checks.check_writable` does. Raises ConfigError."""
        check_writable(self.root)

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
                raise ConfigError(f"cannot write results to {self.root}: {write_reason(error)}") from error
            raise
        return RunFolder(run_id, self.root / run_id, started_at)

    def new_study(self, kind: StudyKind, names: Sequence[str]) -> StudyFolder:
        """A folder with a unique name for a study; it is made when the study is first written."""
        now = datetime.now(UTC)
        study_id = f"{_time_stamp(now)}-{_slug([STUDY_SLUGS.get(kind, kind), *names])}-{secrets.token_hex(3)}"
        return StudyFolder(study_id, self.root / study_id, now.isoformat(timespec="milliseconds"))

    def check_tag(self, tag: str | None) -> None:
        """Check a name that runs shall be found by. None is none.

        Raises:
            ConfigError: it is not printable, too long, or means something else already.
        """
        check_tag(tag)
        if tag is not None and self._is_id(tag):
            raise ConfigError(f"--tag {tag} is the id of a run, or looks like one: give another name")

    def _folder(self, name: str) -> _Folder:
        return _looked_into(self.root / name)

    def _is_id(self, text: str) -> bool:
        return text in self._names() and self._folder(text).kind is not None

    def _names(self) -> list[str]:
        """What may be a run or a study, oldest first. Raises ConfigError where the store's folder cannot be read."""
        try:
            return sorted(name for name in os.listdir(self.root) if _is_name(name))  # noqa: PTH208
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"cannot read the results folder {self.name}: {error.strerror}") from error

    def studies(self) -> list[StoredStudy]:
        """Every study and comparison, oldest first; damaged and newer ones with their problem."""
        return self._contents(_whole_record, ("study",)).studies

    def runs(self) -> list[StoredRun]:
        """Every run, oldest first. Broken, unfinished and newer ones are listed with their problem.

        Raises:
            ConfigError: the store's folder cannot be read. A missing one is an empty store.
        """
        return self._contents(_whole_record, ("run",)).runs

    def lines(self) -> list[ListedRun]:
        """Every run as in `runs`, with as much of its record as a line of the list shows: the rest is not read, and
        damage in it is not noticed."""
        return self._contents(_line(RunLine), ("run",)).runs

    def contents(self) -> Contents[RunRecord]:
        """Every run and study, as `runs` and `studies`; each folder is looked into once."""
        return self._contents(_whole_record)

    def contents_in_lines(self, kind: type[L]) -> Contents[L]:
        """Every run as in `lines`, in lines of this kind, and every study; each folder is looked into once."""
        return self._contents(_line(kind))

    def _contents(self, read: Callable[[bytes, str], R], kinds: Sequence[Kind] = ("run", "study")) -> Contents[R]:
        found: Contents[R] = Contents([], [])
        with _reading_many():
            for folder in map(self._folder, self._names()):
                if folder.kind == "run" and "run" in kinds:
                    found.runs.append(_read_run(folder, read))
                elif folder.kind == "study" and "study" in kinds:
                    found.studies.append(_read_study(folder))
        return found

    def in_whole(self, lines: Iterable[Listed[L]]) -> list[StoredRun]:
        """The runs of these lines, but for those that are gone meanwhile."""
        with _reading_many():
            return [run for line in lines if (run := self.run(line.run_id)) is not None]

    def runs_where(self, fits: Callable[[RunLine], bool]) -> list[StoredRun]:
        """The runs whose lines fit, oldest first; no other record is read in whole."""
        return self.in_whole([line for line in self.lines() if line.record is not None and fits(line.record)])

    def run(self, run_id: str) -> StoredRun | None:
        """The run of exactly this id; None where there is none."""
        found = self._folder(run_id) if _is_name(run_id) else None
        return None if found is None or found.kind != "run" else _read_run(found, _whole_record)

    def latest(self) -> StoredRun | StoredStudy | None:
        """The newest run that has a record, or study that can be read; None where there is none."""
        return self._newest(("run", "study"))

    def newest_ids(self) -> tuple[str | None, str | None]:
        """The ids of the newest study that can be read, and of the newest run that has a record."""
        study, run = self._newest(("study",)), self._newest(("run",))
        return (
            study.study_id if isinstance(study, StoredStudy) else None,
            run.run_id if isinstance(run, Listed) else None,
        )

    def _newest(self, kinds: Sequence[Kind]) -> StoredRun | StoredStudy | None:
        for name in reversed(self._names()):
            found = self._folder(name)
            if found.kind not in kinds:
                continue
            stored = _read_run(found, _whole_record) if found.kind == "run" else _read_study(found)
            if isinstance(stored, StoredStudy) and stored.study is not None:
                return stored
            if isinstance(stored, Listed) and stored.record is not None:
                return stored
        return None

    def ids_of(self, text: str) -> list[str]:
        """The runs and studies that `text` names: the one of this id or in this folder, else all whose ids begin so."""
        if os.sep in text:
            folder = Path(os.path.abspath(text))  # noqa: PTH100 - a link in the store has a name of its own
            is_here = folder.parent.resolve() == self.root.resolve() and self._is_id(folder.name)
            return [folder.name] if is_here else []
        if self._is_id(text):
            return [text]
        beginning = [name for name in self._names() if text and name.startswith(text)]
        return [name for name in beginning if self._folder(name).kind is not None]

    def named(self, text: str) -> StoredRun | StoredStudy:
        """The run or study that `text` names: an id, a unique start of one, or the path of a folder, of a run
        elsewhere too; `latest` is the newest run that has a record.

        Raises:
            ConfigError: none or several match.
        """
        if text == LATEST:
            newest = self._newest(("run",))
            if newest is None:
                raise ConfigError(f"no finished run in {self.name}; measure one with `loaderbench run`")
            return newest
        ids = self.ids_of(text)
        if len(ids) > 1:
            shown = ", ".join(ids[:5])
            more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
            raise ConfigError(f"{len(ids)} runs begin with '{text}': give more of the id: {shown}{more}")
        if not ids and os.sep in text and Path(text).is_dir():
            return self._elsewhere(Path(text).resolve())
        found = self._folder(ids[0]) if ids else None
        if found is None or found.kind is None:
            raise ConfigError(f"no run in {self.name} begins with '{text}'; `loaderbench list` shows the runs")
        return _read_run(found, _whole_record) if found.kind == "run" else _read_study(found)

    def _elsewhere(self, folder: Path) -> StoredRun | StoredStudy:
        """What is in a folder outside this store. Raises ConfigError where that is nothing."""
        found = replace(_looked_into(folder), is_in_store=False)
        if found.kind is None:
            raise ConfigError(f"{folder} holds no run: name a run that `loaderbench list` shows, or its folder")
        return _read_run(found, _whole_record) if found.kind == "run" else _read_study(found)

    def find(self, text: str) -> StoredRun:
        """The run that `text` names (`named`).

        Raises:
            ConfigError: none or several match, or it is a study.
        """
        stored = self.named(text)
        if isinstance(stored, Listed):
            return stored
        study = stored.study
        own = stored.path / RUNS_FOLDER
        runs = [] if study is None else [*study.runs, *(str(own / run) for run in study.own_runs)]
        some = f": {', '.join(runs[:3])}{' …' if len(runs) > 3 else ''}" if runs else ""
        raise ConfigError(f"{stored.study_id} is a study, not a run; name one of its runs{some}")

    def load_run(self, text: str) -> Run:
        """The complete run that `text` names (`find`).

        Raises:
            ConfigError: none or several match, or its facts are missing, damaged or of a newer version.
        """
        return load_stored(self.find(text))

    def open_study(self, study: StudyRecord) -> StudyFolder:
        """The folder of a stored study."""
        return StudyFolder(study.study_id, self.root / study.study_id, study.started_at)
