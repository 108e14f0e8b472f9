"""How the self-test judges: made-up records and stopwatch times with answers by hand. The runs are in `selftest`."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from rich.console import Console

from loaderbench.analysis.selftest import (
    alike_outcome,
    confusion,
    is_clear,
    is_confidently_wrong,
    is_right,
    outcome_of,
    score,
)
from loaderbench.cases.case import Case
from loaderbench.images.synthesize import make_dataset
from loaderbench.recording.facts import Failure
from loaderbench.recording.record import CAUSES, SHARES, RunRecord, Verdict
from loaderbench.recording.store import Store
from loaderbench.recording.studies import (
    AlikeFacts,
    Left,
    ScenarioFacts,
    ScenarioOutcome,
    SelfTest,
    SelfTestFacts,
    Stopwatch,
)
from loaderbench.reporting.studies import print_findings
from loaderbench.running.supervisor import Child, JobFailed
from loaderbench.selftest import study as study_module
from loaderbench.selftest.jobs import ALIKE, AlikeRequest
from loaderbench.selftest.request import SelfTestRequest
from loaderbench.selftest.scenarios import BUILT_IN, HARD, scenarios
from loaderbench.selftest.study import SelfTestStudy
from loaderbench.studies.measure import quiet
from tests.corpus.adding import of_self_test
from tests.corpus.score import judged
from tests.made import CASE, make_case, make_estimate, make_record
from tests.studies.kept import assert_kept, only_study
from tests.studies.machine import Machine


def record(
    bottleneck: Any, *, joint: Sequence[Any] = (), gain: float = 2.0, step_s: float = 0.020, **shares: float
) -> RunRecord:
    return make_record(
        throughput=make_estimate(CASE.step.batch_size / step_s),
        shares={name: make_estimate(shares[name]) if name in shares else None for name in SHARES},
        verdict=Verdict(
            bottleneck,
            summary="in words",
            joint=tuple(joint),
            joint_speedup=make_estimate(gain) if joint else None,
            speedup_if_removed={cause: make_estimate(gain) for cause in CAUSES},
        ),
    )


def scenario(cause: Any, *times: float, run_id: str = "r") -> ScenarioFacts:
    return ScenarioFacts(f"serial-{cause}", "serial", cause, 2.0, None, run_id, {}, Stopwatch(*times))


def judge(cause: str, found: RunRecord, *times: float) -> ScenarioOutcome:
    return outcome_of(scenario(cause, *times), found)


def scored(*rows: tuple[str, RunRecord, tuple[float, ...]], **facts: Any) -> SelfTest:
    """The score of runs with these causes; `runs`: further records, by their ids."""
    runs = facts.pop("runs", {})
    named = {f"r{number}": row for number, row in enumerate(rows)}
    ran = tuple(scenario(cause, *times, run_id=run_id) for run_id, (cause, _, times) in named.items())
    return score(
        SelfTestFacts(True, "cpu", len(rows), ran, **facts),
        {**{run_id: found for run_id, (_, found, _) in named.items()}, **runs},
    )


def test_the_stopwatch_is_the_truth() -> None:
    # given 40 ms with the cause and 20 without
    one = judge("prep", record("prep", gain=1.9, prep=0.4, contention=0.05, compute=0.5), 0.040, 0.020)
    assert (one.truth, one.true_speedup, one.predicted_speedup) == ("prep", pytest.approx(2.0), 1.9)
    assert one.shares_true["prep"] == pytest.approx(0.5) and one.shares_true["storage"] == 0
    assert one.shares["prep"] == pytest.approx(0.45)  # contention counts with it
    assert is_clear(one) and is_right(one) and not is_confidently_wrong(one)


def test_a_cause_that_slows_nothing_is_not_the_truth() -> None:
    one = judge("transfer", record("compute", compute=1.0), 0.0202, 0.020)
    assert one.truth == "compute" and not is_clear(one) and is_right(one)
    assert is_confidently_wrong(judge("transfer", record("transfer"), 0.0202, 0.020))
    # what may be worth something is left to either answer
    assert not is_confidently_wrong(judge("transfer", record("transfer"), 0.0214, 0.020))


def test_more_compute_is_a_cause_that_must_be_found() -> None:
    one = judge("compute", record("compute", compute=1.0), 0.040, 0.020)
    assert one.truth == "compute" and is_clear(one) and is_right(one) and not is_confidently_wrong(one)
    assert is_confidently_wrong(judge("compute", record("prep"), 0.040, 0.020))


def test_a_share_that_was_not_measured_has_no_error() -> None:
    one = judge("prep", record("prep", prep=0.4), 0.040, 0.020)
    assert one.shares["launch"] is None
    error = scored(("prep", record("prep", prep=0.4), (0.040, 0.020))).share_error
    assert (error.mean, error.p95) == (pytest.approx(0.1), pytest.approx(0.1))


def test_another_cause_named_is_confidently_wrong_and_undetermined_is_not() -> None:
    assert is_confidently_wrong(judge("storage", record("prep"), 0.040, 0.020))
    assert not is_confidently_wrong(judge("storage", record("undetermined"), 0.040, 0.020))
    assert not is_confidently_wrong(judge("storage", record("mixed", joint=["storage", "prep"]), 0.040, 0.020))
    assert is_confidently_wrong(judge("storage", record("mixed", joint=["transfer", "prep"]), 0.040, 0.020))
    assert is_confidently_wrong(judge("none", record("prep"), 0.020, 0.020))
    assert is_confidently_wrong(judge("mixed", record("prep"), 0.040, 0.020, 0.039, 0.040))
    assert not is_confidently_wrong(judge("mixed", record("mixed", joint=["prep"]), 0.040, 0.020, 0.039, 0.040))


def test_two_causes_of_equal_size_are_mixed_and_of_unequal_size_are_not() -> None:
    # times: with both, without, without prep, without the copy
    found = record("mixed", joint=["prep", "transfer"])
    both = judge("mixed", found, 0.040, 0.020, 0.039, 0.040)
    assert (both.truth, is_clear(both), both.true_speedup) == ("mixed", True, pytest.approx(2.0))
    prep = judge("mixed", found, 0.040, 0.020, 0.030, 0.040)
    assert (prep.truth, is_clear(prep), prep.true_speedup) == ("prep", True, pytest.approx(4 / 3))
    assert judge("mixed", found, 0.040, 0.020, 0.040, 0.030).truth == "transfer"
    # within the stopwatch's error of the rule's 1.10 either answer will do
    for alone in (0.0372, 0.035):
        close = judge("mixed", found, 0.040, 0.020, alone, 0.040)
        assert not is_clear(close) and not is_confidently_wrong(close)


def test_the_figures_over_all_cases() -> None:
    rows = (
        ("prep", record("prep", gain=2.2, prep=0.5, compute=0.5), (0.040, 0.020)),
        ("storage", record("undetermined"), (0.040, 0.020)),
        ("none", replace(record("compute", compute=0.98, prep=0.02), overhead_fraction=0.001), (0.020, 0.020)),
        ("none", record("prep", compute=0.8, prep=0.2), (0.020, 0.020)),
    )
    crashed = Left("serial-launch-x2", "the child died")
    null_loader = make_record(overhead_fraction=0.002, accelerator_utilization_fraction=0.99)
    found = scored(*rows, failed=(crashed,), null_loader_run="null", runs={"null": null_loader})
    assert found.accuracy_fraction == pytest.approx(1 / 3) and found.num_clear_cases == 3
    assert found.failed == (crashed,)
    assert found.undetermined_fraction == 0.25
    assert found.confident_wrong == 1
    assert found.null_false_positive_fraction == 0.5
    assert found.speedup_error_median == pytest.approx(0.05)  # of 2.2 for 2 and 2 for 2
    assert found.overhead_fraction == 0.002
    assert found.null_loader_au_fraction == 0.99
    assert confusion(found.cases)["storage"]["undetermined"] == 1
    assert scored().accuracy_fraction is None


def either(with_s: float, without_s: float, without_prep_s: float, without_storage_s: float) -> ScenarioFacts:
    watch = Stopwatch(with_s, without_s, without_prep_s=without_prep_s, without_storage_s=without_storage_s)
    return replace(scenario("either", 1.0, 1.0), stopwatch=watch, hard="either-or")


def test_where_either_of_two_may_go_both_are_to_be_named() -> None:
    # given 28 ms with both, and 20 ms without the one, the other, or both
    facts = either(0.028, 0.020, 0.0201, 0.020)
    both = outcome_of(facts, record("mixed", joint=["storage", "prep"], gain=1.4))
    assert (both.truth, both.true_speedup, both.predicted_speedup) == ("either", pytest.approx(1.4), 1.4)
    assert is_clear(both) and is_right(both)
    # when one of them is named, then that is true, and not all
    one = outcome_of(facts, record("prep", gain=1.4))
    assert not is_right(one) and not is_confidently_wrong(one)
    assert is_confidently_wrong(outcome_of(facts, record("transfer")))
    assert is_confidently_wrong(outcome_of(facts, record("compute")))
    # where the one gives more than the other it is no longer either
    assert outcome_of(either(0.028, 0.020, 0.025, 0.020), record("prep")).truth == "storage"
    assert outcome_of(either(0.028, 0.020, 0.020, 0.025), record("prep")).truth == "prep"
    assert outcome_of(either(0.028, 0.020, 0.027, 0.027), record("prep")).truth == "mixed"
    assert outcome_of(either(0.0202, 0.020, 0.0202, 0.0202), record("prep")).truth == "compute"


def held_up_by(found: RunRecord, hard: Any, *times: float) -> ScenarioOutcome:
    return outcome_of(replace(scenario("contention", *times), hard=hard), found)


def test_who_holds_a_run_up_is_no_preparation() -> None:
    named = held_up_by(record("contention", gain=1.9, contention=0.45), "quota", 0.040, 0.020)
    assert (named.truth, named.detail_true) == ("contention", "quota") and is_right(named)
    assert named.shares_true == {"contention": pytest.approx(0.5)}
    assert named.shares["contention"] == pytest.approx(0.45)
    assert is_confidently_wrong(held_up_by(record("prep"), "quota", 0.040, 0.020))
    assert not is_confidently_wrong(held_up_by(record("undetermined"), "quota", 0.040, 0.020))
    # a disturber that takes nothing is no cause, and nobody is to be named
    nothing = held_up_by(record("compute"), "quota", 0.0202, 0.020)
    assert (nothing.truth, nothing.detail_true) == ("compute", None) and is_right(nothing)


def test_the_kind_of_slow_storage_is_scored_where_the_verdict_is_right() -> None:
    slow = [replace(scenario("storage", 0.040, 0.020, run_id=f"r{number}"), hard="tails") for number in range(2)]
    found = {"r0": record("storage"), "r1": record("prep")}
    result = score(SelfTestFacts(True, "cpu", 2, tuple(slow)), found)
    # the record of an older version tells no kind
    assert (result.detail_fraction, [one.detail for one in result.cases]) == (0.0, [None, None])
    assert [one.detail_true for one in result.cases] == ["tail", "tail"]
    assert confusion(result.cases) == {
        "storage: tails": {**dict.fromkeys(confusion(result.cases)["storage: tails"], 0), "storage": 1, "prep": 1}
    }
    assert scored(("prep", record("prep"), (0.040, 0.020))).detail_fraction is None
    throttled = replace(slow[0], hard=None, bed="throttled_loop")
    assert outcome_of(throttled, record("storage")).detail_true == "bandwidth"
    assert outcome_of(replace(throttled, bed="slow_fuse"), record("storage")).detail_true is None


def beside(cause: Any, with_s: float, without_s: float, undisturbed_s: float) -> ScenarioFacts:
    return replace(scenario(cause, 1.0, 1.0), stopwatch=Stopwatch(with_s, without_s, undisturbed_s=undisturbed_s))


def test_beside_busy_processes_the_larger_of_both_gains_is_the_truth() -> None:
    # given 40 ms beside them; without the cause 20, without them 30
    facts = beside("prep", 0.040, 0.020, 0.030)
    assert is_right(outcome_of(facts, record("prep")))
    assert is_confidently_wrong(outcome_of(facts, record("contention")))
    # given 20 ms without them, and 30 without the cause
    held_up = outcome_of(beside("prep", 0.040, 0.030, 0.020), record("contention", step_s=0.040))
    assert (held_up.truth, held_up.true_speedup, held_up.shares_true) == ("contention", pytest.approx(2.0), {})
    assert is_clear(held_up) and is_right(held_up)
    # about the same: both answers are right
    close = beside("prep", 0.040, 0.020, 0.021)
    assert all(is_right(outcome_of(close, record(named))) for named in ("prep", "contention"))
    assert not is_confidently_wrong(outcome_of(close, record("contention")))
    assert is_confidently_wrong(outcome_of(close, record("transfer")))
    # they cost 1.7, which the verdict names first, whatever else could be gained
    much = beside("prep", 0.080, 0.020, 0.080 / 1.7)
    assert all(is_right(outcome_of(much, record(named))) for named in ("prep", "contention"))
    assert is_confidently_wrong(outcome_of(beside("prep", 0.060, 0.020, 0.040), record("contention")))
    # 1.58 by the stopwatch, whose error is 5 %, may be as much as the rule asks for; 1.50 is not
    near, less = beside("prep", 0.060, 0.020, 0.060 / 1.58), beside("prep", 0.060, 0.020, 0.060 / 1.50)
    assert all(is_right(outcome_of(near, record(named))) for named in ("prep", "contention"))
    assert is_confidently_wrong(outcome_of(less, record("contention")))
    # the cause gives no more beyond them: 1.96 of 1.4
    assert is_right(outcome_of(beside("prep", 0.0392, 0.020, 0.028), record("contention")))
    # a run without a cause that they hold up is no false positive
    null = outcome_of(beside("none", 0.040, 0.040, 0.020), record("contention", step_s=0.040))
    assert (null.truth, null.is_null) == ("contention", False) and is_right(null)
    facts = beside("none", 0.020, 0.020, 0.0199)
    assert outcome_of(facts, record("compute")).is_null
    assert is_confidently_wrong(outcome_of(facts, record("contention", step_s=0.021)))
    # they held the run up, and not the stopwatch's turns: another cause is as wrong as ever
    assert all(is_right(outcome_of(facts, record(named, step_s=0.024))) for named in ("compute", "contention"))
    assert is_confidently_wrong(outcome_of(facts, record("prep", step_s=0.024)))
    # they held the stopwatch's turns up, and not the run: neither answer is wrong, nor counts as a clear case
    turns = beside("none", 0.026, 0.026, 0.020)
    for named, step_s in product(("compute", "contention"), (0.0205, 0.0218)):
        missed = outcome_of(turns, record(named, step_s=step_s))
        assert is_right(missed) and not is_clear(missed) and not is_confidently_wrong(missed) and not missed.is_null
    assert is_confidently_wrong(outcome_of(turns, record("prep", step_s=0.0205)))
    assert is_confidently_wrong(outcome_of(turns, record("compute", step_s=0.0222)))


def test_where_either_answer_is_right_it_is_counted_which_was_given() -> None:
    facts = SelfTestFacts(True, "cpu", 1, (replace(beside("prep", 0.040, 0.020, 0.021), run_id="r"),))
    counted = [score(facts, {"r": record(named)}) for named in ("prep", "contention", "transfer")]
    assert [one.accuracy_fraction for one in counted] == [1.0, 1.0, 0.0]
    assert [one.num_others_first for one in counted] == [0, 1, 0]
    stream = io.StringIO()
    for one in counted:
        print_findings(facts, one, Console(file=stream, width=200))
    assert stream.getvalue().count("1 of them named contention") == 1


def test_neighbours_that_held_the_run_up_and_not_the_stopwatch_s_turns_are_no_wrong_answer() -> None:
    facts = replace(scenario("contention", 0.0205, 0.020), hard="neighbours")
    assert is_confidently_wrong(outcome_of(facts, record("contention", step_s=0.021)))
    held_up = outcome_of(facts, record("contention", step_s=0.030))
    assert is_right(held_up) and not is_clear(held_up) and not is_confidently_wrong(held_up)
    assert is_confidently_wrong(outcome_of(facts, record("prep", step_s=0.030)))


def test_what_is_run() -> None:
    quick, full = scenarios(quick=True), scenarios(quick=False)
    plain = [one for one in quick if one.hard is None]
    assert (sum(one.cause != "none" for one in plain), sum(one.cause == "none" for one in plain)) == (12, 6)
    assert sorted(one.hard for one in quick if one.hard) == ["neighbours", "opens", "own threads", "tails"]
    assert sum(one.cause == "none" for one in full) == 40
    assert sum(one.cause == "none" and one.hard == "warm FUSE" for one in full) == 3
    for loader in ("serial", "multiprocess", "threaded"):
        mine = [one for one in full if one.loader == loader]
        for cause in BUILT_IN:
            run = [one for one in mine if one.cause == cause and one.hard is None and one.bed != "throttled_loop"]
            assert sorted(one.magnitude for one in run) == [1.4, 2.0, 3.0]
        # a loader without workers has nobody to share its processors, or to read ahead of it
        wanted = {"opens", "warm FUSE"} if loader == "serial" else set(HARD)
        assert {one.hard for one in mine} - {None} == wanted
    assert len({one.name for one in full}) == len(full) and len({one.name for one in quick}) == len(quick)


# -- the study, on a machine that is simulated -----------------------------------------------------------------

NO_FUSE = {"slow_fuse": "no FUSE here: install it"}
NO_BEDS = {**NO_FUSE, "throttled_loop": "that takes root"}


def request(*, resume: bool = False) -> SelfTestRequest:
    return SelfTestRequest(True, "cpu", "fp32", resume=resume)


@pytest.fixture(autouse=True)
def without_beds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the beds for slow storage, and a data set that nobody reads."""
    monkeypatch.setattr(study_module, "_missing_beds", lambda todo: NO_FUSE if len(todo) < 30 else NO_BEDS)
    monkeypatch.setattr(study_module, "resolve_dataset", lambda name, resolution: ("/nowhere/256", "made up"))


