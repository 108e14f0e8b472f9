"""The jobs of a measuring process: each with its request, its result and the place of its function.

Nothing here imports torch: the asking process does not need it. Only the measuring process imports a job's module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.case import Case, Step
from loaderbench.offloading.plan import Plan
from loaderbench.recording.capacity import RankPart
from loaderbench.recording.facts import (
    CeilingProbe,
    DeviceFacts,
    Failure,
    MemoryFacts,
    Recording,
    Run,
    ScaleProbe,
    WorkloadFacts,
)
from loaderbench.recording.forecast import EpochState
from loaderbench.recording.model_layers import AloneTimes, CallFacts, LayerTimes
from loaderbench.recording.model_memory import CapHow, MeasuredMemory, MemoryTrace
from loaderbench.recording.model_offload import SavedTrace
from loaderbench.recording.model_size import StepRound
from loaderbench.recording.offload_study import OffloadTurn, ResultCheck
from loaderbench.recording.progress import Look
from loaderbench.recording.studies import NumberFacts, TimingFacts
from loaderbench.running.peers import Seat
from loaderbench.running.process import MEASURING

if TYPE_CHECKING:
    from loaderbench.loaders.base import Slowdown


class Request(Protocol):
    """The request of a job. It crosses a pipe, so it must be picklable."""

    @property
    def waits_for(self) -> str:
        """What probably hangs if the job shows no sign of life, in words."""
        ...


Q = TypeVar("Q", bound=Request, contravariant=True)
A = TypeVar("A", covariant=True)


@dataclass(frozen=True)
class Job(Generic[Q, A]):
    """A function `(request: Q, report: Report) -> A` that is done in a measuring process."""

    module: str
    function: str


@dataclass(frozen=True)
class Answer:
    """How a job ended."""

    result: Any
    failure: Failure | None = None


Judge = Callable[[Run], Look | None]
"""What a run up to now says; None where that is nothing yet."""


@dataclass(frozen=True)
class MeasureRequest:
    """Measure a case's arms, in turns."""

    case: Case
    slowdown: Slowdown | None = None
    """Work of known cost to build in (for the self-test). The run does not record it."""
    started_ns: int | None = None
    """When the process was started for this job alone (perf_counter_ns); None where it had others before."""
    judge: Judge | None = None
    """What is asked between windows about the run up to then; None: its end is what was asked for. A function that can
    be imported in the measuring process."""
    seat: Seat | None = None
    """Of one of several ranks, which measure together; None: a process by itself."""

    @property
    def waits_for(self) -> str:
        return f"the storage under {self.case.subject.dataset}"


@dataclass(frozen=True)
class EpochsRequest:
    """Whole epochs of a case's data set. Each is told of as it ends (EpochDone): what is interrupted keeps them."""

    case: Case
    states: tuple[EpochState, ...]
    """Of each epoch in turn. `cold`: its files are evicted before; `warm`: they are left as the epoch before left
    them, or read before the first."""
    started_ns: int
    """When the process was started (perf_counter_ns)."""

    @property
    def waits_for(self) -> str:
        return f"the storage under {self.case.subject.dataset}"


@dataclass(frozen=True)
class ScreenRequest:
    """A look at a case's loader alone."""

    case: Case
    seconds: float

    @property
    def waits_for(self) -> str:
        return f"the storage under {self.case.subject.dataset}"


@dataclass(frozen=True)
class ScalesRequest:
    """A data set's own samples in a case's decoder, with and without `--decode-scale auto`."""

    case: Case

    @property
    def waits_for(self) -> str:
        return f"the storage under {self.case.subject.dataset}"


@dataclass(frozen=True)
class DeviceRequest:
    """Something of a step on its device."""

    step: Step

    @property
    def waits_for(self) -> str:
        return f"the device {self.step.device}"


@dataclass(frozen=True)
class CheckpointsRequest(DeviceRequest):
    """Checkpoints of the step's model and optimizer into a folder."""

    folder: str
    times: int
    seed: int


@dataclass(frozen=True)
class CheckpointsTimed:
    num_bytes: int
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class StepsRequest(DeviceRequest):
    """Steps of a model on batches that need no loader."""

    num_steps: int
    seed: int


@dataclass(frozen=True)
class ExamineRequest(DeviceRequest):
    """A device's facts, and which of some precisions it lacks."""

    precisions: tuple[str, ...]


@dataclass(frozen=True)
class Examined:
    device: DeviceFacts
    lacking: dict[str, str]
    """Precision → why the device cannot compute in it."""


