"""A run is saved whole and loaded whole: the same figures, the same tables, whatever its fields hold."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from loaderbench.cases.arms import Arm
from loaderbench.cases.options import Side, Size
from loaderbench.errors import ConfigError
from loaderbench.plain import to_json
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import SCHEMA, Failure, Run, Trial
from loaderbench.recording.record import finite
from loaderbench.recording.store import Store, load_run
from tests.analysis.event_model import Pipeline, measure
from tests.analysis.judging import run_of
from tests.filled import filled, same
from tests.made import CASE, make_case, make_estimate, make_record, make_run, make_series
from tests.pipeline.simulated import TYPICAL


def saved_and_loaded(run: Run, root: Path) -> Run:
    folder = Store(root).open_run(run.case)
    folder.write_run(run)
    assert json.loads((folder.path / "facts.json").read_text())["schema"] == SCHEMA
    return load_run(folder.path)


@pytest.mark.parametrize("seed", range(6))
def test_a_run_with_every_field_set_comes_back(seed: int, tmp_path: Path) -> None:
    run = filled(Run, Random(seed), whole=True)
    assert run.recording is not None and run.trials and run.series
    back = saved_and_loaded(run, tmp_path)
    assert same(back, run)
    assert to_json(back) == to_json(run)  # tables as lists


@pytest.mark.parametrize("seed", range(6))
def test_a_run_of_any_values_comes_back(seed: int, tmp_path: Path) -> None:
    run = filled(Run, Random(seed))
    assert same(saved_and_loaded(run, tmp_path), run)


def test_a_simulated_run_with_series_and_trials_comes_back(tmp_path: Path) -> None:
    pipe = Pipeline(decode_ms=400.0, jitter=0.1)
    run = run_of(pipe, rounds=2, num_steps=16)
    run.series = [make_series("gpu_utilization_fraction", [0.5, float("nan"), 0.25])]
    real = [segment for segment in measure(pipe, rounds=1, num_steps=8) if segment.arm is Arm.REAL]
    trial = make_run(segments=real).recording
    changed = CASE.changed(workers=8)
    run.trials = [
        Trial({}, CASE, 0, trial),
        Trial({"workers": 8, "loader_options": {}}, changed, 0, None, Failure("CaseFailed", "it broke")),
    ]
    run.caveats = [Caveat("sampler_missing", {"reason": "no NVML"})]
    back = saved_and_loaded(run, tmp_path)
    assert same(back, run)
    assert back.recording is not None and back.recording.of(Arm.REAL)[0].steps.dtype == np.int64


@pytest.mark.parametrize("kind", ["tail", "others", "threads"])
def test_a_run_with_single_reads_and_waits_for_cores_comes_back(kind: str, tmp_path: Path) -> None:
    run = run_of(TYPICAL[kind], rounds=1, num_steps=24)
    assert same(saved_and_loaded(run, tmp_path), run)


@pytest.mark.parametrize("status", ["failed", "skipped", "interrupted"])
def test_a_run_that_recorded_nothing_comes_back_with_its_reason(status: str, tmp_path: Path) -> None:
    run = make_run(segments=None, status=status, failure=Failure("CaseFailed", "the disk is gone"))  # type: ignore[arg-type]
    folder = Store(tmp_path).open_run(CASE)
    folder.write_run(run)
    assert same(load_run(folder.path), run)
    assert not (folder.path / "arrays.npz").exists()


def test_a_run_written_again_replaces_what_was_there(tmp_path: Path) -> None:
    folder = Store(tmp_path).open_run(CASE)
    first = run_of(Pipeline(decode_ms=40.0), rounds=2, num_steps=8)
    assert first.recording is not None
    folder.write_run(first)
    second = replace(first, trials=[Trial({}, CASE, 0, first.recording)])
    folder.write_run(second)
    assert same(load_run(folder.path), second)
    assert {path.name for path in folder.path.iterdir()} == {"case.json", "running.json", "facts.json", "arrays.npz"}


def test_what_is_not_finite_in_the_facts_is_null_and_said(tmp_path: Path) -> None:
    run = run_of(Pipeline(decode_ms=40.0), rounds=1, num_steps=8)
    assert run.recording is not None
    run.recording.facts = replace(run.recording.facts, loop_overhead_s=float("nan"), tracing_s=float("inf"))
    back = saved_and_loaded(run, tmp_path)
    assert back.recording is not None
    assert (back.recording.facts.loop_overhead_s, back.recording.facts.tracing_s) == (None, None)
    places = ["recording.facts.loop_overhead_s", "recording.facts.tracing_s"]
    assert [(caveat.code, caveat.details) for caveat in back.caveats] == [("not_finite", {"places": places})]
    assert run.caveats == []  # the one in hand is as it was


def test_what_is_not_finite_is_said_once_however_often_a_run_is_stored(tmp_path: Path) -> None:
    folder = Store(tmp_path).open_run(CASE)
    stored = folder.write_run(make_run(wall_s=float("nan")))
    assert stored.recording is not None
    again = folder.write_run(replace(stored, trials=[Trial({}, CASE, 0, stored.recording)]))
    assert [(caveat.code, caveat.details) for caveat in again.caveats] == [("not_finite", {"places": ["wall_s"]})]
    assert to_json(load_run(folder.path)) == to_json(again)


def test_a_store_finds_the_run_to_load(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = store.open_run(CASE)
    folder.write_run(run_of(Pipeline(decode_ms=40.0), rounds=1, num_steps=8))
    assert store.load_run(folder.run_id[:30]).case == store.load_run(str(folder.path)).case
    with pytest.raises(ConfigError, match="begins with 'nosuch'"):
        store.load_run("nosuch")
    with pytest.raises(ConfigError, match="has no raw facts"):
        load_run(tmp_path / "nosuch")


def test_a_case_planned_from_options_is_read_in_memory_as_from_a_file() -> None:
    """A side and a size have types of their own; where a figure is not finite, they are read again."""
    case = make_case(input_size=Side(224), max_bytes=Size(10**9))
    record = make_record(case, throughput=replace(make_estimate(100.0), high=math.inf))
    told = finite(record)
    assert (told.case.step.input_size, told.case.effort.max_bytes) == (224, 10**9)
    assert told.throughput is not None and told.throughput.high is None
