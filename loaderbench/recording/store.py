"""The result store: one folder a run, written so that a crash at any moment leaves it readable.

::

    ROOT/<run_id>/case.json        what was asked for
                  running.json     who measures it; gone once run.json is there
                  worker.log       what the measuring process printed
                  recording.json   raw facts …
                  arrays.npz       … and their tables
                  run.json         the record (run.schema.json), written last
    ROOT/<comparison_id>/compare.json   what `compare` found, with the ids of its runs; they lie beside it
    ROOT/<study_id>/study.json          what `sweep` found, likewise

Several processes may write into one store: every run has a folder of its own, which appears under its
final name only when it holds case.json and running.json.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import secrets
import shutil
import socket
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from loaderbench.cases.case import Case
from loaderbench.errors import CaseFailed, ConfigError
from loaderbench.recording.types import SCHEMA, STEP_FIELDS, Caveat, Recording, Segment, Series

CASE_FILE = "case.json"
MARKER_FILE = "running.json"
LOG_FILE = "worker.log"
RECORDING_FILE = "recording.json"
ARRAYS_FILE = "arrays.npz"
RECORD_FILE = "run.json"
COMPARISON_FILE = "compare.json"
STUDY_FILE = "study.json"
SCHEMA_FILE = Path(__file__).with_name("run.schema.json")
"""The record's JSON Schema (draft 2020-12)."""

PROBE_BYTES = 4 << 20
"""What `check_writable` writes and removes: more than the files of a usual run, about 100 bytes a step and arm."""


@dataclass(frozen=True)
class StoredRun:
    """One run as the listing sees it."""

    run_id: str
    path: Path
    status: str
    """ok | failed | skipped | interrupted as recorded; running | crashed | unreadable where there is no record."""
    problem: str | None
    """Why there is no record, in one line; None where there is one."""
    record: dict[str, Any] | None
    """run.json; None where it is missing, damaged or of a newer schema."""
    title: str
    """`Case.title`, or the run_id where the case cannot be read."""


