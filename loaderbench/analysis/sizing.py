"""How many devices a target needs, from the measured batches: docs/model.md, `Sizing`, defines every figure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis.statistics import Blocks, blocks_of, draws_of_mean, interval
from loaderbench.recording.model_size import (
    FEED_STAGES,
    BatchFacts,
    BatchFigures,
    Count,
    Demand,
    KnownStep,
    NoAnswer,
    SizeBound,
    SizeFacts,
    Sizing,
    StepPercentile,
    Supply,
)
from loaderbench.recording.record import Estimate

SHOWN_PERCENTILES = (50.0, 95.0, 99.0)
STEPS_BEYOND = 6.6
"""Steps that are expected beyond a percentile before it is given (`steps_needed`)."""
TAIL = 0.025
"""Probability on each side of a 95 % interval."""
LEAST_GAIN = 1.05
"""Images/s of a batch ÷ those of a smaller one, from which on they grow: a doubling that gives less is hardly worth
its memory."""
MOST_SPREAD = 1.5
"""Most devices ÷ fewest of an interval that is an answer."""
BLOCKS_OF_ONE_ROUND = 10
"""Blocks of consecutive steps where there was one round; several rounds have 4 each."""


def sized(facts: SizeFacts) -> Sizing:
    """The table and the answer. A pure function of the facts."""
    shared = facts.device is not None and facts.device.on_host_cpus
    table = _table(facts)
    chosen, no_answer = _chosen(facts, table)
    rate = None if chosen is None else chosen.samples_per_s
    count = (
        None if rate is None else Count(1, 1, 1) if facts.target_per_s is None else devices(facts.target_per_s, rate)
    )
    measured = [one for one in table if one.samples_per_s is not None]
    return Sizing(
        model=facts.model,
        mode=facts.mode,
        precision=facts.precision,
        optimizer=facts.optimizer,
        device=facts.device,
        device_name=facts.device_name if facts.device is None else facts.device.name,
        input_size=facts.input_size,
        channels=facts.channels,
        inputs=facts.inputs,
        target_per_s=facts.target_per_s,
        latency_s=facts.latency_s,
        percentile=facts.percentile,
        batches=table,
        num_rounds=facts.num_rounds,
        stopped_by=facts.stopped_by,
        duration_s=facts.duration_s,
        memory_of="rss_growth_bytes" if shared else "peak_live_bytes",
        chosen_batch=None if chosen is None else chosen.batch_size,
        devices_needed=None if count is None else count.value,
        devices_needed_interval=count,
        bound=None if chosen is None else _bound(facts, chosen, measured),
        no_answer=no_answer,
        still_grows=_still_grows(measured),
        is_decided=None
        if count is None or chosen is None or facts.target_per_s is None
        else is_decided(count, constant=chosen.source is not None),
        demand=_demand(facts, rate),
        supplies=_supplies(facts, rate),
        feed=facts.feed,
        no_feed=facts.no_feed,
        mean_file_bytes=facts.mean_file_bytes,
        mean_file_source=facts.mean_file_source,
        environment=facts.environment,
    )


def is_decided(count: Count, *, constant: bool) -> bool:
    """Whether the interval tells how many devices to buy, within a factor of MOST_SPREAD. `constant`: the rate is a
    constant of a profile, which has no interval."""
    if count.low is None or count.high is None:
        return constant
    return count.high <= max(MOST_SPREAD * count.low, count.low + 1)


def _still_grows(measured: Sequence[BatchFigures]) -> bool:
    """Whether the largest batch does more images/s than every other, beyond the intervals and by LEAST_GAIN."""
    if len(measured) < 2:
        return False
    *others, last = measured
    assert last.samples_per_s is not None
    rates = [one.samples_per_s for one in others if one.samples_per_s is not None]
    gains = last.samples_per_s.value >= LEAST_GAIN * max(one.value for one in rates)
    return gains and all(surely_above(last.samples_per_s, one) for one in rates)


def devices(target_per_s: float, rate: Estimate) -> Count:
    """Devices for the target: ⌈target ÷ rate of one⌉, and the same of the ends of the rate's interval."""

    def needed(per_s: float) -> int:
        return max(1, math.ceil(target_per_s / per_s * (1 - 1e-12)))  # 4.000000000001 devices are 4

    if rate.low is None and rate.high is None:
        return Count(needed(rate.value), None, None)
    most = needed(rate.low) if rate.low is not None and rate.low > 0 else None
    return Count(needed(rate.value), 1 if rate.high is None else needed(rate.high), most)


# -- one batch -------------------------------------------------------------------------------------------


def _table(facts: SizeFacts) -> tuple[BatchFigures, ...]:
    table: list[BatchFigures] = []
    before: Estimate | None = None
    for batch in facts.batches:
        row = _figures(facts, batch, before)
        before = row.samples_per_s or before
        table.append(row)
    return tuple(table)


