"""The documentation keeps up with the code."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from commands import TINY, records, run, run_script

from loaderbench.analysis.rules import RULES_VERSION

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_the_example_loader_runs_as_a_package_of_somebody_else(
    small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    metadata = site / "plain_loader-1.0.dist-info"
    metadata.mkdir(parents=True)
    shutil.copytree(ROOT / "docs/examples/plain_loader", site / "plain_loader")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plain-loader\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[loaderbench.loaders]\nplain = plain_loader:PLUGIN\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])))

    ended = run("run", small_set / "96", "--loader", "plain", *TINY, "--results", tmp_path / "results")

    assert ended.code == 0, ended.err
    (record,) = records(tmp_path / "results")
    assert record["case"]["loader"] == "plain"
    assert record["throughput"]["value"] > 0
    unknown = run("run", small_set / "96", "--loader", "plane", "--dry-run")
    assert unknown.code == 2
    assert "plain" in unknown.err


@pytest.mark.slow  # a run, a sweep and a comparison: 10 s
def test_the_examples_of_python_run(small_set: Path, tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.S)
    assert len(examples) == 3
    (tmp_path / "photos").symlink_to(small_set / "96")

    (tmp_path / "examples.py").write_text("\n".join(examples))

    ended = run_script(tmp_path / "examples.py", folder=tmp_path)

    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].startswith("ok ") and len(records(tmp_path / "results")) == 3
    assert re.fullmatch(r"serial \d+ images/s \w+", lines[2]) and re.fullmatch(r"threaded \d+ images/s \w+", lines[3])
    assert lines[-1] == f"{RULES_VERSION} {records(tmp_path / 'results')[-1]['verdict']['bottleneck']}"
