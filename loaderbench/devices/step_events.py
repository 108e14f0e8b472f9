"""When a GPU reached the borders of a script's steps, on the host's clock, without ever making the script wait.

Events from a pool are recorded on the script's current stream and asked, later, whether they are done (`query`). The
device's clock is tied to the host's as StreamDevice does it, by events that lie between two stamps of the host, on a
stream of the watch's own, which is always idle. It is tied anew every TIE_S, since the clocks drift apart.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from loaderbench.devices.brackets import tightest_bracket
from loaderbench.originals import time

NUM_TIES, TIE_S = 5, 2.0
MOST_PENDING = 4096
"""Events that wait for the device; a script that is further ahead is not followed."""
REACHED_S = 0.05
"""An event on an idle stream that is not reached by then ties no clock."""
SPIN_CYCLES_PER_S = 2.0e9
"""As in cuda.py: what a spin takes in truth is measured by events."""
NEVER = -2
"""In place of a time: it will not be known."""


def step_events() -> StepEvents | None:
    """For the GPU that this process uses; None where it uses none yet."""
    torch = sys.modules.get("torch")
    return StepEvents(torch.cuda) if torch is not None and torch.cuda.is_initialized() else None


class StepEvents:
    """Of one process's current device. Everything here is called by the thread that takes the batches."""

    def __init__(self, api: Any) -> None:
        """`api`: PyTorch's module `torch.cuda`."""
        self._api = api
        self.problem: str | None = None
        """Why it stamps no more."""
        self.num_reached = self.spent_ns = 0
        self._free: list[Any] = []
        self._pending: deque[tuple[Any, list[int], int]] = deque()
        self._last: Any = None
        """The event that was reached last, and its time on the device's clock, from the first tie on."""
        self._last_ns = 0
        self._offset_ns = self._tied_at_ns = 0
        self.uncertainty_ns = 0
        try:
            self._own = api.Stream()
            ties = [api.Event(enable_timing=True) for _ in range(NUM_TIES)]
            for event in ties:  # the first record creates an event; keep that out of the brackets
                event.record(self._own)
                self._wait_for(event)
            self._last = ties[0]
            self._tie()
        except (RuntimeError, TimeoutError) as error:
            self._stop(error)

    # -- the script's steps ------------------------------------------------------------------------------------

    def mark(self, cell: list[int], at: int) -> None:
        """What is enqueued by now ends a step: when the device has done it, comes into `cell[at]`; NEVER where that
        cannot be known."""
        if self.problem is not None or self._api.is_current_stream_capturing():
            cell[at] = NEVER
            return
        if len(self._pending) >= MOST_PENDING:
            self._stop("the script runs too far ahead of its device")
            cell[at] = NEVER
            return
        begun = time.perf_counter_ns()
        try:
            event = self._free.pop() if self._free else self._api.Event(enable_timing=True)
            event.record()
            self._pending.append((event, cell, at))
        except RuntimeError as error:  # the script meets the device's error at its own next call
            cell[at] = NEVER
            self._stop(error)
        self.spent_ns += time.perf_counter_ns() - begun

    def harvest(self) -> bool:
        """Note the times of all events that the device has reached; whether there are no others."""
        begun = time.perf_counter_ns()
        try:
            while self._pending and self._pending[0][0].query():
                event, cell, at = self._pending.popleft()
                self._reach(event)
                cell[at] = self._last_ns + self._offset_ns
                self.num_reached += 1
            if self.problem is None and begun - self._tied_at_ns > TIE_S * 1e9:
                self._tie()
        except TimeoutError:  # the clocks stay tied as they were
            self._tied_at_ns = begun
        except RuntimeError as error:
            self._stop(error)
        self.spent_ns += time.perf_counter_ns() - begun
        return not self._pending

    def spin(self, delay_ns: int, cell: list[int]) -> None:
        """Keep the current stream busy for about `delay_ns`; when it began and ended comes into the cell."""
        self.mark(cell, 0)
        if self.problem is None:
            self._api._sleep(round(delay_ns / 1e9 * SPIN_CYCLES_PER_S))
        self.mark(cell, 1)

    # -- clocks ------------------------------------------------------------------------------------------------

    def _reach(self, event: Any) -> None:
        """The device's time goes on to this event: from its neighbour, since elapsed times are float32 milliseconds."""
        self._last_ns += round(self._last.elapsed_time(event) * 1e6)
        self._free.append(self._last)
        self._last = event

    def _tie(self) -> None:
        """Events on the idle stream, behind all that were reached: what lies between the two clocks now."""
        events = [self._free.pop() if self._free else self._api.Event(enable_timing=True) for _ in range(NUM_TIES)]
        event, at_ns, uncertainty_ns = tightest_bracket(events, lambda one: one.record(self._own), self._wait_for)
        self._free += [one for one in events if one is not event]
        self._reach(event)
        self._offset_ns, self.uncertainty_ns, self._tied_at_ns = at_ns - self._last_ns, uncertainty_ns, at_ns

    def _wait_for(self, event: Any) -> None:
        """Raises TimeoutError. The stream is idle: this takes microseconds, and no work of the script is waited for."""
        begun = time.perf_counter_ns()
        while not event.query():
            if time.perf_counter_ns() - begun > REACHED_S * 1e9:
                raise TimeoutError("an event on an idle stream never completed")

    def _stop(self, why: object) -> None:
        self.problem = str(why).strip().splitlines()[0]
        for _, cell, at in self._pending:
            cell[at] = NEVER
        self._pending.clear()
