"""What the step loop notes of each step, held against a schedule that is known."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loaderbench.loaders.base import Batch
from loaderbench.recording.facts import STEP
from loaderbench.running.loop import StepLoop
from loaderbench.samplers.process_io import runqueue_off_reason


class ScriptedDevice:
    """A device whose steps take `step_s`, one behind the other, on the host's clock; the host never waits for it."""

    def __init__(self, step_s: float) -> None:
        self._step_ns, self._free_ns = round(step_s * 1e9), 0

    def step(self, inputs: Any, targets: Any) -> None:
        self._free_ns = max(self._free_ns, time.perf_counter_ns()) + self._step_ns

    def copy_in(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        return inputs, targets

    def record(self) -> int:
        return self._free_ns

    record_copy = record

    def reached(self, event: int) -> bool:
        return time.perf_counter_ns() >= event

    def wait(self, event: int) -> None:
        time.sleep(max(0, event - time.perf_counter_ns()) / 1e9)

    def times_ns(self, events: list[int]) -> np.ndarray:
        return np.array(events, dtype=np.int64)

    def busy_ns(self, begin: int, end: int) -> None:
        return None


def batches(every_s: float, arrived_ns: int = -1) -> Iterator[Batch]:
    while True:
        time.sleep(every_s)
        yield Batch(None, None, 4, 100, arrived_ns=arrived_ns)


def steps(loader_s: float, device_s: float, num: int = 8) -> np.ndarray:
    device: Any = ScriptedDevice(device_s)
    workload: Any = SimpleNamespace(step=device.step, phases=[])
    loop = StepLoop(batches(loader_s), device, workload)
    loop.run(num, sys.maxsize)
    return loop.steps()


def test_a_step_is_ahead_where_the_device_still_works_on_the_one_before() -> None:
    assert steps(0.0, 0.02)[:, STEP["ahead"]].tolist() == [-1] + [1] * 7
    assert steps(0.03, 0.001)[:, STEP["ahead"]].tolist() == [-1] + [0] * 7


def test_without_a_device_nothing_is_ahead_and_a_batch_tells_when_it_arrived() -> None:
    loop = StepLoop(batches(0.0, arrived_ns=17), None, None)
    loop.run(3, sys.maxsize)
    table = loop.steps()
    assert table[:, STEP["ahead"]].tolist() == [-1] * 3
    assert table[:, STEP["arrived_ns"]].tolist() == [17] * 3


@pytest.fixture
def one_processor() -> Iterator[int]:
    """This thread runs on one processor alone."""
    before = os.sched_getaffinity(0)
    chosen = min(before)
    os.sched_setaffinity(0, {chosen})
    try:
        yield chosen
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.alone
@pytest.mark.skipif(runqueue_off_reason() is not None, reason="this kernel does not count run-queue delay")
def test_a_step_holds_the_time_that_its_thread_waited_for_a_processor(one_processor: int) -> None:
    # Given a thread that works for 30 ms of its own processor time a step, beside a process that takes turns with it
    def burnt() -> Iterator[Batch]:
        while True:
            until = time.thread_time() + 0.03
            while time.thread_time() < until:
                pass
            yield Batch(None, None, 4, 100)

    loop = StepLoop(burnt(), None, None)
    busy = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    with subprocess.Popen([sys.executable, "-c", busy]) as other:
        try:
            time.sleep(0.3)
            loop.run(2, sys.maxsize)
            begun, begun_cpu = time.perf_counter_ns(), time.thread_time_ns()
            loop.run(20, sys.maxsize)
            wall, cpu = time.perf_counter_ns() - begun, time.thread_time_ns() - begun_cpu
        finally:
            other.kill()
    # Then what is not processor time was spent waiting for the processor, since nothing here blocks
    queued = loop.steps()[2:, STEP["queued_ns"]]
    assert len(queued) == 20 and (queued >= 0).all()
    assert queued.sum() == pytest.approx(wall - cpu, rel=0.1)
    assert queued.sum() > 0.2 * wall


def test_the_run_queue_is_that_of_the_thread_that_makes_the_loop() -> None:
    # Given a thread beside this one that has waited for nothing, and one here that has
    tables = []

    def work() -> None:
        loop = StepLoop(batches(0.001), None, None)
        loop.run(5, sys.maxsize)
        tables.append(loop.steps())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (table,) = tables
    known = runqueue_off_reason() is None
    assert ((table[:, STEP["queued_ns"]] >= 0) == known).all()