def _write_reason(error: OSError) -> str:
    return f"{error.strerror or error}; free some space, mend its permissions, or name another folder with --results"


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` under `path` wholly or not at all, durable against a crash. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Makes the new name durable. Some FUSE file systems refuse it; the content is safe either way.
        with contextlib.suppress(OSError):
            os.fsync(folder)
    finally:
        os.close(folder)


def plain_json(value: Any, not_finite: list[str], where: str = "") -> Any:
    """`value` in plain JSON types: numpy scalars and arrays, tuples and paths converted.

    JSON knows no NaN and no infinity: they become null, and their places (`throughput.low`) are added
    to `not_finite`. Raises TypeError for what has no JSON form.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        not_finite.append(where)
        return None
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {
            str(key): plain_json(item, not_finite, f"{where}.{key}" if where else str(key))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain_json(item, not_finite, f"{where}[{number}]") for number, item in enumerate(value)]
    raise TypeError(f"{where or 'the value'} has no JSON form: {type(value).__name__}")


def _json_bytes(plain: Any) -> bytes:
    return (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode()


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


def _marker(started_at: str) -> dict[str, Any]:
    """Names this process so that no later one with the same pid is taken for it."""
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
        return "running", f"measured by process {pid} on {host}, which cannot be asked from here whether it lives"
    started = _process_start_ticks(pid) if isinstance(pid, int) else None
    if marker.get("boot_id") == _boot_id() and started is not None and started == marker.get("process_start_ticks"):
        return "running", f"being measured by process {pid}"
    return "crashed", f"process {pid} ended before the result was written; see {LOG_FILE} in its folder"


def save_recording(folder: Path, recording: Recording, series: Sequence[Series]) -> None:
    """Write recording.json and arrays.npz into `folder`, the tables first. Raises OSError."""
    arrays: dict[str, Any] = {}
    segments = []
    for number, segment in enumerate(recording.segments):
        arrays[f"segment{number}_steps"] = segment.steps
        if segment.spans is not None:
            arrays[f"segment{number}_spans"] = segment.spans
        if segment.phases is not None:
            arrays[f"segment{number}_phases"] = segment.phases
        if segment.kernels is not None:
            arrays[f"segment{number}_kernels"] = segment.kernels
        segments.append(
            {
                "arm": segment.arm,
                "round": segment.round,
                "num_warmup": segment.num_warmup,
                "steady": segment.steady,
                "facts": segment.facts,
            }
        )
    channels = []
    for number, one in enumerate(series):
        arrays[f"series{number}_t_ns"] = one.t_ns
        arrays[f"series{number}_value"] = one.value
        channels.append({"name": one.name, "unit": one.unit, "kind": one.kind, "source": one.source})
    not_finite: list[str] = []
    plain = plain_json(
        {
            "schema": SCHEMA,
            "step_fields": STEP_FIELDS,
            "segments": segments,
            "series": channels,
            "facts": recording.facts,
            "caveats": [{"code": caveat.code, "message": caveat.message} for caveat in recording.caveats],
        },
        not_finite,
    )
    plain["caveats"] += _not_finite_caveats(not_finite)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    write_atomic(folder / ARRAYS_FILE, buffer.getvalue())
    write_atomic(folder / RECORDING_FILE, _json_bytes(plain))


def _not_finite_caveats(places: Sequence[str]) -> list[dict[str, str]]:
    if not places:
        return []
    message = f"computed as NaN or infinity, so stored as null: {', '.join(places)}; please report it as a bug"
    return [{"code": "not_finite", "message": message}]


def load_recording(path: str | os.PathLike[str]) -> tuple[Case, Recording, list[Series]]:
    """The raw facts of the run in folder `path`, as they were given to `write_recording`.

    Raises:
        ConfigError: there are none, they are damaged, or a newer version wrote them.
    """
    folder = Path(path)
    try:
        case = Case.from_json(json.loads((folder / CASE_FILE).read_bytes()))
        plain = json.loads((folder / RECORDING_FILE).read_bytes())
        if plain["schema"] > SCHEMA:
            raise ConfigError(_newer(folder.name, plain["schema"]))
        # Opened here because np.load leaks the file when it turns out to be damaged.
        with open(folder / ARRAYS_FILE, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            segments = [
                Segment(
                    **entry,
                    steps=arrays[f"segment{number}_steps"],
                    spans=arrays.get(f"segment{number}_spans"),
                    phases=arrays.get(f"segment{number}_phases"),
                    kernels=arrays.get(f"segment{number}_kernels"),
                )
                for number, entry in enumerate(plain["segments"])
            ]
            series = [
                Series(**entry, t_ns=arrays[f"series{number}_t_ns"], value=arrays[f"series{number}_value"])
                for number, entry in enumerate(plain["series"])
            ]
        caveats = [Caveat(**entry) for entry in plain["caveats"]]
        return case, Recording(segments, plain["facts"], caveats), series
    except OSError as error:
        raise ConfigError(f"{folder} holds no raw facts to analyse: {error.strerror} ({error.filename})") from error
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"the raw facts in {folder} are damaged: {type(error).__name__}: {error}") from error


def _newer(name: str, schema: Any) -> str:
    return f"{name} was written with schema {schema}, this loaderbench reads up to {SCHEMA}: upgrade loaderbench"


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

    def write_recording(self, recording: Recording, series: Sequence[Series]) -> None:
        """Store the raw facts. Raises CaseFailed where they cannot be written."""
        try:
            save_recording(self.path, recording, series)
        except OSError as error:
            raise CaseFailed(f"cannot store the raw facts in {self.path}: {_write_reason(error)}") from error

    def write_record(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Store the record, last of all: from then on the run counts as finished.

        Returns it as stored: plain JSON types, with a caveat `not_finite` where a NaN became null.
        Raises CaseFailed where it cannot be written.
        """
        not_finite: list[str] = []
        plain: dict[str, Any] = plain_json(record, not_finite)
        if not_finite:
            plain["caveats"] = [*(plain.get("caveats") or []), *_not_finite_caveats(not_finite)]
        try:
            write_atomic(self.path / RECORD_FILE, _json_bytes(plain))
            (self.path / MARKER_FILE).unlink(missing_ok=True)
        except OSError as error:
            raise CaseFailed(f"cannot store the result in {self.path}: {_write_reason(error)}") from error
        return plain


def _slug(parts: Sequence[str]) -> str:
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")[:40].rstrip("-")


def _time_stamp(now: datetime) -> str:
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03d}"


def _read_json(path: Path) -> Any:
    """The file's content, None where it is missing. Raises OSError, ValueError."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def _title(case_json: Any, otherwise: str) -> str:
    try:
        return Case.from_json(case_json).title
    except (TypeError, AttributeError):
        return otherwise


def _read_run(folder: Path) -> StoredRun:
    """Read one run's folder, whatever its state."""
    run_id = folder.name

    def without_record(status: str, problem: str, title: str = run_id) -> StoredRun:
        return StoredRun(run_id, folder, status, problem, None, title)

    try:
        record = _read_json(folder / RECORD_FILE)
        if record is None:
            marker = _read_json(folder / MARKER_FILE)
            # It may have been finished between the two looks.
            record = _read_json(folder / RECORD_FILE)
            if record is None:
                return without_record(*_unfinished(marker), _title(_read_json(folder / CASE_FILE), run_id))
        title = _title(record["case"], run_id)
        if record["schema"] > SCHEMA:
            return without_record("unreadable", _newer(run_id, record["schema"]), title)
        return StoredRun(run_id, folder, str(record["status"]), None, record, title)
    except OSError as error:
        return without_record("unreadable", f"cannot read {error.filename}: {error.strerror}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return without_record("unreadable", f"damaged: {type(error).__name__}: {error}")


class Store:
    """All runs below one folder."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()

    def check_writable(self) -> None:
        """Create the folder and prove, before anything is measured, that a result would fit into it.

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
        slug = _slug([str(case.resolution or case.dataset_name), case.loader, f"w{case.workers}"])
        run_id = f"{_time_stamp(now)}-{slug}-{case.key[:8]}-{secrets.token_hex(3)}"
        started_at = now.isoformat(timespec="milliseconds")
        staging = self.root / f".new-{run_id}"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            staging.mkdir()
            write_atomic(staging / CASE_FILE, _json_bytes(case.to_json()))
            write_atomic(staging / MARKER_FILE, _json_bytes(_marker(started_at)))
            staging.rename(self.root / run_id)  # fails where a run of this name exists: it is never empty
        except BaseException as error:
            shutil.rmtree(staging, ignore_errors=True)
            if isinstance(error, OSError):
                raise ConfigError(f"cannot write results to {self.root}: {_write_reason(error)}") from error
            raise
        return RunFolder(run_id, self.root / run_id, started_at)

    def new_comparison_id(self, labels: Sequence[str]) -> str:
        """A name for a comparison that no other has."""
        return f"{_time_stamp(datetime.now(UTC))}-{_slug(['compare', *labels])}-{secrets.token_hex(3)}"

    def write_comparison(self, comparison: Mapping[str, Any]) -> None:
        """Store a comparison under its `comparison_id`, over what is there of it.

        Raises:
            CaseFailed: it cannot be written.
        """
        self._write_finding(comparison["comparison_id"], COMPARISON_FILE, comparison)

    def write_study(self, study: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> str:
        """Store what a study of these runs found, under a new name, which is returned.

        Raises:
            CaseFailed: it cannot be written.
        """
        now = datetime.now(UTC)
        loaders = dict.fromkeys(str(record["case"]["loader"]) for record in records)
        study_id = f"{_time_stamp(now)}-{_slug(['study', *loaders])}-{secrets.token_hex(3)}"
        begun_at = min(record["started_at"] for record in records)
        about = {"schema": SCHEMA, "study_id": study_id, "started_at": begun_at}
        runs = [record["run_id"] for record in records]
        self._write_finding(study_id, STUDY_FILE, {**about, "runs": runs, **study})
        return study_id

    def _write_finding(self, name: str, file_name: str, value: Mapping[str, Any]) -> None:
        folder = self.root / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / file_name, _json_bytes(plain_json(value, [])))
        except OSError as error:
            raise CaseFailed(f"cannot store the result in {folder}: {_write_reason(error)}") from error

    def comparisons(self) -> list[dict[str, Any]]:
        """What `compare` found, oldest first; damaged and newer files are left out."""
        return self._findings(COMPARISON_FILE)

    def studies(self) -> list[dict[str, Any]]:
        """What `sweep` found, oldest first; damaged and newer files are left out."""
        return self._findings(STUDY_FILE)

    def _findings(self, file_name: str) -> list[dict[str, Any]]:
        found = []
        for path in sorted(self.root.glob(f"[!.]*/{file_name}")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                one = json.loads(path.read_bytes())
                if one["schema"] <= SCHEMA:
                    found.append(one)
        return found

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
