"""The step loop: the only code that runs between two timestamps.

Do not extend it with callbacks. Besides the loader, the device and the workload a step costs
five clock readings, one of the run queue, one tuple and, on a device, three events and asking for one of them: see
docs/method.md for the measured overhead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loaderbench.devices.base import Device, Event
from loaderbench.devices.collective import Collective
from loaderbench.loaders.base import MAX_STEPS_IN_FLIGHT, Batch
from loaderbench.recording.facts import STEP, STEP_FIELDS
from loaderbench.samplers.run_queue import RunQueue, ns_of
from loaderbench.workloads.base import Workload

HOST_FIELDS = (
    "called_ns", "returned_ns", "issued_ns", "waited_ns", "num_samples", "encoded_bytes", "arrived_ns", "ahead"
)  # fmt: skip
"""What the host tells of a step."""


class StepLoop:
    """Runs consecutive steps of one arm and keeps the raw stamps.

    With a device each batch is copied in (unless it is resident) and handed to the workload; the host is
    at most MAX_STEPS_IN_FLIGHT steps ahead of the device. Without one, batches are taken and dropped.
    """

    def __init__(
        self, batches: Iterator[Batch], device: Device | None, workload: Workload | None, *, resident: bool = False
    ) -> None:
        self.batches = batches
        self._device = device
        self._workload = workload
        self._resident = resident
        if workload is not None:
            workload.phases.clear()
        self.collective: Collective | None = None
        """What ends each step together with the other ranks'; set before the first step."""
        self._in_flight: deque[Event] = deque()
        self._first_event: Event = None
        self._queue = RunQueue()
        self._queued_ns = self._queue.ns()
        """When the loop was made, by the thread that runs it."""
        self.host: list[tuple[int, int, int, int, int, int, int, int]] = []
        """HOST_FIELDS of each step."""
        self._queued: list[bytes] = []
        """What the run queue told behind each step."""
        self.events: list[tuple[Event, Event, Event]] = []
        self.indices: list[NDArray[np.int64] | None] = []
        self.spans: list[NDArray[np.int64] | None] = []
        self.failures: list[tuple[int, str]] = []

    def run(self, num_steps: int, deadline_ns: int) -> int:
        """Run up to `num_steps` further steps, stopping after the step that passes `deadline_ns`.

        Returns how many were run. Raises what the loader, the device or the workload raises.
        """
        if self._device is None or self._workload is None:
            return self._run_free(num_steps, deadline_ns)
        clock = time.perf_counter_ns
        device = self._device
        batches, record, wait, step = self.batches, device.record, device.wait, self._workload.step
        reached, queue, queued = device.reached, self._queue.text, self._queued
        copy_in: Callable[[Any, Any], tuple[Any, Any]] = _keep if self._resident else device.copy_in
        record_copy = record if self._resident else device.record_copy
        in_flight, host, events = self._in_flight, self.host, self.events
        collective = self.collective
        for number in range(num_steps):
            called = clock()
            batch = next(batches)
            returned = clock()
            if collective is not None:
                collective.end()
            begin = record_copy()
            inputs, targets = copy_in(batch.inputs, batch.targets)
            copied = record_copy()
            step(inputs, targets)
            done = record()
            if collective is not None:
                collective.begin(done)
            issued = clock()
            ahead = not reached(in_flight[-1]) if in_flight else -1
            in_flight.append(done)
            if len(in_flight) > MAX_STEPS_IN_FLIGHT:
                wait(in_flight.popleft())
            waited = clock()
            encoded, arrived = batch.encoded_bytes, batch.arrived_ns
            host.append((called, returned, issued, waited, batch.num_samples, encoded, arrived, ahead))
            queued.append(queue())
            events.append((begin, copied, done))
            self.spans.append(batch.spans)
            self.indices.append(batch.indices)
            if batch.failures:
                self.failures.extend(batch.failures)
            if waited >= deadline_ns:
                return number + 1
        return num_steps

    def _run_free(self, num_steps: int, deadline_ns: int) -> int:
        clock, queue = time.perf_counter_ns, self._queue.text
        batches, host, queued = self.batches, self.host, self._queued
        for number in range(num_steps):
            called = clock()
            batch = next(batches)
            returned = clock()
            encoded, arrived = batch.encoded_bytes, batch.arrived_ns
            host.append((called, returned, returned, returned, batch.num_samples, encoded, arrived, -1))
            queued.append(queue())
            self.spans.append(batch.spans)
            self.indices.append(batch.indices)
            if batch.failures:
                self.failures.extend(batch.failures)
            if returned >= deadline_ns:
                return number + 1
        return num_steps

    def steps(self) -> NDArray[np.int64]:
        """The table [N, len(STEP_FIELDS)] of all steps run. Synchronizes the device: call it at the end."""
        if self.collective is not None:
            self.collective.end()
        host = np.array(self.host, dtype=np.int64).reshape(-1, len(HOST_FIELDS))
        table = np.full((len(host), len(STEP_FIELDS)), -1, dtype=np.int64)
        table[:, [STEP[name] for name in HOST_FIELDS]] = host
        queued = np.array([self._queued_ns, *map(ns_of, self._queued)], dtype=np.int64)
        if (queued >= 0).all():
            table[:, STEP["queued_ns"]] = np.diff(queued)
        if self._device is not None and self.events:
            copies = self._device.times_ns([event for events in self.events for event in events[:2]]).reshape(-1, 2)
            table[:, STEP["copy_begin_ns"]], table[:, STEP["copy_end_ns"]] = copies.T
            table[:, STEP["done_ns"]] = self._device.times_ns([done for _, _, done in self.events])
            for row, (_, copied, done) in enumerate(self.events):
                busy = self._device.busy_ns(copied, done)
                table[row, STEP["busy_ns"]] = -1 if busy is None else busy
        return table

    @property
    def made(self) -> list[tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]]:
        """(positions of its images, span) of each step's batch."""
        return list(zip(self.indices, self.spans, strict=True))

    def phases(self) -> NDArray[np.int64] | None:
        """[N, len(PHASE_FIELDS)] of all steps run; None where the workload gives none."""
        given = [] if self._workload is None else self._workload.phases
        return np.array(given, dtype=np.int64) if len(given) == len(self.host) > 0 else None

    def table_of_spans(self, drained: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
        """Spans of the delivered batches and of those that were drained; None where the loader gave none."""
        known = [span for span in self.spans if span is not None]
        if len(known) != len(self.spans) or not known:
            return None
        table = np.stack(known)
        if drained is not None and len(drained):
            table = np.concatenate([table, drained])
        return table


def _keep(inputs: Any, targets: Any) -> tuple[Any, Any]:
    return inputs, targets