def _figures(facts: SizeFacts, batch: BatchFacts, before: Estimate | None) -> BatchFigures:
    step, rate = _times(batch)
    alone = _alone(batch)
    asked = dict.fromkeys((*SHOWN_PERCENTILES, facts.percentile))
    percentiles = tuple(step_percentile(alone, percent, no_spread=batch.known is not None) for percent in asked)
    values = {one.percent: one.value for one in percentiles}
    memory = batch.memory
    return BatchFigures(
        batch_size=batch.batch_size,
        status=batch.status,
        failure=batch.failure,
        step_s=step,
        samples_per_s=rate,
        s_per_sample=None if step is None else step.value / batch.batch_size,
        num_steps=sum(len(one.step_s) for one in batch.rounds),
        p50_s=values[50.0],
        p95_s=values[95.0],
        p99_s=values[99.0],
        percentiles=percentiles,
        peak_live_bytes=None if memory is None else memory.allocated_bytes,
        rss_growth_bytes=None if memory is None else memory.rss_growth_bytes,
        memory_missing={} if memory is None else memory.missing,
        predicted_peak_bytes=batch.predicted_peak_bytes,
        no_prediction=batch.no_prediction,
        label="measured" if batch.known is None else batch.known.label,
        source=None if batch.known is None else batch.known.source,
        within_latency=_within(facts, alone, batch.known, percentiles),
        grows=None if rate is None or before is None else surely_above(rate, before),
    )


def _times(batch: BatchFacts) -> tuple[Estimate | None, Estimate | None]:
    """(seconds of a step, samples/s), with their intervals over blocks of consecutive steps and over rounds."""
    if batch.known is not None:
        seconds, how = batch.known.step_s, f"a constant of the device's profile, {batch.known.label}"
        rate = Estimate(batch.batch_size / seconds, None, None, "samples/s", 0, how)
        return Estimate(seconds, None, None, "s", 0, how), rate
    blocks = blocks_of_steps([one.step_s for one in batch.rounds])
    if blocks is None:
        return None, None
    mean = float(blocks.means()[0])
    if len(blocks) < 2:
        how = "one block of steps, which gives no interval"
        rate = Estimate(batch.batch_size / mean, None, None, "samples/s", 1, how)
        return Estimate(mean, None, None, "s", 1, how), rate
    draws = draws_of_mean(blocks, batch.batch_size)[:, 0]
    seconds_estimate = interval(mean, draws, "s", len(blocks))
    return seconds_estimate, interval(batch.batch_size / mean, batch.batch_size / draws, "samples/s", len(blocks))


def blocks_of_steps(rounds: Sequence[NDArray[np.float64]]) -> Blocks | None:
    """The steps of each round in blocks; None without a step."""
    given = [one for one in rounds if len(one)]
    if not given:
        return None
    return blocks_of([[one] for one in given], blocks_per_segment=BLOCKS_OF_ONE_ROUND if len(given) == 1 else 4)


def surely_above(rate: Estimate, other: Estimate) -> bool:
    """Whether it is above the other one beyond both intervals; without intervals, above it at all."""
    low = rate.value if rate.low is None else rate.low
    return low > (other.value if other.high is None else other.high)


def _alone(batch: BatchFacts) -> NDArray[np.float64]:
    """Seconds of single steps, all rounds together."""
    given = [one.step_s if one.alone_s is None else one.alone_s for one in batch.rounds]
    return np.concatenate(given) if given else np.empty(0)


def _within(
    facts: SizeFacts, alone: NDArray[np.float64], known: KnownStep | None, percentiles: Sequence[StepPercentile]
) -> bool | None:
    """Whether the asked percentile is within the limit. One that is not known is beyond it where a lower one surely is,
    or the fastest step."""
    limit = facts.latency_s
    if limit is None:
        return None
    if known is not None:
        return known.step_s <= limit
    asked = next(one for one in percentiles if one.percent == facts.percentile)
    if asked.value is not None:
        return asked.value <= limit
    lower = [one.low for one in percentiles if one.low is not None and one.percent < asked.percent]
    beyond = len(alone) > 0 and max(lower, default=float(alone.min())) > limit
    return False if beyond else None


# -- percentiles -----------------------------------------------------------------------------------------


def steps_needed(percent: float) -> int:
    """Steps of which a percentile p is given: n ≥ 6.6 ÷ min(p, 1 − p); 660 for p99, 132 for p95, 14 for the median.

    The probability that none of n independent steps lies beyond the percentile is pⁿ ≈ e^(−n(1 − p)): 0.14 % (three
    standard deviations of a normal distribution) at n(1 − p) = 6.6. The 95 % interval of order statistics
    (`order_statistics`) exists from 1 − p^n ≥ 97.5 % on, 368 steps for p99; its upper end would then be the slowest
    step of all, whatever disturbed it. At 660 it is the second slowest.
    """
    rarer = min(percent, 100 - percent)
    return math.ceil(round(100 * STEPS_BEYOND / rarer, 6))


