"""A run's facts as files, written completely or not at all: `facts.json`, and `arrays.npz` with its tables."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from loaderbench import plain
from loaderbench.errors import ConfigError
from loaderbench.plain import Json
from loaderbench.recording.caveats import Caveat

FACTS_FILE = "facts.json"
ARRAYS_FILE = "arrays.npz"

T = TypeVar("T")


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` completely or not at all, durable against a crash. Raises OSError."""
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


def json_bytes(value: Json) -> bytes:
    """The text of a JSON file."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> Json:
    """The file's content, None where it is missing. Raises OSError, ValueError."""
    try:
        found: Json = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return found


def not_finite_caveat(places: list[str]) -> list[Caveat]:
    """The caveat for figures that JSON cannot hold; empty where there are none."""
    return [Caveat("not_finite", {"places": [*places]})] if places else []


def save_facts(folder: Path, facts: object, schema: int) -> list[str]:
    """Write a dataclass into `folder`, tables first. Returns the places of non-finite values. Raises OSError."""
    arrays: plain.Arrays = {}
    not_finite: list[str] = []
    value = plain.to_json(facts, not_finite, arrays)
    assert isinstance(value, dict)
    write_arrays(folder, arrays)
    write_atomic(folder / FACTS_FILE, json_bytes({"schema": schema, **value}))
    return not_finite


def write_arrays(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the tables, by their places, into `folder`; nothing where there are none. Raises OSError."""
    if arrays:
        buffer = io.BytesIO()
        tables: dict[str, Any] = {**arrays}
        np.savez_compressed(buffer, **tables)
        write_atomic(folder / ARRAYS_FILE, buffer.getvalue())


def load_facts(folder: Path, kind: type[T]) -> T:
    """What `save_facts` wrote.

    Raises:
        ConfigError: there is nothing, or it is damaged.
    """
    with reading_facts(folder):
        value = json.loads((folder / FACTS_FILE).read_bytes())
        return plain.from_json(kind, value, load_arrays(folder))


def load_arrays(folder: Path) -> Mapping[str, NDArray[Any]]:
    """The tables, by their places; empty where there are none. Raises OSError, ValueError, BadZipFile."""
    if not (folder / ARRAYS_FILE).exists():
        return {}
    # Opened here because np.load leaks the file when it turns out to be damaged.
    with open(folder / ARRAYS_FILE, "rb") as file, np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


@contextlib.contextmanager
def reading_facts(folder: Path) -> Iterator[None]:
    """Turns what damaged or missing files raise into a ConfigError that names the folder."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{folder} holds no raw facts to analyse: {error.strerror} ({error.filename})") from error
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError, zipfile.BadZipFile) as error:
        raise ConfigError(f"the raw facts in {folder} are damaged: {type(error).__name__}: {error}") from error
