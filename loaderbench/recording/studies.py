"""Several cases judged together: the facts that each kind of study keeps, and its findings.

`study.json` holds both. The runs of a study are beside it in the store; runs that only the study needs (a rung of
`tune`, a case of the self-test) are in its own folder. Findings are pure functions of the facts and the runs' records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.case import CacheState, Case, Change
from loaderbench.plain import Json
from loaderbench.recording.caveats import Caveat, Reason
from loaderbench.recording.facts import (
    DeviceFacts,
    Environment,
    Failure,
    MemoryFacts,
    ScaleProbe,
    Status,
    WorkloadFacts,
)
from loaderbench.recording.others import TimedFacts
from loaderbench.recording.record import (
    Bottleneck,
    Bound,
    ColdProof,
    Estimate,
    GapClass,
    GapShare,
    PixelDifference,
    Range,
    RunRecord,
    Share,
    ShortRun,
)

StudyKind = str
"""A key of recording/kinds.py, KINDS."""
SideName = Literal["a", "b"]
SIDE_NAMES: tuple[SideName, ...] = get_args(SideName)
Labels = Mapping[SideName, str]
"""What the user calls each side."""
Outcome = Literal["faster", "slower", "indistinguishable", "from_memory"]
"""`from_memory`: two storages of which one or both answered from memory; nothing can be said of the storages."""
ReadFrom = Literal["storage", "memory", "unknown"]
InjectedCause = Literal["storage", "prep", "contention", "transfer", "launch", "compute", "mixed", "either", "none"]
HardClass = Literal["tails", "stalls", "opens", "neighbours", "quota", "own threads", "either-or", "warm FUSE"]
"""Of the self-test's cases, those in which the cause comes and goes, is another's, or is one of two."""

# -- sweep -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepFacts:
    num_cases: int
    """Cases that were asked for; the runs may be fewer."""


@dataclass(frozen=True)
class Row:
    """Equal runs of one case, repeats joined."""

    case: Case
    run_ids: tuple[str, ...]
    rate: Estimate
    total_s: float
    """Seconds for the study's number of steps."""
    faster_than_serial: Estimate | None
    """None where serial was not measured."""
    batch_bytes: float | None
    read_bytes_per_s: float | None
    """None where the storage was not read."""
    ceiling_bytes_per_s: float | None
    utilization_fraction: float | None
    gap_fraction: float | None
    gap_fraction_by_class: Mapping[GapClass, GapShare] | None
    gaps_per_step: float | None
    gap_p95_s: float | None
    bottleneck: Bottleneck | None
    speedup_if_removed: Estimate | None
    """Gain of removing the bottleneck, or all of them if mixed; None for compute and where it is unknown."""
    seconds_per_sample: float | None
    """CPU seconds a sample."""
    workers_rss_bytes: float | None
    short_run: ShortRun | None
    """The short run of the last repeat."""
    workers_pss_bytes: float | None = None
    """Memory of the loader's own worker processes, shared pages once."""


@dataclass(frozen=True)
class Knee:
    """For runs that differ only in workers: the least number of workers within 3 % of the best rate."""

    case: Case
    workers: int
    tried: tuple[int, ...]
    of_best_fraction: float
    seconds_per_sample: float | None
    workers_rss_bytes: float | None
    is_last: bool
    """The knee is the largest number of workers tried, so more workers might be faster still."""
    workers_pss_bytes: float | None = None


@dataclass(frozen=True)
class Flip:
    """Where the verdict changes."""

    along: Literal["resolution", "workers"]
    at: tuple[int, int]
    bottlenecks: tuple[Bottleneck, Bottleneck]
    case: Case
    """The case after the change."""


@dataclass(frozen=True)
class Sweep:
    num_steps: int
    rows: tuple[Row, ...]
    knees: tuple[Knee, ...]
    flips: tuple[Flip, ...]


# -- compare ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SameFiles:
    """What was compared to establish that two data sets are the same."""

    num_images: int
    total_bytes: int
    num_hashed: int
    hashed_bytes: int


@dataclass(frozen=True)
class CompareFacts:
    labels: Mapping[SideName, str]
    num_cases: int
    same_files: SameFiles | None = None
    """None for two stored runs."""
    notes: tuple[Reason, ...] = ()
    """What was left out, or done differently from the default."""


@dataclass(frozen=True)
class Difference:
    field: str
    a: Json
    b: Json


@dataclass(frozen=True)
class FailedRun:
    run_id: str
    status: Status
    message: str | None


