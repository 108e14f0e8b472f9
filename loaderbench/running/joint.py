"""Windows whose every step ends with an all-reduce of all ranks: who arrives last, as in data-parallel training.

All ranks run the same number of steps. They agree on whether to go on between parts of a window, where all have just
met anyway.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from loaderbench.cases.arms import Arm
from loaderbench.devices.collective import Collective
from loaderbench.recording.facts import Segment
from loaderbench.recording.progress import Phase
from loaderbench.running.deadline import Deadline
from loaderbench.running.peers import Peers
from loaderbench.running.window import Windows

NUM_WINDOWS = 3
PART_OF_TIME = 0.3
"""Of the measuring time, for all of them."""
MIN_WINDOW_S, MAX_WINDOW_S = 0.5, 6.0
WARMUP_PART = 0.5
"""Of a window's length, the longest warm-up beyond its first part."""
LEAST_STEPS = 8
"""Of a window, and of a part between two agreements; a whole number of rounds of the workers."""


def joint_seconds(duration_s: float) -> float:
    """Of the measuring time, what these windows take."""
    return NUM_WINDOWS * float(np.clip(PART_OF_TIME * duration_s / NUM_WINDOWS, MIN_WINDOW_S, MAX_WINDOW_S))


def measure_joint(windows: Windows, peers: Peers, collective: Collective, deadline: Deadline) -> list[Segment]:
    """Windows of `real` with `collective` behind each step: as many as there is time for, one at least."""
    effort, made = windows.rig.case.effort, list[Segment]()
    windows.report(Phase("running all ranks together"))
    seconds = joint_seconds(effort.duration_s) / NUM_WINDOWS
    limited = effort.steps is None or effort.is_limited
    for number in range(NUM_WINDOWS):
        begun = time.perf_counter()
        made.append(_window(windows, peers, collective, number, seconds))
        if peers.lead(limited and time.perf_counter() - begun > deadline.left_s()):
            break
    return made


def _window(windows: Windows, peers: Peers, collective: Collective, number: int, seconds: float) -> Segment:
    rig, feeds = windows.rig, windows.feeds
    feed, effort = rig.case.feed, rig.case.effort
    loader = feeds.loader(Arm.REAL)
    if feeds.reads_files:
        windows.before_segment(Arm.REAL)
    feeds.rest(None)
    rig.device.anchor()
    peers.meet()
    opened = time.perf_counter_ns()
    stream = feeds.stream(Arm.REAL)
    loop = windows.new_loop(Arm.REAL, stream)
    loop.collective = collective
    part = -(-LEAST_STEPS // feed.lanes) * feed.lanes
    warm_up = 2 * rig.buffer_batches + feed.lanes + 1 if effort.warmup is None else max(1, effort.warmup)
    with windows.evicting(Arm.REAL, loop, loader):
        warm_ns = time.perf_counter_ns() + round(WARMUP_PART * seconds * 1e9)
        while len(loop.host) < warm_up:
            loop.run(min(part, warm_up - len(loop.host)), sys.maxsize)
            if effort.warmup is None and peers.lead(time.perf_counter_ns() >= warm_ns):
                warm_up = len(loop.host)
        until_ns = time.perf_counter_ns() + round(seconds * 1e9)
        while True:
            loop.run(part, sys.maxsize)
            done = len(loop.host) - warm_up
            enough = time.perf_counter_ns() >= until_ns if effort.steps is None else done * NUM_WINDOWS >= effort.steps
            if peers.lead(enough):
                break
        rig.device.synchronize()
        drained = feeds.end(Arm.REAL, stream)
    closed = time.perf_counter_ns()
    return windows.segment_of(loop, Arm.REAL, number, warm_up, False, opened, closed, drained)
