"""Ratios, intervals, parity and differences, against arithmetic by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loaderbench.analysis import comparison
from loaderbench.analysis.comparison import (
    compare,
    compare_two,
    compared_factor,
    differing,
    is_regression,
    outcome,
    parity,
    rates,
)
from loaderbench.cases.case import CacheState
from loaderbench.recording.facts import Environment, Percentiles
from loaderbench.recording.record import (
    Advice,
    Ceiling,
    CeilingStageFigures,
    Estimate,
    NfsOperations,
    Residency,
    RunRecord,
    StorageFigures,
    Verdict,
)
from loaderbench.recording.studies import Difference, FileReads, Pair
from tests.made import make_case, make_environment, make_estimate, make_record

STORAGE = StorageFigures(
    bytes_read=None, expected_bytes=None, moved_fraction=None, bandwidth_bytes_per_s=None, reads_per_s=None,
    mean_file_bytes=None, ceiling_bytes_per_s=None, ceiling=None, source=None, cache_state="cold",
    residency_fraction=Residency(None, None), cold_proven=False,
)  # fmt: skip
CEILING = Ceiling(make_estimate(5e6, unit="bytes/s"), 1, False, None, None, False, "flat")
CASE = make_case(dataset="/data", dataset_name="a", cache="cold", workers=1)


def record(
    rate: float | None,
    half_width: float = 0.02,
    *,
    n: int = 12,
    storage: StorageFigures | None = None,
    stages: Mapping[str, float] | None = None,
    advice: Sequence[Advice] = (),
    environment: Environment | None = None,
    **case: Any,
) -> RunRecord:
    """MADE UP: a record of `rate` samples/s with an interval of ± `half_width` of it."""
    asked = CASE.changed(**case)
    name = (asked.subject.dataset_name, asked.subject.cache, asked.feed.workers, asked.effort.repeat)
    return make_record(
        asked,
        status="ok" if rate is not None else "failed",
        run_id="-".join(map(str, name)),
        environment=environment,
        throughput=None if rate is None else make_estimate(rate, half_width, n=n),
        verdict=Verdict("storage", "made up", advice=tuple(advice)),
        storage=storage,
        stages=stages,
    )


def ratio_of(a: Sequence[RunRecord | None], b: Sequence[RunRecord | None]) -> Estimate | None:
    return comparison.ratio_of(rates(a), rates(b))


def ends(ratio: Estimate | None) -> tuple[float, float]:
    """The interval of a ratio that has one."""
    assert ratio is not None and ratio.low is not None and ratio.high is not None
    return ratio.low, ratio.high


def test_one_run_each_combines_their_intervals() -> None:
    ratio = ratio_of([record(100, 0.03)], [record(50, 0.04)])
    assert ratio is not None
    assert ratio.value == pytest.approx(0.5)
    # by hand: ln 0.5 ∓ √(distance of b² + opposite distance of a²)
    low = math.log(0.5) - math.hypot(math.log(1 / 0.96), math.log(1.03))
    high = math.log(0.5) + math.hypot(math.log(1.04), math.log(1 / 0.97))
    assert (ratio.low, ratio.high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))
    assert ratio.n == 12


def test_rounds_are_compared_one_by_one_so_that_a_drift_of_both_cancels() -> None:
    # given a machine that gives half in the second round, to both sides
    ratio = ratio_of([record(100, 0.001), record(50, 0.001)], [record(80, 0.001), record(40, 0.001)])
    assert ratio is not None
    assert ratio.value == pytest.approx(0.8)
    low, high = ends(ratio)
    assert high - low < 0.01
    assert ratio.n == 2


def test_rounds_that_disagree_widen_the_interval_by_student_s_t() -> None:
    a = [record(100, 0.001)] * 3
    b = [record(100 * math.exp(step), 0.001) for step in (-0.02, 0.0, 0.02)]
    ratio = ratio_of(a, b)
    # by hand: standard deviation 0.02, over √3, times t(2) = 4.303
    half = 4.303 * 0.02 / math.sqrt(3)
    low, high = ends(ratio)
    assert (math.log(low), math.log(high)) == (pytest.approx(-half), pytest.approx(half))


def test_rounds_that_agree_by_chance_stay_as_wide_as_their_runs_say() -> None:
    ratio = ratio_of([record(100, 0.04)] * 2, [record(100, 0.04)] * 2)
    one = math.hypot(math.log(1.04), math.log(1 / 0.96))
    assert math.log(ends(ratio)[1]) == pytest.approx(one / math.sqrt(2))  # of two independent rounds


def test_the_interval_holds_the_truth_in_95_of_100_comparisons() -> None:
    # given processes that differ by 3 % from each other, which their own intervals (± 1 %) do not know
    random = np.random.default_rng(5)
    hits = 0
    for _ in range(600):
        both = 100 * np.exp(random.normal(0, 0.03, (2, 3)))
        a, b = ([record(float(rate), 0.01) for rate in side] for side in both)
        low, high = ends(ratio_of(a, b))
        hits += low <= 1 <= high
    assert 0.93 <= hits / 600 <= 0.985


def test_a_round_that_failed_on_one_side_is_left_out() -> None:
    ratio = ratio_of([record(100), record(None), None, record(100)], [record(50), record(80), record(80), record(None)])
    assert ratio is not None
    assert (ratio.value, ratio.n) == (pytest.approx(0.5), 12)
    assert ratio_of([record(None)], [record(50)]) is None


def test_a_single_block_tells_no_width() -> None:
    ratio = ratio_of([record(100, 0.0, n=1)], [record(50)])
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == (pytest.approx(0.5), None, None)
    assert outcome(ratio) == "indistinguishable"
    assert not is_regression(ratio, 0.05)


@pytest.mark.parametrize(
    ("low", "high", "word", "regression"),
    [
        (0.80, 0.94, "slower", True),
        (0.80, 0.96, "slower", False),  # slower, but perhaps by less than the threshold
        (0.90, 1.01, "indistinguishable", False),
        (1.01, 1.10, "faster", False),
    ],
)
def test_outcome_and_regression_ask_the_whole_interval(low: float, high: float, word: str, regression: bool) -> None:
    ratio = Estimate((low + high) / 2, low, high, "ratio", 12, "made up")
    assert outcome(ratio) == word
    assert is_regression(ratio, 0.05) is regression


def test_what_differs_is_named_case_first_then_the_machine() -> None:
    old, new = (make_environment(packages={"torch": version}) for version in ("2.10", "2.11"))
    a = record(1, dataset="/nvme", batch_size=64, environment=old)
    b = record(1, dataset="/nfs", batch_size=32, repeat=3, environment=new)
    assert differing(a, b) == [
        Difference("dataset", "/nvme", "/nfs"),
        Difference("batch_size", 64, 32),
        Difference("environment.packages.torch", "2.10", "2.11"),
    ]


def test_the_compared_factor_is_the_data_set_or_the_only_field_that_differs() -> None:
    def fields(*names: str) -> list[Difference]:
        return [Difference(name, 1, 2) for name in names]

    assert compared_factor(fields("dataset", "dataset_name", "workers")) == ["dataset", "dataset_name"]
    assert compared_factor(fields("workers")) == ["workers"]
    assert compared_factor(fields("workers", "loader")) == []


def test_two_runs_of_unlike_workers_have_no_parity() -> None:
    found = compare_two(record(100, workers=4, dataset="/x"), record(50, workers=8, dataset="/y"))
    assert found.outcome == "slower"
    assert [one.field for one in found.differs] == ["workers"]
    assert found.parity is None


def pairs_of(a: dict[int, float], b: dict[int, float], **b_facts: Any) -> list[Pair]:
    return [
        comparison.pair(
            [record(a[workers], 0.01, workers=workers)], [record(b[workers], 0.01, workers=workers, **b_facts)]
        )
        for workers in a
    ]


def test_parity_is_the_least_workers_that_reach_the_other_s_best() -> None:
    # 97 % of 1,000 is reached with 8 workers, not with 4
    found = parity(pairs_of({1: 300, 4: 1000, 8: 990}, {1: 100, 4: 900, 8: 975}))
    assert found is not None
    assert (found.workers, found.basis, found.not_by) == (8, "measured", None)
    assert (found.target_samples_per_s, found.target_workers) == (pytest.approx(1000), 4)
    assert found.needs is None


def test_without_parity_the_need_is_told_from_measured_figures() -> None:
    storage = replace(
        STORAGE, mean_file_bytes=100_000, ceiling_bytes_per_s=5e6,
        ceiling=replace(CEILING, bound_by="bandwidth", readers=1, still_rising=False),
    )  # fmt: skip
    stages = {"read": 0.080, "decode": 0.004, "augment": 0.001, "collate": 0.001}
    found = parity(pairs_of({1: 150, 4: 400}, {1: 45, 4: 48}, storage=storage, stages=stages))
    assert found is not None
    assert (found.workers, found.basis, found.not_by) == (None, None, 4)
    needs = found.needs
    assert needs is not None
    assert needs.bytes_per_s == pytest.approx(400 * 100_000)  # 40 MB/s of 5
    assert (needs.gives_bytes_per_s, needs.bound_by) == (5e6, "bandwidth")
    assert needs.file_read_s == pytest.approx(4 / 400 - 0.006)  # 10 ms an image and worker, 6 of them not reading
    assert needs.takes_file_read_s == pytest.approx(0.080)


def advice(workers: int, gain: float) -> list[Advice]:
    predicted = make_estimate(gain, 0.1, unit="ratio")
    return [Advice("more_workers", "prep", {"workers": workers}, predicted, action="add workers")]


@pytest.mark.parametrize(("gain", "workers", "basis", "not_by"), [(4.0, 16, "predicted", None), (3.0, None, None, 16)])
def test_a_prediction_is_labelled_as_one(
    gain: float, workers: int | None, basis: str | None, not_by: int | None
) -> None:
    found = parity(pairs_of({4: 400}, {4: 100}, advice=advice(16, gain)))
    assert found is not None
    assert (found.workers, found.basis, found.not_by) == (workers, basis, not_by)
    assert found.predicted is not None
    assert found.predicted.samples_per_s.value == pytest.approx(100 * gain)
    assert found.needs is not None


def test_intervals_that_overlap_leave_parity_undetermined() -> None:
    found = parity([comparison.pair([record(100, 0.3)], [record(90, 0.3)])])
    assert found is not None
    assert (found.workers, found.basis, found.needs) == (1, "undetermined", None)


def test_a_study_is_led_by_its_first_cache_state_and_the_workers_best_for_a() -> None:
    both = {("cold", 1): (100, 50), ("cold", 4): (300, 60), ("warm", 1): (120, 120), ("warm", 4): (300, 300)}
    a, b = [], []
    for number in range(2):
        for (cache, workers), (first, second) in both.items():
            a.append(record(first, cache=cache, workers=workers, repeat=number))
            b.append(record(second, cache=cache, workers=workers, repeat=number, dataset_name="b"))
    found = compare(a, b)
    assert [(one.cache, one.workers, one.outcome) for one in found.pairs] == [
        ("cold", 1, "slower"),
        ("cold", 4, "slower"),
        ("warm", 1, "indistinguishable"),
        ("warm", 4, "indistinguishable"),
    ]
    assert found.ratio is not None and found.ratio.value == pytest.approx(0.2)
    assert found.a is not None and found.b is not None
    assert found.a.case.feed.workers == found.b.case.feed.workers == 4
    assert [one.cache for one in found.parities] == ["cold", "warm"]
    assert found.parities[1].workers == 4
    assert found.differs == ()


def test_a_side_that_failed_is_kept_with_its_reason() -> None:
    found = compare([record(100)], [record(None, dataset_name="b")])
    assert (found.ratio, found.outcome, found.parity) == (None, None, None)
    assert found.pairs[0].b.failures[0].message == "it broke"


def test_figures_of_rounds_are_means_and_bytes_their_sum() -> None:
    def storage(read: int, rtt_s: float, p50: float) -> StorageFigures:
        stages = tuple(
            CeilingStageFigures(readers, 1e6, Percentiles(p50 * readers, 1.0, 2.0), "O_DIRECT") for readers in (1, 4, 8)
        )
        return replace(
            STORAGE, bytes_read=read, moved_fraction=0.95, cold_proven=True,
            nfs=NfsOperations(200.0, rtt_s=rtt_s, queue_s=0.0, exe_s=rtt_s, retransmits=1, in_flight=2.0),
            ceiling=replace(CEILING, bound_by="latency", readers=8, still_rising=True, stages=stages),
        )  # fmt: skip

    runs = [
        record(100, workers=6, storage=storage(10, 0.004, 0.1)),
        record(100, workers=6, storage=storage(30, 0.006, 0.2)),
    ]
    found = comparison.side(runs).storage
    assert found is not None
    assert (found.bytes_read, found.retransmits) == (40, 2)
    assert found.rtt_s == pytest.approx(0.005)
    assert found.operations_per_s == 200
    assert found.client_cache_hit_fraction == pytest.approx(0.05)
    # of the stages with 1, 4 and 8 readers that with 4 is the nearest a run of 6 surely has
    assert found.file_read_s == FileReads(4, pytest.approx(0.6), 1.0, 2.0)
    assert found.bound_by == "latency"


# -- answers from memory -------------------------------------------------------------------------------------


def held(cache: CacheState, moved: float | None, resident: float | None, **facts: Any) -> StorageFigures:
    """What a storage did that moved this part of a cold read's bytes, with this part of the pages there before."""
    return replace(
        STORAGE, cache_state=cache, moved_fraction=moved, residency_fraction=Residency(resident, resident), **facts
    )


