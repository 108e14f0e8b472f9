"""What the machine's CPUs do, who waits for CPU, storage or memory, and how much memory is free.

Fields: /proc/stat and /proc/meminfo in Documentation/filesystems/proc.rst, /proc/pressure in
Documentation/accounting/psi.rst of the Linux kernel.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from loaderbench.errors import UnavailableError
from loaderbench.recording.caveats import Caveat
from loaderbench.recording.others import OtherPrograms
from loaderbench.samplers.base import Channel
from loaderbench.samplers.process_io import tree_cpu_s
from loaderbench.samplers.procfile import ProcFile

LEAST_SECONDS = 1.0
"""The kernel counts in ticks of 10 ms: over a second they are 1 %."""
PRESSURE_KINDS = ("cpu", "io", "memory")

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuTimes:
    """Seconds since boot, summed over the CPUs asked for."""

    busy_s: float
    """user, nice, system, irq and softirq (guest time is part of user)."""
    idle_s: float
    iowait_s: float
    """Idle while a task of that CPU waited for a block device; misses most NFS and FUSE waits."""
    steal_s: float
    """Ready to run, but the hypervisor ran another guest."""

    @property
    def total_s(self) -> float:
        return self.busy_s + self.idle_s + self.iowait_s + self.steal_s


def parse_cpu_times(text: bytes, cpus: Collection[int]) -> CpuTimes:
    """/proc/stat → times of the CPUs numbered `cpus`. Pure.

    >>> parse_cpu_times(b"cpu  9 0 9 9 9 0 0 9 0 0\\ncpu0 300 0 100 500 50 10 20 20 0 0\\n", {0}).busy_s
    4.3
    """
    busy = idle = iowait = steal = 0
    for line in text.splitlines():
        if not line.startswith(b"cpu"):
            break  # the CPU lines come first; the interrupt line below them is long
        fields = line.split()
        if fields[0] == b"cpu" or int(fields[0][3:]) not in cpus:
            continue
        user, nice, system, cpu_idle, cpu_iowait, irq, softirq, cpu_steal = map(int, fields[1:9])
        busy += user + nice + system + irq + softirq
        idle += cpu_idle
        iowait += cpu_iowait
        steal += cpu_steal
    return CpuTimes(*(ticks / _TICKS_PER_S for ticks in (busy, idle, iowait, steal)))


def cpu_times_now(cpus: Collection[int]) -> CpuTimes | None:
    """Times of the CPUs numbered `cpus` until now; None where the kernel does not tell."""
    try:
        return parse_cpu_times(Path("/proc/stat").read_bytes(), cpus)
    except OSError:
        return None


class Stolen:
    """How much of the usable CPUs' time the hypervisor gave to other guests."""

    def __init__(self) -> None:
        self._before: CpuTimes | None = None

    def begin(self) -> None:
        """Count from here."""
        self._before = self._now()

    def fraction(self) -> float | None:
        """Of all time since `begin`; None where the kernel does not tell, or no time has passed."""
        now = self._now()
        if self._before is None or now is None or now.total_s <= self._before.total_s:
            return None
        return (now.steal_s - self._before.steal_s) / (now.total_s - self._before.total_s)

    @staticmethod
    def _now() -> CpuTimes | None:
        return cpu_times_now(os.sched_getaffinity(0))


class Others:
    """What other programs use of the processors: what all use, less this process and its descendants."""

    def __init__(self) -> None:
        """Count from here."""
        self._cpus = os.sched_getaffinity(0)
        self._begun_s, self._before, self._own = time.monotonic(), cpu_times_now(self._cpus), _own_cpu_s()

    def seen(self) -> OtherPrograms | None:
        """Their means until now; None where the kernel does not tell, or the clock's ticks are too coarse for it."""
        seconds, now = time.monotonic() - self._begun_s, cpu_times_now(self._cpus)
        if self._before is None or now is None or seconds < LEAST_SECONDS:
            return None
        own = _own_cpu_s() - self._own
        others = max(0.0, now.busy_s - self._before.busy_s - own) / seconds
        total = now.total_s - self._before.total_s
        stolen = (now.steal_s - self._before.steal_s) / total if total > 0 else 0.0
        return OtherPrograms(min(others, float(len(self._cpus))), len(self._cpus), seconds, max(0.0, stolen))


def _own_cpu_s() -> float:
    """CPU seconds of this process and of its descendants, those that ended and were waited for included."""
    return sum(tree_cpu_s(os.getpid()))


