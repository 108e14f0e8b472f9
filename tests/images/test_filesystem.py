import doctest
import os
from pathlib import Path

import pytest

from loaderbench.images import filesystem, scan
from loaderbench.images.filesystem import choose_mount, parse_mountinfo, storage_behind, whole_disk

CAPTURED = """\
16 1 0:15 / / ro,relatime - hostfs /dev/root ro,/
20 16 0:18 / /mnt rw,relatime - tmpfs tmpfs rw
24 20 0:21 / /mnt/nfs rw,relatime - nfs4 10.99.0.1:/set rw,vers=4.2,rsize=1048576
22 20 0:21 / /mnt/b rw,relatime - nfs4 10.99.0.1:/set/000 rw,vers=4.2
27 20 0:22 / /mnt/d rw,relatime - nfs4 10.99.0.1:/set rw,vers=4.2,nosharecache
31 16 259:2 / /data rw shared:7 master:1 - ext4 /dev/nvme0n1p2 rw
32 16 259:2 /sets/cats /data/bound\\040cats rw - ext4 /dev/nvme0n1p2 rw
33 16 0:44 / /home rw - btrfs /dev/sdb1 rw,subvol=/home
34 16 0:50 / /var/lib/c rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w
35 16 0:51 / /remote rw - fuse.sshfs host:/x rw,user_id=0
36 31 7:3 / /data/img ro - ext4 /dev/loop3 ro
"""
"""Lines of a User-Mode Linux NFS client, joined by one of each other kind."""


@pytest.mark.parametrize("module", [filesystem, scan])
def test_samples_in_the_docstrings(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "major_minor", "mount_point", "type_"),
    [
        ("/mnt/nfs/cat", "0:21", "/mnt/nfs", "nfs4"),
        ("/mnt/b", "0:21", "/mnt/b", "nfs4"),  # same device as /mnt/nfs: the path decides
        ("/mnt/d/x", "0:22", "/mnt/d", "nfs4"),
        ("/mnt/nfsx", "0:18", "/mnt", "tmpfs"),  # a longer name is not below
        ("/data/bound cats/1", "259:2", "/data/bound cats", "ext4"),
        ("/data/img/a", "7:3", "/data/img", "ext4"),
        ("/home/me", "0:999", "/home", "btrfs"),  # a subvolume's own number
        ("/var/lib/c/file", "0:1234", "/var/lib/c", "overlay"),
        ("/remote", "0:51", "/remote", "fuse.sshfs"),
        ("/etc", "0:15", "/", "hostfs"),
    ],
)
def test_the_mount_above_a_path_is_found(path: str, major_minor: str, mount_point: str, type_: str) -> None:
    mount = choose_mount(parse_mountinfo(CAPTURED), path, major_minor)
    assert mount is not None and (mount.mount_point, mount.type) == (mount_point, type_)


def test_the_later_mount_covers_the_earlier_one_at_the_same_place() -> None:
    lines = "1 0 0:1 / /a rw - tmpfs first rw\n2 0 0:1 / /a rw - tmpfs second rw\n"
    mount = choose_mount(parse_mountinfo(lines), "/a/b", "0:1")
    assert mount is not None and mount.source == "second"


def test_a_partition_belongs_to_its_disk(tmp_path: Path) -> None:
    partition = tmp_path / "devices/pci0/nvme0/nvme0n1/nvme0n1p2"
    partition.mkdir(parents=True)
    (partition / "partition").write_text("2\n")
    (tmp_path / "devices/virtual/block/loop3").mkdir(parents=True)
    (tmp_path / "block").mkdir()
    (tmp_path / "block/259:2").symlink_to(partition)
    (tmp_path / "block/7:3").symlink_to(tmp_path / "devices/virtual/block/loop3")
    assert whole_disk("259:2", str(tmp_path / "block")) == "nvme0n1"
    assert whole_disk("7:3", str(tmp_path / "block")) == "loop3"
    assert whole_disk("0:21", str(tmp_path / "block")) is None


def test_this_machines_own_paths(tmp_path: Path) -> None:
    memory = storage_behind("/dev/shm")
    assert memory.is_memory and memory.device is None and memory.reason == "held in memory"
    here = storage_behind(tmp_path)
    if here.device is not None:  # then the kernel keeps counters under this name
        assert f" {here.device} " in Path("/proc/diskstats").read_text()
    else:
        assert here.reason
    link = tmp_path / "link"
    link.symlink_to("/dev/shm")
    assert storage_behind(link) == memory
    assert storage_behind("/proc").type == "proc"
    with pytest.raises(OSError, match="No such file"):
        storage_behind(tmp_path / "gone")


def test_every_mount_of_this_machine_can_be_read() -> None:
    for mount in parse_mountinfo(Path("/proc/self/mountinfo").read_text()):
        if os.access(mount.mount_point, os.R_OK):
            found = storage_behind(mount.mount_point)
            assert found.type and (found.device or found.reason)


@pytest.mark.parametrize(
    ("type_", "device", "kind"),
    [
        ("ext4", "vda", "local"), ("btrfs", "sdb", "local"), ("ext4", None, "unknown"), ("nfs4", None, "nfs"),
        ("tmpfs", None, "memory"), ("fuse.sshfs", None, "fuse"), ("fuseblk", "sdc", "fuse"),
        ("overlay", None, "unknown"), ("gfs2", "sdd", "unknown"), ("ceph", None, "unknown"),
        ("lustre", None, "unknown"),
    ],
)  # fmt: skip
def test_what_the_kernel_tells_of_a_file_system(type_: str, device: str | None, kind: str) -> None:
    assert filesystem.FileSystem(type_, "source", device, "0:1", "/mnt", ()).kind == kind
