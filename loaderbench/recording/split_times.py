"""What is known when a batch is split over devices: how long each takes for a part, and the split itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Origin = Literal["measured", "set by hand", "published"]
Outcome = Literal["ok", "out_of_memory"]


@dataclass(frozen=True)
class SplitTime:
    """How long one device takes for a part of one size."""

    device: str
    """As `--device` names it."""
    batch_size: int
    """Images of the part."""
    seconds: float | None
    """Median of the turns, from the start of the part to its last output; None where it does not fit."""
    low: float | None = None
    """Of the interval of the median, as `high`; None where there is none."""
    high: float | None = None
    num_turns: int | None = None
    """None where nobody measured."""
    beside: tuple[str, ...] = ()
    """The devices that worked meanwhile, in order of their names."""
    origin: Origin = "measured"
    outcome: Outcome = "ok"
    message: str | None = None
    """Which memory was too small, where it does not fit."""
    date: str | None = None
    """UTC, ISO 8601."""


@dataclass(frozen=True)
class Split:
    """How many images each member gets, and when the last member is done."""

    sizes: tuple[int, ...]
    """Of the members, in their order; 0: it has no part."""
    finish_s: float

    @property
    def members(self) -> tuple[int, ...]:
        """Numbers of those that have a part."""
        return tuple(member for member, size in enumerate(self.sizes) if size)


@dataclass(frozen=True)
class TableMachine:
    """What makes times of another machine useless here."""

    architecture: str
    cpu_model: str | None
    cpus_usable: int
    gpus: tuple[str, ...]
    """Names, in order."""
    torch: str | None
    """Version of PyTorch."""


@dataclass(frozen=True)
class TableSubject:
    """What the times of one table are of."""

    model: str
    mode: str
    precision: str
    input_shape: tuple[int, ...]
    """Of one image: channels, height, width."""
    machine: TableMachine
