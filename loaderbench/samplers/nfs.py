"""What an NFS client has moved and how long its server took, from /proc/self/mountstats.

**Which block.** Blocks are found by mount point. Mounts of one export that share a superblock (bind
mounts, a second mount without `nosharecache`, a mount of a sub-path) have a block each that repeats
*the same* counters: take one, never a sum. A mount with `nosharecache`, or with other mount options
(`ro` beside `rw`), has counters of its own. Where mounts are stacked on one point, the last block is
the one that is seen.

**Fields.** `bytes:` is `struct nfs_iostats` (include/linux/nfs_iostat.h), the per-op lines are
`rpc_clnt_show_stats` (net/sunrpc/stats.c) of the Linux kernel; both are matched by name, since
kernels add operations. An RPC is counted when it completes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loaderbench.errors import UnavailableError
from loaderbench.recording.caveats import Caveat
from loaderbench.samplers.base import Channel
from loaderbench.samplers.procfile import ProcFile

MOUNTSTATS_PATH = "/proc/self/mountstats"

BYTES_FIELDS = (
    "normalread",  # what programs asked for through read(2)
    "normalwrite",
    "directread",  # what programs *asked for* with O_DIRECT: past the end of a file too, so not what was moved
    "directwrite",
    "serverread",  # what the server sent: exact for buffered, O_DIRECT and mmap reads alike
    "serverwrite",
    "readpages",
    "writepages",
)


@dataclass(frozen=True)
class OpStats:
    """One RPC operation's counters since the mount, or their growth between two readings."""

    ops: int
    """RPCs completed."""
    transmissions: int
    """Times they were sent; more than `ops` where some were sent again."""
    timeouts: int
    sent_bytes: int
    received_bytes: int
    queue_ms: int
    """Waiting in the client to be sent, summed over RPCs."""
    rtt_ms: int
    """Time from sent to answered, summed over RPCs."""
    exe_ms: int
    """Time from begin to end in the client, including queue and round trip, summed over RPCs."""
    errors: int | None
    """None from kernels before 5.3, which do not write it."""

    @property
    def retransmits(self) -> int:
        return self.transmissions - self.ops

    @property
    def queue_ms_per_op(self) -> float | None:
        """None where no RPC completed."""
        return self.queue_ms / self.ops if self.ops else None

    @property
    def rtt_ms_per_op(self) -> float | None:
        return self.rtt_ms / self.ops if self.ops else None

    @property
    def exe_ms_per_op(self) -> float | None:
        return self.exe_ms / self.ops if self.ops else None

    def __add__(self, other: OpStats) -> OpStats:
        return _combine(self, other, 1)

    def __sub__(self, other: OpStats) -> OpStats:
        return _combine(self, other, -1)


NO_OPS = OpStats(0, 0, 0, 0, 0, 0, 0, 0, 0)


def _combine(a: OpStats, b: OpStats, sign: int) -> OpStats:
    return OpStats(
        ops=a.ops + sign * b.ops,
        transmissions=a.transmissions + sign * b.transmissions,
        timeouts=a.timeouts + sign * b.timeouts,
        sent_bytes=a.sent_bytes + sign * b.sent_bytes,
        received_bytes=a.received_bytes + sign * b.received_bytes,
        queue_ms=a.queue_ms + sign * b.queue_ms,
        rtt_ms=a.rtt_ms + sign * b.rtt_ms,
        exe_ms=a.exe_ms + sign * b.exe_ms,
        errors=None if a.errors is None or b.errors is None else a.errors + sign * b.errors,
    )


@dataclass(frozen=True)
class NfsMount:
    """One mount's block of mountstats."""

    export: str
    """`server:/path` as mounted."""
    mount_point: str
    fstype: str
    """`nfs` (2 and 3) or `nfs4`."""
    options: str
    """The mount options in force: version, rsize, nconnect, …"""
    age_s: int
    num_transports: int
    """TCP connections (xprt lines): several with `nconnect`. They are shared by all mounts of that server."""
    bytes: Mapping[str, int]
    """Name in BYTES_FIELDS → bytes."""
    ops: Mapping[str, OpStats]

    @property
    def total(self) -> OpStats:
        """All operations together. The cold read of a file is several round trips: open, read, close."""
        return sum(self.ops.values(), NO_OPS)


