"""What `run.json` holds: the figures, the verdict and the caveats of one run. Its JSON Schema is generated from here.

A value that was not measured is None and has a caveat that says why. Fields may be added without a new schema number;
readers drop those they do not know. reporting/words.py fills in the texts (`summary`, `evidence`, `action`, `message`,
`hint`), which follow from the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar, get_args

from loaderbench import plain
from loaderbench.cases.arms import Arm
from loaderbench.cases.case import CacheState, Case, Change
from loaderbench.findings.advice import ADVICE_CODES
from loaderbench.plain import Json, JsonObject
from loaderbench.recording.caveats import Caveat, Reason
from loaderbench.recording.estimate import Estimate as Estimate
from loaderbench.recording.facts import (
    Environment,
    Failure,
    ImageFailure,
    Percentiles,
    Status,
    StorageKind,
    WatchedFacts,
)
from loaderbench.recording.thread_samples import Role, State

Cause = Literal["storage", "prep", "contention", "transfer", "launch"]
"""What a verdict can name besides compute."""
Share = Literal["compute", "launch", "transfer", "prep", "contention", "storage", "unexplained"]
Removable = Literal["storage", "prep", "contention", "transfer", "launch", "compute"]
_Gain = TypeVar("_Gain")
Bottleneck = Literal["storage", "prep", "contention", "transfer", "launch", "compute", "mixed", "undetermined"]
Stage = Literal["storage", "prep", "loader", "transfer", "issue", "device"]
GapClass = Literal["data_stall", "launch", "transfer_sync", "other"]
ContentionBy = Literal["workers", "own threads", "neighbours", "quota", "steal"]
"""Who keeps the processors from the run's threads: more workers than processors, the run's other threads, other
processes, a cgroup's quota, the hypervisor."""
Bound = Literal["bandwidth", "latency"]
StorageSlowness = Literal["bandwidth", "latency", "tail", "stalls"]
"""What makes a storage slow: its rate; the time until each file answers; few files; times in which it stands still."""
ColdProof = Literal["bytes", "residency"]
"""Why a cold run's reads came from the storage. `bytes`: what its counters saw is what a cold read moves. `residency`:
no page was in memory before a window, hardly one behind it, and reads took as long as a storage's."""

CAUSES: tuple[Cause, ...] = get_args(Cause)
STAGES: tuple[Cause, ...] = tuple(cause for cause in CAUSES if cause != "contention")
"""The causes that are work of the run's own; contention is the want of processors for it."""
SHARES: tuple[Share, ...] = get_args(Share)
GAP_CLASSES: tuple[GapClass, ...] = get_args(GapClass)


@dataclass(frozen=True)
class Range:
    """A value and its ends; None where they are not known."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step of the real arm."""

    mean: float
    p50: float
    p95: float
    p99: float


# -- verdict ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Advice:
    """One thing to try.

    Raises:
        ValueError: the code is no advice of the table of findings.
    """

    code: str
    cause: Removable
    """The cause that it removes."""
    change: Change | None = None
    """Fields of the case to change; None: loaderbench cannot run it."""
    predicted_speedup: Estimate | None = None
    """None where the outcome does not follow from what was measured."""
    at_most: Estimate | None = None
    """The gain of removing the cause completely."""
    details: Mapping[str, Json] = field(default_factory=dict)
    """The figures that its words use."""
    action: str = ""
    """What to do, in words."""
    measured_speedup: Estimate | None = None
    """Samples/s with the change ÷ without it, measured by `--verify`."""
    not_verified: str | None = None
    """Why `--verify` did not measure it; None where it did, or was not asked for."""
    verified: bool = False
    """Whether `--verify` was asked for."""

    def __post_init__(self) -> None:
        if self.code not in ADVICE_CODES:
            raise ValueError(f"unknown advice '{self.code}'")


@dataclass(frozen=True)
class PixelDifference:
    """How far samples decoded with `--decode-scale auto` differ from those decoded at full size, in 8-bit levels."""

    mean: float
    """Mean absolute difference over all samples, those among them that are too small to scale."""
    most: float
    """That of the sample that differs most."""
    scaled_fraction: float
    """Samples that differ, which are those whose crop is decoded smaller."""
    num_samples: int


@dataclass(frozen=True)
class DataWait:
    """The wait for data as a fraction of the step, by the two witnesses."""

    by_arms: Estimate
    by_timeline: Estimate


