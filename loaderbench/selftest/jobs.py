"""Jobs that the self-test gives a measuring process besides measuring: the stopwatch (truth.py)."""

from __future__ import annotations

from dataclasses import dataclass

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
    rounds: int = 2
    mean: bool = False
    """Take the mean of a side's turns, where what slows it comes and goes; else the fastest, since other load of the
    machine only adds time."""
    disturber: Disturber | None = None

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
WALL_SECONDS: Job[WallTimeRequest, list[float]] = Job("loaderbench.selftest.truth", "wall_seconds")
ALIKE: Job[AlikeRequest, AlikeFacts] = Job("loaderbench.selftest.alike", "measure_alike")
