"""diskstats: the right device, the right fields, and real bytes on a real disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loaderbench.errors import UnavailableError
from loaderbench.images.cache_state import evict
from loaderbench.images.filesystem import storage_behind
from loaderbench.samplers.diskstats import DiskSampler, parse_diskstats
from loaderbench.samplers.sources import StorageCounter

TEXT = """   7       0 loop0 10 0 80 1 0 0 0 0 0 5 5 0 0 0 0 0 0
   8       1 sda1 100 2 3000 40 5 6 7000 80 3 90 120
   8      17 sda 1 1 1 1
 254       0 vda 61684 14081 5940146 11958 26596 55792 21351432 59498 2 11172 72832 8727 71 6111304 1241 3360 133
 259       0 nvme0n1 5 0 16 1 0 0 0 0 0 2 3 0 0 0 0
"""


def test_fields_of_every_kernels_format() -> None:
    disks = parse_diskstats(TEXT)
    assert set(disks) == {"loop0", "sda1", "vda", "nvme0n1"}
    assert (disks["vda"].reads_completed, disks["vda"].read_bytes) == (61684, 5940146 * 512)
    assert (disks["vda"].reads_in_flight, disks["vda"].io_ticks_ms, disks["vda"].read_ms) == (2, 11172, 11958)
    assert (disks["sda1"].read_bytes, disks["sda1"].io_ticks_ms) == (3000 * 512, 90)
    assert disks["nvme0n1"].read_bytes == 16 * 512


def test_only_the_device_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "diskstats"
    file.write_text(TEXT)
    sampler = DiskSampler("/dev/vda", str(file), str(tmp_path))
    assert sampler.counters() == {"read_bytes": 5940146 * 512, "reads": 61684, "io_ticks_ms": 11172}
    assert [channel.unit for channel in sampler.channels] == ["bytes", "requests", "ms"]
    assert sampler.channels[0].source == f"diskstats vda ({file}) sectors_read"
    file.write_text(TEXT.replace("5940146", "5940148"))
    assert sampler.read()[0] == 5940148 * 512
    file.write_text("")
    with pytest.raises(UnavailableError, match="does not list vda"):
        sampler.read()
    sampler.close()


def test_a_devices_own_file_is_its_line_of_diskstats(tmp_path: Path) -> None:
    (tmp_path / "vda").mkdir()
    line = next(line for line in TEXT.splitlines() if " vda " in line)
    (tmp_path / "vda" / "stat").write_text(line.partition(" vda ")[2] + "\n")
    sampler = DiskSampler("vda", str(tmp_path / "absent"), str(tmp_path))
    assert sampler.counters() == {"read_bytes": 5940146 * 512, "reads": 61684, "io_ticks_ms": 11172}
    sampler.close()


def test_both_files_of_a_real_disk_agree(tmp_path: Path) -> None:
    disks = parse_diskstats(Path("/proc/diskstats").read_text())
    quiet = [name for name, disk in disks.items() if disk.reads_completed == 0]
    for name in [*quiet, *disks][:3]:
        own, shared = DiskSampler(name), DiskSampler(name, sys_block=str(tmp_path))
        before, between, after = shared.counters(), own.counters(), shared.counters()
        own.close()
        shared.close()
        assert before["read_bytes"] <= between["read_bytes"] <= after["read_bytes"]
        assert before["reads"] <= between["reads"] <= after["reads"]


@pytest.mark.parametrize("device", ["sd", "sda", "absent"])
def test_a_device_that_is_not_listed_is_unavailable(tmp_path: Path, device: str) -> None:
    file = tmp_path / "diskstats"
    file.write_text(TEXT)
    with pytest.raises(UnavailableError, match=f"does not list {device};"):
        DiskSampler(device, str(file), str(tmp_path))


def test_a_hidden_file_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="cannot be read"):
        DiskSampler("vda", str(tmp_path / "absent"), str(tmp_path))


def test_a_cold_read_moves_the_files_bytes_at_the_device(tmp_path: Path) -> None:
    if storage_behind(tmp_path).device is None:
        pytest.skip(f"the temporary folder is on {storage_behind(tmp_path).type}, not on a block device; set TMPDIR")
    size = 8 << 20
    file = tmp_path / "bytes"
    file.write_bytes(os.urandom(size))
    evict(str(file))
    counter = StorageCounter(tmp_path)
    before = counter.read()
    file.read_bytes()
    after = counter.read()
    counter.close()
    assert before is not None
    assert after is not None
    # The disk is shared: others may read from it meanwhile, so this is a lower bound.
    assert after["read_bytes"] - before["read_bytes"] >= size
    assert after["reads"] > before["reads"]
