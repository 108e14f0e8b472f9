"""Stored runs that are small on disk and large in memory: only what the facts name is read, and within limits."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import struct
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from commands import call

from loaderbench.cases.arms import Arm
from loaderbench.errors import ConfigError
from loaderbench.recording import files, tables
from loaderbench.recording.facts import STEP_FIELDS
from loaderbench.recording.store import Store, load_run
from loaderbench.recording.tables import open_tables, to_bytes
from tests.made import make_case, make_record, make_run, make_segment

CASE = make_case(dataset="/data/photos/512", dataset_name="photos", resolution=512, device="cpu")
BOMB_BYTES = 768 << 20
MOST_MB = 250
"""What a command that reads a store may take: it takes 60 to 130 without a bomb."""
PEAK = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[2:])
open(sys.argv[1], "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024))
sys.exit(done.returncode)
"""


def made(root: Path) -> Path:
    """A store with one run; returns the run's folder."""
    store = Store(root)
    folder = store.open_run(CASE)
    steps = np.random.default_rng(1).integers(0, 10**6, (3, len(STEP_FIELDS)))
    folder.write_run(make_run(CASE, [make_segment(Arm.REAL, steps)], run_id=folder.run_id))
    folder.write_record(make_record(CASE, run_id=folder.run_id, started_at=folder.started_at))
    return folder.path


