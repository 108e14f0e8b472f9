"""A run as a picture over time: Trace Event JSON, for ui.perfetto.dev and chrome://tracing.

Format: "Trace Event Format" of the Chromium project: `X` complete slices, `C` counters, `s`/`f` flow arrows, `M` names;
times in microseconds. All stamps of a run are on one clock (perf_counter_ns), so nothing is shifted here.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis import kernels
from loaderbench.cases.case import Case
from loaderbench.recording.types import (
    COPY,
    KERNEL,
    KERNEL_FIELDS,
    SPAN_FIELDS,
    STEP_FIELDS,
    Recording,
    Segment,
    Series,
)

STEP = {name: number for number, name in enumerate(STEP_FIELDS)}
SPAN = {name: number for number, name in enumerate(SPAN_FIELDS)}
ROW = {name: number for number, name in enumerate(KERNEL_FIELDS)}
STAGES = ("read", "decode", "augment", "collate")
LOOP, WORKERS, DEVICE, SAMPLES = 1, 2, 3, 4
"""Process numbers in the trace: one for each group of tracks."""
COPY_TRACK, COMPUTE_TRACK, GAP_TRACK, FIRST_STREAM_TRACK = 1, 2, 3, 4
MOST_STEPS = 2000
"""Steps of one window that are drawn; a loop over nothing makes 100,000 in a second."""
MOST_KERNELS = 50_000
"""Kernels and copies of a traced window that are drawn: 24 steps of 955 are 23,000."""
SHOWN_GAP_US = 1.0

Event = dict[str, Any]


def write_trace(path: Path, case: Case, recording: Recording, series: Sequence[Series]) -> int:
    """Write the run's trace, gzipped where the name ends in .gz. Returns the number of events; OSError."""
    begun_ns = min(int(segment.facts["opened_ns"]) for segment in recording.segments)
    events = list(_names(recording))
    for number, segment in enumerate(recording.segments):
        events += _segment(segment, number, begun_ns)
    for channel in series:
        events += _counter(channel, begun_ns)
    drawn = sum(min(len(segment.steps), MOST_STEPS) for segment in recording.segments)
    total = sum(len(segment.steps) for segment in recording.segments)
    trace = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "case": case.title,
            "clock": "perf_counter_ns, 0 is the start of the first window",
            "steps": f"{drawn} of {total} drawn: the first {MOST_STEPS} of each window",
            "stages": "a worker's stages are sums over the images of its batch, laid end to end",
        },
    }
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        json.dump(trace, file, separators=(",", ":"))
    return len(events)


def _names(recording: Recording) -> Iterator[Event]:
    groups = {LOOP: "main loop", WORKERS: "workers", DEVICE: recording.facts["device"]["name"], SAMPLES: "samples"}
    for process, name in groups.items():
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
    workers = {
        int(worker)
        for segment in recording.segments
        if segment.spans is not None
        for worker in np.unique(segment.spans[:, SPAN["worker"]])
    }
    streams = {
        int(stream)
        for segment in recording.segments
        if segment.kernels is not None
        for stream in np.unique(segment.kernels[:, ROW["stream"]])
    }
    tracks = [(LOOP, 1, "arms"), (LOOP, 2, "steps"), (DEVICE, COPY_TRACK, "copy"), (DEVICE, COMPUTE_TRACK, "compute")]
    if streams:
        tracks.append((DEVICE, GAP_TRACK, "gaps between kernels (traced steps)"))
    tracks += [(DEVICE, FIRST_STREAM_TRACK + stream, f"stream {stream} (traced steps)") for stream in sorted(streams)]
    tracks += [(WORKERS, worker + 2, f"worker {worker}" if worker >= 0 else "workers") for worker in sorted(workers)]
    for process, track, name in tracks:
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": {"name": name}}


class _Pen:
    """Draws on one track. Times in ns, on the clock of the stamps."""

    def __init__(self, events: list[Event], process: int, track: int, begun_ns: int) -> None:
        self._events, self._process, self._track, self._begun_ns = events, process, track, begun_ns

    def slice(self, name: str, begin_ns: int, end_ns: int, **facts: Any) -> None:
        if end_ns < begin_ns:
            return
        event = {"ph": "X", "name": name, "ts": self._us(begin_ns), "dur": (end_ns - begin_ns) / 1e3}
        self._events.append(event | {"pid": self._process, "tid": self._track, "args": facts})

    def arrow(self, kind: str, number: int, at_ns: int) -> None:
        """One end of an arrow: `s` where it starts, `f` where it ends; bound to the slice that lies there."""
        event = {"ph": kind, "name": "ended by", "cat": "gap", "id": number, "ts": self._us(at_ns), "bp": "e"}
        self._events.append(event | {"pid": self._process, "tid": self._track})

    def _us(self, at_ns: int) -> float:
        return (at_ns - self._begun_ns) / 1e3


def _segment(segment: Segment, number: int, begun_ns: int) -> list[Event]:
    events: list[Event] = []
    facts = segment.facts
    arms, loop = (_Pen(events, LOOP, track, begun_ns) for track in (1, 2))
    arms.slice(
        segment.arm, int(facts["opened_ns"]), int(facts["closed_ns"]), round=segment.round, steady=segment.steady
    )
    steps = segment.steps[:MOST_STEPS]
    for step, row in enumerate(steps.tolist()):
        called, returned, issued, waited = row[: STEP["waited_ns"] + 1]
        label = {"step": step, "warm_up": step < segment.num_warmup}
        loop.slice("wait for data", called, returned, **label)
        loop.slice("issue", returned, issued, **label)
        if segment.phases is not None:
            begun, forward, backward = segment.phases[step].tolist()
            loop.slice("copy", returned, begun)
            loop.slice("forward", begun, forward)
            if backward >= 0:
                loop.slice("backward", forward, backward)
                loop.slice("update", backward, issued)
        if waited > issued:
            loop.slice("wait for the device", issued, waited, **label)
    if len(steps) and steps[-1, STEP["done_ns"]] >= 0:
        _device(events, segment, steps, number, begun_ns)
    if segment.kernels is not None:
        _kernels(events, segment, segment.kernels, number, begun_ns)
    if segment.spans is not None:
        _workers(events, segment.spans[:MOST_STEPS], begun_ns)
    return events


