"""A run as a trace: a case made by hand, span by span, and real runs held to the Trace Event Format."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import commands
import example_records as examples
import numpy as np
import pytest
from commands import TINY

from loaderbench.cases.arms import Arm
from loaderbench.errors import ConfigError
from loaderbench.recording.facts import (
    COPY,
    KERNEL,
    SPAN_FIELDS,
    STEP_FIELDS,
    Recording,
    Run,
    Segment,
    Series,
    TraceFacts,
)
from loaderbench.reporting.perfetto import (
    COMPUTE_TRACK,
    COPY_TRACK,
    DEVICE,
    FIRST_STREAM_TRACK,
    GAP_TRACK,
    LOOP,
    SAMPLES,
    WORKERS,
    trace_of_run,
)
from tests.thinned import thinned

MS = 1_000_000


def run_of(recording: Recording | None, series: list[Series] | None = None) -> Run:
    case = examples.case(workers=1, batch_size=8)
    return Run("a-run", case, "ok", "2025-01-02", 1.0, None, recording, series or [])


def row(fields: tuple[str, ...], **values: int) -> list[int]:
    return [values.get(name, 0) for name in fields]


def two_steps() -> Recording:
    """The second step's batch comes 6 ms after the device is done with the first."""
    at = 1_000 * MS
    first = row(
        STEP_FIELDS, called_ns=at, returned_ns=at + MS, issued_ns=at + 3 * MS, waited_ns=at + 3 * MS,
        copy_begin_ns=at + MS, copy_end_ns=at + 2 * MS, done_ns=at + 10 * MS, busy_ns=7 * MS, num_samples=8,
    )  # fmt: skip
    second = row(
        STEP_FIELDS, called_ns=at + 3 * MS, returned_ns=at + 16 * MS, issued_ns=at + 18 * MS, waited_ns=at + 20 * MS,
        copy_begin_ns=at + 17 * MS, copy_end_ns=at + 18 * MS, done_ns=at + 26 * MS, busy_ns=-1, num_samples=8,
    )  # fmt: skip
    spans = [
        row(SPAN_FIELDS, start_ns=at - 9 * MS, ready_ns=at, read_ns=2 * MS, decode_ns=5 * MS, augment_ns=MS),
        row(SPAN_FIELDS, start_ns=at, ready_ns=at + 15 * MS, read_ns=4 * MS, decode_ns=9 * MS, collate_ns=4 * MS),
    ]
    half = MS // 2
    trained, inferred = [at + 3 * half, at + 4 * half, at + 5 * half], [at + 33 * half, at + 36 * half, -1]
    segment = Segment(
        Arm.REAL, 0, 0, True, np.array([first, second]), np.array(spans), opened_ns=at, closed_ns=at + 30 * MS,
        phases=np.array([trained, inferred]),
    )  # fmt: skip
    return Recording([segment], examples.FACTS)


