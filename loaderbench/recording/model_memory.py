"""What a model's step needs in memory, traced and measured, and the largest batch that fits: facts and findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.case import Mode, Optimizer, Precision, Step
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import DeviceFacts, Environment, Failure, Status

MemoryKind = Literal["parameters", "gradients", "optimizer", "activations", "temporary"]
"""`parameters`: with buffers. `activations`: what the forward pass leaves for the backward pass, and the inputs.
`temporary`: all else, in inference the layers' outputs too."""
MEMORY_KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)
StepPhase = Literal["standing", "forward", "backward", "update"]
"""`standing`: what is there when the step begins."""
STEP_PHASES: tuple[StepPhase, ...] = get_args(StepPhase)
ALLOCATION_FIELDS = ("bytes", "kind")
EVENT_FIELDS = ("allocation", "sign", "phase", "operator", "module")
TrialOutcome = Literal["fits", "out_of_memory", "killed", "unknown"]
CapHow = Literal["ledger", "rlimit"]
CAP_HOWS: tuple[CapHow, ...] = get_args(CapHow)

# -- the trace -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerOutput:
    """One call of a layer, or of a function between layers, in the forward pass."""

    name: str
    """The module's path; of a function that of the module that calls it, and the operator's name."""
    type: str
    shape: tuple[int, ...]
    bytes: int
    """Of its output, in-place ones too: Caffe counted every top blob."""
    event: int
    """Row of the trace's events before which it ended."""


@dataclass(frozen=True)
class MemoryTrace:
    """What one step, in its steady state, allocates and releases, in order; traced without the device."""

    batch_size: int
    allocations: NDArray[np.int64]
    """[allocations, ALLOCATION_FIELDS]: bytes as the allocator counts them, number in MEMORY_KINDS."""
    events: NDArray[np.int64]
    """[events, EVENT_FIELDS]: row of `allocations`, +1 allocated or -1 released, number in STEP_PHASES, and places in
    `operators` and `modules`."""
    operators: tuple[str, ...]
    modules: tuple[str, ...]
    layers: tuple[LayerOutput, ...]
    seconds: float | None
    """What tracing took; None where it was kept from an earlier time."""
    unchecked_on: str | None = None
    """The CPU's vector units, where the rules for its operators' workspaces were not checked on such ones; None: they
    were, or the memory is an accelerator's."""


@dataclass(frozen=True)
class OfModel:
    """What figures of a model's step are about."""

    model: str
    mode: Mode
    precision: Precision
    optimizer: Optimizer | None
    """None in inference."""
    input_size: int | None
    channels: int
    inputs: str | None = field(default=None, kw_only=True)
    """What the model takes, where that is not one square image (cases/inputs.py)."""
    device_name: str


# -- model memory ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeasuredMemory:
    """Peaks of the running step: three figures that mean different things. Unknown is None; `missing` says why."""

    peak_live_bytes: int | None
    """Memory in use by tensors and kernels: CUDA's allocator's, on the CPU the profiler's memory events."""
    peak_reserved_bytes: int | None
    """What PyTorch's allocator holds, in use or not."""
    peak_process_bytes: int | None
    """CUDA: the driver's figure for the process, now. CPU: growth of the resident set, with the profiler's own."""
    num_steps: int
    missing: Mapping[str, str] = field(default_factory=dict)
    peak_data_bytes: int | None = None
    """Below RLIMIT_DATA alone: growth of the process's data since before the model was built."""


@dataclass(frozen=True)
class BatchMemoryFacts:
    batch_size: int
    trace: MemoryTrace | None
    trace_failure: Failure | None
    status: Status
    """Of the measurement; `skipped` where there is none."""
    measured: MeasuredMemory | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class ModelMemoryFacts:
    step: Step
    """Of batch 1."""
    seed: int
    on_accelerator: bool
    """Traced by the rules of an accelerator's allocator, else by those of the CPU's."""
    environment: Environment
    device: DeviceFacts | None
    """None where nothing was measured."""
    not_measured: str | None
    """Why nothing is measured at all; None where something was to be."""
    batches: tuple[BatchMemoryFacts, ...] = ()
    interrupted: bool = False
    """It did not come to its end."""


@dataclass(frozen=True)
class PredictedMemory:
    """At the moment of the peak."""

    peak_live_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    temporary_bytes: int


@dataclass(frozen=True)
class PeakPlace:
    phase: StepPhase
    module: str
    """Path of the module; empty outside any."""
    operator: str


@dataclass(frozen=True)
class LayerMemory:
    name: str
    type: str
    shape: tuple[int, ...]
    output_bytes: int
    outputs_bytes: int
    """Sum of the outputs up to here, in-place ones too. No peak, and not yet Caffe's `Memory required for data`, which
    `model layers` has."""
    live_bytes: int
    """All that is live when the layer has run."""


