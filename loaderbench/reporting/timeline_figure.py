"""A few steps of one run over time: what the loop and the device did, and what the storage gave."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import STEP, Run, Segment, Series
from loaderbench.reporting.drawing import Drawing
from loaderbench.reporting.figures import Figure, legend, spans, steps_of

STRIP_S = 1.5
"""Most seconds of a run that its timeline strip shows; further steps could not be told apart."""
STRIP_STEPS = 24
HEIGHTS = (1.6, 1.0)
"""Of the lanes and the storage, relative to each other."""
COPY_LANE, LOOP_LANE, DEVICE_LANE, STORAGE_LANE = "copy", "main loop", "device", "storage"
LANES = (LOOP_LANE, COPY_LANE, DEVICE_LANE)
LOOKS = {
    "wait for data": "prep",
    "issue": "launch",
    "wait for device": "rest",
    "copy": "transfer",
    "compute": "compute",
    "stall": "contention",
}
"""Activity → the cause whose colour it gets."""


class _Stamp(NamedTuple):
    """Something that took time, on the clock of the stamps."""

    lane: str
    what: str
    step: int | None
    begin_ns: int
    end_ns: int
    read_bytes_per_s: float | None = None
    """Of the storage."""


def timeline_figure(run: Run, title: str) -> Figure | None:
    """A few steps of the run's last window of `real`; None where none is long enough."""
    segments = [] if run.recording is None else run.recording.of(Arm.REAL)
    long_enough = [segment for segment in segments if len(segment.steps) > segment.num_warmup + 2]
    stamps = _strip(long_enough[-1]) if long_enough else []
    if not stamps:
        return None
    begun_ns = min(stamp.begin_ns for stamp in stamps)
    end_ns = max(stamp.end_ns for stamp in stamps)
    # A disk of this machine is everybody's: what the run's own processes read is known there.
    local = run.recording is not None and run.recording.facts.storage.kind == "local"
    flow = _storage_flow(run.series, "process_read_bytes" if local else "storage_read_bytes", begun_ns, end_ns)
    flow = flow if any(growth.read_bytes_per_s for growth in flow) else []  # files in memory: nothing to draw
    data = [
        {
            "lane": one.lane,
            "what": one.what,
            "step": one.step,
            "begin_ms": (one.begin_ns - begun_ns) / 1e6,
            "end_ms": (one.end_ns - begun_ns) / 1e6,
            "read_bytes_per_s": one.read_bytes_per_s,
        }
        for one in [*stamps, *flow]
    ]
    return Figure(
        "timeline",
        "A few steps of one run, over time",
        f"{title}. Stall: the device is idle while the loop waits for data. Compute: a step on the device, with its "
        f"gaps.{' Below: what the storage gave.' if flow else ''}",
        data,
        3.1,
        partial(_draw, stamps=stamps, flow=flow, begun_ns=begun_ns, length_ms=(end_ns - begun_ns) / 1e6),
        3.4,
    )


def _draw(drawing: Drawing, stamps: Sequence[_Stamp], flow: Sequence[_Stamp], begun_ns: int, length_ms: float) -> None:
    axes, *below = drawing.axes(1 + bool(flow), heights=HEIGHTS if flow else ())
    lanes = [lane for lane in LANES if any(one.lane == lane for one in stamps)]

    def ms(at_ns: int) -> float:
        return (at_ns - begun_ns) / 1e6

    spans(axes, lanes, ((lanes.index(one.lane), LOOKS[one.what], ms(one.begin_ns), ms(one.end_ns)) for one in stamps))
    for one in (axes, *below):
        one.x.low, one.x.high = 0, length_ms
    axes.x.is_named = not below
    shown = [what for what in LOOKS if any(one.what == what for one in stamps)]
    legend(drawing, [LOOKS[what] for what in shown], shown)
    for storage in below:
        times = [ms(flow[0].begin_ns), *(ms(one.end_ns) for one in flow)]
        rates = [(one.read_bytes_per_s or 0.0) / 1e6 for one in flow]
        storage.area([(times[0], 0), *steps_of(times, [*rates, rates[-1]]), (times[-1], 0)], "storage")
        storage.y.low, storage.y.label = 0, "storage\nMB/s"
    (below[0] if below else axes).x.label = "ms"


def _strip(segment: Segment) -> list[_Stamp]:
    """The window's first steps after its warm-up."""
    steps = segment.steps[segment.num_warmup : segment.num_warmup + STRIP_STEPS]
    steps = steps[steps[:, STEP["called_ns"]] - steps[0, STEP["called_ns"]] < STRIP_S * 1e9]
    stamps: list[_Stamp] = []
    done_before: int | None = None
    for step, row in enumerate(steps.tolist()):
        called, returned, issued, waited, begin, end, done = row[: STEP["done_ns"] + 1]
        stamps += [
            _Stamp(LOOP_LANE, "wait for data", step, called, returned),
            _Stamp(LOOP_LANE, "issue", step, returned, issued),
            _Stamp(LOOP_LANE, "wait for device", step, issued, waited),
        ]
        if done < 0:  # an arm without a device
            continue
        stamps.append(_Stamp(COPY_LANE, "copy", step, begin, end))
        if done_before is not None:
            stamps.append(_Stamp(DEVICE_LANE, "stall", step, max(called, done_before), returned))
        computed_from = end if done_before is None else max(end, done_before)
        stamps.append(_Stamp(DEVICE_LANE, "compute", step, computed_from, done))
        done_before = done
    return [stamp for stamp in stamps if stamp.end_ns > stamp.begin_ns]


def _storage_flow(series: Sequence[Series], counter: str, begun_ns: int, end_ns: int) -> list[_Stamp]:
    """Growth between those samples of the counter that overlap the strip."""
    channel = next((channel for channel in series if channel.name == counter), None)
    if channel is None:
        return []
    known = np.isfinite(channel.value)
    times, values = channel.t_ns[known], channel.value[known]
    flow = []
    for before, after, grown in zip(times[:-1].tolist(), times[1:].tolist(), np.diff(values).tolist(), strict=True):
        if after > begun_ns and before < end_ns and after > before:
            flow.append(_Stamp(STORAGE_LANE, "read", None, before, after, grown / ((after - before) / 1e9)))
    return flow
