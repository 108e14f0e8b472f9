"""What was measured is stored whole and can be judged again: the same facts and rules give the same record."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.analysis.verdict import CLEAR
from loaderbench.cases.arms import Arm
from loaderbench.plain import JsonObject
from loaderbench.recording.facts import Failure, Run, Trial
from loaderbench.recording.store import Store, load_run, record_json
from loaderbench.studies.measure import judged, stored
from tests.analysis import simulate
from tests.analysis.event_model import Pipeline, measure
from tests.analysis.judging import run_of
from tests.analysis.test_advice import simulated
from tests.analysis.test_record import with_trace
from tests.analysis.test_verdict_rates import null_pipeline, random_pipeline
from tests.made import make_run, make_series


def stored_and_again(run: Run, root: Path) -> tuple[JsonObject, JsonObject]:
    """The record that `run.json` holds, and that of the facts that lie beside it."""
    folder = Store(root).open_run(run.case)
    stored(folder, replace(run, run_id=folder.run_id))
    record: JsonObject = json.loads((folder.path / "run.json").read_text())
    return record, record_json(judged(load_run(folder.path)))[0]


def assert_reproduced(run: Run, root: Path) -> JsonObject:
    record, again = stored_and_again(run, root)
    assert again == record
    assert record["rules_version"] == RULES_VERSION
    return record


def test_runs_of_many_pipelines_give_their_record_again(tmp_path: Path) -> None:
    bottlenecks = set()
    for seed in range(24):
        draw: Callable[[np.random.Generator], Pipeline] = random_pipeline if seed % 4 else null_pipeline
        pipe = draw(np.random.default_rng([6, seed]))
        record = assert_reproduced(run_of(pipe, rounds=2, num_steps=16, drift=0.01, seed=seed), tmp_path)
        verdict = record["verdict"]
        assert isinstance(verdict, dict) and verdict["summary"]
        bottlenecks.add(verdict["bottleneck"])
    assert len(bottlenecks) >= 4  # of all kinds, not one again and again


@pytest.mark.parametrize(
    "arms", [(Arm.REAL,), (Arm.DEVICE, Arm.REAL), (Arm.DEVICE, Arm.HOST, Arm.RAM, Arm.REAL), (Arm.FREE,)]
)
def test_runs_of_few_arms_too(arms: tuple[Arm, ...], tmp_path: Path) -> None:
    pipe = Pipeline(latency_ms=200.0, decode_ms=300.0)
    segments = [segment for segment in measure(pipe, rounds=2, num_steps=16) if segment.arm in arms]
    assert_reproduced(run_of(pipe, segments), tmp_path)


def test_loaders_of_every_kind_too(tmp_path: Path) -> None:
    for pipe in (
        Pipeline(decode_ms=400.0, owns_transfer=True),
        Pipeline(decode_ms=400.0, reads_files=False),
        Pipeline(decode_ms=400.0, tells_spans=False, tells_busy=False),
        Pipeline(workers=0, decode_ms=100.0, transfer_ms=20.0),
    ):
        assert_reproduced(run_of(pipe, rounds=2, num_steps=16), tmp_path)


def test_a_traced_and_sampled_run_too(tmp_path: Path) -> None:
    run = with_trace()
    seconds = np.arange(600) / 10
    run.series = [
        make_series("gpu_utilization_fraction", [0.4] * 600),
        make_series("process_cpu_user_s", [*seconds], kind="counter", unit="s"),
        make_series("process_cpu_system_s", [*(seconds / 4)], kind="counter", unit="s"),
        make_series("process_rss_bytes", [1e9] * 600, unit="bytes"),
    ]
    record = assert_reproduced(run, tmp_path)
    assert isinstance(record["device"], dict) and record["device"]["kernel_gap"] is not None


def test_advice_that_was_verified_too(tmp_path: Path) -> None:
    before = simulate.Pipeline(device=0.030, decode=0.100, workers=1)
    run = simulated(before, cpus=4)
    (first, *_) = [advice for advice in judged(run).verdict.advice if advice.change]  # type: ignore[union-attr]
    assert first.change is not None
    pace = {"decode": 0.050}
    trials = []
    for turn in range(2):
        for change, pipe in (({}, before), (first.change, replace(before, **pace))):
            segments = [simulate.segment(Arm.REAL, pipe, number=turn)]
            recording = make_run(segments=segments).recording
            trials.append(Trial(change, run.case.changed(**change), turn, recording))
    record = assert_reproduced(replace(run, trials=trials), tmp_path)
    assert isinstance(record["verdict"], dict)
    (told,) = [advice for advice in record["verdict"]["advice"] if advice["change"] == dict(first.change)]  # type: ignore[index, union-attr, call-overload]
    truth = simulate.step_seconds(before) / simulate.step_seconds(replace(before, **pace))
    assert told["measured_speedup"]["value"] == pytest.approx(truth, rel=0.03)  # type: ignore[index, call-overload]
    assert truth > CLEAR
    assert_reproduced(replace(run, not_verified="cache_state_gone"), tmp_path)


@pytest.mark.parametrize("status", ["failed", "skipped", "interrupted"])
def test_runs_that_did_not_end_well_too(status: str, tmp_path: Path) -> None:
    failure = Failure("CaseFailed", "the disk is gone")
    whole = run_of(Pipeline(decode_ms=400.0), rounds=1, num_steps=16)
    for run in (replace(whole, recording=None, environment=None), whole, run_of(Pipeline(), [])):
        record = assert_reproduced(replace(run, status=status, failure=failure), tmp_path)  # type: ignore[arg-type]
        assert record["status"] == status and record["failure"] == {"kind": "CaseFailed", "message": "the disk is gone"}


def test_a_fact_that_is_not_finite_is_judged_as_it_is_stored(tmp_path: Path) -> None:
    run = run_of(Pipeline(decode_ms=400.0), rounds=2, num_steps=16)
    assert run.recording is not None
    run.recording.facts = replace(run.recording.facts, loop_overhead_s=float("nan"))
    record = assert_reproduced(run, tmp_path)
    codes = {caveat["code"] for caveat in record["caveats"]}  # type: ignore[union-attr, index, call-overload]
    assert {"not_finite", "overhead_not_measured"} <= codes
