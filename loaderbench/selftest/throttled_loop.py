"""An ext4 image on a loop device whose read rate the kernel's block layer caps. Needs root.

The cap acts on the processes of one cgroup: put a process in before it reads (`ThrottledLoopBed.enter`
or `command_prefix`); its later children inherit it. It holds for buffered, random, O_DIRECT and mmapped
reads alike. The throttle lets requests go in slices of about 100 ms, so judge it by its rate over a
second or more, never by the latency of a file. Requests wait above the device, whose own busy time
(io_ticks of diskstats) therefore stays near 0.

Sources: Documentation/admin-guide/cgroup-v1/blkio-controller.rst (throttle.read_bps_device,
read_iops_device) and cgroup-v2.rst (io.max: rbps, riops) of the Linux kernel.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loaderbench.errors import ConfigError, UnavailableError
from loaderbench.selftest import cgroups
from loaderbench.selftest.base import (
    Resources,
    Truth,
    check_dataset_dir,
    find_program,
    make_ext4_image,
    run_command,
    workspace,
)

SECTOR_BYTES = 512
"""Unit of the sector counts in /sys/dev/block/*/stat, whatever the device's own (Documentation/block/stat.rst)."""


def throttle_settings(
    version: int, device: str, bytes_per_s: float | None, iops: float | None
) -> list[tuple[str, str]]:
    """(file, line) pairs to write into a cgroup so that reads of `device` ("7:0") are capped."""
    if version == 2:
        limits = [("rbps", bytes_per_s), ("riops", iops)]
        given = [f"{key}={round(value)}" for key, value in limits if value is not None]
        return [("io.max", " ".join([device, *given]))] if given else []
    files = [("blkio.throttle.read_bps_device", bytes_per_s), ("blkio.throttle.read_iops_device", iops)]
    return [(file, f"{device} {round(value)}") for file, value in files if value is not None]


def _controller() -> cgroups.Controller:
    """The v1 blkio hierarchy or the v2 one with the io controller.

    Raises:
        UnavailableError: neither is mounted with read throttling.
    """
    found = cgroups.find_controller("blkio", "io")
    if found is None:
        raise UnavailableError(
            "no cgroup v1 blkio and no cgroup v2 io controller is mounted, so no device can be throttled"
        )
    if found.version == 1 and not Path(found.root, "blkio.throttle.read_bps_device").exists():
        raise UnavailableError("the kernel's blkio controller cannot throttle (CONFIG_BLK_DEV_THROTTLING is off)")
    return found


def check_available() -> None:
    """Check that this machine can make the bed.

    Raises:
        UnavailableError: not root, no loop device, no block-I/O controller, or a missing package.
    """
    if os.geteuid() != 0:
        raise UnavailableError("throttled_loop needs root (it mounts a loop device); run as root, or use slow_fuse")
    if not Path("/dev/loop-control").exists():
        raise UnavailableError(
            "throttled_loop needs loop devices and /dev/loop-control is missing (kernel module `loop`)"
        )
    for program, package in (
        ("losetup", "mount"),
        ("mount", "mount"),
        ("mkfs.ext4", "e2fsprogs"),
        ("debugfs", "e2fsprogs"),
    ):
        find_program(program, package)
    _controller()


@dataclass(frozen=True)
class ThrottledLoopBed:
    """A bed that is mounted."""

    path: str
    """The mounted copy of the image tree, read-only."""
    truth: Truth
    device: str
    """The loop device, as `MAJOR:MINOR`."""
    cgroup: str
    """Folder of the throttled cgroup."""

    def enter(self, pid: int) -> None:
        """Put a process into the throttled group, before it reads; processes that it starts later are in it too."""
        cgroups.enter(self.cgroup, pid)

    @property
    def command_prefix(self) -> list[str]:
        """Put before a command, this starts the command inside the throttled group."""
        return cgroups.command_prefix(self.cgroup)

    def _stat(self) -> list[int]:
        return [int(field) for field in Path(f"/sys/dev/block/{self.device}/stat").read_text().split()]

    def bytes_read(self) -> int:
        """Bytes that the loop device has delivered since it was made (its `stat`, third field)."""
        return self._stat()[2] * SECTOR_BYTES

    def requests_read(self) -> int:
        """Read requests since the device was made, as submitted: the throttle counts them before the block
        layer merges neighbours (`stat`, first and second field)."""
        return self._stat()[0] + self._stat()[1]


def _attach_loop(image: str, resources: Resources) -> str:
    """Attach the image, with direct I/O where the folder's file system can; returns the /dev path."""
    losetup = find_program("losetup", "mount")
    resources.loop_images.append(image)
    resources.save()
    try:
        device = run_command(losetup, "--find", "--show", "--read-only", image).strip()
    except UnavailableError as error:
        raise UnavailableError(f"throttled_loop got no loop device: {error}") from error
    # Without direct I/O (a tmpfs may refuse it) the image is cached twice. The cap stays the same, since it
    # acts on the loop device itself.
    with contextlib.suppress(UnavailableError):
        run_command(losetup, "--direct-io=on", device)
    return device


@contextlib.contextmanager
def throttled_loop(
    dataset_dir: str | os.PathLike[str], *, bytes_per_s: float | None = None, iops: float | None = None
) -> Iterator[ThrottledLoopBed]:
    """Mount a copy of an image tree whose reads are capped at `bytes_per_s` and `iops` (None: no cap).

    Raises:
        UnavailableError: what the machine lacks (see `check_available`).
        ConfigError: `dataset_dir` is no folder, or a limit is not positive.
    """
    for name, value in (("bytes_per_s", bytes_per_s), ("iops", iops)):
        if value is not None and round(value) < 1:
            raise ConfigError(f"{name} of a throttled loop must be at least 1, not {value}")
    tree = check_dataset_dir(dataset_dir)
    check_available()
    controller = _controller()
    with workspace("throttled_loop") as resources:
        image = os.path.join(resources.folder, "image")
        make_ext4_image(tree, image)
        loop = _attach_loop(image, resources)
        mount_point = os.path.join(resources.folder, "mount")
        Path(mount_point).mkdir()
        resources.mounts.append(mount_point)
        resources.save()
        run_command(find_program("mount", "mount"), "-t", "ext4", "-o", "ro,noatime", loop, mount_point)
        number = Path(loop).stat().st_rdev
        device = f"{os.major(number)}:{os.minor(number)}"
        group = cgroups.make_group(controller, resources)
        for file, line in throttle_settings(controller.version, device, bytes_per_s, iops):
            Path(group, file).write_text(line)
        yield ThrottledLoopBed(mount_point, Truth(bytes_per_s=bytes_per_s, iops=iops), device, group)