@dataclass(frozen=True)
class MemoryCourse:
    """The step's live memory after its allocations and releases. Where they are many, the moment with the most of each
    stretch of them, so that the peak is among them."""

    events: tuple[int, ...]
    """Numbers of the allocations and releases, from the step's begin."""
    phases: tuple[StepPhase, ...]
    bytes_by_kind: Mapping[str, tuple[int, ...]]
    """Kind → live bytes at each of `events`."""


@dataclass(frozen=True)
class BatchMemory:
    batch_size: int
    mode: str
    predicted: PredictedMemory | None
    measured: MeasuredMemory | None
    error_fraction: float | None
    """Predicted ÷ measured live peak − 1."""
    peak: PeakPlace | None
    outputs_bytes: int | None
    """Sum of all layers' outputs."""
    layers: tuple[LayerMemory, ...]
    trace_s: float | None
    trace_failure: Failure | None
    status: Status
    failure: Failure | None
    course: MemoryCourse | None = None
    """Of the prediction."""
    predicted_reserved_bytes: int | None = None
    """What PyTorch's CUDA allocator holds by its rules, in use or not (`analysis/reserved.py`); None on the CPU, whose
    allocator reserves nothing, and where the traced step cannot be done again."""


@dataclass(frozen=True)
class ModelMemory(OfModel):
    """The figures of `loaderbench model memory`."""

    not_measured: str | None
    batches: tuple[BatchMemory, ...]
    caveats: tuple[Caveat, ...] = ()
    unchecked_on: str | None = None
    """As in MemoryTrace."""
    interrupted: bool = False


# -- model fit -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrialFacts:
    """One batch size tried in a process of its own."""

    batch_size: int
    how: str
    """What held the limit: `ledger`, `rlimit`, `fraction`."""
    num_steps: int
    """Steps that were to be done."""
    failure: Failure | None
    """How it ended badly; None where all steps were done below the limit."""
    peak_live_bytes: int | None
    """Of a trial that failed too, where its steps were done."""
    oom_kills: int | None
    """Processes that the kernel's OOM killer ended in this cgroup meanwhile; None where it cannot be read."""
    wall_s: float = 0.0
    peak_data_bytes: int | None = None
    """As in MeasuredMemory."""


@dataclass(frozen=True)
class ModelFitFacts:
    step: Step
    """Of batch 1."""
    seed: int
    on_accelerator: bool
    environment: Environment
    device: DeviceFacts | None
    memory_bytes: int
    memory_source: str
    """Where the limit comes from, in words."""
    memory_asked: int | None
    """What the user asked for; None: what is there."""
    how: str
    """`ledger`, `rlimit`, `fraction` (of a GPU's memory); `prediction` where the device computes nothing."""
    traces: tuple[MemoryTrace, ...]
    """Two batch sizes, through which each allocation has its line; more where the line was checked."""
    trace_failure: Failure | None
    not_measured: str | None
    """Why no trial was run."""
    most: int
    """Largest batch that is tried."""
    trials: tuple[TrialFacts, ...] = ()
    interrupted: bool = False
    """It did not come to its end."""


@dataclass(frozen=True)
class FitTrial:
    batch_size: int
    outcome: TrialOutcome
    peak_live_bytes: int | None
    predicted_bytes: int | None
    how: str
    why: str | None
    """How it ended badly, in words."""
    wall_s: float
    peak_data_bytes: int | None = None
    """As in MeasuredMemory."""


@dataclass(frozen=True)
class PredictedPeak:
    batch_size: int
    peak_live_bytes: int


@dataclass(frozen=True)
class ModelFit(OfModel):
    """The figures of `loaderbench model fit`."""

    memory_bytes: int
    memory_source: str
    how: str
    largest_batch: int | None
    """0: batch 1 does not fit. None: not known (yet)."""
    confirmed: bool
    """It fitted twice, and the next one failed twice, unless it is the most that is tried."""
    at_most: bool
    """It is the largest that is tried or predicted, so that a larger one may fit."""
    unchecked_on: str | None
    """As in MemoryTrace."""
    predicted_batch: int | None
    """By the prediction alone."""
    needs_bytes: int | None
    """What the batch after the largest needs, by the prediction."""
    predicted: tuple[PredictedPeak, ...]
    """At the largest batch and its neighbours."""
    line_holds: bool | None
    """Each allocation follows one line over the batch; None where this was not looked at."""
    num_search_trials: int
    """Of other batches than the largest and the next one."""
    not_monotone: bool
    """A smaller batch failed where a larger one fitted."""
    trials: tuple[FitTrial, ...]
    not_measured: str | None
    trace_failure: Failure | None
    interrupted: bool
