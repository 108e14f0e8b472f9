"""A run, the ranks of a launch, or the turns of a split, over time as Trace Event JSON.

It is for ui.perfetto.dev and chrome://tracing. Format: "Trace Event Format" of the Chromium project: `X` complete
slices, `C` counters, `s`/`f` flow arrows, `M` names; times in microseconds. All stamps of a
run are on one clock (perf_counter_ns), so nothing is shifted here.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loaderbench.analysis import kernels
from loaderbench.analysis.ranks import bars_of, groups_of
from loaderbench.errors import ConfigError
from loaderbench.plain import Json, JsonObject
from loaderbench.recording.facts import COPY, KERNEL, ROW, SPAN, STEP, Recording, Run, Segment, Series, Table
from loaderbench.recording.model_split import SplitFacts
from loaderbench.recording.ranks import RanksFacts
from loaderbench.recording.record import GAP_CLASSES
from loaderbench.reporting.ranks import BAR_WORDS

STAGES = ("read", "decode", "augment", "collate")
LOOP, WORKERS, DEVICE, SAMPLES = 1, 2, 3, 4
"""Process numbers in the trace: one for each group of tracks."""
GROUPS = 4
"""Added to the group numbers for each further lane; the samples belong to the whole run."""
COPY_TRACK, COMPUTE_TRACK, GAP_TRACK, FIRST_STREAM_TRACK = 1, 2, 3, 4
MOST_STEPS = 2000
"""Most steps of one window that are drawn; an empty loop makes 100,000 in a second."""
MOST_KERNELS = 50_000
"""Most kernels and copies of a traced window that are drawn: 24 steps of 955 kernels are 23,000."""
SHOWN_GAP_US = 1.0

Event = JsonObject


@dataclass(frozen=True)
class Trace:
    """What a trace file holds."""

    events: list[Event]
    other: JsonObject
    """What its reader is told beside the events."""

    def to_bytes(self, *, zipped: bool) -> bytes:
        """The file, gzipped or as it is."""
        whole: JsonObject = {"traceEvents": [*self.events], "displayTimeUnit": "ms", "otherData": self.other}
        data = json.dumps(whole, separators=(",", ":")).encode()
        return gzip.compress(data) if zipped else data


def trace_of_run(run: Run) -> Trace:
    """Draw a run.

    Raises:
        ConfigError: the run measured nothing.
    """
    recording = run.recording
    if recording is None or not recording.segments:
        raise ConfigError(f"{run.run_id} has no measured steps to draw")
    begun_ns = min(segment.opened_ns for segment in recording.segments)
    lanes = list(dict.fromkeys(segment.lane for segment in recording.segments))
    events: list[Event] = []
    for place, lane in enumerate(lanes):
        sheet = _Sheet(events, place * GROUPS, begun_ns)
        numbered = [(n, segment) for n, segment in enumerate(recording.segments) if segment.lane == lane]
        events += _names(sheet, recording, [segment for _, segment in numbered], lane if len(lanes) > 1 else "")
        for number, segment in numbered:
            _draw_segment(sheet, segment, number)
    for channel in run.series:
        events += _counter(channel, begun_ns)
    drawn = sum(min(len(segment.steps), MOST_STEPS) for segment in recording.segments)
    total = sum(len(segment.steps) for segment in recording.segments)
    return Trace(
        events,
        {
            "case": run.case.title,
            "clock": "perf_counter_ns, 0 is the start of the first window",
            "steps": f"{drawn} of {total} drawn: the first {MOST_STEPS} of each window",
            "stages": "a worker's stages are sums over the images of its batch, drawn one after the other",
        },
    )


def trace_of_split(facts: SplitFacts) -> Trace:
    """Draw the turns of a split, a track for each member.

    Raises:
        ConfigError: no turn was run.
    """
    turns = facts.turns
    if turns is None:
        raise ConfigError("this split has no turns to draw")
    events = [_named("process_name", 1, 0, "turns"), _named("thread_name", 1, 0, "whole batch")]
    for number, member in enumerate(facts.members, 1):
        events.append(_named("thread_name", 1, number, f"{member.device} (member {number})"))
    pens = [Pen(events, 1, number, 0) for number in range(len(facts.members) + 1)]
    for turn, (start, parts) in enumerate(zip(turns.split_start_ns.tolist(), turns.split_ns.tolist(), strict=True)):
        pens[0].slice("split", start, max(end for _, end in parts), turn=turn)
        for number, (begin, end) in enumerate(parts):
            if begin >= 0:
                size = turns.sizes[number]
                pens[number + 1].slice(f"{size} images", begin, end, turn=turn, late_us=(begin - start) / 1e3)
    for turn, (start, (begin, end)) in enumerate(
        zip(turns.alone_start_ns.tolist(), turns.alone_ns.tolist(), strict=True)
    ):
        assert turns.alone is not None
        pens[0].slice("alone", start, end, turn=turn)
        pens[turns.alone + 1].slice(f"{facts.batch_size} images, alone", begin, end, turn=turn)
    clock = "CLOCK_MONOTONIC, 0 is the first start"
    return Trace(events, {"model": facts.model, "batch_size": facts.batch_size, "clock": clock})


def trace_of_ranks(facts: RanksFacts) -> Trace:
    """Draw all cases, a group of tracks each, on the clock of rank 0.

    Raises:
        ConfigError: no case was finished, or its ranks are a script's on several nodes.
    """
    events: list[Event] = []
    if any(case.watched and len({part.place.node for part in case.parts}) > 1 for case in facts.cases):
        raise ConfigError("the clocks of the nodes were not compared: `trace RUN` draws one rank's run")
    for process, case in enumerate(facts.cases, 1):
        drawn = [
            (joint, bars)
            for joint, group in groups_of(case)
            if (bars := bars_of(case.parts, group, joint=joint, most=MOST_STEPS))
        ]
        if not drawn:
            continue
        events.append(_named("process_name", process, 0, case.case.title))
        begun_ms = min(bar.begin_ms for _, bars in drawn for bar in bars)
        for part in case.parts:
            rank, node = part.place.rank, part.place.node
            events.append(_named("thread_name", process, rank, f"rank {rank} ({node})"))
        for joint, bars in drawn:
            for bar in bars:
                pen = Pen(events, process, bar.rank, round(begun_ms * 1e6))
                begin, end = round(bar.begin_ms * 1e6), round(bar.end_ms * 1e6)
                pen.slice(BAR_WORDS[bar.what], begin, end, step=bar.step, all_reduce=joint)
    if not events:
        raise ConfigError("no case of this launch was finished: there are no steps to draw")
    return Trace(events, {"ranks": facts.ranks, "clock": "rank 0's CLOCK_MONOTONIC, 0 is the first step drawn"})


def _named(what: str, process: int, track: int, name: str) -> Event:
    """What a process or a track is called."""
    return {"ph": "M", "name": what, "pid": process, "tid": track, "args": {"name": name}}


class _Sheet:
    """The tracks of one lane."""

    def __init__(self, events: list[Event], above: int, begun_ns: int) -> None:
        """`above`: added to the groups' process numbers."""
        self._events, self._above, self._begun_ns = events, above, begun_ns

    def process(self, group: int) -> int:
        return group + self._above

    def pen(self, group: int, track: int) -> Pen:
        return Pen(self._events, self.process(group), track, self._begun_ns)

    def new_name(self, number: int) -> int:
        """A name that no other arrow has; `number`: the segment's."""
        return (number << 32) + len(self._events)


