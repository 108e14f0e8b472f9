from __future__ import annotations

import csv
import re
from html.parser import HTMLParser
from pathlib import Path

import example_records as examples
import pytest

from loaderbench.errors import ConfigError
from loaderbench.reporting.csv import write_csv
from loaderbench.reporting.html import step_bar, write_report


class Reader(HTMLParser):
    """Collects a page's tags, its text and every address that it names."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "data")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text())
    reader.close()
    assert reader.open == []
    return reader


def test_the_report_is_one_file_with_verdicts_first(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    records = examples.sweep()

    write_report(records, out)

    page = read(out)
    assert page.addresses == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not re.search(r"url\(|@import|https?:", out.read_text())
    for record in records[:-1]:
        assert page.text.index(record["verdict"]["summary"]) < page.text.index("Images/s")
    assert "worker 3 was killed by signal 9" in page.text
    assert all(caveat["message"] in page.text for caveat in records[0]["caveats"])
    assert "Example CPU" in page.text
    assert [name.name for name in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a & b", "\udcff\x1b"])
def test_names_appear_as_text(tmp_path: Path, name: str) -> None:
    record = examples.measured(dataset_name=name, dataset=f"/data/{name}", loader=name)
    record["environment"][name] = name
    record["verdict"]["summary"] = name
    record["caveats"].append({"code": name, "message": name})

    write_report([record, examples.measured()], tmp_path / "report.html")

    page = read(tmp_path / "report.html")
    assert not {"script", "img"} & set(page.tags)
    assert name.replace("\udcff\x1b", "?\ufffd") in page.text


def test_bars_add_up_to_the_step() -> None:
    record = examples.measured(real_ms=70.0)
    bar = step_bar(record, "x", longest_s=0.140)
    assert sum(segment.width_percent for segment in bar.segments) == pytest.approx(50.0)
    assert {segment.cause: segment.width_percent for segment in bar.segments}["compute"] == pytest.approx(
        32 / 140 * 100
    )
    ends = [segment.x_percent + segment.width_percent for segment in bar.segments]
    assert [segment.x_percent for segment in bar.segments[1:]] == pytest.approx(ends[:-1])


def test_shares_that_were_not_measured_are_drawn_as_not_attributed() -> None:
    record = examples.measured(real_ms=70.0)
    record["shares"]["prep"] = None
    bar = step_bar(record, "x", longest_s=0.070)
    rest = bar.segments[-1]
    assert rest.cause == "not attributed"
    assert rest.width_percent == pytest.approx((64 - 33) * 0.9 / 70 * 100)
    assert step_bar(examples.ended_badly(), "x", longest_s=0.070).segments == []


def test_runs_without_any_figure_make_a_report(tmp_path: Path) -> None:
    nothing = examples.measured()
    for field in ("throughput", "step_time_s", "shares", "verdict", "capacities", "storage", "stages", "cpu", "device"):
        nothing[field] = None
    write_report([nothing, examples.ended_badly("skipped", resolution=None)], tmp_path / "report.html")
    assert "not measured" in read(tmp_path / "report.html").text


def test_where_nothing_can_be_written_one_line_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no finished run"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(ConfigError, match="cannot write the report"):
        write_report([examples.measured()], tmp_path / "missing" / "report.html")


def test_the_csv_has_a_row_per_run_and_empty_cells_for_the_unknown(tmp_path: Path) -> None:
    records = [examples.measured(dataset_name='a,"b"\nc'), examples.ended_badly()]
    write_csv(records, tmp_path / "runs.csv")
    with open(tmp_path / "runs.csv", newline="") as file:
        first, second = csv.DictReader(file)
    assert first["dataset_name"] == 'a,"b"\nc'
    assert float(first["throughput_samples_per_s"]) == records[0]["throughput"]["value"]
    assert first["share_launch_fraction"] == ""
    assert (second["status"], second["throughput_samples_per_s"]) == ("failed", "")
    assert second["failure"].startswith("worker 3")
