"""How many ranks a FUSE mount of a set bandwidth feeds, by real ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import run

from loaderbench.selftest.slow_fuse import check_available, slow_fuse

pytestmark = [pytest.mark.bed, pytest.mark.slow, pytest.mark.alone]

IMAGES_PER_S, RANKS = 100.0, 3.5
"""What the mount gives, and how many ranks that is at AU 0.9."""
BATCH = 2
PROFILE = """
machine = "bed"
device_name = "made for a test"
model = "resnet50"
mode = "train"
precision = "fp32"
input_size = 64
tail_ms = {{ value = 0.0, label = "assumed", source = "a test" }}
link_bytes_per_s = {{ value = 50e9, label = "assumed", source = "a test" }}
[[steps]]
batch_size = {batch}
duration_ms = {{ value = {ms}, label = "assumed", source = "a test" }}
"""


@pytest.fixture(autouse=True)
def _available(require_bed: Any) -> None:
    require_bed(check_available)


def test_the_number_of_ranks_is_that_of_the_set_bandwidth(small_set: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    sources = sorted((small_set / "96").rglob("*.jpg"))
    tree.mkdir()
    for number in range(1000):
        shutil.copyfile(sources[number % len(sources)], tree / f"{number:04}.jpg")
    mean_bytes = sum(path.stat().st_size for path in tree.iterdir()) / 1000
    demand = IMAGES_PER_S / (0.9 * RANKS)
    (tmp_path / "rank.toml").write_text(PROFILE.format(batch=BATCH, ms=1e3 * BATCH / demand))
    with slow_fuse(tree, bytes_per_s=IMAGES_PER_S * mean_bytes) as bed:
        before = bed.bytes_served()
        done = run(
            "capacity", bed.path, "--device", f"emulated:{tmp_path / 'rank.toml'}", "--batch-size", str(BATCH),
            "--input-size", "64", "--max-ranks", "6", "--duration", "6", "--quiet", "--json", "-",
            "--results", tmp_path / "results", timeout_s=280,
        )  # fmt: skip
        served = bed.bytes_served() - before
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert abs(found["found_ranks"] - int(RANKS)) <= 1 and abs(found["predicted_ranks"] - int(RANKS)) <= 1
    assert found["next_is_stopped_by"] == "storage_bandwidth" and found["cold_is_proven"]
    taken = sum(
        point["samples_per_s"]["value"] * 6 * 0.8 * point["num_looks"] for point in found["curve"]
    )  # fmt: skip
    assert served > taken * mean_bytes  # the mount, not the page cache, gave what was measured
