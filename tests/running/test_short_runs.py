"""Runs that begin with a full prefetch buffer, against what arithmetic says they must show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loaderbench.analysis.record import analyze
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case, Subject
from loaderbench.cases.study import read_options
from loaderbench.errors import ConfigError
from loaderbench.plugins import LOADERS
from loaderbench.recording.record import ShortRun
from loaderbench.running.jobs.measure import measure
from loaderbench.running.jobs.table import MeasureRequest
from loaderbench.selftest.injections import Injection
from loaderbench.studies.request import plan
from tests.made import make_case, make_run

pytestmark = pytest.mark.alone

NUM_STEPS = 20


def short_run_of(images: Path, loader: str, buffer_batches: int) -> ShortRun:
    """One worker that takes 60 ms for a batch, and a device that takes some milliseconds."""
    case = make_case(
        dataset=str(images), dataset_name="none", resolution=None, loader=loader, workers=1,
        prefetch=buffer_batches, batch_size=4, mode="infer", precision="amp-bf16",
        device="emulated:h200-resnet50-infer-amp-bf16", input_size=64, output="uint8", cache="warm", duration_s=1.0,
        steps=NUM_STEPS, buffer_ratio=buffer_batches / NUM_STEPS, kernels=False, arms=(Arm.REAL,),
    )  # fmt: skip
    run = make_run(case, None, wall_s=2.0, environment=None)
    run.recording = measure(MeasureRequest(case, Injection(collate_sleep_s=0.06)), lambda message: None)
    assert all(len(one.steps) == NUM_STEPS + 1 for one in run.recording.of(Arm.SHORT))
    short = analyze(run).short_run
    assert short is not None
    return short


def flatters(short: ShortRun) -> float:
    assert short.flatters is not None
    return short.flatters.value


@pytest.mark.parametrize("loader", [pytest.param("threaded", marks=pytest.mark.slow), "multiprocess"])
def test_half_of_a_run_s_batches_prepared_before_its_clock_double_its_rate(image_tree: Path, loader: str) -> None:
    short = short_run_of(image_tree, loader, NUM_STEPS // 2)
    assert (short.num_steps, short.buffer_batches, short.buffer_ratio) == (20, 10, 0.5)
    assert short.buffer_full
    # Ten batches are there, ten take the worker's 60 ms each: 20 ÷ (20 - 10), one batch more or less in the making.
    assert 20 / 11 * 0.9 < flatters(short) < 20 / 9 * 1.1


def test_a_buffer_as_long_as_the_run_shows_the_device_alone(image_tree: Path) -> None:
    short = short_run_of(image_tree, "threaded", NUM_STEPS)
    assert short.buffer_full
    assert flatters(short) > 4


def planned(**changes: Any) -> list[Case]:
    given = {"workers": 4, "loader": ["serial", "multiprocess", "dali"], "device": "cpu", "cache": "as-is", **changes}
    return plan(read_options(given), [Subject("/data", "x", 256)])


def test_ratios_become_buffers_of_whole_batches() -> None:
    cases = planned(buffer_ratio=[0.1, 0.5, 1.0], steps=100)
    found = {
        (case.feed.loader, case.feed.buffer_ratio): (
            case.feed.prefetch,
            LOADERS.find(case.feed.loader).traits.buffer_batches(case.feed),
        )
        for case in cases
    }
    assert found.pop(("serial", None)) == (2, 0)
    assert found == {
        ("multiprocess", 0.1): (2, 8),  # 2.5 batches each of 4 workers do not exist: said as 0.08
        ("multiprocess", 0.5): (12, 48),
        ("multiprocess", 1.0): (25, 100),
        ("dali", 0.1): (10, 10),
        ("dali", 0.5): (50, 50),
        ("dali", 1.0): (100, 100),
    }


def test_without_steps_a_short_run_has_a_hundred() -> None:
    assert planned(buffer_ratio=1.0, loader="multiprocess")[0].feed.prefetch == 25


@pytest.mark.parametrize(
    ("changes", "says"), [({"buffer_ratio": 0.0}, "--buffer-ratio"), ({"max_bytes": 10**9}, "--max-bytes")]
)
def test_what_cannot_be_is_refused_in_one_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        planned(**{"buffer_ratio": 0.5, **changes})
