"""`loaderbench compare` between a local disk and a real NFS mount, both inside User-Mode Linux."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import commands
import pytest

from loaderbench.selftest import uml
from tests.beds.uml_nfs import INSIDE, INSIDE_OUT, INSIDE_PATH, run_in_uml_nfs

pytestmark = [pytest.mark.bed, pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(620)]

LOCAL = f"{INSIDE}/export"
"""The server's own tree, an ext4 on a block device: the same files without the network."""


@pytest.fixture(autouse=True)
def _available(require_bed: Any) -> None:
    require_bed(uml.check_available)


@pytest.fixture(scope="module")
def photographs_on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    made = commands.run("dataset", "make", "--res", "256", "--num-images", "300", "--out", root)
    assert made.code == 0, made.err
    return root / "256"


def compared_inside(tree: Path, out: Path, *options: str, **limit: float) -> dict[str, Any]:
    """What `compare local=… nfs=…` finds inside: cold, one round.

    Small inputs and inference keep the one slow processor in there from being a second limit.
    """
    command = [sys.executable, "-m", "loaderbench", "compare", f"local={LOCAL}", f"nfs={INSIDE_PATH}"]
    command += ["--device", "emulated", "--loader", "threaded", "--cache", "cold"]
    command += ["--mode", "infer", "--input-size", "64"]
    command += [
        "--rounds",
        "1",
        "--quiet",
        "--results",
        f"{INSIDE_OUT}/results",
        "--json",
        f"{INSIDE_OUT}/compare.json",
    ]
    result = run_in_uml_nfs(tree, [*command, *options], timeout_s=600, out_dir=out, **limit)
    assert result.rc == 0, result.stderr
    found: dict[str, Any] = json.loads((out / "compare.json").read_text())
    assert found["same_files"]["num_images"] == 300
    assert found["differs"] == []
    return found


def test_a_capped_wire_is_slower_by_its_storage_and_no_workers_mend_it(
    photographs_on_disk: Path, tmp_path: Path
) -> None:
    found = compared_inside(
        photographs_on_disk,
        tmp_path,
        "--workers",
        "2",
        "--batch-size",
        "16",
        "--duration",
        "60",
        bandwidth_bits_per_s=20e6,
    )
    assert found["outcome"] == "slower"
    (pair,) = found["pairs"]
    nfs = pair["b"]
    assert nfs["bottleneck"] == "storage"
    assert pair["a"]["storage"]["cold_proven"] is nfs["storage"]["cold_proven"] is True
    # the bytes are the client's own, at no more than the rate set
    assert nfs["storage"]["bandwidth_bytes_per_s"] < 1.25 * 2.5e6
    assert nfs["storage"]["bound_by"] == "bandwidth"
    assert nfs["storage"]["client_cache_hit_fraction"] < 0.05
    assert nfs["storage"]["retransmits"] == 0
    # and parity takes more than the wire carries
    assert found["parity"]["workers"] is None
    assert found["parity"]["needs"]["bytes_per_s"] > found["parity"]["needs"]["gives_bytes_per_s"]
    assert found["parity"]["needs"]["gives_bytes_per_s"] == pytest.approx(2.5e6, rel=0.25)


def test_a_late_wire_catches_up_with_more_workers(photographs_on_disk: Path, tmp_path: Path) -> None:
    found = compared_inside(
        photographs_on_disk, tmp_path, "--workers", "1,4", "--batch-size", "4", "--duration", "30", latency_s=0.02
    )
    one, four = found["pairs"]
    assert (one["workers"], one["outcome"], one["b"]["bottleneck"]) == (1, "slower", "storage")
    assert one["b"]["storage"]["bound_by"] == "latency"
    assert 0.02 <= one["b"]["storage"]["rtt_s"] < 0.04
    # a file that is not in memory takes a READ; its open may need no trip, by a delegation of an earlier one
    assert one["b"]["storage"]["file_read_s"]["p50"] > 0.02 > one["a"]["storage"]["file_read_s"]["p50"]
    assert four["ratio"]["value"] > 1.3 * one["ratio"]["value"]
    assert one["a"]["storage"]["rtt_s"] is None