def run(results: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, **asked: bool) -> list[str]:
    """Run the self-test; its lines."""
    lines: list[str] = []
    machine.install(monkeypatch)
    SelfTestStudy(request(**asked), Store(results), lines.append).run()
    return lines


def test_a_selftest_finds_what_was_built_into_a_simulated_machine_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = run(tmp_path, Machine(), monkeypatch)
    # 9 of the 12 causes need no bed, nor do 2 of the hard ones; 6 nulls; the null loader
    study = assert_kept(tmp_path, "selftest", num_runs=9 + 2 + 6 + 1)
    facts, found = study.facts, study.findings
    assert isinstance(facts, SelfTestFacts) and isinstance(found, SelfTest)
    assert found.confident_wrong == 0 and found.null_false_positive_fraction == 0
    assert found.accuracy_fraction == 1 and found.num_clear_cases == 9
    assert found.share_error.mean is not None and found.share_error.mean < 0.03
    assert {left.reason for left in found.skipped} == set(NO_FUSE.values()) and len(found.skipped) == 5
    assert found.failed == () and facts.null_loader_run is not None
    # the stopwatch's times and what was built in are facts, and nowhere else
    outcomes = {outcome.name: outcome for outcome in found.cases}
    for scenario in facts.scenarios:
        watch = scenario.stopwatch
        if scenario.cause != "mixed":
            assert outcomes[scenario.name].true_speedup == watch.with_s / watch.without_s
        else:
            assert watch.without_prep_s is not None and watch.without_transfer_s is not None
        # nothing slows a model that computes on the processors that it shares
        assert ("compute_extra_s" in scenario.injected) == (scenario.hard != "own threads")
        stored = tmp_path / study.study_id / "runs" / scenario.run_id
        assert "burn" not in (stored / "facts.json").read_text() + (stored / "run.json").read_text()
    assert not list(tmp_path.glob("*.jsonl")) and [path.name for path in tmp_path.iterdir()] == [study.study_id]
    # each case goes into the corpus with the stopwatch's turns, and is right there too
    cases = [*of_self_test(tmp_path / study.study_id, "nothing")]
    assert [case.name for case in cases] == [*outcomes]
    for case, compared in zip(cases, map(judged, cases), strict=True):
        outcome = outcomes[case.name]
        assert compared.gain[0] == pytest.approx(outcome.true_speedup)
        assert (compared.truth, compared.null) == (outcome.truth, outcome.is_null)
        assert not compared.confidently_wrong and compared.right >= compared.clear
    assert lines[0] == "skipped, 5 cases on slow_fuse: no FUSE here: install it"
    assert sum(line.startswith(("  1 of 17", " 17 of 17")) for line in lines) == 2
    assert lines[-1].startswith("null loader ")