@dataclass(frozen=True)
class BatchRequest(DeviceRequest):
    """Steps of one batch of a model, until `num_steps` or `seconds` are over; at least `least_steps`."""

    num_steps: int
    least_steps: int
    seconds: float
    seed: int


@dataclass(frozen=True)
class TimedBatch:
    device: DeviceFacts
    round: StepRound
    memory: MemoryFacts
    workload: WorkloadFacts


@dataclass(frozen=True)
class LayersRequest(DeviceRequest):
    """A model's iteration by its calls."""

    seed: int
    num_rounds: int
    num_steps: int
    """Of each round: as many with the stopwatch as without."""
    case: Case | None = None
    """The data set and the loader that feed it; None: a batch in memory."""
    least_round_s: float = 0.0
    """More steps where a round would take less."""


@dataclass(frozen=True)
class Layers:
    """What `time_layers` found."""

    device: DeviceFacts
    workload: WorkloadFacts
    input_bytes: int
    calls: tuple[CallFacts, ...]
    times: LayerTimes


@dataclass(frozen=True)
class TraceRequest:
    """Trace the memory of these steps, without their device."""

    steps: tuple[Step, ...]
    seed: int
    on_accelerator: bool
    probed: bool = True
    """As in trace_step."""

    @property
    def waits_for(self) -> str:
        return f"the tracing of {self.steps[0].model}"


@dataclass(frozen=True)
class MeasureMemoryRequest(DeviceRequest):
    """Measure the peaks of a step."""

    seed: int
    num_steps: int


@dataclass(frozen=True)
class TrialRequest(DeviceRequest):
    """Run a step below a limit of memory."""

    seed: int
    num_steps: int
    cap_bytes: int
    how: CapHow


@dataclass(frozen=True)
class MemoryMeasured:
    device: DeviceFacts
    memory: MeasuredMemory
    above_limit: str | None = None
    """Why a trial whose steps were done does not fit below its limit."""


@dataclass(frozen=True)
class SavedTraceRequest:
    """Trace what a step saves, without its device's memory."""

    step: Step
    seed: int
    on_accelerator: bool

    @property
    def waits_for(self) -> str:
        return f"the tracing of {self.step.model}"


@dataclass(frozen=True)
class OffloadRequest(DeviceRequest):
    """Steps of a model under a plan; None: without offloading."""

    seed: int
    num_steps: int
    plan: Plan | None
    cap_bytes: int
    """Of the device's memory."""


@dataclass(frozen=True)
class OffloadTimed:
    device: DeviceFacts
    turn: OffloadTurn
    unhooked: tuple[str, ...]
    """What the model keeps that offloading does not see, in words."""


@dataclass(frozen=True)
class MemberRequest(DeviceRequest):
    """A member of a split, its step that of the whole batch. The same request finds the same member again."""

    seed: int


@dataclass(frozen=True)
class OfMember:
    """What a member is to do on a part of the batch."""

    member: MemberRequest
    size: int
    """Images of the part."""
    first: int
    """Its first image."""
    until_ns: int
    """Of perf_counter_ns. More turns follow until here, so that the others do not work beside one that rests."""

    @property
    def waits_for(self) -> str:
        return self.member.waits_for


@dataclass(frozen=True)
class WarmRequest(OfMember):
    """A turn that is not timed, or several where the size is new to the device."""


@dataclass(frozen=True)
class PartRequest(OfMember):
    """One turn on a part."""

    start_ns: int
    """Of perf_counter_ns, the same for all members."""
    with_output: bool


@dataclass(frozen=True)
class PartRun:
    """One turn on a part."""

    begin_ns: int
    end_ns: int
    output: NDArray[np.float32] | None
    """[size, classes]; None where none was asked for, or nothing computes."""


@dataclass(frozen=True)
class RankRequest:
    """A rank of `capacity`: one of many processes, each with its own loader and emulated device."""

    case: Case
    """Of one rank; its data set is that of all."""
    rank: int
    max_ranks: int
    """Most that there will be."""

    @property
    def waits_for(self) -> str:
        return f"the storage under {self.case.subject.dataset}"


@dataclass(frozen=True)
class RankOpened:
    device: DeviceFacts
    step_ns: int
    period_ns: int


@dataclass(frozen=True)
class SurveyRequest(RankRequest):
    """How much of the files is in memory; before a look to a cold storage they are evicted first."""

    before: bool


@dataclass(frozen=True)
class Surveyed:
    resident: float | None
    """Fraction of the sampled pages; None where that cannot be seen."""
    counters: dict[str, int] | None
    """Of the storage; None where there are none."""
    source: str | None
    no_counter: str | None


