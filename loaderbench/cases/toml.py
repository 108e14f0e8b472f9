"""TOML files of the user's: study files, device profiles, manifests of data sets."""

from __future__ import annotations

import difflib
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from loaderbench.errors import ConfigError
from loaderbench.plain import JsonObject
from loaderbench.printable import short

MOST_BYTES = 1 << 20
"""Of a file: a profile has 2 KB."""


def read_toml(path: Path, what: str) -> JsonObject:
    """The content of the file, which is a `what`.

    Raises:
        ConfigError: it cannot be read, is longer than MOST_BYTES, or is not TOML; names the file.
    """
    called = f"the {what} {path}"
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {called}: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise ConfigError(f"cannot read {called}: it is longer than {MOST_BYTES:,} bytes")
    try:
        return tomllib.loads(data.decode())
    except RecursionError:
        why = "it is nested too deeply"
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        why = str(error)
    except ValueError:  # of int()
        why = f"it holds a number of more than {sys.get_int_max_str_digits():,} digits"
    raise ConfigError(f"{called} is not valid TOML: {why}")


def check_keys(table: Mapping[str, object], known: Iterable[str], where: str) -> None:
    """Raises ConfigError for a key of the table that is not one of `known`; names the nearest ones."""
    known = sorted(known)
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(short(key), known, n=3)
            meant = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
            raise ConfigError(f"{where}: unknown entry '{short(key)}'; {meant}")
