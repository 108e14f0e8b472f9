"""A result in the forms that other programs take."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import example_records as examples
import numpy as np
import pytest

import loaderbench
from loaderbench.errors import ConfigError
from loaderbench.recording.record import Estimate
from loaderbench.recording.store import Store
from loaderbench.reporting import forms
from loaderbench.reporting.result import Column, Result, Table
from loaderbench.studies.measure import judged
from tests.watched_facts import run_of, segment

RATE = Estimate(914.25, 900.0, 930.5, "images/s", 3, "made up")
RESULT = Result(
    title="<two> sides",
    settings=["a", "b"],
    answer=["a is faster.", "By much."],
    tables=[Table("Rates", (Column("side", left=True), Column("images/s"), Column("step", "s")),
                  [("a & b", RATE, 0.07), ("c", None, None)])],
    sections=[("Notes", ["one"]), ("Of a*b", ["two"]), ("Empty", [])],
    code=[("Again", "run x")],
)  # fmt: skip


def test_csv_has_values_in_si_units_and_ends_of_intervals() -> None:
    rows = list(csv.reader(io.StringIO(forms.csv(RESULT))))
    assert rows == [
        ["Rates"],
        ["side", "images/s", "images/s, low", "images/s, high", "step"],
        ["a & b", "914.25", "900.0", "930.5", "0.07"],
        ["c", "", "", "", ""],
    ]


def test_csv_has_values_in_the_unit_of_their_heading() -> None:
    columns = (Column("forward ms", "ms", show=str), Column("peak", "MiB"), Column("error", "0.1 %"))
    half = replace(RATE, value=0.5, low=0.25, high=1.0)
    table = Table("Calls", columns, [(half, 2**21, -0.5), (None, "140*", None)])
    text = forms.csv(replace(RESULT, tables=[table]))
    assert text.splitlines() == [
        "Calls",
        'forward ms,"forward ms, low","forward ms, high","peak, MiB",error',
        "500.0,250.0,1000.0,2.0,-0.5",
        ",,,140*,",
    ]


def test_markdown_has_the_answer_tables_and_remarks() -> None:
    text = forms.markdown(RESULT)
    assert "**a is faster.**" in text and "| a &amp; b | 914 (900–930) | 70.0 ms |" in text
    assert "**Notes**" in text and r"**Of a\*b**" in text and "Empty" not in text and "```\nrun x\n```" in text


def test_a_watched_run_shows_where_its_time_went() -> None:
    result = loaderbench.show(judged(run_of(segment(np.full(60, 0.2), np.full(60, 0.1), 2), 2)))
    assert "Where the script's time went" in dict(result.remarks)


def test_a_notebook_shows_names_as_text() -> None:
    display = forms.Display(**vars(RESULT))
    page = display._repr_html_()
    assert "&lt;two&gt; sides" in page and "a &amp; b" in page and "<pre>run x</pre>" in page
    assert str(display).splitlines()[:2] == ["a · b", "a is faster."]


def test_show_takes_a_record_or_its_name(tmp_path: Path) -> None:
    record = examples.measured()
    folder = Store(tmp_path).open_run(record.case)
    record = replace(examples.summed_up(record, "CPU preparation limits this run."), run_id=folder.run_id)
    folder.write_record(record)
    shown = loaderbench.show("latest", tmp_path)
    assert shown.headline == "prep: CPU preparation limits this run."
    rows = {row[0]: row for row in shown.tables[0].rows}
    assert record.shares is not None and record.shares["prep"] is not None
    assert rows["prep"][1] == record.shares["prep"].value
    assert loaderbench.show(record).tables[0].rows == shown.tables[0].rows
    with pytest.raises(ConfigError):
        loaderbench.show("no-such-run", tmp_path)
