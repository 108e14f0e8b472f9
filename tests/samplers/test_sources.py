"""Which samplers a path gets, and what is said about those it cannot have."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from loaderbench.errors import UnavailableError
from loaderbench.images.filesystem import FileSystem, storage_behind
from loaderbench.samplers import sources
from loaderbench.samplers.diskstats import DiskSampler
from loaderbench.samplers.nfs import NfsSampler
from loaderbench.samplers.process_io import ProcessTreeSampler
from loaderbench.samplers.sources import StorageCounter, samplers_for, storage_sampler


def mounted(kind: str, device: str | None = None, mount_point: str = "/data") -> FileSystem:
    return FileSystem(kind, "source", device, "0:9", mount_point, (), None if device else "no device here")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("tmpfs", "which is in memory"),
        ("fuse.sshfs", "FUSE daemon"),
        ("overlay", "no device here"),
        ("9p", "no device here"),
    ],
)
def test_storage_that_nothing_counts_says_why_and_what_to_do(kind: str, said: str) -> None:
    with pytest.raises(UnavailableError, match=said) as caught:
        storage_sampler(mounted(kind))
    assert "; " in str(caught.value)


def test_a_disk_is_counted_by_diskstats() -> None:
    with open("/proc/diskstats") as file:
        lines = file.read().splitlines()
    if not lines:
        pytest.skip("this machine shows no block device")
    sampler = storage_sampler(mounted("ext4", lines[0].split()[2]))
    assert isinstance(sampler, DiskSampler)
    sampler.close()


def test_nfs_is_counted_by_mountstats(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = Path(__file__).parent.parent / "data" / "nfs" / "mountstats_uml_nfs42_cold_after.txt"
    monkeypatch.setattr(sources, "NfsSampler", lambda mount_point: NfsSampler(mount_point, str(capture)))
    sampler = storage_sampler(mounted("nfs4", mount_point="/mnt/nfs"))
    assert sampler.counters()["read_bytes"] == 43_643_544
    sampler.close()


def test_a_counter_where_nothing_can_tell_is_none_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "storage_behind", lambda path: mounted("tmpfs"))
    counter = StorageCounter("/data")
    assert counter.read() is None
    assert counter.source is None
    assert "which is in memory" in str(counter.reason)
    counter.close()


def test_a_counter_of_a_real_path_names_its_source(tmp_path: Path) -> None:
    if storage_behind(tmp_path).device is None:
        pytest.skip(f"the temporary folder is on {storage_behind(tmp_path).type}, not on a block device; set TMPDIR")
    counter = StorageCounter(tmp_path)
    reading = counter.read()
    counter.close()
    assert reading is not None
    assert set(reading) == {"read_bytes", "reads", "io_ticks_ms"}
    assert counter.reason is None
    assert str(storage_behind(tmp_path).device) in str(counter.source)


def test_the_counter_is_of_the_storage_that_holds_the_files(tmp_path: Path) -> None:
    if not Path("/dev/shm").is_dir() or storage_behind(tmp_path).is_memory:
        pytest.skip("needs a temporary folder on another file system than /dev/shm")
    here = tmp_path / "a.jpg"
    here.write_bytes(b"a")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        Path(memory, "b.jpg").write_bytes(b"b")
        linked = tmp_path / "linked"
        linked.symlink_to(memory)
        paths = [str(linked / "b.jpg"), str(here)]
        assert StorageCounter(tmp_path, paths[:1]).file_system == storage_behind("/dev/shm")
        assert StorageCounter(tmp_path, paths[1:]).file_system == storage_behind(tmp_path)
        both = StorageCounter(tmp_path, paths)
        assert (both.file_system.kind, both.read(), both.source) == ("unknown", None, None)
        assert "several file systems" in str(both.reason)
        # device numbers of their own, as btrfs gives them, are no file systems
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sources, "storage_behind", lambda path: mounted("btrfs"))
            assert StorageCounter(tmp_path, paths).file_system.type == "btrfs"
        # a file that has gone is for whoever reads it to tell
        assert StorageCounter(tmp_path, [str(tmp_path / "gone.jpg")]).file_system == storage_behind(tmp_path)


def test_every_case_gets_its_process_tree_and_cpus(tmp_path: Path) -> None:
    samplers, caveats = samplers_for(tmp_path, os.getpid(), None)
    kinds = {type(sampler).__name__ for sampler in samplers}
    assert {"ProcessTreeSampler", "CpuSampler"} <= kinds
    assert "NvmlSampler" not in kinds
    assert all(caveat.details["reason"] for caveat in caveats)
    names = [channel.name for sampler in samplers for channel in sampler.channels]
    assert len(names) == len(set(names))
    for sampler in samplers:
        assert len(sampler.read()) == len(sampler.channels)
        sampler.close()


def test_a_missing_source_is_a_caveat_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unavailable(*_: object) -> None:
        raise UnavailableError("NVML does not start (gone); install the NVIDIA driver")

    monkeypatch.setattr(sources, "NvmlSampler", unavailable)
    monkeypatch.setattr(sources, "storage_behind", lambda path: mounted("fuse.x"))
    samplers, caveats = samplers_for(tmp_path, os.getpid(), 0)
    assert any(isinstance(sampler, ProcessTreeSampler) for sampler in samplers)
    messages = [str(caveat.details["reason"]) for caveat in caveats if caveat.code == "sampler_missing"]
    assert any("FUSE" in message for message in messages)
    assert any("NVIDIA driver" in message for message in messages)
    for sampler in samplers:
        sampler.close()


def test_a_process_that_is_gone_is_a_caveat(tmp_path: Path) -> None:
    samplers, caveats = samplers_for(tmp_path, 2**22 + 1, None)
    assert not any(isinstance(sampler, ProcessTreeSampler) for sampler in samplers)
    assert any(f"/proc/{2**22 + 1}" in str(caveat.details["reason"]) for caveat in caveats)
    for sampler in samplers:
        sampler.close()
