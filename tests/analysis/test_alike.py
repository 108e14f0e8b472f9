"""Arms may differ only in what they leave out: preparing an image takes the same CPU time in each."""

from __future__ import annotations

import numpy as np
import pytest

from loaderbench.analysis.alike import differences, preparation
from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import SPAN, SPAN_FIELDS, STEP, STEP_FIELDS, Recording, Segment
from tests.made import make_facts, make_segment

BATCH = 64
NUM = 13


def window(arm: Arm, number: int, prep_ms: float, faults: int, *, read_cpu_ms: float = 10.0, seed: int = 0) -> Segment:
    """A window whose batches take about `prep_ms` of CPU time, ± 5 % from batch to batch, besides reading."""
    random = np.random.default_rng([seed, number, list(Arm).index(arm)])
    steps = np.zeros((NUM, len(STEP_FIELDS)), dtype=np.int64)
    steps[:, STEP["num_samples"]] = BATCH
    spans = np.zeros((NUM, len(SPAN_FIELDS)), dtype=np.int64)
    spans[:, SPAN["read_cpu_ns"]] = round(read_cpu_ms * 1e6)
    spans[:, SPAN["cpu_ns"]] = ((prep_ms * random.normal(1, 0.05, NUM) + read_cpu_ms) * 1e6).round()
    spans[:, SPAN["minor_faults"]] = BATCH * faults
    return make_segment(arm, steps, spans, round=number)


def recorded(real_ms: float, ram_ms: float, *, rounds: int = 3, faults: int = 37, seed: int = 0) -> Recording:
    """Rounds of `real` and `ram`. Reading costs `real` far more CPU time."""
    segments = []
    for number in range(rounds):
        segments.append(window(Arm.REAL, number, real_ms, 37, read_cpu_ms=40.0, seed=seed))
        segments.append(window(Arm.RAM, number, ram_ms, faults, read_cpu_ms=5.0, seed=seed))
    return Recording(segments, make_facts(), [])


def test_preparation_leaves_reading_out() -> None:
    seen = preparation([window(Arm.REAL, number, 160.0, 37, read_cpu_ms=40.0) for number in range(3)])
    assert seen is not None and seen.num_windows == 3 and seen.minor_faults == 37
    assert seen.cpu_s.value == pytest.approx(0.160 / BATCH, rel=0.03)
    assert seen.cpu_s.low < 0.160 / BATCH < seen.cpu_s.high


def test_arms_that_do_the_same_are_alike() -> None:
    found = [bool([*differences(recorded(160.0, 160.0, seed=seed))]) for seed in range(40)]
    assert sum(found) <= 2  # 2 % and a 95 % interval: by chance hardly ever


def test_an_arm_that_faults_its_memory_in_again_is_named() -> None:
    (found,) = differences(recorded(160.0, 190.0, faults=420))
    assert (found.arm, found.other, found.more_faults) == (Arm.RAM, Arm.REAL, 383)
    assert found.ratio.low < 190 / 160 < found.ratio.high


def test_one_window_of_each_tells_nothing_of_the_machines_drift() -> None:
    assert not [*differences(recorded(160.0, 190.0, rounds=1))]


def test_runs_stored_before_and_loaders_that_do_not_record_it_are_unknown() -> None:
    before = window(Arm.REAL, 0, 160.0, 37)
    assert before.spans is not None
    before.spans = before.spans[:, : SPAN["minor_faults"]]
    assert preparation([before]) is None and preparation([]) is None
    untold = window(Arm.REAL, 0, 160.0, 37)
    assert untold.spans is not None
    untold.spans[3, SPAN["read_cpu_ns"]] = -1
    assert preparation([untold]) is None
