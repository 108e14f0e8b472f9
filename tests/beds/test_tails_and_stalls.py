"""What `run` says of a mount with slow files, and of one that stands still now and then."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from numpy.typing import NDArray
from pictures import write_tree

from loaderbench.selftest import throttled_loop
from loaderbench.selftest.slow_fuse import check_available, slow_fuse

pytestmark = [pytest.mark.bed, pytest.mark.slow, pytest.mark.alone]

STEP = ("--workers", "4", "--prefetch", "1", "--batch-size", "32", "--mode", "infer", "--input-size", "64")
REST = ("--cache", "cold", "--duration", "45", "--no-kernels", "--quiet", "--json", "-")


@pytest.fixture(autouse=True)
def _available(require_bed: Any) -> None:
    require_bed(check_available)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory, photographs: list[NDArray[np.uint8]]) -> Path:
    """600 small images in the classes that `write_tree` makes."""
    root = tmp_path_factory.mktemp("tree")
    write_tree(root, photographs, [(96, 96)] * 600)
    return root


def measured(tree: Path, tmp_path: Path, *options: str, **limits: Any) -> dict[str, Any]:
    with slow_fuse(tree, **limits) as bed:
        ended = commands.run("run", bed.path, *STEP, *options, *REST, "--results", tmp_path / "r", timeout_s=170)
    assert (ended.code, ended.err) == (0, "")
    record: dict[str, Any] = json.loads(ended.out)
    return record


def test_a_storage_that_stands_still_limits_the_run_and_preparation_does_not(tree: Path, tmp_path: Path) -> None:
    # given a slow consumer, a queue of 4 batches, and 1.2 s without storage in each 2.7 s
    record = measured(tree, tmp_path, "--device", "emulated:h200x0.0025", "--loader", "threaded", stall=(2.7, 1.2))
    storage, gains = record["storage"], record["verdict"]["speedup_if_removed"]
    assert storage["kind"] == "stalls"
    assert storage["stalls"]["period_s"] == pytest.approx(2.7, rel=0.05)
    assert storage["stalls"]["length_s"] == pytest.approx(1.2, rel=0.05)
    assert storage["fetch_saw"] is True
    # then what the queue does not bridge is lost, whatever preparation costs (half a step is left of the one under way)
    step_s = record["arms"]["host"]["step_s"]["value"]
    lost_s = 1.2 - 4.5 * step_s
    assert record["verdict"]["bottleneck"] == "storage"
    assert gains["storage"]["value"] == pytest.approx(2.7 / (2.7 - lost_s), rel=0.1)
    assert gains["prep"]["value"] < 1.1
    assert "more_prefetch" in {advice["code"] for advice in record["verdict"]["advice"]}
    assert any("the whole storage stalls" in line for line in record["verdict"]["evidence"])


def test_few_slow_files_limit_the_run_and_are_named(tree: Path, tmp_path: Path) -> None:
    names = [str(path.relative_to(tree)) for path in tree.rglob("*.jpg")]
    slow = {name for name in names if zlib.crc32(f"/{name}".encode()) < 0.015 * 2**32}
    assert 3 < len(slow) < 16
    record = measured(tree, tmp_path, "--device", "emulated:h200x0.1", "--loader", "multiprocess", tail=(0.015, 0.4))
    storage, tail = record["storage"], record["storage"]["tail"]
    assert storage["kind"] == "tail"
    assert storage["stalls"] is None
    assert tail["same_files"] is True
    assert {one["path"] for one in tail["files"]} <= slow
    assert tail["slow_s"] == pytest.approx(0.4, rel=0.1)
    assert tail["share"] > 0.4
    assert record["verdict"]["bottleneck"] == "storage"
    assert {"more_prefetch", "slow_files_elsewhere"} <= {one["code"] for one in record["verdict"]["advice"]}


@pytest.mark.parametrize("loader", ["serial", "threaded"])
def test_a_throttled_disk_lacks_bandwidth_though_few_reads_wait_for_it(
    tree: Path, tmp_path: Path, loader: str, require_bed: Any
) -> None:
    # given a kernel that lets reads go in slices of 0.1 s: few of them wait, and those long
    require_bed(throttled_loop.check_available)
    options = ("--device", "emulated:h200x0.1", "--loader", loader, *STEP, *REST, "--results", tmp_path / "r")
    with throttled_loop.throttled_loop(tree, bytes_per_s=4e6) as disk:
        ended = commands.run("run", disk.path, *options, wrapper=disk.command_prefix, timeout_s=170)
    assert (ended.code, ended.err) == (0, "")
    record = json.loads(ended.out)
    assert record["verdict"]["bottleneck"] == "storage"
    assert (record["storage"]["kind"], record["storage"]["tail"]) == ("bandwidth", None)