CauseDetail = Literal[
    "bandwidth", "latency", "metadata", "tail", "stalls", "drift", "concurrency", "connections", "throttling", "client",
    "decode", "augment", "collate", "sampler", "delivery", "lock", "sleep", "network", "one_worker", "order",
    "dataset_code", "no_loader", "epoch_start",
    "own_threads", "gil", "workers", "neighbours", "quota", "affinity", "steal",
    "step", "gc", "checkpoint", "logging", "validation", "compile", "sync", "collective",
]  # fmt: skip
"""What of a bottleneck it is: of storage, of preparation, of contention, of compute."""


@dataclass(frozen=True)
class Where:
    """A line of code that threads of one role spend much of their time in."""

    role: Role
    state: State
    """What they do there for most of it."""
    file: str
    line: int
    function: str
    fraction: float
    """Of the time of these threads; of workers, of that in which they make batches."""
    callee: str = ""
    """What the line calls; empty: nothing, or it is unknown."""
    part: str = ""
    """The part of a training loop that it belongs to: `sampler`, `dataset`, `collate`, `step` …"""


def gain_without(bottleneck: Bottleneck, gains: Mapping[Removable, _Gain]) -> _Gain | None:
    """The gain without a bottleneck; None for one that is no cause, such as `mixed`."""
    return next((gain for cause, gain in gains.items() if cause == bottleneck), None)


@dataclass(frozen=True)
class Verdict:
    """What limits the run, and what removing it would give."""

    bottleneck: Bottleneck
    summary: str = ""
    """One sentence."""
    reasons: tuple[Reason, ...] = ()
    """Why it is undetermined, or mixed."""
    speedup_if_removed: Mapping[Removable, Estimate | None] = field(default_factory=dict)
    joint: tuple[Cause, ...] = ()
    """For a mixed verdict: the smallest set of causes whose joint removal is worth it, or the causes that the
    measurements cannot tell apart."""
    joint_speedup: Estimate | None = None
    waiting_for_data: DataWait | None = None
    evidence: tuple[str, ...] = ()
    """The measured figures behind it, a line each."""
    advice: tuple[Advice, ...] = ()
    cause_detail: CauseDetail | None = None
    """None where it is not known."""
    where: tuple[Where, ...] = ()
    """The lines that the cause is at first; of a watched script whose threads were sampled."""
    by_model: Estimate | None = None
    """The gain without the bottleneck by replay of the batches of `real`, beside that of the arm without it."""

    @property
    def gain(self) -> Estimate | None:
        """The gain without the bottleneck alone; None if it is not one cause, or the gain is unknown."""
        return gain_without(self.bottleneck, self.speedup_if_removed)


# -- figures ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Residency:
    """Mean fraction of the files' pages that were in the page cache before and after the windows."""

    before: float | None
    after: float | None


@dataclass(frozen=True)
class NfsOperations:
    """What the NFS client's counters say, over all operations."""

    operations_per_s: float
    rtt_s: float
    """Mean time of an operation on the wire and in the server."""
    queue_s: float
    """Mean time of an operation in the client's queue before that."""
    exe_s: float
    """Mean total time of an operation: both, and the rest."""
    retransmits: float
    in_flight: float
    """Operations under way on average: Σ exe ÷ wall."""


@dataclass(frozen=True)
class CeilingStageFigures:
    readers: int
    bytes_per_s: float
    file_s: Percentiles | None
    method: str
    nfs: NfsOperations | None = None


@dataclass(frozen=True)
class Ceiling:
    """What the storage gives to enough readers (docs/method.md, `The storage's ceiling`)."""

    bytes_per_s: Estimate
    readers: int
    """The least number of readers that reaches the ceiling."""
    still_rising: bool | None
    """None where fewer than two numbers of readers were tried."""
    bound_by: Bound | None
    growth_per_doubling: float | None
    probe_limited: bool
    """The probe's own Python may have set the rate."""
    stopped_by: str
    stages: tuple[CeilingStageFigures, ...] = ()


@dataclass(frozen=True)
class ReadFigures:
    """How long single files took in the real arm."""

    num: int
    mean_open_s: float
    mean_read_s: float
    """From open until read and closed."""
    open_s: Percentiles
    read_s: Percentiles
    slowest_s: float
    """Opening and reading of the slowest file."""


@dataclass(frozen=True)
class SlowFile:
    path: str
    """Below the data set's root."""
    seconds: float
    """Mean of its slow reads."""
    num: int
    """How often it was among the slowest reads."""


