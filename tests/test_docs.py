"""The documentation keeps up with the code."""

from __future__ import annotations

import ast
import os
import re
import shutil
from pathlib import Path

import pytest
from commands import TINY, records, run, run_script

from loaderbench.analysis.rules import RULES_VERSION
from loaderbench.recording.caveats import SEVERITIES
from loaderbench.reporting import words

ROOT = Path(__file__).resolve().parents[1]


VERDICTS = (ROOT / "docs/reading-a-verdict.md").read_text()


def codes_used() -> set[str]:
    """Codes of the caveats that the package makes, as far as they stand in its source."""
    used = set()
    for file in (ROOT / "loaderbench").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id != "Caveat":
                continue
            if node.args and isinstance(node.args[0], ast.Constant):
                used.add(node.args[0].value)
    return used


def test_every_caveat_is_explained() -> None:
    explained = set(re.findall(r"`([a-z0-9_]+)`", VERDICTS))
    assert set(SEVERITIES) - explained == set()
    # and the table explains nothing that there is not
    rows = [line.split("|")[1] for line in VERDICTS.splitlines() if line.startswith("| `")]
    assert {code for row in rows for code in re.findall(r"`([a-z0-9_]+)`", row)} == set(SEVERITIES)


def test_every_caveat_that_is_made_is_of_the_closed_set() -> None:
    # and none is there that nothing makes
    assert codes_used() | {"facts_missing"} == set(SEVERITIES), "tests/convert_schema1.py makes that one"
    assert set(words.CAVEATS) == set(SEVERITIES) and set(words.HINTS) <= set(SEVERITIES)


def test_what_changes_a_verdict_is_named_as_such() -> None:
    (named,) = re.findall(r"\*\*changes the verdict\*\* \(([^)]*)\)", VERDICTS)
    serious = {code for code, severity in SEVERITIES.items() if severity == "changes the verdict"}
    assert set(re.findall(r"`([a-z0-9_]+)`", named)) == serious


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
