"""What a tracker takes: points while a script runs, a summary at its end."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from loaderbench.errors import ConfigError, MissingExtra
from loaderbench.lacking import is_installed

PREFIX = "loaderbench/"
"""Begins the name of everything that is logged."""


@dataclass(frozen=True)
class Point:
    """Figures at one step of the training."""

    step: int
    """Optimizer steps where a trainer counts them, else batches of the training's loader."""
    values: Mapping[str, float]
    """Name (`waiting_fraction`, `share/storage` …) → figure; times in s, shares as fractions."""


@dataclass(frozen=True)
class Summary:
    """What the run came to."""

    values: Mapping[str, float | str]
    """`verdict`, `summary`, `gain`, `gain_low`, `gain_high`, `advice` …; what is unknown is left out."""
    text: str
    """The result as Markdown."""
    page: str | None = None
    """The report as one HTML page; None where it could not be made."""
    points: Sequence[Point] = ()
    """All points of the run, for a tracker that may have dropped some."""


@dataclass(frozen=True)
class Target:
    """The run that the script has open."""

    run: str | None = None
    """Its id, or folder; None: there is none, so one is opened and closed."""
    place: str | None = None
    """The server, database or folder of runs that the script chose."""
    name: str = ""
    """Of the script."""


class Tracker(Protocol):
    """One run of a tracker. Its methods raise whatever its library raises."""

    def point(self, point: Point) -> None:
        """Log the figures at one step."""

    def summarize(self, summary: Summary) -> None:
        """Set the run's summary, in place of an earlier one."""

    def close(self, *, failed: bool) -> None:
        """End the run, if it was opened here. `failed`: the script was killed or ended with an error."""


class Library(ABC):
    """What a tracker's module offers. Nothing of it imports the library but `open_run`, in a process of ours."""

    def script_run(self) -> Any:
        """Return the run that the script has open, if it is an object that only the script's process can log to."""
        return None

    def logged(self, run: Any) -> Tracker:
        """Log to such an object."""
        raise NotImplementedError

    def before_finish(self, run: Any, do: Callable[[], None]) -> None:
        """Call `do` before the script finishes that run."""
        raise NotImplementedError

    @abstractmethod
    def target_of(self, name: str) -> Target:
        """Find the run that the script has open, which another process can log to. `name`: of the script."""

    @abstractmethod
    def open_run(self, target: Target) -> Tracker:
        """Open it, or a new one. Raises whatever the library raises."""


@dataclass(frozen=True)
class Kind:
    """One tracker that can be named."""

    module: str
    """Of ours."""
    package: str
    """The library, which is also what its extra is called."""

    def load(self) -> Library:
        """Import our module, which imports no library."""
        found: Library = importlib.import_module(self.module).LIBRARY
        return found


TRACKERS: Mapping[str, Kind] = {
    "wandb": Kind("loaderbench.trackers.wandb_run", "wandb"),
    "mlflow": Kind("loaderbench.trackers.mlflow_run", "mlflow"),
    "tensorboard": Kind("loaderbench.trackers.tensorboard_run", "tensorboard"),
}
"""Name, as `log_to` takes it → the tracker."""


def names_of(log_to: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the trackers that are asked for, each once: a name, several separated by commas, or a sequence of names.

    Raises:
        ConfigError: there is no such tracker.
        MissingExtra: its library is not installed.
    """
    parts = log_to.split(",") if isinstance(log_to, str) else log_to or ()
    names = tuple(dict.fromkeys(str(part).strip() for part in parts))
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"unknown tracker '{name}'; log to one or more of {', '.join(TRACKERS)}")
        package = TRACKERS[name].package
        if not is_installed(package):
            raise MissingExtra(
                f"logging to {name} needs {package}, which is not installed: pip install 'loaderbench[{package}]'"
            )
    return names