@dataclass(frozen=True)
class Tail:
    """Few files that take most of the time (docs/method.md, `Tails and stalls`)."""

    share: float
    """Of the files' time, the part in the slowest reads."""
    slow_s: float
    """Mean seconds of the slow ones: of those that take half as long as these do on average."""
    typical_s: float
    """Median seconds of a file."""
    same_files: bool | None
    """The same files are slow each time they are read; False: others each time; None: too few were read again."""
    files: tuple[SlowFile, ...]
    """Those that were among the slowest most often."""
    folder: str | None = None
    """The folder right below the data set's root that holds most of them; None where none stands out."""
    folder_part: float | None = None
    slowest_part: float = 0.01
    """The part of the reads that `share` is about: 0.01, or 0.05 where more than a hundredth is slow."""


@dataclass(frozen=True)
class SlowFolder:
    """A folder of the data set whose files are slower than the others', and too many to be a tail."""

    folder: str
    """Right below the data set's root, or the one around its files."""
    of_files: float
    """Its part of all files."""
    of_slowest: float
    """Its part of the slowest reads, of as many as would be its own."""
    times: float
    """How many times as long as the others that part of the reads takes, on average."""


@dataclass(frozen=True)
class Stalls:
    """Times in which the whole storage stood still: no read ended, then all that waited went on together."""

    num: int
    length_s: float
    period_s: float
    """From one to the next."""
    regular: bool
    """Whether they are known to come at regular times."""
    part: float
    """Of the time in which files were read."""


@dataclass(frozen=True)
class RateChange:
    """The rate changed for good while it was measured."""

    at_s: float
    """Since measuring began."""
    before: float
    """Samples/s."""
    after: float


@dataclass(frozen=True)
class Residual:
    """The step by replay of the run's batches (pipeline/), beside the measured one."""

    value: float
    """Replayed ÷ measured, less 1."""
    held_out: bool
    """The rounds that were replayed are not those that the other arms, standstills and processors were fitted on."""


@dataclass(frozen=True)
class StorageFigures:
    """What the storage did in the real arm."""

    bytes_read: int | None
    expected_bytes: int | None
    moved_fraction: float | None
    """Bytes that the storage moved ÷ bytes that a cold read has to move."""
    bandwidth_bytes_per_s: float | None
    reads_per_s: float | None
    mean_file_bytes: float | None
    ceiling_bytes_per_s: float | None
    ceiling: Ceiling | None
    source: str | None
    cache_state: CacheState | None
    """The state that the arm found: `cold` only where the page cache did not serve it."""
    residency_fraction: Residency
    cold_proven: bool
    """Whether there is a proof (`cold_proof`) that the reads came from the storage."""
    nfs: NfsOperations | None = None
    """None on other storage."""
    cold_proof: ColdProof | None = None
    """None without a proof, and where it was not to be cold."""
    cold_read_ratio: float | None = None
    """Time to read the first bytes of an evicted file ÷ to read them from memory, median of a few files."""
    idle_proof: StorageKind | None = None
    """The kind of storage that provably had nothing to do, so that its share is 0; None without a proof."""
    others_read_bytes: int | None = None
    """What other programs read from the same disk meanwhile; None where that cannot be told."""
    kind: StorageSlowness | None = None
    """What makes it slow; None where it had nothing to do, or that is not clear."""
    latency_of: Literal["open", "read"] | None = None
    """With `latency`: what takes the time; None where the loader does not tell."""
    reads: ReadFigures | None = None
    """None where the loader does not tell when it reads a file, and in runs that did not store it."""
    tail: Tail | None = None
    stalls: Stalls | None = None
    fetch_saw: bool | None = None
    """Whether `fetch` met the tail or the stalls that `real` met; None where there were none, or it does not tell."""
    slow_folder: SlowFolder | None = None
    """None where none is known, and where a tail or stalls are what is slow."""


@dataclass(frozen=True)
class TransferFigures:
    """The copy to the device, by the arm `host`, where data are always ready."""

    overlap: bool
    bytes_per_step: int
    copy_s: float
    exposed_s: float
    """The part of the copy time that lengthens the step."""
    hidden_s: float
    link_bytes_per_s: float
    ceiling_bytes_per_s: float
    pinned: bool | None = None


