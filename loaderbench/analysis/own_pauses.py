"""Standstills of the run itself: a quota, a hypervisor or a signal stops its processes, and no file is read meanwhile.

Its reads then look as over a storage that stands still. What tells them apart: arms without a storage stand still as
often, or the kernel counted that a quota stopped the run (docs/method.md, `Tails and stalls`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import PAUSE, SPAN, STEP, Segment, Table

AS_OFTEN = 0.5
"""Part of the pauses (and of the time in them, where threads wait for a processor) that must be the run's own to call
them that: what came in other windows is chance, too."""
LEAST_SEEN = 2
"""Standstills of arms without a storage that tell: one may be a chance hiccup."""
AS_LONG = 0.5
"""They are at least so long, by the length of the pauses."""
CLEARLY_LONG = 2.0
"""And so many times as long as nine in ten gaps between what is seen of such an arm, whose steps may be long."""
MOST_WITHHELD_S = 0.3
"""A quota stops a run until its next period begins, 0.1 s as a rule; readers may have to wait for a few of them."""


def are_of_the_run(pauses: Table, seconds: float, segments: Sequence[Segment]) -> bool:
    """Whether the pauses (rows of PAUSE_FIELDS) that the reads of `seconds` met are standstills of the run itself.

    Args:
        segments: the windows of all arms.
    """
    if not len(pauses):
        return False
    length_s = (pauses[:, PAUSE["end_ns"]] - pauses[:, PAUSE["begin_ns"]]) / 1e9
    if _stood_without_storage(segments, float(np.percentile(length_s, 75)), len(pauses) / seconds):
        return True
    return _were_withheld(segments, length_s, pauses[:, PAUSE["waiting"]], seconds)


def _stood_without_storage(segments: Sequence[Segment], length_s: float, a_second: float) -> bool:
    """Whether arms that touch no storage stood still for as long about as often."""
    least_s, seen, seconds = AS_LONG * length_s, 0, 0.0
    for segment in segments:
        gaps_s = np.zeros(0) if segment.arm.touches_storage else _gaps_s(segment)
        if len(gaps_s) and CLEARLY_LONG * np.percentile(gaps_s, 90) <= least_s:  # else it cannot tell
            seen += int((gaps_s >= least_s).sum())
            seconds += float(gaps_s.sum())
    return seen >= LEAST_SEEN and seen / seconds >= AS_OFTEN * a_second


def _gaps_s(segment: Segment) -> NDArray[np.float64]:
    """Times in which nothing was seen of an arm: no step went on, no worker began or ended a batch."""
    steps = segment.steps
    if not len(steps):
        return np.zeros(0)
    begin, end = int(steps[0, STEP["called_ns"]]), int(steps[-1, STEP["returned_ns"]])
    seen = [steps[:, STEP[name]] for name in ("called_ns", "returned_ns", "issued_ns", "done_ns")]
    if segment.spans is not None:
        seen += [segment.spans[:, SPAN[name]] for name in ("start_ns", "ready_ns")]
    at = np.unique(np.concatenate(seen))
    return np.asarray(np.diff(at[(at >= begin) & (at <= end)]) / 1e9)


def _were_withheld(
    segments: Sequence[Segment], length_s: NDArray[np.float64], waiting: NDArray[np.int64], seconds: float
) -> bool:
    """Whether a quota stopped `real` about as often, and its threads waited for a processor then: those that wait for
    a storage sleep, so that a quota beside a storage that stands still does not seem to be the reason."""
    windows = [one.cpu for one in segments if one.arm is Arm.REAL and one.cpu is not None]
    told = [one for one in windows if one.num_throttled is not None]
    wall_s = sum(one.wall_s for one in told)
    if not wall_s > 0 or np.percentile(length_s, 75) > MOST_WITHHELD_S:
        return False
    if sum(one.num_throttled or 0 for one in told) / wall_s < AS_OFTEN * len(length_s) / seconds:
        return False
    queued = [one.own_queued_s for one in told if one.own_queued_s is not None]
    if len(queued) < len(told):  # this kernel does not count it: their number and length tell
        return True
    return sum(queued) / wall_s >= AS_OFTEN * float((length_s * waiting).sum()) / seconds
