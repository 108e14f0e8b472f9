"""What one block device has moved: the kernel's diskstats.

Only the device behind the data set is read: totals over all devices count a read of a loop device
twice, once there and once at the disk below it. `/sys/class/block/NAME/stat` is that device's line of
/proc/diskstats, without the cost of adding up every CPU's counters of every other device.
Fields: Documentation/admin-guide/iostats.rst of the Linux kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loaderbench.errors import UnavailableError
from loaderbench.recording.caveats import Caveat
from loaderbench.samplers.base import Channel
from loaderbench.samplers.procfile import ProcFile

DISKSTATS_PATH = "/proc/diskstats"
SYS_BLOCK_PATH = "/sys/class/block"
SECTOR_BYTES = 512
"""diskstats counts in 512-byte sectors, whatever the device's own sector size."""


@dataclass(frozen=True)
class DiskStats:
    """Counters of one device since boot."""

    name: str
    reads_completed: int
    sectors_read: int
    read_ms: int
    """Time requests spent, summed over requests: more than wall time where several were in flight."""
    reads_in_flight: int
    """Reads and writes in flight now: a level, not a counter."""
    io_ticks_ms: int
    """Wall time with at least one request at the device. Near 0 under a block-layer throttle, where
    requests wait above the device, and no measure of saturation on devices that serve many at once."""

    @property
    def read_bytes(self) -> int:
        return self.sectors_read * SECTOR_BYTES


def parse_diskstats(text: str) -> dict[str, DiskStats]:
    """/proc/diskstats → device name → counters. Pure.

    Takes lines of every kernel since 2.6.25 (14 fields; 18 since 4.18; 20 since 5.5) and leaves out
    the 7-field lines that older ones wrote for partitions.

    >>> line = " 254 0 vda 61684 14081 5940146 11958 26596 55792 21351432 59498 0 11172 72832 8727 71 6111304 1241 0 0"
    >>> parse_diskstats(line)["vda"].read_bytes
    3041354752
    """
    devices = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 14:
            continue
        devices[fields[2]] = DiskStats(
            name=fields[2],
            reads_completed=int(fields[3]),
            sectors_read=int(fields[5]),
            read_ms=int(fields[6]),
            reads_in_flight=int(fields[11]),
            io_ticks_ms=int(fields[12]),
        )
    return devices


class DiskSampler:
    """The counters of one block device."""

    def __init__(self, device: str, diskstats: str = DISKSTATS_PATH, sys_block: str = SYS_BLOCK_PATH) -> None:
        """`device` is the kernel's name (`vda1`, `nvme0n1`, `dm-0`, `loop3`), with or without `/dev/`.

        Raises:
            UnavailableError: neither file can be read or lists the device.
        """
        self.device = device.removeprefix("/dev/")
        own = f"{sys_block}/{self.device}/stat"
        self._has_own_file = Path(own).exists()
        path = own if self._has_own_file else diskstats
        self.source = f"diskstats {self.device} ({path})"
        try:
            self._file = ProcFile(path)
        except OSError as error:
            raise UnavailableError(
                f"{path} cannot be read ({error.strerror}); mount /proc in this container to count storage bytes"
            ) from error
        try:
            self.counters()
        except UnavailableError:
            self._file.close()
            raise
        self.caveats: list[Caveat] = []
        self.channels: Sequence[Channel] = (
            Channel("storage_read_bytes", "bytes", "counter", f"{self.source} sectors_read"),
            Channel("storage_reads", "requests", "counter", f"{self.source} reads_completed"),
            Channel("disk_io_ticks_ms", "ms", "counter", f"{self.source} io_ticks"),
        )

    def counters(self) -> dict[str, int]:
        """`read_bytes`, `reads` and `io_ticks_ms` now. Raises UnavailableError where the device is gone."""
        try:
            text = self._file.read_short() if self._has_own_file else self._file.read()
        except OSError as error:
            raise UnavailableError(
                f"{self._file.path} cannot be read ({error.strerror}); check that the disk is attached"
            ) from error
        # The device's own file lacks the numbers and the name that begin a line of /proc/diskstats.
        lines = f"0 0 {self.device} {text.decode()}" if self._has_own_file else text.decode()
        stats = parse_diskstats(lines).get(self.device)
        if stats is None:
            raise UnavailableError(f"{self._file.path} does not list {self.device}; check that the disk is attached")
        return {"read_bytes": stats.read_bytes, "reads": stats.reads_completed, "io_ticks_ms": stats.io_ticks_ms}

    def read(self) -> Sequence[float | None]:
        now = self.counters()
        return (now["read_bytes"], now["reads"], now["io_ticks_ms"])

    def close(self) -> None:
        self._file.close()
