"""A study and a tuning as text: what is said, and that it fits into 80 columns."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

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


def row(loader: str, workers: int, total_s: float, resolution: int = 256, **more: Any) -> dict[str, Any]:
    case = examples.case(loader=loader, workers=workers, resolution=resolution)
    given = {
        "case": case, "total_s": total_s, "faster_than_serial": None, "batch_bytes": 2.24e6, "read_bytes_per_s": None,
        "ceiling_bytes_per_s": 118e6, "gap_fraction": 0.31, "short_run": None, "seconds_per_sample": 0.002,
        "workers_rss_bytes": 4e9,
    }  # fmt: skip
    return given | more


ROWS = [
    row("serial", 0, 20.0),
    row("multiprocess", 4, 5.0, faster_than_serial={"value": 4.0, "low": 3.9, "high": 4.1}),
]


def printed(show: Any, *arguments: Any) -> str:
    out = io.StringIO()
    show(*arguments, Console(file=out, width=80, highlight=False))
    return out.getvalue()


def test_a_study_says_times_knees_and_flips_within_80_columns() -> None:
    case = ROWS[1]["case"]
    knee = {"case": case, "workers": 4, "tried": [1, 2, 4, 8], "is_last": False, "seconds_per_sample": 0.002,
            "workers_rss_bytes": 4e9}  # fmt: skip
    flip = {"case": case, "along": "resolution", "at": [256, 512], "bottlenecks": ["compute", "prep"]}
    text = printed(print_study, {"num_steps": 100, "rows": ROWS, "knees": [knee], "flips": [flip]})
    assert max(map(len, text.splitlines())) <= 80
    assert "4.00× (3.90–4.10)" in text and "20.0 s" in text and "31 %" in text
    assert knee_line(knee, ROWS) in " ".join(text.split()) or "4 workers (tried 1, 2, 4, 8)" in text
    assert flip_line(flip, ROWS).endswith("compute at resolution 256, prep at 512")
    along = flip | {"along": "workers", "at": [1, 4], "bottlenecks": ["prep", "compute"]}
    assert flip_line(along, ROWS).endswith("prep with 1 workers, compute with 4")
    assert knee_line(knee | {"is_last": True}, ROWS).count("4 workers, or more") == 1


def test_a_single_run_is_no_study() -> None:
    assert printed(print_study, {"num_steps": 100, "rows": ROWS[:1], "knees": [], "flips": []}) == ""


def test_a_winner_that_was_not_told_apart_says_so() -> None:
    found = {
        "flags": "--loader threaded --workers 2", "rate": {"value": 1000.0, "low": 980.0, "high": 1020.0},
        "over_default": {"value": 2.0, "low": 1.9, "high": 2.1},
        "over_second": {"value": 1.01, "low": 0.9, "high": 1.1},
        "trials": [{"loader": "dali", "decoder": None, "failure": "not installed"}], "num_settings": 12, "num_rungs": 3,
        "spent_s": 290.0, "budget_s": 300.0,
        "finalists": [{"loader": "threaded", "decoder": "turbojpeg", "output": "uint8", "workers": 2, "prefetch": 2,
                       "rate": {"value": 1000.0, "low": 980.0, "high": 1020.0}, "is_default": False}],
    }  # fmt: skip
    text = "\n".join(line.rstrip() for line in printed(print_tuning, found, "loader = make()\n").splitlines())
    assert "2.00× (1.90–2.10)\n" in text and "1.01× (0.90–1.10): not told apart" in text
    assert "not installed" in text and "loader = make()" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_sentence_says_what_limits_the_fastest_setting_of_each_resolution() -> None:
    def made(resolution: int, rate: float, bottleneck: str, gain: float | None = None) -> dict[str, Any]:
        gained = None if gain is None else {"value": gain, "low": gain, "high": gain}
        more = {"rate": {"value": rate}, "bottleneck": bottleneck, "speedup_if_removed": gained}
        return row("threaded", 2, 1.0, resolution, **more)

    slow = made(256, 900, "prep", 2.0)
    rows = [slow | {"case": slow["case"] | {"workers": 1}}, made(256, 2000, "compute"), made(512, 700, "prep", 2.9)]
    rows.append(made(1024, 200, "prep", 7.3))
    assert study_sentence({"rows": rows}) == (
        "With the fastest of 2 settings tried: at 256 the device itself is the limit, so faster storage or more "
        "workers would buy nothing; at 512 and 1024 preparing images on the CPU is the limit, and without it 2.90× "
        "and 7.30× would be possible."
    )
    assert study_sentence({"rows": [made(512, 1, "undetermined")]}) == "At 512 the runs do not tell what the limit is."
    assert "No run" in study_sentence({"rows": []})


def test_gaps_are_told_for_each_number_of_workers() -> None:
    traced = {"gap_fraction_by_class": {"data_stall": {"fraction": 0.4}}, "gaps_per_step": 12.0, "gap_p95_s": 1e-4}
    rows = [row("multiprocess", 2, 1.0, **traced), row("multiprocess", 1, 2.0, **traced | {"gap_fraction": 0.52})]
    (line,) = gap_lines(rows)
    assert line == (
        "256 multiprocess: 52 % of a step with 1 workers (data stall 40 %, 12 gaps, 95 % of them below 100 µs), "
        "31 % with 2 workers (data stall 40 %, 12 gaps, 95 % of them below 100 µs)"
    )
    assert gap_lines(rows[:1]) == []


def test_a_short_run_is_told_against_the_steady_rate() -> None:
    short = {"num_steps": 100, "buffer_batches": 50, "flatters": {"value": 1.5, "low": 1.4, "high": 1.6}}
    (line,) = short_run_lines([row("multiprocess", 2, 1.0, short_run=short)])
    assert line.endswith("100 steps behind 50 ready batches show 1.50× (1.40–1.60) of the steady rate")
