"""A real NFS client and server: bytes are exact, speed is what was set, and nothing stays behind."""

import json
import sys
import time
from pathlib import Path

import commands
import pytest

from loaderbench.errors import CaseFailed
from loaderbench.samplers.nfs import find_mount, parse_mountstats
from loaderbench.selftest import base, uml
from tests.beds.uml_nfs import (
    INSIDE_OUT,
    INSIDE_PATH,
    probe_command,
    run_in_uml_nfs,
    uml_nfs,
)

pytestmark = [pytest.mark.bed, pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(420)]

HOLD = """
import sys
from tests.beds.uml_nfs import uml_nfs
with uml_nfs(sys.argv[1], memory="512M") as bed:
    print(bed._resources.folder, flush=True)
    bed.run(["sleep", "60"], out_dir=sys.argv[2])
"""


@pytest.fixture(autouse=True)
def _available(require_bed):
    require_bed(uml.check_available)


def helpers_of(folder):
    """Live processes whose command line names a bed's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (
                    folder.encode() in (entry / "cmdline").read_bytes()
                    and b"linux.uml" in (entry / "cmdline").read_bytes()
                ):
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def test_a_capped_wire_gives_its_rate_to_any_number_of_readers(served_tree, tree_bytes, tmp_path):
    # given a wire of 160 Mbit/s
    result = run_in_uml_nfs(
        served_tree, probe_command([1, 4]), bandwidth_bits_per_s=160e6, memory="1G", timeout_s=120, out_dir=tmp_path
    )
    assert result.rc == 0, result.stderr
    stages = [json.loads(line) for line in result.stdout.splitlines()]
    assert [stage["readers"] for stage in stages] == [1, 4]
    for stage in stages:
        # then the server sent exactly the bytes that were read, at about the rate set
        assert stage["bytes"] == stage["serverread_bytes"] == tree_bytes
        assert stage["bytes_per_s"] == pytest.approx(20e6, rel=0.25)
    # and what grows with the readers is the time that each of them waits
    assert stages[1]["ops"]["READ"]["rtt_ms"] > 1.5 * stages[0]["ops"]["READ"]["rtt_ms"]
    # and the counters around the whole command are there, for who wants to judge for himself
    before, after = (
        find_mount(parse_mountstats((tmp_path / f"mountstats_{when}.txt").read_text()), INSIDE_PATH)
        for when in ("before", "after")
    )
    assert after.bytes["serverread"] - before.bytes["serverread"] == 2 * tree_bytes
    assert after.fstype == "nfs4" and "rsize=1048576" in after.options


def test_a_slow_wire_gives_its_latency_and_scales_with_the_readers(served_tree, tree_bytes, tmp_path):
    result = run_in_uml_nfs(
        served_tree, probe_command([1, 4]), latency_s=0.05, memory="1G", timeout_s=120, out_dir=tmp_path
    )
    one, four = (json.loads(line) for line in result.stdout.splitlines())
    assert one["serverread_bytes"] == four["serverread_bytes"] == tree_bytes
    assert 50 <= one["ops"]["READ"]["rtt_ms"] <= 60
    assert four["bytes_per_s"] > 1.7 * one["bytes_per_s"]


def test_the_command_s_end_and_files_come_out(served_tree, tmp_path):
    source = """
import os, sys
from pathlib import Path
classes = sorted(path.name for path in Path(os.environ["LOADERBENCH_BED_PATH"]).iterdir())
Path(os.environ["LOADERBENCH_BED_OUT"], "made").write_text(" ".join(classes))
print("said")
sys.exit("wrong")
"""
    with uml_nfs(served_tree, memory="512M") as bed:
        result = bed.run([sys.executable, "-c", source], out_dir=tmp_path, timeout_s=60)
        folder = bed._resources.folder
        assert (result.rc, result.stdout, result.stderr) == (1, "said\n", "wrong\n")
        assert (tmp_path / "made").read_text() == "class0 class1"
        # the same bed serves a second command; one that does not end is ended
        begun = time.monotonic()
        with pytest.raises(CaseFailed, match="did not end within 6 s"):
            bed.run(["sleep", "60"], out_dir=tmp_path, timeout_s=6)
        assert time.monotonic() - begun < 12
        assert helpers_of(folder) == []
    assert not Path(folder).exists()
    assert INSIDE_OUT not in base.mount_points()


def test_what_a_killed_run_left_is_removed_by_the_next(served_tree, tmp_path, start_owner):
    owner, (folder,) = start_owner(HOLD, served_tree, tmp_path)
    deadline = time.monotonic() + 20
    while not (tmp_path / "mountstats_before.txt").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert helpers_of(folder)
    owner.kill()
    owner.wait()
    assert f"removed uml_nfs, which process {owner.pid} left" in base.clean_leftovers()
    assert helpers_of(folder) == []
    assert not Path(folder).exists()


@pytest.fixture(scope="module")
def photographs_on_disk(tmp_path_factory):
    root = tmp_path_factory.mktemp("set")
    made = commands.run("dataset", "make", "--res", "256", "--num-images", "300", "--out", root)
    assert made.code == 0, made.err
    return root / "256"


def record_inside(tree, out, *options, **limit):
    """The record of a `loaderbench run` inside, over NFS.

    Small inputs and inference keep the one slow processor in there from being a second limit. Its clock ticks every
    10 ms, to which the emulated device's steps are rounded: a batch that takes many ticks hides that.
    """
    command = [sys.executable, "-m", "loaderbench", "run", INSIDE_PATH, "--device", "emulated", "--loader", "threaded"]
    command += ["--duration", "60", "--cache", "cold", "--quiet", *options]
    command += ["--mode", "infer", "--input-size", "64"]
    command += ["--results", f"{INSIDE_OUT}/results", "--json", f"{INSIDE_OUT}/run.json"]
    result = run_in_uml_nfs(tree, command, timeout_s=400, out_dir=out, **limit)
    assert result.rc == 0, result.stderr
    return json.loads((out / "run.json").read_text())


def test_a_run_over_a_capped_wire_names_the_storage_and_its_bandwidth(photographs_on_disk, tmp_path):
    record = record_inside(
        photographs_on_disk, tmp_path, "--workers", "2", "--batch-size", "16", bandwidth_bits_per_s=20e6
    )
    assert record["verdict"]["bottleneck"] == "storage"
    storage = record["storage"]
    assert storage["cold_proven"] is True
    assert storage["ceiling"]["bound_by"] == "bandwidth"
    assert storage["ceiling_bytes_per_s"] == pytest.approx(2.5e6, rel=0.25)
    assert storage["bandwidth_bytes_per_s"] < 1.25 * 2.5e6
    assert storage["nfs"]["retransmits"] == 0


def test_a_run_over_a_late_wire_names_the_latency_and_asks_for_more_readers(photographs_on_disk, tmp_path):
    record = record_inside(photographs_on_disk, tmp_path, "--workers", "1", "--batch-size", "4", latency_s=0.02)
    assert record["verdict"]["bottleneck"] == "storage"
    assert record["storage"]["ceiling"]["bound_by"] == "latency"
    assert 0.02 <= record["storage"]["nfs"]["rtt_s"] < 0.04
    more = [one["change"] for one in record["verdict"]["advice"] if one["change"] and "workers" in one["change"]]
    assert more and more[0]["workers"] > 1
