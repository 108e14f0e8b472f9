"""Advice that was run: rates compared per sample, what cannot be run named with its reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import commands
import jsonschema
import numpy as np
import pytest

from loaderbench import plain
from loaderbench.analysis import record as analysis
from loaderbench.analysis.again import differences
from loaderbench.analysis.verification import rate_ratio
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.recording.facts import STEP_FIELDS, CacheFacts, Failure
from loaderbench.recording.record import Advice, Estimate, RunRecord
from loaderbench.recording.schema import SCHEMA_FILE
from loaderbench.recording.store import Store, load_run
from loaderbench.reporting.terminal import print_run
from loaderbench.running.supervisor import JobFailed, KeptChild
from loaderbench.studies import verify
from loaderbench.studies.measure import judged, stored
from loaderbench.studies.verify import verify_record
from tests.analysis.simulate import Pipeline, run, segment, step_seconds
from tests.made import make_case, make_facts, make_run
from tests.studies.machine import Machine


def predicted(value: float) -> Estimate:
    return Estimate(value, value * 0.9, value * 1.1, "ratio", 4, "made up")


THREADS = Advice("decode_in_threads", "prep", {"loader": "threaded", "workers": 1}, predicted(2.0))
IMPOSSIBLE = Advice("parallel_loader", "prep", {"loader": "multiprocess"}, predicted(2.0))
IN_WORDS = Advice("faster_storage", "storage")


def case(dataset: Path, **changes: object) -> Case:
    return make_case(
        dataset=str(dataset), dataset_name="small", resolution=96, loader="serial", workers=0, batch_size=4,
        device="emulated:h200-resnet50-train-fp32", input_size=64, cache="warm",
    ).changed(**changes)  # fmt: skip


def stored_run(asked: Case, store: Store, monkeypatch: pytest.MonkeyPatch, advice: Sequence[Advice]) -> RunRecord:
    """A simulated run in the store, which is given this advice whenever it is judged."""
    monkeypatch.setattr(analysis, "advise", lambda *given: tuple(advice))
    folder = store.open_run(asked)
    segments = run(Pipeline(decode=0.1, workers=0))
    for one in segments:
        if one.storage is not None:
            one.storage = replace(one.storage, residency_before=0.4, residency_after=1.0)
    facts = make_facts(cache=CacheFacts(asked.subject.cache, measured_once=False))
    return stored(folder, make_run(asked, segments, facts=facts, run_id=folder.run_id))


def advice_of(record: RunRecord) -> tuple[Advice, ...]:
    assert record.verdict is not None
    return record.verdict.advice


def assert_reproduced(record: RunRecord, store: Store) -> None:
    """What the store holds is the record, and what its facts give."""
    kept = store.find(record.run_id)
    assert kept.record is not None
    assert list(differences(plain.to_json(kept.record), plain.to_json(record))) == []
    assert list(differences(plain.to_json(kept.record), plain.to_json(judged(load_run(kept.path))))) == []


def test_rates_are_compared_per_sample() -> None:
    # given a launch-bound step, and one of twice the samples in 1.25 times the time
    launching, doubled = Pipeline(device=0.008, issue=0.030), Pipeline(device=0.0375, issue=0.030)
    before = [segment(Arm.REAL, launching, number=number) for number in range(3)]
    after = [segment(Arm.REAL, doubled, number=number) for number in range(3)]
    for one in after:
        one.steps[:, STEP_FIELDS.index("num_samples")] *= 2
    found = rate_ratio(before, after, 1, 1, 3)
    assert found is not None
    assert found.value == pytest.approx(2 * step_seconds(launching) / step_seconds(doubled), rel=0.01)
    assert found.low is not None and found.high is not None
    assert found.low <= found.value <= found.high


def test_the_interval_knows_turns_that_differ() -> None:
    base = [segment(Arm.REAL, Pipeline(decode=0.2), number=number) for number in range(4)]
    steady = [segment(Arm.REAL, Pipeline(decode=0.1), number=number) for number in range(4)]
    drifting = [segment(Arm.REAL, Pipeline(decode=0.1 if number % 2 else 0.14), number=number) for number in range(4)]
    narrow, wide = rate_ratio(base, steady, 1, 1, 4), rate_ratio(base, drifting, 1, 1, 4)
    assert narrow is not None and narrow.low is not None and narrow.high is not None
    assert wide is not None and wide.low is not None and wide.high is not None
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)


def test_without_a_complete_step_there_is_no_ratio() -> None:
    empty = segment(Arm.REAL, Pipeline(), steps=0)
    assert rate_ratio([segment(Arm.REAL, Pipeline())], [empty], 1, 1, 1) is None


def test_a_cache_state_that_is_gone_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    record = stored_run(case(tmp_path, cache="as-is"), store, monkeypatch, [THREADS])
    assert record.storage is not None
    assert record.storage.cache_state == "as-is" and record.storage.residency_fraction.before == pytest.approx(0.4)
    checked = verify_record(record, store, print)
    (check,) = advice_of(checked)
    assert check.verified and check.measured_speedup is None
    assert "--cache cold or --cache warm" in str(check.not_verified)
    assert store.load_run(record.run_id).not_verified == "cache_state_gone"
    assert_reproduced(checked, store)


def test_without_advice_that_can_be_run_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    record = stored_run(case(tmp_path), store, monkeypatch, [IN_WORDS])
    assert verify_record(record, store, print) == record


def test_advice_is_run_and_stored(
    small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given advice that can be run, advice that cannot, and advice in words
    monkeypatch.setattr(verify, "SECONDS", 0.5)
    store, lines = Store(tmp_path), list[str]()
    record = stored_run(case(small_set / "96"), store, monkeypatch, [THREADS, IMPOSSIBLE, IN_WORDS])
    segments_before = len(load_run(tmp_path / record.run_id).recording.segments)  # type: ignore[union-attr]
    # when it is verified
    checked = verify_record(record, store, lines.append)
    # then the first has a rate, the second a reason, and both are in the stored record
    threads, impossible, in_words = advice_of(checked)
    assert threads.verified and threads.measured_speedup is not None and threads.measured_speedup.value > 0
    assert threads.not_verified is None
    assert impossible.verified and impossible.measured_speedup is None
    assert "--workers of at least 1" in str(impossible.not_verified)
    assert in_words == advice_of(record)[2] and not in_words.verified
    # the base is no change, so a line for each turn of three cases, less the one that failed
    assert [line.split(":")[0] for line in lines] == [f"verifying, turn {turn} of 2" for turn in (1, 1, 1, 2, 2)]
    # how far off the prediction was is told
    print_run(checked)
    error = 2.0 / threads.measured_speedup.value - 1
    assert f"{error:+.0%}" in capsys.readouterr().out
    # every turn's segments lie beside the run's own, which are as they were
    run_as_stored = load_run(tmp_path / record.run_id)
    assert [trial.turn for trial in run_as_stored.trials] == [0, 0, 0, 1, 1]
    assert [trial.recording is None for trial in run_as_stored.trials] == [False, False, True, False, False]
    assert all(trial.recording.segments for trial in run_as_stored.trials if trial.recording is not None)
    assert run_as_stored.recording is not None and len(run_as_stored.recording.segments) == segments_before
    assert_reproduced(checked, store)
    kept = json.loads((tmp_path / record.run_id / "run.json").read_text())["verdict"]["advice"]
    assert kept[0]["measured_speedup"]["value"] == threads.measured_speedup.value
    assert kept[1]["measured_speedup"] is None and kept[1]["not_verified"] == impossible.not_verified
    assert kept[2]["measured_speedup"] is kept[2]["not_verified"] is None and kept[2]["verified"] is False
    parts = json.loads(SCHEMA_FILE.read_text())
    verdict = parts["$defs"]["Verdict"]["properties"]
    jsonschema.validate(kept, {**verdict["advice"], "$defs": parts["$defs"]})
    assert threads.measured_speedup.high is not None and np.isfinite(threads.measured_speedup.high)


def test_the_measured_gain_is_the_simulated_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a measuring process in which the change halves the time to decode
    store, before, after = Store(tmp_path), Pipeline(decode=0.1, workers=0), Pipeline(decode=0.05, workers=0)
    record = stored_run(case(tmp_path), store, monkeypatch, [THREADS])

    def ask(child: object, job: object, request: object, on_message: object) -> object:
        changed = request.case.feed.loader == "threaded"  # type: ignore[attr-defined]
        return make_run(segments=[segment(Arm.REAL, after if changed else before)]).recording

    monkeypatch.setattr(KeptChild, "child", lambda kept, decoder: type("Made", (), {"ask": ask})())
    (check,) = advice_of(verify_record(record, store, print))
    assert check.measured_speedup is not None
    truth = step_seconds(before) / step_seconds(after)
    assert check.measured_speedup.value == pytest.approx(truth, rel=0.01) and truth > 1.5


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interruption_keeps_the_turns_that_were_finished(
    stop: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an interruption in the third of four turns
    store, asked = Store(tmp_path), list[object]()
    record = stored_run(case(tmp_path), store, monkeypatch, [THREADS])

    def ask(child: object, job: object, request: object, on_message: object) -> object:
        asked.append(request)
        if len(asked) == 3:
            # what was finished is stored already: a kill would leave it too
            assert len(store.load_run(record.run_id).trials) == 2
            raise stop
        return make_run(segments=[segment(Arm.REAL, Pipeline(decode=0.1 / len(asked), workers=0))]).recording

    monkeypatch.setattr(KeptChild, "child", lambda kept, decoder: type("Made", (), {"ask": ask})())
    with pytest.raises(type(stop)):
        verify_record(record, store, print)
    # then the first turn of both is stored with the run, and judged
    kept = store.find(record.run_id).record
    assert kept is not None and len(store.load_run(record.run_id).trials) == 2
    assert advice_of(kept)[0].measured_speedup is not None
    assert_reproduced(kept, store)


@pytest.mark.parametrize("broken", [False, True])
def test_a_run_of_whose_advice_a_turn_failed_exits_with_1(
    broken: bool, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(case: Case) -> None:
        if broken and len(machine.measured) == 2:
            raise JobFailed(Failure("CaseFailed", "the disk is gone"))

    # given a run bound by its storage, then its own turn, then that of its first advice
    machine = Machine(lambda case, injection: Pipeline(read=0.2, decode=0.01, workers=case.feed.workers), fail)
    machine.install(monkeypatch)
    asked = (
        "run",
        small_set,
        "--res",
        "96",
        *commands.DEVICE,
        "--workers",
        "1",
        "--cache",
        "cold",
        "--verify",
        "--quiet",
    )
    ended = commands.call(*asked, "--results", tmp_path)
    assert len(machine.measured) >= 2, "there was advice to run"
    assert ended.code == int(broken), ended.err


def test_a_base_that_cannot_be_run_again_verifies_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    record = stored_run(case(tmp_path), store, monkeypatch, [THREADS])

    def ask(child: object, job: object, request: object, on_message: object) -> object:
        raise JobFailed(Failure("CaseFailed", "the disk is gone"))

    monkeypatch.setattr(KeptChild, "child", lambda kept, decoder: type("Made", (), {"ask": ask})())
    failures: list[str] = []
    checked = verify_record(record, store, print, on_failure=failures.append)
    (check,) = advice_of(checked)
    assert (check.verified, check.measured_speedup, check.not_verified) == (True, None, "the disk is gone")
    assert failures == ["the disk is gone"]
    assert_reproduced(checked, store)
