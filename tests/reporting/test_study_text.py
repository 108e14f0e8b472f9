"""A study and a tuning as text: what is said, and that it fits into 80 columns."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from rich.console import Console

from loaderbench.recording.record import Bottleneck, GapShare, ShortRun
from loaderbench.recording.studies import Finalist, Flip, Knee, Row, Sweep, TrialRates, TuneFacts, Tuning
from loaderbench.reporting.format import RowLabels
from loaderbench.reporting.study import (
    flip_line,
    gap_lines,
    knee_line,
    print_study,
    print_tuning,
    short_run_lines,
    study_sentence,
)
from tests.reporting import example_records as examples


def row(loader: str, workers: int, total_s: float, resolution: int = 256, **more: Any) -> Row:
    given: dict[str, Any] = {
        "run_ids": ("x",), "rate": examples.estimate(100.0), "total_s": total_s, "faster_than_serial": None,
        "batch_bytes": 2.24e6, "read_bytes_per_s": None, "ceiling_bytes_per_s": 118e6, "utilization_fraction": None,
        "gap_fraction": 0.31, "gap_fraction_by_class": None, "gaps_per_step": None, "gap_p95_s": None,
        "bottleneck": None, "speedup_if_removed": None, "short_run": None, "seconds_per_sample": 0.002,
        "workers_rss_bytes": 4e9,
    }  # fmt: skip
    case = examples.case(loader=loader, workers=workers, resolution=resolution)
    return Row(**{"case": case, **given, **more})


ROWS = (
    row("serial", 0, 20.0),
    row("multiprocess", 4, 5.0, faster_than_serial=examples.between(4.0, 3.9, 4.1)),
)
LABELS = RowLabels(ROWS)


def printed(show: Any, *arguments: Any) -> str:
    out = io.StringIO()
    show(*arguments, Console(file=out, width=80, highlight=False))
    return out.getvalue()


def test_a_study_says_times_knees_and_flips_within_80_columns() -> None:
    case = ROWS[1].case
    knee = Knee(
        case, workers=4, tried=(1, 2, 4, 8), of_best_fraction=1.0, seconds_per_sample=0.002, workers_rss_bytes=4e9,
        is_last=False,
    )  # fmt: skip
    flip = Flip("resolution", (256, 512), ("compute", "prep"), case)
    text = printed(print_study, Sweep(100, ROWS, (knee,), (flip,)))
    assert max(map(len, text.splitlines())) <= 80
    assert "4.00× (3.90–4.10)" in text and "20.0 s" in text and "31 %" in text
    assert knee_line(knee, LABELS) in " ".join(text.split()) or "4 workers (tried 1, 2, 4, 8)" in text
    assert flip_line(flip, LABELS).endswith("compute at resolution 256, prep at 512")
    along = Flip("workers", (1, 4), ("prep", "compute"), case)
    assert flip_line(along, LABELS).endswith("prep with 1 workers, compute with 4")
    assert knee_line(replace(knee, is_last=True), LABELS).count("4 workers, or more") == 1


def test_a_single_run_is_no_study() -> None:
    assert printed(print_study, Sweep(100, ROWS[:1], (), ())) == ""


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
    text = "\n".join(line.rstrip() for line in printed(print_tuning, TUNING, FACTS, "loader = make()\n").splitlines())
    flags = "fastest: --loader threaded --decoder turbojpeg --output uint8 --workers 2 --prefetch 2"
    assert " ".join(text.split()).startswith(flags)
    assert "2.00× (1.90–2.10)\n" in text and "1.01× (0.90–1.10): not told apart" in text
    assert "dali: not installed" in text and "loader = make()" in text
    assert "1 of 12 settings in 3 rungs" in text
    assert max(map(len, text.splitlines())) <= 80


def test_only_a_default_that_won_is_called_the_winner() -> None:
    won = replace(TUNING, over_default=None, finalists=(Finalist(WINNER, RATE, ("x",), is_default=True),))
    assert "it is the default" in printed(print_tuning, won, FACTS, "")
    assert "it is the default" not in printed(print_tuning, replace(TUNING, over_default=None), FACTS, "")
    nothing = Tuning(None, None, None, None, TUNING.trials, (Finalist(DALI, None, (), is_default=True),))
    assert "no finalist could be measured" in printed(print_tuning, nothing, FACTS, "")


def test_the_sentence_says_what_limits_the_fastest_setting_of_each_resolution() -> None:
    def made(resolution: int, rate: float, bottleneck: Bottleneck, gain: float | None = None, workers: int = 2) -> Row:
        gained = None if gain is None else examples.between(gain, gain, gain)
        given = {"rate": examples.estimate(rate), "bottleneck": bottleneck, "speedup_if_removed": gained}
        return row("threaded", workers, 1.0, resolution, **given)

    rows = [made(256, 900, "prep", 2.0, workers=1), made(256, 2000, "compute"), made(512, 700, "prep", 2.9)]
    rows.append(made(1024, 200, "prep", 7.3))

    def sentence(rows: list[Row]) -> str:
        return study_sentence(Sweep(100, tuple(rows), (), ()))

    assert sentence(rows) == (
        "With the fastest of 2 settings tried: at 256 the device itself is the limit, so faster storage or more "
        "workers would buy nothing; at 512 and 1024 preparing images on the CPU is the limit, and without it 2.90× "
        "and 7.30× would be possible."
    )
    assert sentence([made(512, 1, "undetermined")]) == "At 512 the runs do not tell what the limit is."
    assert "No run" in sentence([])


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
