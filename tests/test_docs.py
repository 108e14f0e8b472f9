"""The documentation keeps up with the code."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from commands import TINY, records, run

ROOT = Path(__file__).resolve().parents[1]


def test_every_caveat_is_explained() -> None:
    pattern = re.compile(r"""(?:Caveat|say|\.append)\(\(?\s*"([a-z]+(?:_[a-z]+)+)"\s*,""")
    used = {code for file in (ROOT / "loaderbench").rglob("*.py") for code in pattern.findall(file.read_text())}
    explained = set(re.findall(r"`([a-z_]+)`", (ROOT / "docs/reading-a-verdict.md").read_text()))
    assert len(used) > 20
    assert used - explained == set()


def test_the_example_loader_runs_as_a_package_of_somebody_else(
    small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    metadata = site / "plain_loader-1.0.dist-info"
    metadata.mkdir(parents=True)
    shutil.copy(ROOT / "docs/examples/plain_loader.py", site)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plain-loader\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[loaderbench.loaders]\nplain = plain_loader\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])))

    ended = run("run", small_set / "96", "--loader", "plain", *TINY, "--results", tmp_path / "results")

    assert ended.code == 0, ended.err
    (record,) = records(tmp_path / "results")
    assert record["case"]["loader"] == "plain"
    assert record["throughput"]["value"] > 0
    unknown = run("run", small_set / "96", "--loader", "plane", "--dry-run")
    assert unknown.code == 2
    assert "plain" in unknown.err
