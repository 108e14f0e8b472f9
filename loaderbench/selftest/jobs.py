"""Jobs that the self-test gives a measuring process besides measuring: the stopwatch (truth.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from loaderbench.cases.case import Case
from loaderbench.recording.studies import AlikeFacts
from loaderbench.running.jobs.table import Job
from loaderbench.selftest.disturbers import Disturber
from loaderbench.selftest.injections import Injection


@dataclass(frozen=True)
class LoaderTimeRequest:
    """Seconds a batch of a loader alone."""

    case: Case
    seconds: float = 1.0
    injection: Injection | None = None

    @property
    def waits_for(self) -> str:
        return f"the storage under {self.case.subject.dataset}"


@dataclass(frozen=True)
class DeviceTimeRequest:
    """Seconds a step of a device alone."""

    case: Case
    injection: Injection | None = None
    num_steps: int = 20

    @property
    def waits_for(self) -> str:
        return f"the device {self.case.step.device}"


@dataclass(frozen=True)
class Side:
    """One of several runs that are timed in turns."""

    case: Case
    injection: Injection | None = None
    cold: bool = False
    disturbed: bool = True
    """Whether the request's disturber works meanwhile."""


@dataclass(frozen=True)
class WallTimeRequest:
    """Wall seconds a step of each side."""

    sides: tuple[Side, ...]
    seconds: float = 1.0
    rounds: int = 3
    mean: bool = False
    """What slows the sides comes and goes: `of` takes the mean."""
    disturber: Disturber | None = None

    def of(self, turns: Sequence[Sequence[float]]) -> list[float]:
        """One figure for each side, of its turns: their mean, or the fastest, since other load of the machine only adds
        time."""
        return [fmean(kept) if self.mean else min(kept) for kept in turns]

    @property
    def waits_for(self) -> str:
        return f"the storage under {self.sides[0].case.subject.dataset}"


@dataclass(frozen=True)
class AlikeRequest:
    """One combination, as a case over its data set."""

    name: str
    case: Case

    @property
    def waits_for(self) -> str:
        return f"the storage under {self.case.subject.dataset}"


LOADER_SECONDS: Job[LoaderTimeRequest, float] = Job("loaderbench.selftest.truth", "loader_seconds")
DEVICE_SECONDS: Job[DeviceTimeRequest, float] = Job("loaderbench.selftest.truth", "device_seconds")
WALL_SECONDS: Job[WallTimeRequest, list[tuple[float, ...]]] = Job("loaderbench.selftest.truth", "wall_seconds")
ALIKE: Job[AlikeRequest, AlikeFacts] = Job("loaderbench.selftest.alike", "measure_alike")
