from __future__ import annotations

import io
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import example_records as examples
import pytest
from rich.console import Console

from loaderbench.recording.caveats import SEVERITIES, Caveat
from loaderbench.recording.record import GapShare, RunRecord
from loaderbench.recording.store import StoredRun
from loaderbench.reporting import listing, terminal, words


def shown(draw: Any, *args: Any, width: int = 80, whole: bool = False, **console: Any) -> str:
    stream = io.StringIO()
    more = {"whole": True} if whole else {}
    draw(*args, Console(file=stream, width=width, **console), **more)
    return stream.getvalue()


def test_a_run_begins_with_its_verdict_and_fits_80_columns() -> None:
    record = examples.measured()
    text = shown(terminal.print_run, record)
    lines = text.splitlines()
    assert lines[0].startswith(f"prep: {examples.verdict_of(record).summary}")
    assert max(map(len, lines)) <= 80
    for expected in (
        "914 ± 18 images/s",
        "p95 79.8 ms",
        "46 %",
        "emulated H200",
        "1.60× (1.44–1.76)",
        record.run_id,
    ):
        assert expected in text
    joined = " ".join(text.split())
    assert all(caveat.code in joined for caveat in record.caveats)  # no more than there is room for
    assert "(in words: loaderbench show RUN --caveats)" in joined
    joined = " ".join(shown(terminal.print_run, record, whole=True).split())
    assert all(words.sentence(caveat) in joined for caveat in record.caveats)
    assert "in this made-up example: run `loaderbench selftest`" in joined  # what to do about it


def heavy() -> RunRecord:
    """A run with much to say: more advice and caveats than fit, each of them long."""
    record = examples.measured(dataset_name="a data set with a long name", loader_options={"key": "value"})
    verdict = examples.verdict_of(record)
    long = "decode in threads, straight into the batch: --loader threaded --decoder libjpeg --output uint8 --workers 2"
    advice = tuple(replace(verdict.advice[0], action=f"{long} (knee: more add less than 3 %)") for _ in range(5))
    told = ("cold_not_proven", "witnesses_disagree", *(code for code in list(SEVERITIES)[:14]))
    caveats = tuple(Caveat(code, message=f"{long} {code}") for code in dict.fromkeys(told) if code != "eviction_failed")
    return replace(record, verdict=replace(verdict, advice=advice), caveats=caveats)


@pytest.mark.parametrize("width", [80, 120])
def test_a_run_fits_one_screen_however_much_there_is_to_say(width: int) -> None:
    record = heavy()
    lines = shown(terminal.print_run, record, width=width).splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    # what changes the verdict is said in words, the others by their codes alone
    assert "cold_not_proven: decode in threads" in text and "witnesses_disagree: decode in threads" in text
    assert "disk_shared: " not in text and "disk_shared," in text and ", 6 more (in words: " in text
    assert "more: loaderbench show 20250102-030405-006 --all" in text
    whole = " ".join(shown(terminal.print_run, record, width=width, whole=True).split())
    assert "5. decode in threads" in whole and "disk_shared: decode in threads" in whole


def test_the_evidence_of_a_screen_is_that_of_the_verdicts_cause() -> None:
    fed = "with data always ready a step would take 46 % of its time"
    alone = "CPU preparation by itself gives 1,000 images/s, the device takes 2,000"
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


def test_what_came_before_the_first_round_is_shown_with_its_times() -> None:
    record = examples.measured()
    assert "start" not in shown(terminal.print_run, record, whole=True).split()
    told = replace(record, start_s={"imports": 2.13, "ranks": 0.0, "device": 9.04, "first_step": 0.4})
    joined = " ".join(shown(terminal.print_run, told, whole=True).split())
    assert "start imports 2.13 s · device 9.04 s · first step 400 ms" in joined
    assert "imports" not in shown(terminal.print_run, told)


def test_kernel_gaps_are_shown_by_what_the_device_waited_for() -> None:
    record = examples.measured()
    assert "kernel gaps   not measured" in shown(terminal.print_run, record, whole=True)
    by_class = {"data_stall": GapShare(1.0, 0.3), "launch": GapShare(1.0, 0.1), "other": GapShare(0.0, 0.0)}
    gap = examples.kernel_gap(by_class, total_fraction=0.4, count_per_step=31.4, p50_s=2.5e-6)
    record = examples.with_gaps(record, gap)
    joined = " ".join(shown(terminal.print_run, record, whole=True).split())
    assert "40.0 % of the step in 31 gaps · data_stall 30.0 % · launch 10.0 % · half of them below 2.50 µs" in joined
    assert "other" not in joined


def test_a_storage_that_provably_had_nothing_to_do_says_so() -> None:
    record = examples.measured(cache="warm")
    idle = replace(examples.storage_of(record), idle_proof="local")
    text = " ".join(shown(terminal.print_run, replace(record, storage=idle), whole=True).split())
    assert " proven " in text and "nothing to do, proven" in text
    assert "proven" not in shown(terminal.print_run, record, whole=True)


