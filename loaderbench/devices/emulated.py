"""A stand-in for a GPU on a machine without one: a virtual clock against which real work can be measured.

The model, on the clock of `time.perf_counter_ns`:

- Work is enqueued and returns at once, in order. `free` is when the queue of the compute runs empty.
- A copy takes bytes ÷ link rate. It has a queue of its own and begins when that is empty (`overlap`), or shares the
  queue of the compute. It is assumed to come from pinned memory, so it neither blocks the host nor costs it CPU time.
- Issuing a step costs the calling thread `issue_ms` of CPU time, really burnt: a starved host issues later. Where the
  profile does not tell it, issuing costs nothing, and the device tells no busy time: launches cannot be judged.
  The kernels of a step start as soon as the first is issued and cannot end before the last one is:

      start = max(free, copied, issue_begin)        done = max(start + duration, issue_end + tail)

  So if issuing takes longer than computing, the period is equal to the issue time.
- The compute is busy for `busy_ms` of every step, wherever the step was stretched; launch gaps are the rest
  of the step's interval.
- An event's time is ``max(now, free)``, as a CUDA event's in a stream.
- The host sleeps in `wait` and `synchronize`, and nowhere else: how far it may run ahead is the caller's rule.
  (CUDA's own limit of about 1,024 launches in flight is not modelled.)

No thread, no CPU time for the device, no memory on it.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.case import Step
from loaderbench.devices.profile import NO_ISSUE, Constant, Profile, named
from loaderbench.devices.tracing import Recorder, Work, in_window, with_steps
from loaderbench.plain import JsonObject
from loaderbench.recording.facts import COPY, KERNEL, ROW, DeviceFacts, MemoryFacts, Segment, Table, TraceWitness

PIECES = 10
"""Number of equal pieces into which the busy time of a step is divided when the device's work is logged, spread evenly
from the step's start to its end: the model knows how long the compute is busy, not how many kernels run."""
MOST_LOGGED = 256
"""Pieces of work that the log keeps, the last ones: the steps of a traced window, each of a copy, a step and a few more
that the self-test builds in."""
COMPUTE_STREAM, COPY_STREAM = 0, 1
UNKNOWN: JsonObject = {"value": None, "label": "unknown"}
"""A constant that a profile does not tell."""

_SLICE = bytes(64 * 1024)
"""Data of one slice of issue work. Its CRC takes about 15 µs, during which zlib releases the GIL, as
PyTorch's bindings do around each operator (3.7 ms for the 200-odd operators of a ResNet-50 forward pass), so
other threads get in between as they do in a real run."""


def burn_cpu(duration_ns: int) -> None:
    """Spend `duration_ns` of CPU time of this thread (CLOCK_THREAD_CPUTIME_ID), in slices of about 15 µs."""
    end = time.thread_time_ns() + duration_ns
    while time.thread_time_ns() < end:
        zlib.crc32(_SLICE)


def sleep_until(due_ns: int) -> None:
    """Sleep until `time.perf_counter_ns` has reached `due_ns`. Wakes about 0.06 ms late (Linux's timer slack)."""
    while (remaining := due_ns - time.perf_counter_ns()) > 0:
        time.sleep(remaining * 1e-9)


class EmulatedEvent(NamedTuple):
    """A point of the virtual queue."""

    time_ns: int
    busy_total_ns: int
    """Compute busy time of all work enqueued before it."""


