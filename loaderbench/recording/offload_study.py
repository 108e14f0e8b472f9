"""`loaderbench model offload`: what was asked and measured of each setting, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.case import Step
from loaderbench.recording.facts import DeviceFacts, Environment, Failure
from loaderbench.recording.model_memory import OfModel
from loaderbench.recording.others import TimedFacts
from loaderbench.recording.record import Estimate

OffloadOutcome = Literal["fits", "out_of_memory", "no_host_memory", "failed", "not_tried"]
OffloadLabel = Literal["measured", "assumed"]
"""`assumed`: of a replay of the model's trace over a card that is not there."""

# -- facts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OffloadSetting:
    """One pair of thresholds."""

    above_bytes: int | None
    """Tensors of at least so many bytes go to the host; None: none does for its size, only what would not fit."""
    after_fraction: float
    """Of the device's memory, which must be in use before any goes for its size."""


@dataclass(frozen=True)
class OffloadLedger:
    """What a setting's plan moves and needs, by the trace alone: no time in it."""

    peak_live_bytes: int
    host_bytes: int
    """Most bytes on the host at once."""
    out_bytes: int
    in_bytes: int
    num_evicted: int
    """Storages that go to the host in a step; one that goes twice counts twice."""
    host_reserved_bytes: int
    """Of the buffers on the host: powers of two, kept from step to step."""


@dataclass(frozen=True)
class OffloadTurn:
    """Steps of one setting in one round, one after the other."""

    step_s: NDArray[np.float64]
    """[num_steps]: each from the end of the step before to its own, the device's clock."""
    exposed_s: NDArray[np.float64] | None = None
    """[num_steps]: what the compute waited for copies; None without offloading."""
    copy_s: NDArray[np.float64] | None = None
    """[num_steps]: what the copies took, both ways; None where that is not known."""
    host_bytes: int | None = None
    out_bytes: int | None = None
    in_bytes: int | None = None
    num_copies: int | None = None
    peak_live_bytes: int | None = None
    """Of the device's allocator; None where a pass of its own counts it."""


@dataclass(frozen=True)
class OffloadReplay:
    """A setting's plan replayed over an emulated card: a memory, and a queue of copies each way."""

    step_s: float
    compute_s: float
    """The step without any copy: the profile's time."""
    exposed_s: float
    """What the compute waited: for reloads, and for memory that was still being emptied."""
    copy_s: float
    peak_live_bytes: int


@dataclass(frozen=True)
class ResultCheck:
    """A first step with offloading compared with one without: its gradients, in inference its outputs."""

    batch_size: int
    num_tensors: int
    difference: float
    """The largest of any value, ÷ the largest value of its tensor. 0: equal to the bit. NaN: not all are numbers."""
    plain_difference: float | None
    """The same between two steps without offloading; None where `difference` is 0."""


@dataclass(frozen=True)
class SettingFacts:
    """One batch under one setting."""

    batch_size: int
    setting: OffloadSetting | None
    """None: without offloading."""
    ledger: OffloadLedger | None = None
    turns: tuple[OffloadTurn, ...] = ()
    replay: OffloadReplay | None = None
    peak_live_bytes: int | None = None
    """Measured in a pass of its own."""
    failure: Failure | None = None
    """Why it was not run to its end, or not at all."""
    tried: bool = True
    """False: it was seen beforehand that it cannot be done."""
    check: ResultCheck | None = None
    """None: its results were not compared."""


@dataclass(frozen=True)
class OffloadFacts(TimedFacts):
    """What was asked and found."""

    step: Step
    """Of the asked batch."""
    seed: int
    is_study: bool
    """The best setting was searched; else one setting was asked for."""
    on_accelerator: bool
    on_host: bool
    """The device computes in the host's memory: offloading goes to another part of the same memory."""
    environment: Environment
    device: DeviceFacts | None
    memory_bytes: int
    memory_source: str
    planned_bytes: int
    """Below which the plans keep: the memory, less what is left for what no trace shows."""
    host_free_bytes: int | None
    """The host's free memory before it began; None where it is not known, or nothing is put there."""
    link_bytes_per_s: float | None = None
    """Of the emulated card's copies."""
    assumptions: tuple[str, ...] = ()
    """Where the times of a replay come from, in sentences."""
    not_measured: str | None = None
    """Why no step is run; None: steps are."""
    batch_one: SettingFacts | None = None
    """The smallest batch that the model takes, without offloading."""
    without: SettingFacts | None = None
    """The asked batch without offloading."""
    settings: tuple[SettingFacts, ...] = ()
    """In the order in which they were first tried."""
    num_settings: int = 0
    """From which the search chose."""
    num_searched: int = 0
    """That it tried."""
    num_rounds: int = 0
    unhooked: tuple[str, ...] = ()
    """Parts of the model that keep tensors which offloading does not see, in words."""
    not_compared: str | None = None
    """Why the answer's results were not compared with those without offloading."""
    interrupted: bool = True


# -- findings --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OffloadRow:
    """One batch under one setting. Unknown is None; `missing` says why."""

    batch_size: int
    above_bytes: int | None
    """None: only what would not fit goes to the host."""
    after_fraction: float | None
    """None: without offloading."""
    outcome: OffloadOutcome
    label: OffloadLabel
    step_s: Estimate | None
    s_per_image: Estimate | None
    to_batch_one: Estimate | None
    """Time per image ÷ that of the smallest batch."""
    peak_live_bytes: int | None
    predicted_peak_bytes: int | None
    host_bytes: int | None
    out_bytes: int | None
    in_bytes: int | None
    moved_bytes_per_step: int | None
    num_copies: int | None
    """In a step, both ways."""
    hidden_s: float | None
    """In a step, of the copies' time."""
    exposed_s: float | None
    """In a step, what the compute waited for copies."""
    num_steps: int
    why: str | None
    """Why there is no time, or why it ended badly."""
    missing: Mapping[str, str] = field(default_factory=dict)
    check: ResultCheck | None = None

    @property
    def peak_bytes(self) -> int | None:
        """As it was measured, else as it was predicted."""
        return self.predicted_peak_bytes if self.peak_live_bytes is None else self.peak_live_bytes


@dataclass(frozen=True)
class ModelOffload(OfModel):
    """The figures of `loaderbench model offload`."""

    batch_size: int
    is_study: bool
    on_host: bool
    memory_bytes: int
    memory_source: str
    planned_bytes: int
    host_free_bytes: int | None
    not_measured: str | None
    assumptions: tuple[str, ...]
    batch_one_s_per_image: float | None
    batch_one: OffloadRow | None
    without: OffloadRow | None
    """The asked batch without offloading."""
    everything: OffloadRow | None
    """All that can go is on the host."""
    thresholds: tuple[OffloadRow, ...]
    """By rising threshold; last those without one."""
    best_above_bytes: int | None
    """None: no threshold, or no answer: `best` tells."""
    best_after_fraction: float | None
    best: OffloadRow | None
    best_to_everything: Estimate | None
    """Images/s of the best ÷ those of everything offloaded."""
    num_settings: int
    num_searched: int
    num_rounds: int
    unhooked: tuple[str, ...]
    interrupted: bool
    as_fast: tuple[OffloadRow, ...] = ()
    """Settings that may be faster than the best, by the intervals: then which is the best is not decided."""
    not_compared: str | None = None
