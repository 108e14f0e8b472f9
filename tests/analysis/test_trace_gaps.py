"""Busy time, gaps and kernels a step of a small trace, worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from loaderbench.analysis.kernels import HISTOGRAM_EDGES_S
from loaderbench.analysis.trace_gaps import KernelsPerStep, device_of, summarize
from loaderbench.commands.app import app
from loaderbench.errors import ConfigError
from loaderbench.recording.kineto import read_kineto


def event(category: str, name: str, begin_us: float, end_us: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "ts": begin_us, "dur": end_us - begin_us, "args": args}


def run(name: str, begin_us: float, end_us: float, correlation: int, category: str = "kernel", **args: Any) -> Any:
    where = {"device": 0, "stream": 7} | args
    return event(category, name, begin_us, end_us, correlation=correlation, **where)


def launch(at_us: float, correlation: int) -> dict[str, Any]:
    return event("cuda_runtime", "cudaLaunchKernel", at_us, at_us + 1, correlation=correlation)


EVENTS = [
    event("user_annotation", "ProfilerStep#10", 0, 100),
    event("user_annotation", "ProfilerStep#11", 100, 200),
    event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100, 160),
    launch(10, 1), launch(20, 2), launch(30, 3), launch(110, 4), launch(170, 5), launch(250, 6),
    run("copy", 100, 120, 1, "gpu_memcpy", stream=13),
    run("a", 110, 130, 2),  # busy 100 – 130: the copy and the kernel overlap
    run("b", 140, 150, 3),  # gap 130 – 140, launched in step 10
    run("c", 150, 155, 4),  # touches b
    run("inside", 151, 152, 4, stream=9),
    run("nothing", 157, 157, 4),
    run("d", 180, 200, 5),  # gap 155 – 180, in step 11; the host waits for data in 155 – 160
    run("e", 201, 202, 6),  # gap 200 – 201, launched behind the last step
]  # fmt: skip


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": EVENTS}))
    return path


def test_it_is_what_the_hand_says(trace_file: Path) -> None:
    trace = read_kineto(trace_file)
    found = summarize(trace, device_of(trace, None))
    assert found.window_s == pytest.approx(102e-6)
    assert found.idle_s == pytest.approx((10 + 25 + 1) * 1e-6)
    assert found.busy_fraction == pytest.approx(66 / 102)
    assert found.idle_in_data_wait_s == pytest.approx((10 + 5) * 1e-6)  # all of 130 – 140, 155 – 160
    assert (found.num_activities, found.num_streams) == (7, 3)
    gaps = found.gaps
    assert (gaps.count, gaps.p50_s) == (3, pytest.approx(10e-6))
    assert [(one.before, one.after, one.step) for one in gaps.largest] == [
        ("c", "d", 11), ("a", "b", 10), ("d", "e", None),
    ]  # fmt: skip
    assert [one.duration_s for one in gaps.largest] == pytest.approx([25e-6, 10e-6, 1e-6])
    assert gaps.largest[0].begin_s == pytest.approx(55e-6)
    assert sum(gaps.histogram.counts) == 3
    assert len(gaps.histogram.counts) == len(HISTOGRAM_EDGES_S) + 1
    # step 10: a, b; step 11: c, inside, d ("nothing" took no time); e was launched behind them
    assert found.kernels_per_step == KernelsPerStep(
        num_steps=2, median=2.5, least=2, most=3, steady=True, num_outside=1
    )
    assert found.caveats == ()


def test_without_steps_or_host_calls_the_step_is_unknown_and_said_so(tmp_path: Path) -> None:
    for left_out in ("user_annotation", "cuda_runtime"):
        path = tmp_path / f"{left_out}.json"
        path.write_text(json.dumps([one for one in EVENTS if one["cat"] != left_out]))
        found = summarize(read_kineto(path), 0)
        assert found.kernels_per_step is None
        assert {one.step for one in found.gaps.largest} == {None}
        assert [one.code for one in found.caveats] == ["steps_not_annotated"]


@pytest.mark.parametrize(
    "stray",
    [
        run("far", 0, 5, 999),
        run("far", 0, 0, 999),
        run("far", 4e15, 4e15 + 5, 999),
        run("a", 0, 5, 2),  # its launch is known
        run("endless", 1.7e15, 2.6e15, 999),
    ],
)
@pytest.mark.parametrize("with_launches", [True, False])
def test_a_stray_stamp_leaves_the_window(tmp_path: Path, stray: dict[str, Any], with_launches: bool) -> None:
    base = 1.7e15
    events = [one | {"ts": one["ts"] + base} for one in EVENTS if with_launches or one["cat"] != "cuda_runtime"]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([stray, *events]))
    found = summarize(read_kineto(path), 0)
    assert found.window_s == pytest.approx(102e-6)
    assert [caveat.details for caveat in found.caveats if caveat.code == "stamps_stray"] == [{"num": 1}]


def test_a_first_kernel_long_before_the_others_is_of_the_trace(tmp_path: Path) -> None:
    first = 600e6  # compiled for ten minutes
    path = tmp_path / "trace.json"
    events = [one | {"ts": one["ts"] + first} for one in EVENTS]
    path.write_text(json.dumps([launch(1, 77), run("first", 3, 9, 77), *events]))
    found = summarize(read_kineto(path), 0)
    assert found.window_s == pytest.approx(600 + 199e-6)
    assert not any(caveat.code == "stamps_stray" for caveat in found.caveats)


def test_collectives_are_told_from_work(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        json.dumps(
            [
                run("gemm", 0, 40, 1),
                run("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 30, 80, 2, stream=9),
                run("void cross_device_reduce_1stage<half, 2>", 85, 90, 3),
                run("gemm_func", 90, 100, 4),
            ]
        )
    )
    found = summarize(read_kineto(path), 0)
    assert found.works_fraction == pytest.approx(0.5)
    assert found.collective_fraction == pytest.approx(0.45)  # 40 – 80 and 85 – 90
    assert found.busy_fraction == pytest.approx(0.95)
    assert found.num_collectives == 2


def test_steps_of_unlike_kernels_are_not_steady(tmp_path: Path) -> None:
    events, number = [], 0
    for step, num_kernels in enumerate((100, 100, 94)):
        events.append(event("user_annotation", f"ProfilerStep#{step}", step * 1000, step * 1000 + 1000))
        for _ in range(num_kernels):
            number += 1
            events += [launch(step * 1000 + 1, number), run("k", number * 10, number * 10 + 9, number)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    found = summarize(read_kineto(path), 0)
    assert found.kernels_per_step is not None and not found.kernels_per_step.steady
    assert found.gaps.count == 293
    assert found.idle_s == pytest.approx(293e-6)


@pytest.mark.parametrize(
    ("devices", "wanted", "says"),
    [((), None, "ProfilerActivity.CUDA"), ((0, 1), None, "choose one with --device"), ((0, 1), 2, "only of 0, 1")],
)
def test_the_device_must_be_clear(tmp_path: Path, devices: tuple[int, ...], wanted: int | None, says: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([run("k", 0, 1, 1, device=device) for device in devices]))
    with pytest.raises(ConfigError, match=says):
        device_of(read_kineto(path), wanted)


def test_idle_time_of_random_traces_is_that_of_a_painted_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    begins, lengths = rng.integers(0, 5000, 300), rng.integers(0, 30, 300)
    events = [
        run("k", begin, begin + length, 1, stream=int(begin) % 3)
        for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    painted = np.zeros(6000, dtype=bool)
    for begin, length in zip(begins, lengths, strict=True):
        painted[begin : begin + length] = True
    busy = np.flatnonzero(painted)
    idle_us = int((~painted[busy[0] : busy[-1] + 1]).sum())
    assert summarize(read_kineto(path), 0).idle_s == pytest.approx(idle_us * 1e-6)


def test_the_command_prints_and_writes_json(trace_file: Path) -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["gaps", str(trace_file)])
    assert shown.exit_code == 0
    for text in ("64.71 %", "36.0 µs", "15.0 µs of it while the host waited for data", "step 11: c → d", "steady"):
        assert text in shown.output
    written = runner.invoke(app, ["gaps", str(trace_file), "--json", "-"])
    assert json.loads(written.stdout)["gaps"]["count"] == 3


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 19, "²"])
def test_a_step_of_a_number_that_nothing_holds_is_no_step(tmp_path: Path, number: str) -> None:
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": 1, "dur": 9},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 2, "dur": 3, "args": {"device": 0, "stream": 7}},
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    trace = read_kineto(tmp_path / "trace.json")
    assert (len(trace.activities), summarize(trace, 0).kernels_per_step) == (1, None)