def header(shape: tuple[int, ...], descr: str = "<i8") -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def add_zeros(folder: Path, place: str, mode: Any = "a") -> None:
    """A table of BOMB_BYTES, which has 4 MB on disk."""
    with (
        zipfile.ZipFile(folder / "arrays.npz", mode, zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(f"{place}.npy", "w", force_zip64=True) as file,
    ):
        file.write(header((BOMB_BYTES // 8 // len(STEP_FIELDS), len(STEP_FIELDS))))
        for _ in range(BOMB_BYTES >> 20):
            file.write(bytes(1 << 20))


def named_place(folder: Path) -> str:
    facts = json.loads((folder / "facts.json").read_bytes())
    return str(facts["recording"]["segments"][0]["steps"])


def drop_digest(folder: Path) -> None:
    facts = json.loads((folder / "facts.json").read_bytes())
    del facts[files.DIGEST]
    (folder / "facts.json").write_text(json.dumps(facts))


def peak_mb(arguments: tuple[str | Path, ...], results: Path, tmp_path: Path) -> tuple[commands.Ended, float]:
    peak = tmp_path / "peak"
    ended = commands.run(*arguments, "--results", results, wrapper=(sys.executable, "-c", PEAK, str(peak)))
    return ended, float(peak.read_text())


@pytest.fixture(scope="module")
def with_unnamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = made(tmp_path_factory.mktemp("unnamed"))
    add_zeros(folder, "nobody.names.it")
    return folder


slow = pytest.mark.slow


@pytest.mark.parametrize(
    "command",
    [
        ("analyze", "latest"), pytest.param(("trace", "latest", "--out", "-"), marks=slow),
        pytest.param(("report", "--out", "-"), marks=slow), pytest.param(("show", "latest"), marks=slow),
        pytest.param(("list",), marks=slow), pytest.param(("ledger",), marks=slow),
    ],
    ids=lambda command: command[0],
)  # fmt: skip
def test_a_table_that_no_fact_names_is_not_read(with_unnamed: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    ended, peak = peak_mb(command, with_unnamed.parent, tmp_path)
    assert ended.code in (0, 1), ended.err  # 1: a made-up record is not what the facts give
    assert "Traceback" not in ended.err and peak < MOST_MB


def test_a_table_that_is_named_takes_no_more_than_the_files_size_allows(tmp_path: Path) -> None:
    folder = made(tmp_path / "store")
    add_zeros(folder, named_place(folder), "w")
    drop_digest(folder)
    ended, peak = peak_mb(("trace", "latest", "--out", tmp_path / "t"), folder.parent, tmp_path)
    assert (ended.code, len(ended.lines)) == (2, 1) and peak < MOST_MB
    assert re.search(r"its tables exceed \d\d,\d{3},\d{3} bytes", ended.err)


def test_many_tables_share_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_BYTES", 10_000)
    monkeypatch.setattr(tables, "MOST_RATIO", 1)
    path = tmp_path / "arrays.npz"
    np.savez_compressed(path, **{f"t{number}": np.zeros(400) for number in range(40)})
    with open_tables(path) as found, pytest.raises(ValueError, match="exceed"):
        for name in found:
            assert found[name].nbytes == 3200
    assert 3 <= len(found.taken) < 40


def test_a_table_that_is_taken_twice_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    path.write_bytes(to_bytes({"one": np.arange(3)}))
    with open_tables(path) as found:
        assert found["one"] is found["one"]


def test_what_shrinks_more_than_that_is_written_as_it_is_and_read_again(tmp_path: Path) -> None:
    large, small = np.zeros((9 << 20, 1)), np.zeros(1000)
    path = tmp_path / "arrays.npz"
    path.write_bytes(to_bytes({"large": large}))
    assert path.stat().st_size > large.nbytes
    with open_tables(path) as found:
        assert np.array_equal(found["large"], large)
    assert len(to_bytes({"small": small})) < small.nbytes


# -- archives that lie -------------------------------------------------------------------------------------


def archive(path: Path, content: bytes, compression: int = zipfile.ZIP_DEFLATED, copies: int = 1) -> None:
    with zipfile.ZipFile(path, "w", compression) as made_up:
        for number in range(copies):
            made_up.writestr(f"t{number if number else ''}.npy", content)


def claim_size(path: Path, size: int) -> None:
    """Let the directory say that the first member has another length."""
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2")
    data[at + 24 : at + 28] = struct.pack("<I", size)
    path.write_bytes(data)


def claim_method(path: Path, method: int) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2")
    data[at + 10 : at + 12] = struct.pack("<H", method)
    data[8:10] = struct.pack("<H", method)
    path.write_bytes(data)


def claim_directory(path: Path, size: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-10] + struct.pack("<I", size) + data[-6:])


def add_zip64(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-22] + b"PK\6\7" + bytes(16) + data[-22:])


def add_comment(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2] + b"\1\0x")


ROWS = header((4,)) + bytes(32)
SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "longer header": (lambda path: archive(path, header((5,)) + bytes(32)), "shorter than its header says"),
    "shorter header": (lambda path: archive(path, header((3,)) + bytes(32)), "longer than its header says"),
    "shorter directory": (lambda path: (archive(path, ROWS), claim_size(path, len(ROWS) - 8)), "Bad CRC"),
    "objects": (lambda path: archive(path, header((1,), "|O") + bytes(8)), "not a table of numbers"),
    "no size": (lambda path: archive(path, header((10**15,), "|V0")), "not a table of numbers"),
    "text": (lambda path: archive(path, header((1,), "<U4") + bytes(16)), "not a table of numbers"),
    "negative": (lambda path: archive(path, header((-4,)) + bytes(32)), "not a table of numbers"),
    "huge": (lambda path: archive(path, header((10**6, 10**6)) + bytes(32)), "exceed"),
    "huge and empty": (lambda path: archive(path, header((0, 10**15))), "exceed"),
    "bzip2": (lambda path: archive(path, ROWS, zipfile.ZIP_BZIP2), "that loaderbench never uses"),
    "lzma": (lambda path: archive(path, ROWS, zipfile.ZIP_LZMA), "that loaderbench never uses"),
    "unknown method": (lambda path: (archive(path, ROWS), claim_method(path, 98)), "that loaderbench never uses"),
    "version 3": (lambda path: archive(path, ROWS[:6] + b"\3" + ROWS[7:]), "the unknown version"),
    "too many": (lambda path: (archive(path, ROWS), claim_directory(path, 17 << 20)), "more tables than any run has"),
    "64-bit figures": (lambda path: (archive(path, ROWS), add_zip64(path)), "more tables than any run has"),
    "a comment": (lambda path: (archive(path, ROWS), add_comment(path)), "not an archive"),
    "nothing": (lambda path: path.write_bytes(b""), "not an archive"),
}  # fmt: skip


@pytest.mark.parametrize("how", SPOILT)
def test_an_archive_that_lies_is_refused(tmp_path: Path, how: str) -> None:
    path = tmp_path / "arrays.npz"
    spoil, says = SPOILT[how]
    spoil(path)
    with pytest.raises((ValueError, zipfile.BadZipFile), match=says), open_tables(path) as found:
        found["t"]


def test_a_run_with_a_table_of_objects_is_damaged_and_none_is_made(tmp_path: Path) -> None:
    folder = made(tmp_path / "store")
    place = named_place(folder)

    class Planted:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
            return (os.mkdir, (str(tmp_path / "planted"),))

    np.savez(folder / "arrays.npz", **{place: np.array([Planted()], dtype=object)})
    drop_digest(folder)
    with pytest.raises(ConfigError, match="damaged"):
        load_run(folder)
    assert not (tmp_path / "planted").exists()


def test_members_that_share_their_bytes_are_counted_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # as in overlapping archives: many names, one compressed block
    monkeypatch.setattr(tables, "MOST_BYTES", 64)
    path = tmp_path / "arrays.npz"
    archive(path, ROWS, copies=2)
    data = bytearray(path.read_bytes())
    second = data.index(b"PK\1\2", data.index(b"PK\1\2") + 1)
    data[second + 42 : second + 46] = bytes(4)  # its place is the first one's
    path.write_bytes(data)
    monkeypatch.setattr(tables, "MOST_RATIO", 0)
    with open_tables(path) as found:
        assert found["t"].nbytes == 32
        with pytest.raises((ValueError, zipfile.BadZipFile)):
            found["t1"]


# -- traces of others ----------------------------------------------------------------------------------------


EVENT = b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1.5,"dur":1},'


