"""The benchmark of runs that end when they are decided."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def stopping(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("stopping")


def test_clear_pipelines_are_decided_rightly_and_early(
    stopping: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["stopping.py", "--num", "1", "--kinds", "cpu,serial", "--json", str(out)])
    assert stopping.main() == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["stopped_by"] for row in rows] == ["decided", "decided"]
    assert all(row["outcome"] == "right" and row["seconds"] < 40 and row["real_fraction"] >= 0.5 for row in rows)
    assert "decided" in capsys.readouterr().out


def test_with_a_time_that_was_asked_for_a_run_takes_it(stopping: ModuleType) -> None:
    kind, pipe = next(iter(stopping.pipelines(1, 0)))
    row = stopping.measured(kind, pipe, 1, seconds=30.0, never=True)
    assert row.stopped_by == "duration" and 25 < row.seconds < 40


def test_a_cause_that_is_worth_nearly_as_much_is_right_too(stopping: ModuleType) -> None:
    true = {"storage": 2.0, "prep": 1.95, "launch": 1.0}
    assert stopping._outcome("prep", ("prep",), true) == "right"
    assert stopping._outcome("launch", ("launch",), true) == "wrong"
    assert stopping._outcome("compute", ("compute",), true) == "wrong"
    assert stopping._outcome("undetermined", ("undetermined",), true) == "undetermined"
