"""`loaderbench model split`: one batch over several devices, predicted and measured, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.case import Precision
from loaderbench.recording.facts import DeviceFacts, Environment, Failure
from loaderbench.recording.others import TimedFacts
from loaderbench.recording.record import Estimate
from loaderbench.recording.split_times import Split, SplitTime

SplitOutcome = Literal["faster", "alone", "slower", "indistinguishable"]
"""Of the split against the fastest device alone. `alone`: by the table no split ends before it."""

# -- facts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KnownTimes:
    """Times of an emulated device's parts, by its profile."""

    label: str
    source: str
    link_bytes_per_s: float
    """Of the copy of the images, which is part of a part's time."""


@dataclass(frozen=True)
class MemberFacts:
    """One device with its own process. The same text may stand for two members, each with its own threads."""

    device: str
    """As the table names it."""
    facts: DeviceFacts | None = None
    """None: it was not started."""
    known: KnownTimes | None = None
    """None: its times are measured."""


@dataclass(frozen=True)
class SplitSearch:
    """One search over the table. Sizes are those of all members, in their order."""

    members: tuple[int, ...]
    """Numbers of the members that it may use; their times are those beside one another."""
    greedy: Split | None
    """None where the whole batch fits on no member."""
    exact: Split | None
    """Of one member where no split ends before it; None where nothing fits."""
    alone: Split | None
    """The fastest member alone, by times that were taken while the others rested; None where it fits on none."""
    parts_s: tuple[float, ...] = ()
    """Of each member's part in the split to be run; 0 without one."""
    alone_s: tuple[float | None, ...] = ()
    """Of each member with the whole batch, the others at rest; None where it does not fit, or nobody knows."""
    interpolated: tuple[int, ...] = ()
    """Members whose time in the split to be run lies on the line between measured sizes."""
    to_run: Split | None = None
    """The exact split; where that is one device alone, but by the intervals of the times a split over several may end
    before it, that split. None where nothing fits."""


@dataclass(frozen=True)
class SplitTurns:
    """Turns of the split and of the fastest member alone, one after the other. Nanoseconds of CLOCK_MONOTONIC from the
    first start on."""

    sizes: tuple[int, ...]
    """Of the members; a single one: only it was run."""
    alone: int | None
    """Number of the member that was run alone; None where the whole batch fits on none."""
    split_start_ns: NDArray[np.int64]
    """[num_turns] common starts; empty where only the member alone was run."""
    split_ns: NDArray[np.int64]
    """[num_turns, num_members, 2] begin and end of each part; −1 of members without one."""
    alone_start_ns: NDArray[np.int64]
    """[num_turns]"""
    alone_ns: NDArray[np.int64]
    """[num_turns, 2] begin and end."""
    num_late: int = 0
    """Turns that were done again, since a member began late."""


@dataclass(frozen=True)
class OutputCheck:
    """The parts' outputs, put together in order, against one device's for the same batch."""

    reference: int
    """Number of the member that computed the whole batch."""
    num_images: int
    """That were compared: not those of members that compute nothing."""
    deviation: float
    """Largest over the images of ‖outputs − reference‖ ÷ ‖reference‖."""
    tolerance: float
    neighbours: float | None
    """Median over the images of ‖image − next image‖ ÷ ‖image‖ within the reference: what a wrong order would show;
    None of a single image."""


@dataclass(frozen=True)
class MovedPart:
    """A part that no longer fitted in the run: the batch was split anew."""

    member: int
    size: int
    message: str


@dataclass(frozen=True)
class DroppedMember:
    """A device whose memory does not hold the model at all: the others share the batch."""

    device: str
    message: str


