"""The cases as files: one compressed archive a set, read in memory, case by case.

A case is two members: NAME.json (its truth, the run's facts, the places, types and shapes of its tables) and
NAME.tables. A table of whole numbers is kept as the differences of its rows, column by column, and all tables byte by
byte of equal weight: times that grow evenly then take next to nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loaderbench import plain
from loaderbench.analysis.statistics import paired_ratio
from loaderbench.recording.facts import Run

SETS = Path(__file__).parent / "sets"
SUFFIX = ".tar.xz"

Half = Literal["tune", "held"]
HALVES: Mapping[str, tuple[Half, ...]] = {"tune": ("tune",), "held": ("held",), "both": ("tune", "held")}
WITH = "with_s"
"""Name of the side that is the run itself."""


@dataclass(frozen=True)
class Truth:
    """What is known of a run, from outside its facts."""

    cause: str
    """A verdict's word; `either` of storage and preparation; `none`."""
    turns: Mapping[str, tuple[float, ...]]
    """Side of the stopwatch → seconds a step in each of its turns; the run as it was is WITH."""
    without: str
    """The side without the cause."""
    built_in: Mapping[str, Any]
    """What slows the run, by the names of whoever built it in."""
    machine: str
    beside: str
    """What else ran on the machine."""
    kind: str | None = None
    """Of slow storage."""
    culprit: str | None = None
    """Who holds up the run, where it waits for processors."""
    also: str | None = None
    """Another cause that is as right."""
    best_alone: float = 1.0
    """Of two causes that limit only together: what taking the better one away gives."""

    @property
    def gain(self) -> tuple[float, float, float]:
        """(value, low, high) of step time with ÷ without the cause."""
        return paired_ratio(self.turns[WITH], self.turns[self.without])


@dataclass(frozen=True)
class Packed:
    """A case as it lies in its set."""

    name: str
    facts: bytes
    tables: bytes

    @property
    def half(self) -> Half:
        return half_of(self.name)

    def opened(self) -> tuple[Truth, Run]:
        """Raises ValueError and the like where it is damaged."""
        value = json.loads(self.facts)
        tables, at = dict[str, NDArray[Any]](), 0
        for place, (dtype, shape) in value["tables"].items():
            size = np.dtype(dtype).itemsize * int(np.prod(shape))
            tables[place] = unpacked(self.tables[at : at + size], np.dtype(dtype), tuple(shape))
            at += size
        return plain.from_json(Truth, value["truth"]), plain.from_json(Run, value["run"], tables)


def half_of(name: str) -> Half:
    """The half that a case of this name belongs to."""
    return "tune" if hashlib.sha256(name.encode()).digest()[0] % 2 == 0 else "held"


def names_of_sets() -> list[str]:
    return sorted(path.name.removesuffix(SUFFIX) for path in SETS.glob(f"*{SUFFIX}"))


def read_set(name: str, half: str = "tune") -> Iterator[Packed]:
    """The cases of a set, or of one of its halves, in the order in which they were added."""
    facts: tuple[str, bytes] | None = None
    with tarfile.open(SETS / f"{name}{SUFFIX}", "r|xz") as archive:
        for member in archive:
            case, _, part = member.name.rpartition(".")
            if half_of(case) not in HALVES[half]:
                continue
            file = archive.extractfile(member)
            assert file is not None
            if part == "json":
                facts = case, file.read()
            else:
                assert facts is not None and facts[0] == case
                yield Packed(case, facts[1], file.read())


def write_set(name: str, cases: Iterable[Packed]) -> None:
    """Write a set anew. The same cases give the same file."""
    path = SETS / f"{name}{SUFFIX}"
    draft = path.with_suffix(".part")
    with tarfile.open(draft, "w:xz", preset=9) as archive:
        for case in cases:
            for part, content in (("json", case.facts), ("tables", case.tables)):
                member = tarfile.TarInfo(f"{case.name}.{part}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    draft.replace(path)


def pack(name: str, truth: Truth, run: Run) -> Packed:
    """A case of a run: thinned, and without the paths of the machine that it ran on."""
    arrays: plain.Arrays = {}
    value = plain.to_json(thinned(run), [], arrays)
    tables = {place: (table.dtype.str, list(table.shape)) for place, table in arrays.items()}
    whole = {"truth": plain.to_json(truth), "run": without_paths(value), "tables": tables}
    facts = json.dumps(whole, separators=(",", ":")).encode()
    return Packed(name, facts, b"".join(packed(table) for table in arrays.values()))


def thinned(run: Run) -> Run:
    """Without what no verdict is made of: versions of packages, environment variables."""
    there = run.environment
    there = None if there is None else replace(there, packages={}, variables={}, gpus=())
    return replace(run, environment=there)


_PATH = re.compile(r"(?<![\w./])/(?!proc/|sys/)(?:[^/\s'\":,;()]+/)+")


def without_paths(value: Any) -> Any:
    """JSON whose absolute paths have lost their folders."""
    if isinstance(value, str):
        return _PATH.sub("/data/", value)
    if isinstance(value, list):
        return [without_paths(one) for one in value]
    if isinstance(value, dict):
        return {without_paths(key): without_paths(one) for key, one in value.items()}
    return value


def packed(table: NDArray[Any]) -> bytes:
    """A table's bytes, as they compress best."""
    if table.dtype.kind in "iu" and table.ndim:
        table = np.diff(table, axis=0, prepend=np.zeros((1, *table.shape[1:]), table.dtype))
    columns = np.ascontiguousarray(table.T)
    return columns.reshape(-1).view(np.uint8).reshape(-1, table.dtype.itemsize).T.tobytes()


def unpacked(content: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The table that `packed` gave."""
    by_weight = np.frombuffer(content, np.uint8).reshape(dtype.itemsize, -1)
    table = np.ascontiguousarray(by_weight.T).reshape(-1).view(dtype).reshape(shape[::-1]).T
    if dtype.kind in "iu" and shape:
        table = np.cumsum(table, axis=0, dtype=dtype)
    return np.ascontiguousarray(table)
