"""Known delays in the steps of short windows: by how much the run grows longer tells what paces it.

A step that ends δ later lengthens the run by δ where the steps pace it, and by nothing where it would have waited for
its batch for so long anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from loaderbench.originals import time
from loaderbench.recording.facts import StepDelay

Place = Literal["host", "stream"]
PART = 0.05
"""Most that delays may take of the run's time."""
OF_A_STEP = 0.2
LEAST_DELAY_NS, MOST_DELAY_NS = 300_000, 200_000_000
LEAST_STEPS, LEAST_S = 24, 0.2
"""Of a window, with delays or before one."""
QUICK, LATER_S = 60, 30.0
"""So many windows follow each other as the budget allows; later ones keep this distance."""


@dataclass
class Dose:
    """A window's delay."""

    place: Place
    asked_ns: int
    total_ns: int = 0
    """As it was, on the host."""
    steps: int = 0
    spins: list[list[int]] = field(default_factory=list)
    """When each spin on the stream began and ended."""

    def facts(self) -> StepDelay | None:
        """None where it is not known how long it was."""
        if self.place == "stream":
            known = [end - begun for begun, end in self.spins if begun >= 0 and end >= 0]
            return StepDelay(self.place, self.asked_ns, sum(known) / len(known)) if known else None
        return StepDelay(self.place, self.asked_ns, self.total_ns / self.steps) if self.steps else None


class Stream(Protocol):
    """A device's queue of work."""

    def spin(self, delay_ns: int, cell: list[int]) -> None: ...


class Doses:
    """How long, and when; and the waiting itself."""

    def __init__(self) -> None:
        self.total_ns = self.num_windows = 0
        self._next: Place = "host"

    def next(self, steps_ns: list[int], workers: int, open_ns: int, run_ns: int, *, stream: bool) -> Dose | None:
        """The dose for the window that follows one with such steps; None where it is not time for one.

        `stream`: the device's can be delayed too; both take turns.
        """
        least_s = LEAST_S if self.num_windows < QUICK else LATER_S
        if len(steps_ns) < LEAST_STEPS or open_ns < least_s * 1e9:
            return None
        asked_ns = round(min(max(OF_A_STEP * float(np.median(steps_ns)), LEAST_DELAY_NS), MOST_DELAY_NS))
        if self.total_ns + asked_ns * num_steps(workers) > PART * run_ns:
            return None
        place = self._next if stream else "host"
        self._next = "stream" if place == "host" else "host"
        self.num_windows += 1
        return Dose(place, asked_ns)

    def give(self, dose: Dose, begun: int, stream: Stream | None) -> int:
        """Delay one step, from `begun` on; when the host goes on. The thread sleeps, so that its processor is free as
        it is while a device works. `stream`: that of the device."""
        if dose.place == "stream":
            assert stream is not None
            dose.spins.append([-1, -1])
            stream.spin(dose.asked_ns, dose.spins[-1])
            self.total_ns += dose.asked_ns
        else:
            time.sleep(dose.asked_ns / 1e9)
        now = time.perf_counter_ns()
        dose.total_ns += now - begun
        dose.steps += 1
        if dose.place == "host":
            self.total_ns += now - begun
        return now


def warmup_steps(workers: int) -> int:
    """Steps with delays that do not count: a round of the workers."""
    return max(1, workers)


def num_steps(workers: int) -> int:
    """Of a window with delays: whole rounds of the workers."""
    lanes = max(1, workers)
    return warmup_steps(workers) + lanes * -(-LEAST_STEPS // lanes)
