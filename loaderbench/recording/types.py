"""The raw facts of a run, as they are stored. Every conclusion is computed from these.

Schema history
    1  first version; a segment may hold `kernels` (runs stored before have none)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.case import Case

SCHEMA = 1


@dataclass(frozen=True)
class Caveat:
    """Something a reader must know before trusting a figure. `message` says how to mend it where one can."""

    code: str
    message: str


@dataclass
class Series:
    """One sampled channel. `t_ns` is the host's monotonic clock (perf_counter_ns)."""

    name: str
    unit: str
    kind: str
    """`counter` or `gauge`."""
    source: str
    t_ns: NDArray[np.int64]
    value: NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float
    unit: str
    n: int
    """How many independent blocks it rests on."""
    method: str

    def to_json(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "unit": self.unit,
            "n": self.n,
            "method": self.method,
        }


STEP_FIELDS = (
    "called_ns",  # host: next(loader) was called
    "returned_ns",  # host: it returned
    "issued_ns",  # host: the last work of the step was enqueued
    "waited_ns",  # host: the bound on steps in flight let it go on (= issued_ns when it did not block)
    "copy_begin_ns",  # device clock, mapped to the host's: the copy could begin
    "copy_end_ns",  # device clock: the copy was done, compute could begin
    "done_ns",  # device clock: the step was done
    "busy_ns",  # device compute busy time within the step; -1 where unknown
    "num_samples",
    "encoded_bytes",
)
"""Columns of a segment's `steps` table. Device columns are -1 in an arm without a device."""


PHASE_FIELDS = (
    "begun_ns",  # host: the batch's copy was enqueued, the forward pass begins
    "forward_ns",  # host: the forward pass was enqueued
    "backward_ns",  # host: the backward pass was enqueued, the update begins; -1 in inference
)
"""Columns of a segment's `phases`: a step's parts as the host enqueues them, between `returned_ns` and `issued_ns`."""


SPAN_FIELDS = (
    "worker",  # number of the worker that made the batch, -1 where several shared it
    "start_ns",  # work on the batch began            (time.perf_counter_ns: CLOCK_MONOTONIC, one for all processes)
    "ready_ns",  # the batch was complete in the worker
    "read_ns",  # wall time in each stage, summed over the batch's images
    "decode_ns",
    "augment_ns",  # crop, resize, flip, normalize
    "collate_ns",
    "cpu_ns",  # CPU time of the worker's threads between start and ready
    "runqueue_ns",  # time runnable but not running (/proc/thread-self/schedstat, field 2); -1 where unknown
    "major_faults",  # page faults that needed the storage (getrusage ru_majflt); -1 where unknown
    "page_bytes",  # sizes of the files read, each rounded up to whole pages: what a cold read moves
)
"""Columns of a span. One row of int64 a batch, written by the worker that made it."""


KERNEL_FIELDS = (
    "begin_ns",  # the device began it, mapped to the host's perf_counter_ns
    "end_ns",
    "stream",  # the device's queue that it ran in; the thread where the CPU is the device
    "kind",  # KERNEL, COPY or MEMSET
    "step",  # row of the segment's `steps` that launched it
)
"""Columns of a segment's `kernels`: everything that the device ran in a traced window, one row of int64 each."""
KERNEL, COPY, MEMSET = 0, 1, 2
"""Kinds of a kernel row. On the CPU device top-level operator spans are its kernels."""
TRACED, UNTRACED = "traced", "untraced"
"""Arms of the segment that holds `kernels`, and of those before and behind it: the loop of `real`, its own windows."""


SHORT = "short"
"""Arm of the runs that begin with a full prefetch buffer: the loop of `real`, its first step before the buffer was
filled (the warm-up), `steady` telling whether the loader then came to rest."""


@dataclass
class Segment:
    """One measured window of one arm: consecutive steps after the arm's warm-up.

    The first `num_warmup` rows of `steps` are the warm-up; the window is the rest.
    """

    arm: str
    round: int
    num_warmup: int
    steady: bool
    """The loader's queue was steadily full or steadily empty when the window opened."""
    steps: NDArray[np.int64]
    """[N, len(STEP_FIELDS)]"""
    spans: NDArray[np.int64] | None
    """[M, len(SPAN_FIELDS)], M ≥ N where the batches left in the queue were drained; None: unknown."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Counters taken around the segment, times of the iterator's construction and end, residency …"""
    phases: NDArray[np.int64] | None = None
    """[N, len(PHASE_FIELDS)]; None where the workload has none (an emulated device, an arm without a device)."""
    kernels: NDArray[np.int64] | None = None
    """[K, len(KERNEL_FIELDS)] of a traced window; None: not traced."""


@dataclass
class Recording:
    """All that one process measured."""

    segments: list[Segment]
    facts: dict[str, Any]
    """Device, workload, loader, start-up times, environment of the process, failures."""
    caveats: list[Caveat]


@dataclass
class Run:
    """One case as it was run: what was asked, what was recorded, how it ended."""

    case: Case
    status: str
    """`ok`, `failed`, `skipped` or `interrupted`."""
    started_at: str
    """UTC, ISO 8601."""
    wall_s: float
    recording: Recording | None
    series: list[Series]
    caveats: list[Caveat]
    """What the supervisor has to say; the recording has its own."""
    environment: dict[str, Any]
    failure: tuple[str, str] | None = None
    """(kind, message), kind being the class of the error."""
    sampling_cpu_s: float = 0.0
