from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import example_records as examples
import pytest
from rich.console import Console

from loaderbench.analysis.study import summarize
from loaderbench.recording.record import GapShare, RunRecord
from loaderbench.recording.store import StoredRun
from loaderbench.recording.studies import SweepFacts
from loaderbench.reporting import listing, terminal
from loaderbench.reporting.console import print_result
from loaderbench.reporting.result import Column, Result, Table
from loaderbench.reporting.studies import print_findings


def shown(draw: Any, *args: Any, width: int = 80, whole: bool = False, **console: Any) -> str:
    stream = io.StringIO()
    more = {"whole": True} if whole else {}
    draw(*args, Console(file=stream, width=width, **console), **more)
    return stream.getvalue()


def every_run() -> dict[str, RunRecord]:
    """Records of every kind, the longest too."""
    cut = examples.measured(bottleneck="storage", cache="cold")
    return {
        "heavy": examples.heavy(),
        **{cause: examples.measured(bottleneck=cause) for cause in ("prep", "compute", "transfer", "undetermined")},
        "cold": cut,
    }


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", every_run())
def test_a_run_fits_one_screen_however_much_there_is_to_say(name: str, width: int) -> None:
    record = every_run()[name]
    lines = shown(terminal.print_run, record, width=width).splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "Where a step's time goes" in text and record.run_id in text
    assert "loaderbench show 20250102-030405-006 --all" in text
    assert (record.verdict is not None and not record.verdict.advice) or "What to try next 1. " in text


def test_the_first_screen_says_what_changes_the_verdict_and_all_is_behind_one_command() -> None:
    record = examples.heavy()
    text = " ".join(shown(terminal.print_run, record).split())
    # the first of what changes the verdict is said in words, the others by their codes
    assert "cold_not_proven: decode in threads" in text and "witnesses_disagree" in text
    assert "disk_shared" not in text
    whole = " ".join(shown(terminal.print_run, record, whole=True).split())
    assert "5. decode in threads" in whole and "disk_shared: decode in threads" in whole
    assert "witnesses_disagree: decode in threads" in whole
    figures = [one.sentence() for one in record.caveats]
    assert all(" ".join(one.split()) in whole for one in figures)


def test_a_share_that_is_unknown_is_named_and_one_that_may_gain_has_its_row() -> None:
    record = examples.measured(bottleneck="prep")
    shares = {**(record.shares or {}), "launch": None, "transfer": replace(record.shares["transfer"], value=0.001)}  # type: ignore[index]
    assert record.verdict is not None
    gains = {**record.verdict.speedup_if_removed, "transfer": None}
    text = shown(
        terminal.print_run, replace(record, shares=shares, verdict=replace(record.verdict, speedup_if_removed=gains))
    )
    assert "not measured: launch" in text and "below 0.5%: transfer" in text
    known = {**gains, "transfer": examples.estimate(1.5)}
    text = shown(
        terminal.print_run, replace(record, shares=shares, verdict=replace(record.verdict, speedup_if_removed=known))
    )
    assert re.search(r"transfer +0.1 %.* 1\.50×", text)


def test_the_evidence_of_a_screen_is_that_of_the_verdicts_cause() -> None:
    fed = "with data always ready, a step would take 46 % of its time"
    alone = "CPU preparation alone delivers 1,000 images/s, the device takes 2,000"
    by_cause = {"prep": alone, "compute": fed, "transfer": alone}
    for cause, first in by_cause.items():
        lines = shown(terminal.print_run, examples.measured(bottleneck=cause)).splitlines()
        at = lines.index("Evidence")
        assert lines[at + 1].strip() == first, cause
    gap = examples.kernel_gap({"launch": GapShare(1.0, 0.3)}, total_fraction=0.4, count_per_step=31, p50_s=2e-6)
    text = shown(terminal.print_run, examples.with_gaps(examples.measured(bottleneck="launch"), gap))
    assert "the device runs no kernel for 40 % of a step, 30 % of it waiting for launches" in text


def test_what_was_not_measured_is_never_zero() -> None:
    names = ("throughput", "time_to_first_batch_s", "accelerator_utilization_fraction", "storage", "cpu", "stages")
    record = replace(examples.measured(), **dict.fromkeys(names))
    lines = shown(terminal.print_run, record, whole=True).splitlines()
    for name in ("throughput", "first batch", "AU", "storage", "CPU", "per image", "overhead", "  launch"):
        # Of the two lines that begin with storage, the share was measured and is indented.
        (line,) = (line for line in lines if line.startswith(f"{name} "))
        assert line.split("  ")[-1].strip() == "not measured" or line.rstrip().endswith("not measured"), line
        assert "0" not in line


def sweep(records: Sequence[RunRecord], console: Console) -> None:
    print_findings(SweepFacts(len(records)), summarize(records), console, records)