@dataclass(frozen=True)
class FileReads:
    """Seconds to read a file, of the storage probe's stage with as many readers as the run, or the next fewer."""

    readers: int
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True)
class SideStorage:
    """What one side's storage did: means over its runs; sums for bytes and retransmits."""

    source: str | None
    cache_state: CacheState | None
    cold_proven: bool
    bytes_read: float | None
    bandwidth_bytes_per_s: float | None
    operations_per_s: float | None
    file_read_s: FileReads | None
    rtt_s: float | None
    queue_s: float | None
    exe_s: float | None
    in_flight: float | None
    retransmits: float | None
    client_cache_hit_fraction: float | None
    resident_before_fraction: float | None
    mean_file_bytes: float | None
    ceiling_bytes_per_s: float | None
    ceiling_readers: int | None
    ceiling_still_rising: bool
    bound_by: Bound | None
    ceiling: Range | None = None
    """`ceiling_bytes_per_s` with its interval."""
    read_from: ReadFrom = "unknown"
    """Where all runs' images came from; `memory` where a part of them did."""
    cold_proof: ColdProof | None = None
    """The weaker one of its runs' proofs."""


@dataclass(frozen=True)
class PredictedWorkers:
    """What a run's advice predicts for more workers alone."""

    workers: int
    samples_per_s: Range
    method: str
    from_workers: int | None = None
    """Workers of the run whose advice predicts it."""


@dataclass(frozen=True)
class Side:
    """One side's equal runs as one."""

    runs: tuple[str, ...]
    failures: tuple[FailedRun, ...]
    throughput: Estimate | None
    accelerator_utilization_fraction: float | None
    bottleneck: str | None
    """Several bottlenecks where the runs differ: `prep or storage`."""
    summary: str | None
    """Summary of the last run."""
    stages: Mapping[str, float | None] | None
    storage: SideStorage | None
    more_workers: PredictedWorkers | None


@dataclass(frozen=True)
class Pair:
    """Both sides' runs of one cache state and number of workers."""

    cache: CacheState
    workers: int
    ratio: Estimate | None
    """Images/s of `b` ÷ those of `a`."""
    outcome: Outcome | None
    a: Side
    b: Side

    def side(self, name: SideName) -> Side:
        return self.a if name == "a" else self.b


@dataclass(frozen=True)
class Needs:
    """What `b` would have to give to reach `a`'s best rate, and what it gives."""

    bytes_per_s: float | None
    gives_bytes_per_s: float | None
    gives_still_rising: bool | None
    bound_by: Bound | None
    workers: int
    file_read_s: float | None
    takes_file_read_s: float | None
    gives: Range | None = None
    """`gives_bytes_per_s` with its interval."""


@dataclass(frozen=True)
class Parity:
    """At how many workers `b` catches up with `a`'s best rate, in one cache state."""

    cache: CacheState
    target_samples_per_s: float
    target_workers: int
    best_samples_per_s: float
    best_workers: int
    workers: int | None
    basis: Literal["measured", "undetermined", "predicted"] | None
    not_by: int | None
    """The most workers that were measured or predicted, where none reach it."""
    predicted: PredictedWorkers | None
    needs: Needs | None
    """None where parity is reached, even if only perhaps."""


@dataclass(frozen=True)
class Comparison:
    a: RunRecord | None
    """The leading pair's run; None in the store, which has the runs beside the study."""
    b: RunRecord | None
    ratio: Estimate | None
    outcome: Outcome | None
    differs: tuple[Difference, ...]
    """Differences besides the compared factor."""
    factor: tuple[str, ...]
    parity: Parity | None
    pairs: tuple[Pair, ...]
    parities: tuple[Parity, ...]

    def record(self, name: SideName) -> RunRecord | None:
        return self.a if name == "a" else self.b


# -- tune ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TuneScreen:
    """A short look at a setting's loader alone, without a device."""

    case: Case
    samples_per_s: float | None
    """None where it failed."""
    failure: str | None = None


@dataclass(frozen=True)
class TuneTrial:
    """One setting in the rungs."""

    case: Case
    runs: tuple[str, ...]
    """Runs in the study's own folder: one for each rung in which the setting was measured."""
    failure: str | None = None


@dataclass(frozen=True)
class Final:
    case: Case
    runs: tuple[str, ...]
    """Runs in the store, beside the study."""
    is_default: bool


@dataclass(frozen=True)
class TuneFacts:
    default: Case
    num_settings: int
    budget_s: float
    spent_s: float
    num_rungs: int
    """Rungs that were finished; an unfinished one compares nothing."""
    trials: tuple[TuneTrial, ...]
    finals: tuple[Final, ...]
    screens: tuple[TuneScreen, ...] = ()
    """Of one setting for all that differ in the prefetch alone."""
    untried: tuple[Change, ...] = ()
    """Settings that were neither measured nor failed."""
    scales: Mapping[str, ScaleProbe] = field(default_factory=dict)
    """Of the decoders of finalists with `--decode-scale auto`."""
    no_scales: str | None = None
    """Why that of one is missing."""


