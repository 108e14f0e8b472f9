"""What running and waiting cost at a price of the machine, and what advice would save. docs/method.md, `What waiting
costs`.

Of a price p an hour, whatever the run does:

    waiting, an hour    p · (1 − 1 ÷ g)         g: how much faster the run would be without what its verdict names
    saved, an hour      p · (1 − 1 ÷ s)         s: the speed-up of a piece of advice, measured else predicted
    an epoch            seconds ÷ 3600 × these  seconds: its samples ÷ the measured rate
    a month             730 × these             365 × 24 ÷ 12 hours

1 − 1 ÷ g is the step now less the step without the cause, as a part of the step now. It grows with g, so its ends are
those of g's ends. An epoch's ends are the products of the ends of both, which is wide enough whatever moves them
together. A month's saving is that of the work which takes a month now.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from loaderbench.cases.options import Price
from loaderbench.recording.facts import WatchedFacts
from loaderbench.recording.record import (
    Cost,
    Estimate,
    NoEpoch,
    NoWaiting,
    PriceFigures,
    Range,
    RunRecord,
    Saving,
    Verdict,
)

MONTH_HOURS = 365 * 24 / 12
"""Hours of an average month of a year of 365 days: 730."""
HOUR_S = 3600.0


def priced(record: RunRecord, price: Price, num_images: int | None) -> RunRecord:
    """The record with what it costs.

    `num_images`: of the data set, by the run's facts; None where these are not stored. A watched script tells the
    length of its epochs itself.
    """
    samples, no_epoch = _epoch(record, num_images)
    epoch_s = None if samples is None or record.throughput is None else _seconds(samples, record.throughput)
    if samples is not None and epoch_s is None:
        no_epoch = "rate_not_measured"
    all_of_it = Range(1.0, 1.0, 1.0)
    gain, no_waiting = gain_without_waiting(record.verdict)
    waits = None if gain is None else _at_least_nothing(_part(gain))
    figures = PriceFigures(
        per_hour=price.per_hour,
        currency=price.currency,
        currency_first=price.currency_first,
        month_hours=MONTH_HOURS,
        running=_cost(price.per_hour, all_of_it, epoch_s),
        waiting=None if waits is None else _cost(price.per_hour, waits, epoch_s),
        no_waiting=no_waiting,
        epoch_samples=samples,
        epoch_s=epoch_s,
        no_epoch=no_epoch,
        savings=tuple(_savings(record.verdict, price.per_hour, epoch_s)),
    )
    return replace(record, price=figures)


def saved(per_hour: float, speedup: Estimate) -> Cost:
    """What a speed-up saves, for the same work."""
    return _cost(per_hour, _part(speedup), None)


def gain_without_waiting(verdict: Verdict | None) -> tuple[Estimate | None, NoWaiting | None]:
    """(how much faster the run would be without what its verdict names, or why that is not known)"""
    if verdict is None:
        return None, "no_verdict"
    if verdict.bottleneck == "compute":
        return None, "compute"
    if verdict.bottleneck == "undetermined":
        return None, "undetermined"
    gain = verdict.gain or verdict.joint_speedup
    return (None, "gain_not_measured") if gain is None or not _is_ratio(gain.value) else (gain, None)


def _is_ratio(value: float | None) -> bool:
    return value is not None and 0.0 < value < math.inf


def _savings(verdict: Verdict | None, per_hour: float, epoch_s: Range | None) -> Sequence[Saving]:
    """Of the advice whose speed-up is known; none where no verdict says what the run waits for."""
    if verdict is None or verdict.bottleneck == "undetermined":
        return []
    found = []
    for number, one in enumerate(verdict.advice, 1):
        speedup = one.measured_speedup or one.predicted_speedup
        if speedup is not None and _is_ratio(speedup.value):
            saves = _cost(per_hour, _part(speedup), epoch_s)
            found.append(Saving(number, speedup, one.measured_speedup is not None, saves))
    return found


# -- an epoch --------------------------------------------------------------------------------------------


def _epoch(record: RunRecord, num_images: int | None) -> tuple[int | None, NoEpoch | None]:
    """(the samples of an epoch, or why they are not known)"""
    if record.watched is not None:
        samples = _watched_samples(record.watched, record.case.step.batch_size)
        return samples, "no_length" if samples is None else None
    if num_images is None:
        return None, "no_facts"
    return (num_images, None) if num_images > 0 else (None, "no_files")


def _watched_samples(seen: WatchedFacts, batch_size: int) -> int | None:
    """The samples of an epoch of the script's first loader: the usual length of those that ended; of a first one that
    goes on, or may have been cut short, the length of the data set."""
    whole = seen.loaders[0].num_samples if seen.loaders else None
    ended = [one.num_batches for one in seen.epochs[:-1] if one.num_batches]
    if not ended:
        return whole or None
    samples = round(statistics.median(ended) * batch_size)
    last_is_partial = whole is not None and 0 <= samples - whole < batch_size
    return whole if last_is_partial else samples


def _seconds(samples: int, rate: Estimate) -> Range | None:
    """How long so many samples take at this rate."""
    if not _is_ratio(rate.value):
        return None
    slow, fast = ((end if _is_ratio(end) else None) for end in (rate.low, rate.high))
    return Range(
        samples / rate.value, None if fast is None else samples / fast, None if slow is None else samples / slow
    )


# -- money -----------------------------------------------------------------------------------------------


def _part(gain: Estimate) -> Range:
    """1 − 1 ÷ gain. Where the gain has no upper end that says anything, all of it is the most there can be."""
    low = None if gain.low is None or not gain.low > 0 else 1.0 - 1.0 / gain.low
    high = None if gain.high is None or not gain.high > 0 else 1.0 - 1.0 / gain.high
    return Range(1.0 - 1.0 / gain.value, low, 1.0 if high is None and low is not None else high)


def _at_least_nothing(part: Range) -> Range:
    """No run waits for less than nothing."""
    low, high = ((None if end is None else max(0.0, end)) for end in (part.low, part.high))
    return Range(max(0.0, part.value), low, high)


def _cost(per_hour: float, part: Range, epoch_s: Range | None) -> Cost:
    hour = _times(part, Range(per_hour, per_hour, per_hour))
    return Cost(
        hour=hour,
        epoch=None if epoch_s is None else _times(hour, _hours(epoch_s)),
        month=_times(hour, Range(MONTH_HOURS, MONTH_HOURS, MONTH_HOURS)),
    )


def _hours(time: Range) -> Range:
    return _times(time, Range(1.0 / HOUR_S, 1.0 / HOUR_S, 1.0 / HOUR_S))


def _times(one: Range, other: Range) -> Range:
    """The product, with the least and the largest product of the ends of both."""
    value = one.value * other.value
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return Range(value, None, None)
    products = [a * b for a in (one.low, one.high) for b in (other.low, other.high)]
    return Range(value, min(products), max(products))
