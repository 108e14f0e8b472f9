"""Looks at a made-up job whose pipeline is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from loaderbench.attach.facts import AttachFacts, FileSystemSeen, Io, JobFacts, Processors, Rights, ThreadUse
from loaderbench.recording.thread_samples import Place, SampledThread, SampleRows, State

LOOKS, WINDOW_S = 600, 20.0
Work = Sequence[tuple[State, str, float]]
"""(state, detail, seconds) of a batch, one after the other."""
QUIET = (ThreadUse("consumer", None, "python", True, 0.0, 0.0, 0, 0),)
"""Of a job that does not move."""
NFS = FileSystemSeen("/data", "nfs4")


def simulated(
    work: Work, step: Work, *, workers: int = 2, prefetch: int = 2, steps: int = 4000, spread: float = 0.0
) -> tuple[list[list[tuple[float, State, str]]], float]:
    """([(until, state, detail)] of the main thread and of each worker, seconds a step), batch by batch: its own queue.

    `spread`: the standard deviation of a batch's time, as a part of it (gamma distribution).
    """
    draws = np.random.default_rng(3)
    lanes: list[list[tuple[float, State, str]]] = [[] for _ in range(workers + 1)]
    taken, free = [0.0] * steps, [0.0] * max(1, workers)
    host = 0.0
    for number in range(steps):
        factor = draws.gamma(1 / spread**2, spread**2) if spread else 1.0
        worker = number % workers if workers else 0
        lane = lanes[1 + worker] if workers else lanes[0]
        start = max(free[worker], taken[number - prefetch * workers] if number >= prefetch * workers else 0.0)
        at = start if workers else host
        lane.append((at, "pipe", "index"))
        for state, detail, seconds in work:
            at += seconds * factor
            lane.append((at, state, detail))
        free[worker] = at
        lanes[0].append((max(host, at), "pipe", ""))
        taken[number] = host = max(host, at)
        for state, detail, seconds in step:
            host += seconds
            lanes[0].append((host, state, detail))
    return lanes, host / steps


def job(
    work: Work, step: Work, *, workers: int = 2, looks: int = LOOKS, uses: Sequence[ThreadUse] = (),
    spread: float = 0.0, calls: bool = True, part: Mapping[State, str] | None = None, **changes: Any,
) -> JobFacts:  # fmt: skip
    """Facts of a job that was looked at, at random times of its simulated pipeline."""
    lanes, step_s = simulated(work, step, workers=workers, spread=spread)
    rows, details, files = SampleRows(), {"": 0}, []
    draws = np.random.default_rng(11)
    end = min(lane[-1][0] for lane in lanes if lane)
    times = np.sort(draws.uniform(0.1 * end, 0.9 * end, looks))
    more: list[tuple[int, int]] = []
    roles = [SampledThread("consumer"), *(SampledThread("worker", number) for number in range(workers))]
    places = {state: Place("train.py", 10, "step", part=name) for state, name in (part or {}).items()}
    idle = Place("worker.py", 300, "_worker_loop", part="indices")
    for thread, (role, lane) in enumerate(zip(roles, lanes, strict=True)):
        rows.add_thread(role)
        ends = np.array([until for until, _, _ in lane])
        for look, at in enumerate(times):
            _, state, detail = lane[int(np.searchsorted(ends, at))]
            place = places.get(state) if not thread else idle if part and state == "pipe" else None
            rows.add(look, thread, state, WINDOW_S / looks, place)
            is_file = state in ("file", "fault")
            if is_file and not files:
                files.append(NFS)
            more.append((details.setdefault(detail, len(details)), 0 if is_file else -1))
    known = np.array(more, np.int64).reshape(-1, 2)
    batches = round(WINDOW_S / step_s)
    found = JobFacts(
        pid=4242, command="python train.py", age_s=7200.0, window_s=WINDOW_S, workers=workers, workers_started=0,
        rights=Rights(calls, True, None if part else "not asked for"), samples=rows.samples(), detail=known[:, 0],
        details=tuple(details), file=known[:, 1], files=tuple(files),
        uses=tuple(uses) or (ThreadUse("consumer", None, "python", True, 2.0, 0.0, 100, 0),),
        processors=Processors(8, 8, None, None, 20.0, 0.0, 0.0), consumer_io=Io(0, 0, 0),
        workers_io=Io(batches * 8, 0, batches * 8 * 16384), received_bytes=0, batches=batches if workers else None,
        consumer_waited_s=0.001,
    )  # fmt: skip
    return replace(found, **changes)


def attached(*jobs: JobFacts, asked: str = "PID 4242", **changes: Any) -> AttachFacts:
    """A study of them."""
    return replace(AttachFacts(asked, WINDOW_S, tuple(jobs), (), 0.25, WINDOW_S), **changes)