@dataclass(frozen=True)
class TrialRates:
    case: Case
    rates: tuple[float, ...]
    """Samples/s in each finished rung."""
    failure: str | None


@dataclass(frozen=True)
class Finalist:
    case: Case
    rate: Estimate | None
    run_ids: tuple[str, ...]
    is_default: bool
    failure: str | None = None
    """Why its first failed run failed; None where all were measured."""


@dataclass(frozen=True)
class Tuning:
    winner: Case | None
    """None where no finalist could be measured."""
    rate: Estimate | None
    over_default: Estimate | None
    """None where the default won, or has no rate."""
    over_second: Estimate | None
    trials: tuple[TrialRates, ...]
    finalists: tuple[Finalist, ...]
    pixels: PixelDifference | None = None
    """What the winner's `--decode-scale auto` changes; None where it has none, or `no_pixels` says why."""
    no_pixels: str | None = None


# -- selftest --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stopwatch:
    """Wall seconds a step: of each side's turns the fastest, or the mean where what slows it comes and goes."""

    with_s: float
    without_s: float
    without_prep_s: float | None = None
    """For two causes at once: without the one, and without the other."""
    without_transfer_s: float | None = None
    without_storage_s: float | None = None
    undisturbed_s: float | None = None
    """With the cause, and without the busy processes beside it; None where there were none."""
    turns: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Each of these → its turns; the first of one was taken beside the first of the others, and so on. Empty in
    self-tests that did not store them."""


@dataclass(frozen=True)
class ScenarioFacts:
    """One case of the self-test: what was built into the run, and what the stopwatch said."""

    name: str
    loader: str
    cause: InjectedCause
    """`none` for a null."""
    magnitude: float
    bed: str | None
    run_id: str
    """The run in the study's own folder, which does not mention the injection."""
    injected: Mapping[str, float]
    stopwatch: Stopwatch
    hard: HardClass | None = None


@dataclass(frozen=True)
class Left:
    """A case that was not run, or did not finish."""

    name: str
    reason: str


@dataclass(frozen=True)
class AlikeFacts:
    """What preparing an image took in a loader over files in memory, and in the same loader over the storage."""

    name: str
    prep_cpu_s: NDArray[np.float64]
    """[turns, 2] CPU seconds an image, reading left out: from memory, from the storage."""
    minor_faults: NDArray[np.float64]
    """[turns, 2] an image."""


@dataclass(frozen=True)
class AlikeOutcome:
    """Whether both prepared an image in the same CPU time."""

    name: str
    ratio: Estimate
    """From memory ÷ from the storage."""
    minor_faults: tuple[float, float]
    """An image, from memory and from the storage."""
    alike: bool | None
    """Whether the interval of the ratio reaches within 2 % of 1; None if it does, but is too wide to show that they are
    (it ends more than 5 % from 1)."""


@dataclass(frozen=True)
class SelfTestFacts:
    quick: bool
    device: str
    num_scenarios: int
    """Scenarios that this machine allows."""
    scenarios: tuple[ScenarioFacts, ...] = ()
    skipped: tuple[Left, ...] = ()
    failed: tuple[Left, ...] = ()
    """Cases that could run here but did not finish: none of them counts as right."""
    null_loader_run: str | None = None
    beside: int = 0
    """Busy processes beside each case that is not about processors itself."""
    only: tuple[str, ...] = ()
    """Parts of names: only cases that have one of them in theirs were asked for. Empty: all."""
    alike: tuple[AlikeFacts, ...] = ()


@dataclass(frozen=True)
class ScenarioOutcome:
    """The outcome of one scenario."""

    name: str
    loader: str
    truth: str
    verdict: Bottleneck
    true_speedup: float
    """Gain of removing the true cause; where several limit only together, of removing all of them."""
    predicted_speedup: float | None
    shares_true: Mapping[Share, float]
    shares: Mapping[Share, float | None]
    is_null: bool
    joint: tuple[str, ...] = ()
    reasons: str = ""
    best_alone: float = 1.0
    """For two causes: the gain of removing the better one alone."""
    hard: HardClass | None = None
    detail_true: str | None = None
    """Who holds the run up (contention), or of what kind its storage's slowness is; None: of no kind in particular."""
    detail: str | None = None
    """What the record said of that."""
    also: str | None = None
    """Another right answer: what gives about as much."""


@dataclass(frozen=True)
class ShareError:
    mean: float | None
    p95: float | None


