"""From raw stamps to the times of each arm's steps. Pure functions of a Recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.standstills import Standstills, of_whole_periods
from loaderbench.analysis.statistics import Blocks, Width, blocks_of, draws_of_mean, widths
from loaderbench.cases.arms import ARMS, CHAIN, FED_ALIKE, Arm
from loaderbench.recording.facts import SCRIPT_LANE, SPAN, STEP, Segment

SPAN_ENDS = [SPAN["start_ns"], SPAN["ready_ns"]]
QUANTITIES = ("duration", "stall", "wait", "issue", "copy", "exposed", "busy", "occupancy")
STREAMS: Mapping[Arm, int] = {arm: number for number, arm in enumerate(Arm)}
"""Arm → the stream of random numbers of its bootstrap: arms are drawn apart, but for what they share, and
reproducibly."""
STALLED_FRACTION = 0.10
"""The loader bounds a window in which the device waited for data for more than this fraction of the time."""
NEVER_WAITING = 0.001
"""A device that waited for data for no more of the time than this was never short of it."""
WAITS_MUCH = 0.3
"""Of a watched script's time; it then waits for more than what handing over ready batches takes."""
HANDED_OVER = 0.9
"""So many of the batches that were ready were handed over in the time that this takes. The most of all is that of the
one at which the machine stood still."""
UNLIKE_STEPS = 0.10
"""Of the mean: the standard error of so many of a watched script's own steps, taken at random, from which on these do
not tell it."""
GROWN, GROWN_S = 0.5, 0.0003
"""By so much, and so many seconds more, a step of one kind may be longer beside the loader: some of a network that
computes on the processors, and all of a step that only takes a batch."""
NUM_DRAWN = 10_000
"""Times that as many steps as the bursts have are taken at random."""
NEVER_RESTING = 0.97
"""Workers busy for at least this fraction of the window work at the loader's capacity."""


