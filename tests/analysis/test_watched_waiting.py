"""Loaders that tell nothing of themselves: storage and preparation by the processors that the script wants, from facts
made by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loaderbench.analysis.record import analyze
from loaderbench.recording.facts import CpuWindow, WaitLooks
from loaderbench.recording.record import RunRecord
from tests.watched_facts import segment, untold

NUM = 80


def record_of(
    *, wait_ms: float, step_ms: float, own_ms: float, others_ms: float, queued_ms: float = 0.0,
    in_next_ms: float | None = None, asked_bytes: int | None = None, neighbours: float = 0.0,
    looks: tuple[int, float] | None = None,
) -> RunRecord:  # fmt: skip
    """Of a script that waits so long for each batch, and works on it; processor times a step of its own thread (within
    `next()`: `in_next_ms`) and of all others, of two processors; bytes a batch that it asked for. `looks`: number of
    waits that were looked at, and for how long other threads were busy in each."""
    parts, whole_ms = [], wait_ms + step_ms
    for number in range(3):
        step = np.random.default_rng(number).normal(step_ms, 0.05, NUM)
        one = segment(np.full(NUM, wait_ms), step, 0)
        seconds = (NUM - 1) / 1e3  # the first step counts nowhere
        cpu = CpuWindow(
            whole_ms * seconds, (own_ms + others_ms) * seconds, queued_ms * seconds, 0.0,
            (own_ms + others_ms + neighbours * whole_ms) * seconds, 0.0, 2, None, None, python_threads_s=0.0,
            asked_bytes=None if asked_bytes is None else asked_bytes * NUM, major_faults=0,
        )  # fmt: skip
        in_next_s = None if in_next_ms is None else in_next_ms * seconds
        one = replace(one, cpu=cpu, consumer_cpu_s=own_ms * seconds, wait_cpu_s=in_next_s)
        if looks is not None:
            seen = WaitLooks(looks[0], *(looks[0] * ms / 1e3 for ms in (wait_ms, *looks[1:])))
            one = replace(one, wait_looks=seen)
        parts.append(one)
    return analyze(untold(parts))


def test_a_loader_that_keeps_all_processors_busy_prepares() -> None:
    # 42 of 44 ms of two processors are used; while it waits for 12 ms, for at least 42 - 2 x 10 of 24 ms.
    record = record_of(wait_ms=12.0, step_ms=10.0, own_ms=1.0, others_ms=41.0)
    part, verdict = record.storage_by_processors, record.verdict
    assert part is not None and (part.low, part.high) == (pytest.approx(0, abs=0.01), pytest.approx(2 / 24, abs=0.02))
    assert verdict is not None and verdict.bottleneck == "prep"


@pytest.mark.parametrize(
    ("own_ms", "others_ms", "queued_ms"),
    [
        pytest.param(11.0, 0.0, 0.0, id="a generator that may compute in the script's own thread while this waits"),
        pytest.param(1.0, 21.0, 0.0, id="one process, all the time, or two, half of it"),
        pytest.param(10.0, 10.0, 60.0, id="a step of eight threads on two processors; the loader waits"),
        pytest.param(1.0, 2.0, 0.0, id="it wants no processor: it waits for its storage, or for something else"),
    ],
)
def test_what_processors_do_not_tell_stays_joint(own_ms: float, others_ms: float, queued_ms: float) -> None:
    record = record_of(wait_ms=12.0, step_ms=10.0, own_ms=own_ms, others_ms=others_ms, queued_ms=queued_ms)
    assert record.storage_by_processors is None
    assert record.verdict is not None and record.verdict.joint == ("storage", "prep")


def test_a_generator_that_computes_in_the_script_s_own_thread_prepares() -> None:
    # It runs for 11.4 of the 12 ms that the script waits for its batch.
    record = record_of(wait_ms=12.0, step_ms=10.0, own_ms=12.4, others_ms=0.2, in_next_ms=11.4)
    part, verdict = record.storage_by_processors, record.verdict
    assert part is not None and (part.low, part.high) == (pytest.approx(0, abs=0.01), pytest.approx(0.05, abs=0.01))
    assert verdict is not None and verdict.bottleneck == "prep"
    gain = verdict.speedup_if_removed["prep"]
    assert gain is not None and gain.value == pytest.approx(22.0 / 10.3, rel=0.03)


READS = {
    "wait_ms": 12.0, "step_ms": 10.0, "own_ms": 10.6, "others_ms": 1.2, "in_next_ms": 0.6, "asked_bytes": 65_536,
    "looks": (5, 1.2),
}  # fmt: skip


def test_a_loader_that_reads_and_leaves_the_processors_idle_waits_for_its_storage() -> None:
    # Of 12 ms its thread runs for 0.6, and others are busy for 1.2: it waits for 10.2 to 11.4 ms.
    record = record_of(**READS)
    part, verdict = record.storage_by_processors, record.verdict
    assert part is not None
    assert (part.low, part.high) == (pytest.approx(0.85, abs=0.01), pytest.approx(0.95, abs=0.01))
    assert verdict is not None and verdict.bottleneck == "storage"
    gain = verdict.speedup_if_removed["storage"]
    assert gain is not None and gain.value == pytest.approx(22.0 / (22.0 - 0.9 * 12.0), rel=0.03)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"asked_bytes": 500}, id="it reads nothing, and waits for something else"),
        pytest.param({"asked_bytes": None}, id="what it reads is not known"),
        pytest.param({"neighbours": 0.9}, id="its loader may be another process"),
        pytest.param({"looks": (5, 8.0)}, id="its threads were busy while it waited"),
        pytest.param({"looks": (2, 1.2)}, id="hardly anybody looked"),
        pytest.param({"looks": None}, id="nobody looked"),
    ],
)
def test_idle_processors_are_no_storage_where_something_else_explains_them(changed: dict[str, Any]) -> None:
    record = record_of(**{**READS, **changed})
    assert record.storage_by_processors is None
    assert record.verdict is not None and record.verdict.joint == ("storage", "prep")
