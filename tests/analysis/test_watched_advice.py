"""Advice on watched scripts against queues whose truth is simulated with the change, by the tests' own loop."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loaderbench.analysis.ledger import entries_of_run
from loaderbench.analysis.record import analyze
from loaderbench.analysis.watched_advice import batches_of
from loaderbench.recording.facts import SPAN, Failure, Recording, Run, Trial, WatchedApplied, WatchedTransform
from loaderbench.recording.record import Advice, Estimate
from loaderbench.reporting.words import worded
from tests.watched_facts import epoch, followed, run_of, segment, settings

RANDOM = np.random.default_rng(3)


def advised(run: Run) -> dict[str | None, Advice]:
    record = worded(analyze(run))
    assert record.verdict is not None
    assert len(record.verdict.advice) == len({one.code for one in record.verdict.advice})
    return {one.code: one for one in record.verdict.advice}


def rate(making: Any, step: Any, workers: int, prefetch: int = 2) -> float:
    """Seconds a step, behind the start."""
    num = len(making)
    taken = followed(making, step, workers, prefetch)[2][num:]
    return (taken[-1] - taken[num // 4]) / (num - 1 - num // 4)


def holds(predicted: Estimate | None, truth: float) -> bool:
    assert predicted is not None and predicted.low is not None and predicted.high is not None
    return predicted.low <= truth <= predicted.high and abs(predicted.value / truth - 1) < 0.1


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_more_workers_up_to_what_the_step_needs(workers: int) -> None:
    making, step = RANDOM.lognormal(np.log(40), 0.2, 300), RANDOM.lognormal(np.log(10), 0.1, 300)
    found = advised(run_of(segment(making, step, workers), workers))["num_workers"]
    wanted = dict(found.change or {})["workers"]
    assert isinstance(wanted, int) and 4 <= wanted <= 6  # 40 ms ÷ 10 ms, and some for their spread
    assert holds(found.predicted_speedup, rate(making, step, workers) / rate(making, step, wanted))
    assert f"DataLoader(num_workers={wanted}) (now {workers}" in found.action


def test_not_more_workers_than_the_processors_can_feed() -> None:
    making, step = np.full(300, 40.0), np.full(300, 5.0)
    found = advised(run_of(segment(making, step, 1), 1, cpus=3))["num_workers"]
    assert found.change == {"workers": 3}
    assert found.predicted_speedup is not None and found.predicted_speedup.value == pytest.approx(3.0, rel=0.05)


def test_workers_that_wait_for_reads_may_be_more_than_processors_and_the_interval_says_what_is_not_known() -> None:
    making, step = np.full(300, 40.0), np.full(300, 5.0)
    found = advised(run_of(segment(making, step, 2, read_part=0.9), 2, cpus=2))["num_workers"]
    wanted, predicted = dict(found.change or {})["workers"], found.predicted_speedup
    assert isinstance(wanted, int) and 6 <= wanted <= 8 and predicted is not None
    assert predicted.low is not None and predicted.low < 1.4 < 3.3 < predicted.value  # its storage may give no more


def test_few_batches_are_followed_until_their_start_no_longer_shows() -> None:
    # given 30 batches of which each of two workers makes one a second: 30 workers would have all at once, once
    making, step = np.full(30, 1000.0), np.full(30, 20.0)
    found = advised(run_of(segment(making, step, 2, read_part=0.95), 2, cpus=8))["num_workers"]
    wanted, predicted = dict(found.change or {})["workers"], found.predicted_speedup
    assert isinstance(wanted, int) and predicted is not None
    assert predicted.value == pytest.approx(wanted / 2, rel=0.1) and wanted <= 32


def test_no_other_workers_where_the_step_paces() -> None:
    making, step = np.full(300, 4.0), np.full(300, 10.0)
    assert not {"num_workers", "prefetch_factor"} & set(advised(run_of(segment(making, step, 2), 2)))


def test_fewer_workers_where_they_are_more_than_processors() -> None:
    making, step = np.full(400, 16.0), np.full(400, 4.0)
    found = advised(run_of(segment(making, step, 8, cpu_part=0.2), 8, cpus=4))["num_workers"]
    assert dict(found.change or {})["workers"] == 4 and found.action.startswith("use fewer workers")
    assert found.predicted_speedup is not None and found.predicted_speedup.value == pytest.approx(1.0, abs=0.05)


def test_more_batches_ahead_where_some_take_much_longer() -> None:
    making = np.where(np.arange(600) % 20 == 0, 120.0, 6.0)
    step = np.full(600, 7.0)
    found = advised(run_of(segment(making, step, 2), 2, cpus=2))["prefetch_factor"]
    wanted = dict(found.change or {})["prefetch"]
    assert isinstance(wanted, int) and wanted > 2
    assert holds(found.predicted_speedup, rate(making, step, 2) / rate(making, step, 2, wanted))
    assert f"prefetch_factor={wanted}) (now 2" in found.action


def test_workers_that_stay_save_the_start_of_each_later_epoch() -> None:
    making, step = np.full(300, 10.0), np.full(300, 10.0)
    epochs = (epoch(0.1, 2.9, 0.0, 1.0), epoch(0.05, 0.46, 0.0, 1.0), epoch(0.05, 0.46, 0.0, 1.0))
    one = segment(making, step, 2)
    found = advised(run_of(one, 2, epochs=epochs))["persistent_workers"]
    # Of 7.02 s two later starts of 0.51 s go, but for 0.02 s each in which the workers make their first batches.
    assert found.predicted_speedup is not None and found.predicted_speedup.value == pytest.approx(7.02 / 6.04)
    assert found.predicted_speedup.high == pytest.approx(1.51 / 1.02, rel=1e-3)  # with many more epochs
    assert found.change == {"loader_options": {"persistent_workers": "True"}}
    assert "510 ms" in found.action and "1.51 s" in found.action
    anew = advised(run_of(one, 2, epochs=epochs, settings=settings(num_made=3)))
    assert "persistent_workers" not in anew and anew["keep_loader"].change is None
    for without in (epochs[:1], (epoch(0.1, 2.9, 0.0, 1.0), epoch(0.0, 0.02, 0.0, 1.0))):
        assert "persistent_workers" not in advised(run_of(one, 2, epochs=without))
    assert "persistent_workers" not in advised(run_of(one, 2, epochs=epochs, settings=settings(persistent=True)))


def test_the_slowest_transform_is_named_with_its_share() -> None:
    making, step = np.full(300, 40.0), np.full(300, 10.0)
    times = (WatchedTransform("Resize", 1.0, 50), WatchedTransform("RandomPosterize", 5.0, 50))
    told = settings(transforms=times, num_timed=50, timed_s=10.0)
    found = advised(run_of(segment(making, step, 2), 2, cpus=2, settings=told))["cheaper_transform"]
    assert "RandomPosterize" in found.action and "50%" in found.action
    assert holds(found.predicted_speedup, rate(making, step, 2) / rate(making * 0.5, step, 2))


def test_a_slow_collate_is_named() -> None:
    making, step = np.full(300, 40.0), np.full(300, 10.0)
    told = settings(collate="pad_to_longest")
    one = segment(making, step, 2, collate_part=0.6)
    found = advised(run_of(one, 2, cpus=2, settings=told))
    assert "pad_to_longest takes 60%" in found["cheaper_collate"].action
    assert holds(found["cheaper_collate"].predicted_speedup, rate(making, step, 2) / rate(making * 0.4, step, 2))
    assert "Photos.__getitem__ computes for 40%" in found["cheaper_samples"].action


def test_a_collate_that_waits_for_processors_as_all_work_does_is_no_slower_for_it() -> None:
    """Workers that have a processor a third of their time, of which a fifth is collate: it is a fifth of the work."""
    making, step = np.full(300, 120.0), np.full(300, 10.0)
    one = segment(making, step, 2, collate_part=0.2)
    assert one.spans is not None
    one.spans[:, SPAN["runqueue_ns"]] = (one.spans[:, SPAN["ready_ns"]] - one.spans[:, SPAN["start_ns"]]) * 2 // 3
    found = batches_of([one])
    assert found is not None
    assert float(found.collating.sum() / found.making.sum()) == pytest.approx(0.2, abs=0.001)


def test_threads_of_workers_that_are_more_than_processors() -> None:
    making, step = np.full(300, 40.0), np.full(300, 4.0)
    one = segment(making, step, 4, cpu_part=0.5)
    found = advised(run_of(one, 4, cpus=4, settings=settings(worker_torch_threads=4)))["worker_threads"]
    assert found.change is None and "4 workers use 4 threads each on 4 CPUs" in found.action
    assert "worker_threads" not in advised(run_of(one, 4, cpus=4, settings=settings(worker_torch_threads=1)))


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_that_is_given_back_and_taken_anew_is_worth_what_its_pages_take(workers: int) -> None:
    making, step = np.full(300, 40.0), np.full(300, 10.0)
    one = segment(making, step, workers)
    assert one.spans is not None
    one.spans[:, SPAN["minor_faults"]] = 8000
    found = advised(run_of(one, workers, cpus=4, page_s=2e-6))["keep_memory"]
    assert holds(found.predicted_speedup, rate(making, step, workers) / rate(making - 16.0, step, workers))
    assert found.predicted_speedup is not None and found.predicted_speedup.low == 1.0  # it may be no malloc's
    assert "MALLOC_TRIM_THRESHOLD_=1073741824" in found.action and "40%" in found.action
    assert "keep_memory" not in advised(run_of(one, workers, cpus=4))  # malloc is another's, or keeps it
    one.spans[:, SPAN["minor_faults"]] = 200
    assert "keep_memory" not in advised(run_of(one, workers, cpus=4, page_s=2e-6))


def test_data_that_fits_into_memory_is_kept_there_and_samples_are_put_together() -> None:
    making, step = np.full(300, 40.0), np.full(300, 10.0)
    one = segment(making, step, 2, read_part=0.9)
    record = analyze(run_of(one, 2, cpus=2, available_memory_bytes=10**9))
    assert record.verdict is not None and record.verdict.bottleneck == "storage"
    fits = advised(run_of(one, 2, cpus=2, available_memory_bytes=10**9))
    assert "40 MB" in fits["cache_in_memory"].action  # 800 samples of 50 kB
    assert fits["cache_in_memory"].predicted_speedup == record.verdict.speedup_if_removed["storage"]
    assert "50 kB" in fits["fewer_reads"].action and fits["fewer_reads"].predicted_speedup is None
    assert "cache_in_memory" not in advised(run_of(one, 2, cpus=2, available_memory_bytes=50 * 10**6))


def test_pinned_memory_is_for_cuda_and_has_no_figure() -> None:
    one = segment(np.full(300, 4.0), np.full(300, 10.0), 2)
    assert "pin_memory" not in advised(run_of(one, 2))
    found = advised(run_of(one, 2, uses_cuda=True))["pin_memory"]
    assert found.predicted_speedup is None and "pin_memory=True" in found.action
    assert "pin_memory" not in advised(run_of(one, 2, uses_cuda=True, settings=settings(pin_memory=True)))


def test_without_the_workers_times_only_the_direction_is_told() -> None:
    one = segment(np.full(300, 40.0), np.full(300, 10.0), 2)
    found = advised(run_of(replace(one, spans=None), 2))["num_workers"]
    assert found.change is None and found.predicted_speedup is None and "try more workers" in found.action


# -- what was applied ------------------------------------------------------------------------------------------


def applied(run: Run, change: dict[str, Any], after: Any, epochs: tuple[Any, ...] = ()) -> Run:
    assert run.recording is not None and run.recording.facts.watched is not None
    seen = replace(run.recording.facts.watched, applied=WatchedApplied(change, 2, epochs))
    facts = replace(run.recording.facts, watched=seen)
    recording = None if after is None else Recording([after], replace(facts, watched=None))
    failure = Failure("TooShort", "too few batches followed the change") if after is None else None
    trial = Trial(change, run.case.changed(**change), 0, recording, failure)
    return replace(run, recording=Recording(run.recording.segments, facts), trials=[trial])


def test_what_was_applied_is_predicted_beside_what_was_measured_and_goes_into_the_ledger() -> None:
    making, step = np.full(300, 40.0), np.full(300, 10.0)
    run = applied(run_of(segment(making, step, 1), 1), {"workers": 2}, segment(making, step, 2))
    record = worded(analyze(run))
    assert record.verdict is not None
    (done,) = [one for one in record.verdict.advice if one.verified]
    assert done.change == {"workers": 2} and done.predicted_speedup is not None and done.measured_speedup is not None
    assert done.measured_speedup.value == pytest.approx(2.0, rel=0.03)
    assert done.predicted_speedup.value == pytest.approx(2.0, rel=0.03)
    (entry,) = entries_of_run(record)
    assert (
        entry.kind == "gain" and entry.what.endswith("num_workers=2") and entry.measured == done.measured_speedup.value
    )


def test_workers_that_stay_are_measured_over_whole_epochs() -> None:
    before = (epoch(0.1, 0.4, 0.0, 1.0), epoch(0.1, 0.4, 0.0, 1.0))
    after = (epoch(0.1, 0.4, 0.0, 1.0), epoch(0.0, 0.0, 0.0, 1.0), epoch(0.0, 0.0, 0.0, 1.0))
    one = segment(np.full(300, 10.0), np.full(300, 10.0), 2)
    change = {"loader_options": {"persistent_workers": "True"}}
    record = analyze(applied(run_of(one, 2, epochs=before), change, one, after))
    assert record.verdict is not None
    (done,) = [advice for advice in record.verdict.advice if advice.verified]
    assert done.measured_speedup is not None and done.measured_speedup.value == pytest.approx(1.5)


def test_a_change_that_nothing_followed_was_not_measured() -> None:
    one = segment(np.full(300, 40.0), np.full(300, 10.0), 1)
    record = worded(analyze(applied(run_of(one, 1), {"workers": 2}, None)))
    assert record.verdict is not None
    (done,) = [advice for advice in record.verdict.advice if advice.verified]
    assert done.measured_speedup is None and done.not_verified == "too few batches followed the change"
    assert entries_of_run(record) == []
