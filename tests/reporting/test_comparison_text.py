"""A comparison as text: in words first, within 80 columns, predictions named as such."""

from __future__ import annotations

import io
from typing import Any

import example_records as examples
from rich.console import Console

from loaderbench.analysis.comparison import compare, compare_two
from loaderbench.reporting.comparison import parity_lines, print_comparison

LABELS = {"a": "nvme", "b": "nfs"}


def shown(comparison: dict[str, Any]) -> list[str]:
    stream = io.StringIO()
    print_comparison(comparison, Console(file=stream, width=80))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def study() -> dict[str, Any]:
    """MADE UP: the second storage is much slower cold, and equal warm."""
    sides: dict[str, list[dict[str, Any]]] = {"nvme": [], "nfs": []}
    for cache in ("cold", "warm"):
        for workers in (1, 32):
            for name, records in sides.items():
                real_ms = 300.0 if (name, cache) == ("nfs", "cold") else 70.0
                one = examples.measured(
                    run_id=f"{name}-{cache}-{workers}", real_ms=real_ms, dataset=f"/{name}/512", dataset_name=name,
                    cache=cache, workers=workers,
                )  # fmt: skip
                if name == "nfs" and one["storage"] is not None:
                    times = {"rtt_s": 0.0052, "queue_s": 0.0001, "exe_s": 0.0054}
                    one["storage"]["nfs"] = {"operations_per_s": 610.0, **times, "retransmits": 0, "in_flight": 3.1}
                records.append(one)
    return {"labels": LABELS, "notes": ["left out"], **compare(sides["nvme"], sides["nfs"])}


def test_the_outcome_comes_first_and_80_columns_hold_it() -> None:
    lines = shown(study())
    assert lines[0].startswith("nfs is slower than nvme: 0.23× (")
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert "NFS round trip – 5.20 ms" in text
    assert "NFS client queue – 100 µs" in text
    assert "retransmits – 0" in text
    assert "warm 32 914 ±2% 914 ±2% 1.00×" in text
    assert "left out" in text


def test_parity_names_a_prediction_as_one() -> None:
    parity: dict[str, Any] = {
        "cache": "cold", "target_samples_per_s": 1000.0, "target_workers": 8, "best_samples_per_s": 100.0,
        "best_workers": 8, "workers": None, "basis": None, "not_by": 32,
        "predicted": {"workers": 32, "samples_per_s": {"value": 390.0, "low": 350.0, "high": 430.0}},
        "needs": {"bytes_per_s": 120e6, "gives_bytes_per_s": 44e6, "gives_still_rising": False, "bound_by": "bandwidth",
                  "workers": 8, "file_read_s": 0.002, "takes_file_read_s": 0.07},
    }  # fmt: skip
    lines = parity_lines(parity, LABELS)
    assert lines == [
        "cold: nfs does not reach nvme's best, 1,000 images/s (8 workers), not by 32: 100 at best, with 8 workers; "
        "predicted, not measured: 390 (350–430) with 32 workers",
        "cold: for that nfs needs 120 MB/s; it gives 44.0 MB/s, bandwidth-bound",
        "cold: with 8 workers reading a file may take at most 2.00 ms; it takes 70.0 ms in nfs",
    ]


def test_other_differences_than_the_storage_are_said() -> None:
    a = examples.measured(dataset="/nvme", batch_size=64)
    b = examples.measured(dataset="/nfs", batch_size=32)
    text = " ".join(" ".join(shown({"labels": LABELS, **compare_two(a, b)})).split())
    assert "They differ beside dataset in batch_size: 64 in nvme, 32 in nfs" in text


def test_a_name_is_shown_as_text() -> None:
    found = study()
    found["labels"] = {"a": "[red]\x1b[31m", "b": "nfs"}
    assert "\x1b" not in "\n".join(shown(found))


def test_sides_that_were_not_measured_are_said_so() -> None:
    failed = examples.ended_badly(dataset_name="nfs")
    failed["throughput"] = None
    found = {"labels": LABELS, **compare([examples.measured(loader="dali", decoder=None)], [failed])}
    text = " ".join(" ".join(shown(found)).split())
    assert text.startswith("nfs and nvme cannot be compared")
    assert "nfs, as-is, 8 workers, failed: worker 3 was killed" in text
