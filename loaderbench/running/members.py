"""The processes of a split's members: one each, asked together, started together."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from loaderbench.errors import OutOfMemory
from loaderbench.recording.facts import DeviceFacts
from loaderbench.running.crew import Crew, OneFailed, OnMessage
from loaderbench.running.jobs.table import (
    OPEN_MEMBER,
    RUN_PART,
    WARM_MEMBER,
    Job,
    MemberRequest,
    OfMember,
    PartRequest,
    PartRun,
    Request,
    WarmRequest,
)
from loaderbench.running.supervisor import JobFailed, ProcessDied

LEAD_NS = 10_000_000
"""From the asking to the common start: a request crosses the pipe and wakes its process in less."""
LATE_NS = 2_000_000
"""By how much a member may begin after the common start; later ones spoil the turn, and it is done again."""
MOST_LATE = 3
"""Turns that are done again; the next one is told as late."""

A = TypeVar("A")
Q = TypeVar("Q", bound=Request)
Part = tuple[int, int]
"""(first image, number of images)"""


class MemberFailed(Exception):
    """A member could not do its job."""

    def __init__(self, number: int, cause: JobFailed, request: Request, members: Sequence[int]) -> None:
        """`members`: those that were asked together."""
        super().__init__(str(cause))
        self.number, self.cause, self.members = number, cause, tuple(members)
        self.size = request.size if isinstance(request, OfMember) else 0
        """Images of its part; 0 where it had none yet."""
        self.died = isinstance(cause, ProcessDied)
        """Its process is gone."""

    @property
    def lacks_memory(self) -> bool:
        """Whether its part does not fit, and it can go on with a smaller one."""
        return self.size > 0 and self._is_memory

    @property
    def cannot_hold_model(self) -> bool:
        """Whether the model itself does not fit."""
        return self.size == 0 and self._is_memory

    @property
    def _is_memory(self) -> bool:
        return not self.died and isinstance(self.cause.error, OutOfMemory)


@dataclass(frozen=True)
class Together:
    """One turn of some members, from their common start."""

    start_ns: int
    parts: Mapping[int, PartRun]
    """Number of the member → its turn."""
    num_late: int
    """Turns before it that were spoilt by a member that began late."""
    is_late: bool = False
    """So is this one: it is no turn of members that began together."""

    def part_seconds(self, member: int) -> float:
        """From the common start to the member's end."""
        return (self.parts[member].end_ns - self.start_ns) / 1e9

    @property
    def seconds(self) -> float:
        """From the common start to the end of the last."""
        return max(map(self.part_seconds, self.parts))


class Members(Crew):
    """One process for each member, all ended with this context. Members are called by their numbers, from 0.

    All methods raise MemberFailed where a member cannot do what it is asked to.
    """

    def __init__(self, requests: Sequence[MemberRequest], log: Path, on_message: OnMessage) -> None:
        super().__init__(log, on_message)
        self._requests = tuple(requests)

    def __enter__(self) -> Self:
        try:
            self.grow(len(self._requests))
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def leave_out(self, number: int) -> None:
        """End a member's process. Those after it move up by one."""
        self._children.pop(number).process.send_signal(signal.SIGTERM)  # it is waited for with the others
        self._requests = self._requests[:number] + self._requests[number + 1 :]

    def open(self) -> list[DeviceFacts]:
        """Start all devices and build the model on each; those that are open already stay so."""
        found = self._ask(OPEN_MEMBER, dict(enumerate(self._requests)))
        return [found[number] for number in range(len(self._requests))]

    def warm(self, parts: Mapping[int, Part], busy_s: float = 0.0) -> dict[int, float]:
        """Seconds of a turn of each of these members on its part, roughly; all at work for `busy_s` at least."""
        until_ns = time.perf_counter_ns() + round(busy_s * 1e9)
        return self._ask(
            WARM_MEMBER,
            {one: WarmRequest(self._requests[one], size, first, until_ns) for one, (first, size) in parts.items()},
        )

    def run(
        self, parts: Mapping[int, Part], *, busy_s: float = 0.0, with_output: bool = False, again: int = MOST_LATE
    ) -> Together:
        """One turn: each of these members on its part, from a common start, right after a turn of the same that is not
        timed. Times for the table and those of a split are taken by it alike. `again`: how often it is repeated at most
        while a member begins late.

        A member that is done begins again, untimed, until `busy_s` have passed: the time that the last one takes, where
        parts are of unlike times. So nobody is timed beside a member that rests.
        """
        num_late = 0
        while True:
            self.warm(parts, busy_s)
            start_ns = time.perf_counter_ns() + LEAD_NS
            until_ns = start_ns + round(busy_s * 1e9)
            found = self._ask(
                RUN_PART,
                {
                    one: PartRequest(self._requests[one], size, first, until_ns, start_ns, with_output)
                    for one, (first, size) in parts.items()
                },
            )
            is_late = any(part.begin_ns - start_ns > LATE_NS for part in found.values())
            if not is_late or num_late == again:
                return Together(start_ns, found, num_late, is_late)
            num_late += 1

    def _ask(self, job: Job[Q, A], requests: Mapping[int, Q]) -> dict[int, A]:
        """As Crew.ask."""
        try:
            return self.ask(job, requests)
        except OneFailed as error:
            raise MemberFailed(error.number, error.cause, requests[error.number], [*requests]) from error
