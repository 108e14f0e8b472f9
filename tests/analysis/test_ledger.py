"""The ledger: which predictions are entries, and how good they are said to be. Expectations are worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from split_facts import split_facts

from loaderbench.analysis import ledger
from loaderbench.analysis.ledger import collected, entries_of_run, entries_of_study, ledger_of, score
from loaderbench.analysis.model_split import split_of
from loaderbench.recording.facts import Gpu
from loaderbench.recording.machines import same_hardware, same_setup
from loaderbench.recording.record import Range
from loaderbench.recording.split_times import Split
from loaderbench.recording.store import Store
from loaderbench.recording.studies import StudyRecord, SweepFacts
from loaderbench.studies.ledger import collect
from tests.ledger_records import (
    MIB,
    MORE_WORKERS,
    batch_memory,
    checked,
    fit_study,
    forecast_study,
    gain,
    keep_run,
    keep_study,
    make_entry,
    measured_run,
    memory_study,
    study_of,
    verified_run,
    whatif_study,
)
from tests.made import make_environment, make_record

# -- gains -------------------------------------------------------------------------------------------------


def test_a_verified_gain_is_an_entry_with_the_prediction_s_interval() -> None:
    record = verified_run(gain(1.6, 1.44, 1.76, 2.0), run_id="run", started_at="2026-03-01T12:00:00+00:00")
    (entry,) = entries_of_run(record)
    assert (entry.kind, entry.source_id, entry.at) == ("gain", "run", "2026-03-01T12:00:00+00:00")
    assert (entry.predicted, entry.low, entry.high, entry.measured, entry.unit) == (1.6, 1.44, 1.76, 2.0, "ratio")
    assert entry.error_fraction == pytest.approx(-0.2) and entry.held is False
    assert entry.what.endswith(": --workers 4") and entry.environment == record.environment


def test_advice_that_was_not_measured_is_no_entry() -> None:
    not_run = gain(1.6, 1.4, 1.8, None, verified=True, not_verified="cache_state_gone")
    not_predicted = gain(1.6, 1.4, 1.8, 1.5, predicted_speedup=None)
    assert entries_of_run(verified_run(not_run, not_predicted)) == []
    assert entries_of_run(make_record()) == []  # no verdict at all


@pytest.mark.parametrize(
    ("predicted", "measured"), [(0.0, 1.5), (1.5, 0.0), (-1.0, 1.5), (1.5, math.inf), (math.nan, 1.0)]
)
def test_a_figure_that_cannot_be_is_no_entry(predicted: float, measured: float) -> None:
    assert entries_of_run(verified_run(gain(predicted, 1.0, 2.0, measured))) == []


def test_a_prediction_without_an_interval_neither_holds_nor_fails() -> None:
    (entry,) = entries_of_run(verified_run(gain(1.6, None, None, 1.6)))
    assert entry.held is None
    (endless,) = entries_of_run(verified_run(gain(1.6, math.nan, 1.8, 1.6)))
    assert endless.held is None and endless.low is None


# -- models ------------------------------------------------------------------------------------------------


def test_memory_is_the_peak_of_live_memory_of_each_batch() -> None:
    study = memory_study(
        batch_memory(1, 100 * MIB, 125 * MIB), batch_memory(8, None, 300 * MIB), batch_memory(16, 400 * MIB, None)
    )
    (entry,) = entries_of_study(study)
    assert (entry.kind, entry.predicted, entry.measured) == ("memory", 100 * MIB, 125 * MIB)
    assert entry.error_fraction == pytest.approx(-0.2) and entry.held is None and entry.unit == "bytes"
    assert entry.what == "resnet18 train sgd fp32 64 px, batch 1 on cpu"


def test_a_largest_batch_counts_where_the_search_confirmed_it() -> None:
    (entry,) = entries_of_study(fit_study(24, 22))
    assert (entry.kind, entry.predicted, entry.measured, entry.unit) == ("fit", 24, 22, "images")
    assert entry.what == "resnet18 train sgd fp32 64 px, 2,048 MiB on cpu"


@pytest.mark.parametrize(
    "study",
    [
        fit_study(24, 22, confirmed=False),  # the largest so far
        fit_study(24, 24, confirmed=False, not_measured="the device computes nothing"),  # the prediction itself
        fit_study(24, None, confirmed=False),
        fit_study(None, 22),
        fit_study(24, 0),  # batch 1 does not fit: no ratio
        fit_study(512, 512, most=512),  # both say "at least 512"
    ],
    ids=["unconfirmed", "not measured", "not found", "not predicted", "nothing fits", "both at the end"],
)
def test_a_largest_batch_that_was_not_found_is_no_entry(study: StudyRecord) -> None:
    assert entries_of_study(study) == []


@pytest.mark.parametrize(("predicted", "found"), [(512, 300), (300, 512)])
def test_a_miss_at_the_end_of_the_search_stays_a_miss(predicted: int, found: int) -> None:
    (entry,) = entries_of_study(fit_study(predicted, found, most=512))
    assert (entry.predicted, entry.measured) == (predicted, found)
    assert entry.what.endswith("larger batches were not tried")


def test_a_split_is_the_finish_of_what_was_run() -> None:
    facts = split_facts()  # predicted 0.06 s; in every turn the last member ends after 0.062 s
    (entry,) = entries_of_study(study_of("model_split", facts, split_of(facts)))
    assert (entry.kind, entry.predicted, entry.unit) == ("split", 0.06, "s")
    assert entry.measured == pytest.approx(0.062) and entry.held is None
    assert entry.what == "resnet18 infer fp32 64 px, batch 16 over cpu:1 (10), cuda:0 (6)"


def test_one_device_alone_is_measured_alone() -> None:
    facts = replace(split_facts(), chosen=Split((16, 0), 0.10))  # alone it took 0.11 s in every turn
    (entry,) = entries_of_study(study_of("model_split", facts, split_of(facts)))
    assert entry.predicted == 0.10 and entry.measured == pytest.approx(0.11)
    assert entry.what.endswith("batch 16 over cpu:1 (16)")


def test_a_split_that_was_not_run_is_no_entry() -> None:
    facts = split_facts(turns=None)
    assert entries_of_study(study_of("model_split", facts, split_of(facts))) == []


# -- forecasts ---------------------------------------------------------------------------------------------


def test_epochs_validations_and_the_whole_check_are_entries() -> None:
    study = forecast_study(
        [
            checked(Range(10.0, 9.0, 11.0), 10.5),
            checked(Range(8.0, 7.0, 9.0), 12.0, "warm"),
            checked(Range(2.0, 1.9, 2.1), 2.05, "warm", kind="validation", num_images=200, score=0.25),
        ],
        (Range(20.0, 18.0, 22.0), 25.0),
    )
    cold, warm, validation, training = entries_of_study(study)
    assert [one.kind for one in (cold, warm, validation, training)] == ["epoch", "epoch", "validation", "training"]
    assert (cold.predicted, cold.low, cold.high, cold.measured, cold.held) == (10.0, 9.0, 11.0, 10.5, True)
    assert (warm.measured, warm.held, warm.score) == (12.0, False, 0.5)
    assert (validation.score, training.score) == (0.25, None)
    assert (training.predicted, training.measured, training.held) == (20.0, 25.0, False)
    assert cold.what == "photos serial: cold epoch of 1,000 images"
    assert validation.what == "photos serial: warm validation of 200 images"
    assert training.what == "photos serial: 2 epochs from the start of the process"
    # the machine is that of the check, not that of the run
    assert cold.environment == make_environment()


def test_an_epoch_that_says_nothing_of_the_forecast_is_no_entry() -> None:
    unscored = checked(Range(10.0, 9.0, 11.0), 10.5, not_scored="its files were in memory", score=None)
    assert entries_of_study(forecast_study([unscored, checked(None, 10.5)])) == []


# -- scores ------------------------------------------------------------------------------------------------


def test_a_score_is_medians_and_a_share_of_intervals() -> None:
    entries = [
        make_entry("gain", 1.1, 1.0, low=0.9, high=1.2),  # +10 %, held
        make_entry("gain", 1.0, 2.0, low=0.9, high=1.1),  # −50 %
        make_entry("gain", 4.8, 4.0, low=None, high=None),  # +20 %
        make_entry("split", 1.0, 1.5),
    ]
    found = score(entries)
    assert list(found) == ["gain", "split"]
    gains, splits = found["gain"], found["split"]
    assert gains.num == 3 and gains.median_error_fraction == pytest.approx(0.2)
    assert gains.bias_fraction == pytest.approx(0.1)  # of −50, 10 and 20 %
    assert (gains.num_intervals, gains.num_held, gains.coverage_fraction) == (2, 1, 0.5)
    assert gains.p90_error_fraction is None
    assert (splits.num_intervals, splits.coverage_fraction) == (0, None)
    assert score([]) == {}


def test_the_ninety_percent_value_lies_between_the_two_nearest_errors() -> None:
    entries = [make_entry("memory", 100.0 + number, 100.0, "bytes") for number in range(1, 11)]  # 1 to 10 %
    assert score(entries[:9])["memory"].p90_error_fraction is None
    # the tenth of 10 is at 1.0, the ninth at 8/9: 0.9 is a tenth of the way from 9 to 10 %
    assert score(entries)["memory"].p90_error_fraction == pytest.approx(0.091)


def test_an_interval_holds_its_ends() -> None:
    assert [make_entry("gain", 1.0, measured, low=0.9, high=1.1).held for measured in (0.9, 1.1, 0.899, 1.101)] == [
        True, True, False, False,
    ]  # fmt: skip


# -- machines ----------------------------------------------------------------------------------------------


def test_another_machine_is_other_processors_or_gpus_and_not_other_packages() -> None:
    here = make_environment()
    gpu = Gpu("made up", 8 * 2**30, "570", "13.0")
    newer = replace(here, packages={"torch": "9"}, python="3.99.0", kernel="9.9")
    assert same_hardware(newer, here) and not same_setup(newer, here) and same_setup(here, here)
    for other in (replace(here, cpu_model="other"), replace(here, cpus_usable=3), replace(here, gpus=(gpu,)), None):
        assert not same_hardware(other, here) and not same_setup(other, here)


def test_a_ledger_keeps_the_entries_of_this_machine_and_counts_the_others() -> None:
    here, there = make_environment(), make_environment(64)
    entries = [
        make_entry("gain", 1.0, 1.0), make_entry("gain", 1.0, 3.0, environment=there),
        make_entry("gain", 1.0, 3.0, environment=None),
    ]  # fmt: skip
    found = ledger_of(entries, here)
    assert found.entries == (entries[0],) and found.num_elsewhere == 2
    assert found.scores["gain"].num == 1 and found.scores["gain"].median_error_fraction == 0
    everywhere = ledger_of(entries, None)
    assert everywhere.entries == tuple(entries) and everywhere.num_elsewhere == 0


# -- collecting --------------------------------------------------------------------------------------------


def test_entries_are_sorted_by_their_time_whatever_they_are_of() -> None:
    study = replace(fit_study(24, 22), started_at="2026-02-01T00:00:00+00:00")
    runs = [verified_run(gain(1.5, 1.4, 1.6, 1.5), started_at=f"2026-0{month}-01T00:00:00+00:00") for month in (3, 1)]
    found = collected(runs, [study], 2)
    assert [(one.at[:7], one.kind) for one in found.entries] == [
        ("2026-01", "gain"), ("2026-02", "fit"), ("2026-03", "gain"),
    ]  # fmt: skip
    assert found.num_unreadable == 2


def test_findings_are_found_again_only_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = split_facts()
    stored = study_of("model_split", facts, replace(split_of(facts), predicted_s=0.031))
    assert collected([], [stored]).entries[0].predicted == 0.031
    assert collected([], [replace(stored, findings=None)]).entries[0].predicted == 0.06
    asked: list[object] = []
    monkeypatch.setattr(ledger, "judge", lambda facts, records: asked.append(facts))
    collected([], [stored, study_of("sweep", SweepFacts(2), None)])  # a sweep predicts nothing
    assert asked == []


def test_facts_that_cannot_be_judged_are_counted_and_the_others_stay() -> None:
    facts = split_facts()
    assert facts.turns is not None
    broken = replace(facts, turns=replace(facts.turns, split_ns=np.zeros((1, 1, 1), np.int64)))
    found = collected([], [study_of("model_split", broken, None), fit_study(24, 22)])
    assert [one.kind for one in found.entries] == ["fit"] and found.num_unreadable == 1


# -- what-ifs ---------------------------------------------------------------------------------------------


def test_a_what_if_is_scored_by_the_first_later_run_of_exactly_that() -> None:
    study = whatif_study(0.040, 0.035, 0.045)
    runs = [
        measured_run(0.050, started_at="2026-01-02T00:00:00+00:00"),
        measured_run(0.044),
        measured_run(0.020, started_at="2025-12-30T00:00:00+00:00"),  # before it was predicted
        measured_run(0.021, case=MORE_WORKERS.changed(batch_size=32)),
        measured_run(0.022, case=MORE_WORKERS.changed(cache="warm")),
        measured_run(0.023, environment=make_environment(64)),
        measured_run(0.024, status="interrupted"),
    ]
    (entry,) = collected(runs, [study]).entries
    assert (entry.kind, entry.unit, entry.predicted, entry.held) == ("whatif", "s", 0.040, True)
    assert entry.measured == pytest.approx(0.044)
    assert collected(runs[2:], [study]).entries == ()


def test_a_what_if_that_no_run_can_be_is_never_scored() -> None:
    assert collected([measured_run(0.044)], [whatif_study(0.040, None, None, wanted=None)]).entries == ()


def test_the_store_is_searched_for_the_run_of_a_what_if(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keep_study(store, whatif_study(0.040, 0.035, 0.042))
    keep_run(store, measured_run(0.044))
    (entry,) = collect(store).entries
    assert entry.held is False and entry.source_id in {one.study_id for one in store.studies()}
