"""Which thresholds to try: the settings whose plans differ, and, guided by replays, the next one to time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from loaderbench.errors import DoesNotFit
from loaderbench.offloading.plan import Plan, Timeline, ledger, plan_for, prepared
from loaderbench.offloading.replay import Schedule, schedule, timed
from loaderbench.recording.model_offload import SavedTrace
from loaderbench.recording.offload_study import OffloadLedger, OffloadSetting

EVERYTHING = OffloadSetting(0, 0.0)
"""All that can go is on the host, from the first byte on."""
LEAST_BYTES = 1024
"""Smallest threshold besides 0: KB are the unit of `--offload-above`."""
LEAST_DIFFERENCE = 0.02
"""Of all saved bytes, by which two thresholds must differ in what they reach."""
AFTER = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Fractions of the device's memory from which on thresholds set in."""
BUDGET_FRACTION = 1 / 3
"""Of the settings, that the search may time."""
LEAST_TRIED, LEAST_UNHIDDEN = 12, 5
"""Settings, where the search may time so many, before it believes a fit that promises no gain: where copies hide behind
the compute, and where each costs its own time."""
RATIOS = tuple(float(ratio) for ratio in np.geomspace(0.02, 50, 25))
"""Seconds to copy all saved bytes ÷ seconds of the step, among which the search looks for the device's own."""
NO_GAIN = 0.99
"""The search goes on while another setting may take less than this part of the best one's time."""


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


def candidate(
    trace: SavedTrace | Timeline, setting: OffloadSetting, memory_bytes: int, cap_bytes: int | None
) -> Candidate:
    """The setting's plan on a device of so much memory that keeps below the cap (None: no limit).

    Raises:
        DoesNotFit: there is none.
    """
    after_bytes = round(setting.after_fraction * memory_bytes)
    timeline = prepared(trace)
    plan = plan_for(timeline, above_bytes=setting.above_bytes, after_bytes=after_bytes, cap_bytes=cap_bytes)
    found = ledger(timeline, plan)
    return Candidate(
        setting,
        plan,
        OffloadLedger(
            found.peak_bytes,
            found.host_peak_bytes,
            found.out_bytes,
            found.in_bytes,
            found.num_out,
            found.host_reserved_bytes,
        ),
    )


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


@dataclass(frozen=True)
class Choice:
    """The settings to choose from."""

    found: tuple[Candidate, ...]
    """Those whose plans differ."""
    num_settings: int
    """All that have a plan."""

    @property
    def budget(self) -> int:
        """How many of them the search times at most: a third of all settings."""
        return min(len(self.found), max(2, math.floor(self.num_settings * BUDGET_FRACTION)))


def candidates(trace: SavedTrace, memory_bytes: int, cap_bytes: int) -> Choice:
    """Every pair of thresholds that has a plan. Those that come to the same plan stand there once, by the simplest of
    their settings: without a threshold, else from the first byte on, else the one that sets in first. Everything on the
    host always stands there."""
    simple_first = sorted(
        ((above, after) for above in thresholds(trace) for after in AFTER if above is not None or not after),
        key=lambda pair: (pair[0] is not None, pair[1], pair[0] or 0),
    )
    timeline, num_settings = prepared(trace), 0
    found: list[Candidate] = []
    for above, after in simple_first:
        try:
            one = candidate(timeline, OffloadSetting(above, after), memory_bytes, cap_bytes)
        except DoesNotFit:
            continue
        num_settings += 1
        if one.setting == EVERYTHING or all(one.plan != other.plan for other in found):
            found.append(one)
    return Choice(tuple(found), num_settings)


class Search:
    """Which setting to time next.

    Two things about the device decide how a plan's copies fall: how long the step is, and how fast copies are. Both are
    fitted to the times so far, by replays of the trace; the fit tells which of the other settings is the fastest, which
    is timed next. Times decide, replays only lead: a fit that is wrong costs trials.
    """

    def __init__(self, trace: SavedTrace, choice: Choice, *, hides: bool) -> None:
        """`hides`: the device copies beside its compute; else the compute waits for every copy."""
        self._trace, self._choice, self._hides = trace, choice, hides
        self._found = {one.setting: one for one in choice.found}
        self._saved_bytes = max(int(trace.saved[:, 0].sum()), 1)
        self._schedules: dict[OffloadSetting, Schedule] = {}
        self._replays: dict[tuple[OffloadSetting, float], float] = {}

    def next(self, seconds: Mapping[OffloadSetting, float | None]) -> Candidate | None:
        """What to time next; None where the search has ended.

        Args:
            seconds: setting → its step's time, None where it failed; of those that were timed.
        """
        untried = [one for setting, one in self._found.items() if setting not in seconds]
        if not untried or len(seconds) >= self._choice.budget:
            return None
        known = {setting: value for setting, value in seconds.items() if value is not None}
        if len(seconds) < 2 or not known:  # the least that can move, then the most
            ends = min if not seconds else max
            return ends(untried, key=lambda one: one.moved_bytes)
        ratio, scale = self._fit(known)
        expected = {one.setting: scale * self._relative(one.setting, ratio) for one in untried}
        first = min(untried, key=lambda one: expected[one.setting])
        least = LEAST_TRIED if self._hides else LEAST_UNHIDDEN
        if len(seconds) >= least and expected[first.setting] > NO_GAIN * min(known.values()):
            return None
        return first

    def _fit(self, known: Mapping[OffloadSetting, float]) -> tuple[float, float]:
        """(ratio, seconds of the step without copies) that fit the times best, by least squares of relative errors."""
        best = (math.inf, RATIOS[0], 1.0)
        for ratio in RATIOS:
            shape = np.array([self._relative(setting, ratio) for setting in known]) / np.array([*known.values()])
            scale = float(shape.sum() / (shape**2).sum())
            error = float(((scale * shape - 1) ** 2).sum())
            best = min(best, (error, ratio, scale))
        return best[1], best[2]

    def _relative(self, setting: OffloadSetting, ratio: float) -> float:
        """The step's time under a setting ÷ that without copies."""
        one = self._found[setting]
        if not self._hides:
            return 1 + ratio * one.moved_bytes / self._saved_bytes
        if (setting, ratio) not in self._replays:
            if setting not in self._schedules:
                self._schedules[setting] = schedule(self._trace, one.plan)
            rate = self._saved_bytes / ratio
            self._replays[setting, ratio] = timed(self._schedules[setting], step_s=1.0, link_bytes_per_s=rate).step_s
        return self._replays[setting, ratio]