class EmulatedDevice:
    """A `Device` whose times come from a `Profile`. Its name says that it is emulated."""

    copies = True
    pins_memory = False
    torch_device: Any = None
    gpu: int | None = None
    num_search_steps = 0
    recording_is_free = True

    def __init__(
        self, profile: Profile, batch_size: int, input_size: int | None = None, *, overlap: bool = False
    ) -> None:
        self.profile = profile
        self._overlap = overlap
        self.name = f"emulated {profile.device_name} (profile {profile.name}: {profile.origin})"
        self._batch_size = batch_size
        self._input_size = input_size
        self._issue_ns = 0 if profile.issue_ms is None else round(profile.issue_ms.value * 1e6)
        self._tail_ns = round(profile.tail_ms.value * 1e6)
        self._ns_per_byte = 1e9 / profile.link_bytes_per_s.value
        self._step_times_ns: dict[tuple[int, float | None], tuple[int, int]] = {}
        self._free_ns = self._copied_ns = time.perf_counter_ns()
        self._busy_total_ns = 0
        self._work: deque[tuple[int, int, int, int, int]] | None = None
        """begin, end, busy time, kind, time of enqueueing of the work since `log_work`; None: nothing is logged."""

    def copy_in(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Enqueue the copy; the tensors come back unchanged, since nothing computes on them."""
        num_bytes = sum(tensor.nbytes for tensor in (inputs, targets) if tensor is not None)
        now_ns, copy_ns = time.perf_counter_ns(), round(num_bytes * self._ns_per_byte)
        self._copied_ns = max(now_ns, self._copied_ns if self._overlap else self._free_ns) + copy_ns
        if not self._overlap:
            self._free_ns = self._copied_ns
        self._log(self._copied_ns - copy_ns, self._copied_ns, copy_ns, COPY, now_ns)
        return inputs, targets

    def enqueue_step(self, num_samples: int, input_size: float | None = None) -> None:
        """Issue one step of the profile's model: burns the issue time on this thread, then returns.

        `input_size` is the side of the images (the root of height times width where they are not square);
        None is the profile's.
        """
        duration_ns, busy_ns = self._step_times(num_samples, input_size)
        now_ns = time.perf_counter_ns()
        start_ns = max(self._free_ns, self._copied_ns, now_ns)
        burn_cpu(self._issue_ns)
        self._free_ns = max(start_ns + duration_ns, time.perf_counter_ns() + self._tail_ns)
        self._busy_total_ns += busy_ns
        self._log(start_ns, self._free_ns, busy_ns, KERNEL, now_ns)

    def not_before(self, time_ns: int) -> None:
        """Work that is enqueued from now on begins at `time_ns` or later: a collective ends then."""
        self._free_ns = max(self._free_ns, time_ns)

    def enqueue_compute(self, duration_ns: int) -> None:
        """Enqueue one piece of compute of known length, issued at no cost to the host."""
        now_ns = time.perf_counter_ns()
        self._free_ns = max(self._free_ns, now_ns) + duration_ns
        self._busy_total_ns += duration_ns
        self._log(self._free_ns - duration_ns, self._free_ns, duration_ns, KERNEL, now_ns)

    def log_work(self) -> None:
        """From now on keep the last MOST_LOGGED pieces of work, for `logged_work`. A piece costs 0.3 µs."""
        self._work = deque(maxlen=MOST_LOGGED)

    def logged_work(self) -> NDArray[np.int64]:
        """End the logging and return the work since: [N, 5] begin_ns, end_ns, stream, kind, time of enqueueing.

        A copy is one row; compute is PIECES rows.
        """
        rows: list[tuple[int, int, int, int, int]] = []
        for begin, end, busy, kind, enqueued in self._work or ():
            pieces = 1 if kind == COPY else PIECES
            idle = max(0, end - begin - busy) / max(1, pieces - 1)
            for number in range(pieces):
                first = begin + round(number * (busy / pieces + idle))
                stream = COPY_STREAM if kind == COPY else COMPUTE_STREAM
                rows.append((first, first + round(busy / pieces), stream, kind, enqueued))
        self._work = None
        return np.array(rows, dtype=np.int64).reshape(-1, 5)

    def _log(self, begin_ns: int, end_ns: int, busy_ns: int, kind: int, enqueued_ns: int) -> None:
        if self._work is not None:
            self._work.append((begin_ns, end_ns, busy_ns, kind, enqueued_ns))

    def _step_times(self, num_samples: int, input_size: float | None) -> tuple[int, int]:
        key = (num_samples, input_size)
        if key not in self._step_times_ns:
            duration = self.profile.duration_ms(num_samples, input_size)
            busy = self.profile.busy_ms(num_samples, input_size)
            self._step_times_ns[key] = round(duration.value * 1e6), round(busy.value * 1e6)
        return self._step_times_ns[key]

    def record(self) -> EmulatedEvent:
        return EmulatedEvent(max(time.perf_counter_ns(), self._free_ns), self._busy_total_ns)

    def record_copy(self) -> EmulatedEvent:
        free_ns = self._copied_ns if self._overlap else self._free_ns
        return EmulatedEvent(max(time.perf_counter_ns(), free_ns), self._busy_total_ns)

    def reached(self, event: EmulatedEvent) -> bool:
        return time.perf_counter_ns() >= event.time_ns

    def wait(self, event: EmulatedEvent) -> None:
        sleep_until(event.time_ns)

    def synchronize(self) -> None:
        sleep_until(max(self._free_ns, self._copied_ns))

    def anchor(self) -> None:
        """Only synchronizes: the virtual clock is the host's."""
        self.synchronize()

    def drift_ns(self) -> int:
        """0: the virtual clock is the host's."""
        return 0

    def times_ns(self, events: Sequence[EmulatedEvent]) -> NDArray[np.int64]:
        times = np.array([event.time_ns for event in events], dtype=np.int64)
        if len(times):
            sleep_until(int(times.max()))
        return times

    def busy_ns(self, begin: EmulatedEvent, end: EmulatedEvent) -> int | None:
        """None where the profile does not tell what issuing costs: the rest of a step would be taken for launches."""
        return None if self.profile.issue_ms is None else end.busy_total_ns - begin.busy_total_ns

    def held_ns(self, issue: Callable[[], None], hold_s: float) -> int | None:
        """None, and not needed: `busy_ns` tells."""
        return None

    def pin(self, tensor: Any) -> Any:
        return tensor

    def pageable(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """The host sleeps until the copy is done, where CUDA would block it."""
        moved = self.copy_in(inputs, targets)
        self.wait(self.record_copy())
        return moved

    def occupying(self, seconds: float) -> Callable[[], None]:
        duration_ns = round(seconds * 1e9)
        return lambda: self.enqueue_compute(duration_ns)

    def recorder(self) -> Recorder:
        return VirtualTimeline(self)

    def begin_memory(self) -> None:
        """Nothing to count."""

    def release_memory(self) -> None:
        """Nothing to give back."""

    def memory(self) -> MemoryFacts:
        counts = ("allocated_bytes", "reserved_bytes", "process_bytes", "rss_growth_bytes")
        return MemoryFacts(None, None, None, None, dict.fromkeys(counts, "an emulated device builds no model"))

    def peak_memory_bytes(self) -> int | None:
        """None: nothing is allocated on a device that is not there."""
        return None

    def reset_peak_memory(self) -> None:
        """Nothing to reset."""

    def lacks(self, precision: str) -> str | None:
        """Its profile has the times of one precision."""
        if precision == self.profile.precision:
            return None
        return f"device profile '{self.profile.name}' is for --precision {self.profile.precision}, not {precision}"

    def out_of_memory(self, error: BaseException) -> str | None:
        """None: nothing is allocated on a device that is not there."""
        return None

    def describe(self) -> DeviceFacts:
        """With the profile and, for the case's batch and input size, every constant used, its label and source."""
        issue = self.profile.issue_ms
        constants: dict[str, Constant] = {
            "step_duration_ms": self.profile.duration_ms(self._batch_size, self._input_size),
            "step_busy_ms": self.profile.busy_ms(self._batch_size, self._input_size),
            "tail_ms": self.profile.tail_ms,
            "link_bytes_per_s": self.profile.link_bytes_per_s,
        }
        return DeviceFacts(
            "emulated",
            self.name,
            emulated=True,
            overlap=self._overlap,
            details={
                "profile": self.profile.name,
                "machine": self.profile.machine,
                "model": self.profile.model,
                "mode": self.profile.mode,
                "precision": self.profile.precision,
                "batch_size": self._batch_size,
                "input_size": self._input_size or self.profile.input_size,
                "constants": {
                    **{name: constant.to_json() for name, constant in constants.items()},
                    "issue_ms": issue.to_json() if issue is not None else {**UNKNOWN, "source": NO_ISSUE},
                },
            },
        )

    def close(self) -> None:
        """Nothing to release."""


class VirtualTimeline:
    """The recorder of an emulated device: the device's own log, exact and on the host's clock."""

    source = "the emulated device's virtual timeline"
    discards_first = False

    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device
        self._rows: NDArray[np.int64] = np.empty((0, 5), np.int64)

    def __enter__(self) -> None:
        self._device.log_work()

    def __exit__(self, *error: object) -> None:
        self._rows = self._device.logged_work()

    def read(self) -> Work:
        nothing = np.empty(0, np.int64)
        return Work(self._rows, nothing, nothing, {}, drift_ns=0, uncertainty_ns=0)

    def table(self, work: Work, steps: Table) -> Table:
        return with_steps(work, steps)

    def witnesses(self, work: Work, traced: Segment, operators: Counter[str]) -> tuple[TraceWitness, ...]:
        """Each step's compute is laid out in PIECES."""
        num_kernels = int((in_window(traced)[:, ROW["kind"]] == KERNEL).sum())
        return (TraceWitness("pieces", num_kernels / len(traced.window), PIECES),)


def build(detail: str, step: Step, image_size: int | None) -> EmulatedDevice:
    """The device of the profile `detail`. Raises ConfigError where there is none."""
    return EmulatedDevice(named(detail), step.batch_size, image_size, overlap=step.overlap)