def order_statistics(num_steps: int, percent: float) -> tuple[int, int] | None:
    """Ranks (r, s), counted from 1, whose order statistics hold the percentile between them with at least 95 %; None
    where there are none.

    Distribution-free, of independent steps: of n steps B ~ Binomial(n, p) lie below the percentile, so r is the largest
    rank with P(B < r) ≤ 2.5 %, s the smallest with P(B ≥ s) ≤ 2.5 % (Hahn & Meeker, Statistical Intervals, 5.2; David &
    Nagaraja, Order Statistics, 7.1).
    """
    p = percent / 100
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, num_steps + 1, dtype=np.float64)))])
    below = np.arange(num_steps + 1)
    chances = logs[-1] - logs - logs[::-1] + below * math.log(p) + (num_steps - below) * math.log1p(-p)
    probability = np.exp(chances)
    r = int((np.cumsum(probability) <= TAIL).sum())
    num_above = int((np.cumsum(probability[::-1]) <= TAIL).sum())
    return (r, num_steps + 1 - num_above) if r and num_above else None


def step_percentile(seconds: NDArray[np.float64], percent: float, *, no_spread: bool = False) -> StepPercentile:
    """The percentile of the times [num_steps], where there are enough of them."""
    n, needed = len(seconds), steps_needed(percent)
    ranks = order_statistics(n, percent) if n >= needed and not no_spread else None
    if ranks is None:
        return StepPercentile(percent, None, None, None, n, needed, "no_spread" if no_spread else "too_few_steps")
    ordered, value = np.sort(seconds), float(np.percentile(seconds, percent))
    low, high = float(ordered[ranks[0] - 1]), float(ordered[ranks[1] - 1])
    return StepPercentile(percent, value, min(low, value), max(high, value), n, needed)


# -- the answer ------------------------------------------------------------------------------------------


def _chosen(facts: SizeFacts, table: Sequence[BatchFigures]) -> tuple[BatchFigures | None, NoAnswer | None]:
    """The batch of the highest rate of those that the limit allows, or why there is none."""
    measured = [one for one in table if one.samples_per_s is not None]
    allowed = measured if facts.latency_s is None else [one for one in measured if one.within_latency]
    if allowed:
        return max(allowed, key=_rate_of), None
    if not measured:
        return None, "nothing_measured"
    return None, "latency_below_all" if all(one.within_latency is False for one in measured) else "latency_unknown"


def _rate_of(row: BatchFigures) -> float:
    assert row.samples_per_s is not None
    return row.samples_per_s.value


def _bound(facts: SizeFacts, chosen: BatchFigures, measured: Sequence[BatchFigures]) -> SizeBound:
    """What keeps one device from working through more images: a limit or memory that a larger batch would pass, and
    that batch would be more efficient; else its arithmetic."""
    assert chosen.samples_per_s is not None
    for other in measured:
        assert other.samples_per_s is not None
        if other.within_latency is False and surely_above(other.samples_per_s, chosen.samples_per_s):
            return "latency"
    if facts.stopped_by == "memory" and chosen is measured[-1] and chosen.grows:
        return "memory"
    return "compute"


def _demand(facts: SizeFacts, rate: Estimate | None) -> Demand | None:
    of_target = facts.target_per_s is not None
    samples_per_s = facts.target_per_s if facts.target_per_s is not None else None if rate is None else rate.value
    if samples_per_s is None:
        return None
    cpu_s = None if facts.feed is None else facts.feed.cpu_s_per_sample
    return Demand(
        samples_per_s,
        of_target,
        None if facts.mean_file_bytes is None else samples_per_s * facts.mean_file_bytes,
        None if cpu_s is None else samples_per_s * cpu_s,
    )


def _supplies(facts: SizeFacts, rate: Estimate | None) -> tuple[Supply, ...]:
    if facts.feed is None:
        return ()
    return tuple(
        Supply(stage, capacity, None if capacity is None or rate is None else fed(capacity, rate))
        for stage in FEED_STAGES
        for capacity in [facts.feed.capacities.get(stage)]
    )


def fed(capacity: Estimate, rate: Estimate) -> Estimate:
    """Devices of this rate that the capacity feeds; the interval's ends are those that both intervals allow."""
    low = None if capacity.low is None or rate.high is None else capacity.low / rate.high
    high = None if capacity.high is None or not rate.low or rate.low <= 0 else capacity.high / rate.low
    low, high = (None, None) if low is None or high is None else (low, high)
    n = min(capacity.n, rate.n)
    return Estimate(capacity.value / rate.value, low, high, "devices", n, "ratio of both intervals' ends")