def test_cold_says_by_what_it_is_proven() -> None:
    record = examples.measured(cache="cold")
    for proof in ("bytes", "residency"):
        storage = replace(examples.storage_of(record), cold_proven=True, cold_proof=proof)
        assert f"cold proven by {proof}" in shown(terminal.print_run, replace(record, storage=storage), whole=True)


def test_the_verdict_is_not_said_twice() -> None:
    record = examples.summed_up(
        examples.measured(bottleneck="mixed"), "Mixed: storage and prep bound this run together."
    )
    assert shown(terminal.print_run, record).startswith("Mixed: storage and prep")


def test_a_failed_run_says_why() -> None:
    text = shown(terminal.print_run, examples.ended_badly())
    assert text.startswith("failed: worker 3 was killed by signal 9")
    assert "throughput" not in text


def test_the_table_has_a_row_per_run_in_80_columns() -> None:
    records = examples.sweep()
    lines = shown(terminal.print_table, records[::-1]).splitlines()
    assert max(map(len, lines)) <= 80
    start = next(number for number, line in enumerate(lines) if "images/s" in line)
    rows = [line.split() for line in lines[start + 2 :] if line.strip()][: len(records)]
    assert [row[0] for row in rows if row[0].isdigit()] == ["256", "512", "1024"]
    assert "multiprocess 8w 1,860 ±2%    34.4 93    1    0    3    –   93 compute" in "\n".join(lines)
    (failed,) = (row for row in rows if "dali" in row)
    assert failed[-1] == "failed"
    assert set(failed[failed.index("8w") + 1 : -1]) == {"–"}
    text = " ".join(" ".join(lines).split())
    assert "1024 dali 8w, failed: worker 3 was killed" in text
    assert "256: fastest of 3 settings is threaded 8w, 1," in text
    assert "±2% images/s (not told apart from multiprocess 8w). Limited by compute" in text


def test_runs_that_differ_in_more_than_the_loader_say_in_what() -> None:
    records = [
        examples.measured(batch_size=size, decoder=name) for size in (32, 64) for name in ("pillow", "turbojpeg")
    ]
    text = " ".join(shown(terminal.print_table, records, width=120).split())
    assert "multiprocess 8w batch 32 turbojpeg" in text
    assert "batch" not in text.split("res loader")[0]


def test_wide_figures_and_the_longest_verdict_do_not_break_the_table() -> None:
    record = examples.measured(device_ms=1.7, host_ms=1.7, ram_ms=1.7, real_ms=1.73, bottleneck="undetermined")
    lines = shown(terminal.print_table, [record, examples.measured(loader="threaded")]).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("multiprocess 8w 36,994 ±2%" in line and line.rstrip().endswith("undetermined") for line in lines)


@pytest.mark.parametrize("name", ["[red]", "[/bold]", "a\x1b[31mb", "\udcff", "two\nlines"])
def test_names_print_as_text(name: str) -> None:
    record = examples.summed_up(examples.measured(dataset_name=name), name)
    run = StoredRun("20250102-030405-006-x", Path("x"), "ok", None, record, name)
    for draw, what in ((terminal.print_run, record), (terminal.print_table, [record]), (listing.print_list, [run])):
        text = shown(draw, what, force_terminal=True, color_system=None)
        expected = {"a\x1b[31mb": "a\ufffd[31mb", "\udcff": "?", "two\nlines": "two lines"}.get(name, name)
        assert expected in text
        assert "\x1b[31m" not in text


def test_advice_that_was_run_shows_what_it_gave() -> None:
    record = examples.measured()
    verdict = examples.verdict_of(record)
    first, second = verdict.advice
    advice = (
        replace(first, verified=True, measured_speedup=examples.estimate(1.28)),
        replace(second, verified=True, not_verified="no complete step within a turn"),
    )
    brief = " ".join(shown(terminal.print_run, replace(record, verdict=replace(verdict, advice=advice))).split())
    assert "predicted: 1.60× (1.44–1.76), measured: 1.28× (1.25–1.31)" in brief
    assert "not run: no complete step within a turn" in brief
    text = shown(terminal.print_run, replace(record, verdict=replace(verdict, advice=advice)), whole=True)
    (line,) = (line for line in text.splitlines() if line.startswith("1. decoder=turbojpeg"))
    assert line.split()[-1] == "+25%"
    assert "2. not run: no complete step within a turn" in text


def test_nothing_to_show_says_so() -> None:
    assert "no runs" in shown(listing.print_list, [])
    assert "no runs" in shown(terminal.print_table, [])


PRINT = """
import sys
sys.path.insert(0, sys.argv[1])
import example_records
from loaderbench.reporting.terminal import make_console, print_run, print_table
print_run(example_records.measured(), make_console())
print_table(example_records.sweep(), make_console())
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


def test_memory_is_what_the_loader_s_own_workers_hold() -> None:
    # given 2.90 GB of resident sets, of which the workers' own memory is 0.41 GB
    record = examples.measured()
    assert record.cpu is not None
    known = replace(record, cpu=replace(record.cpu, workers_pss_bytes=410e6))
    assert "workers hold 410 MB" in shown(terminal.print_run, known, whole=True)
    assert "workers hold" not in shown(terminal.print_run, record, whole=True)
