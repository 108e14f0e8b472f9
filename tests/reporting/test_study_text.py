"""A study and a tuning as text: what is said, and that it fits into 80 columns."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from loaderbench.analysis.study import summarize
from loaderbench.recording.record import Bottleneck, GapShare, RunRecord, ShortRun
from loaderbench.recording.store import Store
from loaderbench.recording.studies import Finalist, Flip, Knee, Row, SweepFacts, TrialRates, TuneFacts, Tuning
from loaderbench.reporting.format import RowLabels
from loaderbench.reporting.report import read_report
from loaderbench.reporting.studies import print_findings
from loaderbench.reporting.study import (
    finding_lines,
    flip_line,
    gap_lines,
    knee_line,
    short_run_lines,
)
from tests.reporting import example_records as examples


def row(loader: str, workers: int, total_s: float, resolution: int = 256, **more: Any) -> Row:
    given: dict[str, Any] = {
        "run_ids": ("x",), "rate": examples.estimate(100.0), "total_s": total_s, "faster_than_serial": None,
        "batch_bytes": 2.24e6, "read_bytes_per_s": None, "ceiling_bytes_per_s": 118e6, "utilization_fraction": None,
        "gap_fraction": 0.31, "gap_fraction_by_class": None, "gaps_per_step": None, "gap_p95_s": None,
        "bottleneck": None, "speedup_if_removed": None, "short_run": None, "seconds_per_sample": 0.002,
        "workers_rss_bytes": 28e9, "workers_pss_bytes": 4e9,
    }  # fmt: skip
    case = examples.case(loader=loader, workers=workers, resolution=resolution)
    return Row(**{"case": case, **given, **more})


ROWS = (
    row("serial", 0, 20.0),
    row("multiprocess", 4, 5.0, faster_than_serial=examples.between(4.0, 3.9, 4.1)),
)
LABELS = RowLabels(ROWS)


def printed(facts: Any, found: Any, runs: Sequence[RunRecord] = ()) -> str:
    out = io.StringIO()
    print_findings(facts, found, Console(file=out, width=80, highlight=False), runs)
    return out.getvalue()


def test_a_study_says_knees_and_flips() -> None:
    case = ROWS[1].case
    knee = Knee(
        case, workers=4, tried=(1, 2, 4, 8), of_best_fraction=1.0, seconds_per_sample=0.002,
        workers_rss_bytes=28e9, workers_pss_bytes=4e9,
        is_last=False,
    )  # fmt: skip
    flip = Flip("resolution", (256, 512), ("compute", "prep"), case)
    assert "4 workers (tried 1, 2, 4, 8)" in knee_line(knee, LABELS)
    assert flip_line(flip, LABELS).endswith("compute at resolution 256, prep at 512")
    along = Flip("workers", (1, 4), ("prep", "compute"), case)
    assert flip_line(along, LABELS).endswith("prep with 1 workers, compute with 4")
    assert knee_line(replace(knee, is_last=True), LABELS).count("4 workers, or more") == 1


RATE = examples.between(1000.0, 980.0, 1020.0)
DALI = examples.case(loader="dali", decoder=None)
WINNER = examples.case(loader="threaded", decoder="turbojpeg", output="uint8", workers=2)
FACTS = TuneFacts(
    default=examples.case(), num_settings=12, budget_s=300.0, spent_s=290.0, num_rungs=3, trials=(), finals=()
)
TUNING = Tuning(
    winner=WINNER,
    rate=RATE,
    over_default=examples.between(2.0, 1.9, 2.1),
    over_second=examples.between(1.01, 0.9, 1.1),
    trials=(TrialRates(DALI, (), "not installed"),),
    finalists=(Finalist(WINNER, RATE, ("x",), is_default=False),),
)


def test_a_winner_that_was_not_told_apart_says_so() -> None:
    text = "\n".join(line.rstrip() for line in printed(FACTS, TUNING).splitlines())
    flags = (
        "Among the fastest of the 1 setting tried, of 12: --loader threaded --decoder turbojpeg --output uint8 "
        "--workers 2 --prefetch 2"
    )
    assert flags in " ".join(text.split())
    assert "2.00× (1.90–2.10)\n" in text and "1.01× (0.90–1.10): no significant difference" in text
    assert "dali: not installed" in text and "\nloader = " in text
    assert "1 of 12 settings in 3 rungs" in text
    again = next(line for line in text.splitlines() if line.startswith("loaderbench run "))
    assert f"{flags.partition('12: ')[2]} --cache" in again  # in one piece, to be copied
    assert max(len(line) for line in text.splitlines() if line != again) <= 80


def test_only_a_default_that_won_is_called_the_winner() -> None:
    won = replace(TUNING, over_default=None, finalists=(Finalist(WINNER, RATE, ("x",), is_default=True),))
    assert "it is the default" in printed(FACTS, won)
    assert "it is the default" not in printed(FACTS, replace(TUNING, over_default=None))
    nothing = Tuning(None, None, None, None, TUNING.trials, (Finalist(DALI, None, (), is_default=True),))
    assert "no finalist could be measured" in printed(FACTS, nothing)


def stored(name: str, real_ms: float, bottleneck: Bottleneck, **case: Any) -> RunRecord:
    return replace(examples.measured(real_ms=real_ms, bottleneck=bottleneck, **case), run_id=name)


def test_the_fastest_setting_is_the_one_with_the_highest_rate_whatever_its_verdict() -> None:
    # given four settings, the fastest of which has no verdict
    slow = [stored(f"slow{number}", 100.0, "prep", loader="serial", workers=0, batch_size=number) for number in (1, 2)]
    third = stored("third", 60.0, "prep", loader="multiprocess")
    fastest = stored("fastest", 40.0, "undetermined", loader="threaded")
    (line,) = finding_lines([*slow, third, fastest])
    rate = fastest.throughput
    assert rate is not None
    assert line.startswith(f"512: fastest of 4 settings is threaded 8w batch 64, {rate.value:,.0f} ±2% images/s. ")
    assert line.partition("images/s. ")[2].startswith(examples.verdict_of(fastest).summary)
    # and another whose interval it meets is said
    close = stored("close", 40.2, "prep", loader="dali", decoder=None)
    assert "(not significantly faster than dali 8w batch 64)" in finding_lines([*slow, fastest, close])[0]


def test_the_report_begins_with_the_sentence_that_the_terminal_ends_with(tmp_path: Path) -> None:
    store, records = Store(tmp_path), [one for one in examples.sweep() if one.measured]
    for record in records:
        folder = store.open_run(record.case)
        folder.write_record(replace(record, run_id=folder.run_id))
    (part,) = read_report(store).parts
    kept = [run.record for run in store.runs() if run.record is not None]
    study = summarize(kept)
    on_terminal = " ".join(printed(SweepFacts(len(kept)), study, runs=kept).split())
    lines = finding_lines(kept)
    assert len(lines) == 3 and part.headline == " ".join(lines)
    for line in lines:
        assert " ".join(line.split()) in on_terminal
    # with what to do
    assert any("Try: " in line and "predicted" in line for line in lines)


def test_gaps_are_told_for_each_number_of_workers() -> None:
    traced: dict[str, Any] = {
        "gap_fraction_by_class": {"data_stall": GapShare(6.0, 0.4)}, "gaps_per_step": 12.0, "gap_p95_s": 1e-4,
    }  # fmt: skip
    rows = [row("multiprocess", 2, 1.0, **traced), row("multiprocess", 1, 2.0, **traced | {"gap_fraction": 0.52})]
    (line,) = gap_lines(rows)
    assert line == (
        "256 multiprocess: 52 % of a step with 1 workers (data stall 40 %, 12 gaps, 95 % of them below 100 µs), "
        "31 % with 2 workers (data stall 40 %, 12 gaps, 95 % of them below 100 µs)"
    )
    assert gap_lines(rows[:1]) == []


def test_a_short_run_is_told_against_the_steady_rate() -> None:
    short = ShortRun(
        num_steps=100, buffer_batches=50, buffer_ratio=0.5, buffer_full=True, throughput=None,
        flatters=examples.between(1.5, 1.4, 1.6),
    )  # fmt: skip
    (line,) = short_run_lines([row("multiprocess", 2, 1.0, short_run=short)])
    assert line.endswith("100 steps with 50 batches ready at the start show 1.50× (1.40–1.60) of the steady rate")
