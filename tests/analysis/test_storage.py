"""What the storage probe's facts say: known answers of a real NFS client, and made-up stages of known rate."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from loaderbench.analysis.storage import (
    bound_by,
    ceiling,
    describe,
    gain_with_readers,
    growth_per_doubling,
    headroom,
    is_probe_limited,
    nfs_operations,
    readers_needed,
    stages,
    still_rising,
)
from loaderbench.recording.facts import CeilingProbe, CeilingStage
from loaderbench.recording.record import Advice, NfsOperations
from loaderbench.reporting.words import action
from tests.made import make_probe, make_record, make_stage, rates_probe

CAPTURES = Path(__file__).parents[1] / "data" / "nfs"


def captured() -> dict[str, CeilingProbe]:
    """`tbf 160mbit` → the stages measured there. What stands before the first title had no limit."""
    found: dict[str, list[CeilingStage]] = {}
    for name in ("tbf", "netem"):
        title = f"{name} none"
        for line in (CAPTURES / f"uml_nfs_{name}.txt").read_text().splitlines():
            if heading := re.fullmatch(r"(?:=== )?((?:tbf|netem) \S+)", line):
                title = heading[1]
            elif row := re.match(r"W(\d+) +([\d.]+) MB/s .* serverread ([\d.]+) MB", line):
                megabytes = float(row[3])
                one = make_stage(int(row[1]), float(row[2]) * 1e6, seconds=megabytes / float(row[2]))
                found.setdefault(title, []).append(one)
    return {title: make_probe(*stages) for title, stages in found.items()}


@pytest.mark.parametrize(
    ("title", "answer"),
    [
        ("tbf 160mbit", "bandwidth"),
        ("tbf 400mbit", "bandwidth"),
        ("tbf 800mbit", "bandwidth"),
        ("netem 2ms", "latency"),
        ("netem 5ms", "latency"),
        ("netem 20ms", "latency"),
    ],
)
@pytest.mark.parametrize("readers", [1, 4, 8])
def test_a_cap_is_told_from_a_latency_over_real_nfs(title: str, answer: str, readers: int) -> None:
    facts = captured()[title]
    assert [one.readers for one in facts.stages] == [1, 4, 8]
    assert bound_by(facts, readers) == answer


def test_what_bounds_depends_on_the_readers_there_are() -> None:
    # given a disk that one reader cannot fill and eight can
    facts = rates_probe(100e6, 195e6, 380e6, 700e6, 710e6, 705e6)
    # then few readers wait for its answers, many for its bandwidth
    assert [bound_by(facts, readers) for readers in (1, 2, 8, 16, 32, 100)] == [
        "latency", "latency", "bandwidth", "bandwidth", "bandwidth", "bandwidth",
    ]  # fmt: skip
    assert growth_per_doubling(facts, 1) == pytest.approx(3.8**0.5)


def test_fewer_readers_never_give_more() -> None:
    # given a disk capped in slices of 0.1 s: what came through by chance differs, and two readers got less than one
    facts = rates_probe(43.2e6, 22.7e6, 34.7e6)
    assert bound_by(facts, 2) == "bandwidth"
    assert growth_per_doubling(facts, 2) == 1.0


def test_in_between_is_not_decided() -> None:
    assert bound_by(rates_probe(100e6, 122e6, 149e6)) is None


@pytest.mark.parametrize("facts", [None, make_probe(), rates_probe(100e6)])
def test_too_little_says_nothing(facts: CeilingProbe | None) -> None:
    assert bound_by(facts) is None and still_rising(facts) is None


def test_the_ceiling_is_the_plateau_and_not_its_luckiest_stage() -> None:
    facts = rates_probe(20e6, 96e6, 104e6, 100e6)
    found = ceiling(facts)
    assert found is not None
    assert found.value == pytest.approx(100e6, rel=1e-6)
    assert found.low is not None and found.high is not None
    assert found.low < 100e6 < found.high and found.n == 24
    assert readers_needed(facts) == 2
    assert still_rising(facts) is False


def test_a_first_burst_is_not_the_storage_s_rate() -> None:
    # given a token bucket: three slices of 0.05 s at 400 MB/s, then 23 MB/s, which the first two stages meet
    burst = make_stage(1, 23e6, slices_bytes=(20_000_000,) * 3 + (1_150_000,) * 13, slice_s=0.05)
    facts = make_probe(burst, make_stage(2, 23e6), make_stage(4, 23e6))
    found = ceiling(facts)
    assert found is not None and found.value == pytest.approx(23e6, rel=0.001)
    assert readers_needed(facts) == 1 and still_rising(facts) is False


def test_a_lucky_short_stage_does_not_set_the_ceiling() -> None:
    # given a throttle that releases bytes in bursts: a stage of 0.2 s that met one too many, and a long one
    lucky = make_stage(
        2, 0.0, bytes=11_000_000, slices_bytes=(0, 4_000_000, 0, 0, 3_500_000, 0, 3_500_000, 0), slice_s=0.025
    )
    long = make_stage(4, 40e6, slices_bytes=(7_500_000, 8_500_000) * 8, slice_s=0.2)
    found = ceiling(make_probe(lucky, long))
    assert found is not None and found.low is not None and found.high is not None
    assert found.value == pytest.approx(40e6, rel=0.05) and found.low < 40e6 < found.high


def test_a_ceiling_that_is_not_known_well_is_told_with_its_interval() -> None:
    even, uneven = rates_probe(30e6), make_probe(make_stage(1, 30e6, slices_bytes=(2_000_000, 4_000_000) * 4))
    assert "delivers 30 MB/s to 1 reader" in told(50e6, even)
    assert re.search(r"delivers 30 MB/s \(between 2\d MB/s and 3\d MB/s\) to 1 reader", told(50e6, uneven))


def told(needed_bytes_per_s: float, facts: CeilingProbe | None) -> str:
    """The headroom, as advice says it."""
    advice = Advice("faster_storage", "storage", details=headroom(needed_bytes_per_s, facts))
    return action(advice, make_record())


def test_still_rising_at_the_most_readers() -> None:
    facts = rates_probe(10e6, 20e6, 40e6)
    assert still_rising(facts) is True
    assert "needs 310 MB/s, this storage delivers 40 MB/s to 4 readers, still rising" in told(310e6, facts)


def test_a_stage_that_a_cache_served_is_not_the_storage() -> None:
    facts = make_probe(
        make_stage(1, 100e6, moved={"read_bytes": 82_000_000, "reads": 800}),
        make_stage(2, 5e9, moved={"read_bytes": 40_000_000, "reads": 400}),
    )
    assert [one.readers for one in stages(facts)] == [1]
    assert ceiling(make_probe(*facts.stages[1:])) is None


def test_a_stage_with_too_few_files_for_its_readers_tells_nothing() -> None:
    # given one file a reader: what each had left at the end is a part of the rate
    assert [one.readers for one in stages(make_probe(make_stage(1, 5e6, files=4), make_stage(4, 4e6, files=4)))] == [1]


def test_without_a_probe_nothing_is_claimed() -> None:
    assert ceiling(None) is None and readers_needed(None) is None
    assert told(3.1e6, None).endswith("needs 3.1 MB/s, and what this storage delivers was not measured")


def test_a_probe_that_was_busy_itself_says_so() -> None:
    assert is_probe_limited(make_probe(make_stage(1, 1e9), make_stage(2, 2e9, user_cpu_s=0.7)))
    assert not is_probe_limited(rates_probe(1e9, 2e9))


def test_nfs_counters_are_given_an_operation() -> None:
    moved = {"read_bytes": 10**9, "reads": 100, "rpcs": 300, "queue_ms": 30, "rtt_ms": 1500, "exe_ms": 1600,
             "retransmits": 3}  # fmt: skip
    found = nfs_operations(moved, 0.8)
    assert found is not None
    expected = NfsOperations(
        operations_per_s=375, rtt_s=0.005, queue_s=0.0001, exe_s=0.016 / 3, retransmits=3, in_flight=2
    )
    assert vars(found) == pytest.approx(vars(expected))
    assert nfs_operations({"read_bytes": 1, "reads": 1, "io_ticks_ms": 1}, 1.0) is None
    assert nfs_operations(None, 1.0) is None


def test_the_gain_of_more_readers_is_read_off_the_stages() -> None:
    facts = rates_probe(100e6, 200e6, 400e6, 380e6)
    assert gain_with_readers(facts, 1, 4) == pytest.approx(4)
    assert gain_with_readers(facts, 2, 3) == pytest.approx((200 + 200 * np.log2(1.5)) / 200)
    # a rate that fell counts as one that did not grow, and beyond the last stage nothing is promised
    assert gain_with_readers(facts, 4, 8) == 1
    assert gain_with_readers(facts, 8, 64) == 1
    assert gain_with_readers(rates_probe(100e6), 1, 4) is None


def test_the_record_of_a_probe() -> None:
    found = describe(rates_probe(10e6, 20e6, 40e6), readers=2)
    assert found is not None
    assert (found.bound_by, found.still_rising, found.readers) == ("latency", True, 4)
    assert [one.bytes_per_s for one in found.stages] == pytest.approx([10e6, 20e6, 40e6])
    assert describe(None, 2) is None and describe(make_probe(stopped_by="error"), 2) is None
