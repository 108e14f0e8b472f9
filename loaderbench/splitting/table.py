"""The file of a model's times on this machine: one line an entry, so that it can be read, and edited, by hand.

The first line says what the times are of; a table of another model or machine is refused. Entries are added and never
measured again unless they are asked for. A file is replaced whole, so that a reader sees the old one or the new one;
writers take turns by a lock on a file beside it, and each adds to what the one before it wrote.
"""

from __future__ import annotations

import fcntl
import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from loaderbench import plain
from loaderbench.errors import ConfigError
from loaderbench.plain import Json
from loaderbench.printable import short
from loaderbench.recording.files import open_lock, parsed, read_bytes, write_atomic
from loaderbench.recording.split_times import SplitTime, TableMachine, TableSubject

if TYPE_CHECKING:
    from loaderbench.recording.facts import Environment

FOLDER = "tables"
"""Below the folder of the results."""
VERSION = 1
ENTRY_FIELDS = tuple(field.name for field in fields(SplitTime))
EXAMPLE = '{"device": "cpu:1", "batch_size": 8, "seconds": 0.25, "origin": "set by hand"}'
SUBJECT_WORDS = (
    "model", "mode", "precision", "input shape", "architecture", "CPU", "number of usable CPUs", "GPUs",
    "PyTorch version",
)  # fmt: skip
Key = tuple[str, tuple[str, ...], int]
"""(device, what worked beside it, batch size): one entry each."""


@dataclass(frozen=True)
class TimesTable:
    """What a file holds."""

    path: Path
    subject: TableSubject
    entries: tuple[SplitTime, ...] = ()
    """In order of device, company and batch size; each such key once."""

    def of(self, device: str, beside: Sequence[str] = ()) -> dict[int, SplitTime]:
        """Batch size → entry of the device, measured beside these others (in any order)."""
        company = tuple(sorted(beside))
        return {one.batch_size: one for one in self.entries if (one.device, one.beside) == (device, company)}

    def points(self, device: str, beside: Sequence[str] = ()) -> dict[int, float]:
        """Batch size → seconds, infinite where it does not fit: what `search.filled` takes."""
        return {size: math.inf if one.seconds is None else one.seconds for size, one in self.of(device, beside).items()}


def machine_of(found: Environment) -> TableMachine:
    """The part of a machine's facts without which a time means nothing."""
    return TableMachine(
        architecture=found.architecture,
        cpu_model=found.cpu_model,
        cpus_usable=found.cpus_usable,
        gpus=tuple(gpu.name for gpu in found.gpus),
        torch=found.packages.get("torch"),
    )


def path_of(results: Path, subject: TableSubject) -> Path:
    """The file of the subject's times. Machines share a name: those of another machine are refused, not lost."""
    shape = "x".join(map(str, subject.input_shape))
    name = "-".join((subject.model, subject.mode, subject.precision, shape))
    return results / FOLDER / f"{re.sub(r'[^A-Za-z0-9._-]', '-', name)}.jsonl"


def read(path: Path, subject: TableSubject) -> TimesTable:
    """The table in the file; an empty one where there is no file.

    Raises:
        ConfigError: it is of another machine, model, mode, precision or input shape, of a newer version, or damaged
            (names the line).
    """
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        return TimesTable(path, subject)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the table {path}: {getattr(error, 'strerror', None) or error}") from error
    lines = [(number, line) for number, line in enumerate(content.splitlines(), start=1) if line.strip()]
    if not lines:
        raise ConfigError(f"{path} is empty: delete it to measure its times again")
    _check_subject(path, *lines[0], subject)
    found: dict[Key, tuple[int, SplitTime]] = {}
    for number, line in lines[1:]:
        entry = _entry(path, number, line)
        first, _ = found.setdefault(_key(entry), (number, entry))
        if first != number:
            raise ConfigError(
                f"{path}, line {number}: the same device, companions and size as on line {first}; delete one of them"
            )
    return TimesTable(path, subject, _sorted([entry for _, entry in found.values()]))


def extend(path: Path, subject: TableSubject, entries: Sequence[SplitTime], *, over: bool = False) -> TimesTable:
    """Add entries to the file and return what it holds now. Where it has one of the same key, that one stays: another
    process measured it meanwhile. `over=True` puts the new one in its place (`--set`, `--remeasure`).

    Raises:
        ConfigError: as `read`; or the file cannot be written.
    """
    for entry in entries:
        _check(entry)
    with _changing(path, subject) as table:
        kept = {_key(entry): entry for entry in table.entries}
        given = {_key(entry): replace(entry, beside=tuple(sorted(entry.beside))) for entry in entries}
        merged = {**kept, **given} if over else {**given, **kept}
        changed = replace(table, entries=_sorted(list(merged.values())))
        _write(changed)
    return changed


