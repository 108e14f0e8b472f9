"""Caveats are a closed set: a code that nobody knows is refused, and what a caveat means follows from its code."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import get_args

import pytest

import loaderbench
from loaderbench.plain import from_json, to_json
from loaderbench.recording.caveats import FIGURE, INFORMATION, SEVERITIES, VERDICT, Caveat, Severity

PACKAGE = Path(loaderbench.__file__).parent


def test_an_unknown_code_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown caveat 'nosuch'"):
        Caveat("nosuch")


@pytest.mark.parametrize("code", SEVERITIES)
def test_the_severity_follows_from_the_code(code: str) -> None:
    assert Caveat(code).severity == SEVERITIES[code]
    other = next(severity for severity in get_args(Severity) if severity != SEVERITIES[code])
    assert Caveat(code, severity=other).severity == SEVERITIES[code]  # whatever a file says
    stored = {**json.loads(json.dumps(to_json(Caveat(code)))), "severity": other}
    assert from_json(Caveat, stored) == Caveat(code)


def test_severities_by_hand() -> None:
    assert set(SEVERITIES.values()) == {VERDICT, FIGURE, INFORMATION} == set(get_args(Severity))
    changing = {code for code, severity in SEVERITIES.items() if severity == VERDICT}
    assert changing == {"cold_not_proven", "eviction_failed", "witnesses_disagree", "real_not_measured"}
    assert SEVERITIES["arms_not_measured"] == SEVERITIES["facts_missing"] == FIGURE
    assert SEVERITIES["emulated_device"] == SEVERITIES["no_files"] == INFORMATION


def test_two_say_the_same_whatever_their_words() -> None:
    caveat = Caveat("short_run", {"steps": 6})
    assert caveat.same_as(Caveat("short_run", {"steps": 6}, message="in words", hint="do it"))
    assert not caveat.same_as(Caveat("short_run", {"steps": 7}))
    assert not caveat.same_as(Caveat("buffer_not_full", {"steps": 6}))


def test_every_code_in_the_source_is_known_and_every_known_one_is_used() -> None:
    used = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.func if isinstance(node, ast.Call) else None
            first = node.args[0] if isinstance(node, ast.Call) and node.args else None
            if isinstance(name, ast.Name) and name.id == "Caveat" and isinstance(first, ast.Constant):
                assert first.value in SEVERITIES, f"{path}:{node.lineno}"  # type: ignore[attr-defined]
                used.add(first.value)
    assert set(SEVERITIES) - used == {"facts_missing"}  # tests/convert_schema1.py sets it
