"""A study and a tuning as text: what is said, and that it fits into 80 columns."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from loaderbench.reporting.study import flip_line, knee_line, print_study, print_tuning
from tests.reporting import example_records as examples


def row(loader: str, workers: int, total_s: float, resolution: int = 256, **more: Any) -> dict[str, Any]:
    case = examples.case(loader=loader, workers=workers, resolution=resolution)
    given = {
        "case": case, "total_s": total_s, "faster_than_serial": None, "batch_bytes": 2.24e6, "read_bytes_per_s": None,
        "ceiling_bytes_per_s": 118e6, "gap_fraction": 0.31, "seconds_per_sample": 0.002, "workers_rss_bytes": 4e9,
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