class Pen:
    """Draws on one track. Times in ns, on the clock of the stamps."""

    def __init__(self, events: list[Event], process: int, track: int, begun_ns: int) -> None:
        self._events, self._process, self._track, self._begun_ns = events, process, track, begun_ns

    def slice(self, name: str, begin_ns: int, end_ns: int, **facts: Json) -> None:
        if end_ns < begin_ns:
            return
        event: Event = {"ph": "X", "name": name, "ts": self._us(begin_ns), "dur": (end_ns - begin_ns) / 1e3}
        self._events.append({**event, "pid": self._process, "tid": self._track, "args": facts})

    def arrow(self, kind: str, number: int, at_ns: int) -> None:
        """One end of an arrow: `s` where it starts, `f` where it ends; bound to the slice at that time."""
        event: Event = {"ph": kind, "name": "ended by", "cat": "gap", "id": number, "ts": self._us(at_ns), "bp": "e"}
        self._events.append({**event, "pid": self._process, "tid": self._track})

    def _us(self, at_ns: int) -> float:
        return (at_ns - self._begun_ns) / 1e3


# -- names -----------------------------------------------------------------------------------------------


def _names(sheet: _Sheet, recording: Recording, segments: Sequence[Segment], lane: str) -> Iterator[Event]:
    """`lane`: empty where the run has only one."""
    groups = {LOOP: "main loop", WORKERS: "workers", DEVICE: recording.facts.device.name}
    if sheet.process(SAMPLES) == SAMPLES:
        groups[SAMPLES] = "samples"
    for group, name in groups.items():
        place = sheet.process(group)
        yield _named("process_name", place, 0, f"{lane}: {name}" if lane and group != SAMPLES else name)
        yield {"ph": "M", "name": "process_sort_index", "pid": place, "tid": 0, "args": {"sort_index": place}}
    spans = [segment.spans for segment in segments if segment.spans is not None]
    workers = {int(worker) for table in spans for worker in np.unique(table[:, SPAN["worker"]])}
    traces = [segment.kernels for segment in segments if segment.kernels is not None]
    streams = {int(stream) for table in traces for stream in np.unique(table[:, ROW["stream"]])}
    tracks = [(LOOP, 1, "arms"), (LOOP, 2, "steps"), (DEVICE, COPY_TRACK, "copy"), (DEVICE, COMPUTE_TRACK, "compute")]
    if streams:
        tracks.append((DEVICE, GAP_TRACK, "gaps between kernels (traced steps)"))
    tracks += [(DEVICE, FIRST_STREAM_TRACK + stream, f"stream {stream} (traced steps)") for stream in sorted(streams)]
    tracks += [(WORKERS, worker + 2, f"worker {worker}" if worker >= 0 else "workers") for worker in sorted(workers)]
    for group, track, name in tracks:
        yield _named("thread_name", sheet.process(group), track, name)


