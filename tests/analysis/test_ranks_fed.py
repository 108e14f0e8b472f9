"""AU and waits of ranks whose times are known in closed form; the number, the prediction and the cause that follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from capacity_facts import BATCH, STEP_S, au_look, capacity_facts, cpu_window, even, look_of, of_storage

from loaderbench.analysis.capacity import capacity_of, curve_of, point_of, step_ends
from loaderbench.recording.capacity import CapacityPoint, Look, Stop
from loaderbench.studies.capacity_search import MOST_LOOKS, next_ranks


def point(look: Look, **facts: Any) -> CapacityPoint:
    return point_of([look], capacity_facts(look, **facts))


# -- AU, rate and waits ------------------------------------------------------------------------------------


def test_ranks_whose_batches_are_always_ready_have_an_au_of_one() -> None:
    found = point(look_of(np.zeros((3, 50))))
    assert found.au_fraction == found.au_least_fraction == found.mlperf.au_fraction == 1.0
    assert found.samples_per_s.value == pytest.approx(3 * BATCH / STEP_S)
    assert (found.waits_for_data_fraction, found.waits_at_barrier_fraction) == (0.0, 0.0)


def test_a_batch_every_interval_gives_step_over_interval() -> None:
    found = point(look_of(even(4, 0.125)))
    assert found.au_fraction == pytest.approx(0.8)
    assert (found.au.low, found.au.high) == (pytest.approx(0.8), pytest.approx(0.8))
    assert found.samples_per_s.value == pytest.approx(4 * BATCH / 0.125)
    assert found.waits_for_data_fraction == pytest.approx(0.2)
    assert found.waits_at_barrier_fraction == pytest.approx(0.0)


def one_late_in_turn(ranks: int, steps: int, late_s: float) -> Look:
    """At each step another rank has its batch `late_s` after the step before ended; the others have it in time."""
    interval_s = STEP_S + late_s
    ready_s = np.tile(np.arange(steps) * interval_s, (ranks, 1))
    for step in range(steps):
        ready_s[step % ranks, step] += late_s
    return look_of(ready_s)


def test_one_late_rank_in_turn_costs_all_of_them_its_lateness_at_a_barrier() -> None:
    # Each step takes step + lateness; of 8 ranks 7 stand at the collective for the lateness, and one waits for data.
    found = point(one_late_in_turn(8, 81, 0.02))
    assert found.au_fraction == pytest.approx(0.1 / 0.12)
    assert found.waits_at_barrier_fraction == pytest.approx(0.02 * 7 / 8 / 0.12, rel=0.02)
    assert found.waits_for_data_fraction == pytest.approx(0.02 / 8 / 0.12, rel=0.2)
    assert found.au_without_barrier_fraction == pytest.approx(0.1 / (0.12 - 0.02 * 7 / 8), rel=0.01)


def test_without_a_barrier_each_rank_goes_on_alone() -> None:
    # One rank has a batch every 0.2 s, the other always: AU 0.5 and 1, at a barrier 0.5 for both.
    ready_s = np.stack([np.arange(40) * 0.2, np.zeros(40)])
    alone, joint = point(look_of(ready_s), barrier="none"), point(look_of(ready_s))
    assert alone.au_fraction == pytest.approx(0.75, rel=0.01) and alone.au_least_fraction == pytest.approx(0.5)
    assert alone.waits_at_barrier_fraction == 0.0
    assert joint.au_fraction == joint.au_least_fraction == pytest.approx(0.5)
    assert alone.samples_per_s.value == pytest.approx(BATCH / 0.2 + BATCH / 0.1)


def test_a_step_ends_with_the_last_rank_and_an_arrival_is_stamped_before_that() -> None:
    ends = np.array([[100, 150, 400], [100, 220, 300]])
    arrivals, done = step_ends(ends, 100, "step")
    assert arrivals.tolist() == [[100, 200, 400], [100, 220, 320]]
    assert done.tolist() == [[100, 220, 400]] * 2
    arrivals, done = step_ends(ends, 100, "none")
    assert done.tolist() == arrivals.tolist() == [[100, 200, 400], [100, 220, 320]]


def test_the_start_counts_by_the_rule_of_mlperf_and_not_in_ours() -> None:
    # The first 10 of 101 steps take 0.3 s each, the others 0.1 s.
    ready_s = np.r_[np.arange(10) * 0.3, 2.7 + 0.1 * np.arange(1, 92)][None, :]
    found = point(look_of(ready_s))
    assert found.au_fraction == pytest.approx(1.0)
    assert found.mlperf.au_fraction == pytest.approx(100 * 0.1 / (9 * 0.3 + 91 * 0.1))
    assert found.mlperf.num_steps == 101 and not found.mlperf.enough_steps
    assert point(look_of(np.zeros((1, 500)))).mlperf.enough_steps


def test_looks_at_one_number_are_joined() -> None:
    looks = [look_of(even(2, 0.1)), look_of(even(2, 0.14))]
    (found,) = curve_of(capacity_facts(*looks))
    assert found.num_looks == 2 and found.au_fraction == pytest.approx(0.1 / 0.12)
    assert not found.is_clear and found.au.low is not None and found.au.low < 0.9


# -- the number, and the prediction ------------------------------------------------------------------------


def test_the_number_is_the_most_ranks_that_reach_the_target() -> None:
    # 400 images/s ÷ (0.9 · 40) = 11.1
    found = capacity_of(capacity_facts(*of_storage([1, 2, 4, 8, 16, 12, 10, 11])))
    assert (found.found_ranks, found.next_ranks, found.predicted_ranks) == (11, 12, 11)
    assert found.next_is_stopped_by == "storage_bandwidth" and not found.is_open
    assert [point.ranks for point in found.curve] == [1, 2, 4, 8, 10, 11, 12, 16]
    assert found.demand_samples_per_s == pytest.approx(40) and found.cold_is_proven and not found.missing


def test_what_is_between_two_numbers_is_not_known_before_it_is_measured() -> None:
    found = capacity_of(capacity_facts(*of_storage([1, 2, 4, 8, 16])))
    assert found.found_ranks is None and "between 8" in found.missing["found_ranks"]
    assert found.next_is_stopped_by is None and found.predicted_ranks == 11
    ended = capacity_of(capacity_facts(*of_storage([1, 2])))
    assert ended.found_ranks is None and "still reached" in ended.missing["found_ranks"]
    nothing = capacity_of(capacity_facts())
    assert nothing.found_ranks is None and nothing.curve == ()


def test_the_most_that_were_asked_for_may_all_be_fed() -> None:
    found = capacity_of(capacity_facts(*of_storage([1, 2, 4]), max_ranks=4))
    assert (found.found_ranks, found.next_ranks, found.next_is_stopped_by) == (4, None, None)
    assert "reach the target" in found.missing["next_is_stopped_by"]


def test_the_processors_bound_the_prediction_where_images_cost_more() -> None:
    # 2 CPUs ÷ (10 ms · 36 images/s) = 5.6
    found = capacity_of(capacity_facts(*of_storage([1, 2], cpu_s=0.010)))
    assert found.predicted_ranks == 5
    assert {bound.by: bound.ranks for bound in found.bounds} == {
        "storage_bandwidth": 11, "storage_latency": None, "client_cpu": 5,
    }  # fmt: skip
    quota = [
        replace(look, parts=tuple(
            replace(part, cpu=replace(part.cpu, quota_cpus=0.5)) for part in look.parts if part.cpu is not None
        ))
        for look in of_storage([1, 2], cpu_s=0.010)
    ]  # fmt: skip
    assert capacity_of(capacity_facts(*quota)).predicted_ranks == 1


def test_one_rank_that_waits_for_its_reads_is_bound_by_latency() -> None:
    found = capacity_of(capacity_facts(au_look(1, 0.6), au_look(2, 0.6), storage=4000.0))
    assert (found.found_ranks, found.predicted_ranks, found.next_is_stopped_by) == (0, 0, "storage_latency")
    computing = capacity_of(capacity_facts(au_look(1, 0.6, read_part=0.1), au_look(2, 0.6, read_part=0.1)))
    assert (computing.found_ranks, computing.predicted_ranks) == (0, 0)
    assert computing.next_is_stopped_by == "client_cpu"


def test_without_a_ceiling_the_processors_still_predict() -> None:
    found = capacity_of(capacity_facts(*of_storage([1, 2]), storage=None))
    assert found.predicted_ranks == 55 and found.storage_samples_per_s is None  # 2 ÷ (1 ms · 36)


# -- what stops the next one -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "stop", "also"),
    [
        ({}, "storage_bandwidth", None),
        ({"busy": 0.99, "cpu_s": 0.004}, "storage_bandwidth", "client_cpu"),  # the ranks use 80 %
        ({"busy": 0.99, "cpu_s": 0.004, "read_part": 0.1}, "client_cpu", "storage_bandwidth"),
        ({"busy": 0.99}, "storage_bandwidth", None),  # others are busy
        ({"storage": 4000.0, "busy": 0.95}, "storage_latency", None),
        ({"storage": 4000.0, "busy": 0.95, "cpu_s": 0.004}, "client_cpu", None),
        ({"storage": 4000.0, "busy": 0.95, "read_part": 0.1}, "client_cpu", None),
        ({"storage": 4000.0, "read_part": 0.9}, "storage_latency", None),
        ({"storage": 4000.0, "read_part": 0.1}, "client_cpu", None),
        ({"storage": None, "busy": 0.95, "cpu_s": 0.004}, "client_cpu", None),
        ({"in_memory": True, "busy": 0.95, "read_part": 0.1}, "client_cpu", None),
    ],
)
def test_what_is_used_up_stops_the_next_one(changes: dict[str, Any], stop: Stop, also: Stop | None) -> None:
    changes = dict(changes)
    of_look = {key: changes.pop(key) for key in ("busy", "cpu_s", "read_part") if key in changes}
    looks = [au_look(10, 1.0, **of_look), au_look(11, 400 / 440 * 0.98, **of_look)]
    facts = capacity_facts(*looks, **{"storage": 400.0, **changes})
    found = capacity_of(facts)
    assert (found.next_is_stopped_by, found.also_near_its_limit) == (stop, also)


def test_the_barrier_stops_ranks_that_alone_would_reach_the_target() -> None:
    looks = [au_look(7, 1.0), one_late_in_turn(8, 81, 0.02)]
    found = capacity_of(capacity_facts(*looks, storage=4000.0))
    assert (found.found_ranks, found.next_is_stopped_by) == (7, "barrier")
    late = capacity_of(capacity_facts(*of_storage([7], 400.0), au_look(8, 0.8), storage=4000.0))
    assert late.next_is_stopped_by == "storage_latency"  # all are late: without the barrier they would be too


def test_a_quota_is_used_up_by_the_ranks_alone() -> None:
    look = au_look(2, 0.5)
    cpu = cpu_window(0.24, 1.0, 0.6, quota_cpus=0.5)
    look = replace(look, parts=tuple(replace(part, cpu=cpu) for part in look.parts))
    assert point(look).cpu_use_fraction == pytest.approx(0.96)


def test_what_may_have_answered_in_place_of_the_storage_is_said() -> None:
    looks = of_storage([1, 2])
    assert capacity_of(capacity_facts(*looks)).caveats == ()
    held = [replace(look, resident_before=0.4) for look in looks]
    (said,) = capacity_of(capacity_facts(*held)).caveats
    assert "still held 40%" in said
    unseen = [replace(look, resident_before=None) for look in looks]
    assert "cannot be seen" in capacity_of(capacity_facts(*unseen)).caveats[0]
    small = capacity_of(capacity_facts(*of_storage([1, 2], images=100)))
    assert "up to 4.8 times" in small.caveats[0] and small.cold_is_proven
    (busy,) = capacity_of(capacity_facts(*of_storage([1, 2], busy=0.6))).caveats
    assert "used up to 5" in busy
    memory = capacity_of(capacity_facts(*looks, in_memory=True, file_system="tmpfs"))
    assert "tmpfs" in memory.caveats[0] and not memory.cold_is_proven and memory.storage_samples_per_s is None


# -- the search --------------------------------------------------------------------------------------------


def measured(ranks: int, au: float, looks: int, half: float) -> CapacityPoint:
    estimate = replace(TEMPLATE.au, value=au, low=au - half, high=au + half)
    return replace(
        TEMPLATE, ranks=ranks, au_fraction=au, au=estimate, num_looks=looks, is_clear=not au - half <= 0.9 <= au + half
    )


TEMPLATE = point_of([au_look(1, 1.0)], capacity_facts())


@pytest.mark.parametrize("most", [1, 2, 5, 16, 32])
@pytest.mark.parametrize("truth", range(34))
def test_the_search_ends_at_the_truth_with_few_looks(truth: int, most: int) -> None:
    looks: dict[int, int] = {}

    def au(ranks: int) -> float:
        return 1.0 if ranks <= truth else 0.8

    def curve() -> list[CapacityPoint]:
        return [measured(ranks, au(ranks), number, 0.01) for ranks, number in sorted(looks.items())]

    while (ranks := next_ranks(curve(), 0.9, most)) is not None:
        assert 1 <= ranks <= most
        looks[ranks] = looks.get(ranks, 0) + 1
    assert set(looks.values()) == {1} and len(looks) <= 11
    assert max((ranks for ranks in looks if ranks <= truth), default=0) == min(truth, most)
    assert truth >= most or min(ranks for ranks in looks if ranks > truth) == truth + 1


def test_the_edge_is_measured_again_while_it_is_not_clear() -> None:
    clear = [measured(1, 1.0, 1, 0.01), measured(2, 1.0, 1, 0.01), measured(4, 0.5, 1, 0.01)]
    edge = [*clear[:2], measured(3, 0.89, 1, 0.02), clear[2]]
    assert next_ranks(clear, 0.9, 32) == 3
    assert next_ranks(edge, 0.9, 32) == 3
    assert next_ranks([*clear[:2], measured(3, 0.89, MOST_LOOKS, 0.02), clear[2]], 0.9, 32) is None
    assert next_ranks([*clear[:2], measured(3, 0.91, 2, 0.02), clear[2]], 0.9, 32) == 3
    assert next_ranks([*clear[:2], measured(3, 0.91, 2, 0.005), clear[2]], 0.9, 32) is None


def test_a_first_rank_that_misses_ends_it_once_two_are_known() -> None:
    one = [measured(1, 0.5, 1, 0.01)]
    assert next_ranks([], 0.9, 32) == 1 and next_ranks(one, 0.9, 32) == 2
    assert next_ranks([*one, measured(2, 0.4, 1, 0.01)], 0.9, 32) is None
    assert next_ranks(one, 0.9, 1) is None