@pytest.mark.parametrize(
    ("head", "again", "says"),
    [
        (b'{"traceEvents":[', EVENT, "its text is more than 100 times as long as the file"),
        (b'{"traceEvents":[', b" ", "its text is more than 100 times as long as the file"),
        (b'{"traceEvents":[{"name":"', b"x", "a value of more than 4,194,304 characters"),
        (b'{"traceEvents":[{"args":[', b"{},", "a value of more than 4,194,304 characters"),
        (b'{"other":[', b"[],", "a value of more than 4,194,304 characters"),
    ],
    ids=["events", "blanks", "a name", "objects", "another value"],
)  # fmt: skip
def test_a_zipped_trace_that_is_small_on_disk_and_large_in_memory(
    tmp_path: Path, head: bytes, again: bytes, says: str
) -> None:
    trace = tmp_path / "trace.json.gz"
    with gzip.open(trace, "wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(100):
            file.write(again * (1_000_000 // len(again)))
    peak = tmp_path / "peak"
    ended = commands.run("gaps", trace, wrapper=(sys.executable, "-c", PEAK, str(peak)))
    said = [line for line in ended.lines if line.startswith("loaderbench")]
    assert (ended.code, len(said)) == (2, 1) and str(trace) in said[0] and says in said[0]
    assert float(peak.read_text()) < MOST_MB


# -- JSON --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run.json", "facts.json", "case.json"])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"schema": 2, "x": [' + b"{}," * 2_000_000 + b"0]}", "more than 4,000,000 values"),
        (b'{"schema": 2, "x": ' + b"9" * 5000 + b"}", "a number of more than 4,300 digits"),
        (b'{"schema": 2, "x": ' + b"[" * 100_000, "nested too deeply"),
        (b'"' + b"x" * (64 << 20) + b'"', "longer than 67,108,864 bytes"),
    ],
    ids=["values", "digits", "deep", "long"],
)  # fmt: skip
def test_json_that_would_fill_the_memory_is_named(tmp_path: Path, name: str, text: bytes, says: str) -> None:
    whole, folder = made(tmp_path), made(tmp_path)
    (folder / name).write_bytes(text)
    if name == "facts.json":
        with pytest.raises(ConfigError, match=says):
            load_run(folder)
    else:
        problems = {run.path: run.problem for run in Store(tmp_path).runs()}
        assert says in str(problems[folder]) and problems[whole] is None
    for command in (("list",), ("show", folder.name), ("analyze", folder.name), ("trace", folder.name, "--out", "-")):
        ended = call(*command, "--results", tmp_path)
        assert "Traceback" not in ended.err and len([one for one in ended.lines if one.startswith("load")]) <= 1


def test_a_sparse_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    folder = made(tmp_path)
    for name in ("run.json", "arrays.npz"):
        os.truncate(folder / name, 1 << 40)
    (run,) = Store(tmp_path).runs()
    assert "longer than" in str(run.problem)
    with pytest.raises(ConfigError, match="not an archive"):
        load_run(folder)


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"{}\n")
    tracemalloc.start()
    try:
        assert files.read_bytes(path) == b"{}\n"
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_does_not_tell_its_size_is_read_to_its_end() -> None:
    path = Path("/proc/filesystems")
    assert path.stat().st_size == 0
    assert files.read_bytes(path) == path.read_bytes() != b""


def test_a_run_of_a_day_is_far_from_the_limits(tmp_path: Path) -> None:
    # 20,000 windows, from the JSON of some
    folder = Store(tmp_path).open_run(CASE)
    steps = np.arange(len(STEP_FIELDS))[None]
    folder.write_run(make_run(CASE, [make_segment(Arm.REAL, steps) for _ in range(200)], run_id=folder.run_id))
    text = (folder.path / "facts.json").read_bytes()
    assert 100 * len(text) < files.MOST_JSON_BYTES
    assert 100 * sum(map(text.count, b",[{")) < files.MOST_VALUES