# -- windows ---------------------------------------------------------------------------------------------


def _draw_segment(sheet: _Sheet, segment: Segment, number: int) -> None:
    arms, loop = sheet.pen(LOOP, 1), sheet.pen(LOOP, 2)
    arms.slice(segment.arm.value, segment.opened_ns, segment.closed_ns, round=segment.round, steady=segment.steady)
    steps = segment.steps[:MOST_STEPS]
    for step, row in enumerate(steps.tolist()):
        called, returned, issued, waited = row[: STEP["waited_ns"] + 1]
        label: dict[str, Json] = {"step": step, "warm_up": step < segment.num_warmup}
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
        _draw_device(sheet, segment, steps, number)
    if segment.kernels is not None:
        _draw_kernels(sheet, segment, segment.kernels, number)
    if segment.spans is not None:
        _draw_workers(sheet, segment.spans[:MOST_STEPS])


def _draw_device(sheet: _Sheet, segment: Segment, steps: NDArray[np.int64], number: int) -> None:
    """Copies, computing, and the gaps between steps: data stall as defined in docs/method.md, the rest idle."""
    copies, compute = sheet.pen(DEVICE, COPY_TRACK), sheet.pen(DEVICE, COMPUTE_TRACK)
    done_before: int | None = None
    for step, row in enumerate(steps.tolist()):
        begin, end, done = row[STEP["copy_begin_ns"]], row[STEP["copy_end_ns"]], row[STEP["done_ns"]]
        called, returned = row[STEP["called_ns"]], row[STEP["returned_ns"]]
        if done_before is not None:
            stalled_from = max(called, done_before)
            if returned - stalled_from > SHOWN_GAP_US * 1e3:
                compute.slice("gap: data stall", stalled_from, returned, step=step, class_="data stall")
                _draw_arrow(sheet, compute, segment, step, stalled_from, number)
            idle_from = max(done_before, returned)
            if begin - idle_from > SHOWN_GAP_US * 1e3:
                compute.slice("gap: launch", idle_from, begin, step=step, class_="launch")
        copies.slice("copy", begin, end, step=step)
        busy = row[STEP["busy_ns"]]
        computed_from = end if done_before is None else max(end, done_before)
        compute.slice("compute", computed_from, done, step=step, busy_us=None if busy < 0 else busy / 1e3)
        done_before = done


