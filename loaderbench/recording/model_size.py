"""`loaderbench model size`: what was measured of each batch, and how many devices a target needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.case import Mode, Optimizer, Precision
from loaderbench.findings.table import words
from loaderbench.recording.facts import DeviceFacts, Environment, Failure, MemoryFacts, Status, WorkloadFacts
from loaderbench.recording.others import TimedFacts
from loaderbench.recording.record import Estimate

StoppedBy = Literal["list", "max_batch", "memory", "no_gain", "latency", "duration", "known", "failed", "interrupted"]
"""Why no larger batch was tried. `known`: an emulated device's profile goes no further."""
SizeBound = Literal["compute", "memory", "latency"]
FileSource = Literal["given", "data", "run"]
NoAnswer = Literal["nothing_measured", "latency_below_all", "latency_unknown"]
FeedStage = Literal["storage", "prep", "loader"]
FEED_STAGES: tuple[FeedStage, ...] = get_args(FeedStage)
NO_PREDICTION = words("not_predicted_yet", {})

# -- facts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepRound:
    """Steps of one batch in one round, one after the other, on a batch that stays on the device."""

    step_s: NDArray[np.float64]
    """[num_steps]: each from the end of the step before to its own, steps enqueued back to back, device's clock."""
    alone_s: NDArray[np.float64] | None = None
    """[num_steps]: each enqueued on an idle device, until its end, the host's clock; None where a step is done when
    the call returns, so that `step_s` is the same."""


@dataclass(frozen=True)
class KnownStep:
    """A step's time that is known without a measurement."""

    step_s: float
    label: str
    source: str


@dataclass(frozen=True)
class BatchFacts:
    """One batch size."""

    batch_size: int
    status: Status
    """skipped: it was not tried."""
    failure: Failure | None = None
    rounds: tuple[StepRound, ...] = ()
    memory: MemoryFacts | None = None
    """Of the first round, in a process of its own."""
    known: KnownStep | None = None
    predicted_peak_bytes: int | None = None
    no_prediction: str | None = NO_PREDICTION
    """Why `predicted_peak_bytes` is None."""


@dataclass(frozen=True)
class FeedFacts:
    """What a stored loader run measured, copied: the run may be removed."""

    run_id: str
    named: bool
    """By the user; else it is the newest of this machine and data set."""
    dataset_name: str
    resolution: int | None
    loader: str
    workers: int
    input_size: int | None
    """None: uncropped images."""
    capacities: Mapping[FeedStage, Estimate | None]
    """Images/s of each stage alone."""
    cpu_s_per_sample: float | None
    no_cpu_s: str | None
    """Why that is None."""
    mean_file_bytes: float | None


@dataclass(frozen=True)
class SizeFacts(TimedFacts):
    """What was asked and measured."""

    model: str
    mode: Mode
    precision: Precision
    optimizer: Optimizer
    device_name: str
    """The device that was asked for; `device` has the facts."""
    input_size: int | None
    channels: int
    inputs: str | None = field(default=None, kw_only=True)
    """What the model takes, where that is not one square image (cases/inputs.py)."""
    seed: int
    target_per_s: float | None
    latency_s: float | None
    percentile: float
    environment: Environment
    device: DeviceFacts | None = None
    workload: WorkloadFacts | None = None
    batches: tuple[BatchFacts, ...] = ()
    """In order of size."""
    num_rounds: int = 0
    """Rounds that were finished."""
    stopped_by: StoppedBy = "interrupted"
    duration_s: float = 0.0
    """Most seconds of measuring that were allowed."""
    feed: FeedFacts | None = None
    no_feed: str | None = None
    """Why no stored run was joined."""
    mean_file_bytes: float | None = None
    mean_file_source: FileSource | None = None


# -- findings --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepPercentile:
    """A percentile of the times of single steps, with the 95 % interval of its order statistics."""

    percent: float
    value: float | None
    low: float | None
    high: float | None
    num_steps: int
    steps_needed: int
    unknown: Literal["too_few_steps", "no_spread"] | None = None
    """Why it is None."""


@dataclass(frozen=True)
class BatchFigures:
    """One batch size."""

    batch_size: int
    status: Status
    failure: Failure | None
    step_s: Estimate | None
    samples_per_s: Estimate | None
    s_per_sample: float | None
    num_steps: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    percentiles: tuple[StepPercentile, ...]
    """Of 50, 95, 99, and of the one asked for."""
    peak_live_bytes: int | None
    """The device's allocator; None where the device has no memory of its own."""
    rss_growth_bytes: int | None
    """Growth of the process's resident memory, where the device is the host's processors."""
    memory_missing: Mapping[str, str]
    predicted_peak_bytes: int | None
    no_prediction: str | None
    label: str
    """`measured`, or an emulated device's word for its constant."""
    source: str | None
    within_latency: bool | None
    """Whether the asked percentile is within the limit; None where there is none, or it is not known."""
    grows: bool | None
    """Images/s are above those of the batch before it, beyond both intervals."""


@dataclass(frozen=True)
class Count:
    """A whole number with an interval; its ends are None where the width is unknown."""

    value: int
    low: int | None
    high: int | None


@dataclass(frozen=True)
class Demand:
    """What loader and storage must deliver."""

    samples_per_s: float
    of_target: bool
    """False: of one device, for no target was given."""
    bytes_per_s: float | None
    cpus: float | None


@dataclass(frozen=True)
class Supply:
    """How many such devices a stage of the stored run feeds."""

    stage: FeedStage
    capacity: Estimate | None
    devices: Estimate | None
    """None where the run lacks the stage's capacity, or there is no rate."""


@dataclass(frozen=True)
class Sizing:
    """The batch table and the answer."""

    model: str
    mode: Mode
    precision: Precision
    optimizer: Optimizer
    device: DeviceFacts | None
    device_name: str
    input_size: int | None
    channels: int
    inputs: str | None = field(default=None, kw_only=True)
    """What the model takes, where that is not one square image (cases/inputs.py)."""
    target_per_s: float | None
    latency_s: float | None
    percentile: float
    batches: tuple[BatchFigures, ...]
    num_rounds: int
    stopped_by: StoppedBy
    duration_s: float
    memory_of: Literal["rss_growth_bytes", "peak_live_bytes"]
    chosen_batch: int | None
    devices_needed: int | None
    devices_needed_interval: Count | None
    bound: SizeBound | None
    no_answer: NoAnswer | None
    """Why there is no answer."""
    still_grows: bool
    """Images/s of the largest batch tried were still above those of the one before it."""
    demand: Demand | None
    supplies: tuple[Supply, ...]
    feed: FeedFacts | None
    no_feed: str | None
    mean_file_bytes: float | None
    mean_file_source: FileSource | None
    environment: Environment
    is_decided: bool | None = None
    """Whether the interval of `devices_needed` is narrow enough for an answer; None without a target."""
