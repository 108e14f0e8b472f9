"""A comparison as text: in words first, within 80 columns, predictions named as such."""

from __future__ import annotations

import io
from dataclasses import replace

import example_records as examples
from rich.console import Console

from loaderbench.analysis.comparison import compare, compare_two
from loaderbench.recording.caveats import Reason
from loaderbench.recording.studies import CompareFacts, Comparison, Needs, Parity, PredictedWorkers, Range, SideName
from loaderbench.reporting.comparison import parity_lines
from loaderbench.reporting.studies import print_findings

LABELS: dict[SideName, str] = {"a": "nvme", "b": "nfs"}
FACTS = CompareFacts(LABELS, num_cases=8, notes=(Reason("note", {"text": "left out"}),))


def shown(comparison: Comparison, facts: CompareFacts = FACTS) -> list[str]:
    stream = io.StringIO()
    print_findings(facts, comparison, Console(file=stream, width=80))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def study() -> Comparison:
    return compare(*examples.nvme_and_nfs().values())


def test_parity_names_a_prediction_as_one() -> None:
    needs = Needs(
        bytes_per_s=120e6, gives_bytes_per_s=44e6, gives_still_rising=False, bound_by="bandwidth", workers=8,
        file_read_s=0.002, takes_file_read_s=0.07,
    )  # fmt: skip
    parity = Parity(
        cache="cold", target_samples_per_s=1000.0, target_workers=8, best_samples_per_s=100.0, best_workers=8,
        workers=None, basis=None, not_by=32,
        predicted=PredictedWorkers(32, Range(390.0, 350.0, 430.0), "made up"), needs=needs,
    )  # fmt: skip
    lines = parity_lines(parity, LABELS)
    assert lines == [
        "cold: nfs does not reach nvme's best, 1,000 images/s (8 workers), not by 32: 100 at best, with 8 workers; "
        "predicted, not measured: 390 (350–430) with 32 workers",
        "cold: to get there, nfs needs 120 MB/s; it delivers 44.0 MB/s, bandwidth-bound",
        "cold: with 8 workers reading a file may take at most 2.00 ms; it takes 70.0 ms in nfs",
    ]


def test_other_differences_than_the_storage_are_said() -> None:
    a = examples.measured(dataset="/nvme", batch_size=64)
    b = examples.measured(dataset="/nfs", batch_size=32)
    text = " ".join(" ".join(shown(compare_two(a, b))).split())
    assert "Differences other than dataset batch_size: 64 in nvme, 32 in nfs" in text


def test_a_name_is_shown_as_text() -> None:
    facts = replace(FACTS, labels={"a": "[red]\x1b[31m", "b": "nfs"})
    text = "\n".join(shown(study(), facts))
    assert "\x1b" not in text and "[red]\ufffd[31m" in text


def test_sides_that_were_not_measured_are_said_so() -> None:
    failed = examples.ended_badly(dataset_name="nfs")
    found = compare([examples.measured(loader="dali", decoder=None)], [failed])
    text = " ".join(" ".join(shown(found)).split())
    assert text.startswith("nfs and nvme cannot be compared")
    assert "nfs, as-is, 8 workers, failed: worker 3 was killed" in text
