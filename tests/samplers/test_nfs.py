"""mountstats against captures of a real client that read a known number of bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loaderbench.errors import UnavailableError
from loaderbench.images.filesystem import parse_mountinfo
from loaderbench.samplers.nfs import NfsSampler, OpStats, delta, find_mount, parse_mountstats

CAPTURES = Path(__file__).parent.parent / "data" / "nfs"
JOBS = {
    "uml_nfs42": "/mnt/nfs",
    "uml7.2_nfs42": "/mnt/nfs",
    "qemu_nfs42": "/mnt/nfs",
    "uml_nfs3": "/mnt/nfs3",
    "uml_nfs41_nconnect4_rsize64k": "/mnt/nfsn",
}
PASSES = ("cold", "warm", "odirect", "mmap")


def captured(job: str, name: str) -> Any:
    text = (CAPTURES / f"mountstats_{job}_{name}.txt").read_text()
    mount = find_mount(parse_mountstats(text), JOBS[job])
    assert mount is not None
    return mount


def truth(job: str, label: str) -> dict[str, Any]:
    steps = json.loads((CAPTURES / f"nfs_job_{job}.json").read_text())["steps"]
    return next(step for step in steps if step["label"] == label)


def as_recorded(op: OpStats) -> dict[str, int | None]:
    return {
        "ops": op.ops,
        "trans": op.transmissions,
        "tmo": op.timeouts,
        "sent": op.sent_bytes,
        "recv": op.received_bytes,
        "queue_ms": op.queue_ms,
        "rtt_ms": op.rtt_ms,
        "exe_ms": op.exe_ms,
        "err": op.errors,
    }


@pytest.mark.parametrize("label", PASSES)
@pytest.mark.parametrize("job", JOBS)
def test_every_capture_gives_the_recorded_deltas(job: str, label: str) -> None:
    step = truth(job, label)
    grown = delta(captured(job, f"{label}_before"), captured(job, f"{label}_after"), step["sec"])
    assert grown.bytes == step["bytes"]
    assert {name: as_recorded(op) for name, op in grown.ops.items()} == step["ops"]
    exe_ms = sum(op["exe_ms"] for op in step["ops"].values())
    assert grown.mean_rpcs_in_flight == pytest.approx(exe_ms / 1000 / step["sec"])


@pytest.mark.parametrize("job", JOBS)
def test_bytes_the_server_sent_are_the_files_bytes(job: str) -> None:
    """Buffered, O_DIRECT and mmap reads alike; a warm pass asks the server for nothing but attributes."""
    total = json.loads((CAPTURES / f"nfs_job_{job}.json").read_text())["total"]
    read = {
        label: delta(captured(job, f"{label}_before"), captured(job, f"{label}_after"), 1.0).read_bytes
        for label in PASSES
    }
    assert read == {"cold": total, "warm": 0, "odirect": total, "mmap": total}


def test_round_trips_and_waits_per_operation() -> None:
    grown = delta(captured("qemu_nfs42", "cold_before"), captured("qemu_nfs42", "cold_after"), 5.74)
    read = grown.ops["READ"]
    assert read.rtt_ms_per_op == pytest.approx(3.1)
    assert read.queue_ms_per_op == pytest.approx(0.6475)
    assert read.exe_ms_per_op == pytest.approx(4.2975)
    # 400 files: open, read, close, and two attribute calls each
    assert grown.total.ops == 2000
    assert grown.total.retransmits == 0


def test_an_operation_that_never_ran_has_no_round_trip_time() -> None:
    write = captured("uml_nfs42", "cold_after").ops["WRITE"]
    assert write.ops == 0
    assert write.rtt_ms_per_op is None
    assert write.queue_ms_per_op is None


def test_several_connections_are_one_mount() -> None:
    mount = captured("uml_nfs41_nconnect4_rsize64k", "cold_after")
    assert mount.num_transports == 4
    assert "vers=4.1" in mount.options
    assert captured("uml_nfs3", "cold_after").num_transports == 1


def test_shared_superblocks_repeat_one_set_of_counters() -> None:
    """Mounts of one device number (the sub-path /mnt/b, the second mount /mnt/c) repeat; d and e are their own."""
    mounts = parse_mountstats((CAPTURES / "mountstats_bind_shared_nosharecache.txt").read_text())
    lines = parse_mountinfo((CAPTURES / "mountinfo_bind_shared_nosharecache.txt").read_text())
    device = {line.mount_point: line.major_minor for line in lines if line.type == "nfs4"}

    read = {mount.mount_point: mount.bytes["serverread"] for mount in mounts}
    assert read == {"/mnt/nfs": 6526293, "/mnt/b": 6526293, "/mnt/c": 6526293, "/mnt/d": 0, "/mnt/e": 0}
    by_point = {mount.mount_point: mount for mount in mounts}
    for a, b in (("/mnt/nfs", "/mnt/b"), ("/mnt/nfs", "/mnt/c")):
        assert device[a] == device[b]
        assert by_point[a].ops == by_point[b].ops
    assert len({device["/mnt/nfs"], device["/mnt/d"], device["/mnt/e"]}) == 3


HAND_MADE = """device rootfs mounted on / with fstype rootfs
device /etc/auto mounted on /data with fstype autofs
device server:/old mounted on /data with fstype nfs statvers=1.1
	age:	10
	bytes:	1 0 0 0 1 0 1 0
	per-op statistics
	READ: 1 1 0 100 200 0 5 6

