"""What the watch itself costs a script, from its own stamps and from what a stamp takes on this machine."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

from loaderbench.originals import time
from loaderbench.recording.facts import WatchCost
from loaderbench.watching.seen import Source
from loaderbench.watching.spans import Lane, SpanRing
from loaderbench.watching.watcher import Watcher

NUM_TIMED = 1000
"""Batches; fewer than one window's, so that none ends."""


class _Values:
    shape = (8, 3)


def cost_of(watcher: Watcher) -> WatchCost:
    """So far. What stored the run meanwhile adds its own."""
    lane_s, main, seen = lane_cost_s(), watcher.main, watcher.seen.values()
    in_line = sum(one.num_batches for one in seen if one.has_spans and not one.source.workers)
    stamps_s = sum(stamp_cost_s(timed=one.times_waits) * one.num_batches for one in seen) + lane_s * in_line
    stamp_s = stamp_cost_s(timed=main is not None and main.times_waits)
    return WatchCost(
        stamp_s, stamps_s, lane_s, watcher.windows_ns / 1e9, watcher.doses.total_ns / 1e9,
        0.0 if watcher.device is None else watcher.device.spent_ns / 1e9,
        sampling_cpu_s=0.0 if watcher.sampling is None else watcher.sampling.cpu_s,
        line_s=watcher.display_ns / 1e9 + watcher.judging_s,
    )  # fmt: skip


@lru_cache(maxsize=2)
def stamp_cost_s(*, timed: bool) -> float:
    """Processor time of a batch's stamps, in a loop that does nothing else: an iterator with them less one without.
    `timed`: of a loader that tells nothing, whose waits are timed, too."""
    watcher = Watcher("burst" if timed else "none")
    watcher.follows_device = False
    watcher.display, watcher.display_due_ns = (lambda _: None), sys.maxsize  # a step that does more than stamps
    watched = watcher.opened(Source("", "", None, 8, 0, 0, ""), time.perf_counter_ns(), None, (), None)
    assert watched is not None
    batches: Any = iter(lambda: {"inputs": _Values, "targets": _Values}, None)
    for _ in range(NUM_TIMED):
        next(batches)
    begun = time.thread_time()
    for _ in range(NUM_TIMED):
        next(batches)
    bare = time.thread_time() - begun
    begun = time.thread_time()
    for _ in range(NUM_TIMED):
        watched.step(next, batches)
    return max(0.0, time.thread_time() - begun - bare) / NUM_TIMED


@lru_cache(maxsize=1)
def lane_cost_s() -> float:
    """Processor time of the readings around one batch, in the process that makes it."""
    lane = Lane(SpanRing(1), 0)
    collate = lane.collating(lambda samples: samples)
    begun = time.thread_time()
    for _ in range(NUM_TIMED):
        lane.fetch(lambda: collate(()))
    return (time.thread_time() - begun) / NUM_TIMED
