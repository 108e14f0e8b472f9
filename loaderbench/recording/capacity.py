"""`loaderbench capacity`: how many ranks with an emulated device a storage feeds, and what stops the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.case import CacheState, Case
from loaderbench.recording.facts import CeilingProbe, Counters, CpuWindow, DeviceFacts, Environment, Failure
from loaderbench.recording.record import Bound, Estimate

Barrier = Literal["step", "none"]
"""`step`: every step of all ranks ends with a collective. `none`: each rank goes on alone."""
Stop = Literal["storage_bandwidth", "storage_latency", "client_cpu", "barrier"]
CALLED, RETURNED, END = range(3)
"""Columns of RankPart.steps."""

# -- facts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankPart:
    """One rank in one look."""

    steps: NDArray[np.int64]
    """[num_steps, 3] nanoseconds since the common start: a batch was asked for; it was there; the earliest end of its
    step (devices/rank_queue.py)."""
    num_images: int
    """Of its shard of the data set."""
    encoded_bytes: int
    """Sum of the sizes of the files behind the steps."""
    num_reads: int
    """Files whose reads the loader told; 0 where it tells none."""
    read_s: float
    """From open to the last byte, summed over those."""
    cpu: CpuWindow | None
    """From the common start to the end of its last step; None where the kernel does not tell."""
    num_failures: int = 0
    """Images that could not be decoded."""


@dataclass(frozen=True)
class Look:
    """One number of ranks, run once."""

    ranks: int
    parts: tuple[RankPart, ...]
    resident_before: float | None
    """Fraction of the files' sampled pages that were in the page cache; None where that cannot be seen."""
    resident_after: float | None
    moved: Counters | None = None
    """Growth of the storage's counters, whoever read; None where there are none."""


@dataclass(frozen=True)
class CapacityFacts:
    """What was asked and measured."""

    case: Case
    """Of one rank; its data set is that of all."""
    au_target: float
    max_ranks: int
    barrier: Barrier
    least_steps: int
    environment: Environment
    num_images: int
    image_bytes: int
    """Of all files."""
    file_system: str
    in_memory: bool
    """The files are on a file system that holds them in memory."""
    device: DeviceFacts | None = None
    step_ns: int | None = None
    """Of the device, for a batch."""
    period_ns: int | None = None
    """From the end of a step to that of the next where batches are always ready."""
    probe: CeilingProbe | None = None
    storage_source: str | None = None
    no_storage_counter: str | None = None
    looks: tuple[Look, ...] = ()
    """In the order in which they were taken."""
    failure: Failure | None = None
    """What ended it."""
    interrupted: bool = True


# -- findings --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MlperfAu:
    """The same looks by the rule of MLPerf Storage (docs/capacity.md)."""

    au_fraction: float
    """All steps but the first, with no warm-up left out; mean over the ranks."""
    num_steps: int
    """Of each rank in a look, the least."""
    enough_steps: bool
    """Whether there are the 500 that its rules want of an epoch."""
    reaches_target: bool


@dataclass(frozen=True)
class CapacityPoint:
    """One number of ranks; its looks joined."""

    ranks: int
    au_fraction: float
    au: Estimate
    """Mean over the ranks of the time that the device needs for its steps ÷ the time that passed."""
    au_least_fraction: float
    """Of the rank that has the least."""
    is_clear: bool
    """The interval of `au` does not hold the target."""
    samples_per_s: Estimate
    """Of all ranks together."""
    bytes_per_s: float
    """Of the files that were taken."""
    storage_use_fraction: float | None
    """`bytes_per_s` ÷ the storage's ceiling."""
    cpu_use_fraction: float | None
    """Busy part of the processors that may be used, by whoever was busy."""
    cpu_own_fraction: float | None
    """The part of it that the ranks' own processes use."""
    cpu_s_per_sample: float | None
    """CPU seconds of the ranks' own processes ÷ images."""
    waits_for_data_fraction: float
    """Of the time, in which a device waits for its own batch: mean over the ranks."""
    waits_at_barrier_fraction: float
    """Of the time, in which a device that is done waits for the last one: E[max] − mean of the arrivals."""
    au_without_barrier_fraction: float
    """What the mean rank would have if it waited for nobody."""
    read_fraction: float | None
    """Part of the time of loading that goes to reading files; None where the loader does not tell its reads."""
    mean_read_s: float | None
    """Of a file."""
    num_steps: int
    num_looks: int
    epochs: float
    """How often the shard was read in a look: more than 1 means that files came again."""
    resident_before: float | None
    """The largest of the looks."""
    mlperf: MlperfAu


@dataclass(frozen=True)
class RankBound:
    """What one resource alone would allow, from one and two ranks."""

    by: Stop
    ranks: int | None
    """None: no bound, or not known; `why` says which."""
    why: str


@dataclass(frozen=True)
class Capacity:
    """The figures of `loaderbench capacity`. Unknown is None; `missing` says why."""

    predicted_ranks: int | None
    found_ranks: int | None
    """The most ranks whose AU reaches the target; 0: not even one."""
    au_target_fraction: float
    curve: tuple[CapacityPoint, ...]
    next_is_stopped_by: Stop | None
    next_ranks: int | None
    """The number of ranks at which that was judged, the least that misses the target."""
    also_near_its_limit: Stop | None
    """A second resource that is used up at that number."""
    is_open: bool
    """The interval of the point at the edge holds the target: the number may be one more or less."""
    bounds: tuple[RankBound, ...]
    device_name: str
    dataset_name: str
    loader: str
    batch_size: int
    barrier: Barrier
    max_ranks: int
    demand_samples_per_s: float | None
    """Of one rank at AU 1."""
    storage_samples_per_s: Estimate | None
    """The ceiling in images of the data set's mean size."""
    storage_bound_by: Bound | None
    cpus: float
    """Usable processors, by affinity and quota."""
    cache: CacheState
    cold_is_proven: bool
    caveats: tuple[str, ...]
    failure: str | None
    interrupted: bool
    missing: Mapping[str, str] = field(default_factory=dict)