@pytest.mark.parametrize(
    ("from_memory", "alike"),
    [
        ((1.0, 1.01, 0.99, 1.0, 1.0), True),
        ((1.01, 1.02, 1.0, 1.01, 1.02), True),
        ((1.15, 1.14, 1.16, 1.15, 1.15), False),
        ((0.9, 1.1, 1.3, 0.8, 1.0), None),
        ((1.3, 1.1, 1.0, 1.2, 1.02), None),
    ],
)
def test_arms_are_alike_only_if_their_turns_show_it(from_memory: tuple[float, ...], alike: bool | None) -> None:
    prep_s = np.column_stack((from_memory, np.ones(5)))
    assert alike_outcome(AlikeFacts("some", prep_s, np.zeros((5, 2)))).alike is alike


@pytest.mark.parametrize(("takes", "alike"), [(1.0, True), (1.01, True), (1.15, False), (0.9, False)])
def test_a_loader_whose_arms_are_not_alike_is_named(
    takes: float, alike: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a machine on which preparing an image from memory takes that much of the CPU time
    machine = Machine()
    machine.memory_takes = takes
    lines = run(tmp_path, machine, monkeypatch)
    found = only_study(tmp_path).findings
    assert isinstance(found, SelfTest)
    (outcome,) = found.alike  # the quick set has the default loader and decoder
    assert outcome.name == "alike-multiprocess-pillow-512" and outcome.alike is alike
    assert outcome.ratio.low is not None and outcome.ratio.high is not None
    assert outcome.ratio.low < takes < outcome.ratio.high
    assert next(line for line in lines if outcome.name in line).endswith("ok" if alike else "UNLIKE")


@pytest.mark.alone
@pytest.mark.parametrize(("samples", "side", "others"), [("direct", 512, 5), ("torchvision", 1024, 25)])
def test_workers_take_their_memory_alike_in_every_arm(tmp_path: Path, samples: str, side: int, others: int) -> None:
    # given images so large that glibc would return the memory of each to the kernel, or not, by chance
    made = make_dataset(tmp_path / "images", [side], 64)
    case = make_case(
        dataset=str(made[str(side)]), cache="warm", batch_size=16, device="emulated:h200-resnet50-train-amp-bf16",
        precision="amp-bf16", loader_options={"samples": samples},
    )  # fmt: skip
    with Child(tmp_path / "log") as child:
        facts = child.ask(ALIKE, AlikeRequest("alike", case), quiet)
    # then each turn faults the same pages in: those of the batches, in shared memory
    per_image = 224 * 224 * 3 * 4 / 4096
    assert facts.minor_faults == pytest.approx(per_image, abs=others)


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), pytest.param(SystemExit(143), marks=pytest.mark.slow)])
def test_an_interrupted_selftest_keeps_its_cases_and_goes_on_from_there(
    stop: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given an interruption in the sixth case
    def interrupt(case: Case) -> None:
        if len(first.measured) == 5:
            raise stop

    first = Machine(before=interrupt)
    with pytest.raises(type(stop)):
        run(tmp_path, first, monkeypatch)
    # then five cases are kept, and judged
    begun = assert_kept(tmp_path, "selftest", num_runs=5)
    assert isinstance(begun.facts, SelfTestFacts) and isinstance(begun.findings, SelfTest)
    done = {scenario.name for scenario in begun.facts.scenarios}
    assert len(done) == len(begun.findings.cases) == 5
    # when it goes on, then with the others alone, in the same study
    second = Machine()
    run(tmp_path, second, monkeypatch, resume=True)
    assert len(second.measured) == 17 - 5 + 1
    whole = only_study(tmp_path)
    assert whole.study_id == begun.study_id and isinstance(whole.facts, SelfTestFacts)
    names = [scenario.name for scenario in whole.facts.scenarios]
    assert len(set(names)) == len(names) == 17 and set(names[:5]) == done
    assert len(whole.facts.skipped) == 5
    assert_kept(tmp_path, "selftest")
    # and without --resume a new one is begun
    run(tmp_path, Machine(), monkeypatch)
    assert len(Store(tmp_path).studies()) == 2


@pytest.mark.slow
def test_a_case_that_breaks_off_is_failed_and_run_again_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(case: Case) -> None:
        if case.feed.loader == "threaded":
            raise JobFailed(Failure("CaseFailed", "the disk is gone"))

    lines = run(tmp_path, Machine(before=fail), monkeypatch)
    study = assert_kept(tmp_path, "selftest")
    assert isinstance(study.findings, SelfTest)
    # threaded: prep and launch (storage is skipped), two nulls
    assert [left.reason for left in study.findings.failed] == ["the disk is gone"] * 4
    assert study.findings.accuracy_fraction == pytest.approx(7 / 11) and study.findings.num_clear_cases == 11
    assert sum("FAILED: the disk is gone" in line for line in lines) == 4
    again = Machine()
    run(tmp_path, again, monkeypatch, resume=True)
    assert {case.feed.loader for case in again.measured} == {"threaded"} and len(again.measured) == 4
    whole = only_study(tmp_path).findings
    assert isinstance(whole, SelfTest) and (whole.failed, whole.accuracy_fraction) == ((), 1)


@pytest.mark.parametrize(("kind", "code"), [("CaseFailed", 1), ("UnavailableError", 0)])
def test_a_selftest_of_which_a_case_failed_exits_with_1(
    kind: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(case: Case) -> None:
        if case.feed.loader == "threaded":
            raise JobFailed(Failure(kind, "it is gone"))

    Machine(before=fail).install(monkeypatch)
    ended = commands.call("selftest", "--quick", "--device", "emulated", "--results", tmp_path)
    assert ended.code == code and "it is gone" in ended.err


@pytest.mark.slow
def test_what_a_loader_lacks_all_its_cases_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lack(case: Case) -> None:
        if case.feed.loader == "serial":
            raise JobFailed(Failure("UnavailableError", "not installed: pip install it"))

    run(tmp_path, Machine(before=lack), monkeypatch)
    study = assert_kept(tmp_path, "selftest")
    assert isinstance(study.findings, SelfTest)
    skipped = [left.name for left in study.findings.skipped if "pip install" in left.reason]
    assert len(skipped) == 4 and all(name.startswith("serial-") for name in skipped)
    assert study.findings.failed == ()


@pytest.mark.slow
def test_other_self_tests_are_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(case: Case) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Machine(before=interrupt), monkeypatch)
    # nothing was finished, and that is what is kept
    nothing = assert_kept(tmp_path, "selftest", num_runs=0).findings
    assert isinstance(nothing, SelfTest) and (nothing.cases, nothing.accuracy_fraction) == ((), None)
    shutil.rmtree(tmp_path / only_study(tmp_path).study_id)
    store = Store(tmp_path)

    def soon(case: Case) -> None:
        if len(machine.measured) == 2:
            raise KeyboardInterrupt

    for asked in (
        SelfTestRequest(False, "cpu", "fp32"),
        SelfTestRequest(True, "cuda:0", "fp32"),
        SelfTestRequest(True, "cpu", "fp32", beside=1),
        SelfTestRequest(True, "cpu", "fp32", only=("serial",)),
    ):
        machine = Machine(before=soon).install(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            SelfTestStudy(asked, store, lambda line: None).run()
    before = [study.study for study in store.studies()]
    run(tmp_path, Machine(), monkeypatch, resume=True)
    assert [study.study for study in store.studies()][:4] == before and len(store.studies()) == 5


def test_some_cases_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine().install(monkeypatch)
    asked = ("selftest", "--quick", "--device", "emulated", "--results", tmp_path)
    assert commands.call(*asked, "--only", "serial, threaded-launch").code == 0
    facts = only_study(tmp_path).facts
    assert isinstance(facts, SelfTestFacts) and facts.only == ("serial", "threaded-launch")
    names = [scenario.name for scenario in facts.scenarios]
    # the serial loader's causes that need no bed, and its nulls; one other; behind them the null loader
    assert len(names) == 5 and sum("serial" in name for name in names) == 4
    assert [name for name in names if "serial" not in name] == ["threaded-launch-x2"]
    assert len(machine.measured) == 6
    for wrong in ("nobody", "serial,"):
        ended = commands.call(*asked, "--only", wrong)
        assert ended.code == 2 and f"--only {wrong}" in ended.err and "serial-prep-x2" in ended.err
