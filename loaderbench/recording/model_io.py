"""`loaderbench model io`: a batch's way to a device and its outputs' way back, alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.case import Precision
from loaderbench.recording.facts import DeviceFacts, Environment, Failure
from loaderbench.recording.others import TimedFacts
from loaderbench.recording.record import Estimate

# -- facts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KnownLink:
    """The copy rate of an emulated device, by its profile."""

    bytes_per_s: float
    source: str


@dataclass(frozen=True)
class CopiesFacts:
    """Copies of one batch."""

    batch_size: int
    in_bytes: int | None = None
    out_bytes: int | None = None
    in_s: NDArray[np.float64] | None = None
    """[num_copies]; None: they were not measured, or failed."""
    out_s: NDArray[np.float64] | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class IoFacts(TimedFacts):
    """What was asked and measured."""

    model: str
    precision: Precision
    device_name: str
    input_size: int | None
    channels: int
    inputs: str | None = field(default=None, kw_only=True)
    """What the model takes, where that is not one square image (cases/inputs.py)."""
    seed: int
    environment: Environment
    device: DeviceFacts | None = None
    known: KnownLink | None = None
    """None: copies are measured."""
    batches: tuple[CopiesFacts, ...] = ()
    num_batches: int = 0
    """That were asked for."""


# -- findings --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CopyFigures:
    """One way of one batch."""

    num_bytes: int | None
    s: Estimate | None
    """Median of the copies."""
    bytes_per_s: Estimate | None


@dataclass(frozen=True)
class IoRow:
    """One batch."""

    batch_size: int
    data_in: CopyFigures
    data_out: CopyFigures
    why: str | None
    """Why it has no times."""


@dataclass(frozen=True)
class ModelIo:
    """The figures of `loaderbench model io`."""

    model: str
    precision: Precision
    device_name: str
    input_size: int | None
    channels: int
    inputs: str | None = field(default=None, kw_only=True)
    """What the model takes, where that is not one square image (cases/inputs.py)."""
    same_memory: bool
    """The device computes in the host's memory: a copy there is one within the same RAM."""
    known: KnownLink | None
    batches: tuple[IoRow, ...]
    interrupted: bool
