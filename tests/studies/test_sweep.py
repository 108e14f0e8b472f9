"""A sweep: what is measured, what is kept of it, what an interruption leaves, and what `--resume` takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import commands
import pytest
from commands import TINY, call

from loaderbench.cases.case import Case
from loaderbench.recording.facts import Failure
from loaderbench.recording.record import RunRecord
from loaderbench.recording.store import Store
from loaderbench.recording.studies import Sweep, SweepFacts
from loaderbench.running.supervisor import JobFailed
from loaderbench.selftest.injections import Injection
from loaderbench.studies import verify
from loaderbench.studies.sweep import SweepStudy
from tests.analysis.simulate import Pipeline
from tests.made import make_case
from tests.studies.kept import assert_kept
from tests.studies.machine import Machine

CASES = [
    make_case(loader=loader, workers=workers, repeat=repeat, cache="warm")
    for repeat in range(2)
    for loader, workers in (("serial", 0), ("multiprocess", 1), ("multiprocess", 2), ("multiprocess", 4))
]
DEVICE_S, ISSUE_S, DECODE_S = 0.030, 0.001, 0.090


def pipeline_of(case: Case, injection: Injection) -> Pipeline:
    return Pipeline(device=DEVICE_S, issue=ISSUE_S, decode=DECODE_S, workers=case.feed.workers)


def swept(
    results: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, *, resume: bool = False
) -> tuple[SweepStudy, list[RunRecord]]:
    """The study of CASES, measured to its end, and the records in the order in which they came."""
    machine.install(monkeypatch)
    study, came = (
        SweepStudy(CASES, Store(results), loaders=["serial", "multiprocess"], resume=resume),
        list[RunRecord](),
    )
    study.measure(lambda case, message: None, came.append)
    return study, came


def test_a_sweep_is_kept_and_says_what_the_simulation_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, came = swept(tmp_path, Machine(pipeline_of), monkeypatch)
    study.store_study()
    kept = assert_kept(tmp_path, "sweep", num_runs=8)
    assert kept.facts == SweepFacts(8) and isinstance(kept.findings, Sweep)
    # repeats of a case are one row; in the order of the loaders and of their workers
    assert [(row.case.feed.loader, row.case.feed.workers) for row in kept.findings.rows] == [
        ("serial", 0), ("multiprocess", 1), ("multiprocess", 2), ("multiprocess", 4)
    ]  # fmt: skip
    # without workers a batch is made before the next step is issued; the device computes meanwhile
    step_s = [DECODE_S + ISSUE_S, DECODE_S, DECODE_S / 2, DEVICE_S]
    for row, seconds in zip(kept.findings.rows, step_s, strict=True):
        assert len(row.run_ids) == 2
        assert row.rate.value == pytest.approx(64 / seconds, rel=0.05)
        if row.faster_than_serial is not None:
            assert row.faster_than_serial.value == pytest.approx(step_s[0] / seconds, rel=0.05)
    (knee,) = [knee for knee in kept.findings.knees if knee.case.feed.loader == "multiprocess"]
    assert (knee.workers, knee.tried) == (4, (1, 2, 4))
    (flip,) = kept.findings.flips
    assert (flip.along, flip.at, flip.bottlenecks) == ("workers", (2, 4), ("prep", "compute"))
    assert [record.run_id for record in came] == [run.run_id for run in Store(tmp_path).runs()]


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupted_sweep_keeps_its_finished_runs_and_goes_on_from_there(
    stop: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(case: Case) -> None:
        if len(first.measured) == 5:
            raise stop

    first = Machine(pipeline_of, before=interrupt)
    first.install(monkeypatch)
    study = SweepStudy(CASES, Store(tmp_path))
    with pytest.raises(type(stop)):
        study.measure(lambda case, message: None, lambda record: None)
    assert [record.status for record in study.records] == ["ok"] * 5
    study.store_study()
    kept = assert_kept(tmp_path, "sweep", num_runs=5)
    assert kept.facts == SweepFacts(8)
    # the one that was interrupted is there as that, and is judged as that
    statuses = [run.status for run in Store(tmp_path).runs()]
    assert statuses.count("ok") == 5 and statuses.count("interrupted") == 1
    assert call("analyze", "--all", "--results", tmp_path).code == 0
    # when it goes on, then with the other three
    second = Machine(pipeline_of)
    study, _ = swept(tmp_path, second, monkeypatch, resume=True)
    assert (study.num_taken, len(second.measured), len(study.records)) == (5, 3, 8)


def test_a_case_that_fails_is_a_row_that_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(case: Case) -> None:
        if case.feed.workers == 2:
            raise JobFailed(Failure("CaseFailed", "the disk is gone"))

    study, came = swept(tmp_path, Machine(pipeline_of, before=fail), monkeypatch)
    assert [record.status for record in came].count("failed") == 2
    study.store_study()
    kept = assert_kept(tmp_path, "sweep", num_runs=8)
    assert isinstance(kept.findings, Sweep) and [row.case.feed.workers for row in kept.findings.rows] == [0, 1, 4]


def test_records_that_were_verified_take_the_place_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, _ = swept(tmp_path, Machine(pipeline_of), monkeypatch)
    asked: list[str] = []

    def verified(
        record: RunRecord, store: Store, say: object, on_record: Callable[[RunRecord], None], on_failure: object
    ) -> RunRecord:
        asked.append(record.run_id)
        on_record(replace(record, wall_s=12.5))
        return record

    monkeypatch.setattr("loaderbench.studies.sweep.verify_record", verified)
    study.verify(lambda case, line: None)
    assert sorted(asked) == sorted(record.run_id for record in study.records)
    assert {record.wall_s for record in study.records} == {12.5}


def test_the_command_keeps_what_it_prints(small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary, results = tmp_path / "tmp", tmp_path / "results"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    ended = commands.run(
        "sweep", small_set, "--res", "96,128", "--loader", "synthetic,serial", *TINY, "--arms", "device,real",
        "--results", results, "--json", "-",
    )  # fmt: skip
    assert (ended.code, ended.err) == (0, "")
    found = json.loads(ended.out)
    study = assert_kept(results, "sweep", num_runs=4)
    assert found["study"]["study_id"] == study.study_id
    assert [run["run_id"] for run in found["runs"]] == list(study.runs)
    shown = json.loads(call("show", study.study_id, "--results", results, "--json", "-").out)
    assert shown == found["study"]
    by_id = {record["run_id"]: record for record in commands.records(results)}
    for row in found["study"]["rows"]:
        (run_id,) = row["run_ids"]
        assert row["rate"]["value"] == pytest.approx(by_id[run_id]["throughput"]["value"])
    assert call("show", study.study_id, "--results", results).out.count("serial") >= 2
    assert list(temporary.iterdir()) == []


def test_each_case_is_told_as_it_ends_and_a_failure_by_its_reason_once(
    small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(case: Case) -> None:
        if case.feed.loader == "serial":
            raise JobFailed(Failure("CaseFailed", "the disk is gone"))

    Machine(before=fail).install(monkeypatch)
    asked = ("--res", "96,128", "--workers", "1", "--device", "emulated", "--cache", "warm", "--results", tmp_path)
    ended = call("sweep", small_set, "--loader", "serial,threaded", *asked)
    assert ended.code == 1
    told = [line for line in ended.err.splitlines() if "images/s" in line]
    assert len(told) == 2 and all(" threaded+" in line and " ±" in line for line in told)
    joined = " ".join(ended.out.split())
    assert joined.count("the disk is gone") == 1  # of both cases, after their rows
    assert "96 serial, 128 serial, failed: the disk is gone" in joined
    alone = call("run", small_set, "--res", "96", "--loader", "serial", *asked[2:])
    assert alone.code == 1 and (alone.out + alone.err).count("the disk is gone") == 1


@pytest.mark.slow
def test_a_run_with_its_advice_verified_is_kept(
    small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, results = tmp_path / "tmp", tmp_path / "results"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    ended = commands.run(
        "run", small_set, "--res", "128", *TINY, "--workers", "1", "--loader", "serial", "--cache", "warm", "--verify",
        "--results", results, timeout_s=170,
    )  # fmt: skip
    assert (ended.code, ended.err) == (0, "")
    (record,) = commands.records(results)
    verified = [advice for advice in record["verdict"]["advice"] if advice["verified"]]
    assert verified, "a serial loader beside a device is worth workers"
    run = Store(results).load_run("latest")
    assert len(run.trials) <= verify.ROUNDS * (1 + len(verified))
    assert {trial.turn for trial in run.trials} == {0, 1}
    for advice in verified:
        turns = [trial for trial in run.trials if dict(trial.change) == advice["change"]]
        assert turns and (advice["measured_speedup"] is not None or advice["not_verified"])
    assert run.recording is not None and {segment.arm for segment in run.recording.segments} > {"real"}
    again = call("analyze", "latest", "--results", results)
    assert again.code == 0 and "reproduced exactly" in " ".join(again.out.split())
    assert "measured: " in call("show", "latest", "--results", results).out
    assert "Advice, measured" in call("show", "latest", "--all", "--results", results).out
    assert list(temporary.iterdir()) == []