@dataclass(frozen=True)
class CpuFigures:
    busy_fraction: float | None
    """Busy fraction of all CPUs of the machine."""
    cores_used: float | None
    """Cores used by the measuring process and its workers."""
    seconds_per_sample: float | None
    workers_rss_bytes: float | None
    """Resident memory of the measuring process and all its workers, those of the other arms too; shared pages count in
    each. More than a run takes."""
    workers_pss_bytes: float | None
    """Memory of the worker processes of the loader of `real` alone; shared pages count once (PSS)."""


@dataclass(frozen=True)
class ContentionFigures:
    """Who had the processors in the windows of `real`, in processors (docs/method.md, `Contention`)."""

    by: ContentionBy | None
    """Who keeps most from the run; None where its threads waited for no processor."""
    own: float
    """Used by the run."""
    queued: float
    """Threads of the run that were runnable, but ran on none."""
    neighbours: float | None
    """Used by other processes; None where the kernel does not tell, and where `neighbours_or_storage` does."""
    stolen: float | None
    """Used by other guests of the hypervisor."""
    cpus: int
    """Processors that the affinity mask allows."""
    quota_cpus: float | None
    """The tightest cgroup quota; None without one."""
    throttled: bool
    """Whether the quota stopped the run."""
    others_fraction: float
    """The part of `queued` that stands behind others, 0 to 1."""
    pressure_fraction: float | None = None
    """Of the time, the part in which some task of the machine waited for a processor (/proc/pressure/cpu)."""
    neighbours_or_storage: float | None = None
    """Used by others, where no arm that leaves the storage alone tells other processes from the storage's own (a FUSE
    daemon, an NFS client); None elsewhere."""


@dataclass(frozen=True)
class GapShare:
    count_per_step: float
    fraction: float
    """Fraction of the window."""


@dataclass(frozen=True)
class GapHistogram:
    edges_s: tuple[float, ...]
    counts: tuple[int, ...]
    """One more bin than edges: below the first edge, between edges, and above the last."""


@dataclass(frozen=True)
class LargeGap:
    begin_s: float
    """From the window's begin."""
    duration_s: float
    gap_class: GapClass
    step: int
    batch: int
    worker: int | None


@dataclass(frozen=True)
class TraceClock:
    drift_ns: int
    uncertainty_ns: int
    error_ns: int
    """By how much kernels lie outside their steps (95th percentile)."""


@dataclass(frozen=True)
class KernelGap:
    """Gaps between kernels in a traced window (docs/method.md, `Kernel gaps`)."""

    num_steps: int
    count_per_step: float
    p50_s: float | None
    p95_s: float | None
    total_fraction: float
    by_class: Mapping[GapClass, GapShare]
    histogram: GapHistogram
    largest: tuple[LargeGap, ...]
    perturbation_fraction: float | None
    """Step time with tracing ÷ without, − 1."""
    busy_fraction: float
    kernel_fraction: float
    """Kernels alone, copies left out."""
    event_busy_fraction: float
    """An upper bound, by events around the steps."""
    kernels_per_step: float
    source: str
    clock: TraceClock


@dataclass(frozen=True)
class BusyWitnesses:
    """Fraction of the time in which the device was busy, by each source that can tell."""

    kernels: float
    nvml: float | None
    gpm: float | None
    events_at_most: float


@dataclass(frozen=True)
class DeviceFigures:
    kind: str
    name: str
    emulated: bool
    overlap: bool
    memory_bytes: int | None
    details: Mapping[str, Json]
    busy_fraction: float | None
    kernel_gap: KernelGap | None
    busy_witnesses: BusyWitnesses | None
    memory_peak_bytes: int | None
    nvml: Mapping[str, float | None] | None
    clock_drift_ns: int | None
    held_issue_s: float | None = None
    """Median host time to enqueue a step that was held back; None where no step was."""


@dataclass(frozen=True)
class ArmFigures:
    step_s: Estimate
    num_steps: int
    seconds: float


@dataclass(frozen=True)
class PreparationFigures:
    """What the loader's workers spent on preparing one image."""

    cpu_s: Estimate
    """CPU time besides reading."""
    minor_faults: float
    """Page faults without the storage: memory that was used for the first time, or again after glibc returned it."""


@dataclass(frozen=True)
class ShortRun:
    """Runs that begin with a full prefetch buffer, compared with the steady rate."""

    num_steps: int
    buffer_batches: int
    buffer_ratio: float
    buffer_full: bool
    throughput: Estimate | None
    flatters: Estimate | None
    """Rate of the short run ÷ rate of the steady one."""


