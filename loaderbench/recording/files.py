"""A run's facts as files, written completely or not at all: `facts.json`, and `arrays.npz` with its tables.

`facts.json` holds a digest of the tables that belong to it, so that damaged tables, or those of another run, are
noticed when they are loaded. Runs that were stored before there was one are taken as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar

from loaderbench import plain
from loaderbench.errors import ConfigError, LoaderbenchError
from loaderbench.plain import Json
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.tables import CHUNK_BYTES, open_descriptor, open_tables, to_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

FACTS_FILE = "facts.json"
ARRAYS_FILE = "arrays.npz"
DIGEST = "arrays_sha256"
"""Field of a JSON file: the digest of its tables."""
TABLES = "arrays_file"
"""Field of a JSON file: the file of its tables, where it is not ARRAYS_FILE: of a run that is written while it goes on,
whose next tables take another name, so that facts and tables fit each other at every moment."""

MOST_JSON_BYTES, MOST_VALUES = 64 << 20, 4_000_000
"""Of a JSON file: a run of an hour has 100 KB and 5,000 values."""

T = TypeVar("T")


def write_atomic(path: Path, data: bytes, like: os.stat_result | None = None) -> None:
    """Write `data` to `path` completely or not at all, durable against a crash; with the mode of `like`, and its owner
    if allowed. Raises OSError."""
    temporary = path.parent / f".{secrets.token_hex(8)}.part"  # a name beside the longest one may be too long

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags, 0o666 if like is None else 0o600)

    try:
        with open(temporary, "xb", opener=opened) as file:
            if like is not None:
                with contextlib.suppress(OSError):
                    os.fchown(file.fileno(), like.st_uid, like.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
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


def open_lock(path: Path) -> BinaryIO:
    """Open a file to be locked, made where there is none. No link is followed, and no pipe waited for: the folder may
    come from somebody else. Raises OSError."""

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    return open(path, "ab", opener=opened)


def json_bytes(value: Json) -> bytes:
    """The text of a JSON file."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def read_bytes(path: str | Path) -> bytes:
    """The content of a JSON file. Raises OSError, and ValueError for what is no file or longer than MOST_JSON_BYTES."""
    descriptor, size = open_descriptor(path)
    try:
        # Room for MOST_JSON_BYTES would take longer to get than a usual file to read.
        content = os.read(descriptor, min(size, MOST_JSON_BYTES) + 1)
        while len(content) <= MOST_JSON_BYTES and (more := os.read(descriptor, CHUNK_BYTES)):
            content += more
    finally:
        os.close(descriptor)
    if len(content) > MOST_JSON_BYTES:
        raise ValueError(f"{os.path.basename(path)} is longer than {MOST_JSON_BYTES:,} bytes")
    return content


def _refuse(name: str) -> NoReturn:
    raise plain.PlainError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def parsed(content: bytes | str, name: str = "it") -> Any:
    """Parse a JSON text. `name`: the file's, for the message.

    Raises ValueError for text that is not JSON, for the NaN that Python would accept, and for more values than
    MOST_VALUES: each takes up to 30 times its text."""
    try:
        text = content if isinstance(content, str) else content.decode(json.detect_encoding(content), "surrogatepass")
        if len(text) > MOST_VALUES and sum(map(text.count, (",", "[", "{"))) > MOST_VALUES:
            raise ValueError(f"{name} holds more than {MOST_VALUES:,} values")
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply") from None
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in error.doc else ""
        raise ValueError(f"{name} is not valid JSON at {line}column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not text at byte {error.start}") from None
    except ValueError as error:
        if "int_max_str_digits" not in str(error):  # int() advises to change Python's limit
            raise
        raise ValueError(f"{name} holds a number of more than {sys.get_int_max_str_digits():,} digits") from None


def read_json(path: Path) -> Json:
    """The file's content, None where it is missing. Raises OSError, ValueError."""
    try:
        found: Json = parsed(read_bytes(path), path.name)
    except FileNotFoundError:
        return None
    return found


def not_finite_caveat(places: list[str]) -> list[Caveat]:
    """The caveat for figures that JSON cannot hold; empty where there are none."""
    return [Caveat("not_finite", {"places": [*places]})] if places else []


def save_facts(folder: Path, facts: object, schema: int, tables: str = ARRAYS_FILE) -> list[str]:
    """Write a dataclass into `folder`, its tables first, as the file `tables`. Returns the places of non-finite values.
    Raises OSError."""
    arrays: plain.Arrays = {}
    not_finite: list[str] = []
    value = plain.to_object(facts, not_finite, arrays)
    digest = write_arrays(folder, arrays, tables)
    write_atomic(folder / FACTS_FILE, json_bytes({"schema": schema, **digest, **value}))
    return not_finite


def write_arrays(folder: Path, arrays: Mapping[str, NDArray[Any]], name: str = ARRAYS_FILE) -> dict[str, Json]:
    """Write the tables, by their places, into `folder`; nothing where there are none. Returns the fields with their
    digest and file. Raises OSError."""
    if not arrays:
        return {}
    write_atomic(folder / name, to_bytes(arrays))
    elsewhere: dict[str, Json] = {} if name == ARRAYS_FILE else {TABLES: name}
    return {DIGEST: digest_of(arrays), **elsewhere}


def digest_of(arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of the tables: places, types, shapes, contents. The same however they were compressed."""
    import numpy as np  # late: refusals come without it

    digest = hashlib.sha256()
    for place in sorted(arrays):
        table = np.ascontiguousarray(arrays[place])
        digest.update(f"{place}\0{table.dtype.str}\0{table.shape}\0".encode("utf-8", "surrogatepass"))
        digest.update(table.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def load_facts(folder: Path, kind: type[T]) -> T:
    """What `save_facts` wrote.

    Raises:
        ConfigError: there is nothing, or it is damaged.
    """
    with reading_facts(folder):
        value = parsed(read_bytes(folder / FACTS_FILE), FACTS_FILE)
        return with_arrays(kind, value, folder, value.get(DIGEST), str(value.get(TABLES, ARRAYS_FILE)))


def with_arrays(kind: type[T], value: Json, folder: Path, digest: object, name: str = ARRAYS_FILE) -> T:
    """The object that `value` holds, with its tables from the file `name` of `folder`. `digest`: theirs; None where
    none was stored.

    Raises:
        ConfigError: the tables are not those that were stored.
        OSError, and anything else: files are missing or damaged (`reading_facts`).
    """
    with open_tables(folder / Path(name).name) as tables:
        made = plain.from_json(kind, value, tables)
    if digest is not None and digest != digest_of(tables.taken):
        raise ConfigError(
            f"{folder / name} is damaged or belongs to another run: its digest differs from the stored one"
        )
    return made


@contextlib.contextmanager
def reading_facts(folder: Path) -> Iterator[None]:
    """Turns what damaged or missing files raise into a ConfigError that names the folder."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{folder.name} has no raw facts to analyse: {error.strerror} ({error.filename})") from error
    except LoaderbenchError:
        raise
    except Exception as error:  # damaged files raise anything: zlib's errors, MemoryError for a shape that is made up
        raise ConfigError(
            f"the raw facts in {folder} are damaged: {what_is_wrong(error)}; restore them, or measure again"
        ) from error


def what_is_wrong(error: Exception) -> str:
    """Describe what reading a damaged file raised: our own sentence, or Python's with the name of its class."""
    own = isinstance(error, plain.PlainError) or type(error) is ValueError
    return str(error) if own else f"{type(error).__name__}: {error}"
