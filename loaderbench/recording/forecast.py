"""`loaderbench forecast`: what a stored run tells of a whole training, and what epochs then took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from loaderbench.cases.case import Case, Change
from loaderbench.recording.facts import Environment, Failure, StorageKind
from loaderbench.recording.others import OtherPrograms, TimedFacts
from loaderbench.recording.record import Bottleneck, Estimate, Range

EpochState = Literal["cold", "warm"]
"""Where an epoch's images come from. `cold`: all from the storage. `warm`: those that fit into memory from there."""
EpochKind = Literal["train", "validation"]
ForecastPart = Literal["start_up", "epoch_starts", "steps", "short_batch", "validation", "checkpoints"]
StepOrigin = Literal["measured", "memory_arm", "other_run", "no_files", "layers"]
"""Where the time of a step is from: the run's own `real` arm; its arm `ram`; another run of the same setting in that
cache state; a loader without files, for which there are no states; the iterations of `model layers`."""
LeftOut = Literal[
    "start_up",
    "epoch_starts",
    "cold",
    "warm",
    "opens",
    "loading",
    "validation",
    "checkpoints",
    "change",
    "logging",
]
"""What is no part of the forecast, or not known."""
SourceKind = Literal["run", "layers"]
SLOW_OPENS = ("fuse", "nfs", "unknown", None)
"""Storages that are asked at each open though a file's pages are in memory."""

# -- facts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """The training that was asked about."""

    images: int
    epochs: int
    val_images: int | None = None
    """None: without validation."""
    val_every: int = 1
    """Validate every so many epochs."""
    checkpoint_every: int | None = None
    """Write a checkpoint every so many epochs; None: without."""


@dataclass(frozen=True)
class Starts:
    """What a new stream of batches costs, by the windows of one arm: each began with a new one."""

    extra_s: tuple[float, ...]
    """Of each window: from asking for the batches to the end of its warm-up, minus as many steady steps."""
    first_batch_s: tuple[float, ...]
    """Of each window: from asking for the batches to the first one."""


@dataclass(frozen=True)
class StateSteps:
    """A step in one state of the page cache."""

    step_s: Range
    """With its 95 % interval."""
    origin: StepOrigin
    run_id: str
    """Where it was measured."""
    starts: Starts | None = None
    """By the windows that it was measured in; None where none tells."""


@dataclass(frozen=True)
class SourceFacts:
    """What was taken from one stored run, or one profile of layers."""

    kind: SourceKind
    source_id: str
    case: Case | None
    """None: a profile of layers."""
    model: str
    mode: str
    batch_size: int
    device: str
    emulated: bool
    environment: Environment
    cold: StateSteps | None
    warm: StateSteps | None
    bottleneck: Bottleneck | None = None
    process_s: float | None = None
    """From the start of the process until it looked at the data set: Python and its imports. None: not stored."""
    open_s: float | None = None
    """The list of images, the device and the model."""
    build_s: float | None = None
    """Construction of the loader."""
    first_steps_s: float | None = None
    """By how much the device's first steps in the process were longer than later ones; None where the run does not
    tell."""
    num_images: int | None = None
    """Of its data set; None without files."""
    image_bytes: float | None = None
    """Mean size of an image's file; None where that is unknown, and without files."""
    storage_kind: StorageKind | None = None
    data_set: str | None = None
    """From which a profile of layers took its batches; None: it had one in memory, or it is a run."""
    others: OtherPrograms | None = None
    """Who else used the processors meanwhile."""

    @property
    def one_state(self) -> bool:
        """Whether the state of the page cache changes nothing: a loader without files, a profile of layers."""
        return self.cold is not None and self.cold.origin in ("no_files", "layers")

    @property
    def opens_unknown(self) -> bool:
        """Whether an epoch from memory is somewhere between the arm `ram`, which reads copies on a tmpfs, and the
        storage: it is asked at each open though the pages are in memory."""
        return self.warm is not None and self.warm.origin == "memory_arm" and self.storage_kind in SLOW_OPENS


@dataclass(frozen=True)
class CheckpointTimes:
    """Checkpoints of the model and its optimizer, written and flushed to the disk."""

    num_bytes: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class After:
    """The setting after a change."""

    label: str
    source: SourceFacts | None = None
    """A stored run of it; None: predicted by the run's advice."""
    change: Change | None = None
    speedup: Estimate | None = None
    """By the advice; measured where `--verify` measured it."""
    state: EpochState | None = None
    """The state that the advice is about. What it gives in the other one lies between nothing and as much."""


