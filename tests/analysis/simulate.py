"""A discrete-event model of a run, to script timelines whose answers are known. Shares no code with the package.

A loader of `workers` makes one batch each in `read + decode` seconds and holds at most `depth` finished or
begun batches ahead of the consumer. The consumer takes a batch, copies it (same queue as the compute), issues
the step and is at most two steps ahead of the device. Without workers the batch is made in the consumer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import SPAN_FIELDS, STEP_FIELDS, Segment, StorageWindow

BATCH = 64
IN_FLIGHT = 2
ON_DEVICE = (Arm.DEVICE, Arm.HOST, Arm.RAM, Arm.REAL)
ARMS = (*ON_DEVICE, Arm.FREE, Arm.FETCH, Arm.PREP)
"""All that a run can measure."""
ASKED = (*ON_DEVICE, Arm.FREE, Arm.FETCH)


@dataclass(frozen=True)
class Pipeline:
    """Seconds of each part of a step."""

    device: float = 0.030
    busy: float | None = None
    """Compute busy time; None: all of `device`."""
    issue: float = 0.002
    copy: float = 0.0
    overlap: bool = False
    """Copies run beside the compute of earlier steps."""
    read: float = 0.0
    decode: float = 0.0
    workers: int = 2
    prefetch: int = 2
    jitter: float = 0.0
    """Standard deviation of the loader's time, as a fraction."""


def segment(
    arm: Arm, pipeline: Pipeline, *, steps: int = 40, warmup: int = 12, number: int = 0, begin: float = 100.0,
    prefilled: int = 0,
) -> Segment:  # fmt: skip
    """One window of one arm. `prefilled`: batches that lie ready before the first step."""
    rng = np.random.default_rng(number)
    loads = {
        Arm.RAM: pipeline.decode, Arm.REAL: pipeline.read + pipeline.decode, Arm.FREE: pipeline.read + pipeline.decode,
        Arm.PREP: pipeline.decode, Arm.FETCH: pipeline.read,
    }  # fmt: skip
    load = loads.get(arm)
    on_device = arm in ON_DEVICE
    copy = pipeline.copy if arm != Arm.DEVICE else 0.0
    total = steps + warmup
    make = _worker_clock(pipeline, load, begin, prefilled, rng) if load is not None else None
    table = np.full((total, len(STEP_FIELDS)), -1, dtype=np.int64)
    spans = np.full((total, len(SPAN_FIELDS)), 0, dtype=np.int64)
    now, free, copies_free, done = begin, begin, begin, []
    for step in range(total):
        called = now
        ready = called
        if make is not None:
            start, ready = make(called)
            spans[step, :5] = [
                step % max(pipeline.workers, 1), start * 1e9, ready * 1e9, pipeline.read * 1e9, pipeline.decode * 1e9,
            ]  # fmt: skip
        returned = max(called, ready)
        row = {"called_ns": called, "returned_ns": returned}
        now = returned
        if on_device:
            copy_begin = max(returned, copies_free if pipeline.overlap else free)
            copy_end = copies_free = copy_begin + copy
            issued = returned + pipeline.issue
            finished = max(max(copy_end, free) + pipeline.device, issued)
            free = finished
            done.append(finished)
            now = max(issued, done[-1 - IN_FLIGHT]) if len(done) > IN_FLIGHT else issued
            busy = pipeline.device if pipeline.busy is None else pipeline.busy
            row |= {"issued_ns": issued, "waited_ns": now, "copy_begin_ns": copy_begin, "copy_end_ns": copy_end,
                    "done_ns": finished, "busy_ns": busy}  # fmt: skip
        else:
            row |= {"issued_ns": returned, "waited_ns": returned}
        for name, value in row.items():
            table[step, STEP_FIELDS.index(name)] = round(value * 1e9)
        table[step, STEP_FIELDS.index("num_samples")] = BATCH
        table[step, STEP_FIELDS.index("encoded_bytes")] = BATCH * 35_000
    if make is not None and pipeline.workers:  # what the workers had begun when the window closed
        begun = [make(now) for _ in range(pipeline.workers * pipeline.prefetch)]
        rows = [
            [(total + number) % pipeline.workers, start * 1e9, ready * 1e9, *[0] * (len(SPAN_FIELDS) - 3)]
            for number, (start, ready) in enumerate(begun)
            if start < now
        ]
        spans = np.concatenate([spans, np.array(rows, dtype=np.int64).reshape(-1, len(SPAN_FIELDS))])
    num_bytes = total * BATCH * 36_864
    return Segment(
        arm=arm,
        round=number,
        num_warmup=warmup,
        steady=True,
        steps=table,
        spans=spans if make else None,
        opened_ns=int(begin * 1e9),
        closed_ns=int(now * 1e9),
        wall_s=now - begin,
        first_batch_s=0.1,
        num_drained=0 if make else None,
        clock_drift_ns=0,
        storage=StorageWindow({"read_bytes": num_bytes}, num_bytes, None, 0.0, 0.0),
    )


def _worker_clock(
    pipeline: Pipeline, load: float, begin: float, prefilled: int, rng: np.random.Generator
) -> Callable[[float], tuple[float, float]]:
    """(when the next batch was begun, when it was ready), given when it is asked for; batches in order."""
    if pipeline.workers == 0:
        return lambda called: (called, called + load)
    depth = pipeline.workers * pipeline.prefetch
    free_at = [begin] * pipeline.workers
    taken: list[float] = []
    given = 0

    def make(called: float) -> tuple[float, float]:
        nonlocal given
        number, given = given, given + 1
        taken.append(called)
        if number < prefilled:
            return begin - 1.0, begin - 0.5
        worker = number % pipeline.workers
        # A worker may begin batch n once batch n − depth has been asked for.
        start = max(free_at[worker], taken[number - depth] if number >= depth else begin)
        ready = start + load * max(0.1, 1 + pipeline.jitter * rng.standard_normal())
        free_at[worker] = ready
        return start, ready

    return make


def run(pipeline: Pipeline, *, rounds: int = 3, arms: tuple[Arm, ...] = ASKED) -> list[Segment]:
    """All arms, interleaved."""
    return [
        segment(arm, pipeline, number=number, begin=100.0 + 50 * number) for number in range(rounds) for arm in arms
    ]


def step_seconds(pipeline: Pipeline) -> float:
    """Mean step time of the real arm, from the model itself: the truth for shares and gains."""
    table = segment(Arm.REAL, pipeline, steps=400).steps
    done = table[12:, STEP_FIELDS.index("done_ns")]
    return float((done[-1] - done[0]) / (len(done) - 1) / 1e9)