def parse_pressure(text: bytes) -> float:
    """/proc/pressure/* → seconds since boot in which at least one task was stalled (`some … total`). Pure.

    >>> parse_pressure(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\\nfull avg10=0.00 total=1\\n")
    2.5
    """
    for line in text.splitlines():
        if line.startswith(b"some "):
            return int(line.rpartition(b"total=")[2]) / 1e6
    raise ValueError("no `some` line in the pressure file")


def parse_meminfo(text: bytes) -> dict[str, int]:
    """/proc/meminfo → bytes by name (lines in kB only). Pure."""
    values = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[2] == b"kB":
            values[fields[0].decode().rstrip(":")] = int(fields[1]) * 1024
    return values


def pressure_off_reason(path: str = "/proc/pressure/cpu") -> str | None:
    """Why pressure stall information cannot be read, with the way to enable it; None where it can."""
    try:
        with open(path, "rb") as file:
            parse_pressure(file.read())
    except FileNotFoundError:
        return f"{path} is missing; use a kernel with CONFIG_PSI, or boot with `psi=1`"
    except (OSError, ValueError) as error:
        return f"{path} cannot be read ({error}); boot with `psi=1`"
    return None


class CpuSampler:
    """Busy time of the CPUs this process may use, and the memory that is available."""

    def __init__(self, root: str = "/proc", cpus: Collection[int] | None = None) -> None:
        """`cpus`: their numbers, by default this process's affinity mask. Raises UnavailableError."""
        self._cpus = frozenset(os.sched_getaffinity(0) if cpus is None else cpus)
        self._last: CpuTimes | None = None
        try:
            self._stat = ProcFile(f"{root}/stat")
        except OSError as error:
            raise UnavailableError(
                f"{root}/stat cannot be read ({error.strerror}); mount /proc to see CPU time"
            ) from error
        try:
            self._meminfo = ProcFile(f"{root}/meminfo")
        except OSError as error:
            self._stat.close()
            raise UnavailableError(f"{root}/meminfo cannot be read ({error.strerror}); mount /proc") from error
        self.caveats: list[Caveat] = []
        where = f"{root}/stat, {len(self._cpus)} usable CPUs"
        self.channels: Sequence[Channel] = (
            Channel("cpu_busy_fraction", "fraction", "gauge", f"{where}, since the last reading"),
            Channel("cpu_busy_s", "s", "counter", f"{where}: user + nice + system + irq + softirq"),
            Channel("cpu_iowait_s", "s", "counter", f"{where}: iowait"),
            Channel("cpu_steal_s", "s", "counter", f"{where}: steal"),
            Channel("memory_available_bytes", "bytes", "gauge", f"{root}/meminfo MemAvailable"),
        )

    def read(self) -> Sequence[float | None]:
        now = parse_cpu_times(self._stat.read(), self._cpus)
        last, self._last = self._last, now
        passed_s = now.total_s - last.total_s if last else 0.0
        # iowait may go backwards by a tick (proc.rst): no fraction for an interval of no length.
        busy_fraction = (now.busy_s - last.busy_s) / passed_s if last and passed_s > 0 else None
        available = parse_meminfo(self._meminfo.read()).get("MemAvailable")
        return (busy_fraction, now.busy_s, now.iowait_s, now.steal_s, available)

    def close(self) -> None:
        self._stat.close()
        self._meminfo.close()


class PressureSampler:
    """Pressure stall information of the machine: time in which a task waited for CPU, storage or memory.

    Supporting evidence only: it misses most waits for NFS and for FUSE.
    """

    def __init__(self, root: str = "/proc/pressure") -> None:
        """Raises UnavailableError where the kernel has none or has it switched off."""
        reason = pressure_off_reason(f"{root}/cpu")
        if reason is not None:
            raise UnavailableError(reason)
        self._files: list[ProcFile] = []
        channels = []
        self.caveats: list[Caveat] = []
        for kind in PRESSURE_KINDS:
            path = f"{root}/{kind}"
            try:
                self._files.append(ProcFile(path))
            except OSError as error:
                reason = f"{path} cannot be read: {error.strerror}"
                self.caveats.append(Caveat("sampler_missing", {"reason": reason}))
                continue
            channels.append(Channel(f"pressure_{kind}_some_s", "s", "counter", f"{path} some total"))
        self.channels: Sequence[Channel] = tuple(channels)

    def read(self) -> Sequence[float | None]:
        return tuple(parse_pressure(file.read()) for file in self._files)

    def close(self) -> None:
        for file in self._files:
            file.close()
