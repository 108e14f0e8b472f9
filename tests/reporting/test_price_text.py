"""What is said of a price: amounts, sentences and tables; and that nothing stored knows of it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import example_records as examples
import pytest
from commands import TINY, call

import loaderbench
from loaderbench.analysis.price import priced
from loaderbench.cases.options import Price
from loaderbench.errors import ConfigError
from loaderbench.recording.caveats import Reason
from loaderbench.recording.record import Estimate, Range, RunRecord, Verdict
from loaderbench.recording.store import RunFolder
from loaderbench.reporting.price import amount, interval, money, price_lines, price_sentence, price_tables, waits_for
from tests.made import make_run
from tests.shipped_schema import shipped

HALF = Estimate(2.0, 1.5, 4.0, "ratio", 9, "made up")
"""A gain: half of the time is waiting, a third to three quarters."""


def record_at(price: Price, verdict: Verdict | None = None, num_images: int | None = 72_000) -> RunRecord:
    plain = examples.measured()
    verdict = verdict or Verdict("storage", speedup_if_removed={"storage": HALF})
    rate = Estimate(200.0, 160.0, 250.0, "samples/s", 9, "made up")
    return priced(replace(plain, verdict=verdict, throughput=rate, device=None), price, num_images)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1029.3, "1,029"), (1_234_567.0, "1,234,567"), (100.0, "100"), (99.996, "100"), (12.3, "12.30"),
        (0.62, "0.62"), (0.1, "0.10"),
        (0.0123, "0.012"), (0.00095, "0.00095"), (0.0, "0.00"), (-0.75, "-0.75"), (float("nan"), "–"),
    ],
)  # fmt: skip
def test_an_amount_has_cents_where_they_matter(value: float, shown: str) -> None:
    assert amount(value) == shown


def test_an_interval_that_cannot_be_seen_is_left_out() -> None:
    assert interval(Range(1.0, 0.5, 2.0)) == " (0.50–2.00)"
    assert interval(Range(1.0, 0.999, 1.001)) == interval(Range(1.0, None, None)) == ""


@pytest.mark.parametrize(
    ("price", "shown"),
    [
        (Price(1.0), "1.41"), (Price(1.0, "$", True), "$1.41"), (Price(1.0, "€"), "1.41 €"),
        (Price(1.0, "EUR"), "1.41 EUR"), (Price(1.0, "EUR", True), "EUR 1.41"),
    ],
)  # fmt: skip
def test_the_currency_stands_where_it_was_given(price: Price, shown: str) -> None:
    found = record_at(price).price
    assert found is not None
    assert money(1.41, found) == shown


def test_it_is_said_as_an_engineer_would() -> None:
    assert price_lines(record_at(Price(3.0, "$", True))) == [
        "At $3.00 an hour, waiting for storage costs $1.50 (1.00–2.25) an hour: $1,095 (730–1,642) of the $2,190 that "
        "a month of 730 hours without pause costs.",
        "An epoch of 72,000 images at the measured rate costs $0.30 (0.24–0.38), of which waiting takes $0.15 "
        "(0.080–0.28).",
    ]
    assert price_lines(examples.measured()) == [] and price_tables(examples.measured()) == []


def test_a_saving_is_named_by_its_advice() -> None:
    record = priced(examples.measured(), Price(2.5), None)
    (line,) = [one for one in price_lines(record) if one.startswith("Advice")]
    # 1.6 times as fast: three eighths of 2.50; its ends are 1.44 and 1.76
    assert line == (
        "Advice 1 (--decoder turbojpeg) would save 0.94 (0.76–1.08) an hour, which is 684 (558–788) a month."
    )
    assert price_sentence(record).endswith("; this would save 0.94 (0.76–1.08) an hour, 684 a month.")


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (Verdict("compute"), "Feeding the device faster would save almost none of it: compute limits this run."),
        (Verdict("undetermined"), "is not known: the verdict is undetermined."),
        (Verdict("prep"), "is not known: how fast the run would be without waiting for CPU preparation was not"),
    ],
)
def test_what_is_not_known_is_said_in_words(verdict: Verdict, said: str) -> None:
    line = price_lines(record_at(Price(2.5), verdict))[0]
    assert line.startswith("At 2.50 an hour, a month of 730 hours without pause costs 1,825. ") and said in line
    rows = price_tables(record_at(Price(2.5), verdict))[0].rows
    assert [row[0] for row in rows] == ["running"]


def test_causes_that_are_not_told_apart_are_joined_by_or() -> None:
    both = Verdict("mixed", joint=("storage", "prep"), joint_speedup=HALF)
    assert waits_for(both) == "storage and CPU preparation"
    reason = Reason("not_separated", {"causes": ["storage", "prep"], "arms": ["ram"]})
    assert waits_for(replace(both, reasons=(reason,))) == "storage or CPU preparation"


def test_a_price_of_fractions_of_a_cent_is_shown_whole() -> None:
    assert price_lines(record_at(Price(0.0345, "EUR")))[0].startswith("At 0.0345 EUR an hour, waiting for storage ")


# -- a view of what is stored ----------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A run of a data set of 1,000 images, with its facts, at 914 images/s."""
    name = "20260101-000000-000-a-run"
    folder = RunFolder(name, tmp_path / name, "2026-01-02T03:04:05.006+00:00")
    folder.path.mkdir()
    record = replace(examples.measured(), run_id=name)
    folder.write_case(record.case)
    folder.write_run(replace(make_run(record.case), run_id=name))
    folder.write_record(examples.summed_up(record, "CPU preparation limits this run."))
    return tmp_path


