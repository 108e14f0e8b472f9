"""Ways to spoil a stored run or study, drawn at random: the files' bytes, single values, whole files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

DEEP = '{"a":' * 50_000 + "1" + "}" * 50_000
VALUES = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1", "0", "-0.0", "1e308", "1e-320", "1" + "0" * 400, "2.5", "true",
    "null", '""', '"x"', '"\\u001b[31mred"', '"\\ud800"', '"../../../etc"', "[]", "{}", "[[]]", '{"value": 1}',
    '"' + "long " * 5000 + '"', "[" * 300 + "]" * 300, "[" * 20_000 + "]" * 20_000, DEEP, "9" * 5000,
)  # fmt: skip
"""Texts that stand where a value stood."""
MARK = "@ the spoilt value @"


def places(value: Any, where: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to all values within a JSON value."""
    found = [where] if where else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places(item, (*where, key))
    return found


def _at(value: Any, where: tuple[Any, ...]) -> Any:
    for key in where[:-1]:
        value = value[key]
    return value


def _json_of(folder: Path, random: Random) -> tuple[Path, Any, tuple[Any, ...]]:
    names = [path for path in sorted(folder.glob("*.json")) if path.stat().st_size]
    path = random.choice(names)
    value = json.loads(path.read_bytes())
    return path, value, random.choice(places(value))


def other_value(folder: Path, random: Random) -> str:
    path, value, where = _json_of(folder, random)
    text = random.choice(VALUES)
    _at(value, where)[where[-1]] = MARK
    path.write_text(json.dumps(value).replace(json.dumps(MARK), text))
    return f"{path.name} {where} = {text[:40]}"


def other_numbers(folder: Path, random: Random) -> str:
    """Numbers at the ends of what a record may hold, in the place of some of the same type."""
    path, value, _ = _json_of(folder, random)
    numbers = [where for where in places(value) if type(_at(value, where)[where[-1]]) in (int, float)]
    told = []
    for where in random.sample(numbers, min(4, len(numbers))):
        whole = type(_at(value, where)[where[-1]]) is int
        choices: tuple[Any, ...] = (0, -1, 1, 10**20, 2**63) if whole else (0.0, -1.0, 1e89, -1e89, 1e-89, None)
        _at(value, where)[where[-1]] = random.choice(choices)
        told.append(f"{where} = {_at(value, where)[where[-1]]}")
    path.write_text(json.dumps(value))
    return f"{path.name} {', '.join(told)}"


def without_value(folder: Path, random: Random) -> str:
    path, value, where = _json_of(folder, random)
    del _at(value, where)[where[-1]]
    path.write_text(json.dumps(value))
    return f"{path.name} without {where}"


def swapped_values(folder: Path, random: Random) -> str:
    path, value, first = _json_of(folder, random)
    second = random.choice(places(value))
    if first[: len(second)] == second or second[: len(first)] == first:
        return without_value(folder, random)
    one, other = _at(value, first), _at(value, second)
    one[first[-1]], other[second[-1]] = other[second[-1]], one[first[-1]]
    path.write_text(json.dumps(value))
    return f"{path.name} {first} <-> {second}"


def _some_file(folder: Path, random: Random) -> Path:
    return random.choice([path for path in sorted(folder.iterdir()) if path.is_file() and path.suffix != ".log"])


def cut_short(folder: Path, random: Random) -> str:
    path = _some_file(folder, random)
    data = path.read_bytes()
    path.write_bytes(data[: random.choice([0, 1, random.randrange(len(data))])])
    return f"{path.name} cut short"


def flipped_bytes(folder: Path, random: Random) -> str:
    path = _some_file(folder, random)
    data = bytearray(path.read_bytes())
    for _ in range(random.choice([1, 1, 8])):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)
    return f"{path.name} flipped"


def noise(folder: Path, random: Random) -> str:
    path = _some_file(folder, random)
    path.write_bytes(random.randbytes(random.randrange(2000)))
    return f"{path.name} is noise"


def removed(folder: Path, random: Random) -> str:
    path = _some_file(folder, random)
    path.unlink()
    return f"{path.name} removed"


def something_else(folder: Path, random: Random) -> str:
    """A folder, a pipe, a link to itself, to nowhere or to a device, in a file's place."""
    path = _some_file(folder, random)
    path.unlink()
    kind = random.choice(["folder", "pipe", "loop", "nowhere", "device"])
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"loop": path.name, "nowhere": "/no/such/file", "device": "/dev/zero"}[kind])
    return f"{path.name} is a {kind}"


def of_another(folder: Path, random: Random) -> str:
    """A file of another run."""
    others = [path for path in sorted(folder.parent.iterdir()) if path.is_dir() and path != folder]
    path = _some_file(folder, random)
    found = [one / path.name for one in others if (one / path.name).is_file()]
    if not found:
        return removed(folder, random)
    source = random.choice(found)
    shutil.copyfile(source, path)
    return f"{path.name} is that of {source.parent.name}"


KINDS: tuple[Callable[[Path, Random], str], ...] = (
    other_value, other_value, other_value, other_numbers, other_numbers, without_value, without_value, swapped_values,
    cut_short, flipped_bytes, noise, removed, something_else, of_another,
)  # fmt: skip


def spoil(folder: Path, random: Random) -> str:
    """Spoil one thing in the folder of a run or study; says what."""
    return random.choice(KINDS)(folder, random)
