"""Which file system, and which block device, is behind a path. Stdlib only."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MEMORY_TYPES = ("tmpfs", "ramfs", "devtmpfs")
LOCAL_TYPES = (
    "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "jfs", "nilfs2", "reiserfs", "vfat", "exfat", "ntfs3",
    "iso9660", "udf", "squashfs", "erofs",
)  # fmt: skip
"""File systems of this machine alone: what a process makes them read from their device, for data or for an open, counts
as that process's `read_bytes`. Those that several machines share (gfs2, ocfs2) ask the others at each open."""
Kind = Literal["local", "nfs", "memory", "fuse", "unknown"]


@dataclass(frozen=True)
class Mount:
    """One line of /proc/PID/mountinfo."""

    major_minor: str
    root: str
    """Folder of the file system that is mounted here; not `/` for a bind mount."""
    mount_point: str
    type: str
    source: str
    options: tuple[str, ...]
    """Per-mount options, then the file system's own."""


@dataclass(frozen=True)
class FileSystem:
    """What holds the files below a path."""

    type: str
    """As mountinfo calls it: ext4, nfs4, overlay, fuse.sshfs, …"""
    source: str
    """`/dev/vda`, `server:/export`, `overlay`, …"""
    device: str | None
    """The whole disk's name in /proc/diskstats (`nvme0n1`, `vda`, `loop3`, `dm-0`); None without one."""
    major_minor: str
    """Of the mount, as in /proc/self/mountstats' sibling files: `254:0`."""
    mount_point: str
    options: tuple[str, ...]
    reason: str | None = None
    """Why `device` is None."""

    @property
    def is_nfs(self) -> bool:
        return self.type in ("nfs", "nfs4")

    @property
    def is_fuse(self) -> bool:
        return self.type == "fuse" or self.type.startswith("fuse.") or self.type == "fuseblk"

    @property
    def is_memory(self) -> bool:
        return self.type in MEMORY_TYPES

    @property
    def kind(self) -> Kind:
        """What the kernel tells of its reads: `local` all that reaches the device, by process; `nfs` all that is asked
        of the server, by mount; `memory` has no storage; `fuse` nothing; `unknown` nothing that is known."""
        if self.device is not None and self.type in LOCAL_TYPES:
            return "local"
        if self.is_nfs:
            return "nfs"
        if self.is_memory:
            return "memory"
        return "fuse" if self.is_fuse else "unknown"

    def to_json(self) -> dict[str, str | None]:
        """{type, source, device}, with the mount point and the reason of a missing device."""
        return {
            "type": self.type,
            "source": self.source,
            "device": self.device,
            "mount_point": self.mount_point,
            "reason": self.reason,
        }


def _unescape(text: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal escapes."""
    raw = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), os.fsencode(text))
    return os.fsdecode(raw)


def parse_mountinfo(text: str) -> list[Mount]:
    r"""All mounts of a /proc/PID/mountinfo text (format: proc_pid_mountinfo(5)), in its order.

    >>> [mount] = parse_mountinfo("36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue")
    >>> mount.major_minor, mount.root, mount.mount_point, mount.type, mount.source
    ('98:0', '/mnt1', '/mnt 2', 'ext3', '/dev/root')
    >>> mount.options
    ('rw', 'noatime', 'rw', 'errors=continue')
    """
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if not separator or len(fields) < 6 or len(tail) < 2:
            continue
        options = (*fields[5].split(","), *(tail[2].split(",") if len(tail) > 2 else ()))
        mounts.append(
            Mount(fields[2], _unescape(fields[3]), _unescape(fields[4]), tail[0], _unescape(tail[1]), options)
        )
    return mounts


def choose_mount(mounts: Sequence[Mount], path: str, major_minor: str) -> Mount | None:
    """The mount that holds `path`, whose st_dev is `major_minor`.

    The one with this device and the longest mount point above the path; a later line covers an earlier one.
    Where no line has this device (btrfs and overlayfs give files device numbers of their own) the longest
    mount point decides alone.

    >>> lines = parse_mountinfo('''27 1 254:0 / / rw - ext4 /dev/vda rw
    ... 40 27 0:40 / /data rw - btrfs /dev/vdb1 rw,subvol=/''')
    >>> choose_mount(lines, "/data/a", "0:77").source, choose_mount(lines, "/database", "254:0").source
    ('/dev/vdb1', '/dev/vda')
    """

    def is_above(mount: Mount) -> bool:
        return f"{path}/".startswith(mount.mount_point.rstrip("/") + "/")

    above = [mount for mount in mounts if is_above(mount)]
    same_device = [mount for mount in above if mount.major_minor == major_minor]
    chosen: Mount | None = None
    for mount in same_device or above:
        if chosen is None or len(mount.mount_point) >= len(chosen.mount_point):
            chosen = mount
    return chosen


def whole_disk(major_minor: str, sys_block: str = "/sys/dev/block") -> str | None:
    """Name of the disk behind a block device number: a partition's parent. None for other devices."""
    link = Path(sys_block, major_minor)
    if not link.exists():
        return None
    folder = link.resolve()
    return folder.parent.name if (folder / "partition").exists() else folder.name


def _block_device(mount: Mount, major_minor: str) -> str | None:
    disk = whole_disk(major_minor) or whole_disk(mount.major_minor)
    if disk is None and mount.source.startswith("/dev/"):
        try:
            number = Path(mount.source).stat().st_rdev
        except OSError:
            return None
        disk = whole_disk(f"{os.major(number)}:{os.minor(number)}")
    return disk


def _why_no_device(mount: Mount) -> str:
    if mount.type in ("nfs", "nfs4"):
        return f"network file system of {mount.source}"
    if mount.type.startswith("fuse"):
        return "served by a FUSE daemon"
    if mount.type in MEMORY_TYPES:
        return "held in memory"
    if mount.type == "overlay":
        return "overlay: the layer that holds the files is unknown; put the data on a volume or a bind mount"
    return f"{mount.type} has no block device that this process can see"


def storage_behind(path: str | Path) -> FileSystem:
    """The file system that holds `path`, by its st_dev and /proc/self/mountinfo.

    Raises:
        OSError: the path does not exist or may not be looked at.
    """
    real = os.path.realpath(path)
    number = Path(real).stat().st_dev
    major_minor = f"{os.major(number)}:{os.minor(number)}"
    mounts = parse_mountinfo(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    mount = choose_mount(mounts, real, major_minor)
    if mount is None:
        reason = "no line of /proc/self/mountinfo covers this path"
        return FileSystem("unknown", "unknown", whole_disk(major_minor), major_minor, "", (), reason)
    device = _block_device(mount, major_minor)
    why = None if device else _why_no_device(mount)
    return FileSystem(mount.type, mount.source, device, mount.major_minor, mount.mount_point, mount.options, why)
