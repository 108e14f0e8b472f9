"""The layers of a model: what was measured of each call, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.case import Case, Step
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.facts import DeviceFacts, Environment, Failure, Status, WorkloadFacts
from loaderbench.recording.others import TimedFacts
from loaderbench.recording.record import Estimate

Part = Literal["load", "copy_inputs", "copy_targets", "zero_grad", "forward", "backward", "update", "monitor"]
"""The parts of an iteration, in their order."""
PARTS: tuple[Part, ...] = get_args(Part)
LayerPhase = Literal[
    "load",
    "copy_inputs",
    "copy_targets",
    "set_up",
    "forward",
    "zero_grad",
    "backward",
    "recompute",
    "update",
    "monitor",
    "rest",
]
"""`recompute`: a call that the backward pass makes again, for what checkpointing did not keep."""

# -- facts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallFacts:
    """One call of a leaf operation of the forward pass."""

    name: str
    """The module's path, or that of the module around it and the function: `layer1.0.conv1`, `layer1.0.add`."""
    type: str
    call: int
    """Which call of this name, from 1."""
    output_shape: tuple[int, ...]
    """Of the first output."""
    top_bytes: int
    """Of all outputs."""
    num_consumers: int
    """Later calls that take one of its outputs, as often as they take it."""
    parameters: int
    """Of which no earlier call had any."""
    forward_flops: int
    backward_flops: int | None
    """None in inference."""
    reshapes: bool
    """It only arranges values anew."""
    recomputed_flops: int | None = None
    """Of the same call made again by the backward pass, for what checkpointing did not keep; None: it is not."""


@dataclass(frozen=True)
class LayerTimes:
    """Whole iterations without and with the stopwatch, in turns. Seconds."""

    load_s: NDArray[np.float64]
    """[rounds, kinds of iteration · steps]: the wait for the batch, in all iterations."""
    plain_s: NDArray[np.float64]
    """[rounds, steps] without that wait, which follows the loader's bursts. On the host's clock."""
    timed_s: NDArray[np.float64]
    """[rounds, steps]. With `held_s` on the device's clock, the mean of an iteration that marks the forward calls and
    one that marks the backward calls."""
    parts_s: NDArray[np.float64]
    """[rounds, steps, PARTS] of the timed iterations; NaN where an iteration has no such part."""
    forward_s: NDArray[np.float64]
    """[rounds, steps, calls]"""
    backward_s: NDArray[np.float64]
    """[rounds, steps, calls]: from when a call's gradient is there until the next call's begins. NaN without any."""
    first_s: NDArray[np.float64]
    """[calls]: the first forward call in the process."""
    lag_s: NDArray[np.float64] | None
    """[2, calls]: how long the device's work on a call (forward, backward) began after the host had issued it, the
    median. None where the host is the device."""
    held_s: NDArray[np.float64] | None = None
    """[rounds, steps]: an iteration without the stopwatch on the device's clock, which began once all was issued, as
    those with it did. None where the host is the device, with a loader, and in records of before."""
    recomputed_s: NDArray[np.float64] | None = None
    """[rounds, steps, calls]: the call made again by the backward pass; not in `backward_s`. NaN where it is not; None
    where none is."""
    zero_s: float | None = None
    """What lies between two events with nothing between them: taken off each call's time. None as `held_s`."""


@dataclass(frozen=True)
class AloneTimes:
    """Each call repeated by itself on its own inputs: seconds of a call, the mean of each block. NaN: not measured."""

    forward_s: NDArray[np.float64]
    """[calls, blocks]"""
    backward_s: NDArray[np.float64]
    parts_s: NDArray[np.float64]
    """[PARTS, blocks]"""
    num_calls: NDArray[np.int64]
    """[2, calls]: how often it was called, forward and backward."""
    limit_s: float
    """A call was repeated no longer than this, once it had been called a few times."""


@dataclass(frozen=True)
class LayersFacts(TimedFacts):
    step: Step
    seed: int
    environment: Environment
    case: Case | None = None
    """The data set and its loader; None: a batch that stays in memory, and no loading."""
    device: DeviceFacts | None = None
    workload: WorkloadFacts | None = None
    input_bytes: int = 0
    """Of the batch as the model takes it."""
    calls: tuple[CallFacts, ...] = ()
    times: LayerTimes | None = None
    alone: AloneTimes | None = None
    no_alone: str | None = None
    """Why `alone` is None."""
    status: Status = "interrupted"
    failure: Failure | None = None


# -- findings --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerRow:
    """One part of an iteration: a call's forward or backward, or what is around the calls."""

    name: str
    type: str
    phase: LayerPhase
    call: int
    in_step_s: Estimate | None
    alone_s: Estimate | None
    share_fraction: float | None
    """Of the whole iteration without the stopwatch; None for what happens once."""
    output_shape: tuple[int, ...] | None = None
    parameters: int | None = None
    flops: int | None = None
    required_bytes: int | None = None
    """Caffe's `memory required for data`: all outputs, and once more for each taker where there are several."""
    reshapes: bool = False
    waits_for_host: bool | None = None
    """The device had nothing to do when the call came, so its time holds a gap. None where the host is the device."""


@dataclass(frozen=True)
class TypeRow:
    """All calls of one type."""

    type: str
    num_calls: int
    forward_s: float
    backward_s: float | None
    share_fraction: float
    parameters: int
    flops: int


@dataclass(frozen=True)
class LayersResult:
    """The figures of the layers section of docs/model.md."""

    model: str
    mode: str
    precision: str
    optimizer: str | None
    """Its name as PyTorch has it; None in inference."""
    batch_size: int
    input_shape: tuple[int, ...]
    """Of the first input, without the batch."""
    device_name: str
    data_set: str | None
    environment: Environment
    rows: tuple[LayerRow, ...]
    """In the order of the iteration: load, copies, set-ups, forward, zero-grad, backward, update, monitor, rest."""
    types: tuple[TypeRow, ...]
    """The most expensive first."""
    forward_s: Estimate | None
    """Averages as `caffe time` prints them, from the timed iterations."""
    backward_s: Estimate | None
    forward_backward_s: Estimate | None
    forward_alone_s: Estimate | None
    """The whole pass repeated."""
    backward_alone_s: Estimate | None
    step_s: Estimate | None
    """A whole iteration without the stopwatch."""
    layers_over_whole: Estimate | None
    """All rows but the rest ÷ the whole iteration without the stopwatch, both without the wait for the batch. The whole
    is `device_s` where that is known."""
    timed_over_untimed: Estimate | None
    """Of the same two kinds of iteration."""
    disturbed: bool
    """The rows do not sum to the whole, or the stopwatch took time: the caveats say which."""
    required_bytes: int
    """Of all calls and of the input."""
    num_parameters: int
    """Of all calls."""
    num_uncalled_parameters: int
    """Of the model's parts that the forward pass does not use, such as auxiliary classifiers in inference."""
    flops: int
    """Of an iteration."""
    num_steps: int
    """Timed, and as many without."""
    num_rounds: int
    alone_limit_s: float | None
    alone_num_calls: tuple[int, int] | None
    """Fewest and most repeats of a call alone."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """What is not measured → why."""
    caveats: tuple[Caveat, ...] = ()
    status: Status = "ok"
    failure: Failure | None = None
    device_s: Estimate | None = None
    """The device's time of an iteration without the stopwatch that was issued before the device began. None where
    `LayerTimes.held_s` is."""