def drop(path: Path, subject: TableSubject, device: str, batch_size: int | None = None) -> TimesTable:
    """Take the device's entries (of one size, or all) out of the file, whatever worked beside it; returns the rest.

    Raises:
        ConfigError: as `extend`; or there is no such entry.
    """
    with _changing(path, subject) as table:
        rest = tuple(one for one in table.entries if one.device != device or batch_size not in (None, one.batch_size))
        if len(rest) == len(table.entries):
            what = device if batch_size is None else f"{device} at batch {batch_size}"
            known = ", ".join(sorted({one.device for one in table.entries})) or "no device"
            raise ConfigError(f"{path} has no times of {what}; it has times of {known}")
        changed = replace(table, entries=rest)
        _write(changed)
    return changed


# -- the file ----------------------------------------------------------------------------------------------


def _key(entry: SplitTime) -> Key:
    return entry.device, tuple(sorted(entry.beside)), entry.batch_size


def _sorted(entries: list[SplitTime]) -> tuple[SplitTime, ...]:
    return tuple(sorted(entries, key=_key))


@contextmanager
def _changing(path: Path, subject: TableSubject) -> Iterator[TimesTable]:
    """The table as it is now, while no other process changes it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_lock(path.with_name(f".{path.name}.lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # held for milliseconds, so nobody is told to wait
            yield read(path, subject)
    except OSError as error:
        raise ConfigError(f"cannot write the table {path}: {error.strerror or error}") from error


def _write(table: TimesTable) -> None:
    """Raises OSError."""
    head: Json = {"version": VERSION, "times_of": plain.to_json(table.subject)}
    lines = [head, *(plain.to_json(entry) for entry in table.entries)]
    text = "".join(f"{json.dumps(line, ensure_ascii=False, allow_nan=False)}\n" for line in lines)
    write_atomic(table.path, text.encode())


def _check_subject(path: Path, number: int, line: bytes, wanted: TableSubject) -> None:
    """Raises ConfigError where the table's first line is not of `wanted`."""
    try:
        head = parsed(line)
        version = head["version"]
        if type(version) is not int:
            raise ValueError(f"version must be a whole number, not {short(version)!r}")
        if version > VERSION:
            raise ConfigError(
                f"{path} has version {short(version)}, and this loaderbench reads {VERSION}: upgrade loaderbench, or "
                "give other --results"
            )
        found = plain.from_json(TableSubject, head["times_of"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f'{path}, line {number}: {_why(error)}; expected {{"version": {VERSION}, "times_of": {{…}}}}. '
            "Delete the file to measure its times again"
        ) from error
    for what, theirs, ours in zip(SUBJECT_WORDS, _facts(found), _facts(wanted), strict=True):
        if theirs != ours:
            raise ConfigError(
                f"{path} holds times for the {what} {_words(theirs)}, not {_words(ours)}: "
                "give other --results, or delete the file"
            )


def _facts(subject: TableSubject) -> tuple[object, ...]:
    """In the order of SUBJECT_WORDS."""
    machine = subject.machine
    return (
        subject.model, subject.mode, subject.precision, subject.input_shape,
        machine.architecture, machine.cpu_model, machine.cpus_usable, machine.gpus, machine.torch,
    )  # fmt: skip


def _words(value: object) -> str:
    if value is None or value == ():
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _entry(path: Path, number: int, line: bytes) -> SplitTime:
    """Raises ConfigError that names the line."""
    try:
        value = parsed(line)
        unknown = sorted(set(value) - set(ENTRY_FIELDS)) if isinstance(value, dict) else []
        if unknown:
            raise ValueError(f"unknown {short(', '.join(unknown))}")
        entry = plain.from_json(SplitTime, value)
        _check(entry)
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"{path}, line {number}: {_why(error)}; expected a line such as {EXAMPLE}") from error
    return replace(entry, beside=tuple(sorted(entry.beside)))


def _why(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


def _check(entry: SplitTime) -> None:
    """Raises ConfigError for an entry that no device can have."""
    if entry.batch_size < 1 or not entry.device:
        raise ConfigError("an entry needs a device and a batch_size of 1 or more")
    if entry.outcome == "ok" and not (entry.seconds is not None and 0 < entry.seconds < math.inf):
        raise ConfigError(f"seconds must be more than 0, not {entry.seconds}")
    if entry.outcome != "ok" and entry.seconds is not None:
        raise ConfigError(f"seconds must be null if the outcome is {entry.outcome}")
    if entry.low is not None and entry.high is not None and not 0 < entry.low <= entry.high:
        raise ConfigError(f"low and high must be more than 0, and low at most high, not {entry.low} and {entry.high}")
