"""Windows over a storage that stands still now and then: which of their steps count, and what these tell.

How much of the standstills a window of any length holds is chance: one of 2.5 periods has two or three. Whole periods
hold as much wherever they begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loaderbench.recording.facts import STEP, Segment, Table

SHORT_OF, HALVES = 0.05, 1.8
"""Of a period: what a window may lack of it; so many, in two blocks, tell how much one differs from the other."""
NEAR = 0.1
"""Of a period: how far from its begin a round of the workers may begin to stand for it."""
CHANCE = 0.01
"""Of ends that come at random, to seem as regular."""
TRIED = 0.2
"""Periods are looked for within a tenth of the guess to either side."""


@dataclass(frozen=True)
class Standstills:
    """Of a run's storage."""

    period_s: float
    alike: Table | None = None
    """[n, 2] begin and end of each, perf_counter_ns, where they come at regular times and last equally long; None: they
    do not, or too few were seen to tell."""

    def rounding(self, round_steps: int, num_steps: int, windows_s: Sequence[float]) -> float:
        """By how much, as a fraction, the mean of so many steps may be off, in windows of whole periods of alike
        standstills: a round more or less at the begin, and a step at the end, share the same standstills; and a window
        may lack SHORT_OF of a period. 0 without such windows: elsewhere the blocks have it."""
        if self.alike is None or not windows_s:
            return 0.0
        part = min(0.9, float((self.alike[:, 1] - self.alike[:, 0]).mean()) / 1e9 / self.period_s)
        periods = np.array(windows_s) / self.period_s
        whole = np.maximum(1.0, np.round(periods))
        lacks = float(np.abs(periods - whole).sum() / whole.sum()) - round_steps / num_steps
        return (round_steps + 1) / num_steps * part + max(0.0, lacks) * max(1.0, part / (1.0 - part))


def chance_of_so_regular(ends_s: NDArray[np.float64], period_s: float) -> float:
    """Upper bound of the chance that ends at random times lie as close to one place of a circle of some period near
    this one: n · w^(n−1) for an arc of the part w of the circle (Stevens 1939), for each period that moves the last
    end by such an arc."""
    num = len(ends_s)
    if num < 3:
        return 1.0
    places = np.sort(ends_s / period_s % 1.0)
    arc = 1.0 - float(np.diff(places, append=places[0] + 1.0).max())
    periods = float(ends_s.max() - ends_s.min()) / period_s
    return float(min(1.0, num * arc ** (num - 1) + TRIED * periods * num * arc ** (num - 2)))


def whole_periods(segments: Sequence[Segment], period_s: float) -> list[Segment]:
    """Without the windows over the storage that are too short to hold a whole period of its stalls, for the arms that
    have longer ones."""
    long = {id(one) for one in segments if _window_s(one) >= (1 - SHORT_OF) * period_s or not one.arm.touches_storage}
    has_long = {one.arm for one in segments if id(one) in long}
    return [one for one in segments if id(one) in long or one.arm not in has_long]


def _window_s(segment: Segment) -> float:
    rows = segment.window
    return float(rows[-1, STEP["returned_ns"]] - rows[0, STEP["called_ns"]]) / 1e9 if len(rows) else 0.0


def of_whole_periods(
    segment: Segment, values: dict[str, NDArray[np.float64]], stood: Standstills, round_steps: int
) -> tuple[Segment, NDArray[np.int64] | None, dict[str, NDArray[np.float64]]]:
    """(the window without the steps before its whole periods, the first step of each, its quantities). Where all
    standstills are alike one period tells, and the steps' own rounds make the blocks: None in place of first steps."""
    starts, least = period_starts(segment, stood.period_s, round_steps), 2 if stood.alike is None else 1
    if len(starts) < least:
        return segment, equal_parts(segment, stood.period_s, round_steps), values
    first = int(starts[0])
    segment = replace(segment, num_warmup=max(segment.num_warmup, 1) + first)
    values = {name: one[first:] for name, one in values.items()}
    if stood.alike is None:
        return segment, starts - first, values
    return segment, None, evened(values, segment, stood.alike)


def period_starts(segment: Segment, period_s: float, round_steps: int = 1) -> NDArray[np.int64]:
    """The first step, by its place in the window, of each of the whole periods that end with it; empty where it is
    shorter than one. `round_steps`: in which all workers hand over once; they do so in bursts, and what counts are
    whole rounds: empty, too, where none of these begins near the first period's begin."""
    returned = _returned_s(segment)
    num = int((returned[-1] - returned[0]) / period_s + SHORT_OF) if len(returned) > 1 else 0
    begins = returned[-1] - period_s * np.arange(num, 0, -1)
    starts = _nearest(returned, begins, round_steps)
    is_near = bool(np.all(np.abs(returned[starts[:1]] - begins[:1]) <= NEAR * period_s))
    return np.unique(starts) if is_near else starts[:0]


def equal_parts(segment: Segment, period_s: float, round_steps: int = 1) -> NDArray[np.int64]:
    """The first steps of as many equal parts of the window as it holds periods; two from HALVES on, else all of it."""
    returned = _returned_s(segment)
    length_s = float(returned[-1] - returned[0])
    num = max(int(length_s / period_s), 2 if length_s >= HALVES * period_s else 1)
    return np.unique(_nearest(returned, returned[0] + length_s * np.arange(num) / num, round_steps))


def _returned_s(segment: Segment) -> NDArray[np.float64]:
    """When the batches of the window's steps were there, and that of the step before."""
    return np.asarray(segment.steps[max(segment.num_warmup, 1) - 1 :, STEP["returned_ns"]] / 1e9)


def _nearest(returned: NDArray[np.float64], times: NDArray[np.float64], round_steps: int) -> NDArray[np.int64]:
    """For each of the times, the step that begins nearest to it, whole rounds from the window's end: a standstill that
    ended there by a hair is not to be counted twice. A window shorter than a round has its first step alone."""
    num_steps = len(returned) - 1
    places = (
        np.arange(num_steps % round_steps, num_steps, round_steps) if num_steps >= round_steps else np.zeros(1, int)
    )
    return np.asarray(places[np.abs(returned[places][None, :] - times[:, None]).argmin(axis=1)])


def evened(
    values: dict[str, NDArray[np.float64]], segment: Segment, standstills: Table
) -> dict[str, NDArray[np.float64]]:
    """QUANTITIES (steps.py) of a window of whole periods, the time that standstills which are alike held it up spread
    over all steps.

    All means stay as they are. Each period has the same standstill, so that its steps differ from the next period's by
    what they take besides waiting in it; that alone is left to the blocks. Durations keep their proportion. A device
    that has work while the storage stands still (batches made before) is not held up by it.
    """
    ends = segment.steps[max(segment.num_warmup, 1) :]
    ended_ns = ends[:, STEP["done_ns" if ends[-1, STEP["done_ns"]] >= 0 else "returned_ns"]]
    begun_ns = ended_ns - values["duration"] * 1e9
    within = np.zeros(len(ends))
    for begin, end in standstills:
        within += (np.minimum(ended_ns, end) - np.maximum(begun_ns, begin)).clip(0) / 1e9
    if ends[-1, STEP["done_ns"]] >= 0:
        within = np.minimum(within, values["stall"])
    own = (values["duration"] - within).clip(0)
    if not own.sum() > 0:
        return values
    duration = own * (values["duration"].sum() / own.sum())
    spread = {"duration": duration}
    for name in ("stall", "wait"):
        inside = np.minimum(values[name], within)
        spread[name] = values[name] - inside + duration * (inside.sum() / duration.sum())
    return {**values, **spread}
