"""What benchmarks/watch.py takes for clear, and that the scripts' injections take time and change nothing else."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("watch")


def side(seconds: float, seen: str = "a") -> dict[str, Any]:
    return {"seconds_per_step": seconds, "losses_and_order": seen}


@pytest.mark.parametrize(
    ("without", "rival_gone", "clear"),
    [(1.0, 1.9, True), (1.6, 1.9, False), (1.0, 1.7, False), (1.0, None, True)],
)
def test_a_case_is_clear_where_its_cause_gains_much_and_its_rival_little(
    watch: ModuleType, without: float, rival_gone: float | None, clear: bool
) -> None:
    rounds = [{"with": side(2.0), "without": side(without)} for _ in range(3)]
    for one in rounds:
        if rival_gone is not None:
            one["rival_gone"] = side(rival_gone, "of another step")
    found = watch.truth_of(rounds)
    assert found.is_clear == clear
    assert found.same
    rounds[1]["with"] = side(2.0, "b")
    assert not watch.truth_of(rounds).same


def test_there_are_cases_of_every_injection_and_script(watch: ModuleType) -> None:
    known = watch.cases().values()
    assert len(known) >= 60
    assert {one.injection for one in known} == set(watch.CAUSES)
    assert {one.script for one in known} == {path.stem for path in watch.SCRIPTS.glob("*.py")} - {"scene"}


def test_a_scripts_injection_takes_its_time_and_changes_no_loss(watch: ModuleType, tmp_path: Path) -> None:
    data = watch.make_data(tmp_path / "data")
    told = {}
    for injected in (False, True):
        one = watch.Asked("no_workers", "issue", 3.0, step_ms=2.0)
        command = [*watch.command_of(one, data, injected=injected), "--epoch-steps", "20"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        told[injected] = json.loads(done.stdout.removeprefix("TIMED "))
    assert told[True]["losses_and_order"] == told[False]["losses_and_order"]
    more = told[True]["main_cpu_s_per_step"] - told[False]["main_cpu_s_per_step"]
    assert 0.8 * 6e-3 < more < 1.5 * 6e-3
    assert sys.executable == command[0]