device server:/a\\040b mounted on /data with fstype nfs4 statvers=1.1
	age:	5
	bytes:	70 0 0 0 70 0 1 0
	RPC iostats version: 1.1  p/v: 100003/4 (nfs)
	xprt:	rdma 0 0 1 0 0 1 1 0 1 0 0 0 0 0
	per-op statistics
	READ: 7 9 1 100 200 3 5 6 0
	FUTURE_OP: 2 2 0 10 20 1 1 2 0 44 55
no device mounted on /x with fstype tmpfs
device server:/c mounted on /with\\040blank with fstype nfs4 statvers=1.1
	bytes:	90 0 0 0 90 0 1 0
	per-op statistics
device tmpfs mounted on /tmp with fstype tmpfs
"""


def test_stacked_mounts_new_operations_and_old_kernels() -> None:
    mounts = parse_mountstats(HAND_MADE)
    seen = find_mount(mounts, "/data")
    assert seen is not None
    assert (seen.export, seen.bytes["serverread"]) == ("server:/a b", 70)
    assert seen.ops["FUTURE_OP"].exe_ms == 2
    assert seen.total.retransmits == 2
    assert mounts[0].ops["READ"].errors is None
    assert find_mount(mounts, "/elsewhere") is None


def test_sampler_reads_the_block_of_its_mount_point(tmp_path: Path) -> None:
    file = tmp_path / "mountstats"
    file.write_text(HAND_MADE)
    sampler = NfsSampler("/data", str(file))
    values = dict(zip([channel.name for channel in sampler.channels], sampler.read(), strict=True))
    assert values == {
        "storage_read_bytes": 70,
        "storage_reads": 7,
        "nfs_rpcs": 9,
        "nfs_queue_ms": 4,
        "nfs_rtt_ms": 6,
        "nfs_exe_ms": 8,
        "nfs_retransmits": 2,
    }
    sampler.close()
    blank = NfsSampler("/with blank", str(file))
    assert blank.counters()["read_bytes"] == 90
    blank.close()


def test_sampler_follows_the_counters_of_a_pass() -> None:
    before = NfsSampler("/mnt/nfs", str(CAPTURES / "mountstats_uml_nfs42_cold_before.txt"))
    after = NfsSampler("/mnt/nfs", str(CAPTURES / "mountstats_uml_nfs42_cold_after.txt"))
    grown = {name: value - before.counters()[name] for name, value in after.counters().items()}
    assert grown["read_bytes"] == 43_643_544
    assert (grown["reads"], grown["rpcs"]) == (400, 1200)
    assert (grown["rtt_ms"], grown["exe_ms"], grown["retransmits"]) == (179 + 34 + 33, 206 + 36 + 36, 0)
    before.close()
    after.close()


def test_a_mount_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    file = tmp_path / "mountstats"
    file.write_text(HAND_MADE)
    with pytest.raises(UnavailableError, match="no NFS counters for /tmp"):
        NfsSampler("/tmp", str(file))
    with pytest.raises(UnavailableError, match="cannot be read"):
        NfsSampler("/data", str(tmp_path / "absent"))


def test_counters_that_went_back_are_no_delta() -> None:
    later = captured("uml_nfs42", "warm_after")
    earlier = captured("uml_nfs42", "cold_before")
    with pytest.raises(ValueError, match="mounted again"):
        delta(later, earlier, 1.0)
