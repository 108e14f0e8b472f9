"""Which batch to try next in the search for the largest one that fits: by the prediction, and by what trials told.

A trial's peak is what the limit counts: live bytes, or with RLIMIT_DATA the growth of the process's data. Bytes
throughout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from loaderbench.analysis.memory import MOST_BATCH, MemoryLine
from loaderbench.analysis.model_memory import (
    NUM_CONFIRMATIONS,
    bounds_of,
    counted,
    fails_for_memory,
    outcome_of,
    undecided,
)
from loaderbench.recording.model_memory import TrialFacts

MOST_TRIES = 2 * NUM_CONFIRMATIONS - 1
"""Trials of one batch size that fit or fail: where they contradict each other, most of three decide."""
MOST_UNKNOWN = 2
MOST_TRIALS = 24
"""In all: where batches fit one time and fail another, the bounds would move on and on."""
FIRST_BATCHES = (2, 4)
"""Tried first where nothing is predicted: their peaks make the first line. Batch norm may refuse to train on one."""
MOST_TIMES = 8
"""How far beyond the largest batch that fitted a line through peaks alone is trusted: the peak moves from the update to
the activations, whose slope is another."""
MARGINS = (0.02, 0.1)
"""Of the limit: how far below it the next trial stays while all have failed and none has told a peak; then batches are
halved."""
MOST_BY_PEAKS = 9
"""Batches that are chosen by the peaks; from then on the search halves what is left."""
FAR = 0.05
"""Of the limit: two peaks that are nearer to each other tell no slope."""
LEAST_RATIO, MOST_RATIO = 0.8, 1.25
"""A peak ÷ the predicted one: beyond these the prediction is wrong by a factor, within them by some bytes."""


def next_batch(
    trials: Sequence[TrialFacts],
    line: MemoryLine | None,
    limit_bytes: int,
    *,
    beside_bytes: int = 0,
    most: int = MOST_BATCH,
) -> int | None:
    """The batch to try next; None where all is known, or cannot be.

    The predicted batch first. Each peak that a trial told then mends the prediction; without one, two small trials
    make the line. The largest batch that fits and the next one are tried until each is confirmed.

    Args:
        line: the predicted peaks, where there are any.
        beside_bytes: what the limit probably counts beside the prediction, until a trial tells it.
    """
    fitted, failed = bounds_of(trials)
    wanted: int | None
    if between := [size for size in undecided(trials) if fitted < size < (failed or most + 1)]:
        wanted = between[0]
    elif fitted == most:
        wanted = most if counted(trials, most, fits=True) < NUM_CONFIRMATIONS else None
    elif failed != fitted + 1:
        wanted = _searched(trials, line, limit_bytes, beside_bytes, most)
    elif fitted and counted(trials, fitted, fits=True) < NUM_CONFIRMATIONS:
        wanted = fitted
    else:
        wanted = failed if counted(trials, failed, fits=False) < NUM_CONFIRMATIONS else None
    if wanted is None or len(trials) >= MOST_TRIALS:
        return None
    same = [outcome_of(one) for one in trials if one.batch_size == wanted]
    num_known = len(same) - same.count("unknown")
    return None if num_known >= MOST_TRIES or same.count("unknown") >= MOST_UNKNOWN else wanted


def limited_peak(trial: TrialFacts) -> int | None:
    """The peak that the limit counts; None where it is not known."""
    return trial.peak_data_bytes if trial.how == "rlimit" else trial.peak_live_bytes


def _searched(
    trials: Sequence[TrialFacts], line: MemoryLine | None, limit_bytes: int, beside_bytes: int, most: int
) -> int:
    """The answer is not between two neighbours yet."""
    fitted, failed = bounds_of(trials)
    low, high = fitted + 1, most if failed is None else failed - 1
    peaks = {one.batch_size: peak for one in trials if (peak := limited_peak(one)) is not None}
    tried = {one.batch_size for one in trials if outcome_of(one) != "unknown"}
    if failed is not None and len(tried) >= MOST_BY_PEAKS:
        return (fitted + failed) // 2
    if line is None:
        high = min(high, MOST_TIMES * max(fitted, 1))
    expected = largest_by_peaks(peaks, line, limit_bytes, beside_bytes, most)
    if expected is None:
        # Peaks of several batches that tell no slope are the update's: it is far to the activations'.
        stride = MOST_TIMES if len(peaks) > 1 else 2
        expected = next((size for size in FIRST_BATCHES if size not in tried), stride * fitted)
    elif failed is not None and not fitted and not peaks and line is not None:
        number = len(tried) - (not beside_bytes)
        expected = failed // 2
        if number < len(MARGINS):  # the wider, the less is known
            expected = line.largest_batch(round((1 - MARGINS[number]) * limit_bytes) - beside_bytes, most)
    elif expected < low:  # each that fitted though it was not expected to doubles the stride
        beyond = {one.batch_size for one in trials if outcome_of(one) == "fits" and one.batch_size > expected}
        expected = fitted + 2 ** len(beyond)
    elif expected > high and line is not None:
        refuted = {one.batch_size for one in trials if fails_for_memory(outcome_of(one)) and one.batch_size <= expected}
        expected = high + 1 - 2 ** max(len(refuted) - 1, 0)
    if expected > high and line is None and failed is not None:
        return math.isqrt(low * high)
    return min(max(expected, low), high)


def largest_by_peaks(
    peaks: Mapping[int, int], line: MemoryLine | None, limit_bytes: int, beside_bytes: int, most: int
) -> int | None:
    """The largest batch within the limit, by the prediction as the trials' peaks mend it; without a prediction by a
    line through the peaks of the two largest batches. None where there is neither."""
    if line is None:
        *_, small, large = [0, 0, *sorted(peaks)]
        if not small or peaks[large] <= peaks[small]:
            return None
        slope = (peaks[large] - peaks[small]) / (large - small)
        return min(large + int((limit_bytes - peaks[large]) // slope), most)
    if not peaks:
        return line.largest_batch(limit_bytes - beside_bytes, most)
    near, *others = sorted(peaks, key=lambda size: abs(peaks[size] - limit_bytes))
    slope, at_near = 1.0, line.peak_bytes(near)
    far = [size for size in others if abs(peaks[size] - peaks[near]) > FAR * limit_bytes]
    if far and (apart := at_near - line.peak_bytes(far[0])):
        slope = (peaks[near] - peaks[far[0]]) / apart
    elif not LEAST_RATIO <= (ratio := (peaks[near] - beside_bytes) / max(at_near, 1)) <= MOST_RATIO:
        slope = ratio
    return line.largest_batch(at_near + round((limit_bytes - peaks[near]) / slope), most) if slope > 0 else None
