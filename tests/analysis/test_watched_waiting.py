"""Loaders that tell nothing of themselves: storage and preparation by the processors that the script wants, from facts
made by hand."""

from dataclasses import replace

import numpy as np
import pytest

from loaderbench.analysis.record import analyze
from loaderbench.recording.facts import STEP, CpuWindow
from loaderbench.recording.record import RunRecord
from tests.watched_facts import MS, run_of, segment

NUM = 80


def record_of(*, wait_ms: float, step_ms: float, own_ms: float, others_ms: float, queued_ms: float = 0.0) -> RunRecord:
    """Of a script that waits so long for each batch, and works on it; processor times a step of its own thread and of
    all others, of two processors."""
    parts, whole_ms = [], wait_ms + step_ms
    for number in range(3):
        one = segment(np.full(NUM, 0.1), np.random.default_rng(number).normal(step_ms, 0.05, NUM), 0)
        steps = one.steps.copy()
        shift = np.round(np.arange(1, NUM + 1) * wait_ms * MS).astype(np.int64)
        for name in STEP:
            if name == "called_ns":
                steps[:, STEP[name]] += np.concatenate(([0], shift[:-1]))
            elif name.endswith("_ns") and name != "busy_ns":
                steps[:, STEP[name]] += shift
        seconds = NUM / 1e3
        cpu = CpuWindow(
            whole_ms * seconds, (own_ms + others_ms) * seconds, queued_ms * seconds, 0.0,
            (own_ms + others_ms) * seconds, 0.0, 2, None, None, python_threads_s=0.0,
        )  # fmt: skip
        parts.append(replace(one, steps=steps, spans=None, cpu=cpu, consumer_cpu_s=own_ms * seconds, num_warmup=1))
    run = run_of(parts[0], 0, no_spans="what was iterated tells nothing of workers")
    assert run.recording is not None
    run.recording.segments[:] = parts
    return analyze(run)


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
