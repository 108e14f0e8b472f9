"""Runs of a fixed number of steps that begin with a full prefetch buffer: how far they overstate a loader's rate."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import psutil

from loaderbench.cases.arms import Arm
from loaderbench.cases.case import SHORT_RUN_STEPS
from loaderbench.loaders.base import Loader
from loaderbench.recording.facts import Segment
from loaderbench.recording.progress import Phase, Report
from loaderbench.running.loop import StepLoop
from loaderbench.running.window import Length, Windows, durations

SHORT_RUNS = 5
"""Short runs of a case: the first always, the others only while they fit into the case's seconds."""
IDLE_S, IDLE_CPU_FRACTION = 0.5, 0.05
"""A loader that read nothing for IDLE_S and used less than this fraction of a core has filled its buffer."""


def measure_short_runs(windows: Windows, segments: Sequence[Segment]) -> list[Segment]:
    """The short runs, as many as fit into the case's seconds. `segments`: what was measured before."""
    effort, buffer_batches = windows.rig.case.effort, windows.rig.buffer_batches
    real = [segment for segment in segments if segment.arm is Arm.REAL]
    step_s = float(np.mean(durations(real[-1]))) if real else 1.0
    most_s = 4 * buffer_batches * step_s + 10 * IDLE_S

    def fill_buffer(loop: StepLoop, loader: Loader | None) -> tuple[int, bool]:
        """Take one batch, then wait until the loader rests. Returns (1, whether it came to rest)."""
        loop.run(1, sys.maxsize)
        windows.rig.device.synchronize()
        return 1, _comes_to_rest(most_s, windows.report)

    deadline = time.perf_counter() + effort.duration_s
    short: list[Segment] = []
    for number in range(SHORT_RUNS):
        begun = time.perf_counter()
        length = Length(0.0, effort.steps or SHORT_RUN_STEPS)
        short.append(windows.measure(Arm.SHORT, number, length, warm_up=fill_buffer))
        ended = time.perf_counter()
        if windows.peers.lead(ended + (ended - begun) > deadline):
            break
    return short


def _comes_to_rest(most_s: float, report: Report) -> bool:
    """Wait until this process and its workers are idle; False where they still work after `most_s`."""
    limit = time.monotonic() + most_s
    before, seen = _work_done(), time.monotonic()
    looking = 2 * (_work_done()[1] - before[1])  # taking these figures reads bytes, too
    while time.monotonic() < limit:
        time.sleep(IDLE_S)
        now, at = _work_done(), time.monotonic()
        report(Phase("filling the prefetch buffer"))
        if now[0] - before[0] < IDLE_CPU_FRACTION * (at - seen) and now[1] - before[1] <= looking:
            return True
        before, seen = now, at
    return False


def _work_done() -> tuple[float, int]:
    """CPU seconds and bytes read by this process and its live children up to now."""
    cpu_s, read = 0.0, 0
    here = psutil.Process()
    for process in [here, *here.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            cpu_s += times.user + times.system
            read += process.io_counters().read_chars
    return cpu_s, read