@dataclass(frozen=True)
class SelfTest:
    """The self-test's score. Figures without any case are None."""

    cases: tuple[ScenarioOutcome, ...]
    accuracy_fraction: float | None
    num_clear_cases: int
    undetermined_fraction: float | None
    confident_wrong: int
    share_error: ShareError
    speedup_error_median: float | None
    null_false_positive_fraction: float | None
    overhead_fraction: float | None
    null_loader_au_fraction: float | None
    skipped: tuple[Left, ...]
    failed: tuple[Left, ...]
    detail_fraction: float | None = None
    """Of the clear cases judged right whose cause has a kind or a culprit, the part in which that was told."""
    num_others_first: int | None = None
    """Of the clear cases judged right, those in which the verdict named contention and not the cause that was built in:
    others really cost so much that either is true. None in self-tests that did not count them."""
    alike: tuple[AlikeOutcome, ...] = ()
    """Loaders whose arms were compared."""


# -- precision -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TimingFacts:
    """Undisturbed steps of one mode."""

    step_s: NDArray[np.float64]
    """[num_steps]: each from the end of the step before to its own, on the device's clock."""
    memory: MemoryFacts
    workload: WorkloadFacts


@dataclass(frozen=True)
class NumberFacts:
    """A mode's losses, norms or outputs."""

    loss: NDArray[np.float64] | None = None
    """[num_steps], training."""
    gradient_norm: NDArray[np.float64] | None = None
    outputs: NDArray[np.float32] | None = None
    """[images, classes] logits, inference."""


@dataclass(frozen=True)
class ModeFacts:
    """One precision, in a process of its own."""

    precision: str
    status: Status
    failure: Failure | None = None
    timing: TimingFacts | None = None
    numbers: NumberFacts | None = None


@dataclass(frozen=True)
class PrecisionFacts(TimedFacts):
    model: str
    mode: str
    device_name: str
    """The device that was asked for; `device` has the facts."""
    num_steps: int
    batch_size: int
    input_size: int | None
    seed: int
    environment: Environment
    inputs: str | None = field(default=None, kw_only=True)
    """What the model takes, where that is not one square image (cases/inputs.py)."""
    device: DeviceFacts | None = None
    modes: tuple[ModeFacts, ...] = ()
    repeat: NumberFacts | None = None
    """fp32's numbers again under another rounding: how far training amplifies a difference in the last bits."""
    caveats: tuple[Caveat, ...] = ()


@dataclass(frozen=True)
class Deviation:
    """|value − fp32's| over the steps; None where nothing is finite."""

    first: float | None
    mean: float | None
    max: float | None
    num_steps: int


@dataclass(frozen=True)
class TrainingAgreement:
    loss_deviation: Deviation
    gradient_norm_deviation: Deviation
    num_overflow_steps: int
    """Steps whose gradient norm is not finite."""
    num_nonfinite_losses: int
    agrees: bool | None
    """None for fp32, which is the reference."""


@dataclass(frozen=True)
class InferenceAgreement:
    output_deviation: float | None
    """‖outputs − fp32‖ ÷ ‖fp32‖."""
    top1_fraction: float
    num_nonfinite_images: int
    agrees: bool | None


@dataclass(frozen=True)
class RawNumbers:
    step_s: tuple[float, ...] | None
    loss: tuple[float | None, ...] | None
    gradient_norm: tuple[float | None, ...] | None


@dataclass(frozen=True)
class ModeFigures:
    precision: str
    status: Status
    failure: Failure | None
    loss_scale: float | str | None
    total_s: float | None
    images_per_s: Estimate | None
    speedup: Estimate | None
    memory: MemoryFacts | None
    memory_ratio: float | None
    workload: WorkloadFacts | None
    raw: RawNumbers
    agreement: TrainingAgreement | InferenceAgreement | None = None
    """Agreement with fp32; None where either is missing."""


@dataclass(frozen=True)
class PrecisionResult:
    """The figures of docs/precision.md and the raw values behind them."""

    model: str
    mode: str
    device: DeviceFacts | None
    device_name: str
    num_steps: int
    batch_size: int
    input_size: int | None
    seed: int
    environment: Environment
    inputs: str | None = field(default=None, kw_only=True)
    """What the model takes, where that is not one square image (cases/inputs.py)."""
    memory_of: Literal["rss_growth_bytes", "allocated_bytes"]
    modes: tuple[ModeFigures, ...]
    caveats: tuple[Caveat, ...]


# -- the file --------------------------------------------------------------------------------------------

StudyFacts = Any
"""The facts of a kind of study (recording/kinds.py)."""
Findings = Any
"""Its findings."""


@dataclass(frozen=True)
class StudyRecord:
    """What `study.json` holds."""

    schema: int
    rules_version: int
    study_id: str
    kind: StudyKind
    started_at: str
    facts: StudyFacts
    findings: Findings | None
    """None where it was interrupted before there were any findings."""
    runs: tuple[str, ...] = ()
    """Its runs in the store, in the order in which they were measured."""
    own_runs: tuple[str, ...] = field(default=())
    """Its runs in its own folder."""
