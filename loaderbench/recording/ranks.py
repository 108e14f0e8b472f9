"""`run` and `sweep` under a launcher: what each rank did, what their imbalance costs, and whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.arms import Arm
from loaderbench.cases.case import Case
from loaderbench.recording.facts import Environment, Status
from loaderbench.recording.rank_place import RankClock, RankPlace
from loaderbench.recording.record import Bottleneck, Estimate, Share

RANK_STEP_FIELDS = (
    "called_ns",  # as in STEP_FIELDS, on the rank's own clock
    "returned_ns",
    "issued_ns",
    "done_ns",  # the rank's own device was done: its arrival, before any collective
    "num_samples",
    "encoded_bytes",
    "read_ns",  # of the batch's span; -1 where the loader does not tell
    "prep_ns",  # decode, augment and collate
    "queued_ns",  # its worker was runnable but not running
)
"""Columns of RankWindow.steps."""
RANK_STEP: Mapping[str, int] = {name: number for number, name in enumerate(RANK_STEP_FIELDS)}

Pattern = Literal["rank", "node", "rotating"]
"""`rank`, `node`: the same one is late again and again. `rotating`: one after the other is."""
LateBy = Literal["reading", "preparing", "processors", "data", "device"]
"""`processors`: the workers had none while they could have worked. `data`: the batch was late, and the loader does not
tell by what. `device`: copying, issuing or computing."""

# -- facts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankWindow:
    """One window of one rank."""

    arm: Arm
    joint: bool
    """Every step of all ranks ended with an all-reduce."""
    round: int
    num_warmup: int
    steps: NDArray[np.int64]
    """[N, len(RANK_STEP_FIELDS)], warm-up included."""
    first_batch: int = 0
    """Of a watched script: the number of its first step's batch, among all of its loader's."""


@dataclass(frozen=True)
class RankRun:
    """One rank of one case."""

    place: RankPlace
    run_id: str
    """Of its run, in the store that it wrote to."""
    status: Status
    clocks: tuple[RankClock, ...]
    """At the begin and at the end."""
    windows: tuple[RankWindow, ...]
    num_images: int | None
    """Of its share of the data set."""


@dataclass(frozen=True)
class RankedCase:
    """All ranks of one case."""

    case: Case
    """Rank 0's."""
    parts: tuple[RankRun, ...]
    watched: bool = False
    """A script that is not ours: what a rank computes before it waits for the others is not told apart. `returned_ns`
    of its steps is when the batch was there; `done_ns`, when the script asked for the next or its device was done."""


@dataclass(frozen=True)
class RankEnd:
    """Why a launch ended early."""

    rank: int | None
    """Whose fault it is; None: not known, or nobody's."""
    node: str | None
    what: str
    last: str
    """What it did last."""


@dataclass(frozen=True)
class RanksFacts:
    """What was asked of all ranks, and what they measured."""

    environment: Environment
    """Of rank 0's node."""
    ranks: int
    launcher: str
    num_cases: int
    """That were asked for."""
    cases: tuple[RankedCase, ...] = ()
    ended: RankEnd | None = None


# -- findings --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankFigures:
    """One rank."""

    place: RankPlace
    run_id: str
    samples_per_s: float | None
    """By itself: over its windows without an all-reduce. None where it was not measured, as all figures here."""
    bytes_per_s: float | None
    """Of the files."""
    own_step_s: float | None
    """Mean time from the begin of a step to the rank's arrival: the others' lateness is not in it."""
    data_s: float | None
    """Part of it in which its device waited for the batch."""
    read_s: float | None
    prep_s: float | None
    """Mean seconds a batch, in its worker."""
    lateness_s: float | None
    """`own_step_s` minus the mean over the ranks."""
    last_fraction: float | None
    """Of the steps, those in which it arrived last."""
    clock_offset_s: float | None
    clock_uncertainty_s: float | None
    utilization_fraction: float | None
    bottleneck: Bottleneck | None
    """Of its run; None where that has no verdict, or is in another store."""
    shares: Mapping[Share, float] | None


@dataclass(frozen=True)
class ImbalancePart:
    """A part of what imbalance costs."""

    pattern: Pattern
    late_by: LateBy
    seconds: float
    """A step."""
    rank: int | None
    """The late one; of a node the latest of it; None where it rotates."""
    node: str | None


@dataclass(frozen=True)
class Imbalance:
    """What it costs that steps end when the last rank arrives: E[max] − mean of the arrivals."""

    joint: bool
    """Measured with an all-reduce in each step; else what it would be with one, the steps taken by their numbers."""
    num_steps: int
    step_s: float
    """E[max]: from the begin of a step until the last rank arrives."""
    mean_s: float
    """Mean over the ranks."""
    fraction: Estimate
    """(E[max] − mean) ÷ E[max]."""
    parts: tuple[ImbalancePart, ...]
    """The largest first; their seconds sum to E[max] − mean."""


@dataclass(frozen=True)
class RanksVerdict:
    """What limits all ranks together."""

    limited_by: Literal["imbalance"] | Bottleneck | None
    """`imbalance`: the ranks wait for each other. Else what most of them are limited by alone; None: not known."""
    part: ImbalancePart | None
    """The leading part, where it is the imbalance."""
    agree: int
    """Ranks with that bottleneck of their own."""


@dataclass(frozen=True)
class StripBar:
    """Something a rank did, on rank 0's clock from the strip's begin."""

    rank: int
    what: Literal["data", "step", "others"]
    step: int
    begin_ms: float
    end_ms: float


@dataclass(frozen=True)
class RankedFigures:
    """All ranks of one case."""

    title: str
    case: Case
    ranks: tuple[RankFigures, ...]
    samples_per_s: float | None
    """Sum over the ranks, each by itself."""
    together_samples_per_s: float | None
    """With a barrier at each step: a batch of each rank ÷ E[max]."""
    bytes_per_s: float | None
    imbalance: Imbalance | None
    verdict: RanksVerdict
    strip: tuple[StripBar, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    watched: bool = False
    """A script that is not ours: lateness and imbalance are those of the batches alone (docs/ranks.md, `Your own
    script`)."""
    ready_step_s: float | None = None
    """Of such a script: a step where the batches of all ranks are there (bursts)."""


@dataclass(frozen=True)
class Ranks:
    """The figures of a launch."""

    ranks: int
    nodes: tuple[str, ...]
    launcher: str
    num_cases: int
    cases: tuple[RankedFigures, ...]
    ended: RankEnd | None