@dataclass(frozen=True)
class RankProbeRequest(RankRequest):
    """What the storage gives to growing numbers of readers."""

    seconds: float


@dataclass(frozen=True)
class RankRunRequest(RankRequest):
    """Steps of this rank beside those of the others, from a common start."""

    ranks: int
    epoch: int
    """Of the order of the files; another one in each look."""
    seconds: float
    least_steps: int
    joint: bool
    """Each step ends with a collective of all ranks."""
    meeting: str
    """A file by which the ranks find each other, new for each look."""


@dataclass(frozen=True)
class CopiesRequest(DeviceRequest):
    """Copies of a batch to the device, and of its outputs back. The step's batch is the largest one."""

    seed: int
    batch_size: int
    seconds: float
    """For each way."""


@dataclass(frozen=True)
class CopiesTimed:
    device: DeviceFacts
    in_bytes: int
    out_bytes: int
    in_s: NDArray[np.float64]
    """[num_copies]"""
    out_s: NDArray[np.float64]


MEASURE: Job[MeasureRequest, Recording] = Job(MEASURING, "measure")
RUN_EPOCHS: Job[EpochsRequest, None] = Job("loaderbench.running.jobs.epochs", "run_epochs")
TIME_CHECKPOINTS: Job[CheckpointsRequest, CheckpointsTimed] = Job("loaderbench.running.jobs.epochs", "time_checkpoints")
SCREEN: Job[ScreenRequest, float] = Job("loaderbench.running.jobs.screen", "screen")
COMPARE_SCALES: Job[ScalesRequest, ScaleProbe] = Job("loaderbench.running.jobs.screen", "compare_decode_scales")
EXAMINE_DEVICE: Job[ExamineRequest, Examined] = Job("loaderbench.running.jobs.precision", "examine_device")
TIME_STEPS: Job[StepsRequest, TimingFacts] = Job("loaderbench.running.jobs.precision", "time_steps")
FOLLOW_STEPS: Job[StepsRequest, NumberFacts] = Job("loaderbench.running.jobs.precision", "follow_steps")
TIME_BATCH: Job[BatchRequest, TimedBatch] = Job("loaderbench.running.jobs.model_size", "time_batch")
TIME_LAYERS: Job[LayersRequest, Layers] = Job("loaderbench.running.jobs.model_layers", "time_layers")
TIME_ALONE: Job[LayersRequest, AloneTimes] = Job("loaderbench.running.jobs.model_layers", "time_alone")
TRACE_MEMORY: Job[TraceRequest, tuple[MemoryTrace, ...]] = Job("loaderbench.running.jobs.memory", "trace_memory")
MEASURE_MEMORY: Job[MeasureMemoryRequest, MemoryMeasured] = Job("loaderbench.running.jobs.memory", "measure_memory")
TRY_BATCH: Job[TrialRequest, MemoryMeasured] = Job("loaderbench.running.jobs.memory", "try_batch")
TRACE_SAVED: Job[SavedTraceRequest, SavedTrace] = Job("loaderbench.running.jobs.saved_trace", "trace_saved")
TIME_OFFLOAD: Job[OffloadRequest, OffloadTimed] = Job("loaderbench.running.jobs.offload", "time_offload")
COUNT_OFFLOAD: Job[OffloadRequest, int | None] = Job("loaderbench.running.jobs.offload", "count_offload")
CHECK_OFFLOAD: Job[OffloadRequest, ResultCheck] = Job("loaderbench.running.jobs.offload", "check_offload")
OPEN_MEMBER: Job[MemberRequest, DeviceFacts] = Job("loaderbench.running.jobs.member", "open_member")
WARM_MEMBER: Job[WarmRequest, float] = Job("loaderbench.running.jobs.member", "warm_member")
RUN_PART: Job[PartRequest, PartRun] = Job("loaderbench.running.jobs.member", "run_part")
TIME_COPIES: Job[CopiesRequest, CopiesTimed] = Job("loaderbench.running.jobs.copies", "time_copies")
OPEN_RANK: Job[RankRequest, RankOpened] = Job("loaderbench.running.jobs.rank", "open_rank")
SURVEY_FILES: Job[SurveyRequest, Surveyed] = Job("loaderbench.running.jobs.rank", "survey_files")
PROBE_CEILING: Job[RankProbeRequest, CeilingProbe] = Job("loaderbench.running.jobs.rank", "probe_storage")
RUN_RANK: Job[RankRunRequest, RankPart] = Job("loaderbench.running.jobs.rank", "run_rank")
