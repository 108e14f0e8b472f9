"""Jobs that the self-test gives a measuring process besides measuring: the stopwatch (truth.py)."""

from __future__ import annotations

from dataclasses import dataclass

from loaderbench.cases.case import Case
from loaderbench.running.jobs.table import Job
from loaderbench.selftest.injections import Injection


@dataclass(frozen=True)
class LoaderTimeRequest:
    """Seconds a batch of a loader alone."""

    case: Case
    seconds: float = 1.0

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


@dataclass(frozen=True)
class WallTimeRequest:
    """Wall seconds a step of each side."""

    sides: tuple[Side, ...]
    seconds: float = 1.0
    rounds: int = 2

    @property
    def waits_for(self) -> str:
        return f"the storage under {self.sides[0].case.subject.dataset}"


LOADER_SECONDS: Job[LoaderTimeRequest, float] = Job("loaderbench.selftest.truth", "loader_seconds")
DEVICE_SECONDS: Job[DeviceTimeRequest, float] = Job("loaderbench.selftest.truth", "device_seconds")
WALL_SECONDS: Job[WallTimeRequest, list[float]] = Job("loaderbench.selftest.truth", "wall_seconds")