def read(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        found: dict[str, Any] = json.load(file)
    return found


def drawn(run: Run) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(trace_of_run(run).to_bytes(zipped=False))
    return trace


def slices(trace: dict[str, Any], process: int, track: int) -> list[tuple[str, float, float]]:
    """(name, begin, end) in ms, in order of time, longer ones first."""
    found = [
        (one["name"], one["ts"] / 1e3, (one["ts"] + one["dur"]) / 1e3)
        for one in trace["traceEvents"]
        if one["ph"] == "X" and (one["pid"], one["tid"]) == (process, track)
    ]
    return sorted(found, key=lambda one: (one[1], -one[2]))


def test_each_slice_lies_where_it_was_measured(tmp_path: Path) -> None:
    bytes_read = Series(
        "storage_read_bytes", "bytes", "counter", "test", np.array([1_000 * MS, 1_010 * MS]), np.array([0.0, 5e6])
    )
    trace = drawn(run_of(two_steps(), [bytes_read]))

    assert slices(trace, LOOP, 2) == [
        ("wait for data", 0, 1), ("issue", 1, 3), ("copy", 1, 1.5), ("forward", 1.5, 2), ("backward", 2, 2.5),
        ("update", 2.5, 3),
        ("wait for data", 3, 16), ("issue", 16, 18), ("copy", 16, 16.5), ("forward", 16.5, 18),
        ("wait for the device", 18, 20),
    ]  # fmt: skip
    assert slices(trace, DEVICE, COPY_TRACK) == [("copy", 1, 2), ("copy", 17, 18)]
    assert slices(trace, DEVICE, COMPUTE_TRACK) == [
        ("compute", 2, 10), ("gap: data stall", 10, 16), ("gap: launch", 16, 17), ("compute", 18, 26),
    ]  # fmt: skip
    assert slices(trace, WORKERS, 2) == [
        ("batch 0", -9, 0), ("read", -9, -7), ("decode", -7, -2), ("augment", -2, -1),
        ("batch 1", 0, 15), ("read", 0, 4), ("decode", 4, 13), ("collate", 13, 15),
    ]  # fmt: skip
    # an arrow from the stall to the batch that ended it
    start, finish = (one for one in trace["traceEvents"] if one["ph"] in "sf")
    assert (start["pid"], start["ts"]) == (DEVICE, 10_000) and start["id"] == finish["id"]
    assert finish["pid"] == WORKERS and 0 < finish["ts"] < 15_000
    # 5 MB in 10 ms
    (counter,) = (one for one in trace["traceEvents"] if one["ph"] == "C")
    assert (counter["pid"], counter["args"]["value"]) == (SAMPLES, 500e6)


def check_format(trace: dict[str, Any]) -> None:
    """What the format asks of each kind of event; and slices of a track lie side by side or nested, for the viewer."""
    tracks = defaultdict(list)
    for event in trace["traceEvents"]:
        assert {"ph", "pid", "tid"} <= set(event)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name")
            continue
        assert isinstance(event["ts"], float | int) and np.isfinite(event["ts"])
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            assert all(np.isfinite(value) for value in event["args"].values())
        else:
            assert event["ph"] in "sf" and "id" in event
    for spans in tracks.values():
        open_until: list[float] = []
        for begin, end in sorted(spans, key=lambda one: (one[0], -one[1])):
            while open_until and open_until[-1] <= begin + 1e-3:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-3
            open_until.append(end)


@pytest.mark.parametrize(
    "loader",
    thinned(["multiprocess", "serial", "threaded", "synthetic"], 4),
)
def test_a_real_run_makes_a_valid_trace(loader: str, small_set: Path, tmp_path: Path) -> None:
    ended = commands.run("run", small_set, "--res", "96", *TINY, "--loader", loader, "--results", tmp_path)
    assert (ended.code, ended.err) == (0, "")
    out = tmp_path / "run.perfetto.json.gz"
    ended = commands.run("trace", "latest", "--results", tmp_path, "--out", out)
    assert ended.code == 0 and str(out) in ended.out
    trace = read(out)
    check_format(trace)
    assert {one["name"] for one in trace["traceEvents"] if one["ph"] == "X"} >= {"wait for data", "compute", "real"}
    if loader != "synthetic":
        assert {"read", "decode", "augment"} <= {one["name"] for one in trace["traceEvents"]}


def test_a_run_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    ended = commands.run("trace", "latest", "--results", tmp_path)
    assert ended.code == 2 and len(ended.lines) == 1


def test_a_traced_windows_kernels_and_gaps_lie_on_tracks_of_their_own(tmp_path: Path) -> None:
    recording = two_steps()
    (segment,) = recording.segments
    at = 1_000 * MS
    # given a kernel of the first step and, after its batch came late, a copy and a kernel of the second
    segment.arm, segment.num_warmup = Arm.TRACED, 1
    segment.trace = TraceFacts("made by hand", drift_ns=0, uncertainty_ns=0, graph_launches=0, witnesses=())
    segment.kernels = np.array(
        [[at + 2 * MS, at + 10 * MS, 7, KERNEL, 0], [at + 17 * MS, at + 18 * MS, 9, COPY, 1],
         [at + 18 * MS, at + 26 * MS, 7, KERNEL, 1]]
    )  # fmt: skip
    trace = drawn(run_of(recording))

    assert slices(trace, DEVICE, FIRST_STREAM_TRACK + 7) == [("kernel", 2, 10), ("kernel", 18, 26)]
    assert slices(trace, DEVICE, FIRST_STREAM_TRACK + 9) == [("copy", 17, 18)]
    assert slices(trace, DEVICE, GAP_TRACK) == [("gap: data_stall", 10, 17)]
    assert len([one for one in trace["traceEvents"] if one["ph"] == "s" and one["tid"] == GAP_TRACK]) == 1
    names = {one["args"]["name"] for one in trace["traceEvents"] if one["name"] == "thread_name"}
    assert {"stream 7 (traced steps)", "stream 9 (traced steps)", "gaps between kernels (traced steps)"} <= names
    check_format(trace)


def test_each_lane_has_tracks_of_its_own(tmp_path: Path) -> None:
    (first,) = two_steps().segments
    first.lane = "cuda:0"
    second = replace(first, lane="cuda:1")
    gauge = Series("gpu_power_w", "W", "gauge", "test", np.array([1_000 * MS]), np.array([300.0]))
    trace = drawn(run_of(Recording([first, second], examples.FACTS), [gauge]))
    check_format(trace)
    groups = {one["pid"]: one["args"]["name"] for one in trace["traceEvents"] if one["name"] == "process_name"}
    assert groups[LOOP] == "cuda:0: main loop" and groups[DEVICE] == "cuda:0: a device"
    assert groups[SAMPLES] == "samples" and len(groups) == 7
    (other_loop,) = (pid for pid, name in groups.items() if name == "cuda:1: main loop")
    assert slices(trace, other_loop, 2) == slices(trace, LOOP, 2) != []
    arrows = [one["id"] for one in trace["traceEvents"] if one["ph"] == "s"]
    assert len(set(arrows)) == len(arrows) == 2


@pytest.mark.parametrize("recording", [None, Recording([], examples.FACTS)])
def test_a_run_that_measured_nothing_is_not_drawn(tmp_path: Path, recording: Recording | None) -> None:
    with pytest.raises(ConfigError, match="a-run has no measured steps"):
        trace_of_run(run_of(recording))