@pytest.mark.parametrize(
    ("storage", "place"),
    [
        (held("cold", 1.0, 0.0, cold_proven=True), "storage"),
        (held("cold", None, 0.0, cold_proven=True), "storage"),  # by residency, on FUSE
        (held("as-is", 0.97, 0.03), "storage"),
        (held("as-is", 0.5, 0.5), "memory"),
        (held("warm", 0.0, 1.0), "memory"),
        (held("warm", None, 1.0), "memory"),  # FUSE
        (held("as-is", None, 0.4), "memory"),
        (held("cold", None, 0.0, cold_read_ratio=2.2), "memory"),  # a cache beside the page cache
        (held("cold", None, None), "unknown"),
    ],
)
def test_where_a_run_s_images_came_from(storage: StorageFigures, place: str) -> None:
    assert comparison.read_from(storage) == place


def sides(cache: CacheState, a: StorageFigures, b: StorageFigures) -> tuple[list[RunRecord], list[RunRecord]]:
    return (
        [record(100, storage=a, dataset_name="a", cache=cache)],
        [record(50, storage=b, dataset_name="b", cache=cache)],
    )


@pytest.mark.parametrize(
    ("a", "b", "outcome"),
    [
        (held("cold", 1.0, 0.0, cold_proven=True), held("cold", 1.0, 0.0, cold_proven=True), "slower"),
        (held("cold", 1.0, 0.0, cold_proven=True), held("warm", 0.0, 1.0), "from_memory"),
        (held("warm", 0.0, 1.0), held("warm", 0.0, 1.0), "from_memory"),
    ],
)
def test_storages_are_not_ranked_where_either_answered_from_memory(
    a: StorageFigures, b: StorageFigures, outcome: str
) -> None:
    found = compare(*sides("cold", a, b))
    assert found.outcome == outcome and found.pairs[0].outcome == outcome
    assert found.ratio is not None and found.ratio.value == pytest.approx(0.5)
    assert bool(found.parities) is (outcome != "from_memory")


def test_loaders_that_read_from_memory_are_compared_all_the_same() -> None:
    warm = held("warm", 0.0, 1.0)
    found = compare_two(record(100, storage=warm, loader="threaded"), record(50, storage=warm, loader="multiprocess"))
    assert found.factor == ("loader",) and found.outcome == "slower"
