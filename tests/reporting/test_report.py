"""The report in its forms: what it says, that names stay text, and that its figures are those of the records."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import example_records as examples
import numpy as np
import pytest
from rich.console import Console

from loaderbench.analysis.kernels import HISTOGRAM_EDGES_S
from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.analysis.study import gather, summarize
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.errors import ConfigError
from loaderbench.recording.caveats import Caveat, Reason
from loaderbench.recording.facts import SCHEMA, STEP_FIELDS, Recording, Run, Segment, Series
from loaderbench.recording.record import GapHistogram, GapShare, RunRecord, ShortRun
from loaderbench.recording.store import Store, record_json
from loaderbench.recording.studies import CompareFacts, Final, StudyFacts, StudyKind, StudyRecord, SweepFacts, TuneFacts
from loaderbench.reporting import figures
from loaderbench.reporting import format as fmt
from loaderbench.reporting.csv import csv_text
from loaderbench.reporting.environment import environment_rows
from loaderbench.reporting.figures import Figure
from loaderbench.reporting.format import value_of
from loaderbench.reporting.html import csv_url, render_html
from loaderbench.reporting.markdown import render_markdown
from loaderbench.reporting.report import Content, Part, read_report
from loaderbench.reporting.study_figures import seconds_by_cause, study_figures
from loaderbench.reporting.terminal import print_run
from loaderbench.reporting.timeline_figure import timeline_figure

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; Debian's package is chromium")


def runs_of(part: Part) -> list[str]:
    assert part.study is not None
    return [run for row in part.study.rows for run in row.run_ids]


def stored(root: Path, records: list[RunRecord]) -> Store:
    for record in records:
        folder = root / record.run_id
        folder.mkdir(parents=True)
        (folder / "case.json").write_text(json.dumps(record.case.to_json()))
        (folder / "run.json").write_text(json.dumps(record_json(record)[0]))
    return Store(root)


def study_of(store: Store, kind: StudyKind, facts: StudyFacts, run_ids: list[str]) -> None:
    folder = store.new_study(kind, ["made-up"])
    folder.write(
        StudyRecord(SCHEMA, RULES_VERSION, folder.study_id, kind, folder.started_at, facts, None, tuple(run_ids))
    )


def with_comparison(root: Path) -> Store:
    """The made-up sweep, and one data set on two storages of which the second is four times slower."""
    sides: dict[str, list[RunRecord]] = {"nvme": [], "nfs": []}
    for workers in (1, 8):
        for name, records in sides.items():
            made = examples.measured(
                run_id=f"20250103-{name}-{workers}", real_ms=280.0 if name == "nfs" else 70.0, workers=workers,
                dataset=f"/{name}/512", dataset_name=name, cache="cold",
                bottleneck="storage" if name == "nfs" else "prep",
            )  # fmt: skip
            records.append(made)
    compared = [*sides["nvme"], *sides["nfs"]]
    store = stored(root, [*examples.sweep(), *compared])
    facts = CompareFacts({"a": "nvme", "b": "nfs"}, num_cases=4, notes=(Reason("note", {"text": "warm left out"}),))
    study_of(store, "compare", facts, [record.run_id for record in compared])
    return store


class Reader(HTMLParser):
    """Collects a page's tags, ids, addresses and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = {name: value or "" for name, value in attrs}
        self.addresses += [given[name] for name in ("src", "href", "xlink:href", "data") if name in given]
        self.ids += [given["id"]] if "id" in given else []
        self.labels += [given["aria-label"]] if given.get("role") == "img" else []
        if tag not in ("meta", "br", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def test_the_page_needs_nothing_else_and_says_the_verdict_first(tmp_path: Path) -> None:
    report = read_report(with_comparison(tmp_path))
    html = render_html(report)
    page = read(html)
    assert not {"link", "img", "iframe"} & set(page.tags) and page.tags.count("script") == 1
    assert all(one.startswith(("#", "data:text/csv")) for one in page.addresses)
    assert not re.search(r"url\((?!#)|@import|(src|href)=\"https?:", html)
    targets = {one.removeprefix("#") for one in page.addresses if one.startswith("#")}
    assert targets <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    verdict = "nfs is slower than nvme: 0.25×"
    assert page.text.index(verdict) < page.text.index("Time of an image, by cause")
    assert "256: fastest of 3 settings is threaded 8w, " in page.text
    assert "worker 3 was killed by signal 9" in page.text
    assert "Example CPU" in page.text
    assert "warm left out" in page.text
    # each has a drawing for a wide page and one for a phone, of which a page shows one
    assert sorted(page.labels) == sorted(2 * [figure.description for figure in report.figures]) and page.labels
    assert all(figure.title in " ".join(page.labels) for figure in report.figures)


def test_a_figure_s_data_is_downloadable_as_it_is(tmp_path: Path) -> None:
    report = read_report(with_comparison(tmp_path))
    page = read(render_html(report))
    for figure in report.figures:
        assert csv_url(figure) in page.addresses
        text = base64.b64decode(csv_url(figure).partition(",")[2]).decode()
        head, *rows = csv.reader(io.StringIO(text))
        assert tuple(head) == figure.columns
        assert rows == [["" if value is None else str(value) for value in row] for row in figure.rows]
    causes = next(figure for figure in report.figures if figure.name.endswith("-causes"))
    at = causes.columns.index("compute_s")
    assert [row[at] for row in causes.rows] == pytest.approx([0.032 / 64] * len(causes.rows))  # 32 ms of 64 images


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a & b", "\udcff\x1b"])
def test_names_appear_as_text(tmp_path: Path, name: str) -> None:
    record = examples.measured(dataset_name=name, dataset=f"/data/{name}", loader=name)
    assert record.environment is not None
    environment = replace(record.environment, packages={**record.environment.packages, name: name})
    caveat = Caveat("sampler_missing", {"reason": name}, message=name)
    record = examples.summed_up(replace(record, environment=environment, caveats=(*record.caveats, caveat)), name)
    serial = examples.measured(
        run_id="2", dataset_name=name, dataset=f"/data/{name}", loader="serial", workers=0, real_ms=140.0
    )
    report = read_report(stored(tmp_path, [record, serial]))
    page = read(render_html(report))
    assert "img" not in page.tags and page.tags.count("script") == 1
    shown = name.replace("\udcff\x1b", "?\ufffd")
    assert shown in page.text
    assert any(shown in figure.rows[0][1] for figure in report.figures)  # drawn, too
    markdown = render_markdown(report)
    assert "<script" not in markdown and "<img" not in markdown


def test_causes_add_up_to_the_step() -> None:
    record = examples.measured(real_ms=70.0)
    seconds = seconds_by_cause(record)
    assert seconds is not None
    assert sum(seconds.values()) == pytest.approx(0.070)
    assert seconds["compute"] == pytest.approx(0.032)
    seconds = seconds_by_cause(examples.without_share(record, "prep"))
    assert seconds is not None and seconds[figures.UNATTRIBUTED] == pytest.approx((64 - 33) * 0.9e-3)
    assert seconds_by_cause(examples.ended_badly()) is None


def test_runs_without_any_figure_make_a_report(tmp_path: Path) -> None:
    names = ("throughput", "step_time_s", "shares", "verdict", "capacities", "storage", "stages", "cpu", "device")
    nothing = replace(examples.measured(), **dict.fromkeys(names))
    report = read_report(stored(tmp_path, [nothing, examples.ended_badly("skipped", resolution=None)]))
    assert report.figures == []
    assert "not measured" in read(render_html(report)).text
    assert "was killed by signal 9" in render_markdown(report)


def test_failed_and_interrupted_runs_have_a_section_of_their_own(tmp_path: Path) -> None:
    measured, failed = examples.measured(run_id="1"), replace(examples.ended_badly(), run_id="2")
    interrupted = replace(examples.ended_badly("interrupted", workers=3), run_id="3")
    store = stored(tmp_path, [measured, failed, interrupted])
    crashed = store.open_run(measured.case)  # its process is gone
    (crashed.path / "running.json").unlink()
    (tmp_path / "20260101-000000-000-broken").mkdir()
    (tmp_path / "20260101-000000-000-broken" / "study.json").touch()

    report = read_report(store)

    assert report.without is not None
    ended = {row[0]: row[2] for row in report.without.rows}
    assert ended == {
        "2": "failed", "3": "interrupted", crashed.run_id: "crashed", "20260101-000000-000-broken": "unreadable",
    }  # fmt: skip
    (study,) = report.studies
    assert runs_of(study) == ["1"]
    for text in (read(render_html(report)).text, render_markdown(report)):
        assert text.index("Failed and interrupted runs") < text.rindex("was killed by signal 9")
        assert "the run ended before its result was written" in text


def test_a_rate_that_is_not_finite_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    sound = examples.measured(run_id="1")
    rate = replace(sound.throughput, value=math.nan)
    assert sound.shares is not None
    shares = {name: share and replace(share, value=math.nan) for name, share in sound.shares.items()}
    odd = replace(examples.measured(run_id="2", workers=3), throughput=rate, shares=shares)
    (study,) = read_report(stored(tmp_path, [sound, odd])).studies
    assert study.study is not None
    assert [row.run_ids for row in study.study.rows] == [("1",)]
    render_html(read_report(Store(tmp_path)))
    console = Console(file=io.StringIO())
    print_run(odd, console)


def test_a_run_that_makes_no_sense_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    # an edge of the histogram lies below zero, so that no band of lengths holds its gaps
    none = GapShare(0.0, 0.0)
    of_classes = {"data_stall": none, "launch": none, "transfer_sync": none, "other": none}
    gap = examples.kernel_gap(
        of_classes, total_fraction=0.1, count_per_step=1.0, p50_s=1e-5, histogram=GapHistogram((-1.0,), (1, 1))
    )
    odd = examples.with_gaps(examples.measured(run_id="2", workers=3), gap)
    report = read_report(stored(tmp_path, [examples.measured(run_id="1"), odd]))
    (study,) = report.studies
    assert runs_of(study) == ["1"]
    assert report.without is not None
    ((run_id, _, ended, why),) = report.without.rows
    assert (run_id, ended) == ("2", "unreadable") and "contradict each other" in why


def test_a_comparison_that_makes_no_sense_is_named_and_the_others_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = with_comparison(tmp_path)
    (compared,) = store.studies()
    monkeypatch.setattr("loaderbench.reporting.comparison.headline", lambda *_: 1 // 0)
    report = read_report(store)
    assert report.without is not None and report.without.rows[0][0] == compared.study_id
    assert len(report.records) > 4 and report.studies


def test_a_report_of_failed_runs_alone_says_so(tmp_path: Path) -> None:
    report = read_report(stored(tmp_path, [examples.ended_badly()]))
    assert report.parts == [] and len(report.records) == 1
    assert "No run ended well." in read(render_html(report)).text
    assert "no run ended well" in render_markdown(report)


def test_a_report_of_some_runs_holds_these_alone(tmp_path: Path) -> None:
    store = with_comparison(tmp_path)
    tagged = examples.measured(run_id="20250105-tagged", dataset_name="tagged", dataset="/tagged/512")
    stored(tmp_path, [replace(tagged, tag="nightly")])
    (compared,) = store.studies()
    one = examples.sweep()[0].run_id

    def reported(*names: str) -> set[str]:
        return {record.run_id for record in read_report(store, names=names).records}

    assert reported(one) == {one}
    assert reported("nightly") == {"20250105-tagged"} and reported("20250105") == {"20250105-tagged"}
    assert compared.study is not None
    assert reported(compared.study_id) == {*compared.study.runs}
    assert reported(compared.study_id, "nightly") == {*compared.study.runs, "20250105-tagged"}
    (part,) = read_report(store, names=[compared.study_id]).parts
    assert part.study is None and "nfs is slower than nvme" in part.headline
    with pytest.raises(ConfigError, match=r"no run in .* begins with 'nothing'"):
        reported(one, "nothing")
    assert "tag nightly" in read(render_html(read_report(store, names=["nightly"]))).text


def calls_of(function: Callable[[], object]) -> int:
    """How many Python functions it calls: what it costs, whatever the machine does meanwhile."""
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def serial_runs(number: int) -> list[RunRecord]:
    """Distinct settings of one data set, each a row of its own, half of them serial."""
    one = examples.measured(workers=0, loader="serial")
    cases = [one.case.changed(seed=seed, workers=seed % 2) for seed in range(number)]
    return [replace(one, run_id=f"{seed:05d}", case=case) for seed, case in enumerate(cases)]


def test_judging_a_study_costs_as_much_a_run_whatever_its_size() -> None:
    few, many = (calls_of(partial(summarize, serial_runs(number))) for number in (30, 300))
    assert many <= 11 * few


def test_a_csv_costs_as_much_a_run_whatever_their_number(tmp_path: Path) -> None:
    few, many = stored(tmp_path / "few", serial_runs(20)), stored(tmp_path / "many", serial_runs(200))
    csv_text(Content(few).records)  # what is done once
    costs = [calls_of(lambda store=store: csv_text(Content(store).records)) for store in (few, many)]  # type: ignore[misc]
    assert costs[1] <= 11 * costs[0]


def test_the_newest_run_of_a_case_counts() -> None:
    first = examples.measured(run_id="1", real_ms=70.0)
    second = examples.measured(run_id="2", real_ms=50.0)
    failed = replace(examples.ended_badly(), run_id="3", case=first.case, environment=first.environment)
    elsewhere = examples.measured(run_id="4")
    assert elsewhere.environment is not None
    elsewhere = replace(elsewhere, environment=replace(elsewhere.environment, cpus_usable=64))
    groups = gather([first, second, failed, elsewhere])
    assert sorted([record.run_id for record in group] for group in groups) == [["2"], ["4"]]
    assert [record.run_id for record in gather([failed, replace(failed, run_id="5")])[0]] == ["5"]


def test_caveats_that_change_a_verdict_come_first(tmp_path: Path) -> None:
    doubtful = Caveat("cold_not_proven", message="41% of the expected bytes moved", hint="see loaderbench doctor")
    record = examples.measured()
    report = read_report(stored(tmp_path, [replace(record, caveats=(*record.caveats, doubtful))]))
    assert [severity for severity, _ in report.caveats] == [
        "changes the verdict", "limits a figure", "for your information",
    ]  # fmt: skip
    text = read(render_html(report)).text
    text = text[text.index("Changes the verdict") :]
    assert text.index("41% of the expected bytes moved: see loaderbench doctor cold_not_proven") < text.index(
        "Limits a figure"
    )
    assert text.index("Limits a figure") < text.index("kernel_gap_not_measured") < text.index("For your information")
    markdown = render_markdown(report)
    places = [markdown.index(f"**{words}**") for words in ("Changes the verdict", "Limits a figure")]
    assert places == sorted(places) and "- cold\\_not\\_proven: 41% of" in markdown


def test_runs_that_a_comparison_names_and_that_are_gone_are_left_out(tmp_path: Path) -> None:
    store = with_comparison(tmp_path)
    shutil.rmtree(tmp_path / "20250103-nfs-8")
    (comparison,) = (part for part in read_report(store).parts if part.study is None)
    rates = comparison.result.tables[0].texts
    assert [row[1] for row in rates] == ["1", "8"]
    assert rates[0][5] == "slower" and rates[1][3:] == ["–", "–", "not measured"]


def test_a_study_that_nothing_draws_changes_nothing(tmp_path: Path) -> None:
    records = examples.sweep()
    store = stored(tmp_path, records)
    before = render_html(read_report(store))
    study_of(store, "sweep", SweepFacts(len(records)), [records[0].run_id])
    assert render_html(read_report(store)) == before


def test_runs_of_a_search_are_a_part_of_their_own_and_no_bars_of_a_study(tmp_path: Path) -> None:
    records = examples.sweep()
    raced = [
        examples.measured(
            run_id=f"20250104-{name}", loader=name, resolution=1024, dataset="/data/photos/1024", real_ms=ms
        )
        for name, ms in (("threaded", 40.0), ("multiprocess", 80.0))
    ]
    store = stored(tmp_path, [*records, *raced])
    finals = tuple(Final(one.case, (one.run_id,), one is raced[1]) for one in raced)
    facts = TuneFacts(raced[1].case, num_settings=9, budget_s=60.0, spent_s=50.0, num_rungs=1, trials=(), finals=finals)
    study_of(store, "tune", facts, [one.run_id for one in raced])
    report = read_report(store)
    (study,) = report.studies
    assert {*runs_of(study)} == {one.run_id for one in records if one.status == "ok"}
    (search,) = (part for part in report.parts if part.study is None)
    assert search.result.title == "The fastest loading for resnet50 training from “photos”"
    assert [row[-2:] for row in search.result.tables[1].texts] == [["1,600 ±2%", ""], ["800 ±2%", "default"]]


def test_its_title_and_its_days_are_those_a_reader_would_give(tmp_path: Path) -> None:
    report = read_report(stored(tmp_path, examples.sweep()))
    assert report.title == "What limits resnet50 training from “photos” on H200 (emulated)"
    assert report.when == "2 January 2025, 03:04 to 03:05 UTC"
    assert fmt.span("2026-11-23T23:30:00+00:00", "2026-11-24T01:00:00+00:00") == "23 November 2026 to 24 November 2026"
    assert fmt.span("2026-11-24T02:40:18+02:00", "2026-11-24T02:40:50+02:00") == "24 November 2026, 00:40 UTC"
    assert fmt.span("no date", "no date") == "no date"


def test_the_environment_is_told_in_words() -> None:
    environment = examples.measured().environment
    rows = dict(environment_rows([environment, None]))
    assert rows["Processor"] == ["Example CPU (x86_64)"] and rows["Processors"] == ["8 usable"]
    assert rows["Memory"] == ["34.4 GB"] and rows["GPU"] == ["none (no GPU here)"]
    assert rows["Packages"] == ["loaderbench 0.1.0, torch 2.11.0"]
    assert not {"Container", "Frequency governor", "Environment variables"} & rows.keys()  # not known, or none


def test_the_fastest_bar_comes_first_with_its_rate_and_interval() -> None:
    records = [
        examples.measured(run_id=f"r{ms}", loader=name, real_ms=ms)
        for name, ms in (("serial", 200.0), ("threaded", 50.0), ("multiprocess", 100.0))
    ]
    figure = study_figures(records, summarize(records))[0]
    assert [row[1].split()[0] for row in figure.rows] == ["threaded", "multiprocess", "serial"]
    assert figure.columns[-3:] == ("images_per_s", "low", "high")
    assert figure.rows[0][-3:] == pytest.approx((1280.0, 1254.4, 1305.6))
    text = figures.svg(figure)
    assert "1,280 images/s (1,254 to 1,306)" in text
    narrow = figures.svg(figure, narrow=True)
    assert "1,280/s" in narrow and "threaded 8w" in narrow
    assert not set(re.findall(r'\bid="([^"]*)"', text)) & set(re.findall(r'\bid="([^"]*)"', narrow))


def test_gaps_are_counted_in_lengths_that_can_be_read() -> None:
    edges = HISTOGRAM_EDGES_S  # of every run: half decades from 100 ns to 10 s
    counts = tuple(range(len(edges) + 1))
    none = GapShare(0.0, 0.0)
    gap = examples.kernel_gap(
        {"data_stall": none, "launch": none, "transfer_sync": none, "other": none}, total_fraction=0.1,
        count_per_step=15.3, p50_s=1e-5, histogram=GapHistogram(edges, counts), num_steps=1,
    )  # fmt: skip
    record = examples.with_gaps(examples.measured(), gap)
    (figure,) = (one for one in study_figures([record], summarize([record])) if one.name == "gaps")
    found = dict(zip(figure.columns, figure.rows[0], strict=True))
    told = {name.removeprefix("gaps_per_step_of_"): value for name, value in found.items() if "step_of" in name}
    assert told == {
        "under_10_µs": 0 + 1 + 2 + 3 + 4, "10_µs_to_0.1_ms": 5 + 6, "0.1_ms_to_1_ms": 7 + 8, "1_ms_to_10_ms": 9 + 10,
        "10_ms_to_100_ms": 11 + 12, "over_100_ms": 13 + 14 + 15 + 16 + 17,
    }  # fmt: skip


def test_figures_are_written_as_files_that_programs_open(tmp_path: Path) -> None:
    report = read_report(with_comparison(tmp_path / "results"))
    for figure in report.figures:
        figures.save(figure, tmp_path / f"{figure.name}.svg")
        root = ElementTree.parse(tmp_path / f"{figure.name}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg" and "var(" not in ElementTree.tostring(root, "unicode")
    with pytest.raises(ConfigError, match="there is no folder"):
        figures.save(report.figures[0], tmp_path / "missing" / "a.svg")


def test_figures_are_written_as_pictures(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    from PIL import Image

    report = read_report(with_comparison(tmp_path / "results"))
    for figure in report.figures:
        figures.save(figure, tmp_path / f"{figure.name}.png")
        picture = Image.open(tmp_path / f"{figure.name}.png").convert("RGB")
        seen = {colour for _, colour in picture.getcolors(1 << 24)}
        assert picture.width == pytest.approx(2 * figures.WIDTH_IN * figures.POINTS, abs=2)
        assert (255, 255, 255) in seen and (0x1B, 0x1F, 0x24) in seen  # the page, and ink


def test_the_figures_of_workers_storage_gaps_and_short_runs() -> None:
    records = []
    for workers, real_ms in ((1, 200.0), (2, 100.0), (4, 99.0)):
        record = examples.measured(run_id=f"w{workers}", workers=workers, real_ms=real_ms, cache="cold")
        read = replace(examples.storage_of(record), bandwidth_bytes_per_s=50e6, ceiling_bytes_per_s=80e6)
        none = GapShare(0.0, 0.0)
        gap = examples.kernel_gap(
            {"data_stall": GapShare(1.0, 0.5 / workers), "launch": none, "transfer_sync": none, "other": none},
            total_fraction=0.5 / workers, count_per_step=2.0, p50_s=1e-5, p95_s=1e-4,
        )  # fmt: skip
        short = ShortRun(100, 100, 1.0, True, throughput=examples.estimate(900.0), flatters=examples.estimate(1.9))
        records.append(replace(examples.with_gaps(record, gap), storage=read, short_run=short))
    made = {figure.name: figure for figure in study_figures(records, summarize(records))}
    assert {"workers", "bandwidth", "gaps", "buffers"} <= made.keys()
    assert [(row[2], row[7]) for row in made["workers"].rows] == [(1, "no"), (2, "yes"), (4, "no")]
    assert made["bandwidth"].rows[0][2:] == (50e6, 80e6)
    with_one_worker = made["gaps"].rows[-1]  # the slowest comes last
    assert with_one_worker[2] == 0.5 and with_one_worker[-3:] == (0.5, 1.0, 0.5)
    assert made["buffers"].rows[0][5] == 1.9
    assert all("<svg" in figures.svg(figure) for figure in made.values())


def test_the_strip_of_a_run_shows_its_stamps() -> None:
    # Two warm-up steps, then steps of 100 ms: 60 waiting, 5 issuing; the device copies 10 and computes 20.
    stamps = []
    for step in range(6):
        at = step * 100
        times = [at, at + 60, at + 65, at + 65, at + 60, at + 70, at + 90]
        stamps.append([*(one * 1_000_000 for one in times), 20_000_000, 64, 1000])
    untold = len(STEP_FIELDS) - len(stamps[0])
    steps = np.pad(np.array(stamps, dtype=np.int64), ((0, 0), (0, untold)), constant_values=-1)
    segment = Segment(Arm.REAL, 0, 2, True, steps, None, opened_ns=0, closed_ns=600_000_000)
    counter = Series(
        "storage_read_bytes", "bytes", "counter", "x", np.array([0, 3, 6]) * 100_000_000, np.array([0.0, 3e6, 9e6])
    )
    recording = Recording([segment], examples.FACTS)
    run = Run("a-run", examples.case(), "ok", "2025-01-02", 1.0, None, recording, [counter])
    figure = timeline_figure(run, "a run")
    assert figure is not None
    rows = {(row[0], row[1], row[2]): row[3:] for row in figure.rows}
    assert rows["main loop", "wait for data", 1][:2] == (100.0, 160.0)
    assert rows["copy", "copy", 0][:2] == (60.0, 70.0)
    assert rows["device", "compute", 1][:2] == (170.0, 190.0)
    # The device was done at 90, the loop asked at 100: idle for data from then on.
    assert rows["device", "stall", 1][:2] == (100.0, 160.0)
    flow = [row[3:] for row in figure.rows if row[0] == "storage"]
    assert flow == [(-200.0, 100.0, 10e6), (100.0, 400.0, 20e6)]
    assert timeline_figure(replace(run, recording=None), "a run") is None


@pytest.mark.parametrize("num_runs", [250, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_runs_stay_a_small_page(num_runs: int, tmp_path: Path) -> None:
    records = []
    for number in range(num_runs):
        one = examples.measured(
            run_id=f"run{number:04d}", workers=1 + number // 3, resolution=(resolution := (256, 512, 1024)[number % 3]),
            dataset_name=f"set{number // 250}", dataset=f"/data/set{number // 250}/{resolution}",
            real_ms=60.0 + number % 97,
        )  # fmt: skip
        records.append(one)
    report = read_report(stored(tmp_path, records))
    html = render_html(report)
    assert len(report.records) == num_runs
    assert len(html.encode()) < 10_000 * num_runs
    assert len(report.studies) == num_runs // 250


def test_the_csv_has_a_row_per_run_and_empty_cells_for_the_unknown() -> None:
    records = [examples.measured(dataset_name='a,"b"\nc'), examples.ended_badly()]
    first, second = csv.DictReader(io.StringIO(csv_text(records), newline=""))
    assert first["dataset_name"] == 'a,"b"\nc'
    assert float(first["throughput_samples_per_s"]) == value_of(records[0].throughput)
    assert first["share_launch_fraction"] == ""
    assert (second["status"], second["throughput_samples_per_s"]) == ("failed", "")
    assert second["failure"].startswith("worker 3")


def test_a_spreadsheet_takes_no_text_for_a_formula_and_numbers_stay() -> None:
    formulas = ["=HYPERLINK(1)", "+1+cmd", "-2+3", "@SUM(1)", "\tx", "\rx", "＝1"]
    records = [examples.measured(dataset_name=text) for text in formulas]
    rows = list(csv.DictReader(io.StringIO(csv_text(records), newline="")))
    assert [row["dataset_name"] for row in rows] == [f"'{text}" for text in formulas]
    assert float(rows[0]["throughput_samples_per_s"]) == value_of(records[0].throughput)
    rows_of_figure: list[dict[str, str | float | None]] = [{"=a": "=1+1", "b": -2.5}, {"=a": None, "b": "plain - text"}]
    figure = Figure("figure", "title", "caption", rows_of_figure, 1.0, lambda drawing: None)
    text = base64.b64decode(csv_url(figure).partition(",")[2]).decode()
    assert list(csv.reader(io.StringIO(text))) == [["'=a", "b"], ["'=1+1", "-2.5"], ["", "plain - text"]]


# -- in a browser --------------------------------------------------------------------------------------


def opened(page: Path, profile: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """The page as headless Chromium has it after its scripts ran; its console on stderr."""
    assert CHROMIUM is not None
    return subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={profile}", "--enable-logging=stderr", *flags, page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip


TRY_IT = """
<script>
window.addEventListener("error", function (event) { document.title = "error: " + event.message; });
var button = document.getElementById("theme"), root = document.documentElement, seen = [];
function paper() { return getComputedStyle(document.body).backgroundColor; }
seen.push(button.hidden, paper());
button.click(); button.click();
seen.push(root.getAttribute("data-theme"), paper());
var input = document.getElementById("filter");
input.value = "threaded 1024"; input.dispatchEvent(new Event("input"));
seen.push(document.querySelectorAll("details.run:not([hidden])").length, document.getElementById("shown").textContent);
var shown = Array.from(document.querySelectorAll("figure svg")).filter(function (one) {
  return one.getBoundingClientRect().width > 0;
});
seen.push(shown.length === document.querySelectorAll("figure").length && shown.every(function (one) {
  var box = one.getBoundingClientRect();
  return box.height > 50 && box.width > 300 && (window.innerWidth > 704 || box.width <= window.innerWidth);
}));
seen.push(document.querySelectorAll("table").length > 5);
seen.push(document.documentElement.scrollWidth <= window.innerWidth);
document.body.setAttribute("data-seen", JSON.stringify(seen));
</script>
"""


@needs_chromium
@pytest.mark.parametrize("size", [pytest.param("1200,900", marks=pytest.mark.slow), "375,800"])
def test_in_chromium_it_opens_and_its_switches_work(tmp_path: Path, size: str) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_html(read_report(with_comparison(tmp_path / "results"))))
    clean = opened(page, tmp_path / "profile", "--dump-dom")
    assert "CONSOLE" not in clean.stderr
    assert "nfs is slower than nvme" in clean.stdout
    tried = tmp_path / "tried.html"
    tried.write_text(page.read_text().replace("</body>", f"{TRY_IT}</body>"))
    found = opened(tried, tmp_path / "profile", "--dump-dom", f"--window-size={size}")
    assert "CONSOLE" not in found.stderr
    match = re.search(r'data-seen="([^"]*)"', found.stdout)
    assert match is not None
    seen = json.loads(match[1].replace("&quot;", '"'))
    dark = seen.pop(3)
    assert seen == [False, "rgb(255, 255, 255)", "dark", 1, "1 of 14", True, True, True]
    assert dark == "rgb(20, 23, 27)"


def test_cases_of_the_examples_are_cases() -> None:
    assert Case.from_json(examples.case().to_json()) == examples.case()
    assert examples.case().key
