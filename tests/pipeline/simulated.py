"""Simulated pipelines by what holds them up, typical ones and random ones: what a replay of their runs is held against.

Of the event model (tests/analysis), which shares no code with the replay. All are given for WORKERS workers; their
stages are slow enough that the cause matters with as many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from loaderbench.cases.arms import Arm
from loaderbench.recording.facts import CeilingProbe, CeilingStage, Run
from tests.analysis.event_model import FILE_BYTES, NUM_SAMPLES, Pipeline, true_step_ms

WORKERS = 4
BUSY_MS = 40.0
EVEN = Pipeline(workers=WORKERS, latency_ms=4.0, decode_ms=16.0, collate_ms=2.0, busy_ms=BUSY_MS, tells_more=True)
"""Waits for nothing but its device."""


def _of(**fields: Any) -> Pipeline:
    return replace(EVEN, **fields)


TYPICAL: Mapping[str, Pipeline] = {
    "bandwidth": _of(storage_ms=80.0, decode_ms=40.0, jitter=0.1),
    "latency": _of(latency_ms=280.0, decode_ms=40.0, jitter=0.1),
    "cpu": _of(decode_ms=280.0, jitter=0.1),
    "oversubscribed": _of(decode_ms=150.0, cores=2, host_on_cores=True, jitter=0.1),
    "others": _of(decode_ms=110.0, cores=4, neighbours=4, host_on_cores=True, jitter=0.1),
    "tail": _of(latency_ms=30.0, decode_ms=40.0, tail=(0.005, 300.0), jitter=0.1),
    "stalls": _of(latency_ms=30.0, decode_ms=60.0, stall_every_ms=1800.0, stall_ms=700.0, jitter=0.1),
    "device": _of(storage_ms=15.0, decode_ms=70.0, jitter=0.1),
    "launch": _of(issue_ms=70.0, decode_ms=70.0, jitter=0.1),
    "transfer": _of(transfer_ms=35.0, decode_ms=70.0, jitter=0.1),
    "serial": _of(workers=0, latency_ms=15.0, decode_ms=45.0, jitter=0.1),
    "threads": _of(latency_ms=60.0, decode_ms=200.0, in_turn=False, jitter=0.3),
    "delivery": _of(prefetch=1, decode_ms=150.0, send_ms=40.0, jitter=0.1),
}
KINDS = tuple(TYPICAL)


class Draw:
    """Random sizes for a pipeline."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random

    def between(self, low: float, high: float) -> float:
        """Evenly on a logarithmic scale."""
        return float(np.exp(self._random.uniform(np.log(low), np.log(high))))

    def any_of(self, *choices: Any) -> Any:
        return choices[int(self._random.integers(len(choices)))]


def _bandwidth(draw: Draw) -> dict[str, Any]:
    return {"storage_ms": BUSY_MS * draw.between(1.2, 3), "latency_ms": draw.any_of(0.0, 10.0)}


def _latency(draw: Draw) -> dict[str, Any]:
    return {"latency_ms": BUSY_MS * WORKERS * draw.between(1.2, 3)}


def _cpu(draw: Draw) -> dict[str, Any]:
    return {"decode_ms": BUSY_MS * WORKERS * draw.between(1.2, 3), "latency_ms": draw.between(2, 60)}


def _oversubscribed(draw: Draw) -> dict[str, Any]:
    cores = draw.any_of(1, 2, 3)
    decode_ms = BUSY_MS * cores * draw.between(1.1, 2.5)
    return {"cores": cores, "host_on_cores": True, "decode_ms": decode_ms, "latency_ms": draw.between(2, 60)}


def _others(draw: Draw) -> dict[str, Any]:
    cores = draw.any_of(2, 4)
    neighbours = cores * draw.any_of(1, 2)
    share = cores * WORKERS / (WORKERS + neighbours)
    decode_ms = BUSY_MS * share * draw.between(1.1, 2)
    return {"cores": cores, "neighbours": neighbours, "host_on_cores": True, "decode_ms": decode_ms}


def _tail(draw: Draw) -> dict[str, Any]:
    part = draw.between(0.001, 0.02)
    longer_ms = WORKERS * BUSY_MS * draw.between(0.7, 2) / (64 * part)
    reading = {"latency_ms": draw.between(5, 60), "storage_ms": draw.any_of(0.0, 10.0)}
    return {**reading, "tail": (part, min(longer_ms, 600.0)), "decode_ms": draw.between(10, 80)}


