"""Caveats are a closed set: a code that nobody knows is refused, and what a caveat means follows from its code."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from loaderbench.findings.caveats import CAVEATS
from loaderbench.findings.row import FIGURE, INFORMATION, VERDICT, Row, Severity
from loaderbench.plain import from_json, to_json
from loaderbench.recording.caveats import Caveat


def test_an_unknown_code_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown caveat 'nosuch'"):
        Caveat("nosuch")
    with pytest.raises(ValueError, match="unknown caveat 'too_few_steps'"):
        Caveat("too_few_steps")  # a reason


@pytest.mark.parametrize("row", CAVEATS, ids=lambda row: row.code)
def test_the_severity_follows_from_the_code(row: Row) -> None:
    code = row.code
    assert Caveat(code).severity == row.severity
    other = next(severity for severity in get_args(Severity) if severity != row.severity)
    assert Caveat(code, severity=other).severity == row.severity  # whatever a file says
    stored = {**json.loads(json.dumps(to_json(Caveat(code)))), "severity": other}
    assert from_json(Caveat, stored) == Caveat(code)


def test_severities_by_hand() -> None:
    severities = {row.code: row.severity for row in CAVEATS}
    assert set(severities.values()) == {VERDICT, FIGURE, INFORMATION} == set(get_args(Severity))
    changing = {code for code, severity in severities.items() if severity == VERDICT}
    assert changing == {"cold_not_proven", "eviction_failed", "witnesses_disagree", "real_not_measured"}
    assert severities["arms_not_measured"] == severities["facts_missing"] == FIGURE
    assert severities["emulated_device"] == severities["no_files"] == INFORMATION


def test_what_was_stored_as_a_sentence_keeps_it() -> None:
    stored = Caveat("short_run", {"steps": 6}, message="the run is short")
    assert stored.worded() == stored
    assert stored.sentence() == "short_run: the run is short"
    worded = Caveat("short_run", {"steps": 6, "buffer_batches": 4})
    assert worded.sentence() == f"short_run: {worded.text()}" and worded.text().endswith(
        ": raise --duration or --steps"
    )


def test_two_say_the_same_whatever_their_words() -> None:
    caveat = Caveat("short_run", {"steps": 6})
    assert caveat.same_as(Caveat("short_run", {"steps": 6}, message="in words", hint="do it"))
    assert not caveat.same_as(Caveat("short_run", {"steps": 7}))
    assert not caveat.same_as(Caveat("buffer_not_full", {"steps": 6}))