def test_the_table_has_a_row_for_each_setting_in_80_columns() -> None:
    records = examples.sweep()
    lines = shown(sweep, records[::-1]).splitlines()
    assert max(map(len, lines)) <= 80
    start = next(number for number, line in enumerate(lines) if "images/s" in line and "res " in line)
    rows = [line.split() for line in lines[start + 2 : start + 2 + 12]]
    assert [row[0] for row in rows if row and row[0].isdigit()] == 3 * ["256"] + 3 * ["512"] + 3 * ["1024"]
    text = " ".join(" ".join(lines).split())
    assert "1024 dali 8w, failed: worker 3 was killed" in text
    assert "256: fastest of 3 settings is threaded 8w, 1," in text
    assert "±2% images/s (not significantly faster than multiprocess 8w). Limited by compute" in text
    assert "Not shown, for lack of width: " in text
    assert "Not shown, for lack of width: " not in shown(sweep, records, width=200)


def test_runs_that_differ_in_more_than_the_loader_say_in_what() -> None:
    records = [
        examples.measured(batch_size=size, decoder=name) for size in (32, 64) for name in ("pillow", "turbojpeg")
    ]
    lines = shown(sweep, records, width=200).splitlines()
    assert "multiprocess 8w batch 32 turbojpeg" in " ".join(" ".join(lines).split())
    assert "batch" not in lines[0]


def test_wide_figures_and_the_longest_verdict_do_not_break_the_table() -> None:
    record = examples.measured(device_ms=1.7, host_ms=1.7, ram_ms=1.7, real_ms=1.73, bottleneck="undetermined")
    lines = shown(sweep, [record, examples.measured(loader="threaded")]).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("36,994 ±2%" in line and line.rstrip().endswith("undetermined") for line in lines)


@pytest.mark.parametrize("name", ["[red]", "[/bold]", "a\x1b[31mb", "\udcff", "two\nlines"])
def test_names_print_as_text(name: str) -> None:
    record = examples.summed_up(examples.measured(dataset_name=name), name)
    run = StoredRun("20250102-030405-006-x", Path("x"), "ok", None, record, name)
    for draw, what in ((terminal.print_run, record), (sweep, [record]), (listing.print_list, [run])):
        text = shown(draw, what, force_terminal=True, color_system=None)
        expected = {"a\x1b[31mb": "a\ufffd[31mb", "\udcff": "?", "two\nlines": "two lines"}.get(name, name)
        assert expected in text
        assert "\x1b[31m" not in text


def test_nothing_to_show_says_so() -> None:
    assert "no runs" in shown(listing.print_list, [])
    assert "Its runs are not in this store any more." in shown(sweep, [])


@pytest.mark.parametrize("width", [20, 40])
def test_a_table_wider_than_the_terminal_loses_no_figure(width: int) -> None:
    rate = "23.0 MB/s (20.0 MB/s – 26.0 MB/s)"
    table = Table("Rates", (Column("名前", left=True), Column("a"), Column("b")), [("データ" * 5, rate, "42")])
    text = shown(lambda it, console: print_result(it, console), Result("", [], ["x"], [table]), width=width)
    assert sorted("".join(text.split()).replace("─", "")) == sorted(
        "x名前ab" + "データ" * 5 + "".join(rate.split()) + "42"
    )


def test_a_narrow_sweep_has_its_verdicts() -> None:
    lines = shown(sweep, examples.sweep(), width=40).splitlines()
    assert sum(line.endswith((" prep", " compute")) for line in (line.rstrip() for line in lines)) >= 9


def test_tables_of_the_same_columns_have_their_titles() -> None:
    tables = [Table(title, (Column("rank"),), [(0,)]) for title in ("first case", "second case")]
    text = shown(lambda it, console: print_result(it, console), Result("", [], ["x"], tables))
    assert "first case" in text and "second case" in text


PRINT = """
import sys
sys.path.insert(0, sys.argv[1])
import example_records
from loaderbench.analysis.study import summarize
from loaderbench.recording.studies import SweepFacts
from loaderbench.reporting.studies import print_findings
from loaderbench.reporting.terminal import make_console, print_run
print_run(example_records.measured(), make_console())
runs = example_records.sweep()
print_findings(SweepFacts(len(runs)), summarize(runs), make_console(), runs)
"""


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_pipe_gets_plain_text_whatever_its_encoding(encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINT, str(Path(__file__).parent)],
        env={"PYTHONIOENCODING": encoding, "PYTHONPATH": ":".join(filter(None, sys.path)), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )
    assert done.stderr == b""
    assert b"\x1b" not in done.stdout
    assert ("█" if encoding == "utf-8" else "#").encode() in done.stdout


def test_no_color_is_respected_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    colour = re.compile(r"\x1b\[(\d+;)*3\d")  # any: rich keeps a style's codes for the colours it was first drawn in
    monkeypatch.setenv("TERM", "xterm-256color")
    assert colour.search(shown(terminal.print_run, examples.measured(), force_terminal=True, color_system="256"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colour.search(shown(terminal.print_run, examples.measured(), force_terminal=True, color_system="256"))


def test_importing_the_terminal_report_imports_no_rich() -> None:
    code = "import sys, loaderbench.reporting.terminal; sys.exit(bool({'torch', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