@dataclass(frozen=True)
class SplitFacts(TimedFacts):
    """What was asked and found."""

    model: str
    precision: Precision
    input_size: int | None
    channels: int
    inputs: str | None = field(default=None, kw_only=True)
    """What the model takes, where that is not one square image (cases/inputs.py)."""
    batch_size: int
    seed: int
    environment: Environment
    table: str
    """Name of the table's file, in the folder of the results."""
    members: tuple[MemberFacts, ...]
    """Without those that were dropped."""
    dropped: tuple[DroppedMember, ...] = ()
    times: tuple[SplitTime, ...] = ()
    """Of these members, as the searches used them."""
    num_measured: int = 0
    """Of them measured in this study; the others were in the table."""
    searches: tuple[SplitSearch, ...] = ()
    """In their order; the last one decided."""
    chosen: Split | None = None
    """What the last search said is to be run."""
    turns: SplitTurns | None = None
    check: OutputCheck | None = None
    no_check: str | None = None
    """Why outputs were not compared."""
    num_left_out: int = 0
    """Turns of both that are not among `turns`: a member began late, again and again."""
    moved: tuple[MovedPart, ...] = ()
    stolen_profile_fraction: float | None = None
    """Of the processors' time, that the hypervisor gave to other guests while times were taken, before the first turn
    (/proc/stat, steal)."""
    stolen_turns_fraction: float | None = None
    """While the turns were run."""
    failure: Failure | None = None
    """What ended it."""
    interrupted: bool = True


# -- findings --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitMember:
    """A member's part."""

    device: str
    name: str | None
    """Of the device itself."""
    batch_size: int
    predicted_s: float | None
    measured_s: Estimate | None
    """From the common start to its end."""
    interpolated: bool
    """Its prediction lies on the line between measured sizes."""
    num_threads: int | None
    emulated: bool


@dataclass(frozen=True)
class DeviceAlone:
    """A device with the whole batch, the others at rest."""

    device: str
    predicted_s: float | None
    s: Estimate | None
    """None: it was not run in the turns."""
    why: str | None
    """Why it has no time."""


@dataclass(frozen=True)
class ModelSplit:
    """The figures of `loaderbench model split`. Unknown is None; `missing` says why."""

    model: str
    precision: Precision
    input_size: int | None
    channels: int
    inputs: str | None = field(default=None, kw_only=True)
    """What the model takes, where that is not one square image (cases/inputs.py)."""
    batch_size: int
    members: tuple[SplitMember, ...]
    """Those that could hold the model; of batch 0 those that have no part."""
    greedy_s: float | None
    greedy_sizes: tuple[int, ...] | None
    exact_s: float | None
    exact_sizes: tuple[int, ...] | None
    predicted_s: float | None
    """Of what was run."""
    measured_s: Estimate | None
    """Of what was run: median over the turns of the time from the common start to the end of the last member."""
    measured_over_predicted: float | None
    fastest_alone: DeviceAlone | None
    alone: tuple[DeviceAlone, ...]
    """Each device alone, by the table."""
    maybe_fastest: tuple[str, ...]
    """Devices whose time alone the table's intervals do not tell from that of the fastest; they were not run alone."""
    ratio_to_fastest_alone: Estimate | None
    """Seconds of the split ÷ those of the fastest alone, turn by turn."""
    outcome: SplitOutcome | None
    num_turns: int
    num_late: int
    """Turns that were done again, since a member began late."""
    num_left_out: int
    """Turns of both that count nowhere: a member began late, again and again."""
    num_searches: int
    times: tuple[SplitTime, ...]
    num_measured: int
    table: str
    check: OutputCheck | None
    is_equal: bool | None
    """Whether the outputs are equal within the tolerance; None: they were not compared."""
    moved: tuple[MovedPart, ...]
    dropped: tuple[DroppedMember, ...]
    stolen_profile_fraction: float | None
    stolen_turns_fraction: float | None
    assumptions: tuple[str, ...]
    """Where the times of emulated members come from."""
    failure: str | None
    """What ended it early, where it was no interrupt."""
    interrupted: bool
    missing: Mapping[str, str] = field(default_factory=dict)
