"""Facts of watched scripts, made by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from loaderbench.cases.arms import Arm
from loaderbench.cases.traits import LoaderTraits
from loaderbench.recording.facts import (
    SCRIPT_LANE,
    SPAN,
    SPAN_FIELDS,
    STEP,
    STEP_FIELDS,
    DeviceFacts,
    LoaderFacts,
    Run,
    Segment,
    Table,
    WatchedEpoch,
    WatchedFacts,
    WatchedLoader,
    WatchedSeconds,
    WatchedSettings,
)
from tests.made import make_case, make_facts, make_run

MS = 1_000_000


def settings(**changes: Any) -> WatchedSettings:
    plain = WatchedSettings(
        persistent=False, pin_memory=False, collate="default_collate", sampler="torch.utils.data.sampler.RandomSampler",
        iterable=False, forked=True,
    )  # fmt: skip
    return replace(plain, **changes)


def epoch(opening: float, first: float, wait: float, step: float, num: int = 100) -> WatchedEpoch:
    return WatchedEpoch(opening, first, wait, step, 0.0, num)


def watched_facts(workers: int = 2, prefetch: int = 2, num_iterators: int = 3, **facts: Any) -> WatchedFacts:
    seconds = WatchedSeconds(0.1, 0.2, 1.0, 2.0, 0.0, 0.0)
    loader = WatchedLoader("DataLoader", "Photos", 800, 8, workers, prefetch, num_iterators, 300, seconds)
    plain = WatchedFacts(
        script="train.py", loaders=(loader,), wall_s=10.0, before_s=1.0, probes="burst", num_bursts=0, paused_s=0.0,
        no_burst=None, no_spans=None, uses_cuda=False, settings=settings(),
    )  # fmt: skip
    return replace(plain, **facts)


def followed(
    making_ms: "np.ndarray[Any, Any]", step_ms: "np.ndarray[Any, Any]", workers: int, prefetch: int
) -> "tuple[list[float], list[float], list[float]]":
    """(when each batch was begun, ready, asked for and taken) of a queue of workers, in ms; one loop, written anew."""
    begun, ready, called, taken = [], [], [], []
    free, asks = [0.0] * max(1, workers), 0.0
    for k, making in enumerate(making_ms):
        lane = k % max(1, workers)
        start = (
            asks if not workers else max(free[lane], taken[k - workers * prefetch] if k >= workers * prefetch else 0)
        )
        begun.append(start)
        free[lane] = start + making
        ready.append(free[lane])
        called.append(asks)
        taken.append(max(asks, ready[-1]))
        asks = taken[-1] + step_ms[k]
    return begun, ready, [*called, *taken]


def segment(
    making_ms: "np.ndarray[Any, Any]", step_ms: "np.ndarray[Any, Any]", workers: int, prefetch: int = 2, *,
    read_part: float = 0.0, collate_part: float = 0.0, cpu_part: float | None = None,
) -> Segment:  # fmt: skip
    """A window of `real` of a loader with these times."""
    num = len(making_ms)
    begun, ready, both = followed(making_ms, step_ms, workers, prefetch)
    called, taken = both[:num], both[num:]
    steps: Table = np.full((num, len(STEP_FIELDS)), -1, dtype=np.int64)
    spans: Table = np.zeros((num, len(SPAN_FIELDS)), dtype=np.int64)
    done = [taken[k] + step_ms[k] for k in range(num)]

    def ns(values: Any) -> Any:
        return np.round(np.asarray(values) * MS).astype(np.int64)

    for name, values in (
        ("called_ns", called), ("returned_ns", taken), ("issued_ns", done), ("waited_ns", done),
        ("copy_begin_ns", taken), ("copy_end_ns", taken), ("done_ns", done),
    ):  # fmt: skip
        steps[:, STEP[name]] = ns(values)
    steps[:, STEP["num_samples"]] = 8
    computes = 1.0 - read_part if cpu_part is None else cpu_part
    for name, values in (
        ("start_ns", begun), ("ready_ns", ready), ("read_ns", making_ms * read_part),
        ("decode_ns", making_ms * (1 - read_part - collate_part)), ("collate_ns", making_ms * collate_part),
        ("cpu_ns", making_ms * computes),
    ):  # fmt: skip
        spans[:, SPAN[name]] = ns(values)
    spans[:, SPAN["worker"]] = np.arange(num) % max(1, workers)
    spans[:, SPAN["page_bytes"]] = 8 * 50_000 if read_part else 0
    return Segment(
        Arm.REAL, 0, min(8, num // 4), True, steps, spans, int(steps[0, STEP["called_ns"]]),
        int(steps[-1, STEP["done_ns"]]), lane=SCRIPT_LANE, consumer_cpu_s=0.0,
    )  # fmt: skip


def untold(parts: Sequence[Segment]) -> Run:
    """The run of a script with these windows of `real`, whose loader tells nothing of itself."""
    run = run_of(parts[0], 0, no_spans="the iterable does not expose its workers")
    assert run.recording is not None
    run.recording.segments[:] = [replace(one, spans=None, num_warmup=1) for one in parts]
    return run


def run_of(one: Segment, workers: int, prefetch: int = 2, *, cpus: int = 8, **facts: Any) -> Run:
    """The run of a script with this window."""
    case = make_case(loader="multiprocess", workers=workers, prefetch=prefetch, batch_size=8, cache="as-is")
    whole = make_facts(
        device=DeviceFacts("cpu", "this machine's CPUs", copies=False, on_host_cpus=True),
        loader=LoaderFacts(True, True, LoaderTraits("processes", decodes="own", can_be_cold=False), max(1, workers)),
        watched=watched_facts(workers, prefetch, **facts),
    )
    return make_run(case, [one], facts=whole, cpus_usable=cpus)