@dataclass(frozen=True)
class DoseFigures:
    """By how much a known delay in each step lengthened the steps."""

    place: Literal["host", "stream"]
    """What was delayed: the thread that takes the batches, or the device's work."""
    response: Estimate
    """dT/dδ: near 1 it paces the run, near 0 it waits for something else."""
    delay_s: float
    """The mean delay."""
    expected: list[float] | None
    """The ends of what the bursts and the timeline let expect; null where they do not tell, and of the device."""
    agrees: bool | None
    """Whether both can be true; null where nothing was expected."""


NoWaiting = Literal["compute", "undetermined", "gain_not_measured", "no_verdict"]
"""Why no money goes to waiting, or it is not known how much: nothing that feeds the device limits the run; the verdict
names no cause; the gain without the cause that it names was not measured; there is no verdict."""
NoEpoch = Literal["rate_not_measured", "no_facts", "no_files", "no_length"]
"""Why it is not known how long an epoch takes: there is no rate; the facts of the run, which hold the number of images,
are not stored; it read no files; the watched loader does not tell its length."""


@dataclass(frozen=True)
class Cost:
    """Money, in the currency of the price."""

    hour: Range
    """An hour of running."""
    epoch: Range | None
    month: Range
    """month_hours of running without pause."""


@dataclass(frozen=True)
class Saving:
    """What a piece of advice would save, for the same work."""

    number: int
    """Of the advice, from 1."""
    speedup: Estimate
    measured: bool
    """Whether the speed-up was measured by `--verify`; else it is the predicted one."""
    saves: Cost


@dataclass(frozen=True)
class PriceFigures:
    """What running and waiting cost at the price that was asked for (docs/method.md, `What waiting costs`)."""

    per_hour: float
    """Of the machine that ran it."""
    currency: str
    """As it was given; empty where none was."""
    currency_first: bool
    """Whether it stands before the number."""
    month_hours: float
    running: Cost
    waiting: Cost | None
    """The part of it in which the run waited for what its verdict names; null with `no_waiting`."""
    no_waiting: NoWaiting | None
    epoch_samples: int | None
    epoch_s: Range | None
    """Seconds of an epoch at the measured rate; null with `no_epoch`."""
    no_epoch: NoEpoch | None
    savings: tuple[Saving, ...]
    """Of the advice whose speed-up is known."""


@dataclass(frozen=True)
class Timing:
    """How long a run took, and from when on it had its answer. Seconds count from the start of its process."""

    asked_s: float | None
    """`--duration`; None: as long as it took to decide, or for a number of steps."""
    wall_s: float
    first_answer_s: float | None
    """Until the windows so far named a cause; None: none did, nobody looked, or an older version measured."""
    decided_s: float | None
    """Until they decided it (docs/method.md, `Decided`)."""
    real_fraction: float | None
    """Part of `real` in the time of all windows, with their warm-up."""


