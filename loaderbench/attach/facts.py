"""What `loaderbench attach` stores: looks at the threads of training processes, and the growth of their counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loaderbench.cases.options import Price
from loaderbench.recording.record import Bottleneck, CauseDetail, Cost, Estimate, Removable, gain_without
from loaderbench.recording.thread_samples import Role, State, ThreadSamples

UNKNOWN = -1
Phase = Literal["training", "start-up", "stuck", "checkpoint", "idle"]


@dataclass(frozen=True)
class ThreadUse:
    """What one thread's counters grew in the window."""

    role: Role
    worker: int | None
    name: str
    is_main: bool
    ran_s: float
    queued_s: float
    wakes: int
    major_faults: int
    system_s: float = 0.0
    """The part of `ran_s` within the kernel, to a clock tick."""


@dataclass(frozen=True)
class Io:
    """Growth of /proc/PID/io over some processes."""

    read_calls: int
    read_bytes: int
    """From block devices."""
    asked_bytes: int
    """By read calls, from memory too."""


@dataclass(frozen=True)
class Processors:
    """Who had the processors during the window."""

    usable: int
    """By the job's affinity mask."""
    machine: int
    quota: float | None
    """Processors that a control group grants; None: no quota."""
    throttled_s: float | None
    """Seconds in which the quota stopped the job's group; None: no quota."""
    busy_s: float | None
    """Processor seconds of all programs on the usable ones."""
    stolen_s: float | None
    pressure_s: float | None
    """Seconds in which some task of the machine waited for a processor (PSI)."""


@dataclass(frozen=True)
class GpuUse:
    """One GPU that the job has open."""

    name: str
    busy_fraction: float | None


@dataclass(frozen=True)
class FileSystemSeen:
    """What holds files that threads were seen waiting for."""

    mount_point: str
    type: str


@dataclass(frozen=True)
class Rights:
    """What this kernel lets us see of the job."""

    calls: bool
    """/proc/PID/syscall: which call a thread is in."""
    counters: bool
    """/proc/PID/io and fd."""
    names: str | None = None
    """Why functions have no names; None: they have."""


@dataclass(frozen=True)
class JobFacts:
    """One training process with its workers, as it was seen."""

    pid: int
    command: str
    age_s: float
    window_s: float
    workers: int
    """Most worker processes at once."""
    workers_started: int
    """In the window."""
    rights: Rights
    samples: ThreadSamples
    detail: NDArray[np.int64]
    """Of each sample, position in `details`."""
    details: tuple[str, ...]
    """What a state is of: `private` or `shared` lock, `tcp`, `unix`, `index` (the pipe that indices come through)."""
    file: NDArray[np.int64]
    """Position in `files`; UNKNOWN: not known, or no file."""
    files: tuple[FileSystemSeen, ...]
    uses: tuple[ThreadUse, ...]
    processors: Processors
    consumer_io: Io | None
    workers_io: Io | None
    received_bytes: int | None
    """Over TCP, by the workers, or by the main process where there are none."""
    batches: int | None
    """That were asked of the workers in the window; None: the counts of both sides differ, or are not to be seen."""
    consumer_waited_s: float | None = None
    """How long ago the main thread last ran, at the end."""
    gpus: tuple[GpuUse, ...] = ()
    rank: int | None = None
    world: int | None = None
    ended: bool = False
    """The job ended meanwhile."""


@dataclass(frozen=True)
class AttachFacts:
    """What was seen of some jobs of this machine at once."""

    asked: str
    """`PID 12345`, `all`, `Slurm job 7`, `container 3f2a…`."""
    seconds: float
    jobs: tuple[JobFacts, ...]
    refused: tuple[str, ...] = ()
    """Jobs that could not be looked at, with the reason."""
    own_cpu_s: float = 0.0
    """Processor time that looking took, after it began."""
    looked_s: float = 0.0
    interrupted: bool = False
    price: Price | None = None


# -- findings --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Where:
    """Where a role's threads spend their time."""

    role: Role
    state: State
    fraction: float
    """Of the role's time."""
    file: str = ""
    line: int = 0
    function: str = ""
    what: str = ""
    """The file system, the kind of lock or connection."""


@dataclass(frozen=True)
class AttachVerdict:
    """What limits one job."""

    bottleneck: Bottleneck
    cause_detail: CauseDetail | None
    summary: str
    speedup_if_removed: Mapping[Removable, Estimate] = field(default_factory=dict)
    """Bounds: at least what removing the named detail gives, at most what removing all of the cause does."""
    evidence: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    """What to try, in sentences."""
    where: tuple[Where, ...] = ()

    @property
    def gain(self) -> Estimate | None:
        """Bounds of removing what is named; None if it is not one cause."""
        return gain_without(self.bottleneck, self.speedup_if_removed)


@dataclass(frozen=True)
class JobFound:
    """What was found of one job."""

    pid: int
    command: str
    age_s: float
    workers: int
    phase: Phase
    phase_note: str
    steps_per_s: Estimate | None
    no_rate: str | None
    """Why steps/s are not known."""
    waits_for_data: Estimate | None
    """Share of the main thread's time."""
    verdict: AttachVerdict
    gpu_busy_fraction: float | None
    rank: int | None
    cost: Cost | None
    """Of waiting for what limits it, at the price."""
    rights: Rights


@dataclass(frozen=True)
class Attach:
    """The figures of docs/attach.md."""

    jobs: tuple[JobFound, ...]
    verdict: AttachVerdict | None
    """Of the only job; None where there are several."""
    refused: tuple[str, ...]
    cores_used_fraction: float | None
    """What looking cost, of one processor."""
    price: Price | None = None
