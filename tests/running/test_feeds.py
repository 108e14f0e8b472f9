"""Which arms a round has, in which order, against the rule written out name by name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

import pytest

from loaderbench.cases.arms import ARMS, Arm
from loaderbench.cases.case import CACHE_STATES, CacheState
from loaderbench.running.feeds import arms_of_a_round
from tests.made import make_case


def by_the_rule(asked: Sequence[str], *, reads_files: bool, owns_transfer: bool, once: bool, cache: str) -> list[str]:
    """`prep` is `free` on the files in memory, where `free` reads cold ones."""
    wanted = set(asked)
    arms = ["device"] if "device" in wanted else []
    if "host" in wanted and not owns_transfer:
        arms.append("host")
    if "real" in wanted and not once:
        arms.append("real")
    if "ram" in wanted and reads_files:
        arms.append("ram")
    if "free" in wanted:
        arms.append("prep" if once else "free")
    if reads_files and cache == "cold" and "ram" in wanted and "free" in wanted:
        arms.append("prep")
    if "fetch" in wanted and reads_files and not once:
        arms.append("fetch")
    return arms


@pytest.mark.parametrize(("cache", "once"), [*((cache, False) for cache in CACHE_STATES), ("as-is", True)])
def test_the_arms_of_a_round(cache: CacheState, once: bool) -> None:
    others = [arm for arm in ARMS if arm is not Arm.REAL]
    chosen = [set(some) for size in range(len(others) + 1) for some in combinations(others, size)]
    for some, reads_files, owns_transfer in product(chosen, (False, True), (False, True)):
        if once and not reads_files:
            continue  # what reads nothing finds no cache
        asked = tuple(arm for arm in ARMS if arm in some or arm is Arm.REAL)
        facts = {"reads_files": reads_files, "owns_transfer": owns_transfer, "once": once}
        arms = arms_of_a_round(make_case(arms=asked, cache=cache), **facts)
        assert [arm.value for arm in arms] == by_the_rule(asked, cache=cache, **facts)
        assert all(isinstance(arm, Arm) for arm in arms) and len(set(arms)) == len(arms)


def test_all_arms_of_a_cold_run_in_their_order() -> None:
    arms = arms_of_a_round(make_case(cache="cold"), reads_files=True, owns_transfer=False, once=False)
    assert arms == (Arm.DEVICE, Arm.HOST, Arm.REAL, Arm.RAM, Arm.FREE, Arm.PREP, Arm.FETCH)


def test_without_ram_real_is_where_it_was() -> None:
    facts = {"reads_files": True, "owns_transfer": False, "once": False}
    only = arms_of_a_round(make_case(cache="warm", arms=(Arm.DEVICE, Arm.REAL)), **facts)
    assert only == (Arm.DEVICE, Arm.REAL)