def contents(results: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}


def test_no_view_with_a_price_changes_what_is_stored(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    before, elsewhere = contents(stored), tmp_path_factory.mktemp("elsewhere")
    for words in (
        ["show", "latest"], ["show", "latest", "--json", elsewhere / "x.json"],
        ["report", "--out", elsewhere / "x.html"],
        ["report", "--format", "csv", "--out", elsewhere / "x.csv"], ["report", "--format", "md", "--out", "-"],
        ["report", "--anonymous", "--out", elsewhere / "y.html"],
    ):  # fmt: skip
        assert call(*words, "--price", "2.50/h", "--results", stored).code == 0
    assert contents(stored) == before
    page = (elsewhere / "y.html").read_text()
    assert "waiting costs 1.32" in page and "An epoch of 1,000 images" in page


def test_json_has_the_figures_as_numbers_and_follows_the_schema(stored: Path) -> None:
    asked = ("show", "latest", "--json", "-", "--results", stored)
    plain, found = (json.loads(call(*asked, *more).out) for more in ([], ["--price", "3 EUR/h"]))
    assert plain["price"] is None
    shipped().validate(found)
    price = found.pop("price")
    assert found == {name: value for name, value in plain.items() if name != "price"}
    assert (price["per_hour"], price["currency"], price["currency_first"], price["month_hours"]) == (
        3,
        "EUR",
        False,
        730,
    )
    # 1,000 images at 64 in 70 ms; 33 of 70 ms are left without preparation
    assert price["epoch_samples"] == 1000 and price["epoch_s"]["value"] == pytest.approx(1000 * 0.07 / 64)
    assert price["waiting"]["hour"]["value"] == pytest.approx(3 * 37 / 70)
    assert price["waiting"]["epoch"]["value"] == pytest.approx(1000 * 0.037 / 64 / 3600 * 3)


def test_a_row_of_a_spreadsheet_has_it_where_it_was_asked_for(stored: Path) -> None:
    asked = ("report", "--format", "csv", "--out", "-", "--results", stored)
    (plain,), (found,) = (list(csv.DictReader(io.StringIO(call(*asked, *more).out))) for more in ([], ["--price", "3"]))
    assert set(found) - set(plain) >= {"price_per_hour", "waiting_cost_per_month", "waiting_cost_low_per_hour"}
    assert float(found["waiting_cost_per_hour"]) == pytest.approx(3 * 37 / 70)
    assert float(found["running_cost_per_epoch"]) == pytest.approx(1000 * 0.07 / 64 / 3600 * 3)


def test_python_shows_it_too(stored: Path) -> None:
    given: Any
    for given in ("3/h", 3.0, Price(3.0)):
        shown = loaderbench.show("latest", stored, price=given)
        assert "An epoch of 1,000 images" in dict(shown.remarks)["What it costs"][1]
    record = loaderbench.show("latest", stored)
    assert "What it costs" not in dict(record.remarks)
    of_record = loaderbench.show(replace(examples.measured(), run_id="no-such-run"), stored, price="3/h")
    assert "the facts of this run" in dict(of_record.remarks)["What it costs"][1]
    with pytest.raises(ConfigError, match=r"^--price takes what the machine costs an hour"):
        loaderbench.show("latest", stored, price="cheap")


def test_a_run_is_shown_with_its_price_and_stored_without(small_set: Path, tmp_path: Path) -> None:
    options = ("--res", "96", *TINY, "--loader", "serial", "--workers", "0")
    ended = commands.run(
        "run", small_set, *options, "--price", "$2/h", "--json", "-", "--results", tmp_path / "results"
    )
    assert ended.code == 0, ended.err
    found, (stored,) = json.loads(ended.out), commands.records(tmp_path / "results")
    assert stored["price"] is None and found["price"]["currency"] == "$"
    assert found["price"]["epoch_samples"] == len(list((small_set / "96").rglob("*.jpg")))
    assert {**found, "price": None} == stored
