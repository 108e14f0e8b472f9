"""What a line of the list reads of a record: the same as all of it, however its text is laid out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from loaderbench import plain
from loaderbench.recording.files import json_bytes
from loaderbench.recording.lines import SHOWN, LedgerLine, RunLine, VerdictLine, line_of, members, read_line
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store
from tests.campaign.damage import spoil
from tests.filled import filled
from tests.made import make_case, make_estimate, make_record

CASE = make_case()


def record_bytes(**fields: Any) -> bytes:
    return json_bytes(plain.to_json(make_record(CASE, throughput=make_estimate(100.0, 0.1), tag="nightly", **fields)))


def flat(value: Any) -> str:
    """With one space before every line, whatever its depth."""
    lines = json.dumps(value, indent=1).splitlines()
    return "\n".join([lines[0], *(f" {line.strip()}" for line in lines[1:-1]), "}\n"])


LAYOUTS: dict[str, Callable[[Any], str]] = {
    "ours": lambda value: json_bytes(value).decode(),
    "indented by two": lambda value: json.dumps(value, indent=2) + "\n",
    "on one line": lambda value: json.dumps(value),
    "without blanks": lambda value: json.dumps(value, separators=(",", ":")),
    "flat": flat,
    "backwards": lambda value: json_bytes({name: value[name] for name in reversed(value)}).decode(),
    "two on a line": lambda value: json_bytes(value).decode().replace(',\n "tag"', ', "tag"'),
    "a name with escapes": lambda value: json_bytes(value).decode().replace('"tag"', '"\\u0074ag"'),
    "one of them twice": lambda value: json_bytes(value).decode().replace('\n "tag"', '\n "tag": "x",\n "tag"'),
    "without the last line break": lambda value: json_bytes(value).decode().removesuffix("\n"),
    "with Windows' line breaks": lambda value: json_bytes(value).decode().replace("\n", "\r\n"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_line_says_what_the_whole_record_does_whatever_its_layout(layout: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = store.open_run(CASE)
    rate = make_estimate(100.0, 0.1)
    stored = folder.write_record(
        make_record(
            CASE, run_id=folder.run_id, throughput=rate, tag="nightly", loader={"tag": "not this", "status": "failed"}
        )
    )
    path = folder.path / "run.json"
    path.write_text(LAYOUTS[layout](json.loads(path.read_bytes())))
    (line,) = store.lines()
    assert (line.status, line.problem, line.title) == ("ok", None, CASE.title)
    assert line.record == line_of(stored, RunLine)
    assert line.record is not None and (line.record.tag, line.record.throughput) == ("nightly", rate)


@pytest.mark.parametrize("kind", [RunLine, LedgerLine])
@pytest.mark.parametrize("seed", range(40))
def test_a_line_of_any_record_is_the_part_of_the_whole(seed: int, kind: type[RunLine]) -> None:
    record = filled(RunRecord, Random(seed))
    record = plain.from_json(RunRecord, {**plain.to_json(record), "schema": 2})  # type: ignore[dict-item]
    value: Any = plain.to_json(record)
    chosen = members(json_bytes(value).decode().removesuffix("\n"), SHOWN[kind])
    assert chosen is not None, "the store's own layout is read without the rest"
    assert plain.from_json(kind, json.loads(chosen)) == plain.from_json(kind, value)


def test_a_line_takes_of_the_verdict_what_it_shows() -> None:
    content = record_bytes()
    value = json.loads(content)
    value["verdict"] = {"bottleneck": "prep", "summary": "a sentence", "advice": [{"code": "more_workers"}]}
    line = read_line(json_bytes(value), RunLine)
    assert line is not None and line.verdict == VerdictLine("prep")


def test_the_lines_of_stored_runs_are_those_of_their_records(stored_results: Path) -> None:
    store = Store(stored_results)
    runs, lines = store.runs(), store.lines()
    assert len(runs) > 10
    for run, line in zip(runs, lines, strict=True):
        assert (line.run_id, line.status, line.problem, line.title) == (run.run_id, run.status, run.problem, run.title)
        assert run.record is not None and line.record == line_of(run.record, RunLine)


SHOWN_DAMAGE = [
    ('"status": "ok"', '"status": "fine"'),
    ('"workers": 2', '"workers": "2"'),
    ('"batch_size": 64', '"batch_size": 0'),
    ('"value": 100.0', '"value": NaN'),
    ('"value": 100.0', '"value": 1e200'),
    ('"value": 100.0', '"value": -1.0'),
    ('"schema": 2', '"schema": 3'),
    ('"schema": 2', '"schema": -1'),
    ('"tag": "nightly"', '"tag": ["nightly"]'),
    ('"tag": "nightly"', '"tag": "nightly'),
]


@pytest.mark.parametrize(("old", "new"), SHOWN_DAMAGE)
def test_damage_in_what_a_line_shows_is_listed_as_when_all_is_read(old: str, new: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = store.open_run(CASE)
    record = make_record(CASE, run_id=folder.run_id, throughput=make_estimate(100.0, 0.1), tag="nightly")
    folder.write_record(record)
    path = folder.path / "run.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    (run,), (line,) = store.runs(), store.lines()
    assert run.record is None and run.problem is not None
    assert (line.record, line.status, line.problem) == (None, run.status, run.problem)


@pytest.mark.parametrize("seed", range(30))
def test_a_line_of_a_spoilt_run_never_says_another_thing_than_the_whole(
    seed: int, stored_results: Path, tmp_path: Path
) -> None:
    random = Random(seed)
    store = Store(tmp_path / "results")
    original = random.choice(sorted(path.parent for path in stored_results.glob("*/run.json")))
    spoilt = Path(shutil.copytree(original, store.root / original.name))
    what = spoil(spoilt, random)
    for run, line in zip(store.runs(), store.lines(), strict=True):
        if run.record is not None:  # where the rest of it is damaged, a line may not notice
            assert line.record == line_of(run.record, RunLine), what
            assert (line.problem, line.title) == (run.problem, run.title), what
