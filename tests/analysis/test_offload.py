"""An offload study judged from made-up facts, whose answers follow by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from offload_facts import CURVE, MIB, ONE, STEP, TOO_LARGE, WITHOUT, replayed, study, timed, turn

from loaderbench.analysis.offload import HOST_MEMORY, offload_of
from loaderbench.recording.facts import Failure
from loaderbench.recording.offload_study import OffloadLedger, OffloadReplay, ResultCheck, SettingFacts


def test_the_fastest_that_fits_is_the_best_and_ratios_are_per_image() -> None:
    found = offload_of(study())
    assert found.batch_one_s_per_image == pytest.approx(0.02)
    assert found.everything is not None and found.everything.to_batch_one is not None and found.best is not None
    assert found.everything.to_batch_one.value == pytest.approx(1.1)  # 22 ms an image ÷ 20
    assert found.best.to_batch_one is not None and found.best.to_batch_one.value == pytest.approx(0.6)
    assert (found.best_above_bytes, found.best_after_fraction) == (None, 0.0)
    assert found.best_to_everything is not None and found.best_to_everything.value == pytest.approx(0.22 / 0.12)
    low, high = found.best_to_everything.low, found.best_to_everything.high
    assert low is not None and high is not None and 0.97 < low / found.best_to_everything.value <= 1 <= high
    assert found.without is not None and found.without.outcome == "out_of_memory"
    assert found.without.s_per_image is None and "more than the cap" in (found.without.why or "")


def test_the_curve_rises_with_the_threshold_and_ends_without_one() -> None:
    found = offload_of(study(settings=CURVE[::-1]))
    settings = [(row.above_bytes, row.after_fraction) for row in found.thresholds]
    assert settings == [(0, 0.0), (MIB, 0.0), (MIB, 0.4), (None, 0.0)]
    first = found.thresholds[0]
    assert (first.moved_bytes_per_step, first.host_bytes, first.num_copies) == (200 * MIB, 100 * MIB, 4)
    assert first.exposed_s == pytest.approx(0.1) and first.hidden_s == pytest.approx(0.02)


def test_a_peak_above_the_memory_does_not_fit_however_fast_it_is() -> None:
    tight = timed(0.05, 4 * MIB, peak=101 * MIB)
    found = offload_of(study(settings=(*CURVE, tight)))
    (row,) = [row for row in found.thresholds if row.above_bytes == 4 * MIB]
    assert row.outcome == "out_of_memory" and "its peak of 101 MiB exceeds the memory of 100 MiB" in (row.why or "")
    assert found.best is not None and found.best.above_bytes is None


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (TOO_LARGE, "out_of_memory"),
        (Failure("DoesNotFit", "cannot fit: conv1 needs 3 of 2"), "out_of_memory"),
        (Failure("RuntimeError", "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "out_of_memory"),
        (Failure(HOST_MEMORY, "it needs more"), "no_host_memory"),
        (Failure("CaseFailed", "no sign of life for 900 s"), "failed"),
        (Failure("PlanMismatch", "the step differs from its trace"), "failed"),
    ],
)
def test_how_a_setting_ended(failure: Failure, outcome: str) -> None:
    found = offload_of(study(settings=(replace(CURVE[0], turns=(), failure=failure),)))
    assert found.thresholds[0].outcome == outcome and found.thresholds[0].why == failure.message
    assert found.thresholds[0].s_per_image is None and found.best is None and found.best_above_bytes is None


def test_what_was_not_tried_is_not_a_failure() -> None:
    found = offload_of(study(settings=(replace(CURVE[0], turns=()),), interrupted=True))
    assert found.thresholds[0].outcome == "not_tried" and found.interrupted


def test_copies_whose_own_time_is_unknown_hide_an_unknown_part() -> None:
    unknown = timed(0.1, MIB, moved=MIB, exposed_s=0.01, copy_s=None)
    (row,) = offload_of(study(settings=(unknown,))).thresholds
    assert row.hidden_s is None and row.missing["hidden_s"] and row.exposed_s == pytest.approx(0.01)


def test_a_replay_is_assumed_and_has_no_interval() -> None:
    small = SettingFacts(1, None, OffloadLedger(MIB, 0, 0, 0, 0, 0), replay=OffloadReplay(0.005, 0.005, 0.0, 0.0, MIB))
    found = offload_of(study(batch_one=small, settings=(replayed(0.03, 0), replayed(0.011, None))))
    assert [row.label for row in found.thresholds] == ["assumed", "assumed"]
    first = found.thresholds[0]
    assert first.s_per_image is not None and first.s_per_image.low is None
    assert first.to_batch_one is not None and first.to_batch_one.value == pytest.approx(0.003 / 0.005)
    assert first.hidden_s == pytest.approx(0.02) and first.exposed_s == pytest.approx(0.02)
    assert found.best_above_bytes is None and found.best is not None
    assert found.best_to_everything is not None and found.best_to_everything.value == pytest.approx(30 / 11)


def test_one_setting_alone_is_no_search() -> None:
    found = offload_of(study(is_study=False, batch_one=None, settings=CURVE[:1]))
    assert found.best is None and found.batch_one_s_per_image is None and len(found.thresholds) == 1


def test_batch_one_itself_may_be_what_was_asked_for() -> None:
    step = replace(STEP, batch_size=1)
    found = offload_of(study(step=step, without=ONE, settings=(replace(timed(0.02, None), batch_size=1),)))
    assert found.without is not None and found.without.outcome == "fits"
    assert found.without.to_batch_one is not None and found.without.to_batch_one.value == pytest.approx(1.0)
    read_again = offload_of(
        study(step=step, without=replace(ONE), settings=(replace(timed(0.02, None), batch_size=1),))
    )
    assert read_again == found


def test_steps_of_several_rounds_widen_the_interval() -> None:
    drifting = replace(CURVE[0], turns=(turn(0.2), turn(0.22), turn(0.24)))
    (row,) = offload_of(study(settings=(drifting,))).thresholds
    assert row.step_s is not None and row.step_s.low is not None and row.step_s.high is not None
    assert row.step_s.value == pytest.approx(0.22) and row.step_s.low < 0.21 and row.step_s.high > 0.23
    assert row.num_steps == 24 and WITHOUT.failure is not None


@pytest.mark.parametrize(
    ("difference", "plain", "outcome"),
    [
        (0.0, None, "fits"),
        (1e-7, 0.0, "failed"),
        (3e-7, 1e-7, "fits"),
        (5e-7, 1e-7, "failed"),
        (math.nan, 0.0, "failed"),
        (math.nan, 1.0, "failed"),
    ],
)
def test_results_may_differ_as_two_plain_steps_do(difference: float, plain: float | None, outcome: str) -> None:
    checked = replace(CURVE[3], check=ResultCheck(10, 5, difference, plain))
    found = offload_of(study(settings=(*CURVE[:3], checked)))
    row = found.thresholds[3]
    assert row.outcome == outcome and (row.s_per_image is None) == (outcome == "failed")
    assert found.best is not None and (found.best is row) == (outcome == "fits")


def test_there_is_no_gain_over_everything_where_its_results_differ() -> None:
    wrong = replace(CURVE[0], check=ResultCheck(10, 5, 0.5, 0.0))
    found = offload_of(study(settings=(wrong, *CURVE[1:])))
    assert found.everything is not None and found.everything.outcome == "failed" and found.best_to_everything is None
    assert "differ from those without offloading by up to 0.5" in (found.everything.why or "")