def _draw_kernels(sheet: _Sheet, segment: Segment, table: Table, number: int) -> None:
    """A traced window's kernels and copies, a track for each stream, and the gaps between them with their class."""
    names = {KERNEL: "kernel", COPY: "copy"}
    for row in table[:MOST_KERNELS].tolist():
        name = names.get(row[ROW["kind"]], "memset")
        pen = sheet.pen(DEVICE, FIRST_STREAM_TRACK + row[ROW["stream"]])
        pen.slice(name, row[ROW["begin_ns"]], row[ROW["end_ns"]], step=row[ROW["step"]])
    segment = kernels.traced_part(segment)
    if kernels.missing(segment):  # lost kernels would look like gaps; the record says why no gaps are given
        return
    idle = kernels.gaps(kernels.union(table[:, :2]), *kernels.window_of(segment))
    gaps = zip(idle.tolist(), kernels.classify(idle, segment), kernels.steps_of(idle, segment), strict=True)
    pen = sheet.pen(DEVICE, GAP_TRACK)
    for (begin, end), kind, step in gaps:
        if end - begin > SHOWN_GAP_US * 1e3:
            name = GAP_CLASSES[kind]
            pen.slice(f"gap: {name}", begin, end, step=int(step))
            if name == "data_stall":
                _draw_arrow(sheet, pen, segment, int(step), begin, number)


def _draw_arrow(sheet: _Sheet, gaps: Pen, segment: Segment, step: int, stalled_from: int, number: int) -> None:
    """From the gap to the batch that ended it: delivered batches and their spans are in the same order."""
    if segment.spans is None or step >= len(segment.spans):
        return
    span = segment.spans[step]
    ready = int(span[SPAN["ready_ns"]]) - 1
    if ready <= stalled_from:  # the batch was complete already: the stall was its hand-over
        return
    name = sheet.new_name(number)
    gaps.arrow("s", name, stalled_from)
    sheet.pen(WORKERS, int(span[SPAN["worker"]]) + 2).arrow("f", name, ready)


def _draw_workers(sheet: _Sheet, spans: Table) -> None:
    for batch, span in enumerate(spans.tolist()):
        pen = sheet.pen(WORKERS, span[SPAN["worker"]] + 2)
        start, ready = span[SPAN["start_ns"]], span[SPAN["ready_ns"]]
        pen.slice(f"batch {batch}", start, ready, cpu_us=span[SPAN["cpu_ns"]] / 1e3)
        at = start
        for stage in STAGES:
            # Threads that share a batch together spend more than its duration: the excess is cut off.
            end = min(at + span[SPAN[f"{stage}_ns"]], ready)
            if end > at:
                pen.slice(stage, at, end, batch=batch, total_us=span[SPAN[f"{stage}_ns"]] / 1e3)
            at = end


# -- samples ---------------------------------------------------------------------------------------------


def _counter(channel: Series, begun_ns: int) -> Iterator[Event]:
    """A gauge unchanged, a counter as its growth a second."""
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
