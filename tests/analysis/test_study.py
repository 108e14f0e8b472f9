"""What a study says beyond its runs, on made-up records with answers by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from loaderbench.analysis.study import flips, knees, summarize
from loaderbench.recording.facts import Failure
from loaderbench.recording.record import (
    Bottleneck,
    CpuFigures,
    Estimate,
    Residency,
    RunRecord,
    StorageFigures,
    Verdict,
)
from loaderbench.recording.studies import Row, Sweep
from tests.made import make_case, make_estimate, make_record

WARM = StorageFigures(
    bytes_read=0, expected_bytes=0, moved_fraction=None, bandwidth_bytes_per_s=0.0, reads_per_s=0.0,
    mean_file_bytes=35_000.0, ceiling_bytes_per_s=None, ceiling=None, source=None, cache_state="warm",
    residency_fraction=Residency(None, None), cold_proven=False,
)  # fmt: skip


def record(
    loader: str, rate: float, *, resolution: int = 256, workers: int = 0, verdict: Bottleneck = "prep", **case: Any
) -> RunRecord:
    """A run at `rate` samples/s known to ± 1 %."""
    asked = {"dataset": f"/data/{resolution}", "resolution": resolution, "loader": loader, "workers": workers}
    return make_record(
        make_case(**{**asked, **case}),
        run_id=f"{resolution}-{loader}-{workers}",
        throughput=make_estimate(rate, 0.01),
        accelerator_utilization_fraction=0.5,
        verdict=Verdict(verdict),
        storage=WARM,
        cpu=CpuFigures(None, None, seconds_per_sample=0.002, workers_rss_bytes=1e9 * workers, workers_pss_bytes=None),
    )


def over_serial(row: Row) -> Estimate:
    assert row.faster_than_serial is not None
    return row.faster_than_serial


def test_total_time_and_times_over_serial() -> None:
    found = summarize([record("serial", 320.0), record("multiprocess", 1280.0, workers=4)])
    serial, four = found.rows
    assert found.num_steps == 100
    assert serial.total_s == pytest.approx(20.0) and four.total_s == pytest.approx(5.0)
    assert serial.faster_than_serial is None
    ratio = over_serial(four)
    assert ratio.value == pytest.approx(4.0)
    assert ratio.low is not None and ratio.high is not None
    assert 3.9 < ratio.low < 4.0 < ratio.high < 4.1
    assert four.batch_bytes == 64 * 35_000.0
    assert four.read_bytes_per_s is None  # warm: nothing was read


def test_serial_of_the_same_work_and_decoder_is_held_against() -> None:
    rows = summarize(
        [
            record("serial", 200.0, decoder="turbojpeg"),
            record("serial", 100.0),
            record("serial", 50.0, resolution=512),
            record("threaded", 400.0, workers=2, decoder="turbojpeg", output="uint8"),
        ]
    ).rows
    assert over_serial(rows[-1]).value == pytest.approx(2.0)


def test_repeats_are_one_row_and_what_failed_is_none() -> None:
    failed = replace(
        record("dali", 1.0, workers=2), status="failed", failure=Failure("CaseFailed", "it broke"), throughput=None
    )
    rows = summarize([record("serial", 100.0), record("serial", 121.0, repeat=1), failed]).rows
    assert len(rows) == 1 and rows[0].run_ids == ("256-serial-0", "256-serial-0")
    assert rows[0].rate.value == pytest.approx(110.0)  # the geometric mean


def test_the_knee_is_the_least_workers_within_three_percent_of_the_best() -> None:
    rates = {1: 300.0, 2: 580.0, 4: 975.0, 8: 1000.0}
    rows = summarize([record("multiprocess", rate, workers=n) for n, rate in rates.items()]).rows
    (knee,) = knees(rows)
    assert (knee.workers, knee.tried, knee.is_last) == (4, (1, 2, 4, 8), False)
    assert knee.of_best_fraction == pytest.approx(0.975)
    assert (knee.seconds_per_sample, knee.workers_rss_bytes) == (0.002, 4e9)
    assert knees(rows[:3])[0].is_last
    assert knees(rows[:1]) == []


def test_where_the_bottleneck_flips() -> None:
    rows = summarize(
        [
            record("multiprocess", 1000.0, resolution=1024, workers=2, verdict="prep"),
            record("multiprocess", 2000.0, resolution=256, workers=2, verdict="compute"),
            record("multiprocess", 1500.0, resolution=512, workers=2, verdict="undetermined"),
            record("multiprocess", 2000.0, resolution=1024, workers=8, verdict="compute"),
        ]
    ).rows
    by_resolution, by_workers = flips(rows)
    assert by_resolution.along == "resolution" and by_resolution.at == (256, 1024)
    assert by_resolution.bottlenecks == ("compute", "prep") and by_resolution.case.feed.workers == 2
    assert by_workers.along == "workers" and by_workers.at == (2, 8)
    assert by_workers.bottlenecks == ("prep", "compute")


def test_nothing_measured_is_an_empty_study() -> None:
    assert summarize([]) == Sweep(100, (), (), ())


def test_rounds_are_paired_by_their_number_and_a_verdict_that_changes_is_none() -> None:
    # given a ratio of 2 in each of three rounds, and serial's first one lost
    serial = [record("serial", 100.0 * n, repeat=n) for n in (1, 2)]
    verdicts: tuple[Bottleneck, ...] = ("prep", "prep", "mixed")
    other = [
        record("multiprocess", 200.0 * max(n, 1), workers=2, repeat=n, verdict=verdict)
        for n, verdict in enumerate(verdicts)
    ]
    row = summarize([*serial, *other]).rows[1]
    assert over_serial(row).value == pytest.approx(2.0)
    assert over_serial(row).high is not None and over_serial(row).high < 2.2
    assert row.bottleneck == "undetermined"


def test_data_sets_of_one_name_have_no_order_to_flip_along() -> None:
    runs = [
        record("serial", 100.0, verdict="prep", dataset="/a"),
        record("serial", 100.0, verdict="storage", dataset="/b"),
    ]
    assert flips(summarize(runs).rows) == []