def _device(events: list[Event], segment: Segment, steps: NDArray[np.int64], number: int, begun_ns: int) -> None:
    """Copies, computing, and the gaps between steps: data stall as measurement.md has it, the rest idle."""
    copies, compute = (_Pen(events, DEVICE, track, begun_ns) for track in (COPY_TRACK, COMPUTE_TRACK))
    done_before: int | None = None
    for step, row in enumerate(steps.tolist()):
        begin, end, done = row[STEP["copy_begin_ns"]], row[STEP["copy_end_ns"]], row[STEP["done_ns"]]
        called, returned = row[STEP["called_ns"]], row[STEP["returned_ns"]]
        if done_before is not None:
            stalled_from = max(called, done_before)
            if returned - stalled_from > SHOWN_GAP_US * 1e3:
                compute.slice("gap: data stall", stalled_from, returned, step=step, class_="data stall")
                _arrow_to_batch(events, compute, segment, step, stalled_from, number, begun_ns)
            idle_from = max(done_before, returned)
            if begin - idle_from > SHOWN_GAP_US * 1e3:
                compute.slice("gap: launch", idle_from, begin, step=step, class_="launch")
        copies.slice("copy", begin, end, step=step)
        busy = row[STEP["busy_ns"]]
        computed_from = end if done_before is None else max(end, done_before)
        compute.slice("compute", computed_from, done, step=step, busy_us=None if busy < 0 else busy / 1e3)
        done_before = done


def _kernels(events: list[Event], segment: Segment, table: NDArray[np.int64], number: int, begun_ns: int) -> None:
    """A traced window's kernels and copies, a track for each stream, and the gaps that they leave with their class."""
    names = {KERNEL: "kernel", COPY: "copy"}
    for row in table[:MOST_KERNELS].tolist():
        pen = _Pen(events, DEVICE, FIRST_STREAM_TRACK + row[ROW["stream"]], begun_ns)
        pen.slice(
            names.get(row[ROW["kind"]], "memset"), row[ROW["begin_ns"]], row[ROW["end_ns"]], step=row[ROW["step"]]
        )
    if kernels.missing(segment):  # gaps would be made of kernels that were lost; the record says why there are none
        return
    idle = kernels.gaps(kernels.union(table[:, :2]), *kernels.window_of(segment))
    found = zip(idle.tolist(), kernels.classify(idle, segment), kernels.steps_of(idle, segment), strict=True)
    pen = _Pen(events, DEVICE, GAP_TRACK, begun_ns)
    for (begin, end), kind, step in found:
        if end - begin > SHOWN_GAP_US * 1e3:
            name = kernels.CLASSES[kind]
            pen.slice(f"gap: {name}", begin, end, step=int(step))
            if name == "data_stall":
                _arrow_to_batch(events, pen, segment, int(step), begin, number, begun_ns)


def _arrow_to_batch(
    events: list[Event], compute: _Pen, segment: Segment, step: int, stalled_from: int, number: int, begun_ns: int
) -> None:
    """From the gap to the batch that ended it: delivered batches and their spans are in one order."""
    if segment.spans is None or step >= len(segment.spans):
        return
    span = segment.spans[step]
    ready = int(span[SPAN["ready_ns"]]) - 1
    if ready <= stalled_from:  # it was made already: what it waited for was its handover
        return
    worker = _Pen(events, WORKERS, int(span[SPAN["worker"]]) + 2, begun_ns)
    name = (number << 32) + len(events)  # an arrow's two ends share a name that no other has
    compute.arrow("s", name, stalled_from)
    worker.arrow("f", name, ready)


def _workers(events: list[Event], spans: NDArray[np.int64], begun_ns: int) -> None:
    for batch, span in enumerate(spans.tolist()):
        pen = _Pen(events, WORKERS, span[SPAN["worker"]] + 2, begun_ns)
        start, ready = span[SPAN["start_ns"]], span[SPAN["ready_ns"]]
        pen.slice(f"batch {batch}", start, ready, cpu_us=span[SPAN["cpu_ns"]] / 1e3)
        at = start
        for stage in STAGES:
            # Threads that share a batch spend more than its length: what lies beyond it is cut off.
            end = min(at + span[SPAN[f"{stage}_ns"]], ready)
            if end > at:
                pen.slice(stage, at, end, batch=batch, total_us=span[SPAN[f"{stage}_ns"]] / 1e3)
            at = end


def _counter(channel: Series, begun_ns: int) -> Iterator[Event]:
    """A gauge as it is, a counter as its growth a second."""
    times, values = channel.t_ns, channel.value
    name = f"{channel.name} [{channel.unit}]"
    if channel.kind == "counter":
        if len(times) < 2:
            return
        values = np.diff(values) / np.maximum(np.diff(times) / 1e9, 1e-9)
        times, name = times[:-1], f"{channel.name} [{channel.unit}/s]"
    for at, value in zip(times.tolist(), values.tolist(), strict=True):
        if np.isfinite(value):
            yield {
                "ph": "C", "name": name, "ts": (at - begun_ns) / 1e3, "pid": SAMPLES, "tid": 0,
                "args": {"value": value},
            }  # fmt: skip
