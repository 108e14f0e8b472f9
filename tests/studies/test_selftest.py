"""How the self-test judges: made-up records and stopwatch times with answers by hand. The runs are in `selftest`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loaderbench.analysis.attribution import CAUSES, SHARES
from loaderbench.studies import selftest
from loaderbench.studies.selftest import CLASSES, Outcome, Scenario, SelfTest, confusion, scenarios


def record(bottleneck: str, *, joint: list[str] | None = None, gain: float = 2.0, **shares: float) -> dict[str, Any]:
    return {
        "shares": {name: {"value": shares[name]} if name in shares else None for name in SHARES},
        "verdict": {
            "bottleneck": bottleneck,
            "summary": "in words",
            "joint": joint or [],
            "joint_speedup": {"value": gain} if joint else None,
            "speedup_if_removed": {cause: {"value": gain} for cause in CAUSES},
        },
    }


def judge(cause: str, found: dict[str, Any], *times: float) -> Outcome:
    return selftest._judge(Scenario(f"serial-{cause}", "serial", cause, 2.0), found, times)


def test_the_stopwatch_is_the_truth() -> None:
    # given 40 ms with the cause and 20 without
    one = judge("prep", record("prep", gain=1.9, prep=0.4, contention=0.05, compute=0.5), 0.040, 0.020)
    assert (one.truth, one.true_speedup, one.predicted_speedup) == ("prep", pytest.approx(2.0), 1.9)
    assert one.shares_true["prep"] == pytest.approx(0.5) and one.shares_true["storage"] == 0
    assert one.shares["prep"] == pytest.approx(0.45)  # contention counts with it
    assert one.clear and one.right and not one.confidently_wrong


def test_a_cause_that_slows_nothing_is_not_the_truth() -> None:
    one = judge("transfer", record("compute", compute=1.0), 0.0202, 0.020)
    assert one.truth == "compute" and not one.clear and one.right
    assert judge("transfer", record("transfer"), 0.0202, 0.020).confidently_wrong
    # what may be worth something is left to either answer
    assert not judge("transfer", record("transfer"), 0.0214, 0.020).confidently_wrong


def test_more_compute_is_a_cause_that_must_be_found() -> None:
    one = judge("compute", record("compute", compute=1.0), 0.040, 0.020)
    assert one.truth == "compute" and one.clear and one.right and not one.confidently_wrong
    assert judge("compute", record("prep"), 0.040, 0.020).confidently_wrong


def test_a_share_that_was_not_measured_has_no_error() -> None:
    one = judge("prep", record("prep", prep=0.4), 0.040, 0.020)
    assert one.shares["launch"] is None
    assert SelfTest([one]).to_json()["share_error"] == {"mean": pytest.approx(0.1), "p95": pytest.approx(0.1)}


def test_another_cause_named_is_confidently_wrong_and_undetermined_is_not() -> None:
    assert judge("storage", record("prep"), 0.040, 0.020).confidently_wrong
    assert not judge("storage", record("undetermined"), 0.040, 0.020).confidently_wrong
    assert not judge("storage", record("mixed", joint=["storage", "prep"]), 0.040, 0.020).confidently_wrong
    assert judge("storage", record("mixed", joint=["transfer", "prep"]), 0.040, 0.020).confidently_wrong
    assert judge("none", record("prep"), 0.020, 0.020).confidently_wrong
    assert judge("mixed", record("prep"), 0.040, 0.020, 0.039, 0.040).confidently_wrong
    assert not judge("mixed", record("mixed", joint=["prep"]), 0.040, 0.020, 0.039, 0.040).confidently_wrong


def test_two_causes_of_equal_size_are_mixed_and_of_unequal_size_are_not() -> None:
    # times: with both, without, without prep, without the copy
    found = record("mixed", joint=["prep", "transfer"])
    both = judge("mixed", found, 0.040, 0.020, 0.039, 0.040)
    assert (both.truth, both.clear, both.true_speedup) == ("mixed", True, pytest.approx(2.0))
    prep = judge("mixed", found, 0.040, 0.020, 0.030, 0.040)
    assert (prep.truth, prep.clear, prep.true_speedup) == ("prep", True, pytest.approx(4 / 3))
    assert judge("mixed", found, 0.040, 0.020, 0.040, 0.030).truth == "transfer"
    # within the stopwatch's error of the rule's 1.10 either answer will do
    for alone in (0.0372, 0.035):
        close = judge("mixed", found, 0.040, 0.020, alone, 0.040)
        assert not close.clear and not close.confidently_wrong


def test_the_figures_over_all_cases() -> None:
    rows = [
        judge("prep", record("prep", gain=2.2, prep=0.5, compute=0.5), 0.040, 0.020),
        judge("storage", record("undetermined"), 0.040, 0.020),
        judge("none", record("compute", compute=0.98, prep=0.02), 0.020, 0.020),
        judge("none", record("prep", compute=0.8, prep=0.2), 0.020, 0.020),
    ]
    crashed = {"name": "serial-launch-x2", "reason": "the child died"}
    found = SelfTest(rows, [], [crashed], [0.001, 0.002], 0.99).to_json()
    assert found["accuracy_fraction"] == pytest.approx(1 / 3) and found["num_clear_cases"] == 3
    assert found["failed"] == [crashed]
    assert found["undetermined_fraction"] == 0.25
    assert found["confident_wrong"] == 1
    assert found["null_false_positive_fraction"] == 0.5
    assert found["speedup_error_median"] == pytest.approx(0.05)  # of 2.2 for 2 and 2 for 2
    assert found["overhead_fraction"] == 0.002
    assert confusion(rows)["storage"]["undetermined"] == 1
    assert SelfTest().to_json()["accuracy_fraction"] is None


def test_what_is_run() -> None:
    quick, full = scenarios(quick=True), scenarios(quick=False)
    assert (sum(one.cause != "none" for one in quick), sum(one.cause == "none" for one in quick)) == (12, 6)
    assert sum(one.cause == "none" for one in full) == 40
    for loader in ("serial", "multiprocess", "threaded"):
        for cause in CLASSES:
            run = [one for one in full if (one.loader, one.cause) == (loader, cause) and one.bed != "throttled_loop"]
            assert sorted(one.magnitude for one in run) == [1.4, 2.0, 3.0]
    assert len({one.name for one in full}) == len(full)


def test_a_finished_case_is_not_run_again(tmp_path: Path) -> None:
    one = judge("prep", record("prep"), 0.040, 0.020)
    state = tmp_path / "state.jsonl"
    # given a line that was cut off when the machine went down
    state.write_text(json.dumps(one.to_json()) + "\n" + json.dumps(one.to_json())[:-20])
    assert selftest._read_state(state) == {one.name: one}
