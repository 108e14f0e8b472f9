"""The table of findings: each code has words for what its makers give, and a row is all that a finding takes."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pytest

import loaderbench
from loaderbench.cases.case import flags, loader_arguments
from loaderbench.findings.advice import ADVICE, WATCHED_ADVICE
from loaderbench.findings.reasons import TRACE_FAULTS
from loaderbench.findings.reference import ABOUT, REFERENCE_FILE, reference_text
from loaderbench.findings.row import VERDICT, Details, Row
from loaderbench.findings.table import FINDINGS, SECTIONS, words
from loaderbench.plain import Json, type_hints
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import TraceWitness
from loaderbench.running.heap import VARIABLES
from tests.reporting import example_records as examples
from tests.screens.shown import LOOKS, run
from tests.screens.stored import keep_record

PACKAGE = Path(loaderbench.__file__).parent
EXAMPLES = [(row, details) for row in FINDINGS.values() for details in row.examples]


class Asked(Mapping[str, Json]):
    """Details that keep the names for which they are asked."""

    def __init__(self, details: Details) -> None:
        self._details, self.names = details, set[str]()

    def __getitem__(self, name: str) -> Json:
        self.names.add(name)
        return self._details[name]

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return name in self._details

    def __iter__(self) -> Iterator[str]:
        return iter(self._details)

    def __len__(self) -> int:
        return len(self._details)


def test_each_code_has_one_row() -> None:
    assert len(FINDINGS) == sum(map(len, SECTIONS.values()))
    assert set(ABOUT) == set(SECTIONS)


@pytest.mark.parametrize(("row", "details"), EXAMPLES, ids=lambda given: getattr(given, "code", ""))
def test_a_row_s_words_hold_what_its_makers_give_and_ask_for_no_more(row: Row, details: Details) -> None:
    asked = Asked(details)
    text = words(row.code, asked)
    assert len(text) > 1 and not any(sign in text for sign in ("None", "nan", "inf×", "{"))
    assert asked.names <= {"change", *(name for each in row.examples for name in each)}


@pytest.mark.parametrize("row", FINDINGS.values(), ids=lambda row: row.code)
def test_each_choice_has_an_example(row: Row) -> None:
    for name, texts in row.choices.items():
        assert set(texts) <= {details.get(name) for details in row.examples}  # type: ignore[comparison-overlap]


def test_a_finding_of_findings_has_the_words_of_each() -> None:
    text = words("trace_incomplete", FINDINGS["trace_incomplete"].examples[0])
    assert all(words(row.code, details) in text for row in TRACE_FAULTS for details in row.examples)


@pytest.mark.parametrize(
    ("row", "details"), [(row, details) for row in (*ADVICE, *WATCHED_ADVICE) for details in row.examples]
)
def test_advice_names_all_of_its_change(row: Row, details: Details) -> None:
    text, change = words(row.code, details), cast(dict[str, Any], details.get("change") or {})
    if row in WATCHED_ADVICE:
        assert loader_arguments(change) in text
    assert row in WATCHED_ADVICE or all(flags({name: value}) in text for name, value in change.items())


def test_texts_that_stand_elsewhere_too() -> None:
    assert set(FINDINGS["count_off"].choices["witness"]) == set(get_args(type_hints(TraceWitness)["name"]))
    settings = " ".join(f"{name}={value}" for name, value in VARIABLES.items())
    assert settings in words("keep_memory", {"part": 0.3})


# -- the makers --------------------------------------------------------------------------------------------


def made_in_the_package() -> list[tuple[str, str, set[str] | None]]:
    """(place, code, the names of its details) of each caveat, reason and text that is made under its own code; None
    where the details are not written out there."""
    made = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
                continue
            first = node.args[0]
            given = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
            codes = [each.value for each in given if isinstance(each, ast.Constant)]
            if node.func.id not in ("Caveat", "Reason", "words"):
                continue
            names: set[str] | None = set()
            if len(node.args) > 1:
                details = node.args[1]
                whole = isinstance(details, ast.Dict) and all(key is not None for key in details.keys)
                names = {cast(ast.Constant, key).value for key in details.keys} if whole else None  # type: ignore[attr-defined]
            made += [(f"{path.relative_to(PACKAGE)}:{node.lineno}", str(code), names) for code in codes]
    return made


def test_makers_and_rows_know_each_other() -> None:
    made = made_in_the_package()
    assert len(made) > 50
    for place, code, names in made:
        assert code in FINDINGS, f"{place} makes '{code}', which has no row"
        if names is not None:
            given = [set(details) for details in FINDINGS[code].examples]
            assert names in given, f"{place} gives '{code}' other details: {names}"
    others = {"Advice", "Advice for a watched script", "Why advice was not verified"}
    rows = {row.code for title, rows in SECTIONS.items() if title not in others for row in rows}
    assert rows - {code for _, code, _ in made} == {"facts_missing", "note"}, "tests/convert_schema1.py makes these"


# -- the reference -----------------------------------------------------------------------------------------


def test_the_reference_is_that_of_the_table() -> None:
    assert REFERENCE_FILE.read_text(encoding="utf-8") == reference_text(), (
        "run python -m loaderbench.findings.reference"
    )


def test_a_row_is_all_that_a_finding_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row(
        "fan_stopped",
        "a fan stopped, and the GPU reached {celsius:.0f} °C",
        "clean the fan",
        examples=({"celsius": 93.0},),
        severity=VERDICT,
    )
    monkeypatch.setitem(SECTIONS, "Caveats", (*SECTIONS["Caveats"], row))  # type: ignore[arg-type]
    monkeypatch.setitem(FINDINGS, row.code, row)

    record = replace(examples.measured(), caveats=(Caveat("fan_stopped", {"celsius": 91.4}),))
    keep_record(tmp_path, record)

    screen = run(("show", "latest", "--results", "."), tmp_path, LOOKS["120"])
    assert "a fan stopped, and the GPU reached 91 °C: clean the fan" in " ".join(screen.out.split())
    shown = run(("show", "latest", "--results", ".", "--json", "-"), tmp_path, LOOKS["piped"])
    (caveat,) = json.loads(shown.out)["caveats"]
    assert caveat["severity"] == VERDICT
    assert caveat["message"] == "a fan stopped, and the GPU reached 91 °C" and caveat["hint"] == "clean the fan"
    assert "- `fan_stopped`: a fan stopped, and the GPU reached 93 °C<br>→ clean the fan.\n" in reference_text()


def test_the_reference_shortens_what_two_sentences_of_a_code_share(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row(
        "disk_slow",
        "the disk {name} is slow: {why}",
        examples=(
            {"name": "a", "why": "it is full of small files"},
            {"name": "a", "why": "it is old"},
            {"name": "b", "why": "it is old"},
        ),
        severity=VERDICT,
    )
    monkeypatch.setitem(SECTIONS, "Caveats", (*SECTIONS["Caveats"], row))  # type: ignore[arg-type]
    monkeypatch.setitem(FINDINGS, row.code, row)

    assert "- `disk_slow`: the disk a is slow: it is full of small files<br>… old<br>the disk b …\n" in reference_text()


def test_figures_of_numpy_are_shown_as_any_others() -> None:
    # a comparison of such a value with a list is an array, which has no truth
    figures = {"shadow": np.float64(0.25), "spans": np.float64(0.75)}
    assert words("shadow_differs", figures) == words("shadow_differs", {"shadow": 0.25, "spans": 0.75})
