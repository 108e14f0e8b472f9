"""The registry of kinds of studies: what a new one takes, and that nobody else names them all."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import call

import loaderbench
from loaderbench.commands import app as program
from loaderbench.recording.facts import SCHEMA
from loaderbench.recording.kinds import KINDS, Kind, kind_of, part
from loaderbench.recording.store import Store
from loaderbench.recording.studies import StudyRecord
from loaderbench.reporting.shown import Shown
from tests.made import make_environment

PACKAGE = Path(loaderbench.__file__).parent
MOST_NAMED = 4
"""Kinds whose facts or findings one module may name: predictions of four kinds are scored together."""


@pytest.mark.parametrize("name", KINDS)
def test_every_place_of_a_row_is_there(name: str) -> None:
    kind = KINDS[name]
    assert kind_of_class(kind.facts) == kind_of_class(kind.findings) == name
    assert callable(part(kind.judge_at)) and issubclass(part(kind.shown_at), Shown)


def kind_of_class(kind: type[Any]) -> str:
    return kind_of(object.__new__(kind))


def test_what_belongs_to_no_kind_is_named() -> None:
    with pytest.raises(KeyError, match="no kind of study has builtins:int"):
        kind_of(3)


def test_no_module_but_the_registry_names_many_kinds() -> None:
    owner = {
        place.partition(":")[2]: name for name, kind in KINDS.items() for place in (kind.facts_at, kind.findings_at)
    }
    for path in PACKAGE.rglob("*.py"):
        names = {alias.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
                 for alias in node.names}  # fmt: skip
        named = {owner[name] for name in names & owner.keys()}
        assert len(named) <= MOST_NAMED, f"{path.relative_to(PACKAGE)} names {sorted(named)}"


# -- a new kind: one module, one row ---------------------------------------------------------------------------

NAPPING = """
from dataclasses import dataclass

from loaderbench.recording.facts import Environment
from loaderbench.reporting.shown import Shown
from loaderbench.reporting.result import Result

@dataclass(frozen=True)
class NapFacts:
    minutes: tuple[float, ...]
    environment: Environment

@dataclass(frozen=True)
class Naps:
    longest: float

def judge(facts):
    return Naps(max(facts.minutes))

def nap(minutes: float) -> None:
    'Take a nap.'
    print(f"slept for {minutes:g} min")

class ShownNaps(Shown):
    def about(self, facts):
        return f"{len(facts.minutes)} naps"

    def result(self, facts, found):
        return Result("Naps", ["a sofa"], [f"{len(facts.minutes)} naps, the longest of {found.longest:g} min"])
"""


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A kind of study that the package does not have, and one of it in a store."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "napping.py").write_text(NAPPING)
    monkeypatch.setattr(loaderbench, "__path__", [*loaderbench.__path__, str(tmp_path / "more")])
    monkeypatch.delitem(sys.modules, "loaderbench.napping", raising=False)
    row = Kind("napping:NapFacts", "napping:Naps", "napping:judge", "napping:ShownNaps", ("nap", "napping:nap"))
    monkeypatch.setitem(KINDS, "naps", row)  # type: ignore[arg-type]
    facts = row.facts((20.0, 45.0), make_environment())
    folder = Store(tmp_path / "results").new_study("naps", ["sofa"])
    folder.write(StudyRecord(SCHEMA, 1, folder.study_id, "naps", folder.started_at, facts, row.findings(44.0)))
    return folder.study_id


def test_a_new_kind_is_listed_shown_reported_and_judged_again(naps: str, tmp_path: Path) -> None:
    results = ("--results", str(tmp_path / "results"))
    listed = " ".join(call("list", *results).out.split())
    assert "naps: 2 naps" in listed and "the longest of 44 min" in listed  # as it was stored
    assert call("show", naps, *results).out.strip().splitlines() == [
        "a sofa",
        "2 naps, the longest of 45 min",
    ]  # as it is judged today
    assert json.loads(call("show", naps, "--json", "-", *results).out) == {
        "answer": ["2 naps, the longest of 45 min"], "longest": 45.0, "study_id": naps,
    }  # fmt: skip
    judged = call("analyze", naps, "--diff", *results)
    assert "longest" in judged.out and "44" in judged.out and "45" in judged.out
    report = tmp_path / "report.md"
    assert call("report", "--format", "md", "--out", str(report), *results).code == 0
    assert "the longest of 45 min" in report.read_text()


@pytest.mark.usefixtures("naps")
def test_a_new_kind_has_its_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(program, "app", typer.Typer())
    monkeypatch.setattr(program, "GROUPS", {"model": typer.Typer(), "dataset": typer.Typer()})
    program.add_commands()
    made = typer.main.get_command(program.app)
    made.main(["nap", "20"], standalone_mode=False)
    assert capsys.readouterr().out == "slept for 20 min\n"
    made.main(["--help"], standalone_mode=False)
    assert "Take a nap." in capsys.readouterr().out