@dataclass(frozen=True)
class Memory:
    """What may hold images from one epoch to the next."""

    bytes: int | None
    """None: not known."""
    source: str


@dataclass(frozen=True)
class Past:
    """Epochs that were forecast and run on this machine before, on an emulated device if the source's is one, else on
    real ones: what the interval was calibrated with."""

    scores: tuple[float, ...]
    """Of each: |ln(measured ÷ predicted)| ÷ (its own half width + SPREAD_FLOOR of analysis/forecast.py)."""
    errors: tuple[float, ...]
    """Measured ÷ predicted − 1 of each."""
    held: tuple[bool, ...]
    """Whether its interval held."""


@dataclass(frozen=True)
class EpochRun:
    """One epoch that was run."""

    kind: EpochKind
    num_images: int
    seconds: float
    """From asking for its batches to the end of its last step."""
    resident_before: float | None
    """Fraction of the files' sampled pages that were in memory before it; None without files, or where unknown."""
    wanted: EpochState


@dataclass(frozen=True)
class CheckFacts:
    """Epochs that were run after the forecast."""

    epochs: tuple[EpochRun, ...] = ()
    num_images: int = 0
    """Of the data set."""
    val_images: int | None = None
    training_s: float | None = None
    """From the start of the process to the end of the last training epoch; None where it did not get there."""
    failure: Failure | None = None


@dataclass(frozen=True)
class ForecastFacts(TimedFacts):
    asked: Asked
    source: SourceFacts
    environment: Environment
    memory: Memory
    past: Past
    validation: SourceFacts | None = None
    checkpoints: CheckpointTimes | None = None
    after: After | None = None
    left_out: Mapping[LeftOut, str] = field(default_factory=dict)
    """Part → why."""
    check: CheckFacts | None = None
    """None: not asked for."""


# -- findings --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpochForecast:
    """One epoch."""

    s: Range
    """Seconds, with what the machine may drift until then."""
    own: Range
    """By the spread of the run alone."""
    parts: Mapping[ForecastPart, Range]
    """By the spread of the run alone."""
    num_steps: int
    """Full ones."""
    images_per_s: float
    from_memory: Range
    """Fraction of the images that memory gives."""
    origin: StepOrigin
    """Of the step's time; where memory gives a part, of a step from memory."""
    run_id: str
    """The run, or the profile, that it is from."""


@dataclass(frozen=True)
class TrainingForecast:
    """The whole training."""

    first: EpochForecast | None
    """The first epoch: `cold` where that is known, else one from memory, with the start of the workers."""
    epoch_s: Mapping[EpochState, EpochForecast | None]
    """`warm`: each later one. None: not known, or there is no such epoch; `left_out` says which."""
    validation_s: Mapping[EpochState, EpochForecast | None]
    s: Range | None
    own: Range | None
    parts: Mapping[ForecastPart, Range]
    """Over all epochs."""
    one_state: bool
    """Whether the state of the page cache changes nothing: a loader without files, a profile of layers."""


@dataclass(frozen=True)
class CheckedEpoch:
    """An epoch that was run, beside its prediction."""

    kind: EpochKind
    state: EpochState
    num_images: int
    predicted: EpochForecast | None
    measured_s: float
    resident_before: float | None
    not_scored: str | None
    """Why it says nothing about the forecast; None where it does."""
    score: float | None = None
    """|ln(measured ÷ predicted)| ÷ (the run's own half width on that side + SPREAD_FLOOR)."""


@dataclass(frozen=True)
class PastFigures:
    """How well forecasts did on this machine."""

    num: int
    median_error_fraction: float | None
    coverage_fraction: float | None


@dataclass(frozen=True)
class Forecast:
    """The figures of docs/forecast.md."""

    asked: Asked
    source_id: str
    setting: str
    """The case in a few words."""
    emulated: bool
    """Whether an emulated device took the steps."""
    training: TrainingForecast
    held: Range | None
    """Fraction of the images, those of the validation too, that memory can hold; None where that is not known, and
    without files."""
    after_label: str | None
    after: TrainingForecast | None
    """With the change; None: not asked for."""
    left_out: Mapping[LeftOut, str]
    interval_by: Literal["assumed", "ledger"]
    """Whether the drift of the machine is assumed, or taken from epochs that were forecast and run here."""
    factor: float | None
    """By which the run's own half widths were multiplied; None where the drift is assumed."""
    ledger: PastFigures
    checked: tuple[CheckedEpoch, ...] = ()
    checked_training: tuple[Range, float] | None = None
    """(predicted, measured) seconds from the start of the process to the end of the last epoch of the check."""
    check_failed: str | None = None
