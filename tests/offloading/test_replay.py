"""The replay over an emulated card, against times that follow by hand."""

from __future__ import annotations

import pytest
from offload_traces import chain, trace_of

from loaderbench.offloading.plan import Plan, ledger, plan_for
from loaderbench.offloading.replay import replay
from loaderbench.recording.offload_study import OffloadReplay

TRACE = chain([100, 100, 100], [1, 1, 1])
"""Nine seconds of compute in all, where a FLOP takes one; hook events 0 to 5: three packs, three unpacks."""
HOOKS = (0, 1, 2, 2, 1, 0)


def planned(**moves: dict[int, tuple[int, ...]]) -> Plan:
    return Plan((100, 100, 100), HOOKS, moves.get("evict", {}), moves.get("release", {}), moves.get("prefetch", {}))


def run(plan: Plan, rate: float) -> OffloadReplay:
    return replay(TRACE, plan, step_s=9.0, link_bytes_per_s=rate)


def test_without_copies_the_step_takes_the_profiles_time() -> None:
    done = run(planned(), 1.0)
    assert (done.step_s, done.compute_s, done.exposed_s, done.copy_s) == (9.0, 9.0, 0.0, 0.0)
    assert done.peak_live_bytes == 300


def test_copies_hide_behind_the_compute_where_there_is_time() -> None:
    # out: storage 0 from second 1 to 2, given up at 2; back from 3 (after the last pack) to 4; used at 7
    done = run(planned(evict={0: (0,)}, release={1: (0,)}, prefetch={2: (0,)}), 100.0)
    assert (done.step_s, done.exposed_s, done.copy_s) == (9.0, 0.0, 2.0)


def test_the_compute_waits_for_a_copy_out_where_its_memory_is_given_up() -> None:
    # out from 1 to 5, given up after the second pack, which is at 2: it waits until 5; the rest as before
    done = run(planned(evict={0: (0,)}, release={1: (0,)}, prefetch={2: (0,)}), 25.0)
    assert done.exposed_s == pytest.approx(3.0)  # back from 6 to 10, used at 10
    assert done.step_s == pytest.approx(12.0) and done.copy_s == pytest.approx(8.0)


def test_the_compute_waits_for_a_reload_that_was_not_begun_before() -> None:
    # used at second 7; the copy back takes one second then
    done = run(planned(evict={0: (0,)}, release={1: (0,)}), 100.0)
    assert (done.step_s, done.exposed_s) == (10.0, 1.0)


def test_copies_of_one_way_queue_and_the_ways_do_not_hinder_each_other() -> None:
    # out: 0 from 1 to 3, 1 from 3 to 5 (it waited for the queue), both given up after the third pack, at 3: until 5.
    # Back: 1 from 5 to 7, in time for its use at 7 (5 + 2 of layer 2's backward); 0 from 7 to 9, in time for 9.
    plan = planned(evict={0: (0,), 1: (1,)}, release={2: (0, 1)}, prefetch={2: (1, 0)})
    done = run(plan, 50.0)
    assert done.exposed_s == pytest.approx(2.0) and done.step_s == pytest.approx(11.0)
    assert done.copy_s == pytest.approx(8.0)


def test_memory_is_counted_as_the_plan_gives_it_up() -> None:
    assert run(planned(evict={0: (0,)}, release={1: (0,)}), 100.0).peak_live_bytes == 200  # 1 and 2
    # released only after the third pack: all three were there
    assert run(planned(evict={0: (0,)}, release={2: (0,)}), 100.0).peak_live_bytes == 300


def test_a_second_release_copies_nothing() -> None:
    trace = trace_of(
        [100], ("hold", 0), ("operator", 1), ("pack", 0), ("let_go", 0), ("pack", -1), ("unpack", 0), ("operator", 1),
        ("let_go", 0), ("pack", -1), ("unpack", 0), ("operator", 1), ("forget", 0), ("let_go", 0),
    )  # fmt: skip
    plan = Plan((100,), (0, -1, 0, -1, 0), {0: (0,), 3: (0,)}, {1: (0,), 3: (0,)}, {})
    done = replay(trace, plan, step_s=3.0, link_bytes_per_s=100.0)
    assert done.copy_s == 3.0  # out once, back twice
    assert done.step_s == 6.0  # nothing to hide them behind


def test_what_the_host_has_from_the_start_is_not_copied_out() -> None:
    trace = trace_of(
        [100], ("hold", 0), ("pack", 0), ("let_go", 0), ("operator", 1), ("unpack", 0), ("operator", 1), ("let_go", 0),
        ("operator", 1), mode="infer", clean=[0],
    )  # fmt: skip
    plan = Plan((100,), (0, 0), {}, {}, {}, start_on_host=frozenset({0}))
    done = replay(trace, plan, step_s=3.0, link_bytes_per_s=50.0)
    assert (done.copy_s, done.step_s, done.peak_live_bytes) == (2.0, 5.0, 100)
    assert ledger(trace, plan).peak_bytes == 100


@pytest.mark.parametrize("cap", [100, 150, 200, 250, 300, None])
@pytest.mark.parametrize("above", [0, 40, 80, None])
def test_the_ledger_and_the_replay_agree_on_bytes(cap: int | None, above: int | None) -> None:
    trace = chain([50, 30, 80, 60, 40, 90], [3, 1, 4, 1, 5, 9])
    plan = plan_for(trace, above_bytes=above, cap_bytes=cap)
    counted = ledger(trace, plan)
    done = replay(trace, plan, step_s=1.0, link_bytes_per_s=1.0)
    assert done.peak_live_bytes == counted.peak_bytes <= (cap or 350)
    assert done.copy_s == pytest.approx(counted.out_bytes + counted.in_bytes)
    assert done.exposed_s <= done.copy_s and done.step_s == pytest.approx(1 + done.exposed_s)


def test_an_endless_link_costs_nothing_and_a_slow_one_all_its_copies() -> None:
    trace = chain([50, 30, 80], [3, 1, 4])
    plan = plan_for(trace, above_bytes=0, cap_bytes=110)
    assert replay(trace, plan, step_s=1.0, link_bytes_per_s=1e15).step_s == pytest.approx(1.0)
    slow = replay(trace, plan, step_s=1e-9, link_bytes_per_s=1.0)
    out, back = ledger(trace, plan).out_bytes, ledger(trace, plan).in_bytes
    assert max(out, back) <= slow.step_s <= out + back + 1e-6