def _stalls(draw: Draw) -> dict[str, Any]:
    every_ms = draw.between(700, 3000)
    stalls = {"stall_every_ms": every_ms, "stall_ms": every_ms * draw.between(0.2, 0.5)}
    irregular = draw.any_of(False, True)
    return {**stalls, "irregular": irregular, "latency_ms": draw.between(10, 100), "decode_ms": draw.between(10, 80)}


def _device(draw: Draw) -> dict[str, Any]:
    crew_ms = BUSY_MS * WORKERS
    reading = {"latency_ms": crew_ms * draw.between(0.05, 0.4), "storage_ms": BUSY_MS * draw.between(0.05, 0.7)}
    return {**reading, "decode_ms": crew_ms * draw.between(0.05, 0.3)}


def _launch(draw: Draw) -> dict[str, Any]:
    return {"issue_ms": BUSY_MS * draw.between(1.2, 3), "decode_ms": BUSY_MS * WORKERS * draw.between(0.1, 0.7)}


def _transfer(draw: Draw) -> dict[str, Any]:
    beside = draw.any_of(False, True)
    return {
        "transfer_ms": BUSY_MS * (draw.between(1.2, 3) if beside else draw.between(0.3, 2)),
        "overlap": beside,
        "decode_ms": BUSY_MS * WORKERS * draw.between(0.1, 0.7),
    }


def _serial(draw: Draw) -> dict[str, Any]:
    reading_ms = BUSY_MS * draw.between(0.3, 2)
    return {"workers": 0, "latency_ms": reading_ms, "decode_ms": BUSY_MS * draw.between(0.8, 3), "issue_ms": 5.0}


def _threads(draw: Draw) -> dict[str, Any]:
    work_ms, reads = BUSY_MS * WORKERS * draw.between(1.2, 3), draw.any_of(0.1, 0.3, 0.6)
    few = draw.any_of((0.0, 0.0), (0.003, 250.0))
    return {"in_turn": False, "latency_ms": reads * work_ms, "decode_ms": (1 - reads) * work_ms, "tail": few}


def _delivery(draw: Draw) -> dict[str, Any]:
    work_ms = BUSY_MS * WORKERS * draw.between(0.8, 2)
    sending = {"prefetch": draw.any_of(1, 2), "send_ms": draw.between(5, 80)}
    return {**sending, "latency_ms": 0.2 * work_ms, "decode_ms": 0.8 * work_ms}


RANDOM: Mapping[str, Callable[[Draw], dict[str, Any]]] = {
    "bandwidth": _bandwidth,
    "latency": _latency,
    "cpu": _cpu,
    "oversubscribed": _oversubscribed,
    "others": _others,
    "tail": _tail,
    "stalls": _stalls,
    "device": _device,
    "launch": _launch,
    "transfer": _transfer,
    "serial": _serial,
    "threads": _threads,
    "delivery": _delivery,
}


PROBED = (1, 2, 4, 8, 16)


def probed(pipe: Pipeline, run: Run) -> Run:
    """The run with what a storage probe found: so many readers that do nothing else."""
    recording = run.recording
    assert recording is not None
    if not pipe.latency_ms and not pipe.storage_ms:
        return run
    stages = []
    for readers in PROBED:
        alone = replace(pipe, workers=readers, tail=(0.0, 0.0), stall_ms=0.0, tells_more=False)
        batches = 1e3 / true_step_ms(alone, Arm.FETCH)
        rate = round(batches * NUM_SAMPLES * FILE_BYTES)
        stages.append(CeilingStage(readers, rate, 1.0, 1000, None, (), 0.1, "O_DIRECT", 0.0, None))
    probe = CeilingProbe(tuple(stages), "max_readers", None, 1000)
    facts = replace(recording.facts, storage=replace(recording.facts.storage, ceiling=probe))
    return replace(run, recording=replace(recording, facts=facts))


def drawn(kind: str, number: int, seed: int = 0) -> Pipeline:
    """A random pipeline of the kind; the same for the same numbers."""
    draw = Draw(np.random.default_rng([seed, KINDS.index(kind), number]))
    common = {"prefetch": draw.any_of(2, 2, 4), "jitter": draw.any_of(0.0, 0.1, 0.3), "issue_ms": draw.between(0.5, 8)}
    return _of(**{**common, **RANDOM[kind](draw)})


def pipelines(num: int, seed: int = 0) -> Iterator[tuple[str, Pipeline]]:
    """Of each kind the typical one and `num` − 1 random ones."""
    for kind, typical in TYPICAL.items():
        yield kind, typical
        for number in range(num - 1):
            yield kind, drawn(kind, number, seed)
