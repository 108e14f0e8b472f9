"""What must hold between the figures of a watched script's record."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from loaderbench.analysis.invariants import best_elsewhere, broken, enforced
from loaderbench.analysis.record import analyze
from loaderbench.recording.caveats import Reason
from loaderbench.recording.facts import Run
from loaderbench.recording.record import Advice, Estimate, RunRecord, Verdict, Where
from tests.corpus.packed import names_of_sets, read_set


def watched_runs() -> Iterator[Run]:
    for name in names_of_sets():
        for half in ("tune", "held"):
            for case in read_set(name, half):
                _, run = case.opened()
                if run.recording is not None and run.recording.facts.watched is not None:
                    yield run


@pytest.fixture(scope="module")
def record() -> RunRecord:
    return analyze(next(watched_runs()))


def test_all_hold_on_every_stored_run() -> None:
    records = [analyze(run) for run in watched_runs()]
    assert len(records) >= 10
    assert {one.run_id: broken(one) for one in records if broken(one)} == {}


def gain(value: float) -> Estimate:
    return Estimate(value, value, value, "ratio", 5, "test")


def test_shares_that_do_not_add_up_are_unknown(record: RunRecord) -> None:
    wrong = replace(record, shares={"compute": gain(0.9), "prep": gain(0.4)})
    assert broken(wrong) == ["shares"]
    found = enforced(wrong)
    assert found.shares is None
    assert [one.details["which"] for one in found.caveats if one.code == "figures_contradict"] == ["shares"]


def test_taking_over_a_batch_lasts_no_longer_than_a_step(record: RunRecord) -> None:
    assert record.step_time_s is not None
    step_s = record.step_time_s.mean
    wrong = replace(record, notes=(Reason("taking_over", {"each_s": 2 * step_s, "step_s": step_s}),))
    assert broken(wrong) == ["delivery"]
    assert enforced(wrong).notes == ()


def test_lines_of_one_thread_are_no_more_than_its_time(record: RunRecord) -> None:
    assert record.verdict is not None
    line = Where("consumer", "running", "train.py", 1, "main", 0.7)
    wrong = replace(record, verdict=replace(record.verdict, where=(line, replace(line, line=2))))
    assert broken(wrong) == ["lines"]
    assert enforced(wrong).verdict.where == ()  # type: ignore[union-attr]


def test_advice_names_no_method_that_an_iterable_data_set_lacks(record: RunRecord) -> None:
    assert record.verdict is not None and record.watched is not None and record.watched.settings is not None
    advice = Advice("cheaper_samples", "prep", details={"name": "Lines.__getitem__", "part": 0.5})
    wrong = replace(
        record, watched=replace(record.watched, settings=replace(record.watched.settings, iterable=True)),
        verdict=replace(record.verdict, advice=(advice,)),
    )  # fmt: skip
    assert broken(wrong) == ["methods"]
    assert enforced(wrong).verdict.advice == ()  # type: ignore[union-attr]


def test_the_bound_on_all_else_holds_for_each_thing_to_try() -> None:
    advice = Advice("persistent_workers", "prep", predicted_speedup=gain(2.6))
    verdict = Verdict("compute", speedup_if_removed={"prep": gain(1.01), "compute": gain(3.0)}, advice=(advice,))
    assert best_elsewhere(verdict) == 2.6