@dataclass(frozen=True)
class NfsDelta:
    """What happened on a mount between two readings. Operations that did not occur are left out."""

    wall_s: float
    bytes: Mapping[str, int]
    """Only fields that grew."""
    ops: Mapping[str, OpStats]

    @property
    def total(self) -> OpStats:
        return sum(self.ops.values(), NO_OPS)

    @property
    def read_bytes(self) -> int:
        """Bytes the server sent as file content."""
        return self.bytes.get("serverread", 0)

    @property
    def mean_rpcs_in_flight(self) -> float:
        """Σ exe ÷ wall time, by Little's law. RPCs count where they complete."""
        return self.total.exe_ms / 1000.0 / self.wall_s


def _unescape(path: str) -> str:
    """Undo the octal escapes that the kernel writes for blanks and the like (`\\040`)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _escape(path: str) -> str:
    """A mount point as mountstats writes it."""
    for char, code in (("\\", "\\134"), (" ", "\\040"), ("\t", "\\011"), ("\n", "\\012")):
        path = path.replace(char, code)
    return path


def _parse_op(fields: Sequence[str]) -> OpStats | None:
    """`ops trans timeouts sent recv queue_ms rtt_ms exe_ms [errors]`; None where the line is no such line."""
    if len(fields) < 8:
        return None
    ops, transmissions, timeouts, sent, received, queue_ms, rtt_ms, exe_ms = map(int, fields[:8])
    errors = int(fields[8]) if len(fields) > 8 else None
    return OpStats(ops, transmissions, timeouts, sent, received, queue_ms, rtt_ms, exe_ms, errors)


def _parse_block(lines: Sequence[str]) -> NfsMount | None:
    """One `device …` block; None where it is not NFS or has no counters (an old `statvers`)."""
    words = lines[0].split(" ")
    # device SERVER:/PATH mounted on POINT with fstype nfs4 statvers=1.1
    if len(words) < 9 or words[6] != "fstype" or words[7] not in ("nfs", "nfs4"):
        return None
    options, age_s, num_transports = "", 0, 0
    counted: dict[str, int] = {}
    ops: dict[str, OpStats] = {}
    in_ops = False
    for line in lines[1:]:
        name, separator, rest = line.strip().partition(":")
        if name == "per-op statistics":
            in_ops = True
        elif not separator:
            continue
        elif in_ops:
            op = _parse_op(rest.split())
            if op is not None:
                ops[name] = op
        elif name == "opts":
            options = rest.strip()
        elif name == "age":
            age_s = int(rest)
        elif name == "bytes":
            counted = dict(zip(BYTES_FIELDS, (int(field) for field in rest.split()), strict=False))
        elif name == "xprt":
            num_transports += 1
    if "serverread" not in counted:
        return None
    return NfsMount(_unescape(words[1]), _unescape(words[4]), words[7], options, age_s, num_transports, counted, ops)


def parse_mountstats(text: str) -> list[NfsMount]:
    """/proc/self/mountstats → its NFS mounts, in the file's order. Pure.

    >>> text = '''device server:/set mounted on /mnt/set with fstype nfs4 statvers=1.1
    ...     age: 7
    ...     bytes: 43643544 0 0 0 43643544 0 10855 0
    ...     per-op statistics
    ...             READ: 400 400 0 73600 43685752 1 38 68 0
    ... '''
    >>> parse_mountstats(text)[0].ops["READ"].rtt_ms_per_op
    0.095
    """
    mounts = []
    block: list[str] = []
    for line in [*text.splitlines(), "device "]:
        if line.startswith("device "):
            mount = _parse_block(block) if block else None
            if mount is not None:
                mounts.append(mount)
            block = []
        if line.strip():
            block.append(line)
    return mounts


def find_mount(mounts: Sequence[NfsMount], mount_point: str) -> NfsMount | None:
    """The mount that is seen at `mount_point`: the last, where several are stacked there."""
    return next((mount for mount in reversed(mounts) if mount.mount_point == mount_point), None)


def delta(before: NfsMount, after: NfsMount, wall_s: float) -> NfsDelta:
    """What happened between two readings of one mount, `wall_s` seconds apart.

    Raises:
        ValueError: the counters went back, since it was mounted again in between.
    """
    grown = {name: value - before.bytes.get(name, 0) for name, value in after.bytes.items()}
    ops = {name: op - before.ops[name] if name in before.ops else op for name, op in after.ops.items()}
    if any(value < 0 for value in grown.values()) or any(op.ops < 0 for op in ops.values()):
        raise ValueError(f"the counters of {after.mount_point} went down: it was mounted again between the readings")
    return NfsDelta(
        wall_s=wall_s,
        bytes={name: value for name, value in grown.items() if value},
        # An RPC that was sent but has not completed is in no field, so checking `ops` is enough.
        ops={name: op for name, op in ops.items() if op.ops},
    )


class NfsSampler:
    """The counters of the NFS mount at one mount point."""

    def __init__(self, mount_point: str, path: str = MOUNTSTATS_PATH) -> None:
        """Raises UnavailableError where mountstats has no block with counters for that mount point."""
        self.mount_point = mount_point
        self.source = f"{path} {mount_point}"
        self._header = f" mounted on {_escape(mount_point)} with fstype nfs".encode()
        try:
            self._file = ProcFile(path)
        except OSError as error:
            raise UnavailableError(
                f"{path} cannot be read ({error.strerror}); mount /proc in this container to count NFS bytes"
            ) from error
        try:
            self.mount()
        except UnavailableError:
            self._file.close()
            raise
        self.caveats: list[Caveat] = []
        self.channels: Sequence[Channel] = (
            Channel("storage_read_bytes", "bytes", "counter", f"{self.source} serverread"),
            Channel("storage_reads", "requests", "counter", f"{self.source} READ ops"),
            Channel("nfs_rpcs", "requests", "counter", f"{self.source} all ops"),
            Channel("nfs_queue_ms", "ms", "counter", f"{self.source} all ops, queue"),
            Channel("nfs_rtt_ms", "ms", "counter", f"{self.source} all ops, rtt"),
            Channel("nfs_exe_ms", "ms", "counter", f"{self.source} all ops, exe"),
            Channel("nfs_retransmits", "requests", "counter", f"{self.source} all ops, trans - ops"),
        )

    def mount(self) -> NfsMount:
        """The mount's counters now. Raises UnavailableError where it is no longer mounted."""
        text = self._file.read()
        # Only this mount's block is parsed: clusters have hundreds of mounts.
        at = text.rfind(self._header)
        if at >= 0:
            begin = text.rfind(b"\n", 0, at) + 1
            end = text.find(b"\ndevice ", at)
            block = text[begin : end if end >= 0 else len(text)]
            mount = _parse_block([line for line in block.decode(errors="replace").splitlines() if line.strip()])
            if mount is not None:
                return mount
        raise UnavailableError(
            f"{self._file.path} has no NFS counters for {self.mount_point}; check that it is mounted with NFS here"
        )

    def counters(self) -> dict[str, int]:
        """`read_bytes`, `reads`, and over all operations `rpcs`, `queue_ms`, `rtt_ms`, `exe_ms`, `retransmits`."""
        mount = self.mount()
        total = mount.total
        return {
            "read_bytes": mount.bytes["serverread"],
            "reads": mount.ops.get("READ", NO_OPS).ops,
            "rpcs": total.ops,
            "queue_ms": total.queue_ms,
            "rtt_ms": total.rtt_ms,
            "exe_ms": total.exe_ms,
            "retransmits": total.retransmits,
        }

    def read(self) -> Sequence[float | None]:
        return tuple(self.counters().values())

    def close(self) -> None:
        self._file.close()