@dataclass(frozen=True)
class ArmSteps:
    """One arm's window steps. Times in seconds, one value a step, a list entry a segment."""

    arm: Arm
    quantities: Sequence[dict[str, NDArray[np.float64]]]
    """QUANTITIES of each segment:
    duration   completion to completion (delivery to delivery in an arm without a device)
    stall      data stall: max(0, returned − max(called, completion of the step before)); of a watched script, until
               the batch was complete in its worker, since a ready one takes time to hand over
    wait       host time in next(), whether the device had work or not
    issue      returned → last work enqueued
    copy       the copy's time on the device
    exposed    the part of the copy after the batch was delivered in which the device has nothing to compute
    busy       device compute busy time (NaN where unknown); where the device tells only that of whole steps that
               were enqueued before they began (`Segment.held`), these in turn
    occupancy  from the time the batch was there and the device free, to completion
    """
    num_samples: int
    num_steps: int
    encoded_bytes: int
    seconds: float
    """Length of all windows."""
    blocks: Blocks
    """Of QUANTITIES."""
    width: Width
    """Of the mean duration's 95 % interval."""
    stream: int
    """Of the bootstrap's random numbers."""
    round_steps: int = 1
    """Steps in which all workers hand over once."""
    worked: float | None = None
    """Part of the windows in which the workers were at work on batches; None where the loader does not tell."""
    left_out: int = 0
    """Steps of the windows before their whole periods of standstills."""
    rounding: float = 0.0
    """Of the mean duration, by how much one period of standstills that are alike may be off for its begin and end."""
    of_unlike: bool = False
    """Of bursts: the watched script's own steps differ so much that these may all be of one kind."""

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @cached_property
    def means(self) -> NDArray[np.float64]:
        """[len(QUANTITIES)] mean seconds a step."""
        return self.blocks.means()

    @cached_property
    def draws(self) -> NDArray[np.float64]:
        """[num_draws, len(QUANTITIES)] bootstrap draws of the means."""
        return draws_of_mean(self.blocks, self.stream, width=self.width)

    def mean(self, quantity: str) -> float:
        return float(self.means[QUANTITIES.index(quantity)])

    def drawn(self, quantity: str) -> NDArray[np.float64]:
        return self.draws[:, QUANTITIES.index(quantity)]

    def stalled_rounds(self) -> float:
        """Fraction of the workers' rounds in which the device waited for data. Workers hand over in bursts, so even if
        the loader paces the run, only one step in each round needs to wait."""
        stalled = []
        for values in self.quantities:
            stalls = values["stall"][: max(1, len(values["stall"]) // self.round_steps) * self.round_steps]
            stalled += [part.max() > 0 for part in np.array_split(stalls, max(1, len(stalls) // self.round_steps))]
        return float(np.mean(stalled))

    def all(self, quantity: str) -> NDArray[np.float64]:
        """The quantity of every window step, segments joined."""
        return np.concatenate([values[quantity] for values in self.quantities])


def are_too_unlike(real: ArmSteps, bursts: ArmSteps) -> bool:
    """Whether a watched script's own steps differ so much that as many as are in the bursts, taken at random, would not
    tell their mean."""
    own = real.all("duration") - real.all("stall")
    return bool(own.std() / bursts.num_steps**0.5 > UNLIKE_STEPS * own.mean())


def chance_of_so_short(bursts: ArmSteps, real: ArmSteps) -> float:
    """How often as many runs of as many steps on end as the bursts have, taken from the windows of `real` at random,
    would be no longer than the bursts, waiting for data left out, if each of their steps had GROWN beside the loader.
    Steps on end keep what repeats after some of them."""
    own = [values["duration"] - values["stall"] for values in real.quantities]
    random = np.random.default_rng(29)
    drawn, seen = np.zeros(NUM_DRAWN), 0.0
    for values in bursts.quantities:
        length = len(values["duration"])
        seen += float((values["duration"] - values["stall"]).sum()) * (1.0 + GROWN) + GROWN_S * length
        sums = [np.convolve(one, np.ones(length), "valid") for one in own if len(one) >= length]
        if not sums:
            return 1.0
        drawn += random.choice(np.concatenate(sums), NUM_DRAWN)
    return float(np.mean(drawn <= seen))


def window_quantities(segment: Segment, handover_ns: int | None = None) -> dict[str, NDArray[np.float64]] | None:
    """QUANTITIES of the steps in the segment's window; None where it holds no complete step. `handover_ns`: of a
    watched script (`handover_of`)."""
    first = max(segment.num_warmup, 1)  # a duration needs the step before
    table = segment.steps
    if len(table) <= first:
        return None
    rows, before = table[first:], table[first - 1 : -1]
    nanosecond = 1e-9
    called, returned = rows[:, STEP["called_ns"]], rows[:, STEP["returned_ns"]]
    nothing = np.zeros(len(rows))
    if rows[-1, STEP["done_ns"]] < 0:
        duration = (returned - before[:, STEP["returned_ns"]]) * nanosecond
        wait = (returned - called) * nanosecond
        none = dict.fromkeys(("stall", "issue", "copy", "exposed", "occupancy"), nothing)
        return {"duration": duration, "wait": wait, **none, "busy": np.full(len(rows), np.nan)}
    done, done_before = rows[:, STEP["done_ns"]], before[:, STEP["done_ns"]]
    busy = rows[:, STEP["busy_ns"]].astype(np.float64)
    copied = rows[:, STEP["copy_end_ns"]]
    return {
        "duration": (done - done_before) * nanosecond,
        "stall": np.maximum(0, _arrived(segment, first, handover_ns) - np.maximum(called, done_before)) * nanosecond,
        "wait": (returned - called) * nanosecond,
        "issue": (rows[:, STEP["issued_ns"]] - returned) * nanosecond,
        "copy": (copied - rows[:, STEP["copy_begin_ns"]]) * nanosecond,
        "exposed": np.maximum(0, copied - np.maximum(returned, done_before)) * nanosecond,
        "busy": np.where(busy < 0, np.nan, busy * nanosecond),
        "occupancy": (done - np.maximum(returned, done_before)) * nanosecond,
    }


def handover_of(segments: Sequence[Segment]) -> int | None:
    """What a watched script waits for a batch that was there when it asked, ns: no more than this for HANDED_OVER of
    them; None where nothing tells.

    A batch that is complete in its worker is not there yet: a thread of the worker sends it, and where the worker's
    Python computes, that thread waits for its lock. What is beyond a hand-over is waiting for data. Where the run was
    never held, and waits for much of its time, the shortest wait is the hand-over.
    """
    watched = [one for one in segments if one.lane == SCRIPT_LANE and len(one.steps) > max(1, one.num_warmup)]
    ready = [_waits(one) for one in watched if one.arm is Arm.DEVICE]
    if ready:
        return int(np.quantile(np.concatenate(ready), HANDED_OVER, method="higher"))
    real = [one for one in watched if one.arm is Arm.REAL]
    if not real:
        return None
    waits = np.concatenate([_waits(one) for one in real])
    done = [one.steps[max(one.num_warmup, 1) - 1 :, STEP["done_ns"]] for one in real]
    whole = sum(int(one[-1] - one[0]) for one in done)
    return int(waits.min()) if waits.sum() > WAITS_MUCH * whole else None


def _waits(segment: Segment) -> NDArray[np.int64]:
    rows = segment.steps[max(segment.num_warmup, 1) :]
    return np.asarray(rows[:, STEP["returned_ns"]] - rows[:, STEP["called_ns"]])


def _arrived(segment: Segment, first: int, handover_ns: int | None) -> NDArray[np.int64]:
    """When the batches of the steps from `first` on had arrived."""
    rows = segment.steps[first:]
    called, returned = rows[:, STEP["called_ns"]], rows[:, STEP["returned_ns"]]
    if segment.lane != SCRIPT_LANE:
        return np.asarray(returned)
    if segment.arm is Arm.DEVICE:  # the script was held until they were there
        return np.asarray(called)
    if segment.spans is None:
        return np.asarray(returned)
    ready = segment.spans[first : len(segment.steps), SPAN["ready_ns"]]
    if handover_ns is not None:
        ready = np.maximum(ready, returned - handover_ns)
    return np.clip(ready, called, returned)


def _window(segment: Segment) -> tuple[int, int]:
    """The earliest time at which the window's first batch could be requested, and when its last one was delivered."""
    returned = segment.steps[:, STEP["returned_ns"]]
    return int(returned[max(segment.num_warmup, 1) - 1]), int(returned[-1])


def queue_fall(segment: Segment) -> int | None:
    """By how many batches the loader's queue became shorter over the window.

    From the workers' own stamps of the batches delivered and of those drained afterwards; None where the
    loader gave no stamps or its drained batches are not known.
    """
    if segment.spans is None or segment.num_drained is None:
        return None
    opened, closed = _window(segment)
    ready, returned = segment.spans[:, SPAN["ready_ns"]], segment.steps[:, STEP["returned_ns"]]
    delivered = int(((returned > opened) & (returned <= closed)).sum())
    return delivered - int(((ready > opened) & (ready <= closed)).sum())


def workers_pace(segment: Segment) -> tuple[float, float, int] | None:
    """What the workers did in the window: (batches/s of all, fraction of the time they worked, their number).

    Each worker counts from its first work in the window, since a full queue may have stopped it before, to its
    last finished batch, since batches cancelled at the end leave no span. None where the stamps do not tell.
    """
    if segment.spans is None:
        return None
    opened, closed = _window(segment)
    rates, worked, known = [], 0.0, 0.0
    begun, ready = segment.spans[:, SPAN_ENDS].T
    workers = np.unique(segment.spans[ready > begun, SPAN["worker"]])  # files read in vain have a span without a time
    for worker in workers:
        begun, ready = segment.spans[segment.spans[:, SPAN["worker"]] == worker][:, SPAN_ENDS].T
        inside = (ready > opened) & (ready <= closed)
        if not inside.any():
            continue
        begun, ready = begun[inside], ready[inside]
        since = np.maximum(begun, opened)
        first, last = int(since.min()), int(ready.max())
        if last <= first:
            continue
        begun = np.minimum(begun, ready - 1)  # a batch that cost no time still counts
        rates.append(float(((ready - np.maximum(begun, opened)) / (ready - begun)).sum()) / (last - first))
        # Batches of workers that share a number overlap: time covered twice counts once.
        order = np.argsort(since)
        covered = np.append(first, np.maximum.accumulate(ready[order])[:-1])
        worked += float((ready[order] - np.maximum(since[order], covered)).clip(0).sum())
        known += last - first
    if not rates:
        return None
    return float(np.mean(rates)) * len(workers) * 1e9, worked / known, len(workers)


def worked_fraction(segment: Segment) -> float | None:
    """Part of the window in which the workers were at work on batches; None where their stamps do not tell.

    For each worker from its first start in the window to its last one: whole turns of work and rest, so that the
    window's ends do not matter.
    """
    if segment.spans is None:
        return None
    opened, closed = _window(segment)
    worked = turns = 0.0
    for worker in np.unique(segment.spans[:, SPAN["worker"]]):
        begun, ready = segment.spans[segment.spans[:, SPAN["worker"]] == worker][:, SPAN_ENDS].T
        inside = (begun >= opened) & (begun <= closed)
        begun, ready = begun[inside], ready[inside]
        order = np.argsort(begun)
        begun, ready = begun[order], ready[order]
        if len(begun) > 1:
            worked += float((np.minimum(ready[:-1], begun[1:]) - begun[:-1]).sum())
            turns += float(begun[-1] - begun[0])
    return worked / turns if turns > 0 else None


def drain_correction(segment: Segment, values: dict[str, NDArray[np.float64]]) -> float:
    """Factor from the window's step time to the steady one, where the window used batches made before it.

    Only where the queue fell by more than half a batch for each worker (less may be chance: workers are somewhere
    within a batch), and where the loader sets the pace: there is no device, or it waits for data, or the workers
    never rest. In a window bound by the consumer a change of the queue means nothing.
    """
    fall, pace = queue_fall(segment), workers_pace(segment)
    if fall is None or pace is None:
        return 1.0
    batches_per_s, worked, num_workers = pace
    has_device = segment.steps[-1, STEP["done_ns"]] >= 0
    stalled = values["stall"].sum() >= STALLED_FRACTION * values["duration"].sum()
    if fall <= num_workers / 2 or (has_device and not stalled and worked < NEVER_RESTING):
        return 1.0
    return max(1.0, 1.0 / (batches_per_s * float(values["duration"].mean())))


def arm_steps(
    segments: Sequence[Segment], arm: Arm, round_steps: int = 1, stream: int = 0, stood: Standstills | None = None
) -> ArmSteps | None:
    """Join the arm's segments; None where it was not measured.

    `round_steps`: steps in which all workers hand over once (statistics.blocks_of); `stream`: of the bootstrap's random
    numbers; `stood`: the storage stands still now and then. Windows over it are shortened to whole periods.
    """
    quantities, turns, periods, samples, steps, left_out, encoded, seconds = [], [], [], 0, 0, 0, 0, 0.0
    worked, evened_s = list[tuple[float | None, float]](), list[float]()
    handover_ns = handover_of(segments)
    for segment in segments:
        if segment.arm != arm:
            continue
        found = window_quantities(segment, handover_ns)
        if found is None:
            continue
        starts, values = None, found
        if stood is not None and arm.touches_storage:
            segment, starts, values = of_whole_periods(segment, values, stood, round_steps)
            left_out += len(found["duration"]) - len(values["duration"])
            evened_s += [float(values["duration"].sum())] * (starts is None)
        if segment.held is not None:
            values["busy"] = np.resize(np.asarray(segment.held.busy_ns, dtype=np.float64) / 1e9, len(values["busy"]))
        length_s = float(values["duration"].sum())
        seconds += length_s
        worked.append((worked_fraction(segment), length_s))
        factor = drain_correction(segment, values)
        added = values["duration"] * (factor - 1.0)  # the queue spared the device this wait
        values["duration"], values["stall"] = values["duration"] + added, values["stall"] + added
        quantities.append(values)
        turns.append(segment.round)
        periods.append(starts)
        window = segment.steps[max(segment.num_warmup, 1) :]
        samples += int(window[:, STEP["num_samples"]].sum())
        encoded += int(window[:, STEP["encoded_bytes"]].sum())
        steps += len(window)
    if not quantities:
        return None
    tables = [[values[name] for name in QUANTITIES] for values in quantities]
    blocks = blocks_of(tables, round_steps, turns=turns, starts=periods)
    known = [(part, length_s) for part, length_s in worked if part is not None]
    mean = sum(part * length_s for part, length_s in known) / sum(length_s for _, length_s in known) if known else None
    rounding = 0.0 if stood is None else stood.rounding(round_steps, steps, evened_s)
    width = widths({arm: blocks}, ())[arm].beside(rounding)
    return ArmSteps(
        arm, quantities, samples, steps, encoded, seconds, blocks, width, stream, round_steps, mean, left_out, rounding
    )


def fed_alike(segments: Sequence[Segment]) -> tuple[Arm, ...]:
    """The arms whose step times the loader moves alike. Where the device never waited for data in `real` it keeps the
    pace, and what the loader does without it (`free`, `prep`) tells nothing of how much that pace varies."""
    stall_s = length_s = 0.0
    for segment in segments:
        if segment.arm is Arm.REAL and (values := window_quantities(segment)) is not None:
            stall_s, length_s = stall_s + float(values["stall"].sum()), length_s + float(values["duration"].sum())
    if stall_s > NEVER_WAITING * length_s or not length_s:
        return FED_ALIKE
    return tuple(arm for arm in FED_ALIKE if arm in CHAIN)


def join_arms(
    segments: Sequence[Segment], round_steps: int = 1, stood: Standstills | None = None, *, on_host_cpus: bool = False
) -> dict[Arm, ArmSteps]:
    """Every arm of which a complete step was measured, traced windows and short runs left out. Their draws share what
    moved all arms of a round (statistics.widths). `stood`: as for `arm_steps`.

    `on_host_cpus`: a script computes on the processors. Of its steps that are too unlike for those in bursts all steps
    behind a burst count, so that a short accumulation is there as a whole: also the first, whose caches are cold. (On a
    device the first one would show launches.)
    """

    def joined_of(arm: Arm) -> ArmSteps | None:
        return arm_steps(segments, arm, round_steps, STREAMS[arm], stood)

    found = {arm: joined_of(arm) for arm in (*ARMS, Arm.PREP)}
    real, bursts = found[Arm.REAL], found[Arm.DEVICE]
    if real is not None and bursts is not None and segments[0].lane == SCRIPT_LANE and are_too_unlike(real, bursts):
        if on_host_cpus:
            segments = [replace(one, num_warmup=1) if one.arm is Arm.DEVICE else one for one in segments]
            bursts = joined_of(Arm.DEVICE) or bursts
        found[Arm.DEVICE] = replace(bursts, of_unlike=True)
    joined = {arm: steps for arm, steps in found.items() if steps is not None}
    together = widths({arm: steps.blocks for arm, steps in joined.items()}, fed_alike(segments))
    return {arm: replace(steps, width=together[arm].beside(steps.rounding)) for arm, steps in joined.items()}