@dataclass(frozen=True)
class RunRecord:
    """One measured run: results/<run_id>/run.json and `loaderbench run --json`."""

    schema: int
    """Version of this format."""
    rules_version: int
    """Version of the rules that judged it: the same facts and rules give the same record."""
    run_id: str
    """Name of the run's folder; sorts by start time."""
    status: Status
    """skipped: the machine lacks what the case needs."""
    failure: Failure | None
    """Why the run did not end well; null where status is ok."""
    case: Case
    environment: Environment | None
    started_at: str
    """UTC, ISO 8601."""
    wall_s: float
    throughput: Estimate | None = None
    """Samples ÷ time of the real arm."""
    step_time_s: StepTimes | None = None
    total_time_s: float | None = None
    """Length of all windows of the real arm."""
    num_steps: int | None = None
    time_to_first_batch_s: float | None = None
    """Loader construction → first batch delivered."""
    start_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each part of what came before the first round, in order; empty in runs that did not store them."""
    loader_rate: Estimate | None = None
    """The loader alone, without a device."""
    ingestion_rate: Estimate | None = None
    """The device alone, with the batch already on it."""
    accelerator_utilization_fraction: float | None = None
    """T_device ÷ T_real."""
    accelerator_utilization: Estimate | None = None
    shares: Mapping[Share, Estimate | None] | None = None
    """Fractions of the step time; they sum to 1 when all arms ran."""
    verdict: Verdict | None = None
    capacities: Mapping[Stage, Estimate | None] | None = None
    """Samples/s of each stage alone."""
    storage: StorageFigures | None = None
    transfer: TransferFigures | None = None
    stages: Mapping[str, float] | None = None
    """Seconds an image in read, decode, augment, collate …"""
    cpu: CpuFigures | None = None
    contention: ContentionFigures | None = None
    """null in runs of older versions, and where the kernel does not tell."""
    device: DeviceFigures | None = None
    loader: JsonObject | None = None
    """The libraries and versions that really ran."""
    overhead_fraction: float | None = None
    """Fraction of the step that measuring takes."""
    overhead_measured_at: str | None = None
    num_failures: int | None = None
    """How often an image that was read could not be decoded."""
    failures: tuple[ImageFailure, ...] = ()
    sampling_cpu_fraction: float | None = None
    arms: Mapping[Arm, ArmFigures] | None = None
    preparation: Mapping[Arm, PreparationFigures] = field(default_factory=dict)
    """Of the arms whose loader records it. The same work in each (caveat `preparation_differs`)."""
    stopped_by: str | None = None
    timing: Timing | None = None
    short_run: ShortRun | None = None
    """null where no short runs were asked for."""
    watched: WatchedFacts | None = None
    """null for a run of our own loop."""
    storage_by_shadow: Estimate | None = None
    """The part of a sample's time that is its storage's, by a shadow reader; null where there was none."""
    storage_by_processors: Estimate | None = None
    """The part of its time in which a loader that tells nothing of itself may wait for what it reads, by the processors
    that all processes and threads of the script used; null where its workers tell, or that does not."""
    doses: tuple[DoseFigures, ...] = ()
    """By how much known delays lengthened a watched script's steps."""
    notes: tuple[Reason, ...] = ()
    """What else a watched script showed, where it matters."""
    residual: Residual | None = None
    """How well the model of the pipeline, by which the advice is predicted, explains the run; null in runs without a
    complete step."""
    rate_change: RateChange | None = None
    """null: the rate did not change for good, or there were too few steps to tell."""
    tag: str | None = None
    """A name that the user gave it."""
    price: PriceFigures | None = None
    """Of the view that was asked for: null without `--price`, and in every stored record."""
    caveats: tuple[Caveat, ...] = ()

    @property
    def so_far_s(self) -> float | None:
        """How long the run had gone on when this was written; None where it had ended."""
        return None if self.watched is None else self.watched.so_far_s

    @property
    def measured(self) -> bool:
        """Whether the run came to its end and there is a rate. One that was not finite is read as NaN."""
        return self.status == "ok" and self.throughput is not None and math.isfinite(self.throughput.value)

    def share(self, name: Share) -> float | None:
        """The share's value; None where it was not measured."""
        estimate = (self.shares or {}).get(name)
        return None if estimate is None else estimate.value


LEAST, MOST = 1e-90, 1e90
"""Magnitudes of the figures that a run can give. Beyond, sums and quotients over several runs leave a float's range."""


def check_figures(case: Case, rate: Estimate | None, step: StepTimes | None, value: JsonObject) -> None:
    """Check what the types do not tell of a record. `value`: its JSON. Raises ValueError, which names the figure."""
    where = _beyond(value)
    if where is not None:
        raise ValueError(f"{where} is not a possible figure of a run")
    above_zero = {
        "case.batch_size": case.step.batch_size,
        "case.steps": case.effort.steps,
        "throughput.value": None if rate is None else rate.value,
        "throughput.high": None if rate is None else rate.high,
        "step_time_s.mean": None if step is None else step.mean,
    }
    wrong = [name for name, one in above_zero.items() if one is not None and one <= 0]
    if case.feed.workers < 0:
        wrong.append("case.workers")
    if wrong:
        raise ValueError(f"{wrong[0]} must be above 0")


def _beyond(value: JsonObject | list[Json]) -> str | None:
    """The place of the first number beyond LEAST and MOST, which is put together only where there is one: a store holds
    millions of numbers."""
    for name, item in value.items() if isinstance(value, dict) else enumerate(value):
        if type(item) is float or type(item) is int:
            if item and not LEAST <= abs(item) <= MOST:
                return str(name)
        elif type(item) is dict or type(item) is list:
            found = _beyond(item)
            if found is not None:
                return f"{name}.{found}"
    return None


def finite(record: RunRecord) -> RunRecord:
    """The record with None, and a caveat, where a figure is NaN or infinite: JSON has neither."""
    places: list[str] = []
    value = plain.to_json(record, places)
    if not places:
        return record
    return replace(
        plain.from_json(RunRecord, value), caveats=(*record.caveats, Caveat("not_finite", {"places": [*places]}))
    )
