"""Members of a split that are not there: their times are given by a function, and they may lack memory or die."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from made import make_device
from numpy.typing import NDArray

from loaderbench.recording.facts import DeviceFacts, Failure
from loaderbench.running.jobs.table import MemberRequest, PartRun, WarmRequest
from loaderbench.running.members import MOST_LATE, MemberFailed, Part, Together
from loaderbench.running.supervisor import JobFailed, ProcessDied

Seconds = Callable[[int, int, bool], float]
"""(number of the member, images, whether others work) → seconds of a turn."""


class Crew:
    """Stands for `loaderbench.running.members.Members`."""

    seconds: Seconds = staticmethod(lambda member, size, beside: 0.01 * size)
    noise: Callable[[int], float] = staticmethod(lambda call: 1.0)
    """Number of the turn of its kind → what its times are multiplied by."""
    late: Callable[[str, int], bool] = staticmethod(lambda what, call: False)
    """(`repeat` or `run`, how often it was asked) → whether a member began late, after all tries."""
    turn: Seconds | None = None
    """Of a turn of the run, where it takes another time than the profile said."""
    most: Callable[[int, str], int] = staticmethod(lambda member, what: 10**9)
    """(member, `repeat` or `run`) → images that fit."""
    holds: Callable[[str], bool] = staticmethod(lambda device: True)
    """Whether a device's memory holds the model."""
    dies: Callable[[str, int], int | None] = staticmethod(lambda what, call: None)
    """(what is asked, how often it was) → member that dies then."""
    output: Callable[[int, int], NDArray[np.float32] | None] = staticmethod(
        lambda member, image: np.array([image + 1.0, 5.0, -image], dtype=np.float32)
    )

    def __init__(self, requests: Sequence[MemberRequest], log: Path, on_message: Any) -> None:
        self.requests, self.calls, self.clock_ns = requests, list[tuple[str, dict[int, Any]]](), 10**9
        self.busy_s = list[float]()
        """Of each turn."""
        type(self).last = self

    last: Crew

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def leave_out(self, number: int) -> None:
        self.requests = [one for other, one in enumerate(self.requests) if other != number]

    def open(self) -> list[DeviceFacts]:
        for number, request in enumerate(self.requests):
            if not type(self).holds(request.step.device):
                failure = Failure("OutOfMemory", "the model needs more than the device's 1 GB")
                raise MemberFailed(number, JobFailed(failure), request, range(len(self.requests)))
        return [make_device() for _ in self.requests]

    def _asked(self, what: str, sizes: Mapping[int, int], given: Mapping[int, Any]) -> None:
        self.calls.append((what, dict(given)))
        number = type(self).dies(what, sum(name == what for name, _ in self.calls))
        if number is not None:
            killed = Failure("CaseFailed", "the measuring process was killed by SIGKILL")
            raise self._failed(number, ProcessDied(killed), sizes)
        for member, size in sizes.items():
            if size > type(self).most(member, "run" if what == "run" else "repeat"):
                failure = Failure("OutOfMemory", f"{size} images need more than the device's 1 GB")
                raise self._failed(member, JobFailed(failure), sizes)

    def _failed(self, member: int, cause: JobFailed, sizes: Mapping[int, int]) -> MemberFailed:
        return MemberFailed(member, cause, WarmRequest(self.requests[member], sizes.get(member, 0), 0, 0), [*sizes])

    def warm(self, parts: Mapping[int, Part], busy_s: float = 0.0) -> dict[int, float]:
        sizes = {member: size for member, (_, size) in parts.items()}
        self._asked("warm", sizes, sizes)
        return {member: type(self).seconds(member, size, len(sizes) > 1) for member, size in sizes.items()}

    def run(
        self, parts: Mapping[int, Part], *, busy_s: float = 0.0, with_output: bool = False, again: int = MOST_LATE
    ) -> Together:
        """`repeat`: a turn for the table, in which all are to be at work for some time; `run`: one of the split."""
        sizes = {member: size for member, (_, size) in parts.items()}
        what = "repeat" if busy_s else "run"
        self._asked(what, sizes, sizes if busy_s else parts)
        self.busy_s.append(busy_s)
        seconds = type(self).seconds if busy_s else type(self).turn or type(self).seconds
        start_ns, runs = self.clock_ns, {}
        for member, (first, size) in parts.items():
            assert first >= 0 and first + size <= self.requests[member].step.batch_size
            one = seconds(member, size, len(parts) > 1) * type(self).noise(sum(name == what for name, _ in self.calls))
            rows = [type(self).output(member, image) for image in range(first, first + size)] if with_output else []
            output = np.stack([row for row in rows if row is not None]) if rows and rows[0] is not None else None
            runs[member] = PartRun(start_ns, start_ns + round(one * 1e9), output)
        is_late = type(self).late(what, sum(name == what for name, _ in self.calls))
        together = Together(start_ns, runs, again if is_late else 0, is_late)
        self.clock_ns += round(together.seconds * 1e9) + 10**7
        return together
