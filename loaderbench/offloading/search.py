"""Which thresholds to try: the settings whose plans differ, and the next one to time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loaderbench.errors import DoesNotFit
from loaderbench.offloading.plan import Plan, ledger, plan_for
from loaderbench.recording.model_offload import SavedTrace
from loaderbench.recording.offload_study import OffloadLedger, OffloadSetting

LEAST_BYTES = 1024
"""Smallest threshold besides 0: KB are the unit of `--offload-above`."""
LEAST_DIFFERENCE = 0.02
"""Of all saved bytes, by which two thresholds must differ in what they reach."""
AFTER = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Fractions of the device's memory from which on thresholds set in."""
BUDGET_FRACTION = 1 / 3
"""Of the settings that the search may time."""


@dataclass(frozen=True)
class Candidate:
    """A setting, and what it comes to."""

    setting: OffloadSetting
    plan: Plan
    ledger: OffloadLedger

    @property
    def moved_bytes(self) -> int:
        """In a step, both ways."""
        return self.ledger.out_bytes + self.ledger.in_bytes


def candidate(trace: SavedTrace, setting: OffloadSetting, memory_bytes: int | None) -> Candidate:
    """The setting's plan below so much memory (None: no limit). Raises DoesNotFit where there is none."""
    after_bytes = 0 if memory_bytes is None else round(setting.after_fraction * memory_bytes)
    plan = plan_for(trace, above_bytes=setting.above_bytes, after_bytes=after_bytes, cap_bytes=memory_bytes)
    found = ledger(trace, plan)
    return Candidate(
        setting,
        plan,
        OffloadLedger(found.peak_bytes, found.host_peak_bytes, found.out_bytes, found.in_bytes, found.num_out),
    )


def unlimited(trace: SavedTrace) -> Plan:
    """The plan that moves nothing."""
    return plan_for(trace, above_bytes=None, cap_bytes=None)


def thresholds(trace: SavedTrace) -> tuple[int | None, ...]:
    """0, the powers of two that differ in what they reach, and None, rising."""
    sizes = trace.saved[:, 0]
    total = int(sizes.sum())
    found: list[int | None] = [0]
    reached, above = total, LEAST_BYTES
    while (there := int(sizes[sizes >= above].sum())) > 0:
        if reached - there >= LEAST_DIFFERENCE * total:
            found.append(above)
            reached = there
        above *= 2
    return (*found, None)


def candidates(trace: SavedTrace, memory_bytes: int) -> tuple[Candidate, ...]:
    """Every pair of thresholds that has a plan, those that come to the same plan once: the one that sets in first."""
    found: list[Candidate] = []
    for above in thresholds(trace):
        for after in AFTER if above is not None else AFTER[:1]:
            try:
                one = candidate(trace, OffloadSetting(above, after), memory_bytes)
            except DoesNotFit:
                continue
            if all(one.plan != other.plan for other in found):
                found.append(one)
    return tuple(found)


def budget(num_settings: int) -> int:
    """How many of the settings the search times at most; at least two, so that there is something to compare."""
    return max(min(2, num_settings), math.floor(num_settings * BUDGET_FRACTION))


def next_setting(found: Sequence[Candidate], seconds: Mapping[OffloadSetting, float | None]) -> Candidate | None:
    """What to time next; None where the search has ended.

    In the order of the bytes that a step moves the time falls as fewer are moved, until copies begin too late to be
    hidden. So the search times settings spread over that order, both ends among them, then those around the fastest.

    Args:
        seconds: setting → its step's time, None where it failed; of those that were timed.
    """
    order = sorted(found, key=lambda one: one.moved_bytes)
    allowed = budget(len(order))
    if len(seconds) >= allowed:
        return None
    num_spread = min(len(order), max(2, (allowed + 1) // 2))
    spread = [round(number * (len(order) - 1) / max(num_spread - 1, 1)) for number in range(num_spread)]
    for place in spread:
        if order[place].setting not in seconds:
            return order[place]
    timed = [(value, place) for place, one in enumerate(order) if (value := seconds.get(one.setting)) is not None]
    best = min(timed, default=(0.0, 0))[1]
    untried = [place for place, one in enumerate(order) if one.setting not in seconds]
    return order[min(untried, key=lambda place: abs(place - best))] if untried else None
